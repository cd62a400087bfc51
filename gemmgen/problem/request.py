"""The request of a spec: a matmul, a GPU, and the extents that the kernel is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.hardware import Gpu
from gemmgen.problem.epilogue import NOTHING_LISTED, Listed
from gemmgen.problem.extents import DEFAULT_SHAPE, Ranges, Shape
from gemmgen.problem.matmul import Matmul


@dataclass(frozen=True)
class Request:
    """A matmul that is wanted on a GPU, and the sizes [M, N, K] for which its kernel is planned and tried."""

    matmul: Matmul
    gpu: Gpu
    title: str = ""
    check_shapes: tuple[Shape, ...] = ()
    """The sizes on which ``gemmgen test`` checks the kernel."""
    bench_shapes: tuple[Shape, ...] = ()
    """The sizes on which ``gemmgen bench`` times the kernel."""
    listed: Listed | None = NOTHING_LISTED
    """The epilogue as the list of operations that the spec has; None if the spec has an expression."""
    ranges: Ranges | None = None
    """The sizes that the kernel is for, if the spec says it."""

    @cached_property
    def planned_shapes(self) -> tuple[Shape, ...]:
        """The problems by which open decisions are made."""
        if self.ranges:
            return self.ranges.representatives
        return self.bench_shapes[:1] or (DEFAULT_SHAPE,)

    @property
    def lists_c(self) -> bool:
        """True if the spec has C in its list of operations, where words have it too."""
        return self.listed is not None and self.listed.lists_c

    def stated_extents(self) -> Iterator[tuple[str, int, int]]:
        """Yield each extent of a listed problem, and the ends of ranges: its field, its axis, and the number.

        The axis is that of M, N and K.
        """
        for section, shapes in (("check", self.check_shapes), ("bench", self.bench_shapes)):
            for i, shape in enumerate(shapes):
                for axis, extent in enumerate(shape):
                    yield f"{section}.shapes.{i}.{axis}", axis, extent
        if self.ranges:
            for axis, name in enumerate("mnk"):
                least, most = getattr(self.ranges, name)
                if least == most:
                    yield f"problem.{name}", axis, least
                else:
                    yield f"problem.{name}.0", axis, least
                    yield f"problem.{name}.1", axis, most
