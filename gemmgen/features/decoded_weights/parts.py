"""The parts of a K step that a consumer decodes one after the other."""

from __future__ import annotations

from typing import Final

from gemmgen.plan.wgmma.geometry import WgmmaGeometry

HELD: Final = 2
"""Parts that are in registers: the MMAs of one run while threads decode the other.

None runs when the loop goes round: there ptxas waits for each MMA whose registers are written [gluon].
"""
STEPS: Final = (128, 256)
"""K of a step, which has two parts or four."""
SHORT_PART: Final = 64
"""K of a part beside many rows: of four parts, only the first is decoded beside no MMA. On an H200, tiles of
128 x 128 took 0.87 to 0.96 of the time of two parts, and most tiles of fewer than 64 rows 1.02 to 1.06
(``benchmarks/weights/h200_parts.json``).
"""
MANY_ROWS: Final = 64
"""Rows of a tile from which on the MMAs of a short part take as long as it takes to decode the next one."""


def decoded_k(plan: WgmmaGeometry) -> int:
    """Return the elements of K that a consumer decodes at a time: a part of a step."""
    return SHORT_PART if plan.cta_tile_m >= MANY_ROWS else plan.cta_tile_k // HELD
