"""Time the kernels of a prepared folder beside torch._grouped_mm and torch.bmm on a Hopper GPU.

``python -m benchmarks.grouped.run FOLDER RECORD.jsonl`` appends a line for each point. A second run continues
the record: it leaves out the points that the record has, and the point in which the first run was killed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

from benchmarks.grouped.compiling import PROCESSES, compile_all, imported
from benchmarks.grouped.problems import Index, Prepared
from benchmarks.grouped.timing import READER, read_bandwidth, times_us
from benchmarks.grouped.workload import Call, Workload

TORCH = "torch"
"""The arm of torch."""
Timed = Callable[[Mapping[str, Sequence[Call]]], Mapping[str, float]]
"""Microseconds of a call of each arm."""


@dataclass(frozen=True)
class Point:
    """A problem with one division of its rows."""

    prepared: Prepared
    skew: float | None
    """Factor of the normal numbers by whose softmax rows are divided; None for batches."""

    @property
    def key(self) -> list[object]:
        """Name, rows and skew, which the record has once."""
        return [self.prepared.problem.name, self.prepared.problem.rows, self.skew]


def points(index: Index) -> Iterator[Point]:
    """Yield the points of an index, layer by layer."""
    for each in index.prepared:
        for skew in index.skews if each.problem.kind == "m_offsets" else (None,):
            yield Point(each, skew)


def measured(
    point: Point,
    work: Workload,
    module: Callable[[str], ModuleType],
    timed: Timed,
    failed: Collection[str] = (),
) -> dict[str, Any]:
    """Return the line of a point: the times of torch and of each kernel that is right.

    Times are in microseconds of a call, of kernels in the planner's order. Modules that `failed` to compile
    count as wrong.
    """
    problem, line = point.prepared.problem, {"key": point.key, **asdict(point.prepared.problem)}
    theirs = work.torch_calls()
    expected = cast(Tensor, theirs[0]()).clone()
    arms: dict[str, Sequence[Call]] = {TORCH: theirs}
    wrong = [
        stem for stem in point.prepared.modules if stem in failed or not work.is_right(module(stem), expected)
    ]
    right = [stem for stem in point.prepared.modules if stem not in wrong]
    arms |= {stem: work.calls(module(stem)) for stem in right}
    twins = point.prepared.dense.items()
    dense = {stem: twin for stem, twin in twins if stem in right and twin not in failed}
    arms |= {twin: work.dense_calls(module(twin)) for twin in dense.values()}
    del expected
    found = {name: round(us, 2) for name, us in timed(arms).items()}
    return {
        **line,
        "skew": point.skew,
        "active": work.active,
        "inputs": len(work.a),
        "flops": problem.flops,
        "first": point.prepared.modules[0],
        "torch_us": found[TORCH],
        "us": {stem: found[stem] for stem in right},
        "wrong": wrong,
        "dense_us": {stem: found[twin] for stem, twin in dense.items()},
    }


def header(index: Index, failed: Mapping[str, str], compile_seconds: float) -> dict[str, Any]:
    """Return the first line of a record: the machine, and the decisions of each module."""
    return {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": cast(Any, triton).__version__,
        "read_bytes_per_second": round(read_bandwidth()),
        "read_by": READER,
        "compile_seconds": round(compile_seconds, 1),
        "failed": failed,
        "labels": index.labels,
    }


def recorded(record: Path) -> tuple[list[dict[str, Any]], list[list[object]]]:
    """Return the lines of a record, which may not exist yet, and the keys of its points."""
    text = record.read_text(encoding="utf-8") if record.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return lines, [line["key"] for line in lines if "key" in line]


def append(record: Path, line: Mapping[str, Any]) -> None:
    """Write a line behind the others."""
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def workloads(group: Sequence[Point], device: torch.device) -> Iterator[tuple[Point, Workload]]:
    """Yield the points of one layer or shape with their tensors; a layer has its weights once."""
    problem = group[0].prepared.problem
    if problem.kind == "batched":
        yield from ((point, Workload.batched(point.prepared.problem, device)) for point in group)
        return
    weight = torch.empty(problem.groups, problem.n, problem.k, device=device, dtype=torch.bfloat16).normal_()
    for point in group:
        yield point, Workload.routed(point.prepared.problem, weight, cast(float, point.skew))


def main() -> None:
    """Compile and time the kernels, and write a line of the record for each point."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--budget-s", type=float, default=420, help="seconds after which no point begins")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that compile")
    parser.add_argument("--only", default="", help="problems whose name has this text")
    given = parser.parse_args()
    index = Index.read(given.folder)
    begun: Path = given.record.with_suffix(".begun")
    if begun.exists():  # a kernel that does not end is not tried again
        killed = {"key": json.loads(begun.read_text(encoding="utf-8")), "skipped": "the run was killed"}
        append(given.record, killed)
        begun.unlink()
    lines, done = recorded(given.record)
    wanted = [
        each for each in points(index) if given.only in each.prepared.problem.name and each.key not in done
    ]
    stems = {stem for each in wanted for stem in (*each.prepared.modules, *each.prepared.dense.values())}
    failed = compile_all(given.folder, sorted(stems), given.processes)
    compile_seconds = time.monotonic() - begin
    sys.stdout.write(f"{len(stems)} modules compiled in {compile_seconds:.0f} s, {len(failed)} failed\n")
    if not lines:
        append(given.record, header(index, failed, compile_seconds))

    modules = {stem: imported(given.folder, stem) for stem in stems if stem not in failed}
    gc.freeze()  # each capture of a graph collects garbage: what has been imported need not be looked at
    for name, layer in groupby(wanted, key=lambda each: each.prepared.problem.name):
        if time.monotonic() - begin > given.budget_s:
            sys.stdout.write(f"the time is up before {name}: run again to continue\n")
            return
        for point, work in workloads(list(layer), torch.device("cuda")):
            if time.monotonic() - begin > given.budget_s:
                sys.stdout.write(f"the time is up within {name}: run again to continue\n")
                return
            begun.write_text(json.dumps(point.key), encoding="utf-8")
            try:
                line = measured(point, work, modules.__getitem__, times_us, failed)
            except RuntimeError as error:  # torch refuses the call, or a kernel fails
                line = {"key": point.key, "skipped": str(error).splitlines()[0]}
            append(given.record, line)
            begun.unlink()
            sys.stdout.write(f"{time.monotonic() - begin:4.0f} s  {point.key} {told(line)}\n")
            sys.stdout.flush()
            torch.cuda.synchronize()  # raises if a kernel has ended the CUDA context: run again to continue
            del work
        torch.cuda.empty_cache()


def told(line: Mapping[str, Any]) -> str:
    """Return the speed of the first and of the best kernel over torch's, as text."""
    if not line.get("us"):
        return line.get("skipped", "no kernel is right")
    first, best = line["us"].get(line["first"]), min(line["us"].values())
    of_first = f"{line['torch_us'] / first:.3f}" if first else "wrong"
    return f"{line['torch_us']:.1f} us, first {of_first}, best {line['torch_us'] / best:.3f}"


if __name__ == "__main__":
    main()
