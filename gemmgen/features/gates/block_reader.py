"""The reads of a C that has two matrices: all of them are read at once."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.problem.epilogue import Load
from gemmgen.render.operand_reads import Read, Reader, variable_of, widened


@dataclass(frozen=True)
class BlockReader(Reader):
    """The reads of several matrices in C."""

    def takes(self, load: Load) -> bool:
        """Return True for a matrix in C."""
        return bool(load.block)

    def read(self, load: Load) -> Read:
        """Return the lines that read all matrices, whose columns take turns or have buffers of their own."""
        problem = self.plan.problem
        kind = "c_in_turn" if problem.interleaved else "c_of_blocks"
        conversion = widened(self.plan, load)
        return Read(kind, load.tensor, problem.epilogue.c_blocks, conversion, is_ahead=True)

    def spelled(self, load: Load) -> str:
        """Return the variable of a matrix."""
        return variable_of(load)
