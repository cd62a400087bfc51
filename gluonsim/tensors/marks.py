"""Marks: a number for each element of a storage, which stands for the accesses to the element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.tensors.regions import Region


class Marks:
    """For each element of a storage a number, 0 at first: an index into what they stand for."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._numbers: Tensor | None = None

    def found(self, region: Region) -> Tensor | None:
        """Return the marks of a region's elements; None where no element has ever had one."""
        return None if self._numbers is None else region.look(self._numbers)

    def of(self, region: Region) -> Tensor:
        """Return the marks of a region's elements."""
        return region.look(self._all)

    def set(self, region: Region, values: Tensor | int) -> None:
        """Mark a region's elements."""
        region.mark(self._all, values)

    def change(self, region: Region, changed: Mapping[int, int]) -> None:
        """Replace each of the different marks of a region's elements by another one."""
        if len(changed) == 1:  # nearly always
            self.set(region, *changed.values())
            return
        before = self.of(region).clone()
        after = before.clone()
        for number, new in changed.items():
            after.masked_fill_(before == number, new)
        self.set(region, after)

    @property
    def _all(self) -> Tensor:
        if self._numbers is None:
            self._numbers = torch.zeros(self._count, dtype=torch.int32)
        return self._numbers


def distinct(marks: Tensor) -> list[int]:
    """Return the different numbers among marks, in ascending order."""
    low, high = (int(bound) for bound in marks.aminmax())
    if low == high:  # nearly always: the elements were last touched by one access
        return [low]
    return cast("list[int]", cast(Any, marks).unique().tolist())
