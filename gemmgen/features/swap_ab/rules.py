"""The rule of swap-AB: the instruction multiplies B.T and A.T."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.plan.fix import use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.wgmma.resources import WgmmaKernel


@rule("swap-ab")
def swap_ab(plan: WgmmaKernel) -> Iterator[Finding]:
    """With swap-AB A is in shared memory, and consumers do not divide a tile's rows."""
    if not plan.swap_ab:
        return
    if plan.mma.right.source == "registers":
        yield Finding(
            "operands.a.source",
            "A from registers with swap-AB",
            "the instruction's left operand is then B, and wgmma reads only its left one from registers",
            use("shared") | use(False, field="mma.swap_ab"),
        )
    if plan.row_shares > 1:
        yield Finding(
            "warp_specialization.consumers",
            f"{plan.consumers} cooperative consumers with swap-AB",
            "cooperative consumers split M, which is the instruction's N after swap_ab",
            use(1)
            if plan.splits_per_tile > 1
            else use(1) | use("ping_pong", field="warp_specialization.kind"),
        )


RULES: Final = {"wgmma": (swap_ab,)}
"""The rules by the instruction of a family, in the order of reports."""
