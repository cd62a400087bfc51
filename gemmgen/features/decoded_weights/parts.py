"""The parts of a K step that a consumer decodes one after the other."""

from __future__ import annotations

from typing import Final

from gemmgen.plan.wgmma.geometry import WgmmaGeometry

PARTS: Final = 2
"""Parts of a K step: the MMAs of one run while threads decode the other.

None runs when the loop goes round: there ptxas waits for each MMA whose registers are written [gluon].
"""


STEPS: Final = (128, 256)
"""K of a step: a part of 64 or 128 takes 16 or 32 registers, and the one that is multiplied as many."""


def decoded_k(plan: WgmmaGeometry) -> int:
    """Return the elements of K that a consumer decodes at a time."""
    return plan.cta_tile_k // PARTS
