"""The order of the sub-tiles of a tile, and the parts that store each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.kernel import Kernel

LAST = "SUBTILES - 1"


@dataclass(frozen=True)
class Run:
    """Sub-tiles that are treated alike, one after the other, or a single one."""

    number: str
    """The number of a sub-tile, or the variable of the loop; empty for a tile that is stored whole."""
    numbers: str
    """The arguments of the loop's range; empty for a single sub-tile."""
    begin: str
    """The variable that holds the column that `offset` counts from."""
    offset: str
    """The columns from `begin` to a sub-tile; empty if there are none."""
    sums: str
    """The variable that holds its sums."""
    tile: str
    """The variable that is converted: the sums, or the result of the epilogue."""
    refilled: str
    """The later sub-tile of C that its buffer takes."""
    is_last: bool
    """True for the sub-tile whose sums are the last ones to be read."""

    @property
    def column(self) -> str:
        """The first column of a sub-tile."""
        return f"{self.begin} + {self.offset}" if self.offset else self.begin

    @property
    def slot(self) -> str:
        """The index of a sub-tile's buffer in a ring of two or more: 0 and 1 need no remainder."""
        if self.number.isdigit():
            return self.number
        number = f"({self.number})" if " " in self.number else self.number
        return f"{number} % EPILOGUE_BUFFERS"


@dataclass(frozen=True)
class Runs:
    """The runs of a tile; each part of a sub-tile's store is decided by itself."""

    plan: Kernel
    loads: bool
    """True if the epilogue reads more than the sums: it is then computed here, not where a tile is stored."""
    refills: bool
    """True if a buffer of C takes several sub-tiles of a tile."""
    whole: str
    """The variable that holds the sums of a tile which is stored whole."""

    @cached_property
    def from_tensor_memory(self) -> bool:
        """True if sums are read there, sub-tile by sub-tile, and make room for others when all are read."""
        return bool(self.plan.tensor_memory.buffers)

    def __iter__(self) -> Iterator[Run]:
        subtiles, ring = self.plan.subtiles, self.plan.epilogue_buffers > 1
        if self.plan.tiles_together > 1:
            yield self._run("i", "SUBTILES", "i * SUBTILE_N", begin="first")
            numbers, offset = "SUBTILES, len(subtiles)", "(i - SUBTILES) * SUBTILE_N"
            yield self._run("i", numbers, offset, begin="own")
        elif subtiles == 1:
            yield self._run("", "", "", is_last=True)
        elif subtiles == 2:
            yield self._run("0", "", "", refilled="1" if self.refills else "")
            yield self._run("1", "", "SUBTILE_N", is_last=True)
        else:
            yield from self._many(ring=ring)

    def _many(self, *, ring: bool) -> Iterator[Run]:
        """Return the runs of more than two: those whose buffers are refilled, the others, and the last."""
        lone_last = self.from_tensor_memory or (self.refills and not ring)
        offset, end = "i * SUBTILE_N", LAST if lone_last else "SUBTILES"
        if self.refills:
            depth = "EPILOGUE_BUFFERS" if ring else "1"
            first = f"SUBTILES - {depth}"
            yield self._run("i", first, offset, refilled=f"i + {depth}")
            if ring:
                yield self._run("i", f"{first}, {end}", offset)
        else:
            yield self._run("i", end, offset)
        if lone_last:
            yield self._run(LAST, "", f"({LAST}) * SUBTILE_N", is_last=True)

    def _run(
        self,
        number: str,
        numbers: str,
        offset: str,
        *,
        begin: str = "column",
        refilled: str = "",
        is_last: bool = False,
    ) -> Run:
        sums = "tile" if self.from_tensor_memory else self._in_registers(number)
        tile = "tile" if self.loads else sums
        return Run(number, numbers, begin, offset, sums, tile, refilled, is_last)

    def _in_registers(self, number: str) -> str:
        """Return what holds the sums of a sub-tile that are in registers."""
        if not number:
            return self.whole
        return {"0": "left", "1": "right"}.get(number, f"subtiles[{number}]")
