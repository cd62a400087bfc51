"""Rules, the runner that judges a plan by them, and the violations that they report.

A rule judges one thing: it yields a finding for every spec field that breaks it, with the numbers and the
nearest legal value. It is silent if a rule that it comes *after* is broken, so a value that is no power of
two is reported once, and not by every rule that divides by it. A rule that was silent found nothing and
silences no other, so each rule names all on which it relies. It can name only rules that are declared above
it, so there is no circle; the runner evaluates each rule once, those that it comes after first, and reports
in the order of its list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache, wraps
from operator import itemgetter
from typing import Generic, Literal, Never, TypeVar, cast, overload

from gemmgen.errors import Advice, Diagnostic
from gemmgen.plan.fix import Fix
from gemmgen.plan.kernel import Kernel
from gemmgen.spec import SpecFile

P = TypeVar("P", contravariant=True)
Judged = TypeVar("Judged")
AnyPlan = TypeVar("AnyPlan", bound=Kernel)
Planned = TypeVar("Planned", bound=Kernel)
Computed = TypeVar("Computed")
Subject = Literal["problem", "plan", "store"]
"""The subject of a rule.

``problem``: the rule depends on the spec alone, so that one plan that breaks it speaks for all;
``store``: the rule depends on the way to store D; a plan that breaks only other rules speaks for all ways;
``plan``: the rule depends on other decisions.
"""


@dataclass(frozen=True)
class Finding:
    """A fault that a rule found in a plan: a violation without the rule's id."""

    field: str
    """Dotted path of the spec field to change."""
    found: str
    """The offending value with its consequence, in numbers."""
    limit: str
    """The limit of the hardware or the compiler."""
    fix: Fix
    """The nearest legal value, or several."""


@dataclass(frozen=True)
class Violation:
    """One broken constraint: the value that was found, the limit, and the nearest way to comply."""

    rule: str
    """Id of the rule, e.g. ``smem-capacity``."""
    field: str
    """Dotted path of the spec field to change, e.g. ``buffering.stages``."""
    found: str
    """The offending value with its consequence, in numbers: ``5 stages need 278,752 bytes``."""
    limit: str
    """The limit of the hardware or the compiler: ``the limit is 232,448``."""
    fix: Fix
    """The nearest legal value, or several: ``use at most 4``; none if the planner found none."""
    advice: Advice = ()
    """Changes that a machine should make; the planner finds them, a rule leaves them empty."""

    def __str__(self) -> str:
        fix = str(self.fix)
        return f"{self.found}, {self.limit}; {fix}" if fix else f"{self.found}, {self.limit}"

    def diagnosed(self, source: SpecFile) -> Diagnostic:
        """Return the message for the violation, at the line of the spec that has to change."""
        line, column = source.locate(self.field)
        return Diagnostic(
            path=source.path,
            code=self.rule,
            message=str(self),
            field=self.field or None,
            line=line,
            column=column,
            advice=self.advice,
            fix=self.fix.of(self.field),
        )


@dataclass(frozen=True, eq=False)
class Rule(Generic[P]):
    """A constraint on plans."""

    id: str
    says: str
    """A sentence that holds for each plan that keeps the rule, and the source of its limits."""
    subject: Subject
    after: tuple[Rule[P] | Part[P], ...]
    """The rule is silent where one of these is broken."""
    consults: tuple[Rule[P] | Part[P], ...]
    """The rule speaks where one of these is broken, but says something else."""
    findings: Callable[[P, Consulted], Iterator[Finding]]

    @cached_property
    def none_broken(self) -> Consulted:
        """The `Consulted` that it gets if it consults no broken rule."""
        return Consulted(dict.fromkeys(self.consults, False))

    def at(self, *fields: str) -> Part[P]:
        """Return the rule as far as it finds fault with some of its fields."""
        return Part(self, fields)


@dataclass(frozen=True)
class Part(Generic[P]):
    """A rule as far as it finds fault with some of its fields."""

    rule: Rule[P]
    fields: tuple[str, ...]


class Consulted:
    """Which of the rules that a rule consults are broken."""

    def __init__(self, broken: dict[object, bool]) -> None:
        self._broken = broken

    def broken(self, *asked: Rule[Never] | Part[Never]) -> bool:
        """Return True if one of the rules is broken.

        Raises:
            KeyError: The rule that asks does not consult one of them.
        """
        broken = [self._broken[part] for part in asked]  # all of them: none may be asked without being named
        return any(broken)


@overload
def rule(
    name: str, *, subject: Subject = "plan"
) -> Callable[[Callable[[P], Iterator[Finding]]], Rule[P]]: ...
@overload
def rule(
    name: str, *, subject: Subject = "plan", after: Sequence[Rule[P] | Part[P]]
) -> Callable[[Callable[[P], Iterator[Finding]]], Rule[P]]: ...
@overload
def rule(
    name: str,
    *,
    subject: Subject = "plan",
    after: Sequence[Rule[P] | Part[P]] = (),
    consults: Sequence[Rule[P] | Part[P]],
) -> Callable[[Callable[[P, Consulted], Iterator[Finding]]], Rule[P]]: ...
def rule(
    name: str,
    *,
    subject: Subject = "plan",
    after: Sequence[Rule[P] | Part[P]] = (),
    consults: Sequence[Rule[P] | Part[P]] = (),
) -> Callable[[Callable[..., Iterator[Finding]]], Rule[P]]:
    """Return a decorator that makes a rule of a function, whose docstring says what holds.

    The function takes a plan and, if the rule consults others, which of those are broken.
    """

    def declared(function: Callable[..., Iterator[Finding]]) -> Rule[P]:
        def alone(plan: P, _: Consulted) -> Iterator[Finding]:
            return function(plan)

        findings = function if consults else alone
        return Rule(name, function.__doc__ or "", subject, tuple(after), tuple(consults), findings)

    return declared


class _Judgement(Generic[Judged]):
    """The findings of rules in one plan, each evaluated once, at its first use."""

    def __init__(self, plan: Judged, known: Mapping[Rule[Judged], tuple[Violation, ...]]) -> None:
        self._plan = plan
        self._violations = dict(known)
        self._silenced: set[Rule[Judged]] = set()

    def violations(self, rule: Rule[Judged]) -> tuple[Violation, ...]:
        """Return how the plan violates a rule."""
        found = self._violations.get(rule)
        if found is None:
            if silent := bool(rule.after) and self.broken(*rule.after):
                self._silenced.add(rule)
            found = self._violations[rule] = () if silent else self._evaluated(rule)
        return found

    def is_silenced(self, rule: Rule[Judged]) -> bool:
        """Return True if a rule that was asked for found nothing because another one is broken."""
        return rule in self._silenced

    def found_fault(self, rule: Rule[Judged]) -> bool:
        """Return True if a rule that was evaluated is broken."""
        return bool(self._violations.get(rule))

    def broken(self, *rules: Rule[Judged] | Part[Judged]) -> bool:
        """Return True if the plan violates one of the rules."""
        # Nearly all rules that are asked for were asked for before, and a search asks a million times.
        known = self._violations
        for part in rules:
            rule = part if isinstance(part, Rule) else part.rule
            found = known.get(rule)
            if found is None:
                found = self.violations(rule)
            if found and (isinstance(part, Rule) or any(each.field in part.fields for each in found)):
                return True
        return False

    def _evaluated(self, rule: Rule[Judged]) -> tuple[Violation, ...]:
        consulted = rule.none_broken
        if rule.consults:
            broken = [self.broken(part) for part in rule.consults]
            if any(broken):
                consulted = Consulted(dict(zip(rule.consults, broken, strict=True)))
        return _violations(rule, rule.findings(self._plan, consulted))


def _violations(rule: Rule[Judged], findings: Iterable[Finding]) -> tuple[Violation, ...]:
    """Return the findings of a rule with its id: the first one of each field."""
    firsts: dict[str, Finding] = {}
    for each in findings:
        firsts.setdefault(each.field, each)
    return tuple(
        [Violation(rule.id, each.field, each.found, each.limit, each.fix) for each in firsts.values()]
    )


def _judgement_of(plan: Judged, rules: Sequence[Rule[Judged]]) -> _Judgement[Judged] | None:
    """Return the judgement of a plan that breaks a rule, with the rules that it was found to keep.

    None if the plan keeps all of the rules. Until a rule is broken, none is silent and none consults a broken
    one, so the rules need no account of each other.
    """
    ordered = _in_order(tuple(rules))
    for place, each in enumerate(ordered):
        findings = each.findings(plan, each.none_broken)
        for first in findings:
            kept = dict.fromkeys(ordered[:place], ())
            return _Judgement(plan, {**kept, each: _violations(each, (first, *findings))})
    return None


@lru_cache(maxsize=4096)
def _in_order(rules: tuple[Rule[Judged], ...]) -> tuple[Rule[Judged], ...]:
    """Return rules with all those that they rely on, each after those that it relies on."""
    ordered: dict[Rule[Judged], None] = {}

    def add(rule: Rule[Judged]) -> None:
        if rule not in ordered:
            for part in (*rule.after, *rule.consults):
                add(part.rule if isinstance(part, Part) else part)
            ordered[rule] = None

    for each in rules:
        add(each)
    return tuple(ordered)


def judge(plan: Judged, rules: Sequence[Rule[Judged]]) -> tuple[Violation, ...]:
    """Return every violation of the rules in their order; a plan without one keeps them all."""
    judgement = _judgement_of(plan, rules)
    if judgement is None:
        return ()
    return tuple(violation for rule in rules for violation in judgement.violations(rule))


def first_broken(plan: Judged, rules: Sequence[Rule[Judged]]) -> Rule[Judged] | None:
    """Return the first rule that a plan breaks, or one that silences it; None if the plan keeps them all."""
    judgement = _judgement_of(plan, rules)
    if judgement is None:
        return None
    for each in rules:
        if judgement.violations(each):
            return each
        if judgement.is_silenced(each):
            return next(other for other in rules if judgement.found_fault(other))
    return None


def decisions_read(plan: Planned, broken: Rule[Planned]) -> frozenset[str] | None:
    """Return the decisions of a plan that a broken rule reads: the same values break it in any plan.

    None if it might say nothing in another plan, because it consults rules that this one keeps or breaks.
    """
    if any(_Judgement(plan, {}).broken(part) for part in broken.consults):
        return None

    def first_finding(traced: Planned) -> object:
        return next(iter(broken.findings(traced, broken.none_broken)), None)

    return decisions_of(plan, first_finding)


def decisions_of(plan: Planned, ask: Callable[[Planned], object]) -> frozenset[str]:
    """Return the names of the decisions that a function of a plan reads, directly or through properties."""
    kind, read = _traced(type(plan))
    traced = cast("Planned", kind(**{each.name: getattr(plan, each.name) for each in fields(plan)}))
    read.clear()
    ask(traced)
    return frozenset(read)


@cache
def _traced(kind: type[Kernel]) -> tuple[type[Kernel], set[str]]:
    """Return a kind of plan that notes which decisions are read, and where it notes them."""
    names = frozenset(each.name for each in fields(kind) if each.compare) - {"request"}
    read = set[str]()

    class Traced(kind):
        def __getattribute__(self, name: str) -> object:
            if name in names:
                read.add(name)
            return super().__getattribute__(name)

    return Traced, read


def keeps(plan: Judged, rules: Sequence[Rule[Judged] | Part[Judged]]) -> bool:
    """Return True if a plan violates none of the rules."""
    return not _Judgement(plan, {}).broken(*rules)


def altered(plan: AnyPlan, **decisions: object) -> AnyPlan:
    """Return the plan with other decisions; it computes for itself all that follows from them."""
    # As ``dataclasses.replace`` does, in an eighth of its time: a search makes tens of thousands. Plans are
    # frozen, and nothing is computed when one is made.
    names, values_of = _fields(type(plan))
    other = object.__new__(type(plan))
    vars(other).update(zip(names, values_of(vars(plan)), strict=True), **decisions)
    return other


def once(compute: Callable[[AnyPlan], Computed]) -> Callable[[AnyPlan], Computed]:
    """Decorate a function of a plan: its value is kept with the plan, under the function's name."""
    name = compute.__name__

    @wraps(compute)
    def kept(plan: AnyPlan) -> Computed:
        values = vars(plan)
        if name not in values:
            values[name] = compute(plan)
        return values[name]

    return kept


@cache
def _fields(kind: type[Kernel]) -> tuple[tuple[str, ...], Callable[[dict[str, object]], tuple[object, ...]]]:
    """Return the names of a plan's fields, and what takes their values out of its attributes."""
    names = tuple(each.name for each in fields(kind))
    values_of = cast("Callable[[dict[str, object]], tuple[object, ...]]", itemgetter(*names))
    return names, values_of


# --- words


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 warp``, ``2,048 warps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
