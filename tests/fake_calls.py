"""Calls of modules on a driver that does not exist: fixtures of a file that names this one as a plugin.

`CALLED` of such a file is the module that its tests call. A test that calls another one names it as the
parameter `module`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from fake_gpu import on_a_fake_gpu
from fake_triton import FakeDriver, imported, on_a_fake_driver


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a committed module, whose caches are empty, and which torch finds by its name."""
    asked: Any = request
    stem: str = getattr(asked, "param", None) or asked.module.CALLED
    return imported(stem, monkeypatch)


@pytest.fixture
def driver(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Return the driver that the module launches on."""
    on_a_fake_gpu(monkeypatch)
    found = on_a_fake_driver(module, monkeypatch)
    found.make_context(0)
    return found
