"""The rules beside the compiler and the simulator, for one spec; and the smallest spec that shows a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Literal

from gemmgen.build import lowered_of, settle
from gemmgen.errors import GemmgenError
from gemmgen.features.rendering import render
from gemmgen.lower import ShortageError, lower
from gemmgen.plan.choices import CHOICE_RULES
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Part, Rule, altered, judge
from gemmgen.plan.search import Family
from gemmgen.plan.verdicts import COMPILER_RULE
from gemmgen.planner import attempted, family_for, family_of
from gemmgen.product import Product
from gemmgen.python_source import parsed
from gemmgen.spec import SpecFile
from tools.fuzz.draft import spec_of
from tools.fuzz.tables import PLAIN, REQUIRED
from tools.fuzz.values import Values

if TYPE_CHECKING:
    from gemmgen.verify.launches import Launch

MOST_CONFIGURATIONS = 300
"""Of what a refused spec leaves open, the cheapest that are judged without the rules that refuse it."""
MOST_REDUCTIONS = 40
"""Specs that are judged to make a finding small."""
MOST_PRODUCTS = 3 * 10**8
"""Of a launch that is simulated: a second for each schedule."""
MOST_TILES = 200
"""Of one, with those of each split."""
FEW_STEPS = 5
"""Of K at most, where a launch is to have fewer than there are splits."""
ODD_COLUMNS = 9
"""In the second tile of a launch of few rows: no vector of stores is as wide."""


@dataclass(frozen=True)
class Outcome:
    """What became of one spec."""

    verdict: Literal["accepted", "refused"]
    """What the rules say."""
    stage: str
    """How far it came: `STAGES`; of a refused one, without the rules that refuse it."""
    rules: tuple[str, ...] = ()
    """Those that refuse it."""
    fault: str = ""
    """What went wrong there, in the words of who found it; empty where nothing did."""

    @property
    def finding(self) -> str | None:
        """What is wrong with the rules, as a class of findings; None where nothing is."""
        if self.verdict == "accepted":
            return f"accepted, but not {WRONG[self.stage]}" if self.fault else None
        seen = not self.rules or any(rule not in UNSEEN for rule in self.rules)
        by = " and ".join(self.rules) or "no rule"
        return f"refused by {by}, but fine" if seen and not self.fault else None


WRONG = {"plan": "planned", "render": "rendered", "lower": "compiled as planned", "simulate": "clean"}
"""What a spec is not that fails at a stage. All are, that come to the last one, or to the one before it."""

UNSEEN = {
    "shape-alignment": "TMA refuses such rows at the launch, and the simulator launches shapes of its own",
    "single-tile-shapes": "the spec lists a shape that the kernel does not compute",
    "group-width": "the order does not read the number, or counts tiles of larger problems with it",
    "register-pool": "the first consumer gets what the others leave, whatever the number says",
    "role-registers": "without roles nobody makes a request, and the number would mean nothing",
    "outstanding-mmas": "A is read into registers that an MMA in flight has: PTX leaves it undefined",
    "cluster-shape": "how many clusters of so many CTAs a GPU holds at a time shows at the launch",
    "operand-dtypes": "PTX promises no product of bf16 and fp16, and the compiler does not ask",
    "occupancy": "how many CTAs an SM holds, and how clusters lie on SMs, shows at the launch",
    "promotion": "exact sums gain nothing by it, and the code promotes each K step whatever the number",
    "reduction": "of one part nothing is added up: the word would mean nothing",
    "same-bits": "that other runs and batches give other bits shows on a GPU that has other things to do",
    "epilogue-factors": "a factor of 0 says that there is no such term",
    "epilogue-ops": "an activation right behind itself is a slip, and two spill in some kernels of one",
}
"""Rules with a reason that neither a compiler nor the simulator can see; a report counts what they refuse."""


def judged(
    values: Values, *, simulated: bool, compiled: bool = True, minimum: bool = False, doubts: bool = True
) -> Outcome:
    """Return what becomes of a spec: rendered, lowered unless it is not to be, and simulated if asked for.

    Of an accepted spec the best plan is compiled, and the next one where its registers are not enough; if no
    plan is left, the compiler has refused the spec. `minimum` lowers the plan with the fewest registers that
    are expected to do, and no other one. A refused spec that compiles without its rules is always simulated,
    unless nobody `doubts` the rules.
    """

    def refused(rules: tuple[str, ...]) -> Outcome:
        return _without(values, rules) if doubts else Outcome("refused", "plan", rules, "not compiled")

    try:
        source = spec_of(values)
        plan = attempted(source)
    except GemmgenError as error:
        return refused(tuple(sorted({found.code for found in error.diagnostics})))
    except Exception as error:  # whatever it is, it is a finding
        return Outcome("accepted", "plan", fault=brief(error))
    if not isinstance(plan, Kernel):
        return refused(tuple(sorted({violation.rule for violation in plan})))
    if not compiled:
        return _rendered(source, plan)
    if minimum:
        return _compiled(source, fewest_registers(plan), simulated=simulated)
    try:
        plan = settle(source, lowered_of, gradients=False).product.plan
    except GemmgenError as error:
        codes = {found.code for found in error.diagnostics}
        if codes == {COMPILER_RULE}:
            return Outcome("refused", "lower", (COMPILER_RULE,), brief(error))
        return Outcome("accepted", "lower", fault=brief(error))
    except Exception as error:
        return Outcome("accepted", "render", fault=brief(error))
    return _compiled(source, plan, simulated=simulated)


def _rendered(source: SpecFile, plan: Kernel) -> Outcome:
    """Return what becomes of a legal plan that nothing compiles."""
    try:
        parsed(render(plan, spec_name="random_spec.yaml", spec_sha256=source.sha256))
    except Exception as error:
        return Outcome("accepted", "render", fault=brief(error))
    return Outcome("accepted", "render")


def _compiled(source: SpecFile, plan: Kernel, *, simulated: bool) -> Outcome:
    """Return what becomes of a legal plan: its registers may be too few, and nothing else may be wrong."""
    stage, fault, is_short = _made(source, plan, simulated=simulated)
    if is_short:
        return Outcome("refused", stage, (COMPILER_RULE,), fault)
    return Outcome("accepted", stage, fault=fault)


def _without(values: Values, rules: tuple[str, ...]) -> Outcome:
    """Return how far a refused spec comes without the rules that refuse it."""
    choice_rules = {rule.id for rule in CHOICE_RULES}
    if not choice_rules.isdisjoint(rules):
        return Outcome("refused", "plan", rules, "no kernel has such a field, or what it asks for")
    try:
        source = spec_of(values)
        plan = plan_without(source, rules)
    except GemmgenError as error:
        return Outcome("refused", "plan", rules, brief(error))
    except Exception as error:  # what others rely on is not there: a rule says so in better words
        return Outcome("refused", "plan", rules, brief(error))
    if plan is None:
        return Outcome("refused", "plan", rules, "other rules refuse it then")
    stage, fault, _ = _made(source, plan, simulated=True)
    return Outcome("refused", stage, rules, fault)


def _made(source: SpecFile, plan: Kernel, *, simulated: bool) -> tuple[str, str, bool]:
    """Return the last stage that a plan came to, what is wrong there, and whether registers are too few."""
    try:
        module = render(plan, spec_name="random_spec.yaml", spec_sha256=source.sha256)
    except Exception as error:
        return "render", brief(error), False
    try:
        lower(module, plan, path="random_spec.yaml", stem="random_spec")
    except GemmgenError as error:
        return "lower", brief(error), isinstance(error, ShortageError)
    if not simulated:
        return "lower", "", False
    from gemmgen.verify.simulation import simulate_product  # it imports torch

    try:
        simulation = simulate_product(Product(source, plan, module), tuple(launches(plan)))
    except Exception as error:
        return "simulate", brief(error), False
    return "simulate", "; ".join(problem.text for problem in simulation.problems), False


def brief(error: Exception) -> str:
    """Return an error in a line."""
    if isinstance(error, GemmgenError):
        return "; ".join(found.message for found in error.diagnostics)
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def launches(plan: Kernel) -> Iterator[Launch]:
    """Yield what is simulated of a kernel, in sizes that take seconds.

    The launch that wraps its rings, or a smaller one of large tiles; of less than a tile of rows, with less
    of K than there are splits; of more tiles than its groups have.
    """
    from gemmgen.verify.launches import order_launch, ragged, ring_launch

    ring, order = ring_launch(plan), order_launch(plan)
    if prod(ring.shape) > MOST_PRODUCTS:
        ring = replace(ring, shape=ragged(plan, 1, 2, 2 * plan.splits_per_tile + 3), wraps=False)
    yield ring
    if plan.schedule_kind == "single_tile":
        return
    *_, k = ragged(plan, 1, 1, max(1, min(plan.splits_per_tile - 1, FEW_STEPS)))
    of_n = plan.access.n_multiple
    rows = max(1, plan.program_tile_m // 2 - 1)
    columns = -(-(plan.program_tile_n + ODD_COLUMNS) // of_n) * of_n
    yield replace(ring, shape=(rows, columns, k), programs=2, wraps=False)
    tiles = prod(plan.tiles(order.shape)) * plan.splits_per_tile
    if prod(order.shape) <= MOST_PRODUCTS and tiles <= MOST_TILES:
        yield order


def fewest_registers(plan: Kernel) -> Kernel:
    """Return the plan with the fewest registers for each role that are legal and expected to do."""
    family = family_for(plan)
    for name in ("producer_registers", "consumer_registers", "worker_registers"):
        while name in family.decisions and not judge(
            fewer := altered(plan, **{name: getattr(plan, name) - 8}), family.cautious_rules
        ):
            plan = fewer
    return plan


def plan_without(source: SpecFile, skipped: Iterable[str]) -> Kernel | None:
    """Return the cheapest plan of a spec that keeps all rules but some, None if there is none.

    Rules that are silent where a skipped one is broken speak then.
    """
    family, shapes = family_of(source), source.request.planned_shapes
    rules = _rules_without(family, frozenset(skipped))
    configurations = list(islice(family.space.configurations(source), 20 * MOST_CONFIGURATIONS))
    configurations.sort(key=lambda found: family.cost_over(found.lower_bound, shapes))
    for configuration in configurations[:MOST_CONFIGURATIONS]:
        for plan in configuration.kernels():
            if not judge(plan, rules):
                return plan
    return None


def _rules_without(family: Family[Kernel], skipped: frozenset[str]) -> tuple[Rule[Kernel], ...]:
    """Return a family's rules without some, for which none waits."""
    kept: dict[Rule[Kernel], Rule[Kernel]] = {}

    def alone(found: Rule[Kernel]) -> Rule[Kernel]:
        if found not in kept:
            after: list[Rule[Kernel] | Part[Kernel]] = []
            for other in found.after:
                whole = other.rule if isinstance(other, Part) else other
                if whole.id not in skipped:
                    own = alone(whole)
                    after.append(Part(own, other.fields) if isinstance(other, Part) else own)
            kept[found] = replace(found, after=tuple(after))
        return kept[found]

    return tuple(alone(found) for found in family.rules if found.id not in skipped)


def smallest(values: Values, is_finding: Callable[[Values], bool]) -> Values:
    """Return values of which none can be left out, or be a plain one, if it is to stay a finding."""
    left = MOST_REDUCTIONS

    def still(changed: Values) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and is_finding(changed)

    shrunk = True
    while shrunk and left > 0:
        shrunk = False
        for path in sorted(values.keys() - {"title", "target"}, reverse=True):
            without = {name: value for name, value in values.items() if name != path}
            plain = {**values, path: PLAIN[path]} if path in PLAIN else None
            for changed in (without if path not in REQUIRED else None, plain):
                if changed is not None and changed != values and still(changed):
                    values, shrunk = changed, True
                    break
    return values
