"""What a rule is, the runner that judges a plan by rules, and the words in which rules say what is wrong.

A rule judges one thing: it yields a finding for every spec field that breaks it, with the numbers and the
nearest legal value. It is silent where a rule that it comes *after* is broken: a value that is no power of
two is reported once, not by every rule that divides by it. A rule that was silent found nothing and silences
no other, so each rule names all on which it relies. It can name only rules that are declared above it, so
there is no circle; the runner evaluates each rule once, those that it comes after first, and reports in the
order of its list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property, wraps
from typing import Any, Generic, Literal, Never, TypeVar, cast, overload

from gemmgen.errors import Advice, Value, Violation
from gemmgen.plan.kernel import Kernel

P = TypeVar("P", contravariant=True)
Judged = TypeVar("Judged")
AnyPlan = TypeVar("AnyPlan", bound=Kernel)
Planned = TypeVar("Planned", bound=Kernel)
Computed = TypeVar("Computed")
Subject = Literal["problem", "plan", "store"]
"""What a rule judges.

``problem``: what the spec alone decides, so that one plan that breaks the rule speaks for all;
``store``: what depends on how D is stored; a plan that breaks only other rules speaks for all ways to do it.
"""


@dataclass(frozen=True)
class Finding:
    """What a rule found wrong with a plan: a violation without the rule's id."""

    field: str
    """Dotted path of the spec field to change."""
    found: str
    """The offending value with its consequence, in numbers."""
    limit: str
    """What the hardware or the compiler allows."""
    fix: str
    """The nearest legal value, as an instruction."""


@dataclass(frozen=True, eq=False)
class Rule(Generic[P]):
    """A constraint on plans."""

    id: str
    says: str
    """What holds for a plan that keeps the rule, in a sentence, and the source of its limits."""
    subject: Subject
    after: tuple[Rule[P] | Part[P], ...]
    """The rule is silent where one of these is broken."""
    consults: tuple[Rule[P] | Part[P], ...]
    """The rule speaks where one of these is broken, but says something else."""
    findings: Callable[[P, Consulted], Iterator[Finding]]

    @cached_property
    def none_broken(self) -> Consulted:
        """What it is told where none of the rules that it consults is broken."""
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
        """Whether one of the rules is broken.

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
    """What rules find in one plan, each evaluated once, when it is first asked for."""

    def __init__(self, plan: Judged) -> None:
        self._plan = plan
        self._violations: dict[Rule[Judged], tuple[Violation, ...]] = {}
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
        """Whether a rule that was asked for found nothing because another one is broken."""
        return rule in self._silenced

    def found_fault(self, rule: Rule[Judged]) -> bool:
        """Whether a rule that was evaluated is broken."""
        return bool(self._violations.get(rule))

    def broken(self, *rules: Rule[Judged] | Part[Judged]) -> bool:
        """Whether the plan violates one of the rules."""
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
        findings = rule.findings(self._plan, consulted)
        return tuple(
            [
                Violation(rule.id, finding.field, finding.found, finding.limit, finding.fix)
                for finding in findings
            ]
        )


def judge(plan: Judged, rules: Sequence[Rule[Judged]]) -> tuple[Violation, ...]:
    """Return every violation of the rules in their order; a plan without one keeps them all."""
    judgement = _Judgement(plan)
    return tuple(violation for rule in rules for violation in judgement.violations(rule))


def first_broken(plan: Judged, rules: Sequence[Rule[Judged]]) -> Rule[Judged] | None:
    """Return the first rule that a plan breaks, or one that silences it; None if the plan keeps them all."""
    judgement = _Judgement(plan)
    for each in rules:
        if judgement.violations(each):
            return each
        if judgement.is_silenced(each):
            return next(other for other in rules if judgement.found_fault(other))
    return None


def decisions_read(plan: Planned, broken: Rule[Planned]) -> frozenset[str] | None:
    """Return the decisions of a plan that a broken rule reads: the same values break it in any plan.

    None where it might say nothing in another plan, because it consults rules that this one keeps or breaks.
    """
    if any(_Judgement(plan).broken(part) for part in broken.consults):
        return None
    kind, read = _traced(type(plan))
    traced = cast("Planned", kind(**{each.name: getattr(plan, each.name) for each in fields(plan)}))
    read.clear()
    for _ in broken.findings(traced, broken.none_broken):
        break
    return frozenset(read)


@cache
def _traced(kind: type[Kernel]) -> tuple[type[Kernel], set[str]]:
    """Return a kind of plan that notes which decisions are read, and where it notes them."""
    names, read = frozenset(each.name for each in fields(kind)) - {"problem"}, set[str]()

    class Traced(kind):
        def __getattribute__(self, name: str) -> object:
            if name in names:
                read.add(name)
            return super().__getattribute__(name)

    return Traced, read


def keeps(plan: Judged, rules: Sequence[Rule[Judged] | Part[Judged]]) -> bool:
    """Whether a plan violates none of the rules."""
    return not _Judgement(plan).broken(*rules)


def altered(plan: AnyPlan, **decisions: object) -> AnyPlan:
    """Return the plan with other decisions; what it has computed goes along where these cannot change it."""
    # As ``dataclasses.replace`` does, in an eighth of its time: a search makes tens of thousands. Plans are
    # frozen, and nothing is computed when one is made.
    names, own = _fields(type(plan)), vars(plan)
    other = object.__new__(type(plan))
    vars(other).update({name: own[name] for name in names}, **decisions)
    if decisions.keys() <= MEMORY_DECISIONS:
        of_others = WITHOUT_REGISTERS if decisions.keys() <= REGISTER_COUNTS else WITHOUT_MEMORY
        vars(other).update({name: own[name] for name in of_others if name in own})
        if decisions.keys() == {"stages"}:
            vars(other).update(_with_stages(own, cast("int", decisions["stages"])))
    return other


def _with_stages(own: Mapping[str, Any], stages: int) -> dict[str, object]:
    """Return what a plan has computed that goes along to one with so many stages, where both have a ring."""
    if "shared_memory" not in own or min(own["stages"], stages) < LEAST_RING:
        return {}
    pool = {"register_pool": own["register_pool"]} if "register_pool" in own else {}
    return {**pool, "smem_bytes": own["shared_memory"].bytes_with("stages", stages)}


LEAST_RING = 2
"""Stages from which on a ring has the same buffers, barriers and arguments, whatever its depth."""


REGISTER_COUNTS = frozenset({"producer_registers", "consumer_registers", "worker_registers"})
"""The decisions of how many registers the threads of a role have."""
MEMORY_DECISIONS = REGISTER_COUNTS | {"stages"}
"""Those that follow from all others where a spec leaves them open."""
WITHOUT_MEMORY = ("mma_shapes", "mmas_per_step", "loads_of_a", "loads_of_b", "working_registers")
"""What a plan computes once, and does not compute from those: what is loaded and multiplied in a step."""
WITHOUT_REGISTERS = (
    *WITHOUT_MEMORY,
    "resources",
    "shared_buffers",
    "barriers",
    "arguments",
    "shared_memory",
)
"""The same of the numbers of registers alone: what is in memory and passed, besides."""


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
def _fields(kind: type[Kernel]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


# --- words, and how a machine reads them

_VALUE = r"\[?[\w-]+\]?"
_FIX = re.compile(
    rf"(?:use )?(?:at (?:least|most) )?(?P<values>{_VALUE}(?:, {_VALUE})*(?: or {_VALUE})?)"
    rf"(?: and at most {_VALUE})?(?: for (?P<field>[\w.]*\w))?"
    rf"(?: without an? (?P<without>[\w.]*\w)"
    rf"| with (?P<kind>a kind of warp specialization|cooperative consumers)"
    rf"| with (?P<consumers>\d) consumer)?"
)
"""One alternative of a fix that names values: ``use at most 4``, ``1 or 2 for schedule.splits``."""
_LEFT_OUT = re.compile(
    r"(?:use )?no (?P<other>[\w.]*\w)|leave (?:it|one of them) out(?: and (?P<more>use .*))?"
)
"""One that names a field to leave out."""


def alternatives(field: str, fix: str) -> tuple[tuple[str, tuple[Advice, ...]], ...]:
    """Return the alternatives of a fix of a field: the words of each, and the changes that they name.

    This is the one place that reads the words of a fix. Words that name no values, such as *use another
    factor*, are for people only, and name no change.
    """
    return tuple((text, tuple(_changes(field, text))) for text in fix.split(", or "))


def _changes(field: str, text: str) -> Iterator[Advice]:
    text = re.sub(r" \([^)]*\)", "", text)
    if left_out := _LEFT_OUT.fullmatch(text):
        gone: Advice = ((left_out["other"] or field, None),)
        more = tuple(_changes(field, left_out["more"])) if left_out["more"] else ((),)
        yield from (gone + other for other in more)
    elif (named := _FIX.fullmatch(text)) and named["values"] != "it":
        beside: dict[str, Value] = {}
        if named["without"]:
            beside[named["without"]] = None
        if named["kind"]:
            beside["warp_specialization.kind"] = "cooperative"
        if named["consumers"]:
            beside["warp_specialization.consumers"] = int(named["consumers"])
        for word in re.split(", | or ", named["values"]):
            value, changed = _value(word), named["field"] or field
            if changed.startswith("search.") and not isinstance(value, tuple):
                value = (value,)
            yield ((changed, value), *beside.items())


def changes(field: str, fix: str) -> tuple[Advice, ...]:
    """Return the changes that a fix of a field names, alternative by alternative."""
    return tuple(change for _, named in alternatives(field, fix) for change in named)


def _value(word: str) -> Value:
    if word.startswith("["):
        return (_value(word[1:-1]),)
    return int(word) if word.isdecimal() else word


def instruction(field: str, advice: Advice) -> str:
    """Return advice in the words of a fix of a field: its own value first, then what others are to have."""
    others = [
        f"no {path}" if value is None else f"{written(value)} for {path}"
        for path, value in advice
        if path != field
    ]
    own = dict(advice).get(field, ())
    if own is None:
        return f"leave it out and use {_and(others)}" if others else "leave it out"
    return f"use {_and([written(own), *others] if own != () else others)}"


def _and(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def written(value: Value) -> str:
    """Return a value as YAML has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


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
