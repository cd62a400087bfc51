"""The rules of kernels that store D as 8-bit floats and compute a scale for each row and block of columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.hardware import SCALE_FORMATS
from gemmgen.plan.fix import Fix, at_least, either, leave_out, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.wgmma.extent_rules import tile_power_of_two
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.problem import BlockScale

FIELD: Final = "operands.d.scale"
UNSCALED: Final = leave_out(FIELD)
"""The fix that leaves the scales of D out."""
Row = tuple[bool, str, str, str, Fix]
"""True if there is such a finding; its field, the fault, the limit, and the fix."""


@rule("output-scale", subject="problem")
def output_scale(plan: WgmmaKernel) -> Iterator[Finding]:
    """Scales of D have a format that a kernel computes, with the type and the block of the format."""
    if scale := plan.problem.d_scale:
        for is_broken, field, found, limit, fix in _of_format(plan, scale):
            if is_broken:
                yield Finding(field, found, limit, fix)


def _of_format(plan: WgmmaKernel, scale: BlockScale) -> Iterator[Row]:
    """Yield the rows of a format of the scales of D."""
    known, d = scale.format, plan.problem.d.name
    computed = [each.name for each in SCALE_FORMATS.values() if each.results]
    limit = f"kernels compute scales of D as {either(computed)}"
    yield not known.results, f"{FIELD}.format", f"{known.name} for D", limit, use(*computed)
    if not known.results:
        return
    limit = f"scales of D need a D of {either(known.results)}"
    found = f"a D of {d} with scales of {known.name}"
    yield d not in known.results, "operands.d.dtype", found, limit, use(*known.results) | UNSCALED
    # A scale for a whole row among them: no tile has all columns of D.
    found = f"a scale for {scale.vector:,} columns of D"
    limit = f"a tile has some of D's columns: a scale of {known.name} is for {known.vector}, all in one tile"
    wrong = scale.vector != known.vector
    yield wrong, f"{FIELD}.vector", found, limit, use(known.vector) | leave_out()
    found, limit = f"dtype {scale.dtype.name} for {known.name}", f"{known.name} has scales of {known.dtype}"
    wrong = scale.dtype.name != known.dtype
    yield wrong, f"{FIELD}.dtype", found, limit, use(known.dtype) | leave_out()


@rule("quantized-output", after=[tile_power_of_two.at("tile.n", "epilogue.subtile_n"), output_scale])
def quantized_output(plan: WgmmaKernel) -> Iterator[Finding]:
    """The lanes of one warp hold the columns of a scale, and one program computes all of their sums."""
    if plan.problem.d_scale:
        for is_broken, field, found, limit, fix in _of_tiles(plan):
            if is_broken:
                yield Finding(field, f"{found} with scales of D", limit, fix)


def _of_tiles(plan: WgmmaKernel) -> Iterator[Row]:
    """Yield the rows of the columns of a tile: who holds them, and how they are stored."""
    assert plan.problem.d_scale is not None
    block, blocks = plan.problem.d_scale.vector, plan.problem.b_blocks
    if plan.swap_ab:
        return  # no row of the accumulator has the columns of a scale then
    limit = (
        f"a tile of interleaved columns has one scale of B, which is for {block} of B and {block // 2} of D"
    )
    halved = plan.problem.interleaved and plan.has_tile_scales
    yield halved, "epilogue.columns", "interleaved columns of block scales", limit, use("blocks") | UNSCALED
    if halved:
        return
    limit = f"a sub-tile is the {block} columns of a scale"
    too_narrow = plan.widest_subtile_n < block
    found = f"a tile of {plan.cta_tile_n:,} columns"
    yield too_narrow, "tile.n", found, limit, at_least(blocks * block) | UNSCALED
    other = plan.subtile_n != block and not too_narrow
    found = f"sub-tiles of {plan.subtile_n:,} columns"
    yield other, "epilogue.subtile_n", found, limit, use(block) | UNSCALED


RULES: Final = {"wgmma": (output_scale, quantized_output)}
"""The rules by the instruction of a family, in the order of reports."""
