"""The side of gates in rendering: of two accumulators for one D, and of two matrices in C and D."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.features.gates.block_reader import BlockReader
from gemmgen.features.gates.element_reader import ElementReader
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Matmul
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.side import Rendering, SidesByMma


def _shares(problem: Matmul, names: tuple[str, ...], lines: str) -> str:
    """Return the words about which rows or columns of a tensor belong to each of two matrices."""
    first, last = ("even", "odd") if problem.interleaved else ("first N", "last N")
    return f", whose {first} {lines} are of {names[0]} and whose {last} {lines} are of {names[1]}"


@dataclass(frozen=True)
class Gates(Rendering):
    """The gate of a Hopper plan: D from two accumulators."""

    plan: WgmmaKernel
    name = "gates"

    @property
    def applies(self) -> bool:
        """True if an element of D is of two sums."""
        return self.plan.problem.gated

    @property
    def constants(self) -> Iterator[Constant]:
        """The columns of B that a tile of D is of."""
        first, second = self.plan.problem.epilogue.accumulators
        meaning = f"columns of B and of sums: PROGRAM_TILE_N of {first}, then as many of {second}"
        if self.plan.problem.columns_in_turn > 1:
            meaning = f"columns of B and of sums, eight of {first} before eight of {second}"
        elif self.plan.problem.interleaved:
            meaning = f"columns of B and of sums: of {first} and {second} in turn, PROGRAM_TILE_N of each"
        yield Constant(Place.TILE, "PRODUCT_TILE_N", self.plan.loaded_n, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The functions that part what two accumulators have in one tensor."""
        problem = self.plan.problem
        if not problem.interleaved:
            yield Function(Section.EPILOGUE, "wgmma/halves")
            return
        if problem.parted_vectors:
            yield Function(Section.OPERANDS, "wgmma/elements_in_turn")
        yield Function(Section.EPILOGUE, f"wgmma/{self.parting}")

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return an epilogue that computes a tile of D from both sums before it is divided."""
        problem = self.plan.problem
        loads = replace(parts.loads, accumulators=problem.b_blocks, in_turn=problem.interleaved)
        readers = (ElementReader(self.plan), *parts.readers)
        storing = replace(parts.storing, is_computed_whole=True)
        return replace(parts, loads=loads, readers=readers, storing=storing)

    @property
    def parting(self) -> str:
        """The function that parts an accumulator into the sums of each element of D."""
        if self.plan.problem.columns_in_turn > 1:
            return "eights_in_turn"
        return "even_and_odd" if self.plan.problem.interleaved else "halves"

    @property
    def sentences(self) -> Iterator[str]:
        """A sentence about the columns of B that a tile of D takes."""
        first, second = self.plan.problem.epilogue.accumulators
        if self.plan.problem.columns_in_turn > 1:
            yield (
                f"`pack_weight` puts eight columns of {first} before the eight of {second} beside them. A "
                "thread has columns of B that are eight apart: so it has both sums of an element."
            )
        elif self.plan.problem.interleaved:
            yield (
                f"Columns of {first} and {second} alternate in B, in its tiles and in an accumulator, so "
                "that a thread has both sums of an element side by side."
            )
        else:
            yield (
                f"A tile of B has the columns of {first} and then those of {second} that a tile of D comes "
                "from, so that a thread has both sums of an element in one accumulator."
            )

    @property
    def docs(self) -> dict[str, str]:
        """The columns of B of each accumulator, and the multiple that N is of."""
        problem, n_multiple = self.plan.problem, self.plan.access.n_multiple
        if problem.b.permuted_block > 1:  # `pack_weight` says which rows belong to each
            return dict.fromkeys(
                problem.parted_vectors, f", of {' and '.join(problem.epilogue.accumulators)} in turn"
            )
        lines = "rows" if problem.b.major == "k" else "columns"
        words = _shares(problem, problem.epilogue.accumulators, lines)
        if n_multiple == 1:
            return {"b": words}
        multiple = f"; N is a multiple of {n_multiple}"
        docs = dict.fromkeys(problem.parted_vectors, multiple)
        return docs | {"b": words + multiple if problem.b.major == "mn" else words}


@dataclass(frozen=True)
class GradientsOfGate(Rendering):
    """The gradients of a gate of a Hopper plan: two matrices in D, from two matrices in C."""

    plan: WgmmaKernel
    name = "gradients_of_gate"

    @property
    def applies(self) -> bool:
        """True if C and D have two matrices."""
        return self.plan.problem.d_blocks > 1

    @property
    def constants(self) -> Iterator[Constant]:
        """The columns, or the buffers, of both matrices."""
        plan, problem = self.plan, self.plan.problem
        names = " and ".join(problem.epilogue.c_blocks)
        if problem.interleaved:
            meaning = f"columns of C and D that are stored at a time: of {names} in turn"
            yield Constant(Place.SUBTILES, "D_COLUMNS", plan.moved_n * plan.cluster_n, meaning)
        else:
            meaning = f"buffers of C, and of D: one for each of {names}"
            slots = problem.d_blocks * plan.epilogue_buffers
            yield Constant(Place.SUBTILES, "BLOCK_SLOTS", slots, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The functions that part columns of C, and join columns of D."""
        if self.plan.problem.interleaved:
            yield Function(Section.OPERANDS, "wgmma/even_and_odd")
            yield Function(Section.OPERANDS, "wgmma/in_turn")

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return an epilogue that reads both matrices in C, and stores both in D."""
        parts = replace(parts, readers=(BlockReader(self.plan), *parts.readers))
        matrices = self.plan.problem.d_blocks
        if self.plan.problem.interleaved:
            return replace(parts, d_in_turn=matrices)
        storing = replace(
            parts.storing, converts="shared/store/convert_blocks", has_slots=True, stores=matrices
        )
        return replace(parts, storing=storing)

    @property
    def sentences(self) -> Iterator[str]:
        """A sentence about the matrices in C and D."""
        first, second = self.plan.problem.epilogue.c_blocks
        if self.plan.problem.interleaved:
            yield (
                f"Columns of {first} and {second} alternate in C, so that a thread reads both values beside "
                "its sum, and its two results are neighbours in D."
            )
        else:
            boxes = f"a box of {first} and one of {second}"
            yield f"A tile of C has {boxes}, and a tile of D a box for each result."

    @property
    def docs(self) -> dict[str, str]:
        """The columns of C of each matrix, and the multiple that N is of."""
        problem, n_multiple = self.plan.problem, self.plan.access.n_multiple
        words = _shares(problem, problem.epilogue.c_blocks, "columns")
        return {"c": f"{words}; N is a multiple of {n_multiple}" if n_multiple > 1 else words}


SIDES: SidesByMma = {"wgmma": (Gates, GradientsOfGate)}
