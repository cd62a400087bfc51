"""Faults of scratch memory: the compiler puts it over a buffer that a transfer or an MMA still reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.experimental.gluon.language as gl_  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gluonsim import Kind, Result, simulate
from mutants.handwritten import faults_of

gl: Any = gl_
TensorDescriptor: Any = TensorDescriptor_
K = Kind


def described(tensor: torch.Tensor, box: list[int], *bases: list[int]) -> Any:
    """Return a descriptor of a tensor, whose box the CTAs of a cluster divide as the bases say."""
    element = {torch.float16: gl.float16, torch.int32: gl.int32, torch.float32: gl.float32}[tensor.dtype]
    layout = gl.NVMMASharedLayout.get_default_for(box, element, cga_layout=list(bases))
    return TensorDescriptor.from_tensor(tensor, box, layout)


def integers(*shape: int, high: int = 4) -> torch.Tensor:
    """Return numbers from 0 to below `high`, the same ones each time."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0)).int()


def pages(module: Any, schedules: Sequence[str]) -> Result:
    """Three pages of 128 numbers."""
    x = integers(3, 128)
    tensors = [
        torch.zeros(384).int(),
        torch.zeros(3).int(),
        torch.zeros(3, 128).int(),
        torch.zeros(3, 128).int(),
    ]
    y, sums, scans, turned = tensors
    expect = {
        "y_desc": x.flatten(),
        "sums_ptr": x.sum(1).int(),
        "scans_ptr": x.cumsum(1).int(),
        "turned_ptr": x,
    }
    launched = simulate(module.pages_kernel, schedules=schedules, expect=expect)
    return launched[1](described(y, [128]), x, sums, scans, turned, 3)


def counted(module: Any, schedules: Sequence[str]) -> Result:
    """One page of 128 numbers below 128."""
    x = integers(128, high=128)
    counts = torch.bincount(x, minlength=128).int()
    expect = {
        "y_desc": x,
        "counts_ptr": torch.stack([counts, counts.flip(0)]),
        "total_ptr": torch.tensor([int(x.sum()), 0]).int(),
    }
    launched = simulate(module.counted_kernel, schedules=schedules, expect=expect)
    y, found, total = torch.zeros(128).int(), torch.zeros(2, 128).int(), torch.zeros(2).int()
    return launched[1](described(y, [128]), x, found, total)


def multiplied(module: Any, schedules: Sequence[str]) -> Result:
    """Two tiles of 64 x 64."""
    a, b, x = integers(64, 64).half(), integers(64, 64).T.contiguous().half(), integers(64, 64).float()
    expect = {"d_ptr": a.float() @ b.float(), "turned_ptr": x}
    launched = simulate(module.multiplied_kernel, schedules=schedules, expect=expect)
    tiles = described(a, [64, 64]), described(b, [64, 64])
    return launched[1](*tiles, torch.zeros(64, 64), x, torch.zeros(64, 64))


LAUNCHES = {"pages": pages, "counted": counted, "multiplied": multiplied}
page, count, product = (faults_of("pages", f"{name}_kernel", launch) for name, launch in LAUNCHES.items())
WAIT = "        tma.store_wait(0)\n"
SUM = "        gl.store(sums_ptr + step, gl.sum(x, 0))\n"
SCAN = "        gl.store(scans_ptr + step * 128 + offsets, gl.associative_scan(x, 0, _sum))\n"
TURN = "        gl.store(turned_ptr + step * 128 + others, gl.convert_layout(x, OTHER))\n"
KEEP = "    page._keep_alive()\n"
AWAIT = "    tma.store_wait(0)\n"
COUNT = "    counts = gl.histogram(x, 128, layout=LINE)\n"
ATOMIC = "    before = gl.atomic_add(total_ptr, gl.sum(x, 0))\n"
MMA_WAIT = "    sums = warpgroup_mma_wait(0, deps=[sums])\n"
CONVERT = "    turned = gl.convert_layout(x, COLUMNS)\n"
FAULTS = {
    "pages_summed_before_the_store_is_awaited": page(
        K.WRITE_AFTER_READ, "page", "gl.sum(", (WAIT + SUM, SUM + WAIT)
    ),
    "pages_scanned_before_the_store_is_awaited": page(
        K.WRITE_AFTER_READ, "page", "gl.associative_scan(", (WAIT + SUM + SCAN, SCAN + WAIT + SUM)
    ),
    "pages_converted_before_the_store_is_awaited": page(
        K.WRITE_AFTER_READ, "page", "gl.convert_layout(", (WAIT + SUM + SCAN + TURN, TURN + WAIT + SUM + SCAN)
    ),
    "pages_one_store_left_running": page(
        K.WRITE_AFTER_READ, "page", "gl.sum(", (WAIT + SUM, WAIT.replace("0", "1") + SUM)
    ),
    "counted_before_the_store_is_awaited": count(
        K.WRITE_AFTER_READ, "page", "gl.histogram(", (KEEP + AWAIT + COUNT, KEEP + COUNT + AWAIT)
    ),
    "total_before_the_store_is_awaited": count(
        K.WRITE_AFTER_READ, "page", "gl.atomic_add(", (ATOMIC, ""), (KEEP + AWAIT, KEEP + ATOMIC + AWAIT)
    ),
    "converted_while_the_mma_reads": product(
        K.WRITE_AFTER_READ, "a|b", "gl.convert_layout(", (MMA_WAIT + CONVERT, CONVERT + MMA_WAIT)
    ),
}
