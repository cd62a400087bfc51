"""Time the backward of a gate and gates that save their sums beside torch, on a Hopper GPU.

    python benchmarks/reading/gated_backward.py

prints microseconds, medians of 50 launches after 20 to warm up. torch multiplies with cuBLAS and runs the
elementwise part as one kernel of torch.compile, as a user would.
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

sys.path.insert(0, str(Path(__file__).parents[2] / "generated"))
any_torch: Any = torch
SHAPES = ((8192, 6144, 4096), (8192, 14336, 4096), (2048, 6144, 4096))
FORWARD = ("h100_bf16_gated", "h100_bf16_gated_saved", "h100_bf16_saved_interleaved")
BACKWARD = ("h100_bf16_dgated", "h100_bf16_dgated_interleaved", "h100_bf16_dgated_geglu")


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


def main() -> None:
    """Print a line for each call and shape."""
    for m, n, k in SHAPES:
        for name, call in calls_of(m, n, k).items():
            sys.stdout.write(f"{m}x{n}x{k} {name}: {microseconds(call):.1f}\n")


if __name__ == "__main__":
    main()
