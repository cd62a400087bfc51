"""What a plan is expected to cost on a problem, and how far it is beyond limits: ranks, judges nothing.

A plan's time is a sum of named terms, in cycles of one SM at the clock that a large problem sustains
(``Gpu.sustained_hz``); ``docs/planner.md`` explains it. The constants marked [derived] were solved from one
session of ratios to cuBLAS on an H200 (bf16 8192 x 8192 x 8192, 4096 x 4096 x 4096 and 8192 x 8192 x 1024;
fp8 and tf32 as a check), with cuBLAS at 674, 667 and 588 TFLOP/s. They order plans to within a few percent;
a time that they give is not a measurement.

Those marked [few-rows] were fitted to 3,856 times of about 200 kernels at 155 shapes, most of up to 64 rows,
on an H200 (bf16 and e4m3, CUDA graphs over rotated inputs); they give the better ones to 6 %, and the first
choice is 1.07 times as fast as cuBLAS where the best of all was 1.09 (geometric means). No record has all
these times; ``docs/performance.md`` has what the first choice reaches in those that were taken later.

Those marked [long-k] were read off 57 kernels with parts of K at 256 x 256 x 32768 and 512 x 512 x 16384, in
bf16 on an H200, and off some of these without their sums or with two K steps. They give the times with roles
to 11 %, and those without roles, to which they were not fitted, to 20 %. No record has them either.
"""

from __future__ import annotations

import math

from gemmgen.plan.search import Estimate, estimated, excess_of, l2_bytes, whole_cycles
from gemmgen.plan.wgmma.bounds import most_consumers, working_registers
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.problem.definition import Shape

LOAD_LATENCY_CYCLES = 550
"""[derived] From asking for a stage to its first byte.

A blocked 128 x 256 x 64 (0.44) took 2,395 cycles a step: 1,024 of MMA, 160 of drain, 49,152 bytes at 64 a
cycle, and 443. A blocked 128 x 128 x 128 for two CTAs (0.742) has 616.
"""
DRAIN_CYCLES = 160
"""[derived] From the last instruction of an MMA to the first of the next where none is in flight.

Ping-pong without an MMA in flight (0.78) took 689 cycles for a step of 512; a lone consumer of eight warps
(0.91) 1,165 for 1,024.
"""
REFILL_CYCLES = {"single_tile": 0, "tiled": 260, "persistent": 700}
"""[derived] To wait for a stage and ask for another where the warps that multiply also load.

128 x 256 x 64 without an MMA in flight: 1,437 cycles a step in a tiled (0.748), 1,882 in a persistent
schedule (0.571), of which 1,024 are MMA and 160 drain.
"""
REFILL_COVER = 0.6
"""[derived] Part of a step's MMA in flight behind which that is hidden: 80 of 700 cycles remained (0.957)."""
PROMOTION_CYCLES_PER_REGISTER = 2
"""[derived] To add a register of partial sums to the accumulator. With 64: 128 for two consumers (promotion
after 128 of K had 0.893, after 256 1.010); 288 with the drain in ping-pong, where no other covers (0.53).
"""
EPILOGUE_BYTES_PER_CYCLE_AND_WARP = 3.3
"""[derived] Of C and D, converted and handed to TMA. An MMA in flight keeps cooperative consumers in step,
and a tile of 65,536 bytes of D then took 2,640 cycles beside its main loop (fp8, 1.024, 1.00 and 0.99).
"""
EPILOGUE_SHARE_OF_CONSUMERS_APART = 2 / 3
"""[derived] What of it is left where consumers run apart, one storing while another still multiplies:
1,815 of those 2,640 cycles (bf16 1.027, 1.005 and 1.066; fp8 1.040, 1.026 and 1.083).
"""
TURN_CYCLES = 500
"""[derived] From the last MMA of a ping-pong consumer to the first of the other one: 8,687 cycles for 8,192
of MMA (bf16 128 x 128 at K = 1,024, 1.113).
"""
CLUSTER_SHARE = 0.015
"""[derived] Of the main loop, in which CTAs of a cluster wait for one another at every stage: a 1 x 2 cluster
(1.024, 0.989, 1.045) and ping-pong in one of 2 x 1 (1.025, 0.980, 1.106) lost 0.3 to 3.6 %, in the mean 1.45.
"""
START_CYCLES = 3_200
"""[derived] From a program's launch to its first MMA, and from its last store to the next launch: a tiled
128 x 256 (1.004, 0.967, 0.890) took 5,800 cycles a tile beside its main loop, 2,640 of them its epilogue.
"""


STREAM_START_NS = 2_630
"""[few-rows] From a kernel's launch, in a chain of such, to its first byte, and from its last to the next."""
STREAM_ROUND_NS = 1_280
"""[few-rows] From the last byte of one round of tiles on an SM to the first of the next."""
STREAM_LATENCY_NS = 650
"""[few-rows] From asking for a stage to its bytes: a ring delivers all its stages in it, at most."""
STREAM_STEP_NS = 7
"""[few-rows] To issue a K step."""
STREAM_DRAIN_NS = 27
"""[few-rows] In which a K step's MMAs drain, and its stage is asked for again, where none is in flight."""
STREAM_MMA_CYCLES_PER_NS = 3.1
"""[few-rows] At which instructions of few columns would be issued: they hardly count."""
LEAST_MMA_CYCLES = 26
"""[few-rows] Of an instruction of few columns."""
SM_BYTES_PER_NS = 150
"""[few-rows] That one SM takes in."""
TPC_BYTES_PER_NS = 231
"""[few-rows] That two SMs side by side take in, each with a ring of its own that fills it: where only some
have a neighbour at work, as of 80 tiles on 132 SMs, those end late.
"""
ALL_SMS_BYTES_PER_NS = 16_700
"""[few-rows] That all SMs take in: tiles of fewer rows than A has read B more than once."""
DRAM_SHARE = 0.99
"""[few-rows] Of the datasheet's bandwidth: 4.76 of an H200's 4.8 TB/s."""
OVERLAP = 2.5
"""[few-rows] The exponent with which the times of DRAM, of the busiest SM and of all SMs add up."""
SPLIT_NS = 740
"""[few-rows] To leave sums in memory and to count the programs that have."""
SPLIT_BYTES_PER_NS = 23
"""[few-rows] At which the last program of a tile adds up the sums of all."""


ROLES_START_NS = 1_200
"""[long-k] What a program with roles takes longer to start and to end."""
ROLES_SPLIT_NS = 3_000
"""[long-k] To leave sums, to count the programs that have, in a cluster together, and to store the tile."""
ROLES_SPLIT_BYTES_PER_NS = 130
"""[long-k] At which consumers add up sums that lie in the order of registers."""
ATOMIC_NS = 740
"""[long-k] To count, and to store the tile."""
ATOMIC_ROLES_NS = 1_250
"""[long-k] What both take longer in a program with roles."""
ATOMIC_BYTES_PER_NS = 17.5
"""[long-k] At which a CTA adds its sums to those in memory, and at which one reads and clears them."""
WIDE_MMA_CYCLES_PER_NS = 1.75
"""[long-k] At which instructions of 64 and more columns are issued: the clock of a short kernel."""
LONE_STEP_NS = 50
"""[long-k] In which a K step's MMAs are not issued, where no other consumer covers for them."""


def mma_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles of the tensor cores for one K step of a CTA tile."""
    fma_per_cycle = plan.architecture.mma_16bit_fma_per_cycle * 16 / plan.problem.a.dtype.bits
    return plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k / fma_per_cycle


def smem_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles of shared memory: each instruction reads its 64 rows of A and its columns of B.

    Exchanged operands are read likewise, 64 columns of B and the rows of A.
    """
    m, n, _ = plan.mma_shape
    a_rows = 0 if plan.a_source == "registers" else m
    rows = plan.cta_tile_m * plan.cta_tile_n / (m * n) * (a_rows + n)
    return rows * plan.cta_tile_k * plan.problem.a.dtype.bytes / plan.architecture.smem_bytes_per_cycle


def loaded_bytes(plan: WgmmaKernel) -> float:
    """Return a CTA's share of the bytes that a K step loads, multicast ones divided by who shares them."""
    return plan.a_tile_bytes / plan.cluster_n + plan.b_tile_bytes / plan.cluster_m


def l2_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles in which a CTA's share of L2 delivers a K step."""
    return loaded_bytes(plan) / plan.architecture.l2_bytes_per_cycle_and_sm


def exposed_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles of a K step in which its CTA has no MMA in flight, whatever other CTAs do."""
    covered = plan.outstanding_mmas or (plan.row_shares > 1)
    exposed = 0.0 if covered else float(DRAIN_CYCLES)
    if not (plan.specialized or plan.synchronous):
        hidden = REFILL_COVER * mma_cycles(plan) if plan.outstanding_mmas else 0
        exposed += max(0.0, REFILL_CYCLES[plan.schedule_kind] - hidden)
    if plan.promote_k:
        exposed += PROMOTION_CYCLES_PER_REGISTER * plan.accumulator_registers / 2
    return exposed


def step_cycles(plan: WgmmaKernel, ctas: int = 1) -> dict[str, float]:
    """Return by cause the cycles that one K step of as many CTAs on an SM cannot be shorter than.

    CTAs share what an SM does per cycle; what one of them waits for passes while another multiplies.
    A stage is free again when its MMA has retired, or, with one in flight, when the next one is issued.
    """
    tensor, smem, l2 = mma_cycles(plan), smem_cycles(plan), l2_cycles(plan)
    busy = max(tensor, smem) + exposed_cycles(plan)
    lap = LOAD_LATENCY_CYCLES + l2 + (0 if plan.outstanding_mmas else busy)
    return {
        "tensor cores": ctas * tensor,
        "shared memory": ctas * smem,
        "L2": ctas * l2,
        "drained MMAs": busy,
        "short ring": lap / max(1, plan.stages - plan.outstanding_mmas),
    }


def epilogue_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles in which a tile's consumers load C, convert the accumulator and hand D to TMA."""
    element_bytes = plan.problem.d.bytes + (plan.problem.c.bytes if plan.problem.c else 0)
    warps = plan.consumer_warps * plan.row_shares
    return plan.cta_tile_m * plan.cta_tile_n * element_bytes / (EPILOGUE_BYTES_PER_CYCLE_AND_WARP * warps)


def tile_cycles(plan: WgmmaKernel, main_loop: float) -> dict[str, float]:
    """Return by cause the cycles of one tile that no main loop covers.

    Ping-pong consumers store while the other multiplies: only what exceeds its main loop is left.
    """
    cluster = {"cluster": CLUSTER_SHARE * main_loop} if plan.cluster_size > 1 else {}
    epilogue = epilogue_cycles(plan)
    if plan.ping_pong:
        beyond = max(0.0, (epilogue - main_loop - TURN_CYCLES) / 2)
        return {"turns": TURN_CYCLES, "epilogue": beyond} | cluster
    if plan.row_shares > 1 and not plan.outstanding_mmas:
        epilogue *= EPILOGUE_SHARE_OF_CONSUMERS_APART
    return {"epilogue": DRAIN_CYCLES + epilogue} | cluster


def estimate(plan: WgmmaKernel, shape: Shape) -> Estimate:
    """Return what a plan is expected to take for a problem [M, N, K]."""
    return estimated(plan, shape, _terms(plan, shape), loaded_bytes(plan))


def _streamed_terms(plan: WgmmaKernel, shape: Shape) -> dict[str, float]:
    """Return the cycles by cause of a kernel that streams B past few rows of A, each program one tile.

    The time is that in which DRAM delivers both operands, or in which the busiest SM, or all of them, take
    their tiles in; where these are near each other, they add up to more than each.
    """
    m, n, k = shape
    gpu, element_bytes = plan.problem.gpu, plan.problem.a.dtype.bytes
    tiles_m, tiles_n = plan.tiles(shape)
    programs = tiles_m * tiles_n * plan.splits
    clusters = gpu.clusters(plan.cluster_size)
    if not clusters:
        return {"busiest SM": math.inf}
    per_sm = math.ceil(programs / clusters)
    ctas = min(plan.occupancy, per_sm)
    rounds = math.ceil(per_sm / ctas)
    k_steps = math.ceil(k / (plan.cta_tile_k * plan.splits))
    busiest = rounds * k_steps * _streamed_step(plan, ctas)
    if plan.occupancy == 1:
        neighbours = math.ceil(2 * programs * plan.cluster_size / gpu.sm_count)
        busiest = max(busiest, neighbours * k_steps * _bytes_of_neighbours(plan) / 2 / TPC_BYTES_PER_NS)
    moved = (m + n) * k * element_bytes + m * n * plan.problem.d.bytes
    dram = moved / (DRAM_SHARE * gpu.dram_bytes_per_second / 1e9)
    taken_in = programs * plan.cluster_size * k_steps * loaded_bytes(plan) / ALL_SMS_BYTES_PER_NS
    together = sum(time**OVERLAP for time in (dram, busiest, taken_in)) ** (1 / OVERLAP)
    start = STREAM_START_NS + (ROLES_START_NS if plan.specialized else 0)
    nanoseconds = {
        "DRAM": dram,
        "busiest SM": together - dram,
        "start": start + (rounds - 1) * STREAM_ROUND_NS,
        "splits": _split_nanoseconds(plan) if plan.splits > 1 else 0.0,
    }
    return {cause: time * gpu.sustained_hz / 1e9 for cause, time in nanoseconds.items() if time}


def _bytes_of_neighbours(plan: WgmmaKernel) -> int:
    """Return the bytes of a K step of two CTAs side by side: what one load brings to both counts once."""
    shared = plan.b_tile_bytes if plan.cluster_m > 1 else plan.a_tile_bytes if plan.cluster_n > 1 else 0
    return 2 * plan.stage_bytes - shared


def _split_nanoseconds(plan: WgmmaKernel) -> float:
    """Return what it takes to add up the sums of a tile's parts, beside a program that has a tile alone."""
    tile_bytes = plan.cta_tile_m * plan.cta_tile_n * plan.problem.accumulator.bytes
    if plan.reduction == "atomic":
        return ATOMIC_NS + (ATOMIC_ROLES_NS if plan.specialized else 0) + tile_bytes / ATOMIC_BYTES_PER_NS
    if plan.specialized:
        return ROLES_SPLIT_NS + plan.splits * tile_bytes / ROLES_SPLIT_BYTES_PER_NS
    return SPLIT_NS + plan.splits * tile_bytes / SPLIT_BYTES_PER_NS


def _streamed_step(plan: WgmmaKernel, ctas: int) -> float:
    """Return the nanoseconds that one K step of as many CTAs on an SM cannot be shorter than."""
    warpgroups = plan.consumer_warps // plan.architecture.warps_per_warpgroup
    if plan.exchanged:
        instruction = max(plan.mma_n / 2, LEAST_MMA_CYCLES) / STREAM_MMA_CYCLES_PER_NS
        mma = plan.mmas_per_step * warpgroups * instruction
    else:
        mma = max(mma_cycles(plan), smem_cycles(plan)) / WIDE_MMA_CYCLES_PER_NS
        mma += 0 if plan.row_shares > 1 else LONE_STEP_NS
    covered = plan.outstanding_mmas or plan.row_shares > 1
    drained = mma + (0 if covered else STREAM_DRAIN_NS)
    taken_in = ctas * plan.stage_bytes / SM_BYTES_PER_NS
    lap = STREAM_LATENCY_NS + taken_in + (0 if plan.outstanding_mmas else drained)
    ring = lap / max(1, plan.stages - plan.outstanding_mmas)
    return max(taken_in, ctas * mma, drained + STREAM_STEP_NS, ring)


def _terms(plan: WgmmaKernel, shape: Shape) -> dict[str, float]:
    """Return the cycles of the busiest SM by cause: rounds of tiles, one after the other."""
    if plan.splits > 1 or (plan.exchanged and plan.schedule_kind == "tiled"):
        return _streamed_terms(plan, shape)
    programs = plan.problem.gpu.clusters(plan.cluster_size)
    if not programs:
        return {"tensor cores": math.inf}
    tiles_m, tiles_n = plan.tiles(shape)
    tiles_per_sm = math.ceil(tiles_m * tiles_n / programs)
    ctas = min(plan.occupancy, tiles_per_sm)
    rounds = math.ceil(tiles_per_sm / ctas)
    k_steps = math.ceil(shape[2] / plan.cta_tile_k)
    steps = step_cycles(plan, ctas)
    slowest = max(steps, key=lambda cause: steps[cause])
    busy = rounds * k_steps * steps["tensor cores"]
    tile_fma = plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k
    sms = plan.problem.gpu.sm_count
    ideal = math.prod(shape) / tile_fma * mma_cycles(plan) / sms
    terms = {"tensor cores": ideal, "idle SMs": busy - ideal}
    if slowest != "tensor cores":
        terms[slowest] = rounds * k_steps * (steps[slowest] - steps["tensor cores"])
    for cause, cycles in tile_cycles(plan, k_steps * steps[slowest]).items():
        terms[cause] = rounds * cycles
    if plan.ping_pong:
        terms["epilogue"] += epilogue_cycles(plan)  # of the last tile, behind which nothing runs
    terms["start"] = START_CYCLES * (1 if plan.persistent else rounds)
    return terms


def cycles(plan: WgmmaKernel, shape: Shape) -> float:
    """Return the SM cycles of a problem [M, N, K], to the cycle, so that equal plans tie."""
    return whole_cycles(_terms(plan, shape))


def cost(plan: WgmmaKernel, shape: Shape) -> tuple[float, ...]:
    """Rank a plan for a problem: the smaller the better, the first difference decides (``COST_ORDER``)."""
    idle_queue = bool(plan.outstanding_mmas) != (plan.row_shares == 1)
    return (
        cycles(plan, shape),
        l2_bytes(plan, shape, loaded_bytes(plan)),
        idle_queue,
        -plan.stages * plan.cta_tile_k,
    )


COST_ORDER = ("time", "L2 bytes", "MMAs in flight", "depth of the ring")
"""What the parts of a cost are: cycles; bytes from L2, which cost power; whether consumers that no
other covers for keep an MMA in flight, and others none; and the K that the ring holds, for deeper hides more.
"""


def excess(plan: WgmmaKernel) -> float:
    """Return by how much an illegal kernel exceeds its limits, as a sum of fractions."""
    if plan.consumers > most_consumers(plan):
        return 0.0  # nothing can be summed up over that many consumers
    return excess_of(
        (plan.smem_bytes, plan.smem_limit_bytes),
        (plan.accumulator_registers + working_registers(plan), plan.consumer_registers),
        (plan.subtile_n, plan.cta_tile_n),
        (plan.epilogue_buffers, plan.subtiles),
    )
