"""Choices that a spec's target does not have: refused before anything is planned."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from gemmgen.hardware import DTYPES, GPUS
from gemmgen.plan.decisions import FIELDS, pinned
from gemmgen.plan.fix import at_least, clause, either, hint, leave_out, use
from gemmgen.plan.fix import written as written_value
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.operand_choices import foreign_operands
from gemmgen.plan.rule import Finding, Rule, Violation, counted, judge, rule
from gemmgen.plan.search import Family
from gemmgen.plan.shared_rules import without_expression
from gemmgen.problem.epilogue import Epilogue, Step, written_d
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.values import SIZE_LIMIT
from gemmgen.spec.words import (
    EarlyOperand,
    Minor,
    Order,
    Reduction,
    Searched,
    Source,
    Specialization,
    Trigger,
)

ORDERS: dict[str, tuple[str, ...]] = {"order": get_args(Order), "minor": get_args(Minor)}
WORDS: dict[str, dict[str, tuple[str | bool, ...]]] = {
    "wgmma": {
        "schedule_kind": ("single_tile", "tiled", "persistent"),
        "specialization": get_args(Specialization),
        "a_source": get_args(Source),
        "swap_ab": (False, True),
        "staggered": (False, True),
        "early_operand": get_args(EarlyOperand),
        "trigger": get_args(Trigger),
        "reduction": get_args(Reduction),
        **ORDERS,
    },
    "tcgen05": {"schedule_kind": ("persistent", "launch_control"), **ORDERS},
}
"""The values of the decisions that are no numbers, by the instruction of the family."""
LEAST = {"a_swizzle_bytes": 0, "b_swizzle_bytes": 0, "outstanding_mmas": 0}
"""The least that numbers can be, where it is not 1."""


@dataclass(frozen=True)
class Statement:
    """A spec's statements, with the family of kernels that they are for."""

    spec: Spec
    epilogue: Epilogue
    """The epilogue as an expression, from either form that a spec can have."""
    decisions: frozenset[str]
    """Names of the decisions of the family's plans."""

    @property
    def target(self) -> str:
        """The GPU and its architecture, in words."""
        gpu = GPUS[self.spec.target]
        return f"{gpu.name} ({gpu.architecture.name})"

    @property
    def mma(self) -> str:
        """The family's instruction."""
        return GPUS[self.spec.target].architecture.mma


@rule("target-choice")
def target_choice(statement: Statement) -> Iterator[Finding]:
    """The target's kernels support each stated decision, and the element types and scales."""
    stated = pinned(statement.spec)
    for path, name in FIELDS.items():
        if name in stated and name not in statement.decisions:
            limit = f"{statement.mma} kernels do not have this field"
            yield Finding(path, f"stated for {statement.target}", limit, leave_out())
    kind, kinds = stated.get("schedule_kind"), WORDS[statement.mma]["schedule_kind"]
    if kind is not None and kind not in kinds:
        yield Finding(
            "schedule.kind",
            f"{kind} for {statement.target}",
            f"its kernels are {either(kinds)}",
            use(*kinds),
        )
    gpu, scale = GPUS[statement.spec.target], statement.spec.operands.d.scale
    if statement.mma == "tcgen05" and scale is not None:
        hopper = [gpu.target for gpu in GPUS.values() if gpu.architecture.mma == "wgmma"]
        limit = "scales of D are supported on Hopper only"
        found = f"scales of D for {statement.target}"
        yield Finding("operands.d.scale", found, limit, leave_out() | use(*hopper, field="target"))
    yield from foreign_operands(statement.spec.operands, gpu)


@rule("search-values")
def search_values(statement: Statement) -> Iterator[Finding]:
    """Searched decisions exist for the target and are open, and their values have the right type."""
    stated = pinned(statement.spec)
    known = {path: name for path, name in FIELDS.items() if name in statement.decisions}
    for path, values in statement.spec.search.items():
        field = f"search.{path}"
        if path not in known:
            limit = _searchable(path, (*known,), statement)
            yield Finding(field, "no field that can be searched", limit, leave_out())
        elif known[path] in stated:
            limit = f"{path} has a value already"
            yield Finding(field, "searched and stated", limit, leave_out() | leave_out(path))
        else:
            yield from _unsearchable(path, known[path], values, statement.mma)


def _searchable(path: str, known: Sequence[str], statement: Statement) -> str:
    """Return the fields that can be searched and are spelled like a path, or all of them if none is."""
    close = difflib.get_close_matches(path, known, n=1, cutoff=0.8)
    found = f"the closest one is {close[0]}" if close else f"these are {', '.join(known)}"
    return f"on {statement.target} {found}"


def _unsearchable(path: str, name: str, values: tuple[Searched, ...], mma: str) -> Iterator[Finding]:
    """Yield a finding for the first value that the field cannot have: Pydantic checks none of them."""
    words, least = WORDS[mma].get(name, ()), LEAST.get(name, 1)
    kind = either([*map(written_value, words)]) if words else f"whole numbers from {least} to {SIZE_LIMIT:,}"
    for value in values:
        if words and any(value is word or (isinstance(value, str) and value == word) for word in words):
            continue
        if not words and type(value) is int and least <= value <= SIZE_LIMIT:
            continue
        yield Finding(
            f"search.{path}",
            f"{written_value(value) if isinstance(value, bool) else repr(value)} among the values",
            f"those of {path} are {kind}",
            use(*((word,) for word in words)) if words else at_least((least,)),
        )
        return


@rule("batch-invariance", after=[target_choice, search_values])
def batch_invariance(statement: Statement) -> Iterator[Finding]:
    """Open decisions of a batch-invariant spec do not change the order of a row's sums."""
    # That is in the order of K, whatever the tile and the schedule are, but for the decisions below: those
    # that the order of a kernel's sums (`SumOrder`) depends on.
    spec = statement.spec
    if not spec.batch_invariant:
        return
    for path in ("schedule.splits", "schedule.reduction", "mma.promote_k"):
        values = spec.search.get(path, ())
        if path == "schedule.reduction":
            values = tuple(value for value in values if value != "atomic")  # refused, or of integers
        if len(values) > 1:
            yield Finding(
                f"search.{path}",
                f"{counted(len(values), 'value')} for a batch-invariant kernel",
                "for another M the planner may take another one, and a row of D gets other bits",
                use(*((value,) for value in values)),
            )
    wanted = spec.search.get("schedule.splits", (spec.schedule.splits or 1,))
    splits = next((each for each in wanted if each != 1), 1)
    steps = spec.search.get("tile.k", ())
    if splits != 1 and not (spec.tile.k or spec.mma.promote_k or len(steps) == 1):
        one, step = use(1 if spec.schedule.splits else (1,)), "state tile.k"
        if spec.schedule.reduction not in (None, "ordered"):
            one &= leave_out("schedule.reduction")
        if spec.schedule.reduction == "atomic":
            step += "" if spec.operands.a.dtype == "int8" else " with an ordered one"
        yield Finding(
            "schedule.splits" if spec.schedule.splits else "search.schedule.splits",
            f"{splits} parts of K for a batch-invariant kernel whose K step is open",
            "a part is of whole steps: for another M the planner may take others, and a row gets other bits",
            one | clause(step),
        )


@rule("misaligned-copy")
def misaligned_copy(statement: Statement) -> Iterator[Finding]:
    """Copies of misaligned tensors have plain elements, and the kernel waits for them."""
    field, spec = "operands.misaligned", statement.spec
    if spec.operands.misaligned != "copy":
        return
    launch = spec.dependent_launch
    tried = spec.search.get("dependent_launch.early", ())
    if (launch and launch.early != "nothing") or {*tried} - {"nothing"}:
        yield Finding(
            field,
            "copy for a kernel that starts before the one ahead of it has ended",
            "the kernel ahead would be the copy, which still writes the operand that is loaded early",
            use("refuse") | use("nothing", field="dependent_launch.early"),
        )
    if spec.operands.d.scale:
        found, limit = (
            "copy with scales of D",
            "copies of misaligned tensors are supported only without scales",
        )
        yield Finding(field, found, limit, use("refuse") | leave_out("operands.d.scale"))
    if spec.operands.a.scale or spec.operands.b.scale:
        yield Finding(
            field,
            "copy for operands with scales of blocks",
            "copies of misaligned tensors are supported only without scales",
            use("refuse"),
        )


@rule("epilogue-form")
def epilogue_form(statement: Statement) -> Iterator[Finding]:
    """D is an expression, or alpha, beta and a list of operations, not both; accumulators are in one."""
    epilogue = statement.spec.epilogue
    yield from _blocks_of_c(statement)
    if epilogue.save is not None and epilogue.save != epilogue.accumulators:
        names = " and ".join(epilogue.accumulators or ("acc",))
        found = f"{' and '.join(epilogue.save)} of the accumulators {names}"
        limit = "both of two accumulators are stored, in their order"
        fix = use(epilogue.accumulators) | leave_out() if epilogue.accumulators else leave_out()
        yield Finding("epilogue.save", found, limit, fix)
    if epilogue.columns is not None and epilogue.accumulators is None and epilogue.c is None:
        limit = "it is the order of the columns of B that belong to two accumulators"
        fix = leave_out() | hint("it with epilogue.accumulators")
        yield Finding("epilogue.columns", f"{epilogue.columns} with one accumulator", limit, fix)
    if epilogue.d is None:
        if epilogue.accumulators is not None:
            found = f"{' and '.join(epilogue.accumulators)} without an expression of D"
            fix = leave_out() | hint("them with an epilogue.d")
            yield Finding("epilogue.accumulators", found, "the expression says how they become D", fix)
        return
    for name, said in (("alpha", epilogue.alpha), ("beta", epilogue.beta), ("ops", epilogue.ops or None)):
        if said is not None:
            limit = "the expression says all that becomes of the sums"
            fix = leave_out() | leave_out("epilogue.d")
            yield Finding(f"epilogue.{name}", f"{name} beside an expression of D", limit, fix)


def _blocks_of_c(statement: Statement) -> Iterator[Finding]:
    """Yield findings of the names of the matrices in C: they are for two expressions of one accumulator."""
    epilogue = statement.spec.epilogue
    if epilogue.c is None:
        return
    names = " and ".join(epilogue.c)
    if not isinstance(epilogue.d, tuple):
        found = f"{names} in C with {'no expression' if epilogue.d is None else 'one expression'} of D"
        limit = "C and D have two matrices side by side, and each of D's has an expression"
        fix = without_expression("epilogue.d") | hint("them with a list of two in epilogue.d")
        yield Finding("epilogue.c", found, limit, fix)
    if epilogue.accumulators is not None:
        found = f"{names} in C with the accumulators {' and '.join(epilogue.accumulators)}"
        limit = "two matrices in C and D need one accumulator"
        yield Finding("epilogue.c", found, limit, without_expression("epilogue.d"))
    if statement.mma == "tcgen05":
        others = [gpu.target for gpu in GPUS.values() if gpu.architecture.mma == "wgmma"]
        limit = "two matrices in C and D are supported on Hopper only"
        fix = without_expression("epilogue.d") | use(*others, field="target")
        yield Finding("epilogue.c", f"{names} in C for {statement.target}", limit, fix)


@rule("backward", after=[target_choice])
def backward(statement: Statement) -> Iterator[Finding]:
    """A backward requires 16-bit operands, C and D of their type, and an epilogue that only adds."""
    spec = statement.spec
    operands, dtype = spec.operands, spec.operands.a.dtype
    if not spec.backward:
        return
    if DTYPES[dtype].bits != 16:
        limit = "gradients are products of 16-bit matrices, bf16 or fp16"
        yield Finding("backward", f"true for {dtype} operands", limit, leave_out())
        return
    limits = {
        "c": "the gradient of C is a multiple of that of D, which has the type of A and B",
        "d": "the gradient of D is multiplied with A and B, and has their type",
    }
    for name, matrix in (("c", operands.c), ("d", operands.d)):
        if matrix and matrix.dtype != dtype:
            found = f"{name.upper()} is {matrix.dtype} with a backward of {dtype} operands"
            fix = use(dtype) | leave_out("backward")
            yield Finding(f"operands.{name}.dtype", found, limits[name], fix)
    for i, (op, _) in enumerate(spec.epilogue.steps):
        if OPERATIONS[op].effect != "plus":
            yield Finding(
                f"epilogue.ops.{i}",
                f"{op} with a backward",
                "its derivative reads its argument, which no kernel keeps",
                leave_out() | leave_out("backward"),
            )
    epilogue = statement.epilogue
    if spec.epilogue.d is not None and not all(map(_adds, epilogue.steps)):
        limit = "the derivative of anything but sums of A @ B, C and biases reads values that no kernel keeps"
        fix = without_expression() | leave_out("backward")
        yield Finding("epilogue.d", f"{written_d(epilogue)} with a backward", limit, fix)


def _adds(step: Step) -> bool:
    """Return True if a step has a gradient that only D's is needed for: alpha, C, and biases."""
    return step.name in ("alpha", "c") or (step.operation is not None and step.operation.effect == "plus")


CHOICE_RULES: tuple[Rule[Statement], ...] = (
    target_choice,
    search_values,
    batch_invariance,
    misaligned_copy,
    epilogue_form,
    backward,
)


def foreign_choices(source: SpecFile, family: Family[Kernel]) -> tuple[Violation, ...]:
    """Return the violations of statements that the spec's target does not support."""
    statement = Statement(source.spec, source.problem.epilogue, family.decisions)
    return judge(statement, CHOICE_RULES)
