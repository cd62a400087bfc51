"""Tests that leave state in torch which outlives them: each runs in a process of its own."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Return a test that runs another one in a new process, and fails as that fails.

    The values of its parameters have to be picklable. Fixtures of its module do not run in that process.
    """

    @functools.wraps(test)
    def run(**values: Any) -> None:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(_run, test.__module__, test.__name__, values).result()

    return run


def _run(module: str, name: str, values: dict[str, Any]) -> None:
    """Run the test that `in_own_process` was given."""
    getattr(importlib.import_module(module), name).__wrapped__(**values)
