"""Observations of suite records, to which the constants of the cost model are fitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemmgen.bench.result_log import KernelEntry, Result, ResultLog
from gemmgen.library.source_files import kernel_of
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import family_for
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.problem.observation import Observation
from gemmgen.spec import SpecFile, load_spec

HERE = Path(__file__).parent
SPECS = (HERE / "specs", HERE.parent / "suites" / "specs")
"""Directories in which the specs of the records are found by their stems."""


@dataclass(frozen=True, kw_only=True)
class SpecObservation(Observation[Kernel]):
    """An observation of a planned kernel, with the spec and the contest that decide its competitors.

    `seconds` is the median over the rounds.
    """

    contest: Contest
    spec: str
    """Stem of the kernel's spec."""

    @property
    def predicted(self) -> float:
        """Time that the cost model predicts for the kernel on the shape, in seconds."""
        return family_for(self.kernel).estimate(self.kernel, self.shape).seconds


Candidates = Sequence[SpecObservation]
"""All kernels of one spec, or all pinned kernels, that were timed on one shape."""


def observations(record: Path) -> Iterator[SpecObservation]:
    """Yield an observation for each kernel on each shape of a suite's record.

    Raises KeyError if the spec of a kernel is not found under ``SPECS``.
    """
    log = ResultLog.opened(record)
    for line in log.current():
        if isinstance(line, Result):
            for arm in line.kernels:
                entry = log.kernels[arm.kernel]
                found = line.observed(arm)
                yield SpecObservation(
                    found.shape,
                    planned(entry),
                    found.seconds,
                    found.baseline_seconds,
                    found.spread,
                    contest=line.contest,
                    spec=entry.subject.name,
                )


def by_candidates(found: Iterable[SpecObservation]) -> list[list[SpecObservation]]:
    """Return the observations in groups of competitors on one shape.

    The kernels of an open spec compete with each other, and so do all pinned kernels.
    """
    groups: dict[tuple[Contest, Shape, str], list[SpecObservation]] = {}
    for each in found:
        rival = each.spec if is_open(each.spec) else "pinned"
        groups.setdefault((each.contest, each.shape, rival), []).append(each)
    return list(groups.values())


# --- plans of recorded kernels


@cache
def source_of(stem: str) -> SpecFile:
    """Return the spec of this stem; raises KeyError if no directory of ``SPECS`` has it."""
    for directory in SPECS:
        if (path := directory / f"{stem}.yaml").exists():
            return load_spec(path)
    raise KeyError(stem)


def is_open(stem: str) -> bool:
    """Return True if a spec leaves its tile to the planner, which then chose kernels for each shape."""
    return source_of(stem).spec.tile.m is None


@cache
def planned(entry: KernelEntry) -> Kernel:
    """Return the planned kernel of an entry of a record."""
    return kernel_of(entry, source_of(entry.subject.name))
