"""Render the kernels that the planner ranks first for experts with scales of blocks; needs no GPU.

``python -m benchmarks.blockscale.prepare_experts FOLDER`` writes the modules, their launcher and the index,
which ``benchmarks.blockscale.grouped`` times.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path

from benchmarks.blockscale.experts import Experts, Index, Prepared, problems
from benchmarks.blockscale.prepare import ARMS
from benchmarks.grouped.prepare import Modules, emptied
from gemmgen.plan.decisions import statements
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import rank
from gemmgen.spec import SpecFile
from gemmgen.spec.model import spec_of
from gemmgen.tune.candidates import TuningTarget

FIRST = 6
"""Kernels of each problem."""
TITLE = "e4m3 matmul of experts with scales of blocks"


def source_of(problem: Experts, target: str = "h100") -> SpecFile:
    """Return the spec of a problem for a GPU, with every decision open."""
    shape = {"m": problem.all_rows, "n": problem.n, "k": problem.k}
    return _source(target, problem=shape, groups={"kind": "m_offsets", "count": problem.groups, "skew": 0})


def _source(target: str = "h100", **sections: object) -> SpecFile:
    spec = spec_of({"title": TITLE, "target": target, **ARMS["blocks"], **sections})
    if spec is None:
        raise ValueError(f"no spec has {sections}")
    return SpecFile.of(spec)


@cache
def _dense_source(target: str) -> SpecFile:
    return _source(target)


def dense_twin(plan: Kernel, problem: Experts, target: str = "h100") -> Kernel | None:
    """Return the dense kernel with the tile and the schedule of a kernel of groups; None if none is legal."""
    shape = (problem.all_rows, problem.n, problem.k)
    return TuningTarget(_dense_source(target), shape).plan(statements(plan))


def prepared(problem: Experts, modules: Modules, first: int, target: str = "h100") -> Prepared:
    """Write the modules of the kernels that the planner ranks first for a problem, and return their names."""
    plans = [each.plan for each in rank(source_of(problem, target)).legal[:first]]
    names = {modules.stem_of(plan): plan for plan in plans}
    twins = {stem: dense_twin(plan, problem, target) for stem, plan in names.items()}
    dense = {stem: modules.stem_of(twin) for stem, twin in twins.items() if twin}
    return Prepared(problem, tuple(names), dense)


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=FIRST, help=f"kernels of each problem ({FIRST})")
    parser.add_argument("--target", default="h100", help="GPU that the kernels are planned for (h100)")
    given = parser.parse_args()
    modules = Modules(emptied(given.folder))
    found = tuple(prepared(problem, modules, given.first, given.target) for problem in problems())
    Index(found, modules.labels).write(given.folder)
    sys.stdout.write(f"{len(found)} problems, {len(modules.labels)} modules\n")


if __name__ == "__main__":
    main()
