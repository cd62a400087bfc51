"""Kernels without titles and shapes, and the specs that state every decision of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.kernel import Kernel
from gemmgen.planner import family_for, plan_spec
from gemmgen.problem import Request
from gemmgen.problem.observation import Observation
from gemmgen.spec import Spec, SpecFile
from gemmgen.spec.model import spec_of, stated
from gemmgen.spec.writing import spec_text

if TYPE_CHECKING:
    pass


KernelObservation = Observation[Kernel]
"""Observation of a kernel without title and shapes: equal kernels of two specs are then one kernel."""


def anonymous(kernel: Kernel) -> Kernel:
    """Return a kernel without the title, shapes and sizes of its spec."""
    return replace(kernel, request=Request(kernel.problem, kernel.gpu))


def family_label(kernel: Kernel) -> str:
    """Return the decisions of a kernel in one line, by the family that made it."""
    return family_for(kernel).label(kernel)


DEFAULTS: Final[Mapping[str, object]] = {
    "mma.swap_ab": False,
    "mma.promote_k": 0,
    "tile.staggered": False,
    "schedule.splits": 1,
    "schedule.reduction": "ordered",
    "dependent_launch.early": "none",
}
"""Decisions that a spec omits if they have these values, which are then the only ones."""
DERIVED: Final = ("mma.n", "operands.a.swizzle", "operands.b.swizzle")
"""Decisions that follow from the tile alone if the planner chose them."""


def pinned_text(kernel: Kernel, spec: Spec, title: str) -> str:
    """Return the text of a spec that states the problem of `spec`, and every decision of a Hopper kernel.

    Raises ValueError if the planner would make another kernel of it.
    """
    data: dict[str, Any] = spec.model_dump(exclude_none=True, exclude={"bench", "check", "problem", "search"})
    data["title"] = title
    for path, name in FIELDS.items():
        *parents, last = path.split(".")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section.pop(last, None)
        value = getattr(kernel, name, None)
        if value is not None and _is_stated(kernel, path, value):
            section[last] = value
    found = spec_of({name: value for name, value in data.items() if value != {}})
    if found is None or anonymous(plan_spec(SpecFile.of(found))) != kernel:
        raise ValueError(f"{title} is not planned as it was")
    return spec_text(stated(found), apart=())


def _is_stated(kernel: Kernel, path: str, value: object) -> bool:
    """Return True if the spec of a kernel states this decision."""
    section = path.partition(".")[0]
    roles = getattr(kernel, "specialization", "none") != "none"
    early = getattr(kernel, "early_operand", "none") != "none"
    if path in DERIVED or DEFAULTS.get(path) == value:
        return False
    if path == "operands.a.source":  # for composed tiles the planner chooses either, by their columns
        return value != "shared" or getattr(kernel, "composed", False)
    if section in ("warp_specialization", "cluster"):
        return roles
    if section in ("warps", "occupancy"):
        return not roles
    return early if section == "dependent_launch" else True
