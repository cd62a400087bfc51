"""The epilogue of a kernel that adds up the sums of parts of K: it reads its operands by address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.problem.epilogue import Load
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.epilogue import EpilogueView
from gemmgen.render.places import Constant, Function, Section
from gemmgen.render.steps import Part


@dataclass(frozen=True)
class ReadingEpilogueView(EpilogueView):
    """The epilogue of the kernel that adds up the sums of parts of K: it reads its operands by address."""

    @property
    def loads(self) -> bool:
        """True if the epilogue needs buffers in shared memory."""
        return False

    @property
    def stores_by_tma(self) -> bool:
        """False: the threads that read the sums store D."""
        return False

    @property
    def functions(self) -> Iterator[Function]:
        """The templates of the second kernel, which computes the epilogue, callees first."""
        names = ["wgmma/reduction_args", *(f"shared/activation_{name}" for name in self.activations)]
        names += ["shared/epilogue"] if self.plan.problem.transforms else []
        for name in (*names, "wgmma/piece_origin", "wgmma/reduction_kernel"):
            yield Function(Section.AFTERWARDS, name)

    @property
    def constants(self) -> Iterator[Constant]:
        """The constants of the formula: no tile is stored in parts."""
        return self.numbers

    @property
    def phased(self) -> bool:
        """True if the epilogue awaits barriers."""
        return False

    def _load(self, load: Load) -> Part:
        """Return the lines that read an operand by address."""
        return replace(super()._load(load), kind="c_read" if load.operand == "matrix" else "vector_read")

    def _loaded(self, load: Load) -> str:
        """Return a loaded operand as it broadcasts to a tile."""
        across = {"row": "[:, None]", "column": "[None, :]"}
        return load.tensor + across.get(load.operand, "")

    @property
    def _places(self) -> tuple[str, ...]:
        """The arguments that place the elements of its operands."""
        problem = self.plan.problem
        along = {OPERATIONS[vector].along for vector in problem.vectors}
        names = {"m": "rows", "n": "columns"}
        read = [name for axis, name in names.items() if problem.c or axis in along]
        return ("args", *read) if read else ()

    @property
    def parameters(self) -> str:
        """The parameters of the function that does its steps."""
        return ", ".join(("tile", *self._places, *self._scalar))

    def call(self, tile: str) -> str:
        """Return the call on a piece of a tile."""
        return f"epilogue({', '.join((tile, *self._places, *self._scalar))})"
