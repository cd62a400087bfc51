"""The rules of weights that threads decode: their types, and the tiles whose words a warp reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.decoded_weights.factor import multiplies_first, with_factor_first
from gemmgen.features.decoded_weights.parts import STEPS
from gemmgen.hardware import SCALE_FORMATS, ScaleFormat
from gemmgen.plan.fix import either, leave_out, of_change, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.warp_rules import CONSUMERS

WARP_COLUMNS: Final = 16
"""[ptx] Rows of wgmma's first operand, which are columns of B, in the registers of a warp."""
WARPS: Final = (8, 4)
"""Warps of a consumer that decodes: one or two warpgroups."""
SUMS: Final = "fp32"
"""The type of the sums: fp16 rounds sums of weights that have several significant bits each."""


@rule("weight-types", subject="problem")
def weight_types(plan: WgmmaKernel) -> Iterator[Finding]:
    """Threads decode a K-contiguous B to the type of an A without scales, and an epilogue has its factor."""
    a, b = plan.problem.a, plan.problem.b
    if not (b.decoded and b.scale):
        return
    if a.dtype != b.decoded:
        found = f"A is {a.dtype.name} beside {b.dtype.name} weights with scales of {b.scale.format.name}"
        fix = use(b.decoded.name)
        for each in _like(b.scale.format):
            if each.decoded_to == a.dtype.name:
                factor = with_factor_first(plan, each.factor) if _lacks(plan, each.factor) else ()
                fix |= of_change((("operands.b.scale.format", each.name), *factor), "operands.a.dtype")
        yield Finding("operands.a.dtype", found, f"threads decode B to {b.decoded.name}", fix)
    if a.scale:
        found, limit = f"scales of A beside {b.dtype.name} weights", f"an A of {b.decoded.name} has none"
        yield Finding("operands.a.scale", found, limit, leave_out())
    if (sums := plan.problem.accumulator.name) != SUMS:
        found = f"products of {b.dtype.name} weights added up in {sums}"
        yield Finding("accumulator", found, f"sums of decoded weights are kept in {SUMS}", use(SUMS))
    if b.major != "k":
        limit = "`pack_weight` packs elements along K into a word"
        yield Finding("operands.b.major", f"N-contiguous {b.dtype.name} weights", limit, use("k"))
    if _lacks(plan, factor := b.scale.format.factor):
        name = b.scale.format.name
        is_there = factor in plan.problem.epilogue.loads
        found = f"a {factor} that does not multiply the sums first, beside {name} weights"
        found = found if is_there else f"{name} weights without a {factor} in the epilogue"
        limit = "a number of B is an element times its scale times this factor, which `pack_weight` returns"
        field = "epilogue.ops" if plan.request.listed else "epilogue.d"
        yield Finding(field, found, limit, of_change(with_factor_first(plan, factor), field))


def _lacks(plan: WgmmaKernel, factor: str) -> bool:
    """Return True if numbers of B have a factor by which the epilogue does not multiply the sums first."""
    return bool(factor) and not multiplies_first(plan, factor)


def _like(scale_format: ScaleFormat) -> Iterator[ScaleFormat]:
    """Yield the formats of the same elements, blocks and zero points."""
    for each in SCALE_FORMATS.values():
        same = (each.elements, each.vector, each.zeros)
        if each.decoded_to and same == (scale_format.elements, scale_format.vector, scale_format.zeros):
            yield each


@rule("weight-tile", after=CONSUMERS)
def weight_tile(plan: WgmmaKernel) -> Iterator[Finding]:
    """B is wgmma's first operand, a warp has 16 of its columns, and a K step has parts."""
    if not plan.problem.b.decoded:
        return
    if not plan.swap_ab:
        if not plan.problem.gated:  # a gate has no swap-AB, and the pair is refused as such
            limit = "threads decode B into registers, from which wgmma reads its first operand alone"
            found = f"{plan.problem.b.dtype.name} weights without swap-AB"
            yield Finding("mma.swap_ab", found, limit, use(True))
        return
    if plan.cta_tile_k not in STEPS:
        limit = f"threads decode it in parts of 64 or 128, and a step has {either(STEPS)}"
        yield Finding("tile.k", f"a K step of {plan.cta_tile_k:,} with decoded weights", limit, use(*STEPS))
    if plan.warps_m > 1:
        limit = f"each warp of a consumer decodes {WARP_COLUMNS} columns of its own, for all rows"
        yield Finding("warps.m", f"{plan.warps_m} warps along M with decoded weights", limit, use(1))
    elif plan.cta_tile_n != WARP_COLUMNS * plan.warps_n:
        limit = f"each of {plan.warps_n} warps decodes {WARP_COLUMNS} columns of B"
        wanted = [WARP_COLUMNS * warps for warps in WARPS]
        fix = use(*sorted(wanted, key=lambda each: abs(each - plan.cta_tile_n)))
        yield Finding("tile.n", f"{plan.cta_tile_n} columns with decoded weights", limit, fix)


RULES: Final = {"wgmma": (weight_types, weight_tile)}
"""The rules by the instruction of a family, in the order of reports."""
