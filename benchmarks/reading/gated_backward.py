"""Time the backward of a gate and gates that save their sums beside torch, on a Hopper GPU.

    python benchmarks/reading/gated_backward.py [dense | groups]

prints microseconds, medians of 50 launches after 20 to warm up. torch multiplies with cuBLAS, or groups with
its own kernel, and runs the elementwise part as one kernel of torch.compile, as a user would. A shape of
groups states their number first; their sizes are drawn as tokens are routed to experts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gemmgen.problem import Groups

sys.path.insert(0, str(Path(__file__).parents[2] / "generated"))
any_torch: Any = torch
SHAPES = ((8192, 6144, 4096), (8192, 14336, 4096), (2048, 6144, 4096))
FORWARD = ("h100_bf16_gated", "h100_bf16_gated_saved", "h100_bf16_saved_interleaved")
BACKWARD = ("h100_bf16_dgated", "h100_bf16_dgated_interleaved", "h100_bf16_dgated_geglu")
SHAPES_OF_GROUPS = ((32, 32768, 1536, 2048), (32, 8192, 1536, 2048), (8, 16384, 14336, 4096))
FORWARD_OF_GROUPS = ("h100_bf16_grouped_gated", "h100_bf16_grouped_saved")
BACKWARD_OF_GROUPS = ("h100_bf16_grouped_dgated",)


def microseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call."""
    times: list[float] = []
    for _ in range(70):
        start, end = (any_torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return median(times[20:])


def gated(sums: Tensor) -> Tensor:
    """Return the product of the activated gate and up."""
    gate, up = sums.chunk(2, 1)
    return torch.nn.functional.silu(gate) * up


def gradients(grad: Tensor, c: Tensor) -> Tensor:
    """Return the gradients of gate and up, side by side."""
    gate, up = c.chunk(2, 1)
    of_gate = any_torch.ops.aten.silu_backward(grad * up, gate)
    return torch.cat((of_gate, grad * torch.nn.functional.silu(gate)), 1)


def calls_of(m: int, n: int, k: int) -> dict[str, Callable[[], object]]:
    """Return the calls for a shape [M, N, K] by their names."""
    draw: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    a, c = torch.randn(m, k, **draw), torch.randn(m, 2 * n, **draw)
    weight, wide = (torch.randn(rows, k, **draw) * k**-0.5 for rows in (n, 2 * n))
    forward, backward = any_torch.compile(gated), any_torch.compile(gradients)
    calls: dict[str, Callable[[], object]] = {
        "torch, forward": lambda: forward(a @ wide.T),
        "torch, backward": lambda: backward(a @ weight.T, c),
    }
    for name in FORWARD:
        calls[name] = partial(importlib.import_module(name).matmul, a, wide.T)
    for name in BACKWARD:
        b = weight.T.contiguous() if name.endswith("geglu") else weight.T  # which is contiguous along N
        calls[name] = partial(importlib.import_module(name).matmul, a, b, c=c)
    return calls


def calls_of_groups(count: int, m: int, n: int, k: int) -> dict[str, Callable[[], object]]:
    """Return the calls for groups of M rows in all by their names."""
    draw: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    a, c = torch.randn(m, k, **draw), torch.randn(m, 2 * n, **draw)
    wide = (torch.randn(count, 2 * n, k, **draw) * k**-0.5).mT
    down = torch.randn(count, k, n, **draw) * k**-0.5  # dH = dY @ W3, of a W3 [K, N] for each group
    ends = torch.tensor(Groups("m_offsets", count).rows_of_each(m)).cumsum(0)
    offs, factors = ends.to("cuda", torch.int32), torch.rand(m, device="cuda") + 0.5

    def weighted(grad: Tensor, sums: Tensor, weights: Tensor) -> Tensor:
        return gradients(weights[:, None].to(grad.dtype) * grad, sums)

    forward, backward = any_torch.compile(gated), any_torch.compile(weighted)
    calls: dict[str, Callable[[], object]] = {
        "torch, forward": lambda: forward(any_torch._grouped_mm(a, wide, offs=offs)),
        "torch, backward": lambda: backward(any_torch._grouped_mm(a, down, offs=offs), c, factors),
    }
    for name in FORWARD_OF_GROUPS:
        calls[name] = partial(importlib.import_module(name).matmul, a, wide, offs=offs)
    for name in BACKWARD_OF_GROUPS:
        matmul = importlib.import_module(name).matmul
        calls[name] = partial(matmul, a, down, c=c, row_scale=factors, offs=offs)
    return calls


def main() -> None:
    """Print a line for each call and shape, of all kernels or of one kind."""
    kinds = sys.argv[1:] or ["dense", "groups"]
    timed: list[tuple[tuple[int, ...], Callable[[], dict[str, Callable[[], object]]]]] = []
    if "dense" in kinds:
        timed += [(shape, partial(calls_of, *shape)) for shape in SHAPES]
    if "groups" in kinds:
        timed += [(shape, partial(calls_of_groups, *shape)) for shape in SHAPES_OF_GROUPS]
    for shape, calls in timed:
        text = "x".join(map(str, shape))
        for name, call in calls().items():
            sys.stdout.write(f"{text} {name}: {microseconds(call):.1f}\n")


if __name__ == "__main__":
    main()
