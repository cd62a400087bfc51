"""The search for the smallest change of an illegal spec that makes it legal, and the advice made of it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from gemmgen.errors import Advice, Value
from gemmgen.plan.choices import foreign_choices
from gemmgen.plan.decisions import FIELDS, pinned
from gemmgen.plan.fix import of_change
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Rule, Violation, judge
from gemmgen.plan.search import MOST_CONFIGURATIONS, Nogoods
from gemmgen.plan.verdicts import COMPILER_RULE
from gemmgen.planner.best import register_divisions
from gemmgen.planner.changes import (
    applied,
    changed_spec,
    decided_value,
    decision_paths,
    nearby_values,
    union_of,
    value_at,
)
from gemmgen.planner.families import family_of
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.model import stated

MOST_TRIED = 250
"""Configurations among which a legal plan is looked for, for each change that advice could be."""
MOST_JUDGED = 1_500
"""Kernels that are judged for the advice of one spec; then the best change so far is taken."""
LEAST_COUNTED = 4
"""Kernels that each change counts for at least, because reading it as a spec takes time too."""
MOST_PROBLEMS = 60
"""Changes of the problem that are looked at for the advice of one spec."""


def advised(violations: Sequence[Violation], spec: Spec) -> list[Violation]:
    """Return violations whose advice, applied together, gives a legal plan.

    A rule names the values that satisfy itself, and another rule may refuse them. So each alternative was
    found to be legal before it is named: alone, or with the advice of the other violations. If the first
    alternatives of all are illegal together, the violations name the smallest change that was found to be
    legal, in any fields. If none was found, they name no change: an illegal one would be refused in its turn,
    and its advice could be the spec that was refused first.
    """
    search = _RepairSearch(spec)
    named = [violation.fix.changes(violation.field) for violation in violations]
    if all(named) and search.is_legal(union_of(found[0] for found in named)):
        return [
            _with_legal(violation, union_of(found[0] for found in named), own, search)
            for violation, own in zip(violations, named, strict=True)
        ]
    if len(violations) == 1 and (legal := [change for change in named[0] if search.is_legal(change)]):
        return [_limited(violations[0], legal)]
    repair = search.minimal_repair(violations, named)
    if repair:
        return _spread_over_violations(violations, named, repair, search)
    return [replace(each, fix=each.fix.limited_to((), each.field)) for each in violations]


def _with_legal(
    violation: Violation, repair: Advice, own: Sequence[Advice], search: _RepairSearch
) -> Violation:
    """Return a violation with its legal alternatives; the first one is a part of a legal repair."""
    rest = tuple(pair for pair in repair if pair not in own[0])
    return _limited(
        violation,
        [
            own[0],
            *(each for each in own[1:] if search.is_legal(union_of([rest, each])) or search.is_legal(each)),
        ],
    )


def _limited(violation: Violation, legal: Sequence[Advice]) -> Violation:
    """Return a violation that names legal changes and hints; the first of the changes is its advice."""
    return replace(violation, fix=violation.fix.limited_to(legal, violation.field), advice=legal[0])


def _spread_over_violations(
    violations: Sequence[Violation],
    named: Sequence[tuple[Advice, ...]],
    repair: Advice,
    search: _RepairSearch,
) -> list[Violation]:
    """Return violations that name a repair together, each with the changes of its own field.

    The first violation, and each whose own field stays, also names the changes of all other fields.
    """
    repair = _without_parts_of_gone(repair)
    own = [tuple(pair for pair in repair if pair[0] == violation.field) for violation in violations]
    for i, (violation, choices) in enumerate(zip(violations, named, strict=True)):
        # A fix may change others with its field, or leave out what the field is a part of: it stays as it is
        # where the repair does the same.
        if own[i] or violation.field.startswith(_gone(repair)):
            own[i] = next((found for found in choices if set(own[i]) <= set(found) <= set(repair)), own[i])
    told = {path for found in own for path, _ in found}
    rest = tuple(pair for pair in repair if pair[0] not in told)
    result: list[Violation] = []
    for i, (violation, choices, found) in enumerate(zip(violations, named, own, strict=True)):
        advice = (*found, *(rest if not (i and found) else ())) or repair
        if not choices or advice != choices[0]:
            result.append(replace(violation, fix=of_change(advice, violation.field), advice=advice))
        else:
            result.append(_with_legal(violation, repair, choices, search))
    return result


def _without_parts_of_gone(advice: Advice) -> Advice:
    """Return a change without the fields of the sections that it leaves out: who leaves one out has none."""
    return tuple(pair for pair in advice if not pair[0].startswith(_gone(advice)))


def _gone(advice: Advice) -> tuple[str, ...]:
    """Return how the fields of the sections that a change leaves out begin."""
    return tuple(f"{path}." for path, value in advice if value is None)


class _RepairSearch:
    """The search for the smallest change of a spec that gives a legal plan: bounded, the same each time."""

    def __init__(self, spec: Spec) -> None:
        self._data = stated(spec)
        self._left = MOST_JUDGED
        self._known: dict[Advice, Kernel | None] = {}
        self._most_cost = sys.maxsize
        """Cost of the best repair so far: a base that is as dear is not looked at."""

    def is_legal(self, advice: Advice) -> bool:
        """Return True if a legal plan was found for the spec with a change."""
        return self.plan(advice) is not None

    def plan(self, advice: Advice) -> Kernel | None:
        """Return a legal plan for the spec with a change, None if none was found."""
        key = tuple(sorted(advice, key=lambda pair: pair[0]))
        if key not in self._known:
            source = changed_spec(self._data, advice)
            plan, judged = _any_plan(source, self._most_tried, self._left) if source else (None, 0)
            self._known[key], self._left = plan, self._left - max(judged, LEAST_COUNTED)
        return self._known[key]

    @property
    def _most_tried(self) -> int:
        return MOST_CONFIGURATIONS if not self._known else MOST_TRIED

    def minimal_repair(
        self, violations: Sequence[Violation], named: Sequence[tuple[Advice, ...]]
    ) -> Advice | None:
        """Return the smallest change that was found to be legal, None if none was."""
        open_to = set(decision_paths(self._data))
        blamed = [path for path in dict.fromkeys(v.field for v in violations) if path in open_to]
        order = [*blamed, *sorted(open_to - set(blamed))]
        best: tuple[int, Advice] | None = None
        for cost, base in self._feasible_bases(violations, open_to):
            repair = base
            if not base or not self.is_legal(base):
                gone = self._fewest(base, [path for path in order if path not in dict(base)])
                repair = self._with_values(base, gone, named)
            cost += len(repair) - len(base)
            if best is None or cost < best[0]:
                best = cost, repair
                self._most_cost = cost
        return best[1] if best else None

    def _feasible_bases(
        self, violations: Sequence[Violation], open_to: Collection[str]
    ) -> Iterator[tuple[int, Advice]]:
        """Yield changes of the problem with which there is a legal plan if the planner decides all else.

        Each comes with its cost, about the cheapest first: a point for each field that it changes, and one
        for each alternative that a rule names before the one that is taken, because a rule names first what
        changes least of a spec's meaning. The search is over all alternatives. A field that has changed can
        only be left out, because two rules can undo each other's advice. Decisions are changed if rules
        blame nothing else, because a rule of the problem can be silent until they are; in the end, they stay
        as they are if they can.
        """
        # Each has its cost with a point for each fault that is left, these faults, a tie-breaker, its cost.
        first = self._first_of_problem(violations)
        queue: list[tuple[int, int, int, int, Advice]] = [(0, 0, 0, 0, ())]
        if first:
            queue.append((len(first), 0, 0, len(first), first))
        known: set[frozenset[tuple[str, Value]]] = set()
        for _ in range(MOST_PROBLEMS):
            if not queue:
                return
            *_, cost, change = heappop(queue)
            if cost >= self._most_cost:
                continue  # what decisions need more comes on top
            free = union_of([tuple((path, None) for path in open_to), change])
            if self.is_legal(free):
                pruned = self._pruned(change, free, first)
                yield cost - len(change) + len(pruned), pruned
                continue
            source = changed_spec(self._data, free)
            told = _violations(source) if source else ()
            found = (*told, *violations) if not change else told
            ways = [each for violation in found if (each := self._ways(violation, change))]
            of_problem = [kept for each in ways if (kept := [way for way in each if not _decides(way[1])])]
            ways = of_problem or ways
            # One way to mend the first fault is made, whatever else is; at the start, that may be by the way.
            for rank, choice in itertools.chain.from_iterable(ways[:1] if change else ways):
                other = union_of([change, choice])
                if (key := frozenset(other)) not in known:
                    known.add(key)
                    left = sum(all(not set(way) <= key for _, way in each) for each in ways)
                    total = cost + rank + len(choice)
                    heappush(queue, (total + left, left, len(known), total, other))

    def _first_of_problem(self, violations: Sequence[Violation]) -> Advice:
        """Return the first alternatives of violations together, without changes of decisions."""
        ways = (self._ways(violation, ()) for violation in violations)
        return union_of(choice for each in ways for rank, choice in each if not rank and not _decides(choice))

    def _ways(self, violation: Violation, change: Advice) -> list[tuple[int, Advice]]:
        """Return the alternatives of a violation that can follow a change, each with its place."""
        data, before = applied(self._data, change), dict(change)
        fix = violation.fix.for_stated(lambda path: value_at(data, path) is not None)
        return [
            (rank, choice)
            for rank, choice in enumerate(fix.changes(violation.field))
            if all(
                path not in before or (value is None and before[path] is not None) for path, value in choice
            )
        ]

    def _pruned(self, change: Advice, free: Advice, named: Advice) -> Advice:
        """Return a legal change of the problem without the fields that can stay and are not named."""
        kept = dict(free)
        unnamed = [path for path, value in change if (path, value) not in named]
        for path in sorted(unnamed, key=lambda path: path not in FIELDS) if len(change) > 1 else ():
            open_again = {path: None} if value_at(self._data, path) is not None and path in FIELDS else {}
            fewer = {**{each: value for each, value in kept.items() if each != path}, **open_again}
            if self.is_legal(tuple(fewer.items())):
                kept = fewer
        return tuple(pair for pair in change if pair[0] in kept and kept[pair[0]] == pair[1])

    def _fewest(self, base: Advice, order: Sequence[str]) -> tuple[str, ...]:
        """Return a smallest set of fields whose removal was found to make the spec legal."""

        def legal(gone: Iterable[str]) -> bool:
            return self.is_legal(union_of([base, tuple((path, None) for path in gone)]))

        for path in order:
            if legal([path]):
                return (path,)
        gone = list(order)
        for path in reversed(order):  # those that are blamed are kept last
            fewer = [other for other in gone if other != path]
            if legal(fewer):
                gone = fewer
        for pair in itertools.combinations(order, 2) if len(gone) > 2 else ():
            if legal(pair):
                return pair
        return tuple(gone)

    def _with_values(self, base: Advice, gone: Sequence[str], named: Sequence[Sequence[Advice]]) -> Advice:
        """Return the change in which fields that a spec cannot keep have values, if these are legal."""
        left_out = union_of([base, tuple((path, None) for path in gone)])
        plan = self.plan(left_out)
        assert plan is not None
        ruled: dict[str, list[Value]] = {path: [] for path in gone}
        for change in itertools.chain.from_iterable(named):
            if len(change) == 1 and change[0][0] in ruled and change[0][1] is not None:
                ruled[change[0][0]].append(change[0][1])
        if len(gone) == 1:
            for value in nearby_values(gone[0], value_at(self._data, gone[0]), ruled[gone[0]]):
                if self.is_legal(found := union_of([base, ((gone[0], value),)])):
                    return found
        chosen = union_of([base, tuple((path, decided_value(plan, path)) for path in gone)])
        if not self.is_legal(chosen):
            return left_out
        for path in gone:  # what the planner decides may be far from what the spec says
            for value in (*ruled[path], *nearby_values(path, value_at(self._data, path), ())):
                if value == dict(chosen)[path]:
                    break
                if self.is_legal(nearer := union_of([chosen, ((path, value),)])):
                    chosen = nearer
                    break
        return chosen


def _decides(change: Advice) -> bool:
    """Return True if a change is of a decision."""
    return any(path in FIELDS for path, _ in change)


def _any_plan(source: SpecFile, most_tried: int, most_judged: int) -> tuple[Kernel | None, int]:
    """Return a legal plan for a spec, of a part of its configurations, and how many kernels were judged.

    The plan is None if there is none among them.
    """
    family = family_of(source)
    if foreign_choices(source, family):
        return None, 0
    nogoods = Nogoods(family.rules, pinned(source.spec))
    for configuration in family.space.configurations(source, most_tried):
        if nogoods.everything or nogoods.judged > most_judged:
            break
        if nogoods.knows(configuration.decisions) or configuration.overfull:
            continue
        for kernel in configuration.kernels():
            broken: Rule[Kernel] | None = None
            for plan in register_divisions(kernel, configuration):
                if not (broken := nogoods.refuse(plan)):
                    return plan, nogoods.judged
                if broken.id != COMPILER_RULE:
                    break
            if broken is not None and broken.subject != "store":
                break
    return None, nogoods.judged


def _violations(source: SpecFile) -> tuple[Violation, ...]:
    """Return the violations of the first kernel that a spec allows."""
    family = family_of(source)
    if foreign := foreign_choices(source, family):
        return foreign
    kernel = next(iter(family.space.configurations(source))).lower_bound
    return judge(kernel, family.problem_rules) or family.judge(kernel)
