"""What several test files share: the committed specs and, compiled once each, their kernels."""

from __future__ import annotations

import fcntl
import os
import pickle
from pathlib import Path

import pytest

# Before anything imports Triton, which warns when this is unset.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch

from gemmgen.lower import Lowered, lower
from gemmgen.product import Product, make

ROOT = Path(__file__).parent.parent
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
HOPPER_SPECS = [spec for spec in SPECS if spec.stem.startswith("h100_")]
BLACKWELL_SPECS = [spec for spec in SPECS if spec.stem.startswith("b200_")]

# The suite runs one worker per core: more threads only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session", params=SPECS, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each committed spec."""
    return make(request.param)


@pytest.fixture(scope="session")
def lowered(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Lowered:
    """The kernel of each committed spec, compiled by the first worker that asks for it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all workers
    stem = product.source.stem
    with (shared / f"{stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = shared / f"{stem}.pickle"
        if not path.exists():
            path.write_bytes(pickle.dumps(lower(product.module, product.plan, path=stem, stem=stem)))
        found: Lowered = pickle.loads(path.read_bytes())
    return found
