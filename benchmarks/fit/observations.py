"""What records say of kernels on shapes: the observations that the cost model's constants are fitted to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from gemmgen.bench.result_log import Entry, Result, ResultLog
from gemmgen.library.sources import kernel_of
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import family_for
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.spec import SpecFile, load_spec

HERE = Path(__file__).parent
SPECS = (HERE / "specs", HERE.parent / "suites" / "specs")
"""Where the specs of the records are, by their stems."""


@dataclass(frozen=True)
class Observation:
    """What a kernel took on a shape."""

    contest: Contest
    shape: Shape
    spec: str
    """The stem of its spec."""
    kernel: Kernel
    seconds: float
    """Median over the rounds."""

    @property
    def predicted(self) -> float:
        """What the cost model says that it takes, in seconds."""
        return family_for(self.kernel).estimate(self.kernel, self.shape).seconds


Candidates = Sequence[Observation]
"""All kernels of one spec, or all pinned ones, that were timed on one shape."""


def observations(record: Path) -> Iterator[Observation]:
    """Yield what a suite's record has of every kernel on every shape.

    Raises KeyError for a kernel whose spec is not among ``SPECS``.
    """
    log = ResultLog.opened(record)
    for line in log.current():
        if isinstance(line, Result):
            for arm in line.kernels:
                entry = log.kernels[arm.kernel]
                seconds = median(arm.seconds)
                yield Observation(line.contest, line.shape, entry.subject.name, planned(entry), seconds)


def by_candidates(found: Iterable[Observation]) -> list[list[Observation]]:
    """Return the observations by what competed: an open spec's kernels on a shape, or the pinned ones."""
    groups: dict[tuple[Contest, Shape, str], list[Observation]] = {}
    for each in found:
        rival = each.spec if is_open(each.spec) else "pinned"
        groups.setdefault((each.contest, each.shape, rival), []).append(each)
    return list(groups.values())


# --- from what a record has of a kernel to its plan


@cache
def source_of(stem: str) -> SpecFile:
    """Return the spec of this name."""
    for directory in SPECS:
        if (path := directory / f"{stem}.yaml").exists():
            return load_spec(path)
    raise KeyError(stem)


def is_open(stem: str) -> bool:
    """Whether the planner chose the kernels of a spec, shape by shape."""
    return source_of(stem).spec.tile.m is None


@cache
def planned(entry: Entry) -> Kernel:
    """Return the kernel of an entry."""
    return kernel_of(entry, source_of(entry.subject.name))
