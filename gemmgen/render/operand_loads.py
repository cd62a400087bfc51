"""The operands of an epilogue that TMA loads: C, and row and column operands, with their phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gemmgen.plan.kernel import Kernel
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.places import Function, Section


def stores_several_tiles(plan: Kernel) -> bool:
    """Return True if a program stores several tiles, each through buffers that an earlier one has used."""
    return plan.schedule_kind in ("persistent", "launch_control")


@dataclass(frozen=True)
class OperandLoads:
    """The operands that TMA loads for the epilogue of a tile, beside A and B."""

    plan: Kernel
    has_c: bool
    """True if TMA loads C."""
    vectors: tuple[str, ...]
    """The row and column operands that TMA loads."""
    accumulators: int = 1
    """The number of accumulators: a column operand has elements for each of them."""
    in_turn: bool = False
    """True if the elements of several accumulators take turns; else they are blocks."""
    c_ends_with_group: bool = False
    """True if a load of C ends with the rows of a tile's group, so that it takes the group's end."""

    @property
    def exist(self) -> bool:
        """True if TMA loads anything."""
        return self.has_c or bool(self.vectors)

    @property
    def functions(self) -> Iterator[Function]:
        """The templates that load."""
        if self.has_c:
            yield Function(Section.OPERANDS, "shared/load_c")
        if self.vectors:
            yield Function(Section.OPERANDS, "shared/load_vectors")

    # --- C

    @property
    def starts_c(self) -> Literal["", "one", "ring"]:
        """How many parts of C start loading before the K loop: none, one, or a ring of them."""
        if not self.has_c:
            return ""
        return "ring" if self.plan.subtiles > 1 and self.plan.epilogue_buffers > 1 else "one"

    @property
    def refills(self) -> bool:
        """True if a buffer of C holds several parts of one tile, one after the other."""
        return self.has_c and self.plan.epilogue_buffers < self.plan.subtiles

    @property
    def reuses_buffers(self) -> bool:
        """True if a load writes to a buffer that an earlier load has filled."""
        return stores_several_tiles(self.plan) or self.refills

    @property
    def slot_of_c(self) -> str:
        """The index of the buffer of C that takes a sub-tile, and of its barrier; empty if there is one."""
        return ".index(subtile % EPILOGUE_BUFFERS)" if self.plan.epilogue_buffers > 1 else ""

    @property
    def c_column(self) -> str:
        """The first column of a sub-tile of C, of one accumulator's columns."""
        return "column + subtile * SUBTILE_N" if self.plan.subtiles > 1 else "column"

    def place_of_c(self, row: str, column: str, tile: str = "") -> tuple[str, ...]:
        """Return the arguments that place a tile of C, whose group's end is a member of ``tile``."""
        return (row, column, f"{tile}end") if self.c_ends_with_group else (row, column)

    # --- row and column operands

    def _has_blocks(self, vector: str) -> bool:
        """Return True if a vector has a block of elements for each of several accumulators."""
        return OPERATIONS[vector].along == "n" and self.accumulators > 1 and not self.in_turn

    @property
    def vector_bytes(self) -> tuple[str, ...]:
        """The terms of the bytes of all rows and columns."""
        sizes = ((name, f"args.{name}_desc.nbytes_per_cta") for name in self.vectors)
        return tuple(
            f"{self.accumulators} * {size}" if self._has_blocks(name) else size for name, size in sizes
        )

    @property
    def vector_loads(self) -> Iterator[tuple[str, ...]]:
        """The arguments of each load of a row or column operand: its descriptor, place, barrier, buffer."""
        for vector in self.vectors:
            place, buffer = vector.partition("_")[0], f"buffers.{vector}_smem"
            loads = [(place, buffer)]
            if self._has_blocks(vector):
                loads = [
                    (place, f"{buffer}.slice(0, PROGRAM_TILE_N)"),
                    (f"args.n + {place}", f"{buffer}.slice(PROGRAM_TILE_N, PROGRAM_TILE_N)"),
                ]
            elif OPERATIONS[vector].along == "n" and self.accumulators > 1:
                loads = [(f"{self.accumulators} * {place}", buffer)]
            for first, memory in loads:
                yield f"args.{vector}_desc", f"[{first}]", "buffers.vectors_ready", memory

    @property
    def vector_axes(self) -> tuple[str, ...]:
        """The dimensions along which the vectors lie."""
        return axes_of_vectors(self.vectors)

    def vector_origin(self, row: str, column: str) -> str:
        """Return where the vectors begin of a tile that has this first row and column."""
        return ", ".join(row if axis == "m" else column for axis in self.vector_axes)

    # --- phases

    @property
    def c_alternates(self) -> bool:
        """True if C's barriers complete an odd number of phases for each tile."""
        rounds = self.plan.subtiles // self.plan.epilogue_buffers
        return self.has_c and rounds % 2 == 1 and stores_several_tiles(self.plan)

    @property
    def phased(self) -> bool:
        """True if the phases of the epilogue's barriers differ from tile to tile."""
        return self.c_alternates or (bool(self.vectors) and stores_several_tiles(self.plan))

    @property
    def vectors_phase(self) -> str:
        """The phase in which a tile's row and column operands arrive."""
        return "phase" if stores_several_tiles(self.plan) else "0"

    @property
    def c_phase(self) -> str:
        """The phase in which a part of C arrives."""
        if self.refills:
            lap = "subtile // EPILOGUE_BUFFERS" if self.plan.epilogue_buffers > 1 else "subtile"
            return f"(phase + {lap}) & 1" if self.c_alternates else f"{lap} & 1"
        return "phase" if stores_several_tiles(self.plan) else "0"


def axes_of_vectors(vectors: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dimensions along which some row and column operands lie."""
    along = {OPERATIONS[vector].along for vector in vectors}
    return tuple(axis for axis in ("m", "n") if axis in along)
