"""Tensors that a launch must leave as it finds them, such as counters that the next launch relies on."""

from __future__ import annotations

from operator import mul
from typing import Any

import torch

from gluonsim.compiled import described
from gluonsim.findings import Findings, Kind
from gluonsim.global_memory import GlobalMemory
from gluonsim.tensors.addresses import elements_of
from gluonsim.tensors.regions import Elements, differing


class Restored:
    """A tensor that a launch must leave as it finds it."""

    def __init__(self, name: str, argument: Any) -> None:
        tensor = described(argument)
        assert tensor is not None
        self._name = name
        self._tensor = tensor
        self._found = tensor.clone()

    def judge(self, findings: Findings, memory: GlobalMemory) -> None:
        """Report the elements that are not as they were, and who wrote the first of them."""
        changed = differing(self._tensor, self._found).nonzero()
        if not len(changed):
            return
        first = tuple(map(int, changed[0]))
        left, found = (tensor[first].double().item() for tensor in (self._tensor, self._found))
        count = f"{len(changed):,} of {self._tensor.numel():,} elements are not left as they were found"
        text = f"{count}, the first at {list(first)}: {left:g}, not {found:g}"
        element = self._tensor.storage_offset() + sum(map(mul, first, self._tensor.stride()))
        last = memory.last_write(Elements(elements_of(self._tensor), torch.tensor([element])))
        kind, name = Kind.WORKSPACE_NOT_RESTORED, self._name
        if last is None:
            findings.add(kind, name, (), "", 0, text)
        else:
            findings.add(kind, name, (last.location,), last.partition, last.cta, text)
