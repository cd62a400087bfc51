"""Modules with the features of their plans: the sides of all features in rendering, and what renders them."""

from __future__ import annotations

from typing import Final, cast

from gemmgen.features.registry import sides
from gemmgen.plan.kernel import Kernel
from gemmgen.render import render_module
from gemmgen.render.side import Sides, SidesByMma

SIDES: Final = tuple(cast("SidesByMma", side.SIDES) for side in sides("rendering"))
"""The sides of each feature, in the order of their sentences and constants."""


def sides_of(plan: Kernel) -> Sides:
    """Return the sides of the features that a plan has."""
    mma = plan.architecture.mma
    return tuple(side for each in SIDES for make in each.get(mma, ()) if (side := make(plan)).applies)


def render(plan: Kernel, *, spec_name: str, spec_sha256: str) -> str:
    """Return the source of the plan's module: the same bytes on every machine."""
    return render_module(plan, sides_of, spec_name=spec_name, spec_sha256=spec_sha256)
