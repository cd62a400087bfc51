"""A row of the table of candidates, and the partial spec that it applies to or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gemmgen.plan.search import Choices, Values
from gemmgen.problem import Matmul, Request


@dataclass(frozen=True)
class PartialSpec:
    """A request, what its spec states and wants tried, and the decisions that tell one kind of kernel."""

    request: Request
    stated: Values
    wanted: Choices
    kind: Values = field(default_factory=dict[str, object])

    @property
    def matmul(self) -> Matmul:
        """The matmul of the request."""
        return self.request.matmul

    @cached_property
    def values(self) -> Values:
        """The decisions that are made: by the kind of kernel, or by the spec."""
        return {**self.kind, **self.stated}

    @cached_property
    def decided(self) -> frozenset[str]:
        """The names of the decisions that the spec states, or for which it wants values tried."""
        return frozenset((*self.stated, *self.wanted))

    def asked(self, name: str) -> tuple[object, ...]:
        """Return the value that the spec states for a decision, or the values that it wants tried."""
        return (self.stated[name],) if name in self.stated else self.wanted.get(name, ())

    def of_kind(self, kind: Values) -> PartialSpec:
        """Return the partial spec with further decisions of the kind of kernel."""
        return replace(self, kind={**self.kind, **kind})


Condition = Callable[[PartialSpec], bool]
Tried = tuple[object, ...] | Callable[[PartialSpec], tuple[object, ...]]
"""Values to try for a decision, or the function that computes them; of equal costs the earlier value wins."""


@dataclass(frozen=True)
class Row:
    """Values that are tried for some kernels, in place of the values of earlier rows."""

    tries: Mapping[str, Tried]
    of: Choices = field(default_factory=dict[str, tuple[object, ...]])
    """Decisions of the kernels that the row is for: the kind of kernel or the spec makes them."""
    kind: Values = field(default_factory=dict[str, object])
    """Decisions that tell the kernels of the row from others."""
    fits: Choices = field(default_factory=dict[str, tuple[object, ...]])
    """Decisions for which the spec may state these values and no others."""
    undecided: frozenset[str] = frozenset()
    """Decisions that the spec leaves open: it neither states a value nor wants values tried."""
    when: tuple[Condition, ...] = ()
    """Conditions that hold together."""

    def applies(self, partial: PartialSpec) -> bool:
        """Return True if the values are tried for a partial spec."""
        return (
            all(partial.values.get(name) in values for name, values in self.of.items())
            and all(partial.stated.get(name, values[0]) in values for name, values in self.fits.items())
            and self.undecided.isdisjoint(partial.decided)
            and all(holds(partial) for holds in self.when)
        )

    def values(self, partial: PartialSpec) -> Choices:
        """Return the values that are tried for a partial spec."""
        return {name: tried(partial) if callable(tried) else tried for name, tried in self.tries.items()}


def cascade(rows: Iterable[Row], partial: PartialSpec) -> Choices:
    """Return the values of all rows that apply to a partial spec; of two rows the later one decides."""
    found: dict[str, tuple[object, ...]] = {}
    for row in rows:
        if row.applies(partial):
            found |= row.values(partial)
    return found
