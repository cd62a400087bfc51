"""Observations to which the constants of the cost model are fitted: a kernel on a shape, and its time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmgen.plan.kernel import Kernel
from gemmgen.planner import family_for
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.problem.observation import Observation

PINNED = "pinned"
"""Stands for the open spec of kernels that have a spec each."""


@dataclass(frozen=True, kw_only=True)
class SpecObservation(Observation[Kernel]):
    """An observation of a planned kernel, with the spec and the contest that decide its competitors.

    `seconds` is the median over the rounds.
    """

    contest: Contest
    spec: str
    """Stem of the kernel's spec; kernels that the planner chose for an open spec have the stem of that."""
    rival: str
    """Stem of the open spec whose kernels compete with this one, or ``PINNED``."""

    @property
    def predicted(self) -> float:
        """Time that the cost model predicts for the kernel on the shape, in seconds."""
        return family_for(self.kernel).estimate(self.kernel, self.shape).seconds


Candidates = Sequence[SpecObservation]
"""All kernels of one spec, or all pinned kernels, that were timed on one shape."""


def by_candidates(found: Iterable[SpecObservation]) -> list[list[SpecObservation]]:
    """Return the observations in groups of competitors on one shape.

    The kernels of an open spec compete with each other, and so do all pinned kernels.
    """
    groups: dict[tuple[Contest, Shape, str], list[SpecObservation]] = {}
    for each in found:
        groups.setdefault((each.contest, each.shape, each.rival), []).append(each)
    return list(groups.values())
