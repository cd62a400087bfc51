"""The loads of an epilogue's operands: C, and row and column operands, with their buffers and phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gemmgen.plan.kernel import Kernel
from gemmgen.problem.operations import OPERATIONS


@dataclass(frozen=True)
class OperandLoads:
    """The loads of the operands of an epilogue beside the sums."""

    plan: Kernel

    @property
    def reuses_buffers(self) -> bool:
        """True if a program stores several tiles, each through buffers that an earlier one has used."""
        return self.plan.schedule_kind in ("persistent", "launch_control")

    @property
    def refills(self) -> bool:
        """True if a buffer of C holds several parts of one tile, one after the other."""
        return self.plan.problem.c is not None and self.plan.epilogue_buffers < self.plan.subtiles

    @property
    def buffers(self) -> str:
        """The number of buffers of C as the module writes it."""
        return "EPILOGUE_BUFFERS" if self.plan.epilogue_buffers > 1 else "1"

    @property
    def buffer(self) -> str:
        """The index of a sub-tile's buffer of C."""
        return ".index(subtile % EPILOGUE_BUFFERS)" if self.plan.epilogue_buffers > 1 else ""

    @property
    def c_buffer(self) -> str:
        """The index of the buffer of C that takes a sub-tile; empty if its matrices have one each."""
        return "" if self.plan.problem.d_in_blocks else self.buffer

    @property
    def c_bytes(self) -> str:
        """The bytes of a sub-tile of C, of all its matrices."""
        blocks = f"{self.plan.problem.d_blocks} * " * self.plan.problem.d_in_blocks
        return f"{blocks}args.c_desc.nbytes_per_cta"

    @property
    def _c_phased(self) -> bool:
        """True if C's barriers complete an odd number of phases for each tile."""
        rounds = self.plan.subtiles // self.plan.epilogue_buffers
        return self.plan.problem.c is not None and rounds % 2 == 1 and self.reuses_buffers

    @property
    def phased(self) -> bool:
        """True if the phases of the epilogue's barriers differ from tile to tile."""
        return self._c_phased or (bool(self.plan.access.tma_vectors) and self.reuses_buffers)

    @property
    def vectors_phase(self) -> str:
        """The phase in which a tile's row and column operands arrive."""
        return "phase" if self.reuses_buffers else "0"

    @property
    def c_phase(self) -> str:
        """The phase in which a part of C arrives."""
        if self.refills:
            lap = f"subtile // {self.buffers}" if self.plan.epilogue_buffers > 1 else "subtile"
            return f"(phase + {lap}) & 1" if self._c_phased else f"{lap} & 1"
        return "phase" if self.reuses_buffers else "0"

    @property
    def load_c_summary(self) -> str:
        """The docstring of the function that loads C."""
        if self.plan.subtiles == 1:
            return "Start loading the tile of C: it arrives while A and B are multiplied."
        return "Start loading a sub-tile of C; a tile's first ones arrive while A and B are multiplied."

    @property
    def c_phases(self) -> str:
        """The phases of C's barriers, in words."""
        if self.refills:
            number = "an odd" if self._c_phased else "an even"
            again = f", {number} number of them in a tile" if self.reuses_buffers else ""
            return f"Each sub-tile that a buffer receives is a phase of its barrier{again}."
        if self.reuses_buffers:
            return "Each tile is a phase of the barrier."
        return "The barrier's first phase, of the only load into this buffer."

    @property
    def earlier_reads(self) -> str:
        """The event that a load of the epilogue's operands must follow."""
        if self.reuses_buffers or self.refills:
            return (
                "The threads have read what the buffer held: order their reads before TMA's write, which goes"
            )
        return "Order whatever the threads did in this shared memory before TMA's write into it, which goes"

    @property
    def vector_bytes(self) -> tuple[str, ...]:
        """The terms of the bytes of all rows and columns."""
        problem = self.plan.problem
        blocks = dict.fromkeys(problem.parted_vectors, f"{problem.b_blocks} * " * problem.in_blocks)
        return tuple(f"{blocks.get(name, '')}args.{name}_desc.nbytes_per_cta" for name in problem.vectors)

    @property
    def vector_loads(self) -> Iterator[tuple[str, ...]]:
        """The arguments of each load of a row or column operand: its descriptor, place, barrier, buffer."""
        problem = self.plan.problem
        for vector in problem.vectors:
            place, buffer = vector.partition("_")[0], f"buffers.{vector}_smem"
            loads = [(place, buffer)]
            if vector in problem.parted_vectors and problem.interleaved:
                loads = [(f"{problem.b_blocks} * {place}", buffer)]
            elif vector in problem.parted_vectors:
                loads = [
                    (place, f"{buffer}{self._block(0)}"),
                    (f"args.n + {place}", f"{buffer}{self._block(1)}"),
                ]
            for first, memory in loads:
                yield f"args.{vector}_desc", f"[{first}]", "buffers.vectors_ready", memory

    @staticmethod
    def _block(number: int) -> str:
        """Return the index of the elements of one accumulator in a column operand of blocks."""
        return f".slice({'PROGRAM_TILE_N' if number else '0'}, PROGRAM_TILE_N)"

    @property
    def _vector_axes(self) -> tuple[str, ...]:
        """The dimensions along which the vectors lie."""
        axes = {OPERATIONS[vector].along for vector in self.plan.problem.vectors}
        return tuple(axis for axis in ("m", "n") if axis in axes)

    @property
    def vector_place(self) -> str:
        """The parameters of the function that loads the vectors."""
        names = ("row" if axis == "m" else "column" for axis in self._vector_axes)
        return ", ".join(("args", "buffers", *names))

    def vector_origin(self, row: str, column: str) -> str:
        """Return where the vectors begin of a tile that has this first row and column."""
        return ", ".join(row if axis == "m" else column for axis in self._vector_axes)

    @property
    def c_ends_with_group(self) -> bool:
        """True if a load of C ends with the rows of a tile's group; False without groups."""
        return False

    def place_of_block(self, block: int, row: str, column: str) -> tuple[str, ...]:
        """Return the coordinates of a tile of C or D that has this first row and column of an accumulator."""
        if self.plan.problem.d_in_blocks:
            return str(block), row, column
        return row, self.column_of_d(column)

    def column_of_d(self, column: str) -> str:
        """Return the column of C and D for a column of an accumulator, which has two in turn in some."""
        problem = self.plan.problem
        if problem.d_blocks == 1 or problem.d_in_blocks:
            return column
        return f"{problem.d_blocks} * {f'({column})' if ' ' in column else column}"

    @property
    def c_column(self) -> str:
        """The first column of a sub-tile of C, of one accumulator's columns."""
        return f"column{' + subtile * SUBTILE_N' * (self.plan.subtiles > 1)}"

    @property
    def first_slot(self) -> str:
        """The index of a sub-tile's first buffer as the first term of a sum; empty if it is 0."""
        return "" if self.plan.epilogue_buffers == 1 else f"{self.slot_of_block(0, 'subtile')} + "

    def slot_of_block(self, block: int, subtile: str) -> str:
        """Return the index of a block's buffer for a sub-tile, whose number is an expression."""
        blocks = self.plan.problem.d_blocks
        if self.plan.epilogue_buffers == 1:
            return str(block)
        return f"{blocks} * ({subtile} % EPILOGUE_BUFFERS){f' + {block}' * bool(block)}"

    def place_of_c(self, row: str, column: str, tile: str = "") -> tuple[str, ...]:  # noqa: ARG002  of groups
        """Return the arguments that place a tile of C, whose group's end is a member of ``tile``."""
        return row, column

    @property
    def loads_c(self) -> Literal["", "one", "ring"]:
        """How many parts of C start loading before the K loop: none, one, or a ring of them."""
        if not self.plan.problem.c:
            return ""
        return "ring" if self.plan.subtiles > 1 and self.plan.epilogue_buffers > 1 else "one"
