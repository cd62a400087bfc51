"""Tensors that a launch must leave as it finds them, such as counters that the next launch relies on."""

from __future__ import annotations

from typing import Any

from gluonsim.compiled import described
from gluonsim.findings import Findings, Kind
from gluonsim.global_memory import GlobalMemory
from gluonsim.tensors.differences import Difference
from gluonsim.tensors.regions import differing


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
        changed = differing(self._tensor, self._found)
        if difference := Difference.of(self._tensor, self._found, changed, memory):
            how = "are not left as they were found"
            difference.report(findings, Kind.WORKSPACE_NOT_RESTORED, self._name, how)
