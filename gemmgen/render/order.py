"""The order of a program's tiles in words: which way they follow one another."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.plan import KernelPlan


@dataclass(frozen=True)
class OrderView:
    """The words in which the parts of one minor dimension differ from those of the other."""

    plan: KernelPlan

    @property
    def _down(self) -> bool:
        """Whether neighbouring tiles follow along M."""
        return self.plan.minor == "m"

    @property
    def constants(self) -> tuple[tuple[str, int, str], ...]:
        """The name, value and meaning of each constant that the order needs."""
        width = self.plan.width
        if self.plan.schedule_kind == "single_tile" or self.plan.order == "row":
            return ()
        if self.plan.order == "hilbert":
            return (
                ("SQUARE_TILES", width, "tiles along each side of a square that the curve fills, for L2"),
                ("SQUARE_HALVINGS", width.bit_length() - 1, "log2(SQUARE_TILES)"),
            )
        return ((self.group, width, f"{self.line}s of tiles that are walked together, for L2"),)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What places a tile, besides its number."""
        return ("tiles_n",) if self.plan.order == "row" else ("tiles_m", "tiles_n")

    @property
    def group(self) -> str:
        """The constant that holds the lines of a group."""
        return "GROUP_TILES_M" if self._down else "GROUP_TILES_N"

    @property
    def line(self) -> str:
        """What a group has several of, side by side."""
        return "row" if self._down else "column"

    @property
    def across(self) -> str:
        """What crosses the lines of a group."""
        return "column" if self._down else "row"

    @property
    def tiles_along(self) -> str:
        """The number of lines of the whole of D."""
        return "tiles_m" if self._down else "tiles_n"

    @property
    def tiles_across(self) -> str:
        """The tiles of one line."""
        return "tiles_n" if self._down else "tiles_m"

    @property
    def lower(self) -> str:
        """How the last group may differ."""
        return "lower" if self._down else "narrower"

    @property
    def walk(self) -> str:
        """The way through a group."""
        if self._down:
            return "down GROUP_TILES_M rows, then one column to the right"
        return "right over GROUP_TILES_N columns, then one row down"

    @property
    def turns(self) -> str:
        """Where a snake turns, for a docstring whose line has already begun."""
        back, out = ("up", "left") if self._down else ("left", "up")
        return (
            f"Every other {self.across} goes {back}, and\n    every other group goes {out}: "
            "a turn begins with the rows and columns that were used last."
        )
