"""Random specs, and whether the rules say of each what the compiler and the simulator say.

What the rules accept has to render, compile without a spill and be what the plan says; a sample is
simulated. What they refuse has to fail somewhere once the rules that refuse it are skipped, or the rule is
one whose reason neither a compiler nor this simulator can see. Everything else is a finding, with the
smallest spec that still shows it.

A spec is drawn field by field, mostly from values that are legal somewhere, and then brought closer to what
is legal: a field that a rule blames is drawn anew or left out, until the spec plans. So specs crowd where
rules begin to refuse: the last one that was refused breaks little else. A seed makes one spec on every
machine.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gemmgen import triton_api
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.lower import lower
from gemmgen.plan.choices import CHOICE_RULES
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planner import attempted, family_for, family_of
from gemmgen.plan.rule import Part, Rule, altered, counted, judge
from gemmgen.plan.search import Family
from gemmgen.product import Product
from gemmgen.render import render
from gemmgen.scratch import LostError, scratch, serving
from gemmgen.spec import SpecFile, load_spec

if TYPE_CHECKING:
    from gemmgen.verify.simulation import Launch

Values = dict[str, Any]
"""A spec's values by the dotted paths of their fields."""
Stated = Mapping[str, tuple[object, ...]]
"""Values to draw by the dotted path of a field; what is there twice is drawn twice as often."""

HUGE = 2**31 - 1
SECONDS_PER_SPEC = 900
"""After which a spec counts as one that hangs: with its simulation one takes a few seconds."""
ROUNDS = 60
"""Of bringing a spec closer to what is legal; one that is still refused then stays as it is."""
MOST_CONFIGURATIONS = 300
"""Of what a refused spec leaves open, the cheapest that are judged without the rules that refuse it."""
MOST_REDUCTIONS = 40
"""Specs that are judged to make a finding small."""
MOST_PRODUCTS = 3 * 10**8
"""Of a launch that is simulated: a second for each schedule."""
MOST_TILES = 200
"""Of one, with those of each split."""
MOST_DIVIDED_TILE = 1 << 14
"""Elements of a program's tile where the last wave is divided: eight of them are simulated, in many steps."""
FEW_STEPS = 5
"""Of K at most, where a launch is to have fewer than there are splits."""
ODD_COLUMNS = 9
"""In the second tile of a launch of few rows: no vector of stores is as wide."""

# --- what is drawn

OPS: tuple[list[object], ...] = (
    ["relu"],
    ["silu"],
    ["gelu_tanh"],
    ["gelu_erf"],
    [{"leaky_relu": {"slope": 0.125}}],
    ["tensor_scale"],
    ["tensor_scale", "relu"],
    ["relu", "tensor_scale", "gelu_erf"],
)
"""Operations of every target."""
ROW_AND_COLUMN_OPS: tuple[list[object], ...] = (
    ["column_bias"],
    ["row_scale", "column_scale"],
    ["row_bias", "gelu_erf"],
    ["residual"],
    ["residual", "relu"],
    ["residual", "silu"],
    ["row_scale", "column_scale", "column_bias", "silu"],
    ["tensor_scale", "row_scale", "column_scale", "row_bias", "column_bias", "residual", "gelu_tanh"],
    ["tensor_scale", "gelu_erf", "residual", "column_scale", "silu", "relu", "row_bias", "gelu_tanh"],
)
SHAPES = ([[256, 512, 384]], [[32, 64, 16]], [[512, 608, 640]], [[13, 416, 3088]])
REGISTERS = tuple(range(24, 257, 8))

SHARED: Stated = {
    "operands.a.major": ("k", "mn"),
    "operands.b.major": ("k", "mn"),
    "operands.a.swizzle": (32, 64, 128),
    "operands.b.swizzle": (32, 64, 128),
    "operands.misaligned": ("refuse", "copy"),
    "tile.m": (64, 128, 128, 256),
    "tile.n": (8, 16, 32, 64, 128, 128, 256, 256),
    "tile.k": (16, 32, 64, 64, 128, 128, 256, 512),
    "cluster.m": (1, 1, 1, 2, 2, 4),
    "cluster.n": (1, 1, 1, 2, 4),
    "buffering.stages": (1, 2, 3, 4, 5, 6, 8, 12),
    "buffering.epilogue": (1, 1, 2, 4),
    "schedule.order": ("row", "column", "grouped", "snake", "hilbert"),
    "schedule.minor": ("m", "n"),
    "schedule.width": (1, 2, 3, 8, 16, 100),
    "epilogue.alpha": (0.5, -1.0),
    "epilogue.ops": OPS,
    "epilogue.subtile_n": (8, 16, 32, 64, 128, 256),
    "check.shapes": SHAPES,
    "bench.shapes": ([[8192, 8192, 8192]], [[64, 4096, 4096]], [[512, 6144, 4096]], [[300, 776, 1032]]),
}
WILD: Stated = {
    "tile.m": (1, 8, 48, 96, 512, 4096, HUGE),
    "tile.n": (4, 20, 120, 257, 512, HUGE),
    "tile.k": (8, 48, 1024, HUGE),
    "cluster.m": (3, 8, 16),
    "cluster.n": (3, 8),
    "buffering.stages": (60, HUGE),
    "buffering.epilogue": (3, 6, 64),
    "schedule.width": (4097, HUGE),
    "occupancy": (4, HUGE),
    "operands.a.swizzle": (1, 16, 256),
    "operands.b.swizzle": (0, 16, 256),
    "epilogue.alpha": (0.0, 1e300),
    "epilogue.ops": (["relu", "relu"], ["silu", "tensor_scale", "silu"]),
    "epilogue.subtile_n": (1, 4, 24, 512),
}
"""Values that are legal hardly anywhere."""

HOPPER_DTYPES = ("bf16", "bf16", "fp16", "tf32", "e4m3", "e5m2", "int8")
HOPPER: Stated = {
    **SHARED,
    "target": ("h100", "h200"),
    "operands.a.dtype": HOPPER_DTYPES,
    "operands.b.dtype": HOPPER_DTYPES,
    "operands.c.dtype": ("bf16", "fp16", "fp32"),
    "operands.d.dtype": ("bf16", "bf16", "fp16", "fp32", "e4m3", "e5m2", "int8", "int32"),
    "operands.a.source": ("shared", "shared", "registers"),
    "accumulator": ("fp32", "fp32", "fp16"),
    "mma.n": (8, 16, 32, 64, 128, 256),
    "mma.promote_k": (32, 64, 128),
    "warps.m": (4, 4, 8),
    "warps.n": (1, 1, 2),
    "buffering.outstanding_mmas": (0, 1),
    "warp_specialization.kind": ("none", "cooperative", "cooperative", "ping_pong"),
    "warp_specialization.consumers": (1, 2, 2, 3, 4),
    "warp_specialization.registers.producer": (24, 32, 40, 56),
    "warp_specialization.registers.consumer": REGISTERS,
    "schedule.kind": ("tiled", "persistent", "persistent"),
    "schedule.splits": (2, 3, 4, 7),
    "schedule.reduction": ("ordered", "atomic", "parallel"),
    "dependent_launch": (
        {"early": "a"},
        {"early": "b"},
        {"early": "a", "trigger": "loads"},
        {"early": "b", "trigger": "end"},
        {"early": "nothing"},
        {"early": "nothing", "trigger": "end"},
    ),
    "occupancy": (1, 1, 2, 3),
    "deterministic": (True,),
    "batch_invariant": (True,),
    "epilogue.beta": (-1.0, 2.0),
    "epilogue.ops": (*OPS, *ROW_AND_COLUMN_OPS, *ROW_AND_COLUMN_OPS),
}
HOPPER_KINDS: tuple[tuple[str, Stated], ...] = (
    ("plain", {}),
    ("plain", {}),
    ("ping-pong", {"warp_specialization.kind": ("ping_pong",), "schedule.kind": ("persistent",)}),
    (
        "few rows",
        {
            "mma.rows": ("n",),
            "schedule.kind": ("tiled", "tiled", "persistent"),
            "tile.m": (8, 16, 32, 64),
            "tile.n": (64, 128, 256),
            "warps.m": (1, 1, 2),
            "warps.n": (4, 4, 8),
            "warp_specialization.consumers": (1,),
            "tile.k": (64, 128, 256),
        },
    ),
    ("split K", {"schedule.splits": (2, 3, 5, 8, 12), "schedule.kind": ("tiled", "persistent")}),
    (
        "stream-K",
        {
            "schedule.last_wave": ("stream_k",),
            "warp_specialization.kind": ("cooperative",),
            "schedule.kind": ("persistent",),
        },
    ),
    (
        "composed",
        {
            "tile.n": (24, 40, 48, 80, 96, 112, 144, 160, 176, 192, 192, 208, 224, 272, 288, 320, 384),
            "tile.m": (64, 128, 192, 192, 256),
            "warp_specialization.kind": ("cooperative", "ping_pong"),
            "warp_specialization.consumers": (1, 2, 3),
            "schedule.kind": ("persistent",),
            "cluster.n": (1,),
            "epilogue.subtile_n": (8, 16, 32, 64),
            "tile.staggered": (False, False, True),
        },
    ),
    (
        "A in registers",
        {"operands.a.source": ("registers",), "tile.k": (16, 32, 64, 64, 128), "tile.m": (64, 128)},
    ),
    (
        "promoted",
        {
            "operands.a.dtype": ("e4m3", "e5m2"),
            "operands.b.dtype": ("e4m3", "e5m2"),
            "mma.promote_k": (32, 64, 128, 128),
            "accumulator": ("fp32",),
            "tile.n": (16, 32, 64, 128),
        },
    ),
    ("long steps", {"tile.k": (128, 256, 256, 512), "tile.m": (128, 256, 512), "tile.n": (16, 32, 64, 128)}),
    ("clusters", {"cluster.m": (1, 2, 4), "cluster.n": (1, 2, 4), "schedule.kind": ("persistent",)}),
    (
        "one tile",
        {
            "schedule.kind": ("single_tile",),
            "warp_specialization.kind": ("none",),
            "check.shapes": SHAPES[1:2],
        },
    ),
    ("copies", {"operands.misaligned": ("copy",)}),
)
"""Kernels of which each is drawn as often, with values of their own for some fields, which they state."""

SCALED = (
    ("e4m3", "mxfp8", "e4m3", "mxfp8"),
    ("e5m2", "mxfp8", "e4m3", "mxfp8"),
    ("e2m1", "mxfp4", "e2m1", "mxfp4"),
    ("e2m1", "nvfp4", "e2m1", "nvfp4"),
    ("e4m3", "mxfp8", "e2m1", "mxfp4"),
    ("e2m1", "mxfp4", "e5m2", "mxfp8"),
)
"""The types and the formats of A and of B."""
BLACKWELL_DTYPES = ("bf16", "bf16", "fp16", "tf32", "e4m3", "e5m2")
BLACKWELL: Stated = {
    **SHARED,
    "target": ("b200",),
    "operands.a.dtype": BLACKWELL_DTYPES,
    "operands.b.dtype": BLACKWELL_DTYPES,
    "operands.d.dtype": ("bf16", "bf16", "fp16", "fp32", "e4m3", "e5m2"),
    "buffering.accumulators": (1, 1, 2, 2, 3, 4),
    "warp_specialization.registers.worker": (24, 24, 32, 40, 48, 64),
    "schedule.kind": ("persistent", "launch_control"),
}
BLACKWELL_KINDS: tuple[tuple[str, Stated], ...] = (
    ("plain", {}),
    ("plain", {}),
    ("pairs", {"cluster.m": (2, 4), "cluster.n": (1, 1, 2)}),
    ("launch control", {"schedule.kind": ("launch_control",)}),
    *(
        (
            f"{a_format} by {b_format}",
            {
                "operands.a.dtype": (a,),
                "operands.b.dtype": (b,),
                "operands.a.scale": ({"format": a_format},),
                "operands.b.scale": ({"format": b_format},),
                "tile.k": (128, 256, 256, 512),
                "cluster.m": (1, 2, 2),
                "cluster.n": (1,),
            },
        )
        for a, a_format, b, b_format in SCALED
    ),
)
TABLES = {"sm90": (HOPPER, HOPPER_KINDS), "sm100": (BLACKWELL, BLACKWELL_KINDS)}
REQUIRED = ("target", "operands.a.dtype", "operands.b.dtype", "operands.d.dtype")
PLAIN: Values = {
    "operands.a.dtype": "bf16",
    "operands.b.dtype": "bf16",
    "operands.d.dtype": "bf16",
    "tile.m": 128,
    "tile.n": 64,
    "tile.k": 64,
}
"""What fields of a finding are reset to, if it is still one then; what is not here is left out."""


@dataclass(frozen=True)
class Draft:
    """A spec on the way to a legal one."""

    values: Values
    refused: tuple[Diagnostic, ...]
    """Why it is not legal, without the search for advice that ends; empty if it is, or is a finding."""


def drawn(target: str, seed: int, number: int) -> tuple[Values, Values | None]:
    """Return a random spec's values, and those of the last one that was refused on the way to it.

    The first are legal, unless so many rounds did not do; the second are None where the first ones drawn are.
    """
    *others, last = drafts(target, seed, number)
    return last.values, others[-1].values if others else None


def drafts(target: str, seed: int, number: int) -> Iterator[Draft]:
    """Yield a random spec as it is drawn, and then round by round closer to what is legal.

    The last one is legal, unless so many rounds did not do.
    """
    rng, (kind, own) = _kind(target, seed, number)
    choices = {**TABLES[target][0], **own}
    left_out, wild = rng.choice((0.2, 0.4, 0.6, 0.8)), rng.choice((0.0, 0.0, 0.03, 0.1))
    values: Values = {"title": f"{kind} {number} of seed {seed}"}
    for path, tame in choices.items():
        if path in REQUIRED or path in own or rng.random() > left_out:
            values[path] = rng.choice(WILD[path] if path in WILD and rng.random() < wild else tame)
    if "operands.b.dtype" not in own and rng.random() < 0.8:  # of types at random, few go together
        values["operands.b.dtype"] = values["operands.a.dtype"]
    for _ in range(ROUNDS):
        refused = _refused(values)
        yield Draft(dict(values), refused)
        if not refused:
            return
        _amend(values, [found.field or "" for found in refused], choices, rng)
    yield Draft(values, _refused(values))


def kind_of(target: str, seed: int, number: int) -> str:
    """Return the kind of kernel of a random spec."""
    return _kind(target, seed, number)[1][0]


def _kind(target: str, seed: int, number: int) -> tuple[random.Random, tuple[str, Stated]]:
    """Return what a random spec is drawn with, and its kind with the values of its own."""
    rng = random.Random(f"{target} {seed} {number}")
    return rng, rng.choice(TABLES[target][1])


def _refused(values: Values) -> tuple[Diagnostic, ...]:
    """Return why a spec is not legal; nothing if it is."""
    try:
        source = spec_of(values)
        found = attempted(source)
    except GemmgenError as error:
        return error.diagnostics
    except Exception:  # that is a finding, as the spec now is
        return ()
    return () if isinstance(found, Kernel) else tuple(violation.diagnosed(source) for violation in found)


def _amend(values: Values, blamed: Iterable[str], choices: Stated, rng: random.Random) -> None:
    """Draw the fields anew that are blamed, or leave them out; one at random if none of them is stated."""
    paths = {path for field in blamed for path in _stated(values, field)}
    optional = sorted(values.keys() - {*REQUIRED, "title"})
    for path in sorted(paths) or rng.sample(optional, min(1, len(optional))):
        if path in REQUIRED or (path in choices and rng.random() < 0.5):
            values[path] = rng.choice(choices[path])
            if path == "operands.b.dtype" and rng.random() < 0.5:
                values[path] = values["operands.a.dtype"]
        else:
            values.pop(path, None)


def _stated(values: Values, field: str) -> Iterator[str]:
    """Yield the stated field that a diagnostic blames, or the one of which it blames a part."""
    while field:
        if field in values and field != "title":
            yield field
            return
        field = field.rpartition(".")[0]


def spec_text(values: Values) -> str:
    """Return values as the text of a spec."""
    sections: dict[str, Any] = {}
    for path, value in values.items():
        *steps, name = path.split(".")
        section = sections
        for step in steps:
            section = section.setdefault(step, {})
        section[name] = value
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sections.items())


def spec_of(values: Values) -> SpecFile:
    """Return the spec of values.

    Raises:
        GemmgenError: They are no spec.
    """
    with scratch() as directory:
        path = Path(directory) / "random_spec.yaml"
        path.write_text(spec_text(values), encoding="utf-8")
        return load_spec(path)


# --- what is found


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
    "schedule-kind": "with roles a tiled schedule is the persistent kernel's code, with more programs",
    "outstanding-mmas": "A is read into registers that an MMA in flight has: PTX leaves it undefined",
    "cluster-shape": "how many clusters of so many CTAs a GPU holds at a time shows at the launch",
    "operand-dtypes": "PTX promises no product of bf16 and fp16, and the compiler does not ask",
    "occupancy": "how many CTAs an SM holds, and how clusters lie on SMs, shows at the launch",
    "promotion": "other sums lose nothing by it, and the code promotes each K step whatever the number",
    "reduction": "of one part nothing is added up: the word would mean nothing",
    "same-bits": "that other runs and batches give other bits shows on a GPU that has other things to do",
    "epilogue-factors": "a factor of 0 says that there is no such term",
    "epilogue-ops": "an activation right behind itself is a slip, and two spill in some kernels of one",
}
"""Rules with a reason that neither a compiler nor the simulator can see; a report counts what they refuse."""


def judged(values: Values, *, simulated: bool, minimum: bool = False) -> Outcome:
    """Return what becomes of a spec: rendered, lowered and, if asked for, simulated.

    `minimum` lowers the plan with the fewest registers that the rules allow it. A refused spec that compiles
    without its rules is always simulated.
    """
    try:
        source = spec_of(values)
        plan = attempted(source)
    except GemmgenError as error:
        return _without(values, tuple(sorted({found.code for found in error.diagnostics})))
    except Exception as error:  # whatever it is, it is a finding
        return Outcome("accepted", "plan", fault=_brief(error))
    if not isinstance(plan, Kernel):
        return _without(values, tuple(sorted({violation.rule for violation in plan})))
    if minimum:
        plan = fewest_registers(plan)
    stage, fault = _made(source, plan, simulated=simulated)
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
        return Outcome("refused", "plan", rules, _brief(error))
    except Exception as error:  # what others rely on is not there: a rule says so in better words
        return Outcome("refused", "plan", rules, _brief(error))
    if plan is None:
        return Outcome("refused", "plan", rules, "other rules refuse it then")
    stage, fault = _made(source, plan, simulated=True)
    return Outcome("refused", stage, rules, fault)


def _made(source: SpecFile, plan: Kernel, *, simulated: bool) -> tuple[str, str]:
    """Return the last stage that a plan came to, and what is wrong there."""
    try:
        module = render(plan, spec_name="random_spec.yaml", spec_sha256=source.sha256)
    except Exception as error:
        return "render", _brief(error)
    try:
        lower(module, plan, path="random_spec.yaml", stem="random_spec")
    except GemmgenError as error:
        return "lower", _brief(error)
    if not simulated:
        return "lower", ""
    from gemmgen.verify.simulation import simulate_product  # it imports torch

    try:
        simulation = simulate_product(Product(source, plan, module), tuple(launches(plan)))
    except Exception as error:
        return "simulate", _brief(error)
    return "simulate", "; ".join(problem.text for problem in simulation.problems)


def _brief(error: Exception) -> str:
    """Return an error in a line."""
    if isinstance(error, GemmgenError):
        return "; ".join(found.message for found in error.diagnostics)
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def launches(plan: Kernel) -> Iterator[Launch]:
    """Yield what is simulated of a kernel, in sizes that take seconds.

    The launch that wraps its rings, or a smaller one of large tiles; of less than a tile of rows, with less
    of K than there are splits; of more tiles than its groups have; of a last wave that is divided, and in
    pieces.
    """
    from gemmgen.verify.simulation import order_launch, parts_launch, ragged, ring_launch

    ring, order = ring_launch(plan), order_launch(plan)
    if prod(ring.shape) > MOST_PRODUCTS:
        ring = replace(ring, shape=ragged(plan, 1, 2, 2 * plan.splits_per_tile + 3), wraps=False)
    yield ring
    if plan.schedule_kind == "single_tile":
        return
    *_, k = ragged(plan, 1, 1, max(1, min(plan.splits_per_tile - 1, FEW_STEPS)))
    rows, columns = max(1, plan.program_tile_m // 2 - 1), plan.program_tile_n + ODD_COLUMNS
    yield replace(ring, shape=(rows, columns, k), programs=2, wraps=False)
    tiles = prod(plan.tiles(order.shape)) * plan.splits_per_tile
    if prod(order.shape) <= MOST_PRODUCTS and tiles <= MOST_TILES:
        yield order
    if plan.divides_last_wave and plan.program_tile_m * plan.program_tile_n <= MOST_DIVIDED_TILE:
        yield parts_launch(plan, ("random",))


def fewest_registers(plan: Kernel) -> Kernel:
    """Return the plan with the fewest registers for each role that the rules allow it."""
    family = family_for(plan)
    for name in ("producer_registers", "consumer_registers", "worker_registers"):
        while name in family.decisions and not family.judge(
            fewer := altered(plan, **{name: getattr(plan, name) - 8})
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


# --- a run


@dataclass(frozen=True)
class Run:
    """What is drawn and how closely it is looked at; two equal ones find the same."""

    target: str
    """``sm90`` or ``sm100``: a name of `TABLES`."""
    seed: int
    minimum: bool = False
    """Whether plans are lowered with the fewest registers that the rules allow."""
    simulated: int = 20
    """Of so many accepted specs one is simulated; 0 for none."""
    refused: int = 5
    """Of so many specs one is the last that was refused on the way to a legal one; 0 for none."""


@dataclass(frozen=True)
class Judged:
    """A spec of a run, and what became of it."""

    number: int
    outcome: Outcome
    text: str = ""
    """Of a finding: the smallest spec that still is one."""

    def line(self, run: Run) -> str:
        """Return it as a line of a record."""
        found = self.outcome
        data = {**asdict(run), "number": self.number, **asdict(found), "finding": found.finding}
        return json.dumps({**data, "spec": self.text} if self.text else data)


def examined(run: Run, number: int) -> Judged:
    """Draw one spec of a run and judge it; of a finding, find the smallest spec that still is one."""
    values, refused = drawn(run.target, run.seed, number)
    if run.refused and number % run.refused == run.refused - 1 and refused is not None:
        values = refused
    simulated = bool(run.simulated) and number % run.simulated == 0

    def of(changed: Values) -> Outcome:
        return judged(changed, simulated=simulated, minimum=run.minimum)

    outcome = of(values)
    if outcome.finding is None:
        return Judged(number, outcome)
    small = smallest(values, lambda changed: _same(of(changed), outcome))
    return Judged(number, outcome, spec_text(small))


def _same(found: Outcome, outcome: Outcome) -> bool:
    """Whether two outcomes are the same finding, whatever the numbers in it are."""
    return found.finding == outcome.finding and _class(found.fault) == _class(outcome.fault)


def _class(fault: str) -> str:
    """Return the first words of a fault, up to its first number."""
    return re.split(r"[\d:]", fault, maxsplit=1)[0]


def fuzz(run: Run, specs: int, *, record: Path | None = None, processes: int = 1) -> Iterator[Judged]:
    """Judge the first specs of a run, each in a process that may die of it; yield all, in any order.

    What a record has of the run is yielded as it is; what is new is appended to it as soon as it is known.

    Raises:
        GemmgenError: The record cannot be read or written (``bad-record``).
    """
    done = recorded(run, record) if record else {}
    yield from (done[number] for number in sorted(done) if number < specs)
    triton_api.load()  # once, and not in each process
    with ThreadPoolExecutor(processes) as pool:
        try:
            tasks = [pool.submit(_alone, run, number) for number in range(specs) if number not in done]
            for task in as_completed(tasks):
                found = task.result()
                if record:
                    _append(record, found.line(run))
                yield found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _alone(run: Run, number: int) -> Judged:
    """Examine one spec in a process of its own."""
    try:
        with serving(lambda: partial(_answered, run)) as ask:
            return ask(number, SECONDS_PER_SPEC)
    except LostError as error:
        text = spec_text(drawn(run.target, run.seed, number)[0])
        return Judged(number, Outcome("accepted", "simulate", fault=f"the process is lost: {error}"), text)


def _answered(run: Run, number: int) -> Judged:
    try:
        return examined(run, number)
    except Exception as error:  # what examines has a fault of its own
        return Judged(number, Outcome("accepted", "plan", fault=_brief(error)))


def recorded(run: Run, record: Path) -> dict[int, Judged]:
    """Return what a record has of a run, by number; a last line that is not whole counts as none.

    Raises:
        GemmgenError: The file is no record, or cannot be read (``bad-record``).
    """
    try:
        text = record.read_text(encoding="utf-8") if record.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise GemmgenError([Diagnostic(record.as_posix(), "bad-record", f"cannot read: {error}")]) from error
    found: dict[int, Judged] = {}
    lines = text.splitlines()
    for place, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            own = Run(**{name: data[name] for name in RUN_FIELDS}) == run
            outcome = Outcome(data["verdict"], data["stage"], tuple(data["rules"]), data["fault"])
            one = Judged(data["number"], outcome, data.get("spec", ""))
        except (ValueError, KeyError, TypeError) as error:
            if place == len(lines) and not text.endswith("\n"):
                continue  # a run was killed while it wrote: what is appended takes its place
            message = "this line is of no record of `gemmgen fuzz`"
            raise GemmgenError([Diagnostic(record.as_posix(), "bad-record", message, line=place)]) from error
        if own:
            found[one.number] = one
    return found


RUN_FIELDS = tuple(field.name for field in fields(Run))


def _append(record: Path, line: str) -> None:
    """Append a line to a record, in the place of one that a killed run has left in the middle.

    Raises:
        GemmgenError: It cannot be written (``cannot-write``).
    """
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()
        with record.open("r+b") as file:
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
            file.seek(whole)
            file.write(f"{line}\n".encode())
    except OSError as error:
        message = f"cannot write: {error.strerror or error}"
        raise GemmgenError([Diagnostic(record.as_posix(), "cannot-write", message)]) from error


@dataclass(frozen=True)
class Report:
    """What a run has found so far."""

    run: Run
    judged: tuple[Judged, ...]

    @property
    def findings(self) -> tuple[Judged, ...]:
        """The specs of which the rules say something else than the compiler and the simulator, by number."""
        found = (one for one in self.judged if one.outcome.finding)
        return tuple(sorted(found, key=lambda one: one.number))

    @property
    def counts(self) -> dict[str, int]:
        """How many specs came how far: accepted and refused ones by stage."""
        ends = Counter(f"{one.outcome.verdict}: {_end(one.outcome)}" for one in self.judged)
        return dict(sorted(ends.items()))

    @property
    def unseen(self) -> dict[str, int]:
        """How many clean specs each rule refused, for a reason that nothing here can see."""
        outcomes = [one.outcome for one in self.judged]
        fine = [
            each for each in outcomes if each.verdict == "refused" and not each.fault and not each.finding
        ]
        return dict(sorted(Counter(rule for each in fine for rule in each.rules).items()))

    def lines(self) -> Iterator[str]:
        """Yield it for people: counts, and then each finding with its spec."""
        yield f"{counted(len(self.judged), 'spec')} of seed {self.run.seed} for {self.run.target}"
        yield from (f"  {count:>6}  {end}" for end, count in self.counts.items())
        yield from (f"  {count:>6}  refused by {rule}: {UNSEEN[rule]}" for rule, count in self.unseen.items())
        for one in self.findings:
            yield ""
            yield f"finding in spec {one.number}: {one.outcome.finding}"
            if one.outcome.fault:
                yield f"  {one.outcome.fault}"
            yield from (f"    {line}" for line in one.text.splitlines())
        yield f"{counted(len(self.findings), 'finding')}"

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            **asdict(self.run),
            "specs": len(self.judged),
            "counts": self.counts,
            "unseen": self.unseen,
            "findings": [
                {
                    "number": one.number,
                    "finding": one.outcome.finding,
                    **asdict(one.outcome),
                    "spec": one.text,
                }
                for one in self.findings
            ],
        }


def _end(found: Outcome) -> str:
    """Return in words how far a spec came."""
    if found.fault:
        return f"{'not ' if found.verdict == 'accepted' else 'without its rules not '}{WRONG[found.stage]}"
    if found.finding or found.verdict == "accepted":
        return WRONG[found.stage]
    return f"{WRONG[found.stage]} without its rules, which have another reason"
