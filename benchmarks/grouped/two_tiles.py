"""Estimate the time of a launch with two tile sizes: one for small groups, one for large groups.

``python -m benchmarks.grouped.two_tiles RECORD FOLDER…`` reads folders of ``benchmarks.grouped.prepare``.
It times each kernel of a layer on all groups, on the groups up to a limit of rows, and on the larger groups.
The estimate of two tiles is the time on small groups, plus the time on large groups, less the time of a call
without rows, as one launch has that time once. The gain is the time of the best kernel on all groups over the
best estimate.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.grouped.compiling import compile_all, imported
from benchmarks.grouped.problems import Index, Problem
from benchmarks.grouped.timing import times_us
from benchmarks.grouped.workload import Call, Workload

SKEW = 1.0
"""Skew of the rows of groups: balanced groups would all take one tile."""
LIMITS = 16, 32, 64, 128
"""Rows up to which a group is small."""
NO_ROWS = "no rows"
ALL = "all"


@dataclass(frozen=True)
class Division:
    """The groups of a workload that one of two kernels computes; the others have no rows."""

    name: str
    work: Workload

    @classmethod
    def each_of(cls, work: Workload) -> Iterator[Division]:
        """Yield all groups, none of them, and the small and the large groups at each limit."""
        rows = [_rows(offs) for offs in work.offs if offs is not None]
        yield cls(ALL, work)
        yield cls(NO_ROWS, _divided(work, [each * 0 for each in rows]))
        for limit in LIMITS:
            small = [each * (each <= limit) for each in rows]
            if 0 < int(small[0].sum()) < int(rows[0].sum()):
                yield cls(f"up to {limit}", _divided(work, small))
                yield cls(f"from {limit + 1}", _divided(work, [each * (each > limit) for each in rows]))


def _rows(offs: Tensor) -> Tensor:
    return torch.diff(offs, prepend=offs.new_zeros(1))


def _divided(work: Workload, rows: Sequence[Tensor]) -> Workload:
    return replace(work, offs=[each.cumsum(0).to(torch.int32) for each in rows])


def estimates(us: dict[str, dict[str, float]]) -> Iterator[dict[str, Any]]:
    """Yield the estimate of each limit, from the microseconds of each division by kernel."""
    fixed = min(us[NO_ROWS].values())
    for limit in LIMITS:
        if (small := us.get(f"up to {limit}")) is not None:
            large = us[f"from {limit + 1}"]
            of_small, of_large = min(small, key=small.__getitem__), min(large, key=large.__getitem__)
            estimate = small[of_small] + large[of_large] - fixed
            yield {"limit": limit, "small": of_small, "large": of_large, "us": round(estimate, 2)}


def line_of(problem: Problem, work: Workload, modules: dict[str, ModuleType]) -> dict[str, Any]:
    """Return the times of all divisions of a problem's rows, and the estimates of two tiles."""
    us: dict[str, dict[str, float]] = {}
    for division in Division.each_of(work):
        arms: dict[str, Sequence[Call]] = {stem: division.work.calls(each) for stem, each in modules.items()}
        us[division.name] = {stem: round(time, 2) for stem, time in times_us(arms).items()}
    best = min(us[ALL], key=us[ALL].__getitem__)
    found = list(estimates(us))
    gain = us[ALL][best] / min((each["us"] for each in found), default=us[ALL][best])
    return {
        "problem": problem.name,
        "tokens": problem.tokens,
        "rows": [int(each) for each in _rows(work.offs[0]).cpu()] if work.offs[0] is not None else [],
        "best": best,
        "best_us": us[ALL][best],
        "gain": round(gain, 3),
        "two_tiles": found,
        "us": us,
    }


def main() -> None:
    """Time the layers and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 4096])
    given = parser.parse_args()
    head = {"card": torch.cuda.get_device_name(), "skew": SKEW}
    indexes = {folder: Index.read(folder) for folder in given.folders}
    labels = {stem: label for index in indexes.values() for stem, label in index.labels.items()}
    lines = list[dict[str, Any]]()
    for folder, index in indexes.items():
        for line in lines_of(folder, index, given.tokens):
            lines.append(line)
            write_record(given.record, {**head, "labels": labels, "lines": lines})


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write the record so far: a run that is ended by its time limit leaves the lines that it measured."""
    text = json.dumps(record, indent=1) + "\n"
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def lines_of(folder: Path, index: Index, tokens: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Compile the modules of a folder, and yield the line of each problem with these numbers of tokens."""
    routed = [each for each in index.prepared if each.problem.kind == "m_offsets"]
    failed = compile_all(folder, sorted({stem for each in routed for stem in each.modules}))
    for problem in (each.problem for each in routed if each.problem.tokens in tokens):
        of_layer = {stem for other in routed if other.problem.name == problem.name for stem in other.modules}
        modules = {stem: imported(folder, stem) for stem in sorted(of_layer - failed.keys())}
        weight = torch.empty(problem.groups, problem.n, problem.k, device="cuda", dtype=torch.bfloat16)
        work = Workload.routed(problem, weight.normal_(std=problem.k**-0.5), SKEW)
        line = line_of(problem, work, modules)
        sys.stdout.write(f"{problem.name} {problem.tokens}: {line['best_us']} us, gain {line['gain']}\n")
        sys.stdout.flush()
        yield line


if __name__ == "__main__":
    main()
