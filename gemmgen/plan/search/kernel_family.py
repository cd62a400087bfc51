"""A family of kernels as one value: its search space, rules, cost and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Generic

from gemmgen.plan.rule import Rule, Violation, judge
from gemmgen.plan.search.estimates import Estimate, geometric_mean
from gemmgen.plan.search.space import P, Space
from gemmgen.problem import Shape


@dataclass(frozen=True)
class Family(Generic[P]):
    """A family of kernels as the planner uses it."""

    kernel: type[P]
    space: Space[P]
    """The values that are tried for open decisions."""
    rules: tuple[Rule[P], ...]
    costs: Callable[[P, Sequence[Shape]], list[tuple[float, ...]]]
    cost_order: tuple[str, ...]
    """Names of the parts of a cost."""
    estimate: Callable[[P, Shape], Estimate]
    excess: Callable[[P], float]
    """Returns by how much an illegal kernel exceeds its limits, as a sum of fractions."""
    columns: tuple[tuple[str, Callable[[P], str]], ...]
    """Columns of a table of candidates: a heading, and the function that returns a kernel's cell."""
    legend: str
    """The meaning of the table's words."""
    label: Callable[[P], str]
    """Returns the decisions of a kernel's configuration in one line."""
    as_dict: Callable[[P], dict[str, object]]
    """Returns them as plain data."""
    expectations: tuple[Rule[P], ...] = ()
    """Expectations of a proposal: a kernel that breaks only these is legal, and proposed last."""

    def cost(self, kernel: P, shape: Shape) -> tuple[float, ...]:
        """Return the cost of a kernel for a problem [M, N, K]."""
        (found,) = self.costs(kernel, (shape,))
        return found

    def cost_over(self, kernel: P, shapes: Sequence[Shape]) -> tuple[float, ...]:
        """Return the cost of a kernel on several problems [M, N, K] of equal weight.

        Times are averaged geometrically, so that a kernel that takes twice the best one's on a short problem
        loses as much as one that does so on a long problem; the parts that decide between equal times are
        averaged arithmetically.
        """
        costs = self.costs(kernel, shapes)
        if len(costs) == 1:
            return costs[0]
        times, *others = zip(*costs, strict=True)
        return geometric_mean(times), *(sum(parts) / len(parts) for parts in others)

    def judge(self, kernel: P) -> tuple[Violation, ...]:
        """Return every violation of every rule; a kernel without one is legal."""
        return judge(kernel, self.rules)

    @cached_property
    def cautious_rules(self) -> tuple[Rule[P], ...]:
        """The rules and the expectations of a proposal."""
        return (*self.rules, *self.expectations)

    @cached_property
    def decisions(self) -> frozenset[str]:
        """The names of the decisions that its kernels have."""
        return frozenset(each.name for each in fields(self.kernel) if each.compare) - {"request"}

    @cached_property
    def problem_rules(self) -> tuple[Rule[P], ...]:
        """Rules that depend on the spec alone: one kernel that breaks them speaks for all."""
        return tuple(rule for rule in self.rules if rule.subject == "problem")

    @cached_property
    def problem_rule_ids(self) -> frozenset[str]:
        """The ids of the rules of the problem."""
        return frozenset(rule.id for rule in self.problem_rules)

    @cached_property
    def store_rules(self) -> frozenset[str]:
        """The ids of the rules of how D is stored: one kernel that breaks only others speaks for all ways."""
        return frozenset(rule.id for rule in self.rules if rule.subject == "store")
