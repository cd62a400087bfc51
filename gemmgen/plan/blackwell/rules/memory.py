"""Rules of shared and tensor memory: swizzles, capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.errors import Violation
from gemmgen.plan.blackwell.bounds import (
    fits,
    most_accumulators,
    most_stages,
    scale_columns,
    smem_limit,
)
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.blackwell.rules.epilogue import epilogue_buffers, epilogue_subtile
from gemmgen.plan.blackwell.rules.problem import named, operand_major
from gemmgen.plan.blackwell.rules.roles import cluster_shape
from gemmgen.plan.blackwell.rules.tile import breaks_tile, narrowest_subtile
from gemmgen.plan.extents import is_power_of_two
from gemmgen.plan.rules.memory import largest_that_fits
from gemmgen.plan.rules.rule import breaks, counted, either, one_of, rule_id
from gemmgen.target import TCGEN05


def operand_swizzle(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A and B are swizzled, no wider than their rows, and padded elements as wide as can be."""
    if breaks_tile(plan) or breaks(plan, operand_major, cluster_shape):
        return
    widths = plan.architecture.tma_swizzle_bytes
    for (name, operand), swizzle, row in zip(
        named(plan), (plan.a_swizzle_bytes, plan.b_swizzle_bytes), (plan.a_row, plan.b_row), strict=True
    ):
        row_bytes = row * operand.smem_bits // 8
        legal = [width for width in (widths[:1] if operand.padded else widths) if width <= row_bytes]
        if swizzle in legal:
            continue
        if not legal:
            extent = "k" if operand.major == "k" else {"a": "m", "b": "n"}[name]
            tile = {"k": plan.cta_tile_k, "m": plan.cta_tile_m, "n": plan.cta_tile_n}[extent]
            yield Violation(
                rule_id(operand_swizzle),
                f"tile.{extent}",
                f"rows of {row} elements, {row_bytes} bytes, in the tiles of {name.upper()}",
                f"the tensor cores read operands that are swizzled over at least {widths[-1]} bytes",
                f"use at least {tile * widths[-1] // row_bytes}",
            )
            continue
        found = f"a swizzle of {swizzle:,} bytes"
        limit = (
            f"operands are swizzled over {either(widths)} bytes, of at most the {row_bytes} of a tile's row"
        )
        if operand.padded:
            limit = f"TMA pads 4-bit elements only with one of {widths[0]}"
        yield Violation(rule_id(operand_swizzle), f"operands.{name}.swizzle", found, limit, one_of(legal))


def tmem_capacity(plan: Tcgen05Plan) -> Iterator[Violation]:
    """All accumulators and scales fit into tensor memory: Triton compiles others to a trap in silence."""
    if breaks_tile(plan) or plan.tensor_memory.columns <= TCGEN05.tmem_columns:
        return
    if not (most := most_accumulators(plan)):
        return  # a K step with so many scales does not fit into shared memory either
    scales = scale_columns(plan)
    beside = f" and scales in {scales:,}" if scales else ""
    yield Violation(
        rule_id(tmem_capacity),
        "buffering.accumulators",
        f"{counted(plan.accumulators, 'accumulator')} of {plan.cta_tile_n} columns{beside} need "
        f"{plan.tensor_memory.columns:,}",
        f"tensor memory has {TCGEN05.tmem_columns}, and Triton compiles what needs more to a trap in silence",
        f"use at most {most}",
    )


def smem_capacity(plan: Tcgen05Plan) -> Iterator[Violation]:
    """All buffers, barriers and compiler state fit into a CTA's shared memory."""
    if breaks_tile(plan) or breaks(plan, cluster_shape, epilogue_subtile, epilogue_buffers):
        return
    # The barriers of more accumulators than there can be are not what takes the memory.
    plan = replace(plan, accumulators=min(plan.accumulators, max(1, most_accumulators(plan))))
    if not is_power_of_two(plan.subtile_n) or fits(plan):
        return
    if stages := most_stages(plan):
        field, largest = "buffering.stages", stages
        found = f"{plan.stages:,} stages of {plan.stage_bytes:,} bytes and the epilogue need"
    elif breaks(plan, operand_swizzle):
        return  # alignment has no bound
    else:
        field, largest = _smaller_tile(plan)
        found = f"even a single stage of {plan.stage_bytes:,} bytes and the epilogue need"
        plan = replace(plan, stages=1)
    yield Violation(
        rule_id(smem_capacity),
        field,
        f"{found} {plan.smem_bytes:,} bytes",
        f"the limit is {smem_limit(plan):,}",
        f"use at most {largest}",
    )


def _smaller_tile(plan: Tcgen05Plan) -> tuple[str, int]:
    """Return the field that has to shrink for a single stage to fit, and its largest value that does it.

    Where no field will do alone, the others are taken at their smallest.
    """
    single = replace(plan, stages=1)
    one_buffer = replace(single, epilogue_buffers=1)
    narrow = one_buffer if plan.cluster_n > 1 else replace(one_buffer, subtile_n=narrowest_subtile(plan))
    attempts = (
        (single, "epilogue_buffers", "buffering.epilogue"),
        (single, "subtile_n", "epilogue.subtile_n"),
        (single, "cta_tile_k", "tile.k"),
        (one_buffer, "subtile_n", "epilogue.subtile_n"),
        (narrow, "cta_tile_k", "tile.k"),
    )

    def legal(smaller: Tcgen05Plan) -> bool:
        return not (breaks_tile(smaller) or breaks(smaller, epilogue_subtile, epilogue_buffers))

    return largest_that_fits(attempts, legal=legal, fits=fits)
