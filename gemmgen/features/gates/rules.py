"""The rule of kernels that compute an element of D from two sums: gated matmuls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmgen.features.gates.backward_rules import c_blocks
from gemmgen.features.gates.blackwell_rules import not_gated
from gemmgen.features.gates.traits import accumulators
from gemmgen.hardware import TRITON, WGMMA
from gemmgen.hardware.gpus import power_of_two_below
from gemmgen.plan.fix import at_least, hint, leave_out, nearest, use
from gemmgen.plan.rule import Finding, rule
from gemmgen.plan.shared_rules import without_expression
from gemmgen.plan.wgmma.extent_rules import tile_power_of_two
from gemmgen.plan.wgmma.resources import WgmmaKernel


@rule("gated", after=[tile_power_of_two.at("tile.n")])
def gated(plan: WgmmaKernel) -> Iterator[Finding]:
    """A consumer's accumulator has both sums of an element of D, in one CTA and thread, of all of K."""
    if plan.problem.gated:
        yield from _of_matrices(plan)
        if not plan.swap_ab:
            yield from _of_tiles(plan)


def _of_matrices(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of the matrices and vectors."""
    problem, epilogue = plan.problem, plan.problem.epilogue
    if problem.c is not None and plan.subtiles > 1:
        limit = "the epilogue computes a tile of D at once, and reads its C at once"
        found = f"sub-tiles of {plan.subtile_n:,} columns of a C with {accumulators(plan)}"
        yield Finding("epilogue.subtile_n", found, limit, use(plan.cta_columns))
    for name in problem.parted_vectors:
        readers = [load.accumulator for load in epilogue.loaded if load.tensor == name]
        if {*readers} != {*epilogue.accumulators}:
            joined = "" in readers
            found = f"{name} for {'a value of both accumulators' if joined else f'{readers[0]} alone'}"
            limit = "it has an element for each column of B, and a step on each accumulator reads its own"
            fix = without_expression() | hint("it in the steps of each accumulator")
            yield Finding("epilogue.d", found, limit, fix)


def _of_tiles(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the findings of the instruction, and of the columns of a tile."""
    least = plan.problem.b_blocks * WGMMA.n_min
    found = f"a tile of {plan.cta_tile_n:,} columns with {accumulators(plan)}"
    if plan.composed:
        below = power_of_two_below(plan.cta_tile_n)
        widths = nearest(below, 2 * below, low=least, high=WGMMA.n_max)
        limit = "both sums of an element need one accumulator, whose columns are a power of two"
        yield Finding(
            "tile.n", found, limit, widths & leave_out("tile.staggered") if plan.staggered else widths
        )
    elif plan.cta_tile_n < least:
        limit = f"four threads hold {WGMMA.n_min} columns of an accumulator's row, and no half may part them"
        yield Finding("tile.n", found, limit, at_least(least))
    elif plan.problem.in_blocks:
        yield from _of_vectors(plan)


def _of_vectors(plan: WgmmaKernel) -> Iterator[Finding]:
    """Yield the finding of column operands whose second block would begin between places of TMA."""
    vectors = [name for name in plan.problem.parted_vectors if name in plan.access.tma_vectors]
    bits = [plan.problem.vector_dtype(name).bits for name in vectors]
    alignment = TRITON.tile_alignment_bytes
    least = max((alignment * 8 // each for each in bits), default=1)
    if plan.cta_columns < least:
        names = " and ".join(vectors)
        found = f"a tile of {plan.cta_tile_n:,} columns with {names}"
        limit = f"TMA writes the elements of each accumulator at a multiple of {alignment} bytes"
        yield Finding("tile.n", found, limit, at_least(plan.problem.b_blocks * least))


RULES: Final = {"wgmma": (gated, c_blocks), "tcgen05": (not_gated,)}
"""The rules by the instruction of a family, in the order of reports."""
