"""What several test files share: what follows from the committed specs, and which tests a run has."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Generator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
import speeds
from modules import ROOT, SPECS, made

# Before anything imports Triton, which warns when this is unset.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# NumPy's idle threads spin: a tenth of a second of processor time in each process that imports torch.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What is compiled once is there for every test, worker and run: an entry is named by all that it depends on.
os.environ.setdefault("GEMMGEN_CACHE_DIR", str(ROOT / ".pytest_cache" / "gemmgen"))

import torch

from gemmgen import triton_api
from gemmgen.__main__ import GARBAGE_THRESHOLDS
from gemmgen.cache import cached, key_of
from gemmgen.lower import Lowered, lower
from gemmgen.product import Product
from gemmgen.triton_api import disassemble

# The suite runs one worker per core: more threads only wait for each other.
torch.set_num_threads(1)

_block_of = lru_cache(maxsize=4096)(inspect.getblock)


def _known_block(lines: Sequence[str]) -> list[str]:
    """Return the lines of the function or class that begins with the first line."""
    return list(_block_of(tuple(lines)))


# Triton asks for the source of each function when a module is imported, and Python's tokenizer finds its end:
# a third of the time to import a module, and tests import the same modules thousands of times.
cast(Any, inspect).getblock = _known_block


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of speeds."""
    parser.addoption(
        "--speed", choices=speeds.SPEEDS, default=speeds.SPEEDS[-1], help="Which tests: tests/speeds.py."
    )
    parser.addoption(
        "--record-verified", action="store_true", help="Write tests/records/verified.json if all pass."
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the files without a quick test for `make test`: to import takes each worker seconds."""
    if config.getoption("speed") != "test" or not collection_path.name.startswith("test_"):
        return None  # others may say so
    return True if "mark.quick" not in collection_path.read_text(encoding="utf-8") else None


def pytest_configure(config: pytest.Config) -> None:
    """Let no test of `make test` compile a kernel: README says that they need no compiler."""
    if config.getoption("speed") == "test":
        triton_api.compile_kernel = _no_compiler


def _no_compiler(*_: object, **__: object) -> Any:
    raise AssertionError("a test that compiles a kernel has no mark `quick`: tests/speeds.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage in what is imported and collected, which stays: that takes half of the time."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
    return collected


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the run of this speed does not have."""
    items[:], left = speeds.select(items, str(config.getoption("speed")))
    config.hook.pytest_deselected(items=left)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record that all modules passed, in the process that has heard of all tests."""
    if exitstatus == 0 and session.config.getoption("record_verified") and not _is_worker(session.config):
        speeds.record()


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session", params=SPECS, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each committed spec."""
    return made(request.param)


@lru_cache(maxsize=4)
def _lowered(path: str) -> Lowered:
    product = made(Path(path))
    stem = product.source.stem
    return lower(product.module, product.plan, path=stem, stem=stem)


@lru_cache(maxsize=4)
def _machine_code(path: str) -> str:
    cubin = _lowered(path).artifacts["cubin"]
    key = key_of(("sass", sha256(cubin).hexdigest()))
    return cached(key, lambda: {"sass": disassemble(cubin)}, lambda files: files["sass"].decode())


# No fixtures of the session: several files have a `product` of their own, and one of theirs would outlive it.


@pytest.fixture
def lowered(product: Product) -> Lowered:
    """The kernel of a committed spec, compiled once."""
    return _lowered(product.source.path)


@pytest.fixture
def sass(product: Product) -> str:
    """Its machine code."""
    return _machine_code(product.source.path)
