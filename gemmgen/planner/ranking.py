"""The ranking of a spec's configurations as a value, and as plain data for JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import Estimate, Family, geometric_mean
from gemmgen.planner.families import field_values
from gemmgen.problem import Request, Shape, shape_text

MOST_OF_ONE_TIME = 2
"""Candidates of the same predicted time that are measured."""


@dataclass(frozen=True)
class Candidate:
    """A legal plan with its expected cost."""

    family: Family[Kernel]
    plan: Kernel
    estimates: tuple[Estimate, ...]
    """One for each problem that it is ranked by."""
    cost: tuple[float, ...]

    @property
    def label(self) -> str:
        """Its decisions in one line."""
        return self.family.label(self.plan)

    def lost_by(self, winner: Candidate) -> tuple[str, float]:
        """Return the term of the cost that decides against it, and the cycles by which that is larger.

        If there are several problems, the one on which it loses most counts. If the times are equal, the
        result is the first differing part of the cost, and no cycles.
        """
        if self.cost[0] == winner.cost[0]:
            pairs = zip(self.family.cost_order, self.cost, winner.cost, strict=True)
            return next((name for name, own, best in pairs if own != best), "listed later"), 0.0
        place = self.worst_against(winner.estimates)
        own, best = self.estimates[place].terms, winner.estimates[place].terms
        excess = {name: own.get(name, 0.0) - best.get(name, 0.0) for name in own | best}
        return max(excess.items(), key=lambda item: item[1])

    def worst_against(self, others: Sequence[Estimate]) -> int:
        """Return the place of the problem on which it takes longest, compared with other estimates."""
        slower = self.over(others)
        return slower.index(max(slower))

    def over(self, others: Sequence[Estimate]) -> list[float]:
        """Return its time over another one, problem by problem."""
        return [own.cycles / other.cycles for own, other in zip(self.estimates, others, strict=True)]

    def as_dict(self, winner: Candidate, best: Sequence[Estimate]) -> dict[str, object]:
        """Return plain data for JSON, with an estimate for each problem if there are several."""
        of_each = [
            {
                "l2_bytes": found.l2_bytes,
                "predicted_seconds": found.seconds,
                "cycles": {name: round(value) for name, value in found.terms.items()},
            }
            for found in self.estimates
        ]
        over = self.over(best)
        several = {"over_best": geometric_mean(over), "problems": of_each}
        term, cycles = self.lost_by(winner)
        return {
            **self.family.as_dict(self.plan),
            "fields": field_values(self.plan),
            **(of_each[0] if len(of_each) == 1 else several),
            "lost_by": None if self is winner else {"term": term, "cycles": round(cycles)},
        }


@dataclass(frozen=True)
class Group:
    """Configurations that are not planned for the same reason, and the one of them that ranks first."""

    reason: str
    """The id of a rule, or a term of the cost."""
    count: int
    example: str
    detail: str
    """The finding of the rule in the example, or the time that the term adds to it."""


@dataclass(frozen=True)
class Ranking:
    """The legal configurations of a spec, best first, and the refused ones by rule."""

    request: Request
    legal: tuple[Candidate, ...]
    refused: tuple[Group, ...]
    refusals: int
    """Configurations without a legal plan; one that breaks several rules is in several groups."""
    searched: tuple[str, ...] = ()
    """The paths of the fields under `search`."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The problems that decide, each of the same weight."""
        return self.request.planned_shapes

    @cached_property
    def best(self) -> tuple[Estimate, ...]:
        """The estimate of the fastest candidate for each of them."""
        of_each = zip(*(candidate.estimates for candidate in self.legal), strict=True)
        return tuple(min(found, key=lambda estimate: estimate.cycles) for found in of_each)

    @cached_property
    def lost(self) -> tuple[Group, ...]:
        """The legal configurations but the best, by the term of the cost that decides against them."""
        losers: dict[str, list[tuple[Candidate, float]]] = defaultdict(list)
        for candidate in self.legal[1:]:
            term, cycles = candidate.lost_by(self.legal[0])
            losers[term].append((candidate, cycles))
        return tuple(
            Group(term, len(members), members[0][0].label, self._margin(*members[0]))
            for term, members in sorted(losers.items(), key=lambda item: -len(item[1]))
        )

    def to_measure(self, limit: int) -> tuple[Candidate, ...]:
        """Return the first candidates, of those that the cost gives the same time only the first few.

        Candidates of one time mostly differ in their K steps alone: more of them would leave no place for
        others.
        """
        found: list[Candidate] = []
        for candidate in self.legal:
            if len(found) == limit:
                break
            if sum(each.cost[0] == candidate.cost[0] for each in found) < MOST_OF_ONE_TIME:
                found.append(candidate)
        return tuple(found)

    def _margin(self, candidate: Candidate, cycles: float) -> str:
        if not cycles:
            return "the same time"
        winner = self.legal[0]
        slower = candidate.cost[0] / winner.cost[0] - 1
        margin = f"{slower:.1%} slower, with {cycles:,.0f} cycles more of it"
        if len(self.shapes) == 1:
            return margin
        return f"{margin} at {shape_text(self.shapes[candidate.worst_against(winner.estimates)])}"

    def as_dict(self, limit: int, *, explained: bool) -> dict[str, object]:
        """Return plain data for JSON."""
        shapes = [list(shape) for shape in self.shapes]
        data: dict[str, object] = {
            **({"shape": shapes[0]} if len(shapes) == 1 else {"shapes": shapes}),
            "legal": len(self.legal),
            "refused": self.refusals,
            "candidates": [candidate.as_dict(self.legal[0], self.best) for candidate in self.legal[:limit]],
        }
        if explained:
            data["lost_by"] = [vars(group) for group in self.lost]
            data["refused_by"] = [vars(group) for group in self.refused]
        return data
