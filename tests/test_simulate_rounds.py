"""An arrival that hands over a slot which was not acquired in this round is told as the cause."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from kernels.launch import lines_of
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gluonsim import Kind, Result, simulate

pytestmark = pytest.mark.simulator

gl, TensorDescriptor = cast(Any, gl_), cast(Any, TensorDescriptor_)
rings: Any = importlib.import_module("kernels.rings")
FILE = Path(rings.__file__)
STEPS = 11


def launched(consumers: int, release: str = "", expect: str = "") -> tuple[Result, bool]:
    """Run the ring; return the result, and whether each consumer copied every tile."""
    x = torch.arange(STEPS * 1024.0).reshape(-1, 32)
    layout = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float32)
    d = torch.zeros(consumers, STEPS * 32, 32)
    x_desc = TensorDescriptor.from_tensor(x, [32, 32], layout)
    result = simulate(rings.ring_kernel, "h100")[1](x_desc, d, STEPS, consumers, release, expect, num_warps=4)
    return result, all(map(x.equal, d))


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("release", ["in order", "in halves"])
def test_a_ring_whose_slots_are_acquired_first_is_clean(consumers: int, release: str) -> None:
    result, right = launched(consumers, release)
    assert result.findings == ()
    assert right


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("release", ["before the wait", "the next slot"])
def test_a_release_before_the_slot_was_acquired_comes_first(consumers: int, release: str) -> None:
    first = launched(consumers, release)[0].findings[0]
    assert (first.kind, first.name, first.partition) == (
        Kind.EARLY_ARRIVAL,
        "empty",
        "partition 0 (_consume)",
    )
    assert {first.line} == lines_of(FILE, f"# {release}")
    assert "was not acquired in this round" in first.text


def test_a_second_release_of_a_slot_comes_first() -> None:
    first = launched(1, "twice")[0].findings[0]
    assert (first.kind, first.name) == (Kind.EARLY_ARRIVAL, "empty")
    assert {first.line} == lines_of(FILE, "# twice")


def test_bytes_that_are_expected_before_the_slot_is_empty_come_first() -> None:
    first = launched(1, expect="before the wait")[0].findings[0]
    assert (first.kind, first.name) == (Kind.EARLY_ARRIVAL, "ready")
    assert {first.line} == lines_of(FILE, "# expected before the wait")


def test_partitions_that_arrive_and_wait_at_one_barrier_are_clean() -> None:
    d = torch.zeros(STEPS, 2, 128, dtype=torch.int32)
    result = simulate(rings.meeting_kernel, "h100")[1](d, STEPS, num_warps=4)
    assert result.findings == ()
    assert d[:, :, 0].equal(torch.arange(2 * STEPS, dtype=torch.int32).reshape(-1, 2).flip(1))
