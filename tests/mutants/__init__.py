"""Faults to plant in kernels, each with what the simulator must say of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import pytest

Fault = TypeVar("Fault")


def one_of_each(
    faults: Mapping[str, Fault], kind: Callable[[str, Fault], Hashable], module: Callable[[Fault], str]
) -> list[Any]:
    """Return the names of faults as parameters of a test: the first of each kind stands for the others.

    Those run in `make check` only if their module, or the simulator, is not as it was verified.
    """
    seen: set[Hashable] = set()
    names: list[Any] = []
    for name, fault in faults.items():
        key = kind(name, fault)
        marks = [pytest.mark.represented(module(fault))] if key in seen else []
        seen.add(key)
        names.append(pytest.param(name, marks=marks))
    return names
