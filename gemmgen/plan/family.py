"""How the kernels of one instruction family are planned: its choices, its rules, its cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from gemmgen.errors import Violation
from gemmgen.plan.estimate import Estimate
from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.problem import Shape
from gemmgen.plan.rules.rule import rule_id
from gemmgen.spec import Spec


class Configuration(ABC):
    """The decisions that set a plan's time, stated or tried."""

    @cached_property
    @abstractmethod
    def outline(self) -> KernelPlan:
        """The configuration with the deepest ring that is tried: no plan of it is cheaper."""

    @abstractmethod
    def plans(self) -> Iterator[KernelPlan]:
        """Yield a plan for each way to store D, legal or not, each once."""


@dataclass(frozen=True)
class Family:
    """What the planner asks of a family; every function takes plans of the family's own type."""

    plan: type[KernelPlan]
    configurations: Callable[[Spec], Iterator[Configuration]]
    """Yields every combination of values that a spec leaves open, legal or not."""
    rules: tuple[Callable[[Any], Iterator[Violation]], ...]
    problem_rules: tuple[Callable[[Any], Iterator[Violation]], ...]
    """Rules of what the spec states and nobody chooses: one plan that breaks them speaks for all."""
    store_rules: frozenset[str]
    """Rules on which it depends how D is stored: a plan that breaks only others speaks for its
    configuration."""
    cost: Callable[[Any, Shape], tuple[float, ...]]
    cost_order: tuple[str, ...]
    """What the parts of a cost are."""
    estimate: Callable[[Any, Shape], Estimate]
    overdraft: Callable[[Any], float]
    """Returns by how much an illegal plan exceeds what it has."""
    columns: tuple[tuple[str, Callable[[Any], str]], ...]
    """Of a table of candidates: what tells their plans apart."""
    legend: str
    """What its words mean."""
    label: Callable[[Any], str]
    """Returns the decisions of a plan's configuration in one line."""
    as_dict: Callable[[Any], dict[str, object]]
    """Returns them as plain data."""

    def judge(self, plan: KernelPlan) -> tuple[Violation, ...]:
        """Return every violation of every rule; a plan without one is legal."""
        return tuple(violation for rule in self.rules for violation in rule(plan))

    @cached_property
    def decisions(self) -> frozenset[str]:
        """The names of the decisions that its plans have."""
        return frozenset(field.name for field in fields(self.plan)) - {"problem"}

    @cached_property
    def problem_rule_ids(self) -> frozenset[str]:
        """The ids of the rules of the problem."""
        return frozenset(map(rule_id, self.problem_rules))


def tile_and_cluster(plan: KernelPlan) -> list[str]:
    """Return the tile of a plan's CTAs, and their cluster where there is one, in words."""
    tile = f"{plan.cta_tile_m} x {plan.cta_tile_n} x {plan.cta_tile_k}"
    return [tile, *([f"cluster {plan.cluster_m} x {plan.cluster_n}"] if plan.cluster_size > 1 else [])]


def narrow_tile(plan: KernelPlan) -> str:
    """Return the tile of a plan's CTAs for the cell of a table."""
    return f"{plan.cta_tile_m}x{plan.cta_tile_n}x{plan.cta_tile_k}"


def narrow_cluster(plan: KernelPlan) -> str:
    """Return the CTAs of a plan's cluster for the cell of a table."""
    return f"{plan.cluster_m}x{plan.cluster_n}"
