"""The expected time of a Hopper kernel for a problem, and how far an illegal kernel exceeds its limits.

A plan's time is a sum of named terms; ``docs/planner.md`` explains them. They are computed in nanoseconds of
an H200 from `cost_constants` and given in cycles of ``Gpu.sustained_hz``, the unit of all estimates. They
order plans to within a few percent: a time that they give is no measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import GPUS, Gpu, Product
from gemmgen.plan.decisions import LINES
from gemmgen.plan.group_forecast import whole_problem
from gemmgen.plan.planning import Row
from gemmgen.plan.rule import once
from gemmgen.plan.search import Estimate, estimated, excess_of, l2_bytes, moved_of_each, whole_cycles
from gemmgen.plan.timing import Card, Stream, Tiles, causes
from gemmgen.plan.wgmma import cost_constants as constants
from gemmgen.plan.wgmma.bounds import least_registers, most_consumers
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.problem import Shape


@once
def mma_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles of the tensor cores for one K step of a CTA tile.

    A narrow instruction takes some: that was measured with swap-AB. The MMAs of a part wait for shared
    memory, 64 rows of A and their columns of B: 24 cycles for 32 columns, which are multiplied in 16. The
    wider ones beside them make up for little of it.
    """
    m, n, k = plan.mma_shape
    fma_per_cycle = plan.architecture.mma_16bit_fma_per_cycle * 16 / plan.problem.a.multiplied.bits
    if plan.swap_ab or not plan.composed or plan.mma.reads_left:
        instructions = plan.cta_tile_m * plan.cta_tile_n * plan.cta_tile_k / (m * n * k)
        return instructions * max(m * n * k / fma_per_cycle, constants.LEAST_MMA_CYCLES)
    cycles, (of_left, of_right) = 0.0, _stored_bytes(plan)
    for columns, rows, (_, n, _) in zip(plan.column_parts, plan.part_rows, plan.mma_shapes, strict=True):
        instructions = rows * columns * plan.cta_tile_k / (m * n * k)
        read = (m * of_left + n * of_right) * k / plan.architecture.smem_bytes_per_cycle
        each = m * n * k / fma_per_cycle
        cycles += instructions * (each + constants.NARROW_READ_SHARE * max(0.0, read - each))
    return cycles


@once
def smem_cycles(plan: WgmmaKernel) -> float:
    """Return the cycles of shared memory: each instruction reads its 64 rows of A and its columns of B.

    Exchanged operands are read likewise, 64 columns of B and the rows of A.
    """
    m = plan.mma_shape[0]
    extent, parts, extents = plan.cta_tile_m, plan.column_parts, plan.part_rows
    if plan.swap_ab:
        extent, parts, extents = plan.cta_tile_n, (plan.cta_tile_m,), (plan.cta_tile_n,)
    left, right = float(extent * _reads_of_left(plan)), 0.0
    for part, rows_of_part, (_, n, _) in zip(parts, extents, plan.mma_shapes, strict=True):
        left += rows_of_part * (part / n - 1)
        right += rows_of_part * part / m
    of_left, of_right = _stored_bytes(plan)
    read = (left * of_left + right * of_right) * plan.cta_tile_k
    return read / plan.architecture.smem_bytes_per_cycle


def _stored_bytes(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the bytes of an element of the left and of the right operand in shared memory."""
    return plan.mma.across(plan.problem.a.smem_bits / 8, plan.problem.b.smem_bits / 8)


def _reads_of_left(plan: WgmmaKernel) -> int:
    """Return how often the parts of a tile read its left operand: once where their MMAs follow one another.

    [unfilled-waves] From shared memory they read it again where a warpgroup has more rows than an
    instruction, so that other rows come between, and for each narrow part beside another one.
    """
    if plan.mma.reads_left or not plan.composed:
        return 1
    warpgroups = plan.row_shares * plan.consumer_warps // plan.architecture.warps_per_warpgroup
    if plan.cta_tile_m > warpgroups * plan.mma_shape[0]:
        return len(plan.column_parts)
    return max(1, sum(part < constants.NARROW_PART for part in plan.column_parts))


def loaded_bytes(plan: WgmmaKernel) -> float:
    """Return a CTA's share of the bytes that a K step loads, multicast ones divided by who shares them."""
    return plan.stage.bytes_per_cta


def row_share(plan: WgmmaKernel, tensor: str = "a") -> float:
    """Return how many of the widest swizzled rows a K step's bytes of a row of A, or a column of B, are."""
    row_bytes = plan.cta_tile_k * plan.problem.operand(tensor).smem_bits / 8
    return row_bytes / plan.architecture.tma_swizzle_bytes[0]


def card_of(gpu: Gpu | Product) -> Card:
    """Return the rates of a GPU; clocks and shares of the bandwidth are an H200's.

    L2's rate for an SM is an H200's too.
    """
    sustains = isinstance(gpu, Product) and gpu.sustains_clock
    share = gpu.sm_count / GPUS["h200"].sm_count
    return Card(
        sm_count=gpu.sm_count,
        dram_bytes_per_second=gpu.dram_bytes_per_second,
        dense_flops_per_second=gpu.dense_16bit_flops_per_second,
        tensor_cycles_per_ns=constants.TENSOR_CYCLES_PER_NS,
        power_cycles_per_ns=constants.TENSOR_CYCLES_PER_NS if sustains else constants.POWER_CYCLES_PER_NS,
        power_exponent=constants.POWER_EXPONENT,
        l2_bytes_per_ns=constants.L2_BYTES_PER_NS * share,
        l2_overlap=constants.L2_OVERLAP,
        dram_share=constants.DRAM_BYTES_SHARE,
        dram_overlap=constants.DRAM_OVERLAP,
        stream_l2_bytes_per_ns=constants.ALL_SMS_BYTES_PER_NS * share,
        stream_dram_share=constants.DRAM_SHARE,
        stream_overlap=constants.OVERLAP,
        least_split_share=constants.LEAST_SPLIT_SHARE,
    )


def row_of(plan: WgmmaKernel) -> Tiles | Stream:
    """Return the numbers from which ``timing`` predicts a kernel's time.

    Kernels with swap-AB and a tile for each program, and all that divide K, stream B past A.
    """
    streams = plan.splits > 1 or (plan.swap_ab and plan.schedule_kind == "tiled")
    return _timed(plan, _stream_row(plan)) if streams else _timed(plan, _tiles_row(plan))


def _timed(plan: WgmmaKernel, row: Row) -> Row:
    """Return a row with the times of the features that the kernel has."""
    for side in plan.sides:
        row = side.timed(plan, row)
    return row


def _tiles_row(plan: WgmmaKernel) -> Tiles:
    written = plan.stage_bytes / plan.architecture.smem_bytes_per_cycle
    clusters = plan.cluster_size > 1
    refill, cover = _refill(plan)
    return Tiles(
        swap_ab=plan.swap_ab,
        line=_line(plan),
        rows=plan.program_tile_m,
        columns=plan.program_tile_n,
        together=plan.tiles_together,
        depth=plan.cta_tile_k,
        ctas=plan.cluster_size,
        programs=plan.gpu.clusters(plan.cluster_size),
        occupancy=plan.occupancy,
        tensor_cycles=mma_cycles(plan),
        smem_cycles=smem_cycles(plan) + constants.SMEM_WRITE_SHARE * written,
        exposed=_exposed_ns(plan),
        exposed_of_all=constants.SHARED_TILE_NS * row_share(plan) if _warpgroups_share_a_stage(plan) else 0.0,
        refill=refill,
        refill_cover=cover,
        shares=plan.row_shares,
        held=_held_ns(plan),
        short_step=constants.SHORT_STEP_NS if row_share(plan) < 1 else 0,
        latency=constants.LOAD_LATENCY_NS + (constants.CLUSTER_LATENCY_NS if clusters else 0),
        loading=loaded_bytes(plan) / _load_bytes_per_ns(plan),
        split_a=_split_ns(plan, "a"),
        split_b=_split_ns(plan, "b"),
        stages=plan.stages,
        outstanding=plan.outstanding_mmas,
        stage_bytes=plan.stage_bytes,
        epilogue=_epilogue_ns(plan),
        turn=constants.TURN_NS if plan.ping_pong else 0,
        cluster_share=constants.CLUSTER_SHARE if clusters else 0,
        occupancy_share=constants.OCCUPANCY_SHARE,
        start=_start_ns(plan),
        next_round=0 if plan.persistent else constants.ROUND_NS,
        delivery=1,
        ends_with_d=plan.last_tile_ends_with_d,
        outside_bytes=constants.OUTSIDE_BYTES * _row_bytes(plan),
    )


def _row_bytes(plan: WgmmaKernel) -> float:
    """Return the bytes of a row of A's tile in a K step; 0 where rows outside of A were not measured."""
    known = plan.problem.a.major == "k" and plan.problem.groups is None
    return plan.cta_tile_k * plan.problem.a.smem_bits / 8 if known else 0.0


def _line(plan: WgmmaKernel) -> str:
    """Return the dimension of the lines in which tiles are walked; none for orders without lines.

    With swap-AB the order does not count.
    """
    return plan.minor if plan.order in LINES and not plan.swap_ab else ""


def _held_ns(plan: WgmmaKernel) -> float:
    """Return the time of a K step in which a consumer brings the left operand to registers.

    It does not multiply then. With an MMA in flight it multiplies meanwhile.
    """
    if not plan.specialized or not plan.mma.reads_left or plan.outstanding_mmas:
        return 0.0
    instructions = plan.consumer_extents[0] / plan.mma_shape[0] * len(plan.mma_parts)
    return constants.HELD_A_NS * instructions * row_share(plan, plan.mma.left.tensor)


def _warpgroups_share_a_stage(plan: WgmmaKernel) -> bool:
    """Return True if warpgroups wait for one stage together, with nobody else on the SM to cover for them."""
    warpgroups = plan.consumer_warps * plan.row_shares // plan.architecture.warps_per_warpgroup
    return warpgroups > 1 and (plan.specialized or _is_alone(plan))


def _exposed_ns(plan: WgmmaKernel) -> float:
    """Return the time of a K step in which its CTA has no MMA in flight, whatever other CTAs do."""
    exposed = 0.0
    if not plan.outstanding_mmas and plan.row_shares == 1:
        exposed += constants.DRAIN_NS
    if not (plan.specialized or plan.synchronous or plan.outstanding_mmas):
        exposed += constants.REFILL_NS[plan.schedule_kind]
    return exposed


def _refill(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the time to request a stage beside an MMA in flight, and the share of the MMA that hides it."""
    if plan.specialized or plan.synchronous or not plan.outstanding_mmas:
        return 0.0, 0.0
    cover = constants.LONE_REFILL_COVER if _is_alone(plan) else constants.REFILL_COVER[plan.schedule_kind]
    return constants.REFILL_NS[plan.schedule_kind], cover


def _is_alone(plan: WgmmaKernel) -> bool:
    """Return True if a kernel without roles has one CTA on an SM, with a tile of its own."""
    return plan.schedule_kind == "tiled" and not plan.specialized and plan.occupancy == 1


def _load_bytes_per_ns(plan: WgmmaKernel) -> float:
    """Return the rate at which a stage comes in from its first bytes on."""
    together = _is_alone(plan) and plan.outstanding_mmas
    return constants.LONE_LOAD_BYTES_PER_NS if together else constants.LOAD_BYTES_PER_NS


def _split_ns(plan: WgmmaKernel, operand: Literal["a", "b"]) -> float:
    """Return the time to load an operand for a CTA's K step, if its rows begin inside sectors.

    Rows of TMA boxes are as wide as the widest swizzle, or as the tile. They then begin at every multiple of
    16 bytes of a line equally often. CTAs that share a tile load a part each.
    """
    matrix = plan.problem.a if operand == "a" else plan.problem.b
    across = plan.cta_tile_m if operand == "a" else plan.cta_tile_n
    line_bytes, unit = plan.architecture.tma_swizzle_bytes[0], plan.architecture.tma_alignment_bytes
    width = min((plan.cta_tile_k if matrix.major == "k" else across) * matrix.dtype.bits // 8, line_bytes)
    lines = (width + line_bytes - unit) / line_bytes  # that a row touches, in the mean
    return constants.SPLIT_LINE_NS * lines * plan.stage.requested_bytes_of(operand) / width


def _start_ns(plan: WgmmaKernel) -> float:
    """Return the time from a kernel's launch to its first MMA, and from its last store to the next launch."""
    sooner = constants.TILED_START_NS if plan.schedule_kind == "tiled" and not plan.specialized else 0
    return constants.START_NS + (constants.CLUSTER_START_NS if plan.cluster_size > 1 else 0) - sooner


def _epilogue_ns(plan: WgmmaKernel) -> float:
    """Return the time in which a tile's consumers load C, convert the accumulator and hand D to TMA."""
    saved = plan.problem.b_blocks * plan.problem.saves
    element_bytes = (1 + saved) * plan.problem.d.bytes + (plan.problem.c.bytes if plan.problem.c else 0)
    warps = plan.consumer_warps * plan.row_shares
    bytes_per_ns = constants.EPILOGUE_BYTES_PER_NS_AND_WARP * warps
    passed = plan.problem.d_blocks * plan.cta_tile_m * plan.cta_columns * element_bytes / bytes_per_ns
    passed += constants.STORE_WAIT_NS * _waits_for_stores(plan)
    if plan.ping_pong:
        return passed
    apart = plan.row_shares > 1 and not plan.outstanding_mmas
    share = constants.EPILOGUE_SHARE_OF_CONSUMERS_APART if apart else 1
    return constants.EPILOGUE_START_NS + passed * share


def _waits_for_stores(plan: WgmmaKernel) -> int:
    """Return how often the consumers of a tile wait for the store of the sub-tile before it."""
    if plan.epilogue_buffers > 1 or plan.ping_pong or plan.problem.c:
        return 0
    return plan.subtiles - 1


def _stream_row(plan: WgmmaKernel) -> Stream:
    alone = plan.occupancy == 1
    multiply, least = _stream_mma_ns(plan)
    drain = 0 if plan.outstanding_mmas or plan.row_shares > 1 else constants.STREAM_DRAIN_NS
    return Stream(
        swap_ab=plan.swap_ab,
        line=_line(plan),
        rows=plan.program_tile_m,
        columns=plan.program_tile_n,
        together=plan.tiles_together,
        depth=plan.cta_tile_k,
        ctas=plan.cluster_size,
        programs=plan.gpu.clusters(plan.cluster_size),
        occupancy=plan.occupancy,
        splits=plan.splits,
        multiply=multiply,
        least_multiply=least,
        issue=constants.STREAM_STEP_NS,
        drain=drain,
        latency=constants.STREAM_LATENCY_NS,
        loading=plan.stage_bytes / constants.SM_BYTES_PER_NS,
        split_a=_split_ns(plan, "a"),
        split_b=_split_ns(plan, "b"),
        stages=plan.stages,
        outstanding=plan.outstanding_mmas,
        neighbours=_bytes_of_neighbours(plan) / 2 / constants.TPC_BYTES_PER_NS if alone else 0,
        sent_bytes=plan.cluster_size * loaded_bytes(plan),
        start=constants.STREAM_START_NS + (constants.ROLES_START_NS if plan.specialized else 0),
        next_round=constants.STREAM_ROUND_NS,
        delivery=1,
        early=0,
        early_places=0,
        early_loss=0,
        early_steps=0,
        reread=1,
    )


def _stream_mma_ns(plan: WgmmaKernel) -> tuple[float, float]:
    """Return the tensor cores' time for a K step, and the least to issue its MMAs or to read shared memory.

    Both have the time in which nobody covers for a lone consumer.
    """
    if plan.swap_ab:
        warpgroups = plan.consumer_warps // plan.architecture.warps_per_warpgroup
        instructions = plan.mmas_per_step * warpgroups
        multiply, issue = (
            instructions * (cycles / constants.STREAM_MMA_CYCLES_PER_NS)
            for cycles in (plan.mma_n / 2, constants.LEAST_MMA_CYCLES)
        )
        return multiply, issue
    # [parallel] TMA's writes count, and a lone consumer with an MMA in flight loses nothing between its
    # steps: 23 kernels are known to 4.4 % with both, and to 5.6 % without.
    written = plan.reduces_apart * plan.stage_bytes / plan.architecture.smem_bytes_per_cycle
    smem = smem_cycles(plan) + constants.SMEM_WRITE_SHARE * written
    covered = plan.row_shares > 1 or (plan.reduces_apart and plan.outstanding_mmas)
    lone = 0 if covered else constants.LONE_STEP_NS
    cycles_per_ns = constants.WIDE_MMA_CYCLES_PER_NS
    return mma_cycles(plan) / cycles_per_ns + lone, smem / cycles_per_ns + lone


def _bytes_of_neighbours(plan: WgmmaKernel) -> int:
    """Return the bytes of a K step of two CTAs side by side: what one load brings to both counts once."""
    return 2 * plan.stage_bytes - plan.stage.bytes_shared_along("m" if plan.cluster_m > 1 else "n")


def estimate(plan: WgmmaKernel, shape: Shape) -> Estimate:
    """Return the estimate of a plan for a problem [M, N, K]."""
    (terms,) = _terms(plan, (shape,))
    return estimated(plan, shape, terms, loaded_bytes(plan))


def _terms(plan: WgmmaKernel, shapes: Sequence[Shape]) -> Iterator[dict[str, float]]:
    """Yield the cycles by cause for each problem: infinite for larger clusters than the GPU can hold."""
    row, card, groups = row_of(plan), card_of(plan.gpu), plan.problem.groups
    hz = plan.gpu.sustained_hz
    for shape, moved in zip(shapes, moved_of_each(plan.problem, shapes), strict=True):
        whole = whole_problem(row, groups, shape) if groups else shape
        nanoseconds = causes(row, card, moved, *whole)
        nanoseconds["copies"] = copies_ns(plan, shape)
        yield {cause: time * hz / 1e9 for cause, time in nanoseconds.items() if time}


def copies_ns(plan: WgmmaKernel, shape: Shape) -> float:
    """Return the time of the kernels that copy A, B and C into aligned rows, ahead of a plan's kernel.

    The matrices of a problem [M, N, K] are taken to be contiguous. D is returned in aligned rows, so it is
    not copied. One launch copies two matrices, at the rate at which DRAM is read and written.
    """
    problem, (m, n, k) = plan.problem, shape
    if not problem.copies_misaligned:
        return 0.0
    matrices = [
        (m * k, (k if problem.a.major == "k" else m) * problem.a.dtype.bits, problem.a.dtype.bits / 8),
        (n * k, (k if problem.b.major == "k" else n) * problem.b.dtype.bits, problem.b.dtype.bits / 8),
        *([(m * n, n * problem.c.bits, problem.c.bytes)] if problem.c else []),
    ]
    unit_bits = plan.architecture.tma_alignment_bytes * 8
    copied = [elements * size for elements, row_bits, size in matrices if row_bits % unit_bits]
    bytes_per_ns = constants.DRAM_BYTES_SHARE * plan.gpu.dram_bytes_per_second / 1e9
    return -(-len(copied) // 2) * constants.COPY_START_NS + 2 * sum(copied) / bytes_per_ns


def cycles(plan: WgmmaKernel, shape: Shape) -> float:
    """Return the cycles of a problem [M, N, K], to the cycle, so that equal plans tie."""
    (terms,) = _terms(plan, (shape,))
    return whole_cycles(terms)


def costs(plan: WgmmaKernel, shapes: Sequence[Shape]) -> list[tuple[float, ...]]:
    """Rank a plan for each problem: the smaller the better, the first difference decides (``COST_ORDER``)."""
    idle_queue = bool(plan.outstanding_mmas) != (plan.row_shares == 1)
    loaded, depth = loaded_bytes(plan), plan.stages * plan.cta_tile_k
    return [
        (whole_cycles(terms), l2_bytes(plan, shape, loaded), idle_queue, -depth)
        for terms, shape in zip(_terms(plan, shapes), shapes, strict=True)
    ]


COST_ORDER = ("time", "L2 bytes", "MMAs in flight", "depth of the ring")
"""Parts of a cost: cycles; bytes from L2, which cost power; 1 if uncovered consumers keep no MMA in flight,
or covered ones keep one; and the K that the ring holds, because a deeper ring hides more.
"""


def excess(plan: WgmmaKernel) -> float:
    """Return by how much an illegal kernel exceeds its limits, as a sum of fractions."""
    if plan.consumers > most_consumers(plan):
        return 0.0  # nothing can be summed up over that many consumers
    return excess_of(
        (plan.smem_bytes, plan.smem_limit_bytes),
        (least_registers(plan), plan.consumer_registers),
        (plan.subtile_n, plan.widest_subtile_n),
        (plan.epilogue_buffers, plan.subtiles),
        (WGMMA.rows_per_warp * plan.warps_across[0], max(1, plan.consumer_extents[0])),
    )
