"""The host's time of an eager call of a library, beside its kernel's own and torch's: prints JSON.

After ``make libraries``, on a Hopper GPU:
``PYTHONPATH=build/libraries python -m benchmarks.harness.library_host``.
Each figure is a median time from a call to its return, over rounds in which the calls alternate; the GPU is
idle before each round, and the shapes are so small that the queue never fills. A round has all shapes, and
there are many rounds: a shared host is slower for seconds at a time, by up to two thirds.
"""

import importlib
import json
import statistics
import time
from collections.abc import Callable

import torch
import triton

ROUNDS, CALLS = 400, 50
SHAPES = ((1, 4096, 4096), (16, 6144, 4096), (256, 4096, 4096), (128, 128, 16384), (1000, 4096, 4096))
"""The last one is tuned for no M of its own."""


def seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call on the host, in seconds."""
    torch.cuda.synchronize()
    found = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(found)


def arms(m: int, n: int, k: int) -> dict[str, Callable[[], object]]:
    """Return the calls of a shape, with and without ``out``."""
    library = importlib.import_module("h200_bf16")
    kernel = importlib.import_module(f"h200_bf16.{library.choose(m, n, k).kernel}")
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).T
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return {
        "torch out": lambda: torch.matmul(a, b, out=out),
        "kernel out": lambda: kernel.matmul(a, b, out=out),
        "library out": lambda: library.matmul(a, b, out=out),
        "operator out": lambda: library.OPERATOR.out(a, b, out=out),
        "torch": lambda: torch.matmul(a, b),
        "kernel": lambda: kernel.matmul(a, b),
        "library": lambda: library.matmul(a, b),
        "operator": lambda: library.OPERATOR(a, b),
    }


def measured() -> dict[str, dict[str, float]]:
    """Return microseconds by shape and arm."""
    shapes = {"x".join(map(str, shape)): arms(*shape) for shape in SHAPES}
    rounds: dict[str, dict[str, list[float]]] = {
        shape: {name: [] for name in calls} for shape, calls in shapes.items()
    }
    for calls in shapes.values():
        for call in calls.values():
            seconds(call)  # compiles, chooses
    for _ in range(ROUNDS):
        for shape, calls in shapes.items():
            for name, call in calls.items():
                rounds[shape][name].append(seconds(call))
    return {
        shape: {name: round(statistics.median(found) * 1e6, 3) for name, found in samples.items()}
        for shape, samples in rounds.items()
    }


if __name__ == "__main__":
    record = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "rounds": ROUNDS,
        "calls": CALLS,
        "microseconds": measured(),
    }
    print(json.dumps(record, indent=2))
