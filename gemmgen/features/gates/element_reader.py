"""The reads of a column operand that has an element for each column of a B with two accumulators."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmgen.problem.epilogue import Load
from gemmgen.render.operand_reads import ACROSS, Read, Reader, tiles_of, variable_of, widened


@dataclass(frozen=True)
class ElementReader(Reader):
    """The reads of each accumulator's elements of a column operand in a buffer."""

    def takes(self, load: Load) -> bool:
        """Return True for an accumulator's elements of an operand."""
        return bool(load.accumulator)

    def read(self, load: Load) -> Read:
        """Return the line that finds an accumulator's elements, or reads all elements if they take turns."""
        tiles = tiles_of(self.plan)
        number = tiles.index(load.accumulator)
        if self.plan.problem.interleaved:
            own_of_all = (variable_of(replace(load, accumulator=name)) for name in tiles)
            return Read("column_in_turn", load.tensor, tuple(own_of_all), number=number)
        return Read("column_of_block", load.tensor, (variable_of(load),), number=number)

    def spelled(self, load: Load) -> str:
        """Return the elements as they broadcast to a tile; a block is read where it is used."""
        own = variable_of(load)
        if not self.plan.problem.interleaved:
            own += f".load(gl.SliceLayout(0, {load.accumulator}.type.layout))"
        return own + widened(self.plan, load) + ACROSS[load.operand]
