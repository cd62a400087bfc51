"""How a module spells the parts of a tile's columns, each with sums of its own: the lanes of its K loop."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.storage import numbered
from gemmgen.plan.wgmma import WgmmaKernel


@dataclass(frozen=True)
class Part:
    """The spelling of the values that belong to a part of a tile's columns."""

    number: int | None
    """The number of the part; None for the only part of a plain tile."""
    column_of: str = "tile.column"
    """The first column of the part `first`, from which the parts lie side by side up to this one."""
    first: int = 0
    """The number of the part that begins at `column_of`."""

    @property
    def layout(self) -> str:
        """The constant that holds the layout of its sums."""
        return numbered("ACCUMULATOR_LAYOUT", self.number)

    @property
    def columns(self) -> str:
        """The constant that holds its columns."""
        return "PROGRAM_TILE_N" if self.number is None else f"PART_N_{self.number}"

    @property
    def column(self) -> str:
        """The first column of the part."""
        return " + ".join((self.column_of, *(f"PART_N_{i}" for i in range(self.first, self.number or 0))))

    def of(self, field: str) -> str:
        """Return the part's element of a field of the arguments that has one for each part."""
        return f"args.{field}" if self.number is None else f"args.{field}[{self.number}]"


def parts_of(plan: WgmmaKernel) -> tuple[Part, ...]:
    """Return the parts of a plan's tile."""
    count = len(plan.column_parts)
    if plan.staggered:
        common = (Part(number, "common_column(tile.column)") for number in range(count - 1))
        return (*common, Part(count - 1, "own_column(tile.column)", count - 1))
    return tuple(map(Part, range(count))) if plan.composed else (Part(None),)


def register_layout(tensor: str, part: Part) -> str:
    """Return the constant that holds the layout in which the MMAs of a part take a tensor from registers."""
    return numbered(f"{tensor.upper()}_REGISTER_LAYOUT", part.number)


def turned(name: str, is_turned: bool) -> str:
    """Return a tensor, or its transposed view, in which no element moves."""
    return f"{name}.permute((1, 0))" if is_turned else name
