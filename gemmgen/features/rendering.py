"""Modules with the features of their plans: the sides of all features in rendering, and what renders them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from gemmgen.features.block_scales.rendering import BlockScales, PackedScales
from gemmgen.features.composed_tiles.rendering import ComposedTiles
from gemmgen.features.dependent_launch.rendering import DependentKernel
from gemmgen.features.gates.rendering import Gates, GradientsOfGate
from gemmgen.features.groups.rendering import GroupedKernel
from gemmgen.features.misaligned.rendering import Misaligned
from gemmgen.features.output_scales.rendering import OutputScales
from gemmgen.features.rows_by_index.rendering import RowsByIndex
from gemmgen.features.saved_sums.rendering import SavedSums
from gemmgen.features.split_k.rendering import SplitK
from gemmgen.features.swap_ab.rendering import SwapAb
from gemmgen.plan.kernel import Kernel
from gemmgen.render import render_module
from gemmgen.render.side import Rendering, Sides

SIDES = cast(
    "dict[str, tuple[Callable[[Kernel], Rendering], ...]]",
    {
        "wgmma": (
            *(BlockScales, ComposedTiles, Gates, GradientsOfGate, OutputScales, SavedSums, SplitK),
            *(GroupedKernel, RowsByIndex, Misaligned, SwapAb, DependentKernel),
        ),
        "tcgen05": (PackedScales, Misaligned),
    },
)
"""The sides of the features of each instruction, in the order of their sentences and constants.

The cast is safe: a side is only given kernels of its instruction.
"""


def sides_of(plan: Kernel) -> Sides:
    """Return the sides of the features that a plan has."""
    return tuple(side for make in SIDES[plan.architecture.mma] if (side := make(plan)).applies)


def render(plan: Kernel, *, spec_name: str, spec_sha256: str) -> str:
    """Return the source of the plan's module: the same bytes on every machine."""
    return render_module(plan, sides_of, spec_name=spec_name, spec_sha256=spec_sha256)
