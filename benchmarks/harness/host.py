"""The host's time of an eager call: of torch.matmul, of generated modules, and of their operators.

    python benchmarks/harness/host.py OUT.json

Needs a Hopper GPU and no gemmgen. The shapes are so small that the GPU finishes before the host, and the
queue is empty at the beginning of a batch of calls. One K is long, and a batch does not fill the queue there
either.
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

GENERATED = Path(__file__).parents[2] / "generated"
SHAPES = {
    "h100_bf16": (128, 256, 64),
    "h100_bf16_rows8": (8, 64, 256),
    "h100_bf16_rows16_split2": (16, 128, 512),
    "h100_bf16_bias_gelu": (128, 256, 64),
    "h100_bf16_residual": (128, 256, 64),
    "h100_e4m3_scaled": (128, 256, 128),
    "h100_bf16_split8_bias": (128, 256, 1024),
    "h100_bf16_split8_parallel": (128, 128, 16384),
}
"""M, N and K for each module: a tile or two. That of two kernels has a K for which torch launches two too."""
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
    """Return the timed calls of one module by name, on equal matrices; torch multiplies them in bf16."""
    made = module(stem)
    extents = dict(zip("MNK1", (*SHAPES[stem], 1), strict=True))
    given: dict[str, torch.Tensor] = {}
    for name, (dtype, axes, *_) in made.ARGUMENTS.items():
        # B as the transposed view of what lies in memory row by row.
        shape = [extents[axis] for axis in (axes[::-1] if name == "b" else axes)]
        tensor = torch.randn(shape, device="cuda").to(dtype)
        given[name] = tensor.T if name == "b" else tensor
    a, b, out = (given.pop(name) for name in ("a", "b", "out"))
    a16, b16, out16 = (tensor.bfloat16() for tensor in (a, b, out))
    matmul, operator = made.matmul, getattr(torch.ops.gemmgen, stem)
    timed: dict[str, Call] = {
        "torch.matmul": lambda: torch.matmul(a16, b16),
        "torch.matmul out=": lambda: torch.matmul(a16, b16, out=out16),
        "module": lambda: matmul(a, b, **given),
        "module out=": lambda: matmul(a, b, **given, out=out),
        "operator": lambda: operator(a, b, **given),
        "operator out=": lambda: operator.out(a, b, **given, out=out),
    }
    expected = timed["torch.matmul"]() if not given else matmul(a, b, **given)
    for name, call in timed.items():
        result = call()
        found = out if result is None else result  # the operator that writes into `out` returns nothing
        if not (given and name.startswith("torch")):
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-1, msg=f"{stem}: {name}")
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
    """Return the samples of each call, taken in alternation."""
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
