"""The combinations of decisions that one family tries for a spec, in a fixed order."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, cast

from gemmgen.plan.decisions import pinned, searched
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planning import Sides
from gemmgen.problem import Request
from gemmgen.spec import SpecFile

P = TypeVar("P", bound=Kernel)
COUPLED = ("schedule_kind", "order", "promote_k")
"""Decisions from which others follow: each value to search is tried as if it were stated."""
MOST_CONFIGURATIONS = 10_000
"""Combinations that are tried for one spec at most: of more, this number, evenly spread."""
Values = Mapping[str, object]
"""Values by the name of the decision."""
Choices = Mapping[str, tuple[object, ...]]
"""Values to try by the name of the decision; of equal costs and preferences the earlier value wins."""


@dataclass(frozen=True)
class Branch:
    """Values that are tried together for decisions that a spec leaves open."""

    choices: Choices
    """Values for which a spec may want others tried."""
    kind: Values = field(default_factory=dict[str, object])
    """Decisions that tell this branch from others."""


class Space(ABC, Generic[P]):
    """The decisions and values that one family tries."""

    stores: Choices
    """The ways to store D: they take shared memory from the ring, and no time that the cost knows."""
    memory: tuple[str, ...] = ()
    """Decisions that follow from the memory that is left, for which a spec may name values besides."""

    def __init__(self, sides: Sides) -> None:
        self.sides = sides

    def with_sides(self, sides: Sides) -> Self:
        """Return the space whose kernels have the sides of features."""
        return type(self)(sides)

    def decided(self, kind: type[P], request: Request, decisions: Values) -> P:
        """Return the kernel of these decisions, which must be complete."""
        of_fields = cast("Mapping[str, Any]", decisions)
        return kind(request=request, sides=self.sides, **of_fields)

    @abstractmethod
    def branches(self, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
        """Yield the branches to try beside a spec's statements and its searched values."""

    @abstractmethod
    def bound(self, request: Request, decisions: Values) -> P:
        """Return the kernel with the deepest ring that is tried: no kernel of these decisions is cheaper."""

    @abstractmethod
    def stored(self, bound: P, store: Values, decisions: Values) -> P:
        """Return that kernel with a way to store D, in so far as its tile has one."""

    @abstractmethod
    def filled(self, kernel: P, decided: Collection[str]) -> P:
        """Return a kernel with what follows from the memory that is left, where that is not decided."""

    def redivided(self, kernel: P, decided: Collection[str]) -> Iterator[P]:  # noqa: ARG002
        """Yield variants of a kernel that spills, with other registers for its roles.

        Decided registers stay; a family without such a choice yields nothing.
        """
        return iter(())

    @abstractmethod
    def preferred(self, kernel: P) -> Choices:
        """Return the family's own choices for each decision of a kernel, the best first."""

    def preference_distance(self, kernel: P, names: Collection[str]) -> tuple[int, float]:
        """Return how far some decisions of a kernel are from the family's choices: the nearest wins a tie.

        The first part counts the choices that come before each value. The second one compares values that
        are no choices: it adds the factors of two between each and the first choice, if both are numbers.
        """
        if not names:
            return 0, 0.0
        preferred = self.preferred(kernel)
        found = [_distance(getattr(kernel, name), preferred.get(name, ())) for name in names]
        return sum(place for place, _ in found), round(sum(octaves for _, octaves in found), 9)

    def size(self, source: SpecFile) -> int:
        """Return how many combinations of values a spec leaves open."""
        return sum(grid.size for grid in self._grids(source))

    def configurations(self, source: SpecFile, most: int = MOST_CONFIGURATIONS) -> Iterator[Configuration[P]]:
        """Yield the combinations that a spec leaves open, legal or not: all, or `most` of them."""
        grids = list(self._grids(source))
        ends = list(itertools.accumulate(grid.size for grid in grids))
        for index in spread(ends[-1], most):
            place = bisect_right(ends, index)
            grid = grids[place]
            decisions = grid.decisions(index - (ends[place] - grid.size))
            yield Configuration(self, source.request, decisions, grid.stored)

    def _grids(self, source: SpecFile) -> Iterator[_Grid]:
        """Yield the combinations of each branch."""
        for stated, wanted in _spelled_out(pinned(source.spec), searched(source.spec)):
            names = {*self.stores, *self.memory}
            stores = {name: values for name, values in {**self.stores, **wanted}.items() if name in names}
            for branch in self.branches(source.request, stated, wanted):
                fixed: dict[str, object] = {**branch.kind, **stated}
                choices = {**branch.choices, **wanted}
                left = {name: values for name, values in choices.items() if name not in (*fixed, *stores)}
                tried = {name: values for name, values in left.items() if len(values) > 1}
                fixed |= {name: values[0] for name, values in left.items() if name not in tried}
                stored = {name: values for name, values in stores.items() if name not in fixed}
                yield _Grid(fixed, tried, stored)

    def kernels(self, source: SpecFile) -> Iterator[P]:
        """Yield a kernel for every combination of values that a spec leaves open, legal or not."""
        for configuration in self.configurations(source):
            yield from configuration.kernels()


@dataclass(frozen=True)
class _Grid:
    """All combinations of one branch."""

    fixed: Values
    tried: Choices
    stored: Choices

    @cached_property
    def size(self) -> int:
        """The number of them."""
        return math.prod(map(len, self.tried.values()))

    def decisions(self, index: int) -> Values:
        """Return the combination of a number: the last decision changes from each to the next."""
        values: dict[str, object] = {}
        for name, choices in reversed([*self.tried.items()]):
            index, place = divmod(index, len(choices))
            values[name] = choices[place]
        return {**self.fixed, **values}


def _spelled_out(stated: Values, wanted: Choices) -> Iterator[tuple[Values, Choices]]:
    """Yield pairs of stated and searched decisions, with each value of coupled ones as a statement."""
    coupled = {name: wanted[name] for name in COUPLED if name in wanted}
    others = {name: values for name, values in wanted.items() if name not in coupled}
    for values in itertools.product(*coupled.values()):
        yield {**stated, **dict(zip(coupled, values, strict=True))}, others


def spread(total: int, most: int) -> Sequence[int]:
    """Return all numbers below a total, or `most` of them, spread evenly by steps of the golden section."""
    if total <= most:
        return range(total)
    step = round(total * (math.sqrt(5) - 1) / 2)
    while math.gcd(step, total) != 1:
        step += 1
    return sorted(i * step % total for i in range(most))


def _distance(value: object, preferred: Sequence[object]) -> tuple[int, float]:
    """Return the place of a value among preferred ones, or after them with its octaves from the first."""
    if value in preferred:
        return preferred.index(value), 0.0
    numbers = [each for each in (value, *preferred[:1]) if type(each) is int and each > 0]
    octaves = abs(math.log2(numbers[0] / numbers[1])) if len(numbers) == 2 else 0.0
    return len(preferred), octaves


@dataclass(frozen=True)
class Configuration(Generic[P]):
    """The decisions that set a kernel's time, stated or tried, and the ways to store D beside them."""

    space: Space[P]
    request: Request
    decisions: Values
    stores: Choices

    @cached_property
    def lower_bound(self) -> P:
        """The configuration with the deepest ring that is tried: no kernel of it is cheaper."""
        return self.space.bound(self.request, self.decisions)

    @property
    def overfull(self) -> bool:
        """True if the stages that are stated do not fit into shared memory, however D is stored."""
        bound = self.lower_bound
        return "stages" in self.decisions and bound.stages * bound.stage_bytes > bound.smem_limit_bytes

    def kernels(self) -> Iterator[P]:
        """Yield a kernel for each way to store D, legal or not, each once."""
        decided = {*self.decisions, *self.stores}
        seen: set[tuple[object, ...]] = set()
        for values in itertools.product(*self.stores.values()):
            store = dict(zip(self.stores, values, strict=True))
            kernel = self.space.stored(self.lower_bound, store, self.decisions)
            # Only these tell them apart, and what follows from the memory takes most of the time.
            way = tuple(getattr(kernel, name) for name in self.stores)
            if way not in seen:
                seen.add(way)
                yield self.space.filled(kernel, decided)


def whole_number(value: object) -> int:
    """Return a decision that is one; the spec has checked it."""
    assert isinstance(value, int)
    return value
