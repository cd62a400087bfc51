"""From a spec to a plan: enumerate what the spec leaves open, judge by the rules, rank by cost; and say why.

``plan_spec`` finds the first one; ``rank`` puts all of them in order: which are legal, and why others are not
planned.
"""

from __future__ import annotations

import copy
import itertools
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, cast

from gemmgen.errors import Advice, Diagnostic, GemmgenError, Value
from gemmgen.hardware.gpus import power_of_two_below
from gemmgen.plan.choices import foreign_choices
from gemmgen.plan.decisions import FIELDS, pinned, searched
from gemmgen.plan.fix import clause, leave_out, of_change, use
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Rule, Violation, judge
from gemmgen.plan.search import MOST_CONFIGURATIONS, Configuration, Estimate, Family, Refuted, geometric_mean
from gemmgen.plan.tcgen05.family import TCGEN05_FAMILY
from gemmgen.plan.verdicts import COMPILER_RULE
from gemmgen.plan.wgmma.family import WGMMA_FAMILY
from gemmgen.problem import Request, Shape, shape_text
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.model import spec_of, stated
from gemmgen.spec.values import SIZE_LIMIT

FAMILIES = cast(
    "Mapping[str, Family[Kernel]]",
    {"wgmma": WGMMA_FAMILY, "tcgen05": TCGEN05_FAMILY},
)
"""Each family by its instruction. The cast is safe: a family is only given kernels that it made."""


def family_of(source: SpecFile) -> Family[Kernel]:
    """Return the family of a spec's target."""
    return FAMILIES[source.request.gpu.architecture.mma]


def family_for(kernel: Kernel) -> Family[Kernel]:
    """Return the family that made a kernel."""
    return FAMILIES[kernel.architecture.mma]


Rejected = tuple[Kernel, tuple[Violation, ...]]


Tick = Callable[[int, int], None]
"""Is told of how many combinations so many have been looked at."""


def _unheard(_: int, __: int) -> None:
    """Tell nobody."""


def plan_spec(source: SpecFile, tick: Tick = _unheard) -> Kernel:
    """Return the best legal plan for a spec.

    Raises:
        GemmgenError: No combination is legal; carries what is wrong with the one that comes closest.
    """
    found = attempted(source, tick)
    if isinstance(found, Kernel):
        return found
    raise GemmgenError(violation.diagnosed(source) for violation in advised(found, source.spec))


def attempted(source: SpecFile, tick: Tick = _unheard) -> Kernel | Sequence[Violation]:
    """Return the best legal plan for a spec, or what is wrong with the one that comes closest.

    That is in the order of the file, and each rule's advice is its own: what it advises may break another.
    """
    family = family_of(source)
    if foreign := foreign_choices(source, family):
        return _in_order(foreign, source)
    if (best := _best(source, family, tick)) is not None:
        return best
    plan, violations = closest(source, family)
    if not violations:  # where there was more to try than was tried, the closest one can be legal
        return plan
    return _in_order((_as_searched(found, source.spec) for found in violations), source)


def _in_order(violations: Iterable[Violation], source: SpecFile) -> list[Violation]:
    """Return violations in the order of the file."""
    return sorted(violations, key=lambda violation: source.locate(violation.field))


def _best(source: SpecFile, family: Family[Kernel], tick: Tick) -> Kernel | None:
    """Return the best legal plan for a spec that keeps what is expected of one, or else the best legal one.

    None if no combination is legal.
    """
    refuted = Refuted(family.cautious_rules, pinned(source.spec))
    best = _best_by(refuted, source, family, tick)
    if best is not None or refuted.refusing.isdisjoint(family.expectations):
        return best
    return _best_by(Refuted(family.rules, pinned(source.spec)), source, family, tick)


def _best_by(refuted: Refuted[Kernel], source: SpecFile, family: Family[Kernel], tick: Tick) -> Kernel | None:
    """Return the best plan for a spec that keeps the rules of a new search, None if no combination does.

    Of plans that cost the same, that which is closer to the family's own choices, whatever the order of the
    values that the spec wants searched; then the one that is tried first.
    """
    shapes, wanted = source.request.planned_shapes, searched(source.spec)
    bounded: list[tuple[tuple[float, ...], Configuration[Kernel]]] = []
    total = min(family.space.size(source), MOST_CONFIGURATIONS)
    for done, found in enumerate(family.space.configurations(source)):
        tick(done, total)
        if not bounded:  # what the spec states is judged before others are looked at
            refuted.refuse(next(found.kernels()))
        if refuted.everything:
            return None
        if not refuted.knows(found.decisions):
            bounded.append((family.cost_over(found.lower_bound, shapes), found))
    best: tuple[tuple[float, ...], int, int, Kernel] | None = None
    passed_over: list[Iterator[Kernel]] = []
    for number in sorted(range(len(bounded)), key=lambda number: bounded[number][0]):
        bound, configuration = bounded[number]
        if best is not None and bound > best[0]:
            break  # no later configuration is as cheap
        if refuted.everything:
            break
        if refuted.knows(configuration.decisions) or configuration.overfull:
            continue
        kernels = configuration.kernels()
        for kernel in kernels:
            broken: Rule[Kernel] | None = None
            for plan in _divisions(kernel, configuration):
                cost = family.cost_over(plan, shapes)
                ranked = cost, family.space.strangeness(plan, wanted), number
                if best is not None and (cost > best[0] or ranked >= best[:3]):
                    break
                if not (broken := refuted.refuse(plan)):
                    best = (*ranked, plan)
                if broken is None or broken.id != COMPILER_RULE:
                    break
            if broken is not None and broken.subject != "store":
                passed_over.append(kernels)
                break
    if best is None and not refuted.everything:
        return _first_stored(passed_over, refuted)
    return best[3] if best else None


def _divisions(kernel: Kernel, configuration: Configuration[Kernel]) -> Iterator[Kernel]:
    """Yield a kernel, and then the same with other registers for its roles."""
    yield kernel
    yield from configuration.space.redivided(kernel, configuration.decisions)


MOST_STORED_OTHERWISE = 300
"""Kernels that are judged, the cheapest first, where none is legal with its first way to store D."""


def _first_stored(passed_over: Iterable[Iterator[Kernel]], refuted: Refuted[Kernel]) -> Kernel | None:
    """Return the first legal one of other ways to store D, None if there is none among those that are judged.

    Registers, which are no matter of storing D, can be too few for a whole tile of it and enough for a part.
    """
    most = refuted.judged + MOST_STORED_OTHERWISE
    for kernels in passed_over:
        for plan in kernels:
            if refuted.everything or refuted.judged > most:
                return None
            if not refuted.refuse(plan):
                return plan
    return None


MOST_REJECTED, SOME_REJECTED = 600, 300
"""Configurations of which the closest one is looked for: all of up to 600, 300 of more."""
MOST_STORED = 60
"""Of these, those of which every way to store D is judged, not only the first."""


def closest(source: SpecFile, family: Family[Kernel]) -> Rejected:
    """Return the plan for which the spec's own values are most to blame, least wrong, and what is wrong.

    A violation in a field that the planner chose is reported only if the spec's fields have none. A field
    whose values the spec wants searched is the spec's. A plan that the compiler alone refuses is the least
    wrong. Of many configurations a part is looked at, evenly spread over all.
    """
    shapes = source.request.planned_shapes
    own = {*source.positions, *source.spec.search}

    def to_blame(violations: tuple[Violation, ...]) -> tuple[Violation, ...]:
        return tuple(violation for violation in violations if violation.field in own)

    def wrong(candidate: Rejected) -> tuple[bool, int, int, float]:
        by_spec = len(to_blame(candidate[1]))
        by_rules = any(violation.rule != COMPILER_RULE for violation in candidate[1])
        return by_rules, len(candidate[1]) - by_spec, by_spec, family.excess(candidate[0])

    first: list[tuple[tuple[bool, int, int, float], Rejected, Iterator[Kernel]]] = []
    most = MOST_REJECTED if family.space.size(source) <= MOST_REJECTED else SOME_REJECTED
    for configuration in family.space.configurations(source, most):
        kernels = configuration.kernels()
        plan = next(kernels)
        candidate = plan, family.judge(plan)
        first.append((wrong(candidate), candidate, kernels))
        if _blames_the_problem_alone(candidate, family):
            break  # no later configuration comes closer
    first.sort(key=lambda found: found[0])
    rejected = [(rank, candidate) for rank, candidate, _ in first]
    for _, (_, violations), others in first[:MOST_STORED]:
        if family.store_rules.isdisjoint(violation.rule for violation in violations):
            continue  # they say the same of all ways to store D
        judged = ((plan, family.judge(plan)) for plan in others)
        rejected += ((wrong(candidate), candidate) for candidate in judged)
    least = min(rank for rank, _ in rejected)
    tied = (candidate for rank, candidate in rejected if rank == least)
    plan, violations = min(tied, key=lambda candidate: family.cost_over(candidate[0], shapes))
    return plan, to_blame(violations) or violations


def _blames_the_problem_alone(candidate: Rejected, family: Family[Kernel]) -> bool:
    rules = family.problem_rule_ids
    return all(violation.rule in rules for violation in candidate[1]) and not family.excess(candidate[0])


# --- advice that ends

MOST_TRIED = 250
"""Configurations among which a legal plan is looked for, for each change that advice could be."""
MOST_JUDGED = 1_500
"""Kernels that are judged for the advice of one spec, before it settles for what is known to be legal."""
LEAST_COUNTED = 4
"""What a change counts at least, of so many kernels: it is read as a spec too."""
MOST_VALUES = 12
"""Values that are tried for a field that ends a fault alone, the nearest to the stated one first."""
MOST_ROUNDS = 8
"""Faults of the problem of which one hides the next."""
PLACE_DIGITS = 9
"""Of the place of an item in a list, to which digits are filled up to be sorted as text."""
COUNTS = ("stages", "width", "splits", "consumers", "occupancy", "epilogue", "accumulators")
"""What fields end in whose neighbours differ by one; others by a factor of two, registers by eight."""


def advised(violations: Sequence[Violation], spec: Spec) -> list[Violation]:
    """Return violations with advice that ends: what they advise, applied together, gives a legal plan.

    A rule names the nearest value that satisfies itself. Where such values together are not legal, the
    violations name the smallest change that was found to be, whichever fields it is of.
    """
    mend = _Mend(spec)
    named = [violation.fix.changes(violation.field) for violation in violations]
    if all(named) and len(violations) > 1 and mend.is_legal(_union(found[0] for found in named)):
        return [
            replace(violation, advice=found[0]) for violation, found in zip(violations, named, strict=True)
        ]
    if len(violations) == 1 and (legal := [change for change in named[0] if mend.is_legal(change)]):
        only = violations[0].fix.limited_to(legal, violations[0].field)
        return [replace(violations[0], fix=only, advice=legal[0])]
    repair = mend.smallest(violations, named)
    return _told(violations, named, repair) if repair else list(violations)


def _union(advice: Iterable[Advice]) -> Advice:
    """Return what several pieces of advice change together; of one field the last value."""
    return tuple({path: value for each in advice for path, value in each}.items())


def _told(
    violations: Sequence[Violation], named: Sequence[tuple[Advice, ...]], repair: Advice
) -> list[Violation]:
    """Return violations that name a repair together: each what it changes of its own field.

    What is of no violation's field, the first one names too, and those of whose fields nothing changes.
    """
    own = [tuple(pair for pair in repair if pair[0] == violation.field) for violation in violations]
    for i, choices in enumerate(named):
        # A fix may change others with its field: it stays as it is where the repair does the same.
        own[i] = next(
            (found for found in choices if own[i] and set(own[i]) <= set(found) <= set(repair)), own[i]
        )
    told = {path for found in own for path, _ in found}
    rest = tuple(pair for pair in repair if pair[0] not in told)
    result: list[Violation] = []
    for i, (violation, choices, found) in enumerate(zip(violations, named, own, strict=True)):
        advice = (*found, *(rest if not (i and found) else ())) or repair
        if not choices or advice != choices[0]:
            violation = replace(violation, fix=of_change(advice, violation.field))
        result.append(replace(violation, advice=advice))
    return result


class _Mend:
    """The search for the smallest change of a spec that gives a legal plan: bounded, the same each time."""

    def __init__(self, spec: Spec) -> None:
        self._data = stated(spec)
        self._left = MOST_JUDGED
        self._known: dict[Advice, Kernel | None] = {}

    def is_legal(self, advice: Advice) -> bool:
        """Whether a legal plan was found for the spec with a change."""
        return self.plan(advice) is not None

    def plan(self, advice: Advice) -> Kernel | None:
        """Return a legal plan for the spec with a change, None if none was found."""
        key = tuple(sorted(advice, key=lambda pair: pair[0]))
        if key not in self._known:
            source = _changed(self._data, advice)
            plan, judged = _any_plan(source, self._most_tried, self._left) if source else (None, 0)
            self._known[key], self._left = plan, self._left - max(judged, LEAST_COUNTED)
        return self._known[key]

    @property
    def _most_tried(self) -> int:
        return MOST_CONFIGURATIONS if not self._known else MOST_TRIED

    def smallest(self, violations: Sequence[Violation], named: Sequence[tuple[Advice, ...]]) -> Advice | None:
        """Return the smallest change that was found to be legal, None if none was."""
        open_to = set(decision_paths(self._data))
        blamed = [path for path in dict.fromkeys(v.field for v in violations) if path in open_to]
        problem = [
            (violation.field, found[0])
            for violation, found in zip(violations, named, strict=True)
            if found and violation.field not in open_to
        ]
        base = self._sound(_union(found for _, found in problem), open_to)
        if base is None:  # what the planner chose itself was blamed, and it can choose otherwise
            base = self._sound(_union(found for field, found in problem if field not in FIELDS), open_to)
        if base is None:
            return None
        if self.is_legal(base):
            return base
        order = [*blamed, *sorted(open_to - set(blamed))]
        gone = self._fewest(base, order)
        return None if gone is None else self._with_values(base, gone, named)

    def _sound(self, problem: Advice, open_to: Collection[str]) -> Advice | None:
        """Return a change of the problem with which there is a legal plan if the planner decides all else."""
        for _ in range(MOST_ROUNDS):
            free = _union([problem, tuple((path, None) for path in open_to)])
            if self.is_legal(free):
                return problem
            source = _changed(self._data, free)
            if source is None:
                return None
            found = _violations(source)
            more = [choices[0] for v in found if (choices := v.fix.changes(v.field))]
            changed = _union([problem, *(each for each in more if not open_to & dict(each).keys())])
            if changed == problem:
                return None
            problem = changed
        return None

    def _fewest(self, base: Advice, order: Sequence[str]) -> tuple[str, ...] | None:
        """Return the fewest fields that were found to be enough to leave out, of which none can be kept."""

        def legal(gone: Iterable[str]) -> bool:
            return self.is_legal(_union([base, tuple((path, None) for path in gone)]))

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
        left_out = _union([base, tuple((path, None) for path in gone)])
        plan = self.plan(left_out)
        assert plan is not None
        ruled: dict[str, list[Value]] = {path: [] for path in gone}
        for change in itertools.chain.from_iterable(named):
            if len(change) == 1 and change[0][0] in ruled and change[0][1] is not None:
                ruled[change[0][0]].append(change[0][1])
        if len(gone) == 1:
            for value in _nearby(gone[0], _at(self._data, gone[0]), ruled[gone[0]]):
                if self.is_legal(found := _union([base, ((gone[0], value),)])):
                    return found
        chosen = _union([base, tuple((path, _decided(plan, path)) for path in gone)])
        if not self.is_legal(chosen):
            return left_out
        for path in gone:  # what the planner decides may be far from what the spec says
            for value in (*ruled[path], *_nearby(path, _at(self._data, path), ())):
                if value == dict(chosen)[path]:
                    break
                if self.is_legal(nearer := _union([chosen, ((path, value),)])):
                    chosen = nearer
                    break
        return chosen


def _nearby(path: str, value: object, ruled: Sequence[Value]) -> list[Value]:
    """Return values that a field might have in the place of another one, the nearest first."""
    if isinstance(value, bool) or not isinstance(value, int):
        return list(ruled)
    near = [each for each in ruled if isinstance(each, int)]
    if ".registers." in path:
        near += [value // 8 * 8 + 8 * i for i in range(-MOST_VALUES // 2, MOST_VALUES // 2)]
    elif path.endswith(COUNTS):
        near += [value + i for i in range(-MOST_VALUES // 2, MOST_VALUES // 4)]
    power = power_of_two_below(max(1, value))
    near += [power >> i for i in range(MOST_VALUES // 2)] + [power << 1, power << 2]
    usable = {each for each in near if 0 < each <= SIZE_LIMIT and each != value}
    return [*sorted(usable, key=lambda each: (abs(math.log(each / max(1, value))), each))[:MOST_VALUES]]


def _decided(plan: Kernel, path: str) -> Value:
    """Return a plan's decision as a spec has it, in a list where the spec wants values searched."""
    searched_path = path.removeprefix("search.")
    name = FIELDS.get(searched_path)
    value: Value = getattr(plan, name, None) if name else None
    return (value,) if path != searched_path and value is not None else value


def _at(data: Mapping[str, Any], path: str) -> object:
    """Return what a spec's plain data state at a path, None for nothing, or values that are searched."""
    value: Any = data
    for step in path.split("."):
        value = cast("dict[str, Any]", value).get(step) if isinstance(value, dict) else None
    return value


def decision_paths(data: Mapping[str, Any]) -> list[str]:
    """Return the fields of plain data that decide what the planner could, those that are searched too."""
    paths = [path for path in FIELDS if _at(data, path) is not None]
    kept = ["dependent_launch" if path == "dependent_launch.early" else path for path in paths]
    return [*kept, *(f"search.{path}" for path in data.get("search", {}))]


def applied(data: Mapping[str, Any], advice: Advice) -> dict[str, Any]:
    """Return a spec's plain data with a change; what is left out of a list makes it shorter."""
    changed = copy.deepcopy(dict(data))
    # The later items of a list go first, so that the places of others stay what they are: 10 before 9.
    places = sorted(advice, key=lambda pair: [step.zfill(PLACE_DIGITS) for step in _steps(pair[0])])
    for path, value in reversed(places):
        *sections, last = _steps(path)
        section: Any = changed
        for step in sections:
            if isinstance(section, list):
                section = cast("list[Any]", section)[int(step)]
            else:
                section = cast("dict[str, Any]", section).setdefault(step, {})
        key: Any = int(last) if isinstance(section, list) else last
        if value is not None:
            section[key] = list(value) if isinstance(value, tuple) else value
        elif isinstance(section, list) or key in section:
            del section[key]
    return changed


def _changed(data: Mapping[str, Any], advice: Advice) -> SpecFile | None:
    """Return the spec that plain data with a change is, None if it is no spec."""
    spec = spec_of(applied(data, advice))
    return SpecFile.of(spec) if spec else None


def _steps(path: str) -> tuple[str, ...]:
    """Return the steps to a field: what is searched has the dots of its path in its name."""
    if path.startswith("search."):
        return "search", path.removeprefix("search.")
    return tuple(path.split("."))


def _any_plan(source: SpecFile, most_tried: int, most_judged: int) -> tuple[Kernel | None, int]:
    """Return a legal plan for a spec, of a part of its configurations, and how many kernels were judged.

    The plan is None where none is among them.
    """
    family = family_of(source)
    if foreign_choices(source, family):
        return None, 0
    refuted = Refuted(family.rules, pinned(source.spec))
    for configuration in family.space.configurations(source, most_tried):
        if refuted.everything or refuted.judged > most_judged:
            break
        if refuted.knows(configuration.decisions) or configuration.overfull:
            continue
        for kernel in configuration.kernels():
            broken: Rule[Kernel] | None = None
            for plan in _divisions(kernel, configuration):
                if not (broken := refuted.refuse(plan)):
                    return plan, refuted.judged
                if broken.id != COMPILER_RULE:
                    break
            if broken is not None and broken.subject != "store":
                break
    return None, refuted.judged


def _violations(source: SpecFile) -> tuple[Violation, ...]:
    """Return what is wrong with a spec of which no field is more to blame than another."""
    family = family_of(source)
    if foreign := foreign_choices(source, family):
        return foreign
    kernel = next(iter(family.space.configurations(source))).lower_bound
    return judge(kernel, family.problem_rules) or family.judge(kernel)


def _as_searched(violation: Violation, spec: Spec) -> Violation:
    """Return a violation of a field whose values the spec wants searched as one of those values."""
    if violation.field not in spec.search:
        return violation
    field = f"search.{violation.field}"
    named = [dict(found) for found in violation.fix.changes(violation.field)]
    values = [found[violation.field] for found in named if list(found) == [violation.field]]
    lists = dict.fromkeys((value,) for value in values if value is not None)
    return replace(violation, field=field, fix=use(*lists) if lists else leave_out())


# --- what is legal, and yet worth a word

FEW_WAVES = 0.5
"""Below which more than half of the programs that the GPU could hold have no tile."""


def warnings(source: SpecFile, plan: Kernel) -> tuple[Diagnostic, ...]:
    """Return what a user of a legal plan should know: SMs that stay idle, a space that was only sampled."""
    found = [*_idle(plan), *_sampled(source)]
    return tuple(replace(each.diagnosed(source), severity="warning") for each in _in_order(found, source))


def _idle(plan: Kernel) -> Iterator[Violation]:
    gpu = plan.gpu
    programs = plan.resident_programs // plan.occupancy
    if idle := gpu.sm_count - programs * plan.cluster_size:
        yield Violation(
            "idle-sms",
            "cluster.m" if plan.cluster_m >= plan.cluster_n else "cluster.n",
            f"{programs} clusters of {plan.cluster_m} x {plan.cluster_n} CTAs run at a time",
            f"which leaves {idle} of the {gpu.sm_count} SMs of an {gpu.name} without work",
            clause("smaller clusters leave fewer"),
        )
    for i, shape in enumerate(plan.request.bench_shapes):
        if (waves := plan.waves(shape)) < FEW_WAVES:
            yield Violation(
                "few-waves",
                f"bench.shapes.{i}",
                f"{waves:.2f} waves of tiles",
                f"{1 - waves:.0%} of the programs that the {gpu.name} holds have no tile of this problem",
                clause("smaller tiles, or parts of K, are more"),
            )


def _sampled(source: SpecFile) -> Iterator[Violation]:
    search = source.spec.search
    if (size := family_of(source).space.size(source)) > MOST_CONFIGURATIONS:
        yield Violation(
            "large-search",
            f"search.{next(iter(search))}" if search else "",
            f"{size:,} combinations",
            f"{MOST_CONFIGURATIONS:,} of them were tried, evenly spread over all",
            clause("state more fields, or fewer values, for all to be"),
        )


# --- the ranking, and its explanation

MOST_OF_ONE_TIME = 2
"""Candidates of the same predicted time that are measured."""
TEXT_WIDTH = 110
Refusal = tuple[tuple[float, ...], str, tuple[Violation, ...]]
"""The cost of a configuration, its label, and what is wrong with it."""


@dataclass(frozen=True)
class Candidate:
    """A legal plan with what it is expected to cost."""

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

        Of several problems, on that on which it loses most. Where the times are equal, this is the first part
        of the cost in which they differ, and no cycles.
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
        """Return plain data for JSON; of several problems what it takes for each, in their order."""
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
    """What the rule found in the example, or by how much the term made it slower."""


@dataclass(frozen=True)
class Ranking:
    """The legal configurations of a spec, best first, and the refused ones by rule."""

    request: Request
    legal: tuple[Candidate, ...]
    refused: tuple[Group, ...]
    refusals: int
    """Configurations without a legal plan; one that breaks several rules is in several groups."""

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

        What it cannot tell apart is mostly one tile with other K steps: more of them leave others no place.
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

    def table(self, limit: int) -> str:
        """Return the first candidates as aligned lines."""
        count, family = len(self.legal), self.legal[0].family
        measures = MEASURES if len(self.shapes) == 1 else MEASURES_OF_SEVERAL
        columns = ["", *(name for name, _ in family.columns), *measures]
        rows = [columns, *(self._cells(i, c) for i, c in enumerate(self.legal[:limit], 1))]
        total = f"{count} legal configurations of {count + self.refusals} for {self._purpose}"
        return "\n".join([*_folded(total), *_aligned(rows), family.legend, *self._legend])

    @property
    def _purpose(self) -> str:
        """What the candidates are ranked for, in words."""
        if len(self.shapes) == 1:
            return " x ".join(map(str, self.shapes[0]))
        rows = dict.fromkeys(str(m) for m, _, _ in self.shapes)
        others = dict.fromkeys(f"{n} x {k}" for _, n, k in self.shapes)
        of_others = f", each with {' and '.join(others)}" if len(others) > 1 else ""
        return f"{self.request.ranges}; what decides: M = {', '.join(rows)}{of_others}"

    @property
    def _legend(self) -> tuple[str, ...]:
        return (LEGEND,) if len(self.shapes) == 1 else (LEGEND_OF_SEVERAL, LEGEND)

    def _cells(self, place: int, candidate: Candidate) -> list[str]:
        winner, plan = self.legal[0], candidate.plan
        slower = candidate.cost[0] / winner.cost[0] - 1
        decided = "" if candidate is winner else f"{slower:.1%} {candidate.lost_by(winner)[0]}"
        known = [str(place), *(cell(plan) for _, cell in candidate.family.columns)]
        if len(self.shapes) == 1:
            (shape,), (found,) = self.shapes, candidate.estimates
            measures = (plan.waves(shape), found.l2_bytes / 1e9)
            return [*known, *(f"{each:.2f}" for each in measures), f"{found.seconds * 1e6:.1f}", decided]
        over, worst = candidate.over(self.best), candidate.worst_against(self.best)
        ranges = self.request.ranges
        only_m = ranges is not None and len(set(ranges.n)) == len(set(ranges.k)) == 1
        at = f"M = {self.shapes[worst][0]}" if only_m else shape_text(self.shapes[worst])
        return [*known, f"{geometric_mean(over):.3f}", f"{over[worst]:.3f}", at, decided]

    def explanation(self) -> str:
        """Return why the other configurations are not planned, group by group."""
        lost = _paragraph(f"{len(self.legal) - 1} legal ones cost more; what decides", self.lost)
        refused = _paragraph(f"{self.refusals} are refused; by which rule", self.refused)
        return "\n".join([*lost, "", *refused])

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


def rank(source: SpecFile, tick: Tick = _unheard) -> Ranking:
    """Return all configurations of a spec, for the problems that it is planned for.

    What does not keep what is expected of a plan is among the refused ones, unless there is no other.
    Of the ways to store D that go with a configuration, the best legal one stands for it.
    """
    found = _rank_by(family_of(source).cautious_rules, source, tick)
    return found if found.legal else _rank_by(family_of(source).rules, source, tick)


def _rank_by(rules: Sequence[Rule[Kernel]], source: SpecFile, tick: Tick) -> Ranking:
    """Return all configurations of a spec, of which those are legal that keep the rules."""
    request, family = source.request, family_of(source)
    shapes, wanted = request.planned_shapes, searched(source.spec)
    legal: list[Candidate] = []
    refused: list[Refusal] = []
    total = min(family.space.size(source), MOST_CONFIGURATIONS)
    for done, configuration in enumerate(family.space.configurations(source)):
        tick(done, total)
        plan, cost, violations = _best_plan(family, rules, configuration, shapes, wanted)
        if violations:
            refused.append((cost, family.label(plan), violations))
        else:
            estimates = tuple(family.estimate(plan, shape) for shape in shapes)
            legal.append(Candidate(family, plan, estimates, cost))
    legal.sort(key=lambda found: (found.cost, family.space.strangeness(found.plan, wanted)))
    refused.sort(key=lambda refusal: refusal[0])
    return Ranking(request, tuple(legal), tuple(_by_rule(refused)), len(refused))


def _best_plan(
    family: Family[Kernel],
    rules: Sequence[Rule[Kernel]],
    configuration: Configuration[Kernel],
    shapes: Sequence[Shape],
    wanted: Collection[str],
) -> tuple[Kernel, tuple[float, ...], tuple[Violation, ...]]:
    """Return the cheapest legal plan of a configuration; without one, that which breaks the fewest rules.

    Beside it are its cost, and what is wrong with it.
    """
    judged: list[tuple[Kernel, tuple[float, ...], tuple[Violation, ...]]] = []
    plans = [
        (family.cost_over(plan, shapes), family.space.strangeness(plan, wanted), plan)
        for plan in configuration.kernels()
    ]
    for _, _, kernel in sorted(plans, key=itemgetter(0, 1)):
        for plan in _divisions(kernel, configuration):
            cost, violations = family.cost_over(plan, shapes), judge(plan, rules)
            if not violations:
                return plan, cost, ()
            judged.append((plan, cost, violations))
            if {each.rule for each in violations} != {COMPILER_RULE}:
                break
    return min(judged, key=lambda item: len(item[2]))


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
MEASURES_OF_SEVERAL = ("mean", "worst", "at", "lost by")
"""The same where several problems decide."""


LEGEND = "time is a prediction to rank by, and no measurement"
LEGEND_OF_SEVERAL = "mean (geometric) and worst over these problems: the time over that of the best one there"


def _folded(text: str) -> list[str]:
    """Return text in lines of a terminal's width."""
    return textwrap.wrap(text, TEXT_WIDTH, subsequent_indent="  ")


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = {i for i, name in enumerate(rows[0]) if name in ("kernel", "tile", "CTAs", "at", "lost by")}
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
