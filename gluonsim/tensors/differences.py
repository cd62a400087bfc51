"""Elements of a tensor that are not as they must be: how many, the first one, and who wrote it last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

import torch
from torch import Tensor

from gluonsim.accesses import Access
from gluonsim.findings import Findings, Kind
from gluonsim.global_memory import GlobalMemory
from gluonsim.tensors.addresses import elements_of
from gluonsim.tensors.regions import Elements


@dataclass(frozen=True)
class Difference:
    """Elements of a tensor that differ from the wanted ones."""

    count: int
    elements: int
    """All elements of the tensor, the right ones too."""
    first: tuple[int, ...]
    """Index of the first one in the tensor."""
    found: float
    wanted: float
    written: Access | None
    """The last write of the first one; None if the launch never wrote it."""

    @classmethod
    def of(cls, tensor: Tensor, wanted: Tensor, differs: Tensor, memory: GlobalMemory) -> Difference | None:
        """Return the elements where `differs` is true; None if there are none. All have one shape."""
        places = differs.nonzero()
        if not len(places):
            return None
        first = tuple(map(int, places[0]))
        found, value = (each[first].double().item() for each in (tensor, wanted))
        written = last_write(tensor, first, memory)
        return cls(len(places), tensor.numel(), first, found, value, written)

    def told(self, how: str) -> str:
        """Return the difference as a sentence about elements that are as `how` says."""
        count = f"{self.count:,} of {self.elements:,} elements {how}"
        return f"{count}, the first at {list(self.first)}: {self.found:g}, not {self.wanted:g}"

    def report(self, findings: Findings, kind: Kind, name: str, how: str) -> None:
        """Add the difference of an argument of a launch as a finding, at the line of the last write."""
        last = self.written
        where = ((), "", 0) if last is None else ((last.location,), last.partition, last.cta)
        findings.add(kind, name, *where, self.told(how))


def last_write(tensor: Tensor, index: Sequence[int], memory: GlobalMemory) -> Access | None:
    """Return the last write of an element of a tensor; None if the launch never wrote it."""
    element = int(tensor.storage_offset()) + sum(map(mul, index, tensor.stride()))
    return memory.last_write(Elements(elements_of(tensor), torch.tensor([element])))
