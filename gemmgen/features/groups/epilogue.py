"""The epilogue of a kernel of groups: threads read its row and column operands, which TMA cannot load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.problem.epilogue import Load
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.epilogue import EpilogueView
from gemmgen.render.steps import Part, name_of


@dataclass(frozen=True)
class GroupEpilogueView(EpilogueView):
    """The epilogue's functions of one plan with groups as the templates see them.

    A vector of rows has an element for each row of A, a vector of columns is [G, N], and both are read at the
    place of a sub-tile. Rows from the group's end on, and columns from N on, are not read.
    """

    @property
    def of_group(self) -> tuple[str, ...]:
        """The facts of a tile's group that the store of a tile takes: its number, and its end."""
        return ("group", "end") if "n" in self._vector_axes else ("end",)

    @property
    def of_leaf(self) -> tuple[str, ...]:
        """The facts of a tile's group that the function takes which converts and stores."""
        return self.of_group if self.computes else ("end",)

    @property
    def stores_by_tma(self) -> bool:
        """True if TMA stores D, so that a buffer must outlive the store that reads it."""
        return not self.plan.problem.scatters_d

    @property
    def awaits_buffer(self) -> bool:
        """True if an earlier store, of this tile or of another one, may still read the buffer."""
        return self.stores_by_tma and super().awaits_buffer

    @property
    def converts(self) -> str:
        """The template that converts and stores a sub-tile."""
        return super().converts if self.stores_by_tma else "scatter"

    @property
    def store_summary(self) -> str:
        """The docstring of the function that stores a tile."""
        summary = super().store_summary
        return summary if self.stores_by_tma else f"{summary.partition(';')[0]}."

    @property
    def end_of_rows(self) -> str:
        """The row after the last one of a tile's group."""
        return "end"

    @property
    def rows_of_tile(self) -> str:
        """The rows of a tile that is stored."""
        if self.plan.problem.saves:
            return "tile.shape[0]"
        return "tiles[0].shape[0]" if self.plan.problem.d_in_blocks else "d_smem.shape[0]"

    @property
    def stored_rows(self) -> str:
        """The coordinates of the rows of a tile of D or of saved sums: its box, and the first row in it."""
        return "row + kept, rows - kept"

    @property
    def parts(self) -> Iterator[Part]:
        """The parts between accumulator and conversion, after the places of a sub-tile's elements."""
        if self._vector_axes:
            yield Part("vectors_of_group")
        tile = self.tiles[0]
        for axis in self._vector_axes:
            number, first = (0, "row") if axis == "m" else (1, "column")
            layout = f"gl.SliceLayout({1 - number}, {tile}.type.layout)"
            yield Part("statement", f"{first}s = {first} + gl.arange(0, {tile}.shape[{number}], {layout})")
        yield from super().parts

    @property
    def c_ends_with_group(self) -> bool:
        """True if a load of C ends with the rows of a tile's group."""
        return not self.plan.access.reads_c_of_others

    def place_of_c(self, row: str, column: str, tile: str = "") -> tuple[str, ...]:
        """Return the arguments that place a tile of C, whose group's end is a member of ``tile``."""
        return (row, column) if self.plan.access.reads_c_of_others else (row, column, f"{tile}end")

    @property
    def _places(self) -> tuple[str, ...]:
        """The arguments that place a sub-tile's elements of row and column operands."""
        axes = {"group": "n", "row": "m", "column": "n", "end": "m"}
        names = [name for name, axis in axes.items() if axis in self._vector_axes]
        return ("args", *names) if names else ()

    def _in_turn(self, load: Load) -> bool:  # noqa: ARG002  each accumulator's elements are read alone
        return False

    def _load(self, load: Load) -> Part:
        """Return the lines that read an operand by address."""
        if load.operand == "matrix":
            return super()._load(load)
        if OPERATIONS[load.tensor].along == "m":
            return replace(super()._load(load), kind="vector_read", limit="end")
        return replace(super()._load(load), kind="column_of_group")

    def _loaded(self, load: Load) -> str:
        """Return a loaded operand as it broadcasts to a tile."""
        across = {"row": "[:, None]", "column": "[None, :]"}
        return load.block or name_of(load) + across.get(load.operand, "")

    def place_of(self, load: Load) -> str:
        """Return the index of a column operand's elements: a gated kernel has two for each column of D."""
        if not load.accumulator:
            return "group * args.n + columns"
        blocks, number = self.plan.problem.b_blocks, self.tiles.index(load.accumulator)
        if self.plan.problem.interleaved:
            return f"{blocks} * (group * args.n + columns){f' + {number}' * bool(number)}"
        block = f"({blocks} * group + {number})" if number else f"{blocks} * group"
        return f"{block} * args.n + columns"
