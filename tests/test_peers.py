"""The blocked and the pipelined kind against tutorial kernels of their kind, in one run on one GPU."""

# pyright: basic, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from kernels.hopper import blocked_matmul_kernel
from kernels.tutorial_hopper import pipelined_kernel
from kernels.tutorial_launch import box
from modules import module_file
from torch import Tensor

from gemmgen.bench.machine import CudaMachine
from gemmgen.bench.paired_timing import measure
from gemmgen.bench.record import Protocol
from gemmgen.module import import_generated, matmul_of

ROOT = Path(__file__).parent.parent
SIZE = 8192
"""M, N and K."""
PROTOCOL = Protocol(repetitions=3, pairs=9, warm_up_seconds=1.0)
Peer = Callable[[Tensor, Tensor, Tensor], Any]


def blocked(tile_m: int, tile_n: int, tile_k: int, num_warps: int) -> Peer:
    """Return A [M, K] @ B [K, N] by a program for each tile, which loads, waits and multiplies."""

    def launch(a: Tensor, b: Tensor, d: Tensor) -> None:
        arguments = (box(a, (tile_m, tile_k)), box(b, (tile_k, tile_n)), box(d, (tile_m, tile_n)))
        grid = (SIZE // tile_m, SIZE // tile_n, 1)
        blocked_matmul_kernel[grid](*arguments, SIZE // tile_k, num_warps=num_warps)

    return launch


def pipelined(tile_m: int, tile_n: int, tile_k: int, num_warps: int) -> Peer:
    """Return A [M, K] @ B, stored as [N, K], by a program for each tile, with an MMA and loads in flight."""

    def launch(a: Tensor, b: Tensor, d: Tensor) -> None:
        arguments = (box(a, (tile_m, tile_k)), box(b.T, (tile_n, tile_k)), box(d, (tile_m, tile_n)))
        pipelined_kernel[(SIZE // tile_m, SIZE // tile_n)](*arguments, 1, num_warps=num_warps)

    return launch


PEERS: dict[str, list[Peer]] = {
    # Every tile and warp count whose accumulator takes 128 registers of a thread or fewer.
    "h100_bf16_blocked": [
        blocked(128, 128, 64, 4),
        blocked(128, 128, 128, 4),
        blocked(128, 256, 64, 8),
        blocked(128, 256, 128, 8),
        blocked(64, 256, 64, 4),
    ],
    "h100_bf16_pipelined": [
        pipelined(128, 128, 64, 4),
        pipelined(128, 256, 64, 8),
        pipelined(64, 256, 64, 4),
    ],
}


@pytest.mark.gpu
@pytest.mark.parametrize("stem", PEERS)
def test_a_kind_is_as_fast_as_the_best_tutorial_kernel_of_that_kind(
    stem: str, record_property: Callable[[str, object], None]
) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    torch.manual_seed(0)
    matmul = matmul_of(import_generated(module_file(stem)))
    a, stored = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    b = stored.T.contiguous() if "blocked" in stem else stored.T  # the blocked peer has B [K, N]
    ours, theirs = torch.empty_like(a), torch.empty_like(a)
    matmul(a, stored.T, out=ours)
    machine = CudaMachine(torch.device("cuda", torch.cuda.current_device()))

    def ratio(peer: Peer) -> float:
        peer(a, b, theirs)
        assert (ours.float() - theirs.float()).norm() <= 1e-3 * ours.float().norm()
        timing = measure(
            lambda _: matmul(a, stored.T, out=ours),
            lambda _: peer(a, b, theirs),
            1,
            machine,
            PROTOCOL,
            lambda _: None,
        )
        pairs = zip(timing.baseline_seconds, timing.ours_seconds, strict=True)
        return median(b / o for theirs_, ours_ in pairs for b, o in zip(theirs_, ours_, strict=True))

    ratios = [ratio(peer) for peer in PEERS[stem]]
    record_property("ratios", ratios)
    assert min(ratios) >= 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [(8192, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 1024)],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_bias_and_gelu_cost_at_most_three_percent_of_the_plain_kernel(
    shape: tuple[int, int, int], record_property: Callable[[str, object], None]
) -> None:
    """Alternating pairs; on an H200 the fused kernel took 1.002, 1.010 and 1.009 times as long."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    torch.manual_seed(0)
    plain, fused = (
        matmul_of(import_generated(module_file(f"h100_bf16_{name}"))) for name in ("ping_pong", "bias_gelu")
    )
    m, n, k = shape
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    timing = measure(
        lambda _: fused(a, b.T, column_bias=bias, out=d),
        lambda _: plain(a, b.T, out=d),
        1,
        CudaMachine(torch.device("cuda", torch.cuda.current_device())),
        PROTOCOL,
        lambda _: None,
    )
    pairs = zip(timing.baseline_seconds, timing.ours_seconds, strict=True)
    ratio = median(f / p for plains, fuseds in pairs for p, f in zip(plains, fuseds, strict=True))
    record_property("fused_over_plain", ratio)
    assert ratio <= 1.03
