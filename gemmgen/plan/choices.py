"""Choices that a spec's target does not have: refused before anything is planned."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.decisions import FIELDS, pinned
from gemmgen.plan.family import Family
from gemmgen.plan.rules.rule import either
from gemmgen.spec import Spec
from gemmgen.spec.model import SIZE_LIMIT
from gemmgen.target import GPUS

RULE = "target-choice"
"""The id of this rule, which judges a spec and no plan."""
SEARCH_RULE = "search-values"
KINDS = {
    "wgmma": ("single_tile", "tiled", "persistent"),
    "tcgen05": ("persistent", "launch_control"),
}
"""Schedules by instruction family."""
WORDS = {
    "order": ("row", "grouped", "snake", "hilbert"),
    "minor": ("m", "n"),
    "a_source": ("shared", "registers"),
    "specialization": ("none", "cooperative", "ping_pong"),
}
"""What the other decisions can be that are no numbers."""
LEAST = {"a_swizzle_bytes": 0, "b_swizzle_bytes": 0, "outstanding_mmas": 0}
"""The least that numbers can be, where it is not 1."""


def foreign_choices(spec: Spec, family: Family) -> list[Violation]:
    """Return what a spec states and its target has not."""
    return [*_fields(spec, family), *_operands(spec), *_search(spec, family)]


def _target(spec: Spec) -> str:
    gpu = GPUS[spec.target]
    return f"{gpu.name} ({gpu.architecture.name})"


def _fields(spec: Spec, family: Family) -> Iterator[Violation]:
    stated, mma = pinned(spec), GPUS[spec.target].architecture.mma
    for path, name in FIELDS.items():
        if name in stated and name not in family.decisions:
            yield Violation(
                RULE,
                path,
                f"stated for {_target(spec)}",
                f"its kernels, of {mma}, have no such choice",
                "leave it out",
            )
    kind = stated.get("schedule_kind")
    if kind is not None and kind not in KINDS[mma]:
        yield Violation(
            RULE,
            "schedule.kind",
            f"{kind} for {_target(spec)}",
            f"its kernels are {either(KINDS[mma])}",
            f"use {either(KINDS[mma])}",
        )


def _operands(spec: Spec) -> Iterator[Violation]:
    """Only 4-bit elements are packed, and only tcgen05 multiplies them and scales blocks."""
    for name, operand in (("a", spec.operands.a), ("b", spec.operands.b)):
        path = f"operands.{name}"
        if operand.packing is not None and operand.dtype != "e2m1":
            yield Violation(
                RULE,
                f"{path}.packing",
                f"{operand.packing} for {operand.dtype}",
                "it says how 4-bit elements lie",
                "leave it out",
            )
        if GPUS[spec.target].architecture.mma == "tcgen05":
            continue
        blackwell = "only tcgen05 does, which B200 has"
        if operand.dtype == "e2m1":
            found = f"{name.upper()} is e2m1 for {_target(spec)}"
            yield Violation(
                RULE,
                f"{path}.dtype",
                found,
                f"wgmma multiplies no 4-bit elements, {blackwell}",
                "use e4m3 or e5m2, or b200 for target",
            )
        if operand.scale is not None:
            yield Violation(
                RULE,
                f"{path}.scale",
                f"stated for {_target(spec)}",
                f"wgmma scales no blocks, {blackwell}",
                "leave it out, or use b200 for target",
            )


def _search(spec: Spec, family: Family) -> Iterator[Violation]:
    """Values are searched for decisions that the target has, that are open, and of their type."""
    stated = pinned(spec)
    known = {path: name for path, name in FIELDS.items() if name in family.decisions}
    for path, values in spec.search.items():
        field = f"search.{path}"
        if path not in known:
            yield Violation(
                SEARCH_RULE,
                field,
                "no field that can be searched",
                f"on {_target(spec)} these are {', '.join(known)}",
                "leave it out",
            )
        elif known[path] in stated:
            yield Violation(
                SEARCH_RULE,
                field,
                "searched and stated",
                f"{path} has a value already",
                "leave one of them out",
            )
        else:
            yield from _unsearchable(path, known[path], values, GPUS[spec.target].architecture.mma)


def _unsearchable(path: str, name: str, values: tuple[int | str, ...], mma: str) -> Iterator[Violation]:
    """Yield the first value that its field could not have: Pydantic has not looked at these."""
    words = KINDS[mma] if name == "schedule_kind" else WORDS.get(name, ())
    least = LEAST.get(name, 1)
    kind = either(words) if words else f"whole numbers from {least} to {SIZE_LIMIT:,}"
    for value in values:
        if value in words if words else isinstance(value, int) and least <= value <= SIZE_LIMIT:
            continue
        yield Violation(
            SEARCH_RULE,
            f"search.{path}",
            f"{value!r} among the values",
            f"those of {path} are {kind}",
            f"use {either(words)}" if words else f"use at least {least} and at most {SIZE_LIMIT}",
        )
        return
