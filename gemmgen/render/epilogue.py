"""The epilogue of a module: what TMA loads for it, the steps of its formula, and the store of D.

Each is a value of its own. A feature changes the parts in which it differs (`Rendering.changed_epilogue`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.kernel import Kernel
from gemmgen.render.operand_loads import OperandLoads
from gemmgen.render.operand_reads import BufferReader, Reader
from gemmgen.render.places import Constant, Function, Section
from gemmgen.render.steps import Steps
from gemmgen.render.tile_store import Storing, TileStore


@dataclass(frozen=True)
class EpilogueParts:
    """The parts of an epilogue that features change."""

    loads: OperandLoads
    """The operands that TMA loads."""
    readers: tuple[Reader, ...]
    """The ways in which operands are read; the first that takes an operand reads it."""
    storing: Storing
    """How D is stored."""
    d_in_turn: int = 1
    """The matrices in C and D whose columns take turns."""

    @classmethod
    def of(cls, plan: Kernel) -> EpilogueParts:
        """Return the parts of an epilogue that no feature changes."""
        loads = OperandLoads(plan, bool(plan.problem.c), plan.access.tma_vectors)
        return cls(loads, (BufferReader(plan),), Storing())


@dataclass(frozen=True)
class EpilogueView:
    """The epilogue's functions as the templates see them."""

    plan: Kernel
    parts: EpilogueParts

    @property
    def loads(self) -> OperandLoads:
        """The operands that TMA loads."""
        return self.parts.loads

    @cached_property
    def steps(self) -> Steps:
        """The steps of the formula."""
        return Steps(self.plan, self.loads, self.parts.readers, self.parts.storing.is_computed_whole)

    @cached_property
    def store(self) -> TileStore:
        """The functions that store a tile."""
        return TileStore(self.plan, self.parts.storing, self.loads, self.steps)

    @property
    def constants(self) -> Iterator[Constant]:
        """The constants of a tile that is stored in parts, and of the formula."""
        yield from self.store.constants
        yield from self.steps.numbers

    @property
    def functions(self) -> Iterator[Function]:
        """The templates that load the operands, compute and store, callees first in each section."""
        yield from self.loads.functions
        apart = self.parts.storing.by == "second_kernel"
        for name in self.steps.activations:
            yield Function(Section.AFTERWARDS if apart else Section.OPERANDS, f"shared/activation_{name}")
        if self.plan.problem.transforms:
            yield Function(Section.AFTERWARDS if apart else Section.EPILOGUE, "shared/epilogue")
        yield from self.store.functions

    @property
    def d_in_turn(self) -> int:
        """The matrices in C and D whose columns take turns."""
        return self.parts.d_in_turn

    def column_of_d(self, column: str) -> str:
        """Return the column of C and D for a column of an accumulator."""
        if self.d_in_turn == 1:
            return column
        return f"{self.d_in_turn} * {f'({column})' if ' ' in column else column}"
