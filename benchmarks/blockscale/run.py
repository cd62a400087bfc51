"""Time the kernels of a prepared folder beside torch's matmul with scales of blocks, on a Hopper GPU.

``python -m benchmarks.blockscale.run FOLDER RECORD.jsonl`` appends a line for each shape. A second run leaves
out the shapes that the record has. The arms of a shape are timed in turn, each in a CUDA graph:

* ``torch``: ``torch._scaled_mm`` with scales of 1 x 128 and 128 x 128;
* ``blocks``: the kernels of this project with the same scales;
* ``early``: such kernels of few rows that load their weights before the kernel ahead has ended (PDL);
* ``plain``: a kernel without scales and promotion.
"""
# pyright: basic

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.blockscale.prepare import INDEX, SCALED
from benchmarks.grouped.compiling import PROCESSES, imported
from benchmarks.grouped.timing import times_us

BLOCK = 128
"""Elements of K, and columns of B, of a block."""
LARGEST_ERROR = 4e-3
"""Largest norm of the difference from the exact result, over its norm: D is bf16."""
CHECKED_ROWS = 512
"""Rows of D that are compared, at most."""
L2_BYTES = 120 << 20
"""Bytes of all inputs of an arm at least: calls in turn then find little in L2."""
MOST_INPUTS = 16
E4M3 = torch.float8_e4m3fn
Calls = Sequence[Callable[[], object]]
"""A call on each set of inputs."""


@dataclass(frozen=True)
class Inputs:
    """A [M, K] and B [K, N] of e4m3 with their scales, as the kernels read them."""

    a: Tensor
    b: Tensor
    a_scale: Tensor
    """[M, blocks of K], contiguous along M."""
    b_scale: Tensor
    """[blocks of N, blocks of K], in rows of a multiple of 4."""
    d: Tensor

    @classmethod
    def drawn(cls, m: int, n: int, k: int) -> Inputs:
        """Return random inputs, with the scales that quantized normal numbers have."""
        blocks, device = -(-k // BLOCK), "cuda"

        def elements(rows: int) -> Tensor:
            return torch.randn(rows, k, device=device).clamp_(-4, 4).mul_(100).to(E4M3)

        of_a = torch.rand(blocks, -(-m // 4) * 4, device=device).add_(0.5).div_(100)
        of_b = torch.rand(-(-n // BLOCK), -(-blocks // 4) * 4, device=device).add_(0.5).div_(100)
        d = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        return cls(elements(m), elements(n).T, of_a[:, :m].T, of_b[:, :blocks], d)

    @property
    def scales(self) -> dict[str, Tensor]:
        """The keyword arguments of a kernel with scales of blocks."""
        return {"a_scale": self.a_scale, "b_scale": self.b_scale}

    def exact(self) -> Tensor:
        """Return the first rows of the product of the dequantized operands, in fp32."""
        a, rows = self.a[:CHECKED_ROWS].float(), self.a_scale[:CHECKED_ROWS]
        b = self.b.T.float()
        a *= rows.repeat_interleave(BLOCK, 1)[:, : a.shape[1]]
        b *= self.b_scale.repeat_interleave(BLOCK, 0)[: len(b)].repeat_interleave(BLOCK, 1)[:, : b.shape[1]]
        return a @ b.T

    def torch_call(self) -> Callable[[], Tensor]:
        """Return torch's call with the same scales."""
        scale_a = self.a_scale.T.contiguous().T
        function: Any = torch
        return partial(
            function._scaled_mm,
            self.a,
            self.b,
            scale_a=scale_a,
            scale_b=self.b_scale.T,
            out_dtype=torch.bfloat16,
            out=self.d,
        )


def error_of(d: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference from the exact first rows, over their norm."""
    found = d[: len(exact)].float()
    return ((found - exact).norm() / exact.norm()).item()


def compiled(folder: Path, stem: str, has_scales: bool) -> str:
    """Call a module once, and return the reason if it fails."""
    try:
        inputs = Inputs.drawn(16, 256, 512)
        imported(folder, stem).matmul(inputs.a, inputs.b, **(inputs.scales if has_scales else {}))
        torch.cuda.synchronize()
    except Exception as error:  # whatever the compiler or the driver raises is recorded
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""


def compile_all(folder: Path, index: dict[str, Any], processes: int) -> dict[str, str]:
    """Compile all modules, and return the reasons of those that fail by their names."""
    of_arms = [each["modules"] for each in index["points"]]
    stems = {stem: arm in SCALED for arms in of_arms for arm in arms for stem in arms[arm]}
    spawning = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool:
        waiting = {stem: pool.submit(compiled, folder, stem, scaled) for stem, scaled in stems.items()}
        return {stem: reason for stem, each in waiting.items() if (reason := each.result())}


def arms_of(
    modules: dict[str, list[str]], module: Callable[[str], ModuleType], sets: list[Inputs]
) -> Iterator[tuple[str, Calls]]:
    """Yield the name of each arm of this project, and its calls, one for each set of inputs."""
    for arm, stems in modules.items():
        for stem in stems:
            matmul = module(stem).matmul
            yield (
                f"{arm} {stem}",
                [
                    partial(matmul, each.a, each.b, **(each.scales if arm in SCALED else {}), out=each.d)
                    for each in sets
                ],
            )


def measured(point: dict[str, Any], module: Callable[[str], ModuleType], failed: set[str]) -> dict[str, Any]:
    """Return the line of a shape: the microseconds of each arm, and the errors of arms with scales."""
    m, n, k = point["shape"]
    size = m * k + n * k + 2 * m * n
    sets = [Inputs.drawn(m, n, k) for _ in range(max(1, min(MOST_INPUTS, L2_BYTES // size)))]
    exact = sets[0].exact()
    arms, errors, wrong = dict[str, Calls](), dict[str, float](), dict[str, str]()
    names = {arm: [stem for stem in stems if stem not in failed] for arm, stems in point["modules"].items()}
    torch_calls: Calls = [each.torch_call() for each in sets]
    for name, calls in (("torch", torch_calls), *arms_of(names, module, sets)):
        try:
            sets[0].d.fill_(float("nan"))
            calls[0]()
            torch.cuda.synchronize()
        except RuntimeError as error:
            wrong[name] = str(error).splitlines()[0]
            continue
        if not name.startswith("plain"):
            errors[name] = error_of(sets[0].d, exact)
            if not errors[name] <= LARGEST_ERROR:
                wrong[name] = f"relative error {errors[name]:.2e}"
                continue
        arms[name] = calls
    found = {name: round(us, 2) for name, us in times_us(arms).items()}
    return {"shape": [m, n, k], "inputs": len(sets), "us": found, "errors": errors, "wrong": wrong}


def told(line: dict[str, Any]) -> str:
    """Return a line of a record in few words: the fastest kernel, and its ratio to each other kind."""
    of_kind = dict[str, float]()
    for name, us in line["us"].items():
        kind = name.split()[0]
        of_kind[kind] = min(us, of_kind.get(kind, us))
    ours = of_kind.get("blocks")
    ratios = {kind: round(us / ours, 3) for kind, us in of_kind.items() if ours and kind != "blocks"}
    m, n, k = line["shape"]
    return f"{m}x{n}x{k} {ours} us, of others {ratios} {line['wrong'] or ''}"


def main() -> None:
    """Compile and time the kernels, and write a line of the record for each shape."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--budget-s", type=float, default=420, help="seconds after which no shape begins")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that compile")
    given = parser.parse_args()
    index = json.loads((given.folder / INDEX).read_text(encoding="utf-8"))
    failed = compile_all(given.folder, index, given.processes)
    lines = given.record.read_text(encoding="utf-8").splitlines() if given.record.exists() else []
    known = [line["shape"] for line in map(json.loads, lines) if "shape" in line]
    module = partial(imported, given.folder)
    with given.record.open("a", encoding="utf-8") as record:
        if not lines:
            card, version = torch.cuda.get_device_name(), triton.__version__
            head = {"card": card, "torch": torch.__version__, "triton": version, "labels": index["labels"]}
            record.write(json.dumps(head | {"failed": failed}) + "\n")
        for point in index["points"]:
            if point["shape"] in known or time.monotonic() - begin > given.budget_s:
                continue
            line = measured(point, module, set(failed))
            record.write(json.dumps(line) + "\n")
            record.flush()
            sys.stdout.write(told(line) + "\n")


if __name__ == "__main__":
    main()
