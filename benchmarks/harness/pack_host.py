"""The host's time of a call of a pack beside torch's, at new addresses, and of a first call: prints JSON.

After ``gemmgen pack specs/h100_bf16.yaml --name pack_host --out build``, on a Hopper GPU:
``PYTHONPATH=build python -m benchmarks.harness.pack_host``. Triton is blocked: a pack does not need it.
Each figure is a median over rounds in which the calls alternate. The GPU is idle before each round, and the
calls are so few and small that its queue never fills. No tensor of a round has an address of another one.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

ROUNDS, CALLS = 40, 50
M, N, K = 8, 512, 512


def milliseconds_of_first_call(call: Callable[[], object]) -> float:
    """Return the time of a first call, with that of its kernel."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def microseconds(call: Callable[[Tensor], object]) -> float:
    """Return the median time of a call on the host with an A that no call has had."""
    inputs = [torch.randn(M, K, device="cuda", dtype=torch.bfloat16) for _ in range(CALLS)]
    torch.cuda.synchronize()
    found: list[float] = []
    for a in inputs:
        start = time.perf_counter()
        call(a)
        found.append(1e6 * (time.perf_counter() - start))
    torch.cuda.synchronize()
    return statistics.median(found)


def main() -> None:
    """Measure, and print a record."""
    sys.modules["triton"] = None  # pyright: ignore[reportArgumentType] - an import of it fails then
    matmul = import_module("pack_host.h100_bf16").matmul
    a, b = (torch.randn(rows, K, device="cuda", dtype=torch.bfloat16) for rows in (M, N))
    out = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    torch.matmul(a, b.T)
    first = milliseconds_of_first_call(lambda: matmul(a, b.T))
    arms: dict[str, Callable[[Tensor], object]] = {
        "pack, out given": lambda a: matmul(a, b.T, out=out),
        "torch, out given": lambda a: torch.matmul(a, b.T, out=out),
        "pack, a new D": lambda a: matmul(a, b.T),
        "torch, a new D": lambda a: torch.matmul(a, b.T),
    }
    rounds = [{name: microseconds(call) for name, call in arms.items()} for _ in range(ROUNDS)]
    record = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "shape": [M, N, K],
        "first_call_ms": round(first, 1),
        "call_us": {name: round(statistics.median(each[name] for each in rounds), 2) for name in arms},
    }
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
