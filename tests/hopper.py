"""The plans of Hopper specs, as the planner returns them, by their own type; and what judges them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.planner import FAMILIES

judge = FAMILIES["wgmma"].judge
Plan = TypeVar("Plan", bound=Kernel)


def computing(plan: Plan, **changes: Any) -> Plan:
    """Return a plan of the same decisions for another matmul; its epilogue is what a spec would list.

    An epilogue that is an expression stays as it is.
    """
    listed = plan.request.listed
    if listed is None:
        return replace(plan, request=replace(plan.request, matmul=replace(plan.problem, **changes)))
    for name in ("alpha", "beta", "ops"):
        if name in changes:
            listed = replace(listed, **{name: changes.pop(name)})
    matmul = replace(plan.problem, **changes)
    matmul = replace(matmul, epilogue=listed.lowered(c=matmul.c is not None))
    return replace(plan, request=replace(plan.request, matmul=matmul, listed=listed))


def hopper(plan: Kernel) -> WgmmaKernel:
    """Return the plan of a Hopper spec."""
    assert isinstance(plan, WgmmaKernel)
    return plan
