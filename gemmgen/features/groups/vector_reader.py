"""The reads of row and column operands of groups: by address, as TMA cannot load them."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.problem.epilogue import Load
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.operand_loads import axes_of_vectors
from gemmgen.render.operand_reads import ACROSS, Read, Reader, tiles_of, variable_of, widened


@dataclass(frozen=True)
class VectorReader(Reader):
    """The reads of row and column operands of groups by address, at the place of a sub-tile.

    A vector of rows has an element for each row of A, and a vector of columns is [G, N]. Rows from the
    group's end on, and columns from N on, are not read.
    """

    def takes(self, load: Load) -> bool:
        """Return True for a row or column operand."""
        return load.operand in ("row", "column")

    def read(self, load: Load) -> Read:
        """Return the lines that read an operand by address."""
        variables, conversion = (variable_of(load),), widened(self.plan, load)
        if OPERATIONS[load.tensor].along == "m":
            return Read("vector_read", load.tensor, variables, conversion, place="rows", inside="rows < end")
        return Read("column_of_group", load.tensor, variables, conversion, place=self._place_of(load))

    def spelled(self, load: Load) -> str:
        """Return an operand as it broadcasts to a tile."""
        return variable_of(load) + ACROSS[load.operand]

    @property
    def places(self) -> tuple[str, ...]:
        """The parameters that place a sub-tile's elements."""
        axes = {"group": "n", "row": "m", "column": "n", "end": "m"}
        names = [name for name, axis in axes.items() if axis in self.indexed]
        return ("args", *names) if names else ()

    @property
    def facts(self) -> tuple[str, ...]:
        """The group of a tile, whose columns operands have; its end is known wherever D is stored."""
        return ("group",) if "n" in self.indexed else ()

    @property
    def indexed(self) -> tuple[str, ...]:
        """The dimensions along which the vectors lie."""
        return axes_of_vectors(self.plan.problem.vectors)

    def _place_of(self, load: Load) -> str:
        """Return the index of a column operand's elements: a gated kernel has two for each column of D."""
        if not load.accumulator:
            return "group * args.n + columns"
        blocks, number = self.plan.problem.b_blocks, tiles_of(self.plan).index(load.accumulator)
        if self.plan.problem.interleaved:
            first = f"{blocks} * (group * args.n + columns)"
            return f"{first} + {number}" if number else first
        block = f"({blocks} * group + {number})" if number else f"{blocks} * group"
        return f"{block} * args.n + columns"
