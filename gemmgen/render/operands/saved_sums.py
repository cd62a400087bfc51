"""The sums that a kernel stores beside D, and the places and boxes of all that it stores."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.render.steps import StepsView


@dataclass(frozen=True)
class SavedSumsView(StepsView):
    """The stores of rounded sums, and of the D that is computed from them, as the templates see them."""

    @property
    def of_group(self) -> tuple[str, ...]:
        """The facts of a tile's group that the store of a tile takes; empty without groups."""
        return ()

    @property
    def of_leaf(self) -> tuple[str, ...]:
        """The facts of a tile's group that the function takes which converts and stores."""
        return ()

    @property
    def sums_take_turns(self) -> bool:
        """True if the sums of all accumulators are saved as one matrix whose columns take turns."""
        return self.plan.problem.interleaved

    @property
    def saved_column(self) -> str:
        """The first column of a tile in that matrix."""
        return f"{self.plan.problem.b_blocks} * column"

    @property
    def split(self) -> str:
        """The function that splits the columns of a tile into its sub-tiles."""
        return "halves" if self.plan.subtiles == 2 else "split_columns"

    @property
    def subtiles(self) -> str:
        """The number of sub-tiles of a tile."""
        return "SUBTILES" if self.plan.subtiles > 2 else str(self.plan.subtiles)

    @property
    def slot_of_subtile(self) -> str:
        """The index of the buffers of sub-tile i."""
        return "i % EPILOGUE_BUFFERS" if self.plan.epilogue_buffers > 1 else "0"

    def saved_with(self, slot: str, column: str, sums: tuple[str, ...]) -> tuple[str, ...]:
        """Return the arguments of the call that stores sums and the D that is computed from them."""
        return ("args", "d_smem", "saved_smem", slot, "row", column, *sums, *self.of_leaf)

    @property
    def of_slot(self) -> str:
        """The index of a slot of a buffer; empty if there is one."""
        return ".index(slot)" if self.plan.epilogue_buffers > 1 else ""

    def saved_slot(self, number: int) -> str:
        """Return the index of the buffer for the sums of an accumulator by its number."""
        first = f"{self.plan.problem.b_blocks} * slot"
        return f"{first} + {number}" if number else first

    @property
    def stored_rows(self) -> str:
        """The coordinates of the rows of a tile of D or of saved sums: of boxes of rows, they are two."""
        return "row"

    def boxed(self, tensor: str, buffer: str) -> str:
        """Return a buffer as the box that TMA moves, whose rank is the descriptor's."""
        leading = self.plan.access.leading_axes(tensor)
        return f"{('', 'as_box', 'as_block')[leading]}(args.{tensor}_desc, {buffer})" if leading else buffer
