"""The sums that a kernel stores beside D, and the places and boxes of all that it stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.render.spelling import fit
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

    @property
    def save_tile(self) -> str:
        """The call that stores the sums of a tile, and its D, at once."""
        return self._save("0", "column", self.tiles, indent=4)

    @property
    def save_subtile(self) -> str:
        """The call that stores the sums of sub-tile i, and its D."""
        return self._save(
            self.slot_of_subtile, "column + i * SUBTILE_N", ("firsts[i]", "seconds[i]"), indent=8
        )

    def _save(self, slot: str, column: str, sums: tuple[str, ...], *, indent: int) -> str:
        """Return the call that stores sums and the D that is computed from them."""
        buffers = ("args", "d_smem", "saved_smem", slot)
        arguments = (*buffers, "row", column, *sums, *self.of_leaf)
        return fit("save_and_store(", arguments, ")", indent=indent, margin=indent)

    @property
    def _of_slot(self) -> str:
        """The index of a slot of a buffer; empty if there is one."""
        return ".index(slot)" if self.plan.epilogue_buffers > 1 else ""

    def _saved_slot(self, number: int) -> str:
        """Return the index of the buffer for the sums of an accumulator by its number."""
        return f"{self.plan.problem.b_blocks} * slot{f' + {number}' * bool(number)}"

    @property
    def round_sums(self) -> str:
        """The statements that round the sums, in lines."""
        return "\n    ".join(f"{name} = {name}.to(args.saved_desc.dtype)" for name in self.tiles)

    @property
    def write_saved(self) -> str:
        """The statements that write a sub-tile of sums and of D to shared memory, in lines."""
        return "\n    ".join(self._writes_of_saved)

    @property
    def store_saved(self) -> str:
        """The statements that start to store a sub-tile of sums and of D, in lines."""
        return "\n    ".join(self._stores_of_saved)

    @property
    def _writes_of_saved(self) -> Iterator[str]:
        """The statements that write a sub-tile of sums and of D to shared memory."""
        names = self.tiles
        if self.plan.problem.interleaved:
            yield f"saved_smem{self._of_slot}.store(in_turn({', '.join(names)}))"
        else:
            for number, name in enumerate(names):
                yield f"saved_smem.index({self._saved_slot(number)}).store({name})"
        yield f"d_smem{self._of_slot}.store(tile.to(args.d_desc.dtype))"

    @property
    def _stores_of_saved(self) -> Iterator[str]:
        """The statements that start to store a sub-tile of sums and of D."""
        blocks, rows = self.plan.problem.b_blocks, self._stored_rows
        if self.plan.problem.interleaved:
            buffer = f"saved_smem{self._of_slot}"
            if boxed := self.plan.problem.leading_axes("saved"):
                yield f"saved_tile = {self._boxed('saved', buffer)}"
            saved = "saved_tile" if boxed else buffer
            yield f"tma.async_store(args.saved_desc, [{rows}, {blocks} * column], {saved})"
        else:
            for number in range(blocks):
                yield f"saved_tile = {self._boxed('saved', f'saved_smem.index({self._saved_slot(number)})')}"
                yield f"tma.async_store(args.saved_desc, [{number}, {rows}, column], saved_tile)"
        yield f"tma.async_store(args.d_desc, [{rows}, column], {self._boxed('d', f'd_smem{self._of_slot}')})"

    @property
    def _stored_rows(self) -> str:
        """The coordinates of the rows of a tile of D or of saved sums: of boxes of rows, they are two."""
        return "row"

    def _boxed(self, tensor: str, buffer: str) -> str:
        """Return a buffer as the box that TMA moves, whose rank is the descriptor's."""
        leading = self.plan.problem.leading_axes(tensor)
        return f"{('', 'as_box', 'as_block')[leading]}(args.{tensor}_desc, {buffer})" if leading else buffer
