"""Rules of a Hopper kernel's resources: registers, shared memory, rings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import is_power_of_two, power_of_two_below, round_up
from gemmgen.plan.capacity import fits, largest_that_fits, over_capacity
from gemmgen.plan.fix import Fix, at_least, at_most, either, hint, leave_out, nearest, use
from gemmgen.plan.rule import Consulted, Finding, Rule, altered, keeps, rule
from gemmgen.plan.shared_rules import (
    expressible,
    inexpressible_request,
    misfit_buffers,
    narrowest_subtile,
)
from gemmgen.plan.verdicts import COMPILER_RULE, refusal_of
from gemmgen.plan.wgmma.bounds import (
    expected_producer_registers,
    expected_registers,
    fewest_stages,
    most_consumer_registers,
    most_stages,
    needed_registers,
    registers_beside_sums,
    widest_launched_mma,
)
from gemmgen.plan.wgmma.extent_rules import (
    adds_up,
    least_columns,
    least_tile,
    mma_tile,
    sum_of_parts,
    sums_around,
    tile_power_of_two,
)
from gemmgen.plan.wgmma.part_rules import composed_tile
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.tile_rules import EXTENTS, TILE
from gemmgen.plan.wgmma.warp_rules import CONSUMERS, occupancy


@rule("role-registers", after=CONSUMERS)
def role_registers(plan: WgmmaKernel) -> Iterator[Finding]:
    """Without roles no warp requests registers: all threads keep the launch's registers."""
    if plan.specialized:
        return
    most = most_consumer_registers(plan)
    for role, registers, had in (
        ("producer", plan.producer_registers, 0),
        ("consumer", plan.consumer_registers, most),
    ):
        if registers != had:
            yield Finding(
                f"warp_specialization.registers.{role}",
                f"{registers:,} registers per {role} thread without warp specialization",
                f"all threads then keep the launch's registers, up to {most}",
                leave_out() | hint("a kind of warp specialization"),
            )


@rule("register-granularity", consults=TILE)
def register_granularity(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """A register request is a number that ``setmaxnreg`` can express: others are silently changed."""
    if not plan.specialized:
        return
    architecture, producer = plan.architecture, plan.producer_registers
    yield from inexpressible_request(architecture, "producer", producer, least=None)
    if plan.consumers > 1:  # a lone consumer makes no request
        least = None if consulted.broken(*TILE) else needed_registers(plan)
        most = most_consumer_registers(plan) if expressible(architecture, producer) else None
        yield from inexpressible_request(
            architecture, "consumer", plan.consumer_registers, least=least, most=most
        )


@rule("register-pool", after=[*CONSUMERS, occupancy, register_granularity], consults=TILE)
def register_pool(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """The first consumer, which gets the registers that the workers leave, has as many as requested."""
    if not plan.specialized:
        return
    pool = plan.register_pool
    field, registers = "warp_specialization.registers.consumer", pool.launch_registers * plan.threads
    if plan.consumers == 1 and pool.default_registers != plan.consumer_registers:
        yield Finding(
            field,
            f"{plan.consumer_registers} registers per thread of a lone consumer",
            f"it gets all that the producer leaves of {registers:,}, {pool.default_registers} per thread",
            use(pool.default_registers),
        )
    elif pool.default_registers < plan.consumer_registers:
        yield Finding(
            field,
            f"{plan.consumer_registers} per consumer and {plan.producer_registers} per producer thread "
            f"leave the first consumer {max(pool.default_registers, 0)}",
            f"the {plan.threads} threads share {registers:,} registers",
            at_most(most_consumer_registers(plan)),
        )
    elif plan.mma_n > (widest := widest_launched_mma(plan)) and not consulted.broken(*TILE):
        yield Finding(
            "mma.n",
            f"an instruction of {plan.mma_n} columns",
            f"its sums do not fit into the {pool.launch_registers} registers with which each of the "
            f"{plan.threads * plan.occupancy:,} threads on an SM starts",
            at_most(widest),
        )


@rule("accumulator-registers", after=[*TILE, occupancy, register_granularity])
def accumulator_registers(plan: WgmmaKernel) -> Iterator[Finding]:
    """The consumers' accumulators fit into the registers of an SM: spills would serialize the MMAs."""
    most = most_consumer_registers(plan)
    if needed_registers(plan) <= most:
        return
    accumulator = plan.accumulator_registers
    working = registers_beside_sums(plan)
    room = most - working
    (rows, columns), narrowest = mma_tile(plan), least_columns(plan)
    if step := 0 if plan.promote_k else _halved(plan, "k", plan.mma_shape[2], most):
        field, largest = "tile.k", step
    elif columns > narrowest:
        fitting = max(narrowest, columns * room // accumulator)
        fitting = sums_around(fitting, narrowest)[0] if plan.composed else power_of_two_below(fitting)
        if plan.stagger_n:
            fitting = _widest_staggered(plan, fitting, most) or fitting
        field, largest = f"tile.{plan.mma.right.axis}", fitting
    else:
        field, largest = f"tile.{plan.mma_axis}", _halved(plan, plan.mma_axis, plan.mma_shape[0], most)
        largest = largest or power_of_two_below(max(1, rows * room // accumulator))
    partial = " with its partial sums" if plan.promote_k else ""
    yield Finding(
        field,
        f"an accumulator of {plan.cta_consumer_tile_m} x {plan.cta_widest_n}{partial} takes {accumulator} "
        f"registers of each consumer thread",
        f"sums can have {room} of a thread's {most} registers"
        if room > 0
        else f"other values of a thread take {working}, and it can have {most}",
        at_most(largest),
    )


def _widest_staggered(plan: WgmmaKernel, fitting: int, most: int) -> int:
    """Return the most columns of a staggered tile whose sums need at most `most` registers, or 0.

    `fitting` are those that would do if sums grew with columns. They do not: of a tile of 192 = 128 + 64 the
    wider consumer has 256 columns, and of 208 it has 224, but never more than half as many again as the tile.
    """
    widest = min(plan.cta_tile_n, 3 * fitting // 2 + 1)
    for columns in range(widest - 1, WGMMA.n_min, -1):
        if is_power_of_two(columns):
            continue
        narrower = altered(plan, cta_tile_n=columns, subtile_n=min(plan.subtile_n, 2 * (columns & -columns)))
        if adds_up(narrower) and needed_registers(narrower) <= most:
            return columns
    return 0


def _halved(plan: WgmmaKernel, axis: Literal["m", "n", "k"], least: int, most: int) -> int:
    """Return the highest power of two below a tile's extent that needs at most `most` registers, or 0."""
    extent = power_of_two_below(getattr(plan, f"cta_tile_{axis}") - 1)
    while extent >= least:
        if needed_registers(altered(plan, **{f"cta_tile_{axis}": extent})) <= most:
            return extent
        extent //= 2
    return 0


@rule("consumer-registers", after=[*TILE, register_granularity, accumulator_registers])
def consumer_registers(plan: WgmmaKernel) -> Iterator[Finding]:
    """A consumer requests enough registers to hold its accumulator and to work with it."""
    needed = needed_registers(plan)
    if plan.consumers > 1 and needed > plan.consumer_registers:  # a lone consumer gets what there is
        yield Finding(
            "warp_specialization.registers.consumer",
            f"{plan.consumer_registers} registers per consumer thread",
            f"an accumulator of {plan.cta_consumer_tile_m} x {plan.cta_widest_n} takes "
            f"{plan.accumulator_registers}, and other values {registers_beside_sums(plan)}",
            at_least(needed),
        )


@rule("operand-swizzle", after=EXTENTS)
def operand_swizzle(plan: WgmmaKernel) -> Iterator[Finding]:
    """A and B are swizzled, and no wider than their rows: Triton 3.9 reads no others with wgmma."""
    widths = plan.architecture.tma_swizzle_bytes
    for name, swizzle, row, operand in (
        ("a", plan.a_swizzle_bytes, plan.a_row, plan.problem.a),
        ("b", plan.b_swizzle_bytes, plan.b_row, plan.problem.b),
    ):
        row_bytes = row * operand.dtype.bits // 8
        legal = [width for width in widths if width <= row_bytes]
        if swizzle in legal:
            continue
        if not legal:
            extent = "k" if operand.major == "k" else {"a": "m", "b": "n"}[name]
            yield Finding(
                f"tile.{extent}",
                f"rows of {row} elements, {row_bytes} bytes, in the tiles of {name.upper()}",
                f"wgmma reads operands that are swizzled over at least {widths[-1]} bytes",
                at_least(8 * widths[-1] // operand.dtype.bits),
            )
            continue
        limit = f"wgmma reads operands swizzled over {either(widths)} bytes, of at most the"
        yield Finding(
            f"operands.{name}.swizzle",
            f"a swizzle of {swizzle:,} bytes",
            f"{limit} {row_bytes} of a tile's row",
            use(*legal),
        )
    narrowest, least = plan.b_row_of(plan.column_parts[-1]), 8 * widths[-1] // plan.problem.b.dtype.bits
    if narrowest < least <= plan.b_row:
        yield Finding(
            "tile.n",
            f"{sum_of_parts(plan)} columns, and rows of {narrowest} elements, "
            f"{narrowest * plan.problem.b.dtype.bits // 8} bytes, in the last part of B's tiles",
            f"wgmma reads operands that are swizzled over at least {widths[-1]} bytes",
            nearest(*sums_around(plan.cta_tile_n, least)),
        )


@rule("ring-depth", subject="store")
def ring_depth(plan: WgmmaKernel) -> Iterator[Finding]:
    """The ring has a stage to load into while outstanding MMAs read theirs; else both sides wait forever."""
    field = "buffering.stages"
    if plan.schedule_kind == "single_tile":
        if plan.stages > 1:
            found = f"{plan.stages:,} stages for a single tile"
            yield Finding(field, found, "all of K is one step, which needs one", use(1))
        return
    if plan.stages >= (least := fewest_stages(plan)):
        return
    if not plan.specialized and (plan.persistent or plan.composed):
        work = "over many tiles" if plan.persistent else "tiles of parts"
        yield Finding(
            field,
            f"{plan.stages} stage for warps that load and multiply {work}",
            "a step loads while the one before it is multiplied, which needs a stage of its own",
            at_least(least),
        )
    elif plan.fragments > 1:
        yield Finding(
            field,
            f"{plan.stages} stage with A from registers for several parts",
            "the next step's A is read while a step's MMAs read B, which needs a stage of its own",
            at_least(least),
        )
    else:
        yield Finding(
            field,
            f"{plan.stages} stage with {plan.outstanding_mmas} outstanding MMA",
            "the MMA in flight keeps its stage until the next one is issued, which needs a stage of its own",
            at_least(least),
        )


@rule("outstanding-mmas")
def outstanding_mmas(plan: WgmmaKernel) -> Iterator[Finding]:
    """An MMA can only stay in flight if another one follows it and it reads no registers.

    [ptx] The registers of a wgmma are not to be accessed before it has been waited for. [gluon] With its left
    operand from registers and an MMA outstanding the compiler makes a loop that reads the next step's operand
    into the registers that the MMA in flight has: in silence, or with a note that it serializes the MMAs
    (C7511, C7512).
    """
    if plan.schedule_kind == "single_tile" and plan.outstanding_mmas:
        yield Finding(
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA for a single tile",
            "all of K is one step, and no MMA follows its own",
            use(0),
        )
    elif plan.mma.reads_left and plan.outstanding_mmas:
        left = plan.mma.left.tensor.upper()
        yield Finding(
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA with {left} from registers",
            f"the next step's {left} goes into registers that the MMA in flight reads: "
            "PTX leaves that undefined",
            use(0),
        )


# --- the epilogue


@rule(
    "epilogue-subtile",
    subject="store",
    after=[tile_power_of_two.at("tile.n", "epilogue.subtile_n"), composed_tile],
)
def epilogue_subtile(plan: WgmmaKernel) -> Iterator[Finding]:
    """A sub-tile is a part of a tile's columns that TMA can move and whose threads exchange no columns."""
    field = "epilogue.subtile_n"
    narrowest = narrowest_subtile(plan)
    part = plan.widest_subtile_n
    if plan.subtile_n > part:
        yield Finding(
            field,
            f"sub-tiles of {plan.subtile_n} columns",
            f"the {'narrowest part of the tile' if plan.composed else 'tile'} has {part}",
            at_most(part),
        )
    elif plan.subtile_n < plan.cta_columns and (plan.cluster_n > 1 or plan.warps_n > 1):
        owner = "CTA of the cluster" if plan.cluster_n > 1 else "warp along N"
        yield Finding(
            field,
            f"sub-tiles of {plan.subtile_n} columns",
            f"halving the tile would part the columns of one {owner} from another's, so it is stored whole",
            use(plan.cta_columns),
        )
    elif plan.subtile_n < WGMMA.n_min <= plan.cta_columns:
        yield Finding(
            field,
            f"sub-tiles of {plan.subtile_n} columns",
            f"four threads hold {WGMMA.n_min} columns of an accumulator's row, and no split may part them",
            at_least(max(narrowest, WGMMA.n_min)),
        )
    elif plan.subtile_n < narrowest and plan.cta_columns >= WGMMA.n_min:
        alignment = plan.architecture.tma_alignment_bytes
        found, fix = (
            f"rows of {plan.subtile_n} elements of {plan.problem.d.name}",
            at_least(narrowest),
        )
        if plan.composed and part < narrowest:
            found = f"{sum_of_parts(plan)} columns, and {found} in the last part"
            fix = nearest(*sums_around(plan.cta_tile_n, narrowest))
        yield Finding(
            field if part >= narrowest else "tile.n",
            found,
            f"TMA moves at least {alignment} bytes of a row",
            fix,
        )


@rule(
    "epilogue-buffers",
    subject="store",
    after=[tile_power_of_two.at("tile.n", "epilogue.subtile_n"), composed_tile, epilogue_subtile],
)
def epilogue_buffers(plan: WgmmaKernel) -> Iterator[Finding]:
    """Each epilogue buffer has a sub-tile of every tile; with C, each has equally many."""
    yield from misfit_buffers(plan)


# --- capacity

SMALLER_TILE = (*EXTENTS, epilogue_subtile, epilogue_buffers)
"""Rules that a smaller tile has to keep when advice proposes it."""


@rule(
    "smem-capacity",
    subject="store",
    after=[*TILE, tile_power_of_two, occupancy, accumulator_registers, epilogue_subtile, epilogue_buffers],
    consults=[register_granularity, operand_swizzle],
)
def smem_capacity(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """All buffers, barriers and compiler state fit into a CTA's shared memory."""
    if fits(plan):
        return
    yield from over_capacity(
        plan,
        least=fewest_stages(plan),
        most=0 if plan.schedule_kind == "single_tile" else most_stages(plan),
        # The accumulator, which bounds a tile, is not judged yet, or alignment has no bound.
        unbounded=consulted.broken(register_granularity, operand_swizzle),
        smaller_tile=_smaller_tile,
    )


def _smaller_tile(plan: WgmmaKernel) -> tuple[str, Fix]:
    """Return the field that has to shrink for a plan with few stages to fit, and the fix for it.

    The fix names the largest value that does it. Where no field will do alone, the others are taken at
    their smallest.
    """
    one_buffer = altered(plan, epilogue_buffers=1)
    short = altered(one_buffer, cta_tile_k=plan.mma_shape[2])
    columns = max(least_tile(plan)[1], narrowest_subtile(plan))
    attempts = (
        (plan, "epilogue_buffers", "buffering.epilogue"),
        (plan, "subtile_n", "epilogue.subtile_n"),
        (plan, "cta_tile_k", "tile.k"),
        (one_buffer, "subtile_n", "epilogue.subtile_n"),
        (altered(one_buffer, subtile_n=WGMMA.n_min), "cta_tile_k", "tile.k"),
        (plan, "cta_tile_n", "tile.n"),
        (plan, "cta_tile_m", "tile.m"),
        (short, "cta_tile_n", "tile.n"),
        (altered(short, cta_tile_n=columns, subtile_n=columns), "cta_tile_m", "tile.m"),
    )
    return largest_that_fits(attempts, legal=lambda smaller: keeps(smaller, SMALLER_TILE))


@rule(
    COMPILER_RULE,
    subject="store",
    after=[consumer_registers, ring_depth, smem_capacity],
)
def compiler_registers(plan: WgmmaKernel) -> Iterator[Finding]:
    """The compiler is not known to spill registers or to serialize MMAs."""
    if refusal := refusal_of(plan):
        field, found, fix = _likely_relief(plan)
        yield Finding(field, found, refusal, fix)


def _likely_relief(plan: WgmmaKernel) -> tuple[str, str, Fix]:
    """Return the field of a plan that spills whose change is likely to help, its value, and the fix."""
    step, most = plan.architecture.setmaxnreg_granularity, most_consumer_registers(plan)
    consumer, producer = plan.consumer_registers, plan.producer_registers
    field = "warp_specialization.registers"
    if plan.specialized and producer < (expected := expected_producer_registers(plan)):
        return f"{field}.producer", f"{producer} registers per producer thread", use(expected)
    if plan.specialized and plan.consumers > 1 and consumer < most:
        enough = max(consumer + step, round_up(expected_registers(plan), step))
        return f"{field}.consumer", f"{consumer} registers per consumer thread", use(min(most, enough))
    if plan.problem.transforms and plan.subtile_n > WGMMA.n_min and plan.cluster_n == plan.warps_n == 1:
        return "epilogue.subtile_n", f"sub-tiles of {plan.subtile_n} columns", at_most(plan.subtile_n // 2)
    narrower = at_most(power_of_two_below(max(1, plan.mma_parts[0] - 1)))
    _, columns = mma_tile(plan)
    return f"tile.{plan.mma.right.axis}", f"a tile of {columns} {plan.mma.right.lines}", narrower


RESOURCE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    role_registers,
    register_granularity,
    register_pool,
    accumulator_registers,
    consumer_registers,
    operand_swizzle,
    ring_depth,
    outstanding_mmas,
    smem_capacity,
    epilogue_subtile,
    epilogue_buffers,
    compiler_registers,
)
