"""Decisions of Hopper kernels that follow from others: swizzles, order, registers, stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gemmgen.hardware import WGMMA
from gemmgen.plan.decisions import LINES
from gemmgen.plan.rule import altered
from gemmgen.plan.wgmma.bounds import (
    expected_producer_registers,
    expected_registers,
    most_consumer_registers,
    most_consumers,
    most_stages,
)
from gemmgen.plan.wgmma.cost_constants import NARROW_PART
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.problem import Matmul, Operand

DEEPEST_RING, DEEPEST_SWAP_AB_RING = 8, 12
"""Stages beyond which a ring hides nothing more; with swap-AB, stages are small."""
PARALLEL_RING_BYTES = 200 * 1024
"""Bytes of the ring beyond which it hides nothing more if a second kernel adds up sums: at 512 x 512 x 16384
the main loop of 128 x 128 x 64 alone takes 17.0 us with seven stages and 15.7 with six
(``benchmarks/fit/h200_parallel.json``); no reason was found.
"""
NARROWEST_BESIDE_REGISTERS = 144
"""Columns of a composed tile of two consumers from which on an A of 16 bits passes through registers."""
PRODUCER_REGISTERS = 40
"""Registers of a producer thread if consumers take the rest; no record isolates it."""
ORDER, WIDTH = "snake", 16
"""Order of tiles for several waves, and the tiles along its minor dimension that are walked together."""
PING_PONG_WIDTH = 8
"""The width that ran best with ping-pong, whose consumers have neighbouring tiles."""


@dataclass(frozen=True)
class Derived:
    """A decision that follows from others where the spec leaves it open."""

    name: str
    value: Callable[[WgmmaKernel], object]


TILE_DERIVED = (
    Derived("mma_n", lambda plan: max(1, min(_columns_of_warp(plan), plan.widest_mma_n))),
    Derived("a_swizzle_bytes", lambda plan: _swizzle(plan, plan.a_row, plan.problem.a)),
    Derived("b_swizzle_bytes", lambda plan: _swizzle(plan, plan.b_row, plan.problem.b)),
)
"""Decisions that follow from the tile and its warps alone."""
SOURCE_DERIVED = (Derived("a_source", lambda plan: _source_for(plan)),)
"""Decisions that follow from `TILE_DERIVED` too."""
MEMORY_DERIVED = (
    Derived("stages", lambda plan: _stages(plan)),
    Derived("producer_registers", lambda plan: _producer_registers(plan)),
)
"""Decisions that follow from all others and from the way to store D; neither depends on the other."""
CONSUMER_DERIVED = (Derived("consumer_registers", most_consumer_registers),)
"""Decisions that follow from the producer's registers."""


def _stages(plan: WgmmaKernel) -> int:
    """Return the stages of a ring: as many as hide anything, and as there is shared memory for."""
    stages = min(deepest_ring(plan.swap_ab), most_stages(plan))
    if plan.reduces_apart:
        stages = min(stages, PARALLEL_RING_BYTES // max(1, plan.stage_bytes))
    return max(1, stages)


def deepest_ring(swap_ab: bool) -> int:
    """Return the stages beyond which a ring hides nothing more, with swap-AB or without."""
    return DEEPEST_SWAP_AB_RING if swap_ab else DEEPEST_RING


def derive(plan: WgmmaKernel, derived: tuple[Derived, ...], decided: Collection[str]) -> WgmmaKernel:
    """Return the plan with those decisions that are open derived from it."""
    found = {item.name: item.value(plan) for item in derived if item.name not in decided}
    return altered(plan, **found) if found else plan


def _columns_of_warp(plan: WgmmaKernel) -> int:
    """Return the columns of the instruction's tile, or of its widest part, that a warp has."""
    return plan.mma_parts[0] // plan.warps_across[1]


def a_source_of(problem: Matmul) -> str:
    """Return where A is read: of 16 bits it may lie either way in shared memory, of others only along K."""
    return "registers" if problem.a.major == "mn" and problem.a.dtype.bits != 16 else "shared"


def _source_for(plan: WgmmaKernel) -> str:
    """Return where A is read: from registers too where parts of a tile share it, gain by it and hold it.

    Tiles of three consumers gained by it on an H200, but 192 x 80 and 192 x 96 of 8 bits at one shape of
    eight, and wide ones of two; a lone consumer, which waits for its registers, lost, and so did tiles of
    128 x 80 to 128 x 112. See ``fragments`` too.
    """
    source = a_source_of(plan.problem)
    apart = plan.specialization == "cooperative" and not (plan.outstanding_mmas or plan.staggered)
    if not (plan.composed and apart and plan.problem.a.multiplied.bits <= 16):
        return source
    gains = plan.consumers > 2 or (plan.consumers == 2 and _is_wide_for_registers(plan))
    return "registers" if gains and holds_its_tile(altered(plan, a_source="registers")) else source


def _is_wide_for_registers(plan: WgmmaKernel) -> bool:
    """Return True if the parts of a tile of two consumers gain by an A in registers.

    Elements of 8 bits are read without the next step's, and so only where more than one part would read A
    slower than it multiplies: 128 x 176, 208, 224, 272, 288 and 304 took 2 to 9 % less by it, 128 x 144, 160
    and 192 took 4 to 5 % more (``benchmarks/fit/h200_a_in_registers_e4m3.json``). In clusters, and with
    scales of rows or columns, some of these took up to 20 % more than others of the same loop, which was not
    explained (``benchmarks/suites/h200_many_rows_e4m3.jsonl``).
    """
    if plan.problem.a.multiplied.bits > 8:
        return plan.cta_tile_n >= NARROWEST_BESIDE_REGISTERS
    if plan.cluster_size > 1 or plan.problem.vectors:
        return False
    first, *others = plan.column_parts
    return len(others) > 1 or (first == WGMMA.n_max and others[-1] < NARROW_PART)


def _is_one_wave(plan: WgmmaKernel) -> bool:
    """Return True if all tiles run at the same time, in each problem that the plan is for.

    Then lines are the order that is found with the fewest divisions; the shorter ones are faster nearly
    everywhere (``benchmarks/fit/h200_orders.json``).
    """
    tiles = max(math.prod(plan.tiles(shape)) for shape in plan.request.planned_shapes)
    return tiles * plan.splits <= plan.resident_programs


def walk_of(plan: WgmmaKernel, order: object = None) -> dict[str, object]:
    """Return how tiles follow one another: in the given order, or in one that follows from the plan."""
    order = order or _order(plan)
    line = order in LINES
    return {
        "order": order,
        "minor": "n" if order == "row" else "m",
        "width": 1 if line else (PING_PONG_WIDTH if plan.ping_pong else WIDTH),
    }


def _order(plan: WgmmaKernel) -> object:
    """Return the order of tiles, where a spec says nothing of that."""
    if plan.problem.groups is not None:
        return "grouped"
    if plan.reduces_apart:  # tiles side by side share the operand that a cluster does not
        return "column" if plan.cluster_n > plan.cluster_m else "row"
    if not _is_one_wave(plan):
        return ORDER
    tiles_m, tiles_n = max(map(plan.tiles, plan.request.planned_shapes), key=math.prod)
    return "row" if tiles_m > tiles_n else "column"


def _producer_registers(plan: WgmmaKernel) -> int:
    """Return the registers of a producer thread: as many as consumers have, where these need no more.

    Then no role requests registers, and the kernel starts and ends about 0.2 us sooner on an H200
    (``benchmarks/fit/h200_unfilled_waves.json``). A lone consumer starts with all that a thread can use.
    """
    if not plan.specialized:
        return PRODUCER_REGISTERS
    usual = max(PRODUCER_REGISTERS, expected_producer_registers(plan))
    if plan.consumers not in range(2, most_consumers(plan) + 1) or plan.occupancy > 1:
        return usual
    share = plan.register_pool.launch_registers
    return share if max(expected_registers(plan), usual) <= share else usual


def holds_its_tile(plan: WgmmaKernel) -> bool:
    """Return True if consumers have as many registers as they are expected to take."""
    return not lacking_registers(plan)


def lacking_registers(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread is expected to take beyond the most that it can have."""
    return max(0, expected_registers(plan) - most_consumer_registers(plan))


def _swizzle(plan: WgmmaKernel, row: int, operand: Operand) -> int:
    """Return the widest swizzle of an operand in bytes: of a row of its tile, or of a block that has a scale.

    The MMAs of a block read it alone, from an address that no swizzle spans.
    """
    if operand.scale and plan.step_blocks > 1:
        row = min(row, operand.scale.vector)
    return plan.widest_swizzle(row, operand.dtype.bits)
