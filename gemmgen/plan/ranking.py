"""A spec's configurations in the order of their cost: which are legal, and why others are not planned."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from gemmgen.errors import Violation
from gemmgen.plan.decisions import shape_of
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import family_of
from gemmgen.plan.search import Configuration, Estimate, Family
from gemmgen.problem.definition import Shape
from gemmgen.spec import Spec

TEXT_WIDTH = 110
Refusal = tuple[tuple[float, ...], str, tuple[Violation, ...]]
"""The cost of a configuration, its label, and what is wrong with it."""


@dataclass(frozen=True)
class Candidate:
    """A legal plan with what it is expected to cost."""

    family: Family[Kernel]
    plan: Kernel
    estimate: Estimate
    cost: tuple[float, ...]

    @property
    def label(self) -> str:
        """Its decisions in one line."""
        return self.family.label(self.plan)

    def lost_by(self, winner: Candidate) -> tuple[str, float]:
        """Return the term of the cost that decides against it, and the cycles by which that is larger.

        Where the times are equal, this is the first part of the cost in which they differ, and no cycles.
        """
        if self.cost[0] == winner.cost[0]:
            pairs = zip(self.family.cost_order, self.cost, winner.cost, strict=True)
            return next((name for name, own, best in pairs if own != best), "listed later"), 0.0
        names = self.estimate.terms | winner.estimate.terms
        excess = {
            name: self.estimate.terms.get(name, 0.0) - winner.estimate.terms.get(name, 0.0) for name in names
        }
        return max(excess.items(), key=lambda item: item[1])

    def as_dict(self, winner: Candidate) -> dict[str, object]:
        """Return plain data for JSON."""
        plan, found = self.plan, self.estimate
        term, cycles = self.lost_by(winner)
        return {
            **self.family.as_dict(plan),
            "l2_bytes": found.l2_bytes,
            "predicted_seconds": found.seconds,
            "cycles": {name: round(value) for name, value in found.terms.items()},
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
    """What the rule found in the example, or by how much the term made it slower."""


@dataclass(frozen=True)
class Ranking:
    """The legal configurations of a spec, best first, and the refused ones by rule."""

    shape: Shape
    legal: tuple[Candidate, ...]
    refused: tuple[Group, ...]
    refusals: int
    """Configurations without a legal plan; one that breaks several rules is in several groups."""

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

    def _margin(self, candidate: Candidate, cycles: float) -> str:
        if not cycles:
            return "the same time"
        slower = candidate.cost[0] / self.legal[0].cost[0] - 1
        return f"{slower:.1%} slower, with {cycles:,.0f} cycles more of it"

    def table(self, limit: int) -> str:
        """Return the first candidates as aligned lines."""
        m, n, k = self.shape
        count = len(self.legal)
        best = self.legal[0]
        columns = ["", *(name for name, _ in best.family.columns), *MEASURES]
        rows = [columns, *(_cells(i, c, best, self.shape) for i, c in enumerate(self.legal[:limit], 1))]
        total = f"{count} legal configurations of {count + self.refusals} for {m} x {n} x {k}"
        return "\n".join([total, *_aligned(rows), best.family.legend, LEGEND])

    def explanation(self) -> str:
        """Return why the other configurations are not planned, group by group."""
        lost = _paragraph(f"{len(self.legal) - 1} legal ones cost more; what decides", self.lost)
        refused = _paragraph(f"{self.refusals} are refused; by which rule", self.refused)
        return "\n".join([*lost, "", *refused])

    def as_dict(self, limit: int, *, explained: bool) -> dict[str, object]:
        """Return plain data for JSON."""
        data: dict[str, object] = {
            "shape": list(self.shape),
            "legal": len(self.legal),
            "refused": self.refusals,
            "candidates": [candidate.as_dict(self.legal[0]) for candidate in self.legal[:limit]],
        }
        if explained:
            data["lost_by"] = [vars(group) for group in self.lost]
            data["refused_by"] = [vars(group) for group in self.refused]
        return data


def rank(spec: Spec) -> Ranking:
    """Return all configurations of a spec, for the problem that it is planned for.

    Of the ways to store D that go with a configuration, the best legal one stands for it.
    """
    shape, family = shape_of(spec), family_of(spec)
    legal: list[Candidate] = []
    refused: list[Refusal] = []
    for configuration in family.space.configurations(spec):
        plan, violations = _best_plan(family, configuration, shape)
        cost = family.cost(plan, shape)
        if violations:
            refused.append((cost, family.label(plan), violations))
        else:
            legal.append(Candidate(family, plan, family.estimate(plan, shape), cost))
    legal.sort(key=lambda candidate: candidate.cost)
    refused.sort(key=lambda refusal: refusal[0])
    return Ranking(shape, tuple(legal), tuple(_by_rule(refused)), len(refused))


def _best_plan(
    family: Family[Kernel], configuration: Configuration[Kernel], shape: Shape
) -> tuple[Kernel, tuple[Violation, ...]]:
    """Return the cheapest legal plan of a configuration; without one, that which breaks the fewest rules."""
    judged: list[tuple[Kernel, tuple[Violation, ...]]] = []
    for plan in sorted(configuration.kernels(), key=lambda plan: family.cost(plan, shape)):
        if not (violations := family.judge(plan)):
            return plan, ()
        judged.append((plan, violations))
    return min(judged, key=lambda item: len(item[1]))


def _by_rule(refused: Sequence[Refusal]) -> Iterator[Group]:
    """Yield for each rule how many configurations it refuses, and the first of them; most frequent first."""
    members: dict[str, list[tuple[str, Violation]]] = defaultdict(list)
    for _, label, violations in refused:
        for rule, violation in {violation.rule: violation for violation in violations}.items():
            members[rule].append((label, violation))
    for rule, found in sorted(members.items(), key=lambda item: -len(item[1])):
        label, violation = found[0]
        yield Group(rule, len(found), label, f"{violation.field}: {violation}")


MEASURES = ("waves", "L2 GB", "time us", "lost by")
"""The last columns of the table, behind those of the family."""


LEGEND = "time is a prediction to rank by, and no measurement"


def _cells(place: int, candidate: Candidate, winner: Candidate, shape: Shape) -> list[str]:
    plan, found = candidate.plan, candidate.estimate
    slower = candidate.cost[0] / winner.cost[0] - 1
    decided = "" if candidate is winner else f"{slower:.1%} {candidate.lost_by(winner)[0]}"
    return [
        str(place),
        *(cell(plan) for _, cell in candidate.family.columns),
        f"{plan.waves(shape):.2f}",
        f"{found.l2_bytes / 1e9:.2f}",
        f"{found.seconds * 1e6:.1f}",
        decided,
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = {i for i, name in enumerate(rows[0]) if name in ("kernel", "tile", "CTAs", "lost by")}
    for row in rows:
        cells = (
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield " ".join(cells).rstrip()


def _paragraph(title: str, groups: Sequence[Group]) -> Iterator[str]:
    """Yield a title and, below it, a line for each group, its example folded to the width of a terminal."""
    yield title if groups else f"{title}: none"
    widest = max((len(group.reason) for group in groups), default=0)
    for group in groups:
        head = f"  {group.reason:<{widest}} {group.count:>5}  "
        text = f"{group.example}: {group.detail}"
        yield textwrap.fill(text, TEXT_WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
