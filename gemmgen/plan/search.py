"""How the kernels of one family are searched: what is tried, what is legal, what it costs.

A *configuration* has every decision on which a kernel's time depends; its *kernels* are the ways to store D
that go with it. The planner looks at configurations in the order of their lower bounds and completes those
that can win.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Generic, TypeVar

from gemmgen.plan.decisions import pinned, searched
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Rule, Violation, decisions_read, first_broken, judge
from gemmgen.plan.timing import Traffic, moved_bytes
from gemmgen.problem import Matmul, Request, Shape
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec import SpecFile


@dataclass(frozen=True)
class Estimate:
    """What a plan is expected to take for a problem: a figure to rank by, no promise."""

    terms: dict[str, float]
    """Cycles of an SM by cause: the ideal, and what is lost on top of it."""
    l2_bytes: int
    """Bytes of A, B and C that programs load; of a multicast tile once for all CTAs that share it."""
    dram_bytes: int
    """Fewest bytes from and to DRAM: each matrix and vector once."""
    dram_seconds: float
    hz: float

    @property
    def cycles(self) -> float:
        """Cycles of an SM, all terms; infinite for a cluster of more CTAs than the GPU has SMs."""
        return sum(self.terms.values())

    @property
    def seconds(self) -> float:
        """The time of the SMs, or that of DRAM where it is the longer one."""
        return max(self.cycles / self.hz, self.dram_seconds)


def estimated(kernel: Kernel, shape: Shape, terms: dict[str, float], step_bytes: float) -> Estimate:
    """Return the estimate for a problem [M, N, K] of a kernel that takes so many cycles by cause.

    `step_bytes` is a CTA's share of what a K step loads, multicast tiles divided by who shares them.
    """
    gpu, dram = kernel.gpu, dram_bytes(kernel.problem, shape)
    return Estimate(
        terms=terms,
        l2_bytes=l2_bytes(kernel, shape, step_bytes),
        dram_bytes=dram,
        dram_seconds=dram / gpu.dram_bytes_per_second,
        hz=gpu.sustained_hz,
    )


def l2_bytes(kernel: Kernel, shape: Shape, step_bytes: float) -> int:
    """Return the bytes that programs load for a problem: a tile's operands at every K step, and its C."""
    tiles_m, tiles_n = kernel.tiles(shape)
    k_steps = math.ceil(shape[2] / kernel.cta_tile_k)
    c = kernel.problem.c
    of_tile = kernel.program_tile_m * kernel.program_tile_n * c.bytes if c else 0
    return round(tiles_m * tiles_n * (k_steps * kernel.cluster_size * step_bytes + of_tile))


def dram_bytes(problem: Matmul, shape: Shape) -> int:
    """Return the fewest bytes from and to DRAM: all that is read, and D written, once."""
    m, n, k = shape
    scales = sum(
        rows * math.ceil(k / operand.scale.vector)
        for operand, rows in ((problem.a, m), (problem.b, n))
        if operand.scale
    )
    return moved_bytes(traffic_of(problem), *shape).every + scales


def traffic_of(problem: Matmul) -> Traffic:
    """Return the bits of elements in DRAM, without block scales."""
    bits = {"m": 0, "n": 0}
    for name in problem.vectors:
        bits[OPERATIONS[name].along] += problem.vector_dtype(name).bits
    return Traffic(
        a=problem.a.dtype.bits,
        b=problem.b.dtype.bits,
        c=problem.c.bits if problem.c else 0,
        d=problem.d.bits,
        row_vectors=bits["m"],
        column_vectors=bits["n"],
    )


def whole_cycles(terms: dict[str, float]) -> float:
    """Return the SM cycles of all terms, to the cycle, so that equal kernels tie."""
    total = sum(terms.values())
    return total if math.isinf(total) else round(total)


def geometric_mean(values: Collection[float]) -> float:
    """Return the geometric mean of positive values, of which some may be infinite."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def excess_of(*used_of_limits: tuple[float, float]) -> float:
    """Return by how much amounts exceed their limits, as a sum of fractions."""
    return sum(max(0.0, used / limit - 1) for used, limit in used_of_limits)


P = TypeVar("P", bound=Kernel)
COUPLED = ("schedule_kind", "order", "promote_k")
"""Decisions from which others follow: each value to search is tried as if it were stated."""
MOST_CONFIGURATIONS = 10_000
"""Of a spec: of more combinations so many are tried, evenly spread over all."""
Values = Mapping[str, object]
"""Values by the name of the decision."""
Choices = Mapping[str, tuple[object, ...]]
"""Values to try by the name of the decision; ties in cost go to earlier ones."""


@dataclass(frozen=True)
class Branch:
    """Decisions that are fixed together, and the values tried for others beside them."""

    fixed: Values
    """Those for which a spec may want other values tried."""
    choices: Choices
    kind: Values = field(default_factory=dict[str, object])
    """Those that tell this branch from others."""


class Space(ABC, Generic[P]):
    """What one family tries."""

    stores: Choices
    """The ways to store D: they take shared memory from the ring, and no time that the cost knows."""
    memory: tuple[str, ...] = ()
    """Decisions that follow from the memory that is left, for which a spec may name values besides."""

    @abstractmethod
    def branches(self, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
        """Yield what to try beside what a spec states, and the values that it wants tried."""

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
        """Yield a kernel of which the compiler has said that it spills with other registers for its roles.

        What is decided of these stays; a family without such a choice yields nothing.
        """
        return iter(())

    @abstractmethod
    def preferred(self, kernel: P) -> Choices:
        """Return what the family itself tries for decisions beside the others of a kernel, the best first."""

    def strangeness(self, kernel: P, names: Collection[str]) -> int:
        """Return how far decisions of a kernel are from what the family prefers: less wins a tie."""
        if not names:
            return 0
        preferred = self.preferred(kernel)
        return sum(_place(getattr(kernel, name), preferred.get(name, ())) for name in names)

    def size(self, source: SpecFile) -> int:
        """Return how many combinations of values a spec leaves open."""
        return sum(grid.size for grid in self._grids(source))

    def configurations(self, source: SpecFile, most: int = MOST_CONFIGURATIONS) -> Iterator[Configuration[P]]:
        """Yield combinations of values that a spec leaves open, legal or not: all, or so many of them."""
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
                open_to = {name: value for name, value in branch.fixed.items() if name not in wanted}
                fixed: dict[str, object] = {**open_to, **branch.kind, **stated}
                choices = {**branch.choices, **wanted}
                tried = {name: values for name, values in choices.items() if name not in (*fixed, *stores)}
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
        """How many there are."""
        return math.prod(map(len, self.tried.values()))

    def decisions(self, index: int) -> Values:
        """Return the combination of a number: the last decision changes from each to the next."""
        values: dict[str, object] = {}
        for name, choices in reversed([*self.tried.items()]):
            index, place = divmod(index, len(choices))
            values[name] = choices[place]
        return {**self.fixed, **values}


def _spelled_out(stated: Values, wanted: Choices) -> Iterator[tuple[Values, Choices]]:
    """Yield what is stated and what is searched, with each value of coupled decisions among the former."""
    coupled = {name: wanted[name] for name in COUPLED if name in wanted}
    others = {name: values for name, values in wanted.items() if name not in coupled}
    for values in itertools.product(*coupled.values()):
        yield {**stated, **dict(zip(coupled, values, strict=True))}, others


def spread(total: int, most: int) -> Sequence[int]:
    """Return all numbers below a total, or so many that are evenly spread in steps of the golden section."""
    if total <= most:
        return range(total)
    step = round(total * (math.sqrt(5) - 1) / 2)
    while math.gcd(step, total) != 1:
        step += 1
    return sorted(i * step % total for i in range(most))


def _place(value: object, preferred: Sequence[object]) -> int:
    """Return the place of a value among those that are preferred, behind all of them where it is none."""
    return preferred.index(value) if value in preferred else len(preferred)


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
        """Whether the stages that are stated do not fit into shared memory, however D is stored."""
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


def decided(kind: type[P], request: Request, decisions: Values) -> P:
    """Return the kernel of these decisions, of which none may lack."""
    return kind(request=request, **decisions)  # pyright: ignore[reportArgumentType] the names are its fields


def whole_number(value: object) -> int:
    """Return a decision that is one; the spec has checked it."""
    assert isinstance(value, int)
    return value


@dataclass(frozen=True)
class Family(Generic[P]):
    """What the planner asks of a family of kernels."""

    kernel: type[P]
    space: Space[P]
    """What is tried where a spec leaves decisions open."""
    rules: tuple[Rule[P], ...]
    cost: Callable[[P, Shape], tuple[float, ...]]
    cost_order: tuple[str, ...]
    """What the parts of a cost are."""
    estimate: Callable[[P, Shape], Estimate]
    excess: Callable[[P], float]
    """Returns by how much an illegal kernel exceeds its limits, as a sum of fractions."""
    columns: tuple[tuple[str, Callable[[P], str]], ...]
    """Of a table of candidates: what tells their kernels apart."""
    legend: str
    """What its words mean."""
    label: Callable[[P], str]
    """Returns the decisions of a kernel's configuration in one line."""
    as_dict: Callable[[P], dict[str, object]]
    """Returns them as plain data."""
    expectations: tuple[Rule[P], ...] = ()
    """What is expected of a proposal: a kernel that breaks these alone is legal, and proposed last."""

    def cost_over(self, kernel: P, shapes: Sequence[Shape]) -> tuple[float, ...]:
        """Return what a kernel costs on several problems [M, N, K], all of the same weight.

        Times are averaged geometrically, so that a kernel that takes twice the best one's on a short problem
        loses as much as one that does so on a long problem; what decides between equal times, arithmetically.
        """
        costs = [self.cost(kernel, shape) for shape in shapes]
        if len(costs) == 1:
            return costs[0]
        times, *others = zip(*costs, strict=True)
        return geometric_mean(times), *(sum(parts) / len(parts) for parts in others)

    def judge(self, kernel: P) -> tuple[Violation, ...]:
        """Return every violation of every rule; a kernel without one is legal."""
        return judge(kernel, self.rules)

    @cached_property
    def cautious_rules(self) -> tuple[Rule[P], ...]:
        """The rules, and what a kernel is expected to keep besides."""
        return (*self.rules, *self.expectations)

    @cached_property
    def decisions(self) -> frozenset[str]:
        """The names of the decisions that its kernels have."""
        return frozenset(field.name for field in fields(self.kernel)) - {"problem"}

    @cached_property
    def problem_rules(self) -> tuple[Rule[P], ...]:
        """Rules of what the spec alone decides: one kernel that breaks them speaks for all."""
        return tuple(rule for rule in self.rules if rule.subject == "problem")

    @cached_property
    def problem_rule_ids(self) -> frozenset[str]:
        """The ids of the rules of the problem."""
        return frozenset(rule.id for rule in self.problem_rules)

    @cached_property
    def store_rules(self) -> frozenset[str]:
        """The ids of the rules of how D is stored: one kernel that breaks only others speaks for all ways."""
        return frozenset(rule.id for rule in self.rules if rule.subject == "store")


MOST_READ = 8
"""Open decisions that a rule reads of which a search remembers the values."""


class Refuted(Generic[P]):
    """What a search has learnt of kernels that are illegal, so that others like them are not looked at.

    A rule that found fault with a kernel finds it with every kernel that has the same values of the
    decisions that it read.
    """

    def __init__(self, rules: Iterable[Rule[P]], stated: Collection[str]) -> None:
        self.refusing: set[Rule[P]] = set()
        """Rules that some kernel broke."""
        self.judged = 0
        """Kernels that rules were asked about."""
        self._stated = frozenset(stated)
        self._rules = list(rules)
        self._tangled: set[Rule[P]] = set()
        """Rules that read so much that hardly two kernels are alike to them."""
        self._known: dict[tuple[str, ...], dict[tuple[object, ...], Rule[P]]] = defaultdict(dict)

    @property
    def everything(self) -> bool:
        """Whether what the spec states is illegal whatever is open."""
        return () in self._known

    def knows(self, decisions: Values) -> Rule[P] | None:
        """Return a rule that kernels with these decisions are known to break, None if none is known."""
        for names, known in self._known.items():
            try:
                values = tuple(decisions[name] for name in names)
            except KeyError:  # one follows from others, which are not all decided yet
                continue
            if broken := known.get(values):
                return broken
        return None

    def refuse(self, kernel: P) -> Rule[P] | None:
        """Return a rule that a kernel breaks, None if it is legal; what broke the last one is asked first."""
        if known := self.knows(vars(kernel)):
            return known
        self.judged += 1
        broken = first_broken(kernel, self._rules)
        if broken is None:
            return None
        self.refusing.add(broken)
        self._rules.remove(broken)
        self._rules.insert(0, broken)
        if broken not in self._tangled:
            self._learn(kernel, broken)
        return broken

    def _learn(self, kernel: P, broken: Rule[P]) -> None:
        read = decisions_read(kernel, broken)
        if read is None:
            return
        names = tuple(sorted(read - self._stated))
        if len(names) > MOST_READ:
            self._tangled.add(broken)
        else:
            self._known[names][tuple(getattr(kernel, name) for name in names)] = broken


def tile_and_cluster(kernel: Kernel) -> list[str]:
    """Return the tile of a kernel's CTAs, and their cluster where there is one, in words."""
    tile = f"{kernel.cta_tile_m} x {kernel.cta_tile_n} x {kernel.cta_tile_k}"
    tile += " staggered" * (kernel.tiles_together > 1)
    return [tile, *([f"cluster {kernel.cluster_m} x {kernel.cluster_n}"] if kernel.cluster_size > 1 else [])]


def narrow_tile(kernel: Kernel) -> str:
    """Return the tile of a kernel's CTAs for the cell of a table: with an s if it is staggered."""
    staggered = "s" * (kernel.tiles_together > 1)
    return f"{kernel.cta_tile_m}x{kernel.cta_tile_n}x{kernel.cta_tile_k}{staggered}"


def narrow_cluster(kernel: Kernel) -> str:
    """Return the CTAs of a kernel's cluster for the cell of a table."""
    return f"{kernel.cluster_m}x{kernel.cluster_n}"
