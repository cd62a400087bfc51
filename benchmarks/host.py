"""What an eager call costs the host: of torch.matmul, of generated modules, and of their operators.

    python benchmarks/host.py OUT.json

Needs a Hopper GPU and no gemmgen. The shapes are so small that the GPU is done before the host is, and the
queue is empty when a batch of calls begins.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingTypeStubs]

GENERATED = Path(__file__).parent.parent / "generated"
SHAPES = {
    "h100_bf16": (128, 256, 64),
    "h100_bf16_rows8": (8, 64, 256),
    "h100_bf16_rows16_split2": (16, 128, 512),
}
"""M, N and K for each module: a tile or two."""
REPETITIONS = 15
CALLS = 200
"""In a batch: fewer than a stream queues before the host has to wait."""

Call = Callable[[], object]


def module(stem: str) -> Any:
    """Return a generated module, imported by its path."""
    spec = importlib.util.spec_from_file_location(stem, GENERATED / f"{stem}.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[stem] = made
    spec.loader.exec_module(made)
    return made


def calls(stem: str) -> dict[str, Call]:
    """Return what is timed for one module, by name, each with the same matrices."""
    m, n, k = SHAPES[stem]
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = torch.randn(n, k, device="cuda").bfloat16().T
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    matmul = module(stem).matmul
    timed: dict[str, Call] = {
        "torch.matmul": lambda: torch.matmul(a, b),
        "torch.matmul out=": lambda: torch.matmul(a, b, out=out),
        "module": lambda: matmul(a, b),
        "module out=": lambda: matmul(a, b, out=out),
    }
    operator = getattr(torch.ops.gemmgen, stem, None)
    if operator is not None:
        timed["operator"] = lambda: operator(a, b)
        timed["operator out="] = lambda: operator.out(a, b, out=out)
    for name, call in timed.items():
        result = call()
        found = out if result is None else result  # the operator that writes into `out` returns nothing
        torch.testing.assert_close(found, a @ b, rtol=2e-2, atol=2e-1, msg=f"{stem}: {name}")
    return timed


def microseconds(call: Call) -> float:
    """Return the host's time of a call in a batch that begins with an empty queue."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / CALLS * 1e6


def measured(stem: str) -> dict[str, list[float]]:
    """Return the samples of each call, taken by turns."""
    timed = calls(stem)
    samples: dict[str, list[float]] = {name: [] for name in timed}
    for call in timed.values():
        microseconds(call)  # compiled, prepared, and the allocator's blocks cut
    for _ in range(REPETITIONS):
        for name, call in timed.items():
            samples[name].append(round(microseconds(call), 3))
    return samples


def main() -> None:
    """Measure all modules, print the medians, and write every sample."""
    (out,) = sys.argv[1:]
    host = {stem: measured(stem) for stem in SHAPES}
    for stem, samples in host.items():
        medians = {name: statistics.median(found) for name, found in samples.items()}
        for name, median in medians.items():
            base = medians["torch.matmul out=" if name.endswith("out=") else "torch.matmul"]
            line = f"{stem:26} {name:18} {median:7.2f} us  {median / base:5.2f} of torch.matmul's"
            sys.stdout.write(f"{line}\n")
    record = {
        "gpu": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "calls": CALLS,
        "shapes": SHAPES,
        "microseconds": host,
    }
    Path(out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
