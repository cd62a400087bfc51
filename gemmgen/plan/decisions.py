"""The decisions that a spec pins, and the specs of its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, cast

from gemmgen import MODULE_FORMAT
from gemmgen.hardware.gpus import round_up
from gemmgen.problem import Gradient, gradients_of
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.model import stated
from gemmgen.spec.values import SIZE_LIMIT, TITLE_LIMIT
from gemmgen.spec.words import Minor, Order, ScheduleKind
from gemmgen.spec.writing import spec_text


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Decisions of every kernel, made by a spec or by the search. Sizes are in elements."""

    cta_tile_m: int
    cta_tile_n: int
    cta_tile_k: int
    cluster_m: int
    cluster_n: int

    a_swizzle_bytes: int
    b_swizzle_bytes: int
    stages: int
    epilogue_buffers: int
    subtile_n: int

    schedule_kind: ScheduleKind
    order: Order
    minor: Minor
    width: int
    occupancy: int
    """CTAs that share an SM."""


LINES: Final[Mapping[str, str]] = MappingProxyType({"row": "n", "column": "m"})
"""The orders in which one line of tiles follows another, and the dimension along which a line lies."""

FIELDS = {
    "tile.m": "cta_tile_m",
    "tile.n": "cta_tile_n",
    "tile.k": "cta_tile_k",
    "tile.staggered": "staggered",
    "mma.swap_ab": "swap_ab",
    "mma.n": "mma_n",
    "mma.promote_k": "promote_k",
    "warps.m": "warps_m",
    "warps.n": "warps_n",
    "cluster.m": "cluster_m",
    "cluster.n": "cluster_n",
    "operands.a.source": "a_source",
    "operands.a.swizzle": "a_swizzle_bytes",
    "operands.b.swizzle": "b_swizzle_bytes",
    "buffering.stages": "stages",
    "buffering.outstanding_mmas": "outstanding_mmas",
    "buffering.accumulators": "accumulators",
    "buffering.epilogue": "epilogue_buffers",
    "epilogue.subtile_n": "subtile_n",
    "warp_specialization.kind": "specialization",
    "warp_specialization.consumers": "consumers",
    "warp_specialization.registers.producer": "producer_registers",
    "warp_specialization.registers.consumer": "consumer_registers",
    "warp_specialization.registers.worker": "worker_registers",
    "schedule.kind": "schedule_kind",
    "schedule.order": "order",
    "schedule.minor": "minor",
    "schedule.width": "width",
    "schedule.splits": "splits",
    "schedule.reduction": "reduction",
    "dependent_launch.early": "early_operand",
    "dependent_launch.trigger": "trigger",
    "occupancy": "occupancy",
}
"""The decisions that a spec can state: the path of each field, and the name of the plan's."""

UNSTATED: Final = frozenset(
    {("mma.promote_k", 0), ("tile.staggered", False), ("warp_specialization.registers.producer", 0)}
)
"""Pairs of a field and a value that need no statement beside all other decisions."""


def pinned(spec: Spec) -> dict[str, object]:
    """Return the decisions that the spec states, by the name of the plan's field."""
    values = {name: _value(spec, path) for path, name in FIELDS.items()}
    return {name: value for name, value in values.items() if value is not None}


def searched(spec: Spec) -> dict[str, tuple[object, ...]]:
    """Return the values that the spec wants tried for open decisions, by the name of the plan's field.

    Fields come in the order of `FIELDS`, numbers ascending, words by the alphabet, and each value once: the
    order in which a file names them decides nothing.
    """
    return {
        name: tuple(sorted(set(spec.search[path]), key=lambda value: (isinstance(value, str), value)))
        for path, name in FIELDS.items()
        if path in spec.search
    }


def statements(kernel: Decisions) -> dict[str, int | str]:
    """Return the decisions of a kernel that a spec can state, by the paths of their fields.

    A spec that states them all, beside the kernel's problem, gets this kernel. Absent features are left out:
    registers that no role requests, promotion, a dependent launch, a staggered tile.
    """
    values = {path: getattr(kernel, name, None) for path, name in FIELDS.items()}
    if values["dependent_launch.early"] == "none":
        values = {path: each for path, each in values.items() if not path.startswith("dependent_launch.")}
    return {
        path: value for path, value in values.items() if value is not None and (path, value) not in UNSTATED
    }


def frozen(source: SpecFile, kernel: Decisions) -> dict[str, Any]:
    """Return the plain data of a spec that states every decision of a kernel, which was planned for it."""
    problem = source.problem
    data = stated(source.spec)
    data.pop("search", None)
    data["accumulator"] = problem.accumulator.name
    for name, operand in (("a", problem.a), ("b", problem.b)):
        data["operands"][name]["major"] = operand.major
    for path, value in statements(kernel).items():
        *sections, last = path.split(".")
        section = data
        for step in sections:
            section = section.setdefault(step, {})
        section[last] = value
    return data


def gradient_stem(stem: str, operand: str) -> str:
    """Return the name of the module that computes an operand's gradient."""
    return f"{stem}_grad_{operand}"


def gradient_specs(source: SpecFile) -> dict[str, str]:
    """Return the specs of the gradients' kernels, as YAML by the names of their modules.

    The decisions of the spec hold for its own kernel alone: those of the gradients are open, and planned for
    the same problems.
    """
    return {
        gradient_stem(source.stem, gradient.operand): _gradient_text(gradient, source)
        for gradient in gradients_of(source.problem)
    }


def _gradient_text(gradient: Gradient, source: SpecFile) -> str:
    spec, stem = source.spec, source.stem
    problem, dtype = gradient.problem, gradient.problem.a.dtype.name
    left, right = ({"dtype": dtype, "major": major} for major in gradient.majors)
    operands: dict[str, Any] = {"a": left, "b": right, "d": {"dtype": dtype}}
    if problem.copies_misaligned:
        operands["misaligned"] = "copy"
    transposed = ", transposed" * gradient.transposed[2]
    title = f"gradient of {gradient.operand.upper()}{transposed}: {gradient.formula} of {stem}"
    data: dict[str, Any] = {"title": title[:TITLE_LIMIT].strip(), "target": spec.target, "operands": operands}
    said, unit = stated(spec), source.request.gpu.architecture.tma_alignment_bytes // problem.d.bytes
    if gradient.groups:
        sizes = {key: said["groups"][key] for key in ("skew", "shares") if key in said["groups"]}
        data["groups"] = {"kind": gradient.groups.of, "count": gradient.groups.count, **sizes}
    if (alpha := problem.epilogue.alpha) != 1:
        data["epilogue"] = {"alpha": alpha}
    if problem.deterministic:
        data["deterministic"] = True
    if spec.problem:
        extents = {axis: _padded(gradient, axis, extent, unit) for axis, extent in said["problem"].items()}
        data["problem"] = {name: extents[axis] for name, axis in zip("mnk", gradient.axes, strict=True)}
    for section in ("check", "bench"):
        if section in said:
            data[section] = {"shapes": [_shape(gradient, shape, unit) for shape in said[section]["shapes"]]}
    made = f"Generated by gemmgen (module format {MODULE_FORMAT}) from {source.name}"
    head = f"# {made}: change that, not this file.\n"
    return head + spec_text(data)


def _shape(gradient: Gradient, shape: list[int], unit: int) -> list[int]:
    """Return M, N and K of a gradient's product for the problem's M, N and K."""
    extents = dict(zip("mnk", shape, strict=True))
    return [_padded(gradient, axis, extents[axis], unit) for axis in gradient.axes]


def _padded(gradient: Gradient, axis: str, extent: Any, unit: int) -> Any:
    """Return an extent, or the ends of a range, as a kernel takes it.

    The rows of dD are as long as N: if they are no multiple of ``unit`` elements, which TMA demands, a
    backward pads them.
    """
    if isinstance(extent, list):
        least, most = (_padded(gradient, axis, end, unit) for end in cast("list[int]", extent))
        return least if least == most else [least, most]
    if axis != "n" or gradient.problem.copies_misaligned:
        return extent
    return min(round_up(extent, unit), SIZE_LIMIT // unit * unit)


def _value(spec: Spec, path: str) -> object:
    value: object = spec
    for name in path.split("."):
        value = getattr(value, name, None)  # of a section that is left out, nothing is stated
    return value
