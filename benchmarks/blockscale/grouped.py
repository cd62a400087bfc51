"""Time kernels of experts with scales of blocks beside dense ones, torch, and a read of all weights.

``python -m benchmarks.blockscale.grouped FOLDER RECORD.jsonl`` appends a line for each problem of a folder of
``benchmarks.blockscale.prepare_experts``. A second run leaves out the problems that the record has. It needs
a Hopper GPU, torch and Triton, and neither the planner nor a network. The arms of a problem are timed in
turn, each in a CUDA graph:

* ``us``: the kernels of groups, in the planner's order; ``first`` is its first choice;
* ``dense_us``: for each of these, the dense kernel with scales of blocks of the same tile, for as many rows;
* ``torch_us``: ``torch._scaled_grouped_mm``, which has a scale for each row and column only;
* ``stream_us``: the time of a read of all weights and their scales at the measured bandwidth, and 3 us.
"""
# pyright: basic

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
import triton
from torch import Tensor

from benchmarks.blockscale.experts import Experts, Index, Prepared
from benchmarks.grouped.compiling import PROCESSES, imported
from benchmarks.grouped.timing import READER, read_bandwidth, times_us

BLOCK: Final = 128
"""Elements of K, and columns of B, of a block."""
LARGEST_ERROR: Final = 4e-3
"""Largest norm of the difference from the exact result, over its norm: D is bf16."""
CHECKED_GROUPS, CHECKED_ROWS = 3, 64
"""Groups that are compared, from the first to the last, and rows of each, at most."""
LAUNCH_US: Final = 3.0
"""Time to start and to end a kernel that only reads."""
E4M3 = torch.float8_e4m3fn
Timed = Callable[[Mapping[str, Sequence[Callable[[], object]]]], Mapping[str, float]]


@dataclass(frozen=True)
class Inputs:
    """A [T, K] and B [G, K, N] of e4m3 with their scales, as the kernels read them."""

    a: Tensor
    b: Tensor
    a_scale: Tensor
    """[T, blocks of K], contiguous along T."""
    b_scale: Tensor
    """[G, blocks of N, blocks of K], in rows of a multiple of 4."""
    offs: Tensor
    d: Tensor

    @classmethod
    def drawn(cls, problem: Experts, device: str = "cuda") -> Inputs:
        """Return random inputs, with the scales that quantized normal numbers have."""
        m, n, k, blocks = problem.all_rows, problem.n, problem.k, -(-problem.k // BLOCK)

        def elements(rows: int) -> Tensor:
            found = torch.empty(rows, k, device=device, dtype=E4M3)
            for part in found.split(1 << 14):  # fp32 numbers of a part at a time
                part.copy_(torch.randn(part.shape, device=device).clamp_(-4, 4).mul_(100))
            return found

        of_a = torch.rand(blocks, -(-m // 4) * 4, device=device).add_(0.5).div_(100)
        of_b = torch.rand(problem.groups, -(-n // BLOCK), -(-blocks // 4) * 4, device=device)
        ends = problem.rows * torch.arange(1, problem.groups + 1, device=device)
        return cls(
            a=elements(m),
            b=elements(problem.groups * n).view(problem.groups, n, k).mT,
            a_scale=of_a[:, :m].T,
            b_scale=of_b.add_(0.5).div_(100)[..., :blocks],
            offs=ends.to(torch.int32),
            d=torch.empty(m, n, device=device, dtype=torch.bfloat16),
        )

    def call(self, module: ModuleType) -> Callable[[], Tensor]:
        """Return the call of a kernel of groups."""
        scales = {"a_scale": self.a_scale, "b_scale": self.b_scale}
        return partial(module.matmul, self.a, self.b, **scales, offs=self.offs, out=self.d)

    def dense_call(self, module: ModuleType) -> Callable[[], Tensor]:
        """Return the call of a dense kernel for all rows and the first B."""
        scales = {"a_scale": self.a_scale, "b_scale": self.b_scale[0]}
        return partial(module.matmul, self.a, self.b[0], **scales, out=self.d)

    def torch_call(self) -> Callable[[], Tensor]:
        """Return torch's call with a scale for each row of A and each column of B."""
        function: Any = torch
        return partial(
            function._scaled_grouped_mm,
            self.a,
            self.b,
            self.a_scale.new_ones(len(self.a)),
            self.b_scale.new_ones(len(self.b), self.b.shape[-1]),
            offs=self.offs,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    def exact(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the first rows of some groups, and the exact products of these rows."""
        count = len(self.b)
        rows = len(self.a) // count
        for group in sorted({*range(0, count, max(1, count // CHECKED_GROUPS)), count - 1}):
            own = slice(group * rows, group * rows + min(rows, CHECKED_ROWS))
            b, of_b = self.b[group].mT.float(), self.b_scale[group]
            k = b.shape[1]
            b *= of_b.repeat_interleave(BLOCK, 0)[: len(b)].repeat_interleave(BLOCK, 1)[:, :k]
            a = self.a[own].float() * self.a_scale[own].repeat_interleave(BLOCK, 1)[:, :k]
            yield own, a @ b.T


def error_of(d: Tensor, exact: Sequence[tuple[slice, Tensor]]) -> float:
    """Return the largest norm of the difference from the exact rows of a group, over their norm."""
    return max(((d[own].float() - rows).norm() / rows.norm()).item() for own, rows in exact)


def compiled(folder: Path, stem: str) -> str:
    """Call a module once on a small problem, and return the reason if it fails."""
    try:
        inputs, module = Inputs.drawn(Experts(2, 5, 256, 512)), imported(folder, stem)
        (inputs.dense_call if stem.startswith("dense") else inputs.call)(module)()
        torch.cuda.synchronize()
    except Exception as error:  # whatever the compiler or the driver raises is recorded
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""


def compile_all(folder: Path, stems: Sequence[str], processes: int) -> dict[str, str]:
    """Compile modules, and return the reasons of those that fail by their names."""
    spawning = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool:
        waiting = {stem: pool.submit(compiled, folder, stem) for stem in stems}
        return {stem: reason for stem, each in waiting.items() if (reason := each.result())}


def measured(
    point: Prepared,
    inputs: Inputs,
    module: Callable[[str], ModuleType],
    timed: Timed,
    read_bytes_per_second: float,
    failed: Mapping[str, str],
) -> dict[str, Any]:
    """Return the line of a problem: microseconds of each arm, and the errors of the kernels of groups."""
    exact, errors, wrong = list(inputs.exact()), dict[str, float](), dict[str, str]()
    arms: dict[str, Sequence[Callable[[], object]]] = {}
    for stem in point.modules:
        if stem in failed:
            wrong[stem] = failed[stem]
            continue
        inputs.d.fill_(float("nan"))
        call = inputs.call(module(stem))
        call()
        errors[stem] = error_of(inputs.d, exact)
        if errors[stem] <= LARGEST_ERROR:
            arms[stem] = [call]
        else:
            wrong[stem] = f"relative error {errors[stem]:.2e}"
    right = list(arms)
    dense = {stem: twin for stem, twin in point.dense.items() if stem in right and twin not in failed}
    arms |= {twin: [inputs.dense_call(module(twin))] for twin in dense.values()}
    try:
        theirs = inputs.torch_call()
        theirs()
        arms["torch"] = [theirs]
    except (RuntimeError, AttributeError, TypeError) as error:
        wrong["torch"] = (str(error).splitlines() or [""])[0]
    found = {name: round(us, 2) for name, us in timed(arms).items()}
    stream_us = point.problem.weight_bytes / read_bytes_per_second * 1e6 + LAUNCH_US
    return {
        **asdict(point.problem),
        "flops": point.problem.flops,
        "weight_bytes": point.problem.weight_bytes,
        "first": point.modules[0],
        "us": {stem: found[stem] for stem in right},
        "dense_us": {stem: found[twin] for stem, twin in dense.items()},
        "torch_us": found.get("torch"),
        "stream_us": round(stream_us, 2),
        "errors": errors,
        "wrong": wrong,
    }


def told(line: Mapping[str, Any]) -> str:
    """Return a line of a record in few words: the speed of the first and of the best kernel over others."""
    size = f"{line['groups']} x {line['rows']:>4} x {line['n']} x {line['k']}"
    if not line["us"]:
        return f"{size}: no kernel is right {line['wrong']}"
    best = min(line["us"], key=line["us"].__getitem__)

    def ratio(us: float | None, stem: str) -> str:
        return f"{us / line['us'][stem]:.3f}" if us and stem in line["us"] else "-"

    words = [
        f"{name} {line['us'].get(stem, '-')} us, of dense {ratio(line['dense_us'].get(stem), stem)}, "
        f"of torch {ratio(line['torch_us'], stem)}, of the stream {ratio(line['stream_us'], stem)}"
        for name, stem in (("first", line["first"]), ("best", best))
    ]
    return f"{size}: {'; '.join(words)} {line['wrong'] or ''}"


def main() -> None:
    """Compile and time the kernels, and write a line of the record for each problem."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument(
        "--budget-s", type=float, default=80, help="seconds after which no problem begins (80)"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that compile")
    given = parser.parse_args()
    index = Index.read(given.folder)
    lines = given.record.read_text(encoding="utf-8").splitlines() if given.record.exists() else []
    heads = [line for line in map(json.loads, lines) if "card" in line]
    known = [
        [line[name] for name in ("groups", "rows", "n", "k")]
        for line in map(json.loads, lines)
        if "us" in line
    ]
    wanted = [each for each in index.prepared if [*asdict(each.problem).values()] not in known]
    stems = {stem for each in wanted for stem in (*each.modules, *each.dense.values())}
    failed = compile_all(given.folder, sorted(stems), given.processes)
    sys.stdout.write(f"{len(stems)} modules in {time.monotonic() - begin:.0f} s, {len(failed)} failed\n")
    bandwidth = heads[0]["read_bytes_per_second"] if heads else round(read_bandwidth())
    with given.record.open("a", encoding="utf-8") as record:
        if not heads:
            versions = {"torch": torch.__version__, "triton": triton.__version__}
            machine = {"card": torch.cuda.get_device_name(), **versions, "read_by": READER}
            labels = {"labels": index.labels, "failed": failed}
            record.write(json.dumps({**machine, "read_bytes_per_second": bandwidth, **labels}) + "\n")
        for point in wanted:
            if time.monotonic() - begin > given.budget_s:
                sys.stdout.write("the time is up: run again to continue\n")
                return
            inputs = Inputs.drawn(point.problem)
            line = measured(point, inputs, partial(imported, given.folder), times_us, bandwidth, failed)
            del inputs
            torch.cuda.empty_cache()
            record.write(json.dumps(line) + "\n")
            record.flush()
            sys.stdout.write(f"{time.monotonic() - begin:3.0f} s  {told(line)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
