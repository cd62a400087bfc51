"""The epilogue of a module: how a tile is stored, and the templates that compute and load for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.runs import Run, Runs
from gemmgen.render.steps import StepsView


@dataclass(frozen=True)
class EpilogueView(StepsView):
    """The epilogue's functions as the templates see them."""

    @property
    def constants(self) -> Iterator[Constant]:
        """The constants of a tile that is stored in parts, and of the formula."""
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
        yield from self.numbers

    @property
    def unrolled(self) -> bool:
        """True if sub-tiles are read one by one, from tensor memory."""
        return bool(self.plan.tensor_memory.buffers)

    @property
    def functions(self) -> Iterator[Function]:
        """The templates that load the operands and compute, callees first."""
        problem = self.plan.problem
        if problem.c:
            yield Function(Section.OPERANDS, "shared/load_c")
        if self.plan.access.tma_vectors:
            yield Function(Section.OPERANDS, "shared/load_vectors")
        for name in self.activations:
            yield Function(Section.OPERANDS, f"shared/activation_{name}")
        if problem.transforms:
            yield Function(Section.EPILOGUE, "shared/epilogue")
        yield from self._splits
        yield Function(Section.STORE, f"shared/store/{self.converts}")
        if self.leaf != "store":
            yield Function(Section.STORE, "shared/store/store")

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

    @property
    def converts(self) -> str:
        """The template that converts and stores a sub-tile."""
        if self.plan.problem.saves:
            return "convert_saved"
        return "convert_blocks" if self.plan.problem.d_in_blocks else "convert"

    @property
    def sums(self) -> str:
        """The sums of a tile, or of all its parts."""
        return "accumulators" if self.plan.composed else "accumulator"

    @property
    def staggered(self) -> bool:
        """True if one consumer has a part more than the other."""
        return self.plan.tiles_together > 1

    @property
    def counts_of_parts(self) -> tuple[int, ...]:
        """The sub-tiles of each part of a tile."""
        blocks = self.plan.problem.b_blocks
        return tuple(columns // blocks // self.plan.subtile_n for columns in self.plan.column_parts)

    @property
    def split_summary(self) -> str:
        """The return value of the function that splits the parts."""
        if self.staggered:
            return "The columns of a consumer's parts as tiles of SUBTILE_N, those that both have first."
        return "The columns of all parts as SUBTILES tiles, from left to right."

    @property
    def halvings_of_parts(self) -> tuple[int, ...]:
        """How often each part is halved, of those that all consumers have."""
        counts = self.counts_of_parts[:-1] if self.staggered else self.counts_of_parts
        return tuple(count.bit_length() - 1 for count in counts)

    @property
    def halvings_of_own_part(self) -> int:
        """How often the part is halved that one of two consumers has alone."""
        return self.counts_of_parts[-1].bit_length() - 1

    # --- stores

    @property
    def of_group(self) -> tuple[str, ...]:
        """The facts of a tile's group that the store of a tile takes; empty without groups."""
        return ()

    @property
    def of_leaf(self) -> tuple[str, ...]:
        """The facts of a tile's group that the function takes which converts and stores."""
        return ()

    @property
    def stored_rows(self) -> str:
        """The coordinates of the rows of a tile of D or of saved sums: of boxes of rows, they are two."""
        return "row"

    def boxed(self, tensor: str, buffer: str) -> str:
        """Return a buffer as the box that TMA moves, whose rank is the descriptor's."""
        leading = self.plan.access.leading_axes(tensor)
        return f"{('', 'as_box', 'as_block')[leading]}(args.{tensor}_desc, {buffer})" if leading else buffer

    def saved_with(self, slot: str, column: str, sums: tuple[str, ...]) -> tuple[str, ...]:
        """Return the arguments of the call that stores sums and the D that is computed from them."""
        return ("args", "d_smem", "saved_smem", slot, "row", column, *sums, *self.of_leaf)

    @property
    def d_smem(self) -> str:
        """The buffer, or the buffers, of D."""
        if self.loads:
            return "buffers.d_smem"
        return "args.d_smem" if self.unrolled else "d_smem"

    @property
    def d_subtile(self) -> str:
        """The buffer of D that takes a sub-tile."""
        if self.plan.problem.d_in_blocks:
            return self.d_smem
        return "d_subtile" if self.plan.epilogue_buffers > 1 else self.d_smem

    def slot_of(self, run: Run) -> str:
        """Return the index of a sub-tile's buffers as a further argument; empty unless D has blocks."""
        slot = run.slot if self.plan.epilogue_buffers > 1 else "0"
        return f", {slot}" * self.plan.problem.d_in_blocks

    @property
    def stores_by_tma(self) -> bool:
        """True if TMA stores D, so that a buffer must outlive the store that reads it."""
        return True

    @property
    def leaf(self) -> str:
        """The function that converts and stores, which for a plain tile is the whole of a store."""
        if self.plan.subtiles > 1:
            return "store_subtile"
        return "store_tile" if self.loads or self.unrolled or self.plan.problem.gated else "store"

    @property
    def computes(self) -> bool:
        """True if that function also does the epilogue's operations, which then need nothing but the tile."""
        return self.plan.problem.transforms and not (self.loads or self.plan.problem.gated)

    @property
    def boxed_d(self) -> str:
        """The buffer of a block of D as the box that TMA moves."""
        return self.boxed("d", "d_smem.index(len(tiles) * slot + block)")

    @property
    def place_of_d(self) -> str:
        """The coordinates of a tile of a block of D."""
        return f"[block, {self.stored_rows}, column]"

    @property
    def end_of_rows(self) -> str:
        """The row after the last one of D."""
        return "args.m"

    @property
    def further(self) -> str:
        """The further arguments of that function: facts of the group, and the factor in memory."""
        scalar = self._scalar if self.computes else ()
        return "".join(f", {name}" for name in (*self.of_leaf, *scalar))

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
        return not self.plan.frees_buffers_early and (self.plan.subtiles > 1 or self.reuses_buffers)

    @property
    def stores_in_flight(self) -> str:
        """The later stores that need not be complete when a buffer is used again."""
        if self.plan.epilogue_buffers == 1:
            return "0"
        problem, stores = self.plan.problem, 1
        if problem.d_in_blocks:
            stores = problem.d_blocks
        if problem.saves:
            stores = 1 + (1 if problem.interleaved else problem.b_blocks)
        return f"{stores} * (EPILOGUE_BUFFERS - 1)" if stores > 1 else "EPILOGUE_BUFFERS - 1"

    @property
    def store_parameters(self) -> str:
        """The parameters of the function that stores a tile."""
        if self.unrolled:
            own = ("buffers",) if self.loads else ()
            return ", ".join(
                ("args", *own, "row", "column", "accumulator", "accumulator_empty", *self.passed_on)
            )
        own = (self.own, *(("saved_smem",) * self.plan.problem.saves))
        return ", ".join(("args", *own, "row", "column", self.sums, *self.of_group, *self.passed_on))

    @property
    def store_summary(self) -> str:
        """The docstring of that function."""
        sums = "an accumulator"
        if self.plan.composed:
            sums = "the sums of a consumer's parts" if self.staggered else "the sums of all parts"
        by = " by sub-tiles" if self.plan.subtiles > 1 else ""
        by = " by halves of its columns" if self.halved else by
        run = "last stores still run" if self.plan.epilogue_buffers > 1 else "last store still runs"
        run = run if by else "store still runs"
        stored = "Compute and store a tile of D" if self.plan.problem.gated else f"Store {sums}"
        return f"{stored}{by}; the {run} on return."

    @property
    def parting(self) -> str:
        """The function that parts an accumulator into the sums of each element of D."""
        return "even_and_odd" if self.plan.problem.interleaved else "halves"

    @property
    def converted(self) -> str:
        """The variable of the tile that is stored: the sums, or a tile that is computed from all of them."""
        return "tile" if self.plan.problem.gated else self.sums

    @property
    def halved(self) -> bool:
        """True if a tile is stored by halves, which have names."""
        return self.plan.subtiles == 2 and not self.plan.composed

    @property
    def subtiles_of_sums(self) -> str:
        """The sub-tiles of a consumer's sums; parts that are one sub-tile each are not split."""
        return (
            "accumulators"
            if self.plan.composed and max(self.counts_of_parts) == 1
            else f"split_columns({self.converted})"
        )

    @property
    def runs(self) -> Iterable[Run]:
        """The sub-tiles of a tile from left to right, in runs that are stored alike."""
        if self.plan.problem.saves:
            return ()
        return Runs(self.plan, self.loads and not self.plan.problem.gated, self.refills, self.converted)
