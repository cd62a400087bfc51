"""The side of a feature in planning: hooks by which the feature adds to a kernel.

A feature implements the hooks in its folder of ``gemmgen/features/``. Kernels have the sides of all features
for their family, loop over them, and name no feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from gemmgen.plan.entry import Entry
from gemmgen.plan.roles import Argument, Count
from gemmgen.plan.stage import Payload
from gemmgen.plan.sum_order import SumOrder
from gemmgen.plan.timing import Stream, Tiles

Planned = TypeVar("Planned", contravariant=True)
Row = TypeVar("Row", Tiles, Stream)


class ArgumentPlace(Enum):
    """Where a feature's argument stands among the tensors that a kernel is launched with."""

    LOADED = auto()
    """Behind the tensors of a stage."""
    READ = auto()
    """Behind the tensors that the epilogue reads."""
    STORED = auto()
    """Behind D."""
    WORKSPACE = auto()
    """Behind all that a caller passes: memory for sums."""


class EntrySection(Enum):
    """The section of a ledger in which a line of a feature stands."""

    DECISIONS = auto()
    REGISTERS = auto()


class RegisterUse(Enum):
    """The use of the registers that a feature takes: the role of the threads, and the time."""

    SUMS = auto()
    """Sums of a consumer besides the sums of its tile, in its main loop."""
    STEP = auto()
    """Other values of a K step, in a consumer's main loop."""
    KEPT = auto()
    """Values that a consumer is expected to keep in its main loop and in its epilogue."""
    EPILOGUE = auto()
    """Values that a consumer's epilogue is expected to hold: the largest number of all features counts."""
    FREED = auto()
    """Values of a K step among those that the main loop holds, which kept values and the epilogue replace."""
    PRODUCER = auto()
    """Values that a producer is expected to hold."""


class Planning(Generic[Planned]):
    """The additions of one feature to the kernels of one family.

    A hook adds nothing to a kernel without the feature; by default, it adds nothing at all. A side has no
    state: a search makes kernels by the hundred thousand, and all have the same sides. It does not say by
    itself if a kernel has the feature, so that each hook reads only the decisions that it depends on: a
    search learns from a kernel for all kernels in which these decisions are the same.
    """

    def payloads(self, plan: Planned) -> Iterable[Payload]:  # noqa: ARG002
        """Return the tiles that a stage holds besides tiles of A and B."""
        return ()

    def arguments(self, plan: Planned) -> Iterable[tuple[ArgumentPlace, Argument]]:  # noqa: ARG002
        """Return the tensors that the feature needs besides the tensors of a stage, in order."""
        return ()

    def counts(self, plan: Planned) -> Iterable[Count]:  # noqa: ARG002
        """Return the extents that a consumer needs besides the numbers of tiles and of K steps."""
        return ()

    def registers(self, plan: Planned, use: RegisterUse) -> int:  # noqa: ARG002
        """Return the registers of a thread that the feature takes for one use."""
        return 0

    def operand_k(self, plan: Planned, k: int) -> int:  # noqa: ARG002
        """Return the K of an operand in registers that a consumer holds at once, of a step of `k`."""
        return k

    def sum_order(self, plan: Planned, order: SumOrder) -> SumOrder:  # noqa: ARG002
        """Return the order of sums of floats as the feature changes it."""
        return order

    def timed(self, plan: Planned, row: Row) -> Row:  # noqa: ARG002
        """Return the numbers of a kernel's time with the time that the feature takes or saves."""
        return row

    def entries(self, plan: Planned) -> Iterable[tuple[EntrySection, Entry]]:  # noqa: ARG002
        """Return lines of a ledger about the feature's decisions, and about registers of its values."""
        return ()


Sides = tuple[Planning[Any], ...]
"""Sides of features, in the order of their additions; a kernel is only given the sides of its family."""
PlanningByMma = Mapping[str, Sides]
"""The sides of features by the instruction of the family."""
