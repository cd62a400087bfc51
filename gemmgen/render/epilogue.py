"""The epilogue of a module: how a tile is stored, and the templates that compute and load for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gemmgen.problem.epilogue import Load
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.operands.saved_sums import SavedSumsView
from gemmgen.render.runs import Run, Runs
from gemmgen.render.steps import Part


@dataclass(frozen=True)
class EpilogueView(SavedSumsView):
    """The epilogue's functions as the templates see them."""

    @property
    def subtile_constants(self) -> Iterator[tuple[str, int, str]]:
        """The name, value and meaning of each constant of a tile that is stored in parts."""
        subtiles, buffers = self.plan.subtiles, self.plan.epilogue_buffers
        if self.staggered:
            common = sum(self.counts_of_parts[:-1])
            yield "SUBTILES", common, "parts of the columns that both consumers have, stored one by one"
        elif subtiles > 2:
            yield "SUBTILES", subtiles, "parts of a tile's columns, stored one after the other"
        if subtiles > 2 and not self.unrolled and not self.plan.composed:
            yield "SUBTILE_HALVINGS", subtiles.bit_length() - 1, "log2(SUBTILES)"
        if subtiles > 1:
            yield "SUBTILE_N", self.plan.subtile_n, "columns that are stored at a time"
        yield from self._block_constants
        if buffers > 1:
            what = "C and of D" if self.plan.problem.c else "D"
            each = " per consumer" if self.plan.partitions[0].number is not None else ""
            yield "EPILOGUE_BUFFERS", buffers, f"sub-tiles of {what} in flight{each}"

    @property
    def _block_constants(self) -> Iterator[tuple[str, int, str]]:
        """The constants of several matrices side by side in C and D."""
        plan, problem = self.plan, self.plan.problem
        if problem.saves:
            names = " and ".join(problem.epilogue.saved)
            columns, slots = plan.saved_n * plan.cluster_n, problem.b_blocks * plan.epilogue_buffers
            if problem.interleaved:
                yield (
                    "SAVED_COLUMNS",
                    columns,
                    f"columns of sums that are saved at a time: of {names} in turn",
                )
            else:
                yield "SAVED_SLOTS", slots, f"buffers of sums that are saved: one for each of {names}"
        if problem.d_blocks == 1:
            return
        names = " and ".join(self.blocks_of_c)
        if problem.interleaved:
            columns = plan.moved_n * plan.cluster_n
            yield "D_COLUMNS", columns, f"columns of C and D that are stored at a time: of {names} in turn"
        else:
            slots = problem.d_blocks * plan.epilogue_buffers
            yield "BLOCK_SLOTS", slots, f"buffers of C, and of D: one for each of {names}"

    @property
    def unrolled(self) -> bool:
        """True if sub-tiles are read one by one, from tensor memory."""
        return bool(self.plan.tensor_memory.buffers)

    @property
    def functions(self) -> Iterator[str]:
        """The templates that load the operands and compute, callees first."""
        problem = self.plan.problem
        if problem.c:
            yield "shared/load_c"
        if self.plan.access.tma_vectors:
            yield "shared/load_vectors"
        yield from (f"shared/activation_{name}" for name in self.activations)
        if problem.parted_vectors and problem.interleaved:
            yield "wgmma/elements_in_turn"
        if problem.d_blocks > 1 and problem.interleaved:
            yield from ("wgmma/even_and_odd", "wgmma/in_turn")
        if problem.saves and problem.interleaved:
            yield "wgmma/in_turn"
        if problem.transforms:
            yield "shared/epilogue"

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
        """The row after the last one of D, or of a tile's group."""
        return "end" if self.plan.problem.groups else "args.m"

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
    def store_parts(self) -> Iterator[str]:
        """The templates that store a tile, callees first."""
        kind = "_saved" if self.plan.problem.saves else "_blocks" * self.plan.problem.d_in_blocks
        yield f"shared/store/convert{kind}"
        if self.leaf != "store":
            yield "shared/store/store"

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
    def functions(self) -> Iterator[str]:
        """The templates that compute, callees first."""
        yield from (f"shared/activation_{name}" for name in self.activations)
        if self.plan.problem.transforms:
            yield "shared/epilogue"

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
