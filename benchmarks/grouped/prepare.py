"""Render the kernels that the planner ranks first for each problem of the suite; needs no GPU.

``python -m benchmarks.grouped.prepare FOLDER`` writes the modules, their launcher and the index.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, Final, cast

from ruamel.yaml import YAML

from benchmarks.grouped.problems import Index, Prepared, Problem
from gemmgen.errors import GemmgenError
from gemmgen.launcher_file import LAUNCHER, launcher_text
from gemmgen.plan.decisions import statements
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import family_for, rank
from gemmgen.render import render
from gemmgen.spec import SpecFile
from gemmgen.spec.model import spec_of
from gemmgen.tune.candidates import TuningTarget

SUITE = Path(__file__).parent / "moe.yaml"
FIRST = 8
"""Kernels of each problem."""
GPU_BYTES = 70e9
"""Memory that a problem may take."""
OPERANDS: Final = {
    "a": {"dtype": "bf16", "major": "k"},
    "b": {"dtype": "bf16", "major": "k"},
    "d": {"dtype": "bf16"},
}
TITLES: Final = {
    "m_offsets": "bf16 matmul of the experts of a mixture",
    "batched": "bf16 matmul of batches",
    "dense": "bf16 matmul with the tile of a kernel of groups",
}
NO_SPEC: Final = "0" * 64
"""Stands for the hash of a spec: no file has the spec of a rendered kernel."""


def read_suite() -> dict[str, Any]:
    """Return the committed suite."""
    return cast(Any, YAML(typ="safe", pure=True)).load(SUITE)


def problems(suite: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of a suite that fit into the memory of a GPU, one layer after the other."""
    for groups, rows, n, k in suite["batched"]:
        yield Problem(f"bmm {groups}x{rows}x{n}x{k}", "batched", groups, rows, n, k)
    for model, layer in suite["experts"].items():
        for projection in ("up", "down"):
            n, k = layer[projection]
            for tokens in suite["tokens"]:
                rows = tokens * layer["top_k"]
                found = Problem(
                    f"{model} {projection}", "m_offsets", layer["experts"], rows, n, k, tokens=tokens
                )
                if found.memory_bytes <= GPU_BYTES:
                    yield found


def source_of(problem: Problem, *, dependent: bool = False) -> SpecFile:
    """Return the spec of a problem, with every decision open, and with dependent launch if wanted."""
    shape = {"m": problem.rows, "n": problem.n, "k": problem.k}
    groups = {"kind": problem.kind, "count": problem.groups}
    launch = {"dependent_launch": {"early": "nothing"}} if dependent else {}
    return _source(problem.kind, groups=groups, problem=shape, **launch)


def _source(title: str, **sections: object) -> SpecFile:
    spec = spec_of({"title": TITLES[title], "target": "h100", "operands": OPERANDS, **sections})
    if spec is None:
        raise ValueError(f"no spec has {sections}")
    return SpecFile.of(spec)


def dense_twin(plan: Kernel, problem: Problem) -> Kernel | None:
    """Return the dense kernel with the tile and the schedule of a kernel of groups; None if none is legal."""
    shape = (problem.all_rows, problem.n, problem.k)
    return TuningTarget(_dense_source(), shape).plan(statements(plan))


@cache
def _dense_source() -> SpecFile:
    return _source("dense")


@dataclass
class Modules:
    """Modules of a folder, each kernel once."""

    folder: Path
    labels: dict[str, str] = field(default_factory=dict[str, str])

    def stem_of(self, plan: Kernel) -> str:
        """Return the name of the module of a kernel, and write the module if it is new."""
        text = render(plan, spec_name="kernel.yaml", spec_sha256=NO_SPEC)
        kind = plan.problem.groups.of if plan.problem.groups else "dense"
        stem = f"{kind}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        if stem not in self.labels:
            # A module registers its operator by the name of its spec, which must differ from the others.
            module = render(plan, spec_name=f"{stem}.yaml", spec_sha256=NO_SPEC)
            (self.folder / f"{stem}.py").write_text(module, encoding="utf-8")
            self.labels[stem] = family_for(plan).label(plan)
        return stem


def prepared(problem: Problem, modules: Modules, first: int, *, dependent: bool = False) -> Prepared:
    """Write the modules of the kernels that the planner ranks first for a problem, and return their names.

    Raises GemmgenError if no kernel is legal.
    """
    plans = [candidate.plan for candidate in rank(source_of(problem, dependent=dependent)).legal[:first]]
    names = {modules.stem_of(plan): plan for plan in plans}
    dense: dict[str, str] = {}
    if problem.has_large_groups:
        twins = {stem: dense_twin(plan, problem) for stem, plan in names.items()}
        dense = {stem: modules.stem_of(twin) for stem, twin in twins.items() if twin}
    return Prepared(problem, tuple(names), dense)


def prepared_in(
    folder: Path, problem: Problem, first: int, dependent: bool
) -> tuple[Prepared | str, dict[str, str]]:
    """Return a problem with the names and the labels of its kernels, or the reason if no kernel is legal."""
    modules = Modules(folder)
    try:
        return prepared(problem, modules, first, dependent=dependent), modules.labels
    except GemmgenError as error:
        return f"{problem.name}, {problem.rows} rows: {error}", {}


def emptied(folder: Path) -> Path:
    """Return the folder without the modules of an earlier preparation."""
    if folder.exists() and not (folder / LAUNCHER).exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} has other files")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / LAUNCHER).write_text(launcher_text(), encoding="utf-8")
    return folder


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=FIRST, help=f"kernels of each problem ({FIRST})")
    parser.add_argument("--processes", type=int, default=2, help="processes that plan (2)")
    parser.add_argument("--only", default="", help="problems whose name has this text")
    parser.add_argument("--dependent", action="store_true", help="kernels with programmatic dependent launch")
    given = parser.parse_args()
    suite = read_suite()
    begin, folder, found, labels = time.monotonic(), emptied(given.folder), list[Prepared](), dict[str, str]()
    wanted = [each for each in problems(suite) if given.only in each.name]
    with ProcessPoolExecutor(given.processes) as pool:
        constant = repeat(given.first), repeat(given.dependent)
        for each, of_each in pool.map(prepared_in, repeat(folder), wanted, *constant):
            if isinstance(each, str):
                sys.stdout.write(f"{each}\n")
            else:
                found.append(each)
                labels |= of_each
    Index(tuple(found), tuple(suite["skew"]), labels).write(folder)
    seconds = time.monotonic() - begin
    sys.stdout.write(f"{len(found)} problems, {len(labels)} modules, {seconds:.0f} s\n")


if __name__ == "__main__":
    main()
