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
MANY_ROWS: Final = {16: 64, 8: 256}
"""Rows of a tile from which on the MMAs of a short part take as long as it takes to decode the next one.

By the bits that threads decode to. Beside e4m3, a short part took 1.05 to 1.16 of the time of one of 128 in
tiles of 64 rows, 0.98 to 1.06 in tiles of 128, and 0.91 to 0.97 in tiles of 256
(``benchmarks/weights/h200_w4a8.json``).
"""


def has_many_rows(plan: WgmmaGeometry) -> bool:
    """Return True if a consumer decodes short parts, because a tile has rows enough."""
    return plan.cta_tile_m >= MANY_ROWS[plan.problem.b.multiplied.bits]


def decoded_k(plan: WgmmaGeometry) -> int:
    """Return the elements of K that a consumer decodes at a time: a part of a step."""
    return SHORT_PART if has_many_rows(plan) else plan.cta_tile_k // HELD
