"""Rules of registers: what roles ask for, and what accumulators take."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.extents import power_of_two_below
from gemmgen.plan.hopper.bounds import (
    FEW_LOADS,
    MOST_LOADS,
    REGISTERS_OF_MOST_LOADS,
    loads_across,
    most_consumer_registers,
    needed_producer_registers,
    needed_registers,
    widest_launched_mma,
    working_registers,
)
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.hopper.rules.roles import consumer_count, occupancy, warp_layout
from gemmgen.plan.hopper.rules.tile import breaks_tile
from gemmgen.plan.rules.registers import expressible, inexpressible_request
from gemmgen.plan.rules.rule import breaks, rule_id
from gemmgen.target import WGMMA


def role_registers(plan: WgmmaPlan) -> Iterator[Violation]:
    """Without roles there is nobody to ask for registers."""
    if plan.specialized or breaks(plan, consumer_count, warp_layout):
        return
    most = most_consumer_registers(plan)
    for role, registers, had in (
        ("producer", plan.producer_registers, 0),
        ("consumer", plan.consumer_registers, most),
    ):
        if registers != had:
            yield Violation(
                rule_id(role_registers),
                f"warp_specialization.registers.{role}",
                f"{registers:,} registers per {role} thread without warp specialization",
                f"all threads then have what the launch gives them, up to {most}",
                "leave it out, or use a kind of warp specialization",
            )


def register_granularity(plan: WgmmaPlan) -> Iterator[Violation]:
    """A register request is one that ``setmaxnreg`` can express: others are rounded or dropped in silence."""
    if not plan.specialized:
        return
    architecture, producer = plan.architecture, plan.producer_registers
    tile = not breaks_tile(plan)
    least = needed_producer_registers(plan) if tile else None
    yield from inexpressible_request(architecture, "producer", producer, least=least)
    if plan.consumers > 1:  # a lone consumer makes no request
        least = needed_registers(plan) if tile else None
        most = most_consumer_registers(plan) if expressible(architecture, producer) else None
        yield from inexpressible_request(
            architecture, "consumer", plan.consumer_registers, least=least, most=most
        )


def register_pool(plan: WgmmaPlan) -> Iterator[Violation]:
    """The first consumer, which gets what the workers leave, has as many registers as are asked for."""
    if not plan.specialized or breaks(plan, consumer_count, warp_layout, occupancy, register_granularity):
        return
    pool = plan.register_pool
    field, registers = "warp_specialization.registers.consumer", pool.launch_registers * plan.threads
    if plan.consumers == 1 and pool.default_registers != plan.consumer_registers:
        yield Violation(
            rule_id(register_pool),
            field,
            f"{plan.consumer_registers} registers per thread of a lone consumer",
            f"it gets all that the producer leaves of {registers:,}, {pool.default_registers} per thread",
            f"use {pool.default_registers}",
        )
    elif pool.default_registers < plan.consumer_registers:
        yield Violation(
            rule_id(register_pool),
            field,
            f"{plan.consumer_registers} per consumer and {plan.producer_registers} per producer thread "
            f"leave the first consumer {max(pool.default_registers, 0)}",
            f"the {plan.threads} threads share {registers:,} registers",
            f"use at most {most_consumer_registers(plan)}",
        )
    elif plan.mma_n > (widest := widest_launched_mma(plan)) and not breaks_tile(plan):
        yield Violation(
            rule_id(register_pool),
            "mma.n",
            f"an instruction of {plan.mma_n} columns",
            f"its sums do not fit into the {pool.launch_registers} registers with which each of the "
            f"{plan.threads * plan.occupancy:,} threads on an SM starts",
            f"use at most {widest}",
        )


def producer_registers(plan: WgmmaPlan) -> Iterator[Violation]:
    """The producer has registers for the coordinates of every load, and to find its tiles."""
    if not plan.specialized or breaks_tile(plan) or breaks(plan, register_granularity):
        return
    across = sum(loads_across(plan).values())
    if across > MOST_LOADS:
        yield _too_many_loads(plan)
    elif plan.producer_registers < (needed := needed_producer_registers(plan)):
        along = plan.loads("a") + plan.loads("b") - across
        yield Violation(
            rule_id(producer_registers),
            "warp_specialization.registers.producer",
            f"{plan.producer_registers} registers per producer thread",
            f"{across} TMA loads a K step across rows of K and {along} along them take {needed} for "
            f"{plan.consumers} {plan.specialization} consumer{'s' if plan.consumers > 1 else ''} in "
            f"{plan.order} order",
            f"use at least {needed}",
        )


def _too_many_loads(plan: WgmmaPlan) -> Violation:
    """The violation of a tile that takes more loads across rows of K than any producer has registers for."""
    loads = loads_across(plan)
    total, most = sum(loads.values()), max(loads, key=lambda name: loads[name])
    operands = {
        "a": (plan.problem.a, plan.a_row, plan.a_swizzle_bytes),
        "b": (plan.problem.b, plan.b_row, plan.b_swizzle_bytes),
    }
    operand, row, swizzle = operands[most]
    widest = plan.widest_swizzle(row, operand.dtype.bits)
    field, found, fix = f"operands.{most}.swizzle", f"a swizzle of {swizzle} bytes", f"use {widest}"
    if swizzle == widest:
        coordinates = MOST_LOADS if plan.producer_registers >= REGISTERS_OF_MOST_LOADS else FEW_LOADS
        extent, size = ("m", plan.cta_tile_m) if most == "a" else ("n", plan.cta_tile_n)
        field, found = f"tile.{extent}", f"a tile of {size:,} {'rows' if extent == 'm' else 'columns'}"
        fix = f"use at most {power_of_two_below(max(1, size * coordinates // total))}"
    return Violation(
        rule_id(producer_registers),
        field,
        found,
        f"it takes {total} TMA loads a K step, and a producer has registers for {MOST_LOADS} coordinates",
        fix,
    )


def accumulator_registers(plan: WgmmaPlan) -> Iterator[Violation]:
    """The consumers' accumulators fit into the registers of an SM: spilled ones would serialize the MMAs."""
    if breaks_tile(plan) or breaks(plan, occupancy, register_granularity):
        return
    most = most_consumer_registers(plan)
    if needed_registers(plan) <= most:
        return
    accumulator, working = plan.accumulator_registers, working_registers(plan) + plan.operand_registers
    room = most - working
    narrowest = WGMMA.n_min * plan.warps_n
    if plan.cta_tile_n > narrowest:
        columns = power_of_two_below(max(1, plan.cta_tile_n * room // accumulator))
        field, largest = "tile.n", max(columns, narrowest)
    else:
        field, largest = "tile.m", power_of_two_below(max(1, plan.cta_tile_m * room // accumulator))
    partial = " with its partial sums" if plan.promote_k else ""
    yield Violation(
        rule_id(accumulator_registers),
        field,
        f"an accumulator of {plan.cta_consumer_tile_m} x {plan.cta_tile_n}{partial} takes {accumulator} "
        f"registers of each consumer thread",
        f"{most} less {working} to work with leave {room}",
        f"use at most {largest}",
    )


def consumer_registers(plan: WgmmaPlan) -> Iterator[Violation]:
    """A consumer asks for enough registers to hold its accumulator and to work with it."""
    if breaks_tile(plan) or breaks(plan, register_granularity, accumulator_registers):
        return
    needed = needed_registers(plan)
    if plan.consumers > 1 and needed > plan.consumer_registers:  # a lone consumer gets what there is
        yield Violation(
            rule_id(consumer_registers),
            "warp_specialization.registers.consumer",
            f"{plan.consumer_registers} registers per consumer thread",
            f"an accumulator of {plan.cta_consumer_tile_m} x {plan.cta_tile_n} takes "
            f"{plan.accumulator_registers}, and the kernel "
            f"{working_registers(plan) + plan.operand_registers} more to work with",
            f"use at least {needed}",
        )
