"""Rules of shared memory: swizzles, rings, capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.errors import Violation
from gemmgen.plan.extents import is_power_of_two
from gemmgen.plan.hopper.bounds import fewest_stages, fits, most_stages, smem_limit
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.hopper.rules.epilogue import epilogue_buffers, epilogue_subtile, narrowest_subtile
from gemmgen.plan.hopper.rules.registers import accumulator_registers, register_granularity
from gemmgen.plan.hopper.rules.roles import occupancy
from gemmgen.plan.hopper.rules.tile import breaks_extents, breaks_tile, least_columns
from gemmgen.plan.rules.memory import largest_that_fits
from gemmgen.plan.rules.rule import breaks, either, one_of, rule_id
from gemmgen.target import WGMMA


def operand_swizzle(plan: WgmmaPlan) -> Iterator[Violation]:
    """A and B are swizzled, and no wider than their rows: Triton 3.9 reads no others with wgmma."""
    if breaks_extents(plan):
        return
    widths = plan.architecture.tma_swizzle_bytes
    for name, swizzle, row, operand in (
        ("a", plan.a_swizzle_bytes, plan.a_row, plan.problem.a),
        ("b", plan.b_swizzle_bytes, plan.b_row, plan.problem.b),
    ):
        legal = [width for width in widths if width <= row * operand.dtype.bytes]
        if swizzle in legal:
            continue
        row_bytes = row * operand.dtype.bytes
        if not legal:
            extent = "k" if operand.major == "k" else {"a": "m", "b": "n"}[name]
            yield Violation(
                rule_id(operand_swizzle),
                f"tile.{extent}",
                f"rows of {row} elements, {row_bytes} bytes, in the tiles of {name.upper()}",
                f"wgmma reads operands that are swizzled over at least {widths[-1]} bytes",
                f"use at least {widths[-1] // operand.dtype.bytes}",
            )
            continue
        limit = f"wgmma reads operands swizzled over {either(widths)} bytes, of at most the"
        yield Violation(
            rule_id(operand_swizzle),
            f"operands.{name}.swizzle",
            f"a swizzle of {swizzle:,} bytes",
            f"{limit} {row_bytes} of a tile's row",
            one_of(legal),
        )


def ring_depth(plan: WgmmaPlan) -> Iterator[Violation]:
    """A stage is free to load into while outstanding MMAs read theirs; else both sides wait forever."""
    if plan.schedule_kind == "single_tile":
        if plan.stages > 1:
            yield Violation(
                rule_id(ring_depth),
                "buffering.stages",
                f"{plan.stages:,} stages for a single tile",
                "all of K is one step, which needs one",
                "use 1",
            )
        return
    if plan.stages >= (least := fewest_stages(plan)):
        return
    if plan.persistent and not plan.specialized:
        yield Violation(
            rule_id(ring_depth),
            "buffering.stages",
            f"{plan.stages} stage for warps that load and multiply over many tiles",
            "a second one lets a step load while another is multiplied",
            f"use at least {least}",
        )
    else:
        yield Violation(
            rule_id(ring_depth),
            "buffering.stages",
            f"{plan.stages} stage with {plan.outstanding_mmas} outstanding MMA",
            "the MMA in flight keeps its stage until the next one is issued, which needs a stage of its own",
            f"use at least {least}",
        )


def outstanding_mmas(plan: WgmmaPlan) -> Iterator[Violation]:
    """An MMA can only stay in flight where another one follows it, and where nothing of it is in registers.

    [gluon] With A from registers and an MMA outstanding, ptxas serializes (C7511, C7512): bf16, tf32, e4m3
    and int8, both majors, 32 and 64 of K, 64 and 128 sums, specialized or not. With none outstanding
    all compile.
    """
    if plan.schedule_kind == "single_tile" and plan.outstanding_mmas:
        yield Violation(
            rule_id(outstanding_mmas),
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA for a single tile",
            "all of K is one step, and no MMA follows its own",
            "use 0",
        )
    elif plan.a_source == "registers" and plan.outstanding_mmas:
        yield Violation(
            rule_id(outstanding_mmas),
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA with A from registers",
            "a step's A would overwrite what the MMA in flight reads, so that the compiler serializes them",
            "use 0",
        )


def smem_capacity(plan: WgmmaPlan) -> Iterator[Violation]:
    """All buffers, barriers and compiler state fit into a CTA's shared memory."""
    if breaks_tile(plan) or breaks(
        plan, occupancy, accumulator_registers, epilogue_subtile, epilogue_buffers
    ):
        return
    if not is_power_of_two(plan.subtile_n) or fits(plan):
        return
    least = fewest_stages(plan)
    if plan.schedule_kind != "single_tile" and (stages := most_stages(plan)) >= least:
        field, largest = "buffering.stages", stages
        found = f"{plan.stages:,} stages of {plan.stage_bytes:,} bytes and the epilogue need"
    elif breaks(plan, register_granularity, operand_swizzle):
        return  # the accumulator, which bounds a tile, is not judged yet, or alignment has no bound
    else:
        fewest = "a single stage" if least == 1 else f"{least} stages"
        found = f"even {fewest} of {plan.stage_bytes:,} bytes and the epilogue need"
        plan = replace(plan, stages=least)
        field, largest = _smaller_tile(plan)
    share = f" of each of {plan.occupancy} CTAs" if plan.occupancy > 1 else ""
    yield Violation(
        rule_id(smem_capacity),
        field,
        f"{found} {plan.smem_bytes:,} bytes",
        f"the limit{share} is {smem_limit(plan):,}",
        f"use at most {largest}",
    )


def _smaller_tile(plan: WgmmaPlan) -> tuple[str, int]:
    """Return the field that has to shrink for a plan with few stages to fit, and the value that does it.

    It is the largest. Where no field will do alone, the others are taken at their smallest.
    """
    one_buffer = replace(plan, epilogue_buffers=1)
    short = replace(one_buffer, cta_tile_k=plan.mma_shape[2])
    columns = max(least_columns(plan), narrowest_subtile(plan))
    attempts = (
        (plan, "epilogue_buffers", "buffering.epilogue"),
        (plan, "subtile_n", "epilogue.subtile_n"),
        (plan, "cta_tile_k", "tile.k"),
        (one_buffer, "subtile_n", "epilogue.subtile_n"),
        (replace(one_buffer, subtile_n=WGMMA.n_min), "cta_tile_k", "tile.k"),
        (plan, "cta_tile_n", "tile.n"),
        (plan, "cta_tile_m", "tile.m"),
        (short, "cta_tile_n", "tile.n"),
        (replace(short, cta_tile_n=columns, subtile_n=columns), "cta_tile_m", "tile.m"),
    )

    def legal(smaller: WgmmaPlan) -> bool:
        return not (breaks_extents(smaller) or breaks(smaller, epilogue_subtile, epilogue_buffers))

    return largest_that_fits(attempts, legal=legal, fits=fits)
