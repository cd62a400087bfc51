"""The rule of promotion: sums of a few products are added to sums of all in other registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.block_scales.rules import block_scales, scale_format
from gemmgen.plan.fix import hint, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.wgmma.resources import WgmmaKernel

WIDEST_PROMOTED_BITS = 16
"""Bits of the widest operands whose sums can be promoted."""


@rule("promotion", after=[scale_format, block_scales])
def promotion(plan: WgmmaKernel) -> Iterator[Finding]:
    """Sums of 8- and 16-bit floats in fp32 are promoted, after each K step."""
    if not plan.promote_k:
        return
    field, a = "mma.promote_k", plan.problem.a.multiplied
    if a.integer or a.bits > WIDEST_PROMOTED_BITS or plan.problem.accumulator.name != "fp32":
        yield Finding(
            field,
            f"sums of {plan.promote_k:,} products of {a.name} in {plan.problem.accumulator.name}",
            "promotion needs 8- or 16-bit floats whose products wgmma adds up in fp32",
            leave_out() | hint("operands of 8- or 16-bit floats, and fp32"),
        )
    elif plan.problem.scales_sums:
        return  # whose blocks have rules of their own
    elif plan.promote_k != plan.cta_tile_k:
        yield Finding(
            field,
            f"promotion after {plan.promote_k:,} of K",
            f"sums are promoted after each K step, of {plan.cta_tile_k}",
            use(plan.cta_tile_k),
        )
    elif plan.outstanding_mmas:
        yield Finding(
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA with promotion",
            "a sum is promoted when it has retired, before the next one starts",
            use(0),
        )
    elif plan.schedule_kind == "single_tile":
        yield Finding(
            field,
            f"promotion after {plan.promote_k} of K",
            "a kernel of a single tile has one K step",
            leave_out() | hint("a tiled or persistent schedule"),
        )


RULES: Final = {"wgmma": (promotion,)}
"""The rules by the instruction of a family, in the order of reports."""
