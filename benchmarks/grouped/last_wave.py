"""Share of a kernel's time that its last wave leaves unused, as ``python -m benchmarks.grouped.last_wave``.

A last wave that is divided (split-K of its tiles, stream-K) can save this share at most. No GPU is needed:
the first kernel of the planner gives the tile, and the drawn rows of groups give the number of tiles.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.grouped.prepare import problems, read_suite, source_of
from benchmarks.grouped.problems import Problem
from benchmarks.grouped.workload import rows_of_groups
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import rank

COMPUTED_ROWS = 128
"""Mean rows of a group from which multiplying decides the time, and not reading the weights."""


@dataclass(frozen=True)
class LastWave:
    """The waves of a kernel on a problem."""

    problem: Problem
    skew: float
    waves: float
    """Tiles of all groups over the programs that run at the same time."""

    @classmethod
    def of(cls, problem: Problem, skew: float, plan: Kernel) -> LastWave:
        """Return the waves of a kernel on the drawn rows of a problem."""
        rows = [int(each) for each in rows_of_groups(problem, skew)]
        tiles_n = -(-problem.n // plan.program_tile_n)
        tiles = tiles_n * sum(-(-each // plan.program_tile_m) for each in rows)
        return cls(problem, skew, tiles * plan.cluster_size / plan.gpu.sm_count)

    @property
    def unused(self) -> float:
        """Share of the time of all waves in which programs of the last one have no tile."""
        return 1 - self.waves / math.ceil(self.waves)


def last_waves(found: Sequence[Problem], skews: Sequence[float]) -> list[LastWave]:
    """Return the waves of the planner's first kernel for each problem with large groups and each skew."""
    large = [each for each in found if each.kind == "m_offsets" and each.rows >= COMPUTED_ROWS * each.groups]
    plans = [(each, rank(source_of(each)).legal[0].plan) for each in large]
    return [LastWave.of(problem, skew, plan) for problem, plan in plans for skew in skews]


def main() -> None:
    """Print a line for each problem, and the mean and the most."""
    suite = read_suite()
    found = last_waves(list(problems(suite)), suite["skew"])
    for each in sorted(found, key=lambda each: each.unused):
        name = f"{each.problem.name}, {each.problem.rows} rows, skew {each.skew:g}"
        sys.stdout.write(f"{name:50} {each.waves:7.2f} waves, {each.unused:.3f} unused\n")
    shares = [each.unused for each in found]
    sys.stdout.write(
        f"{len(shares)} points: {sum(shares) / len(shares):.3f} in mean, {max(shares):.3f} at most\n"
    )


if __name__ == "__main__":
    main()
