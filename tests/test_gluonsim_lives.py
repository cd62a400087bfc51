"""The life of an mbarrier: between init and invalidate, its memory is nothing else's."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.launch import lines_of
from triton.experimental.gluon.language import NVMMASharedLayout  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gluonsim import Finding, Kind, Result, run

pytestmark = pytest.mark.simulator

kernels: Any = importlib.import_module("kernels.lives")
FILE = Path(kernels.__file__)
TensorDescriptor: Any = TensorDescriptor_


def described(tensor: torch.Tensor) -> Any:
    layout = NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    return TensorDescriptor.from_tensor(tensor, [128], layout)


def only(result: Result) -> Finding:
    (finding,) = result.findings
    return finding


@pytest.mark.parametrize(
    ("how", "name", "at", "told"),
    [
        ("store", "buffer", "buffer.store(", "store to shared memory writes"),
        ("filled", "buffer", "PLAIN, gl.load(x_ptr + offsets))", "store to shared memory writes"),
        ("cp.async", "buffer", "async_copy.async_load(", "cp.async writes"),
        ("tma", "buffer", "tma.async_load(", "TMA load writes"),
        # What the compiler needs for itself has no variable: the barrier's stands for it.
        ("conversion", "ended", "gl.convert_layout(", "scratch memory of convert_layout writes"),
        ("captures", "ended", "def ended_kernel(", "scratch memory of warp_specialize writes"),
    ],
)
def test_memory_of_a_barrier_is_written_after_its_invalidation_only(
    how: str, name: str, at: str, told: str
) -> None:
    x = torch.arange(128, dtype=torch.int32)
    y = torch.zeros_like(x)
    assert run(kernels.ended_kernel, (1,), (described(x), x, y, how, True)).findings == ()
    assert y.equal(x)
    finding = only(run(kernels.ended_kernel, (1,), (described(x), x, y, how, False)))
    assert (finding.kind, finding.name) == (Kind.LIVE_BARRIER, name)
    assert finding.lines[0] in lines_of(FILE, at)
    assert finding.lines[1] in lines_of(FILE, "mbarrier.init(ended")
    (line,) = lines_of(FILE, "ended = mbarrier.allocate_mbarrier()")
    where = f"where the barrier ended of line {line} is in use: mbarrier.invalidate must come first"
    assert finding.text == f"{name}: {told} {where}"


def test_a_barrier_is_no_buffer() -> None:
    finding = only(run(kernels.own_kernel, (1,), ()))
    assert (finding.kind, finding.name) == (Kind.LIVE_BARRIER, "ready")
    assert finding.lines[0] in lines_of(FILE, "ready.store(")


def test_a_barrier_over_another_one_begins_when_the_other_has_ended() -> None:
    assert run(kernels.successor_kernel, (1,), (True,)).findings == ()
    finding = only(run(kernels.successor_kernel, (1,), (False,)))
    assert (finding.kind, finding.name) == (Kind.DOUBLE_INIT, "latter")
    assert "where the barrier former of" in finding.text
    assert finding.lines[0] in lines_of(FILE, "mbarrier.init(latter")
    assert finding.lines[1] in lines_of(FILE, "mbarrier.init(former")


def test_a_barrier_begins_when_what_was_there_is_read() -> None:
    x = torch.arange(128, dtype=torch.int32)
    y = torch.zeros_like(x)
    assert run(kernels.beside_a_store_kernel, (1,), (described(y), x, True)).findings == ()
    finding = only(run(kernels.beside_a_store_kernel, (1,), (described(y), x, False)))
    assert (finding.kind, finding.name) == (Kind.WRITE_AFTER_READ, "ready")
    assert finding.lines[0] in lines_of(FILE, "mbarrier.init(ready")
    assert finding.lines[1] in lines_of(FILE, "tma.async_store(")
