"""The store of a tile: the functions that take sums apart, convert them and store them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from gemmgen.plan.kernel import Kernel
from gemmgen.render.operand_loads import OperandLoads, stores_several_tiles
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.runs import Run, Runs
from gemmgen.render.steps import Steps


@dataclass(frozen=True)
class StoredRows:
    """Which rows of a tile are stored, in the words of templates: by default all that D has."""

    end: str = "args.m"
    """The row after the last one that is stored."""
    facts: tuple[str, ...] = ()
    """The facts of a tile beside its place that a store needs."""


@dataclass(frozen=True)
class Storing:
    """How D is stored."""

    converts: str = "shared/store/convert"
    """The template of the function that converts and stores a sub-tile."""
    divides: str = "shared/store/store"
    """The template of the function that stores a tile by calls of that one."""
    by: Literal["tma", "threads", "second_kernel"] = "tma"
    """Who stores D: TMA from shared memory, threads, or the threads of a second kernel."""
    rows: StoredRows = field(default_factory=StoredRows)
    adjusts: str = ""
    """The template of the macro ``adjust``, which changes a tile between the formula and the conversion to D.

    Its parameters are the variable of the tile, and the expressions of its first row and column. Empty if no
    feature changes the tile.
    """
    has_slots: bool = False
    """True if the function that converts takes a slot, which has a buffer for each of several matrices."""
    stores: int = 1
    """The stores of TMA for a sub-tile."""
    sums: str = "accumulator"
    """The variable of the sums of a tile, or of all its parts."""
    summed: str = "an accumulator"
    """The words about these sums."""
    is_computed_whole: bool = False
    """True if a tile of D is computed from all sums before it is divided into sub-tiles."""


@dataclass(frozen=True)
class TileStore:
    """The functions that store a tile as the templates see them."""

    plan: Kernel
    storing: Storing
    loads: OperandLoads
    steps: Steps

    @property
    def rows(self) -> StoredRows:
        """The rows of a tile that are stored."""
        return self.storing.rows

    @property
    def by_tma(self) -> bool:
        """True if TMA stores D, so that a buffer must outlive the store that reads it."""
        return self.storing.by == "tma"

    @property
    def unrolled(self) -> bool:
        """True if sub-tiles are read one by one, from tensor memory."""
        return bool(self.plan.tensor_memory.buffers)

    # --- what a module has of it

    @property
    def constants(self) -> Iterator[Constant]:
        """The constants of a tile that is stored in parts."""
        if self.storing.by == "second_kernel":
            return
        subtiles, buffers = self.plan.subtiles, self.plan.epilogue_buffers
        if self.staggered:
            common = sum(self.counts_of_parts[:-1])
            meaning = "parts of the columns that both consumers have, stored one by one"
            yield Constant(Place.SUBTILES, "SUBTILES", common, meaning)
        elif subtiles > 2:
            meaning = "parts of a tile's columns, stored one after the other"
            yield Constant(Place.SUBTILES, "SUBTILES", subtiles, meaning)
        if subtiles > 2 and not self.unrolled and not self.plan.composed:
            yield Constant(Place.SUBTILES, "SUBTILE_HALVINGS", subtiles.bit_length() - 1, "log2(SUBTILES)")
        if subtiles > 1:
            meaning = "columns that are stored at a time"
            yield Constant(Place.SUBTILES, "SUBTILE_N", self.plan.subtile_n, meaning)
        if buffers > 1:
            what = "C and of D" if self.plan.problem.c else "D"
            each = " per consumer" if self.plan.partitions[0].number is not None else ""
            meaning = f"sub-tiles of {what} in flight{each}"
            yield Constant(Place.STORE, "EPILOGUE_BUFFERS", buffers, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The templates of the functions, callees first."""
        if self.storing.by == "second_kernel":
            return
        yield from self._splits
        yield Function(Section.STORE, self.storing.converts)
        if self.leaf != "store":
            yield Function(Section.STORE, self.storing.divides)

    @property
    def _splits(self) -> Iterator[Function]:
        """The templates that split an accumulator in registers into sub-tiles."""
        if self.unrolled:
            return
        splits = max(self.counts_of_parts) > 1
        if splits:
            yield Function(Section.SPLIT, "wgmma/halves")
        if self.plan.composed and splits:
            yield Function(Section.SPLIT, "wgmma/split_parts")
        elif self.plan.subtiles > 2:
            yield Function(Section.SPLIT, "wgmma/split_columns")

    # --- the parts of a tile

    @property
    def staggered(self) -> bool:
        """True if one consumer has a part more than the other."""
        return self.plan.tiles_together > 1

    @property
    def counts_of_parts(self) -> tuple[int, ...]:
        """The sub-tiles of each part of a tile."""
        if not self.plan.composed:
            return (self.plan.subtiles,)
        return tuple(columns // self.plan.subtile_n for columns in self.plan.column_parts)

    @property
    def splits_parts(self) -> bool:
        """True if a part of a tile has several sub-tiles; else the parts are the sub-tiles."""
        return not self.plan.composed or max(self.counts_of_parts) > 1

    @property
    def halvings_of_parts(self) -> tuple[int, ...]:
        """How often each part is halved, of those that all consumers have."""
        counts = self.counts_of_parts[:-1] if self.staggered else self.counts_of_parts
        return tuple(count.bit_length() - 1 for count in counts)

    @property
    def halvings_of_own_part(self) -> int:
        """How often the part is halved that one of two consumers has alone."""
        return self.counts_of_parts[-1].bit_length() - 1

    @property
    def halved(self) -> bool:
        """True if a tile is stored by halves, which have names."""
        return self.plan.subtiles == 2 and not self.plan.composed

    @property
    def runs(self) -> Iterable[Run]:
        """The sub-tiles of a tile from left to right, in runs that are stored alike."""
        whole = self.storing.is_computed_whole
        loads, sums = self.loads.exist and not whole, "tile" if whole else self.storing.sums
        return Runs(self.plan, loads, self.loads.refills, sums)

    # --- buffers

    @property
    def own(self) -> str:
        """The buffers that the store of a tile takes: of loaded operands and D, or of D alone."""
        return "buffers" if self.loads.exist else "d_smem"

    @property
    def d_smem(self) -> str:
        """The buffer, or the buffers, of D."""
        if self.loads.exist:
            return "buffers.d_smem"
        return "args.d_smem" if self.unrolled else "d_smem"

    def boxed(self, tensor: str, buffer: str) -> str:
        """Return a buffer as the box that TMA moves, whose rank is the descriptor's."""
        leading = self.plan.access.leading_axes(tensor)
        return f"{('', 'as_box', 'as_block')[leading]}(args.{tensor}_desc, {buffer})" if leading else buffer

    @property
    def reuses_buffers(self) -> bool:
        """True if a program stores several tiles, each through buffers that an earlier one has used."""
        return stores_several_tiles(self.plan)

    @property
    def rings_anew(self) -> bool:
        """True if consecutive tiles use buffers unequally often; each tile begins with the first buffer."""
        widest = self.plan.subtiles
        counts = (widest, widest - self.counts_of_parts[-1]) if self.staggered else (widest,)
        uneven = any(count % self.plan.epilogue_buffers for count in counts)
        return uneven and self.reuses_buffers

    @property
    def awaits_buffer(self) -> bool:
        """True if an earlier store, of this tile or of another one, may still read the buffer."""
        several = self.plan.subtiles > 1 or self.reuses_buffers
        return self.by_tma and not self.plan.frees_buffers_early and several

    # --- the functions

    @property
    def leaf(self) -> str:
        """The function that converts and stores, which for a plain tile is the whole of a store."""
        if self.plan.subtiles > 1:
            return "store_subtile"
        return (
            "store_tile" if self.loads.exist or self.unrolled or self.storing.is_computed_whole else "store"
        )

    @property
    def computes(self) -> bool:
        """True if that function also does the epilogue's operations, which then need nothing but the tile."""
        whole = self.storing.is_computed_whole
        return self.plan.problem.transforms and not (self.loads.exist or whole)

    @property
    def further(self) -> tuple[str, ...]:
        """The further arguments of that function: facts of the tile, and the factor in memory."""
        facts = (*self.steps.facts, *self.rows.facts) if self.computes else self.rows.facts
        return (*facts, *(self.steps.scalar if self.computes else ()))

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts of a tile beside its place that its store needs, for the formula and for itself."""
        return (*self.steps.facts, *self.rows.facts)

    @property
    def passed_on(self) -> tuple[str, ...]:
        """The arguments that a store passes on to the formula."""
        return (*self.steps.scalar, *(("phase",) if self.loads.phased else ()))
