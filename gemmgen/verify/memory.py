"""The GPU memory that the checks of a shape need; shapes that need more than is free get fewer groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from gemmgen.device import gib
from gemmgen.features.checking import sides_of
from gemmgen.numerics.case import Case
from gemmgen.numerics.drawing import drawn_inputs
from gemmgen.numerics.encoding import CHUNK_ELEMENTS
from gemmgen.numerics.matrices import Matrix
from gemmgen.numerics.reference import CHUNK_BYTES, K_MULTIPLE
from gemmgen.numerics.side import Held
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.operations import BLOCK_SCALES

ACCEPTANCE_BYTES: Final = 16 << 30
"""Most bytes for the checks of an acceptance shape, however much is free: more groups show no more faults."""
LEAST_GROUPS: Final = 4
"""Least groups that are checked in place of more: the first of masked groups has no row, the fourth most."""
FLOAT64_MATRICES: Final = 10
"""Float64 matrices that exist at once while a result is compared: rows of both factors with their scales, of
the product, of D and of its error. (With scales of blocks, which are repeated for each element.)"""
DRAWN_COPIES: Final = 6
"""Tensors in fp32 that exist at once while a part of an input is drawn."""
RESERVED_BYTES: Final = 192 << 20
"""Bytes for compiled kernels, the workspace of cuBLAS, and memory that torch's allocator cannot hand out."""
DIVISOR: Final = 20
"""The estimate grows by one part in this number, for gaps between the blocks of torch's allocator."""


def needed_bytes(case: Case, helds: Iterable[Held]) -> int:
    """Return about how many bytes of memory the checks of a case need at most, at one time.

    Counted are inputs, outputs and workspaces of each group of checks, copies that the wrapper makes of
    misaligned tensors, and the temporaries of drawing inputs, of the reference and of comparisons. Nothing is
    allocated: the tensors are laid out on torch's device ``meta``.
    """
    inputs = drawn_inputs(case.layout(guarded=True).unfilled, case.problem, case.sides)
    of_inputs = _bytes(inputs.tensors)
    scales = _bytes(tensor for name, tensor in inputs.extras.items() if name in BLOCK_SCALES)
    of_output = output_bytes(case)
    copies = of_inputs + of_output if case.misaligned else 0
    helds = tuple(helds)
    compared = max(
        held.inputs * of_inputs
        + held.outputs * of_output
        + held.workspaces * case.workspace_bytes
        + held.other_bytes
        for held in helds
    )
    drawn = max(held.inputs for held in helds) * of_inputs + _bytes_of_drawing(inputs.tensors)
    total = max(compared + copies + 3 * scales + _bytes_of_reference(case), drawn) + RESERVED_BYTES
    return total + total // DIVISOR


def output_bytes(case: Case) -> int:
    """Return the bytes of a guarded D, as checks have it: with the elements of 8 bits that it is made of."""
    columns = case.d_shape[-1]
    made = Matrix.poisoned(case.rows, columns, case.d_name, torch.device("meta"), guarded=True)
    coded = made.storage.numel() * case.problem.d.bits // 8 if case.problem.d_scale else 0
    return made.storage.nbytes + coded


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages of tensors."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def _bytes_of_reference(case: Case) -> int:
    """Return the bytes of temporaries of a comparison: parts of bounded size, and less for small shapes."""
    m, n, k = case.shape
    columns = case.problem.columns_of_b(n)
    # A row, or the least part of K of all columns, may be longer than the bound.
    least = 8 * max(columns, k, min(k, K_MULTIPLE) * columns)
    return FLOAT64_MATRICES * max(least, min(CHUNK_BYTES, 8 * max(m * k, columns * k, m * columns)))


def _bytes_of_drawing(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of temporaries of drawing: for parts of tensors, of a row at least."""
    return (
        DRAWN_COPIES
        * 4
        * max(max(tensor.shape[-1], min(CHUNK_ELEMENTS, tensor.numel())) for tensor in tensors)
    )


@dataclass(frozen=True)
class Unfit:
    """A shape whose checks need more memory than they may have, and so are left out or have fewer groups."""

    shape: Shape
    needed_bytes: int
    most_bytes: int
    """Bytes that are free, or that an acceptance shape may have."""
    of_groups: int | None = None
    """Groups of the spec; None if there are none."""
    groups: int | None = None
    """Groups that are checked instead; None if the shape is left out."""
    by_choice: bool = False
    """True if more groups would fit, and show no more faults (`ACCEPTANCE_BYTES`)."""

    def __str__(self) -> str:
        memory = f"need {gib(self.needed_bytes)} of the GPU's memory, and have {gib(self.most_bytes)}"
        if self.groups is None:
            return f"{shape_text(self.shape)} is left out: its checks {memory}"
        fewer = f"{self.groups} of {self.of_groups} groups"
        return f"{shape_text(self.shape)} is checked with {fewer}: checks of all {memory}"

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "shape": list(self.shape),
            "needed_bytes": self.needed_bytes,
            "most_bytes": self.most_bytes,
            "groups": self.groups,
        }


@dataclass(frozen=True)
class Room:
    """The bytes that the checks of a shape may have."""

    free_bytes: int
    enough_bytes: int | None = None
    """Bytes within which a shape has fewer groups although more bytes are free; None if it has all."""


def fitted(case: Case, helds: Iterable[Held], room: Room | None) -> tuple[Case | None, Unfit | None]:
    """Return a case whose checks have room, and a note if it is not the given one.

    If the given case has no room, the returned one has fewer groups: as many as fit, but at least
    `LEAST_GROUPS`, since a kernel takes any number. There is no case if that does not fit either. Without a
    limit, each case fits.
    """
    if room is None:
        return case, None
    helds, groups = tuple(helds), case.problem.groups
    needed = needed_bytes(case, helds)
    enough = room.free_bytes if room.enough_bytes is None else room.enough_bytes
    for most_bytes in dict.fromkeys((min(room.free_bytes, enough), room.free_bytes)):
        if needed <= most_bytes:
            return case, None
        if groups is not None and (count := _most_groups(case, groups.count, helds, most_bytes)):
            by_choice = most_bytes < room.free_bytes
            unfit = Unfit(case.shape, needed, most_bytes, groups.count, count, by_choice)
            return with_groups(case, count), unfit
    return None, Unfit(case.shape, needed, room.free_bytes, groups.count if groups else None)


def _most_groups(case: Case, count: int, helds: tuple[Held, ...], most_bytes: int) -> int:
    """Return the most groups whose checks fit, of a count that does not fit; 0 if too few do."""
    least, end = LEAST_GROUPS, count
    if least >= end or needed_bytes(with_groups(case, least), helds) > most_bytes:
        return 0
    while end - least > 1:
        middle = (least + end) // 2
        if needed_bytes(with_groups(case, middle), helds) <= most_bytes:
            least = middle
        else:
            end = middle
    return least


def with_groups(case: Case, count: int) -> Case:
    """Return a case whose problem has another number of groups; it must have groups."""
    groups = case.problem.groups
    assert groups is not None
    fewer = replace(case.problem, groups=replace(groups, count=count))
    return replace(case, problem=fewer, sides=sides_of(fewer))
