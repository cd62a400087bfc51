"""Candidates for a shape: the planner's first ranks, a kernel of each other kind, and neighbours.

Each candidate is a spec that states every decision. *Pins* are the values of its fields by their paths.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

from gemmgen.errors import GemmgenError
from gemmgen.features.rendering import render
from gemmgen.plan.decisions import FIELDS, pinned, statements
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.sum_order import SumOrder
from gemmgen.planner import family_for, family_of, plan_spec, rank
from gemmgen.problem import Shape, shape_text
from gemmgen.processes.forking import LostError, forked
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.model import Runs, spec_of, stated
from gemmgen.spec.spelling import data_before
from gemmgen.spec.writing import spec_text

Value = int | bool | str
Pins = Mapping[str, Value]
"""Values of fields by their paths: ``tile.n``."""

SEEDS: Final[tuple[Pins, ...]] = (
    {"warp_specialization.kind": "cooperative"},
    {"warp_specialization.kind": "ping_pong"},
    {"schedule.kind": "tiled"},
    {"schedule.kind": "launch_control"},
    {"mma.swap_ab": False},
    {"mma.swap_ab": True},
    {"cluster.m": 2, "cluster.n": 1},
    {"cluster.m": 1, "cluster.n": 2},
    {"schedule.splits": 2},
    {"schedule.splits": 4},
    {"tile.m": 64},
    {"tile.m": 256},
    {"tile.n": 256},
    {"tile.n": 128},
    {"tile.n": 64},
    {"tile.m": 192, "tile.n": 192},
    {"schedule.order": "grouped", "schedule.width": 8},
    {"schedule.order": "hilbert"},
)
"""Pins of one kernel of each kind; the planner chooses the other decisions as for a spec that states these
pins.
"""

ORDERS: Final[tuple[Pins, ...]] = (
    {"schedule.order": "row", "schedule.minor": "n", "schedule.width": 1},
    {"schedule.order": "column", "schedule.minor": "m", "schedule.width": 1},
    *(
        {"schedule.order": order, "schedule.minor": minor, "schedule.width": width}
        for order, minor, width in (
            ("grouped", "m", 8),
            ("grouped", "m", 16),
            ("grouped", "n", 8),
            ("snake", "m", 8),
            ("snake", "m", 16),
            ("snake", "n", 8),
        )
    ),
)
"""Orders of tiles that are neighbours of any other one."""

STEPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "buffering.stages": ("-1", "+1", "-2"),
        "epilogue.subtile_n": ("/2", "*2"),
        "buffering.epilogue": ("-1", "+1"),
        "buffering.outstanding_mmas": ("-1", "+1"),
        "buffering.accumulators": ("-1", "+1"),
        "schedule.splits": ("/2", "*2", "-1", "+1"),
        "cluster.m": ("/2", "*2"),
        "cluster.n": ("/2", "*2"),
        "tile.k": ("/2", "*2"),
        "tile.n": ("/2", "*2", "-16", "+16", "-32", "+32"),
        "tile.m": ("/2", "*2"),
        "occupancy": ("-1", "+1"),
        "warp_specialization.consumers": ("-1", "+1"),
    }
)
"""Steps from a number to its neighbours."""

WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "warp_specialization.kind": ("cooperative", "ping_pong"),
        "operands.a.source": ("shared", "registers"),
        "schedule.kind": ("persistent", "tiled", "launch_control"),
    }
)
"""Words that are neighbours of each other."""

FOLLOWING: Final = frozenset(
    (
        "buffering.stages",
        "buffering.epilogue",
        "buffering.accumulators",
        "epilogue.subtile_n",
        "mma.n",
        "warps.m",
        "warps.n",
        "operands.a.source",
        "operands.a.swizzle",
        "operands.b.swizzle",
        "warp_specialization.consumers",
        "warp_specialization.registers.producer",
        "warp_specialization.registers.consumer",
        "warp_specialization.registers.worker",
    )
)
"""Fields whose values follow from other fields: a neighbour that differs in another field gets them anew."""


@dataclass(frozen=True)
class TuningTarget:
    """Subject of tuning: a spec for one shape [M, N, K]."""

    source: SpecFile
    shape: Shape

    @property
    def stem(self) -> str:
        """The name of the winner's spec and module."""
        return f"{self.source.stem}_{shape_text(self.shape)}"

    @property
    def field(self) -> str:
        """Name of the spec and the shape in messages."""
        return f"{self.source.stem} {shape_text(self.shape)}"

    @property
    def digest(self) -> str:
        """SHA-256 of the problem and all decisions that the spec states."""
        data = data_before(stated(self.source.spec))
        kept = {name: value for name, value in data.items() if name not in UNTUNED}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def spec(self, pins: Pins = MappingProxyType({})) -> Spec:
        """Return the spec for the shape alone, with these values stated too.

        Raises ValueError for a value that its field cannot have.
        """
        data = stated(self.source.spec)
        data.pop("problem", None)
        data["bench"] = {"shapes": [list(self.shape)]}
        search = {path: values for path, values in data.pop("search", {}).items() if path not in pins}
        if search:
            data["search"] = search
        for path, value in pins.items():
            *sections, name = path.split(".")
            place = data
            for section in sections:
                place = place.setdefault(section, {})
            place[name] = value
        if (spec := spec_of(data)) is None:
            raise ValueError(f"no spec states {dict(pins)}")
        return spec

    def is_open(self, path: str, value: Value) -> bool:
        """Return True if the planner may give a field this value: the spec neither states nor excludes it."""
        spec, name = self.source.spec, FIELDS[path]
        return (
            name not in pinned(spec)
            and name in family_of(self.source).decisions
            and value in spec.search.get(path, (value,))
        )

    def plan(self, pins: Pins) -> Kernel | None:
        """Return the best legal plan with these values; None if there is none.

        A plan that breaks the spec's promise of batch invariance is not returned.
        """
        try:
            plan = plan_spec(SpecFile.of(self.spec(pins)))
            return plan if self.adds_up(plan) else None
        except (GemmgenError, ValueError):
            return None

    @cached_property
    def promised_order(self) -> SumOrder | None:
        """Order of sums that every kernel must have; None if the spec does not promise batch invariance.

        It is the order of the spec's own kernel, so it is the same at every tuned shape. Raises GemmgenError
        if no kernel is legal.
        """
        return plan_spec(self.source).sum_order if self.source.spec.batch_invariant else None

    def adds_up(self, plan: Kernel) -> bool:
        """Return True unless the spec promises an order of sums and the kernel has another one."""
        return self.promised_order is None or plan.sum_order == self.promised_order


UNTUNED: Final = ("title", "check", "bench", "problem")
"""Sections of a spec that do not change the kernel of a shape."""


@dataclass(frozen=True)
class TuningCandidate:
    """A kernel that states every decision, and its module."""

    label: str
    """Decisions of the kernel in one line."""
    pins: Pins
    text: str
    """Text of the spec, without the comments about its measurement."""
    module: str
    """Text of the module that the spec makes."""
    kernel: str
    """SHA-256 of the module, without the lines that name the spec."""
    predicted: float
    """The time that the planner expects, in seconds."""


def candidate_of(tuned: TuningTarget, plan: Kernel) -> TuningCandidate:
    """Return a plan for the shape as a spec that states every decision.

    Raises ValueError if no spec can state the plan: the planner makes another plan of its decisions.
    """
    pins = _open_decisions(tuned, plan)
    spec = tuned.spec(pins)
    if plan_spec(SpecFile.of(spec)) != plan:
        raise ValueError(f"{family_for(plan).label(plan)}: no spec states it")
    text = spec_text(stated(spec), apart=())
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    module = render(plan, spec_name=f"{tuned.stem}.yaml", spec_sha256=sha256)
    kernel, predicted = kernel_sha256(plan, tuned.stem), family_for(plan).estimate(plan, tuned.shape).seconds
    return TuningCandidate(_label(plan), pins, text, module, kernel, predicted)


def _label(plan: Kernel) -> str:
    """Return the decisions in one line: the configuration, the order of tiles, and the buffers."""
    lines = (plan.order,) if plan.width == 1 else (plan.order, plan.minor, str(plan.width))
    rings = f"{plan.stages} stages"
    stores = f"stored by {plan.subtile_n} in {plan.epilogue_buffers}"
    registers = ["A from registers"] if getattr(plan, "a_source", "shared") == "registers" else []
    return ", ".join([family_for(plan).label(plan), *registers, rings, " ".join(lines), stores])


def _open_decisions(tuned: TuningTarget, plan: Kernel) -> dict[str, Value]:
    """Return the decisions of a plan that the spec leaves open and another one can state, by their paths."""
    known = pinned(tuned.source.spec)
    return {path: value for path, value in statements(plan).items() if FIELDS[path] not in known}


def kernel_sha256(plan: Kernel, stem: str) -> str:
    """Return the hash of a kernel's module of this name, less the lines that name its spec and its hash.

    The module is rendered for a spec that no file has, whose lines are known to the letter.
    """
    name = f"{stem}.yaml"
    module = render(plan, spec_name=name, spec_sha256=NO_SPEC)
    return hashlib.sha256(
        module.replace(f"Its spec: {name}\nsha256 of its spec: {NO_SPEC}\n", "", 1).encode()
    ).hexdigest()


NO_SPEC: Final = "0" * 64
"""Stands for the hash of a spec."""


# --- candidates


def first_candidates(tuned: TuningTarget, count: int) -> list[TuningCandidate]:
    """Return the kernels that the planner ranks first for the shape, and one legal kernel of each other kind.

    They are found in a child process, because a ranking takes seconds. Raises GemmgenError if no kernel is
    legal.
    """

    def found() -> list[TuningCandidate] | GemmgenError:
        try:
            return _first_candidates(tuned, count)
        except GemmgenError as error:
            return error

    with forked(found) as result:
        try:
            answer = result()
        except LostError as error:
            raise RuntimeError(f"the ranking ended its process: {error}") from error
    if isinstance(answer, GemmgenError):
        raise answer
    return answer


def _first_candidates(tuned: TuningTarget, count: int) -> list[TuningCandidate]:
    spec = tuned.spec()
    first = plan_spec(  # an illegal spec is refused here, with its line
        replace(tuned.source, spec=spec.model_copy(update={"bench": Runs(shapes=(tuned.shape,))}))
    )
    ranked = (each.plan for each in rank(SpecFile.of(spec)).to_measure(count))
    seeds = (tuned.plan(pins) for pins in SEEDS if all(tuned.is_open(*each) for each in pins.items()))
    return _candidates(tuned, (first, *ranked, *seeds))


def _candidates(tuned: TuningTarget, plans: Iterable[Kernel | None]) -> list[TuningCandidate]:
    """Return the candidates of plans, each kernel once; what breaks the spec's promise is left out."""
    found: dict[str, TuningCandidate] = {}
    for plan in dict.fromkeys(plans):
        if plan is not None and tuned.adds_up(plan):
            candidate = candidate_of(tuned, plan)
            found.setdefault(candidate.kernel, candidate)
    return list(found.values())


def neighbours(tuned: TuningTarget, pins: Pins) -> list[TuningCandidate]:
    """Return the legal kernels that differ in one field, and in those that follow from it if necessary."""
    plans = (_neighbour(tuned, pins, step) for step in _steps(tuned, pins))
    return _candidates(tuned, plans)


def _neighbour(tuned: TuningTarget, pins: Pins, step: Pins) -> Kernel | None:
    changed = {**pins, **step}
    open_to = {path: value for path, value in changed.items() if path in step or path not in FOLLOWING}
    first, second = (changed, open_to) if step.keys() <= FOLLOWING else (open_to, changed)
    return tuned.plan(first) or tuned.plan(second)


def _steps(tuned: TuningTarget, pins: Pins) -> Iterator[Pins]:
    """Yield changes of one field, or of the fields of an order together, that the spec allows."""
    changes: list[Pins] = [
        {path: value}
        for path, steps in STEPS.items()
        for value in dict.fromkeys(_moved(pins.get(path), steps))
    ]
    changes += [{path: word} for path, words in WORDS.items() if path in pins for word in words]
    changes += ORDERS
    for change in changes:
        new = {path: value for path, value in change.items() if pins.get(path) != value}
        if new and all(tuned.is_open(*each) for each in new.items()):
            yield change


def _moved(value: Value | None, steps: Sequence[str]) -> Iterator[int]:
    """Yield a number moved by each step; nothing if the field is not a number."""
    if not isinstance(value, int):
        return
    for step in steps:
        by = int(step[1:])
        yield {"+": value + by, "-": value - by, "*": value * by, "/": value // by}[step[0]]
