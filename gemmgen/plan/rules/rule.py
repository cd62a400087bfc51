"""What a rule is, and the words that rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from gemmgen.errors import Violation
from gemmgen.plan.plan import KernelPlan

Rule = Callable[[Any], Iterator[Violation]]
"""A rule takes plans of its own family."""
AnyPlan = TypeVar("AnyPlan", bound=KernelPlan)


def rule_id(rule: Callable[..., Iterator[Violation]]) -> str:
    """Return the id under which a rule's violations are reported."""
    return rule.__name__.replace("_", "-")


def nearest(below: int, above: int, *, low: int = 1, high: int | None = None) -> str:
    """Name the legal values around an illegal one, of which those outside `low` to `high` are none."""
    inside = (max(low, value if high is None else min(value, high)) for value in (below, above))
    return f"use {' or '.join(map(str, dict.fromkeys(inside)))}"


def one_of(values: Sequence[object]) -> str:
    """Name all legal values: ``use a``, ``use a or b``, ``use a, b or c``."""
    return f"use {either(values)}"


def either(values: Sequence[object]) -> str:
    """List alternatives as a sentence does: ``a``, ``a or b``, ``a, b or c``."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 warp``, ``2,048 warps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def breaks(plan: AnyPlan, *rules: Callable[[AnyPlan], Iterator[Violation]]) -> bool:
    """Whether a plan violates one of the rules, on which another rule relies."""
    return any(True for rule in rules for _ in rule(plan))
