"""The host's time of a call beside torch's own, at new and at known addresses, and of a first call.

On a Hopper GPU, with a generated module, a packed one or a library on the path, of bf16 without an epilogue:
``python -m benchmarks.harness.host MODULE…``. It prints JSON. ``--without-triton`` blocks Triton, which
a pack does not need. A module whose `matmul` takes ``offs`` multiplies groups, beside torch's grouped_mm; one
that takes ``a_scale`` multiplies e4m3 with scales of blocks, beside torch's _scaled_mm.

Each figure is a median over rounds in which the calls of all modules alternate: the first seconds of a
process take the host longer. The GPU is idle before each round, and the calls are so few and small that its
queue never fills. With new addresses, no A of a round has had a call.
"""

import argparse
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

ROUNDS, CALLS = 40, 50
M, N, K, GROUPS, BLOCK = 8, 512, 512, 4, 128

Call = Callable[[Tensor], object]


def milliseconds_of_first_call(call: Callable[[], object]) -> float:
    """Return the time of a first call, with that of its kernel."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def microseconds(call: Call, inputs: list[Tensor]) -> float:
    """Return the median time of a call on the host, with each input in turn."""
    torch.cuda.synchronize()
    found: list[float] = []
    for a in inputs:
        start = time.perf_counter()
        call(a)
        found.append(1e6 * (time.perf_counter() - start))
    torch.cuda.synchronize()
    return statistics.median(found)


def new(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return a random matrix."""
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16).to(dtype)


def calls_of(matmul: Callable[..., Any], parameters: Collection[str]) -> dict[str, Call]:
    """Return the calls to compare: ours and torch's, with `out` and without it where torch takes one."""
    if "a_scale" in parameters:
        weight, out = new(N, K, torch.float8_e4m3fn).T, new(M, N)
        a_scale = torch.rand(K // BLOCK, M, device="cuda").T
        b_scale = torch.rand(N // BLOCK, K // BLOCK, device="cuda")
        scales = {"a_scale": a_scale, "b_scale": b_scale}
        torchs = {"scale_a": a_scale, "scale_b": b_scale.T, "out_dtype": torch.bfloat16}
        scaled_mm = getattr(torch, "_scaled_mm")  # noqa: B009 - private, and what torch has for such scales
        return {
            "ours, out given": lambda a: matmul(a, weight, **scales, out=out),
            "torch, out given": lambda a: scaled_mm(a, weight, **torchs, out=out),
            "ours, a new D": lambda a: matmul(a, weight, **scales),
            "torch, a new D": lambda a: scaled_mm(a, weight, **torchs),
        }
    if "offs" in parameters:
        weights = torch.randn(GROUPS, N, K, device="cuda", dtype=torch.bfloat16)
        offs = torch.arange(1, GROUPS + 1, device="cuda", dtype=torch.int32) * (M // GROUPS)
        grouped_mm = torch.nn.functional.grouped_mm
        return {
            "ours, a new D": lambda a: matmul(a, weights.mT, offs=offs),
            "torch, a new D": lambda a: grouped_mm(a, weights.mT, offs=offs),
        }
    weight, out = new(N, K), new(M, N)
    return {
        "ours, out given": lambda a: matmul(a, weight.T, out=out),
        "torch, out given": lambda a: torch.matmul(a, weight.T, out=out),
        "ours, a new D": lambda a: matmul(a, weight.T),
        "torch, a new D": lambda a: torch.matmul(a, weight.T),
    }


class Measured:
    """The figures of a module: of its import, its first call, and its calls beside torch's."""

    def __init__(self, name: str) -> None:
        """Import a module, and call it and torch once."""
        start = time.perf_counter()
        matmul = import_module(name).matmul
        self.import_ms = 1e3 * (time.perf_counter() - start)
        parameters = inspect.signature(matmul).parameters
        self.dtype = torch.float8_e4m3fn if "a_scale" in parameters else torch.bfloat16
        self.calls, self.known = calls_of(matmul, parameters), new(M, K, self.dtype)
        for label, call in self.calls.items():
            if "torch" in label:
                call(self.known)
        ours = next(iter(self.calls.values()))
        self.first_call_ms = milliseconds_of_first_call(lambda: ours(self.known))
        self.rounds: list[dict[str, float]] = []

    def measure(self) -> None:
        """Time all calls in one more round."""
        found: dict[str, float] = {}
        for label, call in self.calls.items():
            inputs = [new(M, K, self.dtype) for _ in range(CALLS)]
            found[f"{label}, new addresses"] = microseconds(call, inputs)
            found[f"{label}, known addresses"] = microseconds(call, [self.known] * CALLS)
        self.rounds.append(found)

    def figures(self) -> dict[str, object]:
        """Return the medians of the rounds."""
        labels = self.rounds[0]
        return {
            "import_ms": round(self.import_ms, 1),
            "first_call_ms": round(self.first_call_ms, 1),
            "call_us": {
                label: round(statistics.median(each[label] for each in self.rounds), 2) for label in labels
            },
        }


def main() -> None:
    """Measure, and print a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--without-triton", action="store_true")
    arguments = parser.parse_args()
    if arguments.without_triton:
        sys.modules["triton"] = None  # pyright: ignore[reportArgumentType] - an import of it fails then
    modules = {name: Measured(name) for name in arguments.modules}
    for _ in range(ROUNDS):
        for each in modules.values():
            each.measure()
    record = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": None if arguments.without_triton else import_module("triton").__version__,
        "shape": [M, N, K],
        "modules": {name: each.figures() for name, each in modules.items()},
    }
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
