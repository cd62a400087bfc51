"""Hopper matmuls in the forms that Gluon's tutorials teach, written for the simulator's tests.

All compute D = A @ B.T from A [M, K], B [N, K] and, for one tile, C. The blocked form, a tile per program and
one load at a time, is `kernels.hopper.blocked_matmul_kernel`.
"""

from __future__ import annotations

# ruff: noqa: SIM113 - Gluon has no enumerate.
# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

STAGES = gl.constexpr(3)
D_BUFFERS = gl.constexpr(2)


# One tile.
@gluon.jit
def single_tile_kernel(a_desc, b_desc, c_desc, d_desc, a_in_registers: gl.constexpr):
    """D = A @ B.T + C by one MMA sequence; A comes from shared memory or from registers."""
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    bits: gl.constexpr = a_desc.dtype.primitive_bitwidth
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    c_smem = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    load_ready = mbarrier.allocate_mbarrier()
    mbarrier.init(load_ready, count=1)
    mbarrier.expect(load_ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta + c_desc.nbytes_per_cta)
    tma.async_load(a_desc, [0, 0], load_ready, a_smem)
    tma.async_load(b_desc, [0, 0], load_ready, b_smem)
    tma.async_load(c_desc, [0, 0], load_ready, c_smem)
    mbarrier.wait(load_ready, 0)
    mbarrier.invalidate(load_ready)

    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, tile_n, 256 // bits]
    )
    accumulator = c_smem.load(layout)
    b_tile = b_smem.permute((1, 0))
    if a_in_registers:
        # A register of 32 bits holds neighbours along K.
        a_layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=layout, k_width=32 // bits)
        accumulator = warpgroup_mma(a_smem.load(a_layout), b_tile, accumulator, is_async=True)
    else:
        accumulator = warpgroup_mma(a_smem, b_tile, accumulator, is_async=True)
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    c_smem.store(accumulator)  # C is in registers since before the MMA: its tile is free for D
    fence_async_shared()  # the threads' stores, before TMA reads them
    tma.async_store(d_desc, [0, 0], c_smem)
    tma.store_wait(0)


# One tile per program, loads and MMAs in flight together.
@gluon.jit
def load_stage(a_desc, b_desc, row, column, k, a_smem, b_smem, load_ready, load):
    """Start the loads number `load` into their stage of the ring."""
    stage = load % STAGES
    ready = load_ready.index(stage)
    mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
    tma.async_load(a_desc, [row, k], ready, a_smem.index(stage))
    tma.async_load(b_desc, [column, k], ready, b_smem.index(stage))


@gluon.jit
def multiply_stage(a_smem, b_smem, load_ready, load, accumulator):
    """Start the MMA of the loads number `load`, once they are in."""
    stage = load % STAGES
    mbarrier.wait(load_ready.index(stage), load // STAGES & 1)
    b_tile = b_smem.index(stage).permute((1, 0))
    return warpgroup_mma(a_smem.index(stage), b_tile, accumulator, is_async=True)


@gluon.jit
def pipelined_kernel(a_desc, b_desc, d_desc, outstanding: gl.constexpr):
    """A tile of D per program; `outstanding` MMAs go on while the next stage is awaited."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    # An MMA in flight keeps its stage: so many fewer loads run ahead.
    ahead: gl.constexpr = STAGES - outstanding
    row = gl.program_id(0) * tile_m
    column = gl.program_id(1) * tile_n
    steps = gl.cdiv(a_desc.shape[1], tile_k)
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, tile_m, tile_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, tile_n, tile_k], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, [tile_m, tile_n], d_desc.layout)
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_ready.index(i), count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[gl.num_warps(), 1],
        instr_shape=[16, tile_n, 256 // a_desc.dtype.primitive_bitwidth],
    )
    accumulator = gl.zeros((tile_m, tile_n), gl.float32, layout)

    for i in gl.static_range(ahead):
        if i < steps:
            load_stage(a_desc, b_desc, row, column, i * tile_k, a_smem, b_smem, load_ready, i)
    for step in range(steps):
        accumulator = multiply_stage(a_smem, b_smem, load_ready, step, accumulator)
        accumulator = warpgroup_mma_wait(outstanding, deps=[accumulator])
        # The MMA of step - outstanding has retired: its stage takes the next loads.
        load = step + ahead
        if load < steps:
            load_stage(a_desc, b_desc, row, column, load * tile_k, a_smem, b_smem, load_ready, load)
    accumulator = warpgroup_mma_wait(0, deps=[accumulator])
    d_smem.store(accumulator.to(d_desc.dtype))
    fence_async_shared()  # the threads' stores, before TMA reads them
    tma.async_store(d_desc, [row, column], d_smem)
    tma.store_wait(0)


# Several tiles per program.
@gluon.jit
def tile_origin(tile, tiles_m, tiles_n, tile_m: gl.constexpr, tile_n: gl.constexpr, group_m: gl.constexpr):
    """First row and column of a tile: down `group_m` rows of tiles, then right; 1 is row by row."""
    first = tile // (group_m * tiles_n) * group_m
    rows = gl.minimum(tiles_m - first, group_m)
    in_group = tile % (group_m * tiles_n)
    return (first + in_group % rows) * tile_m, in_group // rows * tile_n


@gluon.jit
def load_of_program(a_desc, b_desc, a_smem, b_smem, load_ready, load, steps, group_m: gl.constexpr):
    """Start a program's loads number `load`, counted over all of its tiles."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    tile = gl.program_id(0) + load // steps * gl.num_programs(0)
    tiles_m = gl.cdiv(a_desc.shape[0], tile_m)
    tiles_n = gl.cdiv(b_desc.shape[0], tile_n)
    row, column = tile_origin(tile, tiles_m, tiles_n, tile_m, tile_n, group_m)
    k = load % steps * tile_k
    load_stage(a_desc, b_desc, row, column, k, a_smem, b_smem, load_ready, load)


@gluon.jit
def persistent_kernel(a_desc, b_desc, d_desc, group_m: gl.constexpr):
    """Each program takes every so-manieth tile; loads of the next and the store of the last overlap it."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    ahead: gl.constexpr = STAGES - 1  # one MMA stays in flight
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, tile_m, tile_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, tile_n, tile_k], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, [tile_m, tile_n], d_desc.layout)
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_ready.index(i), count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, tile_n, 256 // a_desc.dtype.primitive_bitwidth]
    )
    tiles_m = gl.cdiv(d_desc.shape[0], tile_m)
    tiles_n = gl.cdiv(d_desc.shape[1], tile_n)
    tiles = tiles_m * tiles_n
    steps = gl.cdiv(a_desc.shape[1], tile_k)
    loads = gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0)) * steps

    for i in gl.static_range(ahead):
        if i < loads:
            load_of_program(a_desc, b_desc, a_smem, b_smem, load_ready, i, steps, group_m)
    done = 0  # loads that were multiplied, counted over all tiles as the ring is
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        accumulator = gl.zeros((tile_m, tile_n), gl.float32, layout)
        for _ in range(steps):
            accumulator = multiply_stage(a_smem, b_smem, load_ready, done, accumulator)
            # All but this MMA have retired: the stage before this one takes the next loads, which at the
            # end of a tile are those of the next.
            accumulator = warpgroup_mma_wait(1, deps=[accumulator])
            load = done + ahead
            if load < loads:
                load_of_program(a_desc, b_desc, a_smem, b_smem, load_ready, load, steps, group_m)
            done += 1
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        tma.store_wait(0)  # the last tile's store, which had this tile's K loop to read the buffer
        d_smem.store(accumulator.to(d_desc.dtype))
        fence_async_shared()  # the threads' stores, before TMA reads them
        row, column = tile_origin(tile, tiles_m, tiles_n, tile_m, tile_n, group_m)
        tma.async_store(d_desc, [row, column], d_smem)
    tma.store_wait(0)


# Warp-specialized: one partition loads, one multiplies, one stores.
@gluon.jit
def load_partition(
    a_desc, b_desc, a_smem, b_smem, load_empty, load_ready, tiles_m, tiles_n, steps, group_m: gl.constexpr
):
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    load = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, column = tile_origin(tile, tiles_m, tiles_n, tile_m, tile_n, group_m)
        for step in range(steps):
            mbarrier.wait(load_empty.index(load % STAGES), load // STAGES & 1 ^ 1)
            load_stage(a_desc, b_desc, row, column, step * tile_k, a_smem, b_smem, load_ready, load)
            load += 1


@gluon.jit
def mma_partition(
    a_smem, b_smem, d_smem, load_empty, load_ready, d_empty, d_ready, layout: gl.constexpr, tiles, steps
):
    tile_m: gl.constexpr = a_smem.shape[1]
    tile_n: gl.constexpr = b_smem.shape[1]
    load = 0
    turn = 0
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        accumulator = gl.zeros((tile_m, tile_n), gl.float32, layout)
        for _ in range(steps):
            accumulator = multiply_stage(a_smem, b_smem, load_ready, load, accumulator)
            accumulator = warpgroup_mma_wait(0, deps=[accumulator])
            mbarrier.arrive(load_empty.index(load % STAGES))
            load += 1
        slot = turn % D_BUFFERS
        mbarrier.wait(d_empty.index(slot), turn // D_BUFFERS & 1 ^ 1)
        d_smem.index(slot).store(accumulator.to(d_smem.dtype))
        # The other partition's TMA reads these stores, and a barrier alone does not order them for it.
        fence_async_shared()
        mbarrier.arrive(d_ready.index(slot))
        turn += 1


@gluon.jit
def store_partition(d_desc, d_smem, d_empty, d_ready, tiles_m, tiles_n, group_m: gl.constexpr):
    tile_m: gl.constexpr = d_desc.block_type.shape[0]
    tile_n: gl.constexpr = d_desc.block_type.shape[1]
    turn = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, column = tile_origin(tile, tiles_m, tiles_n, tile_m, tile_n, group_m)
        slot = turn % D_BUFFERS
        mbarrier.wait(d_ready.index(slot), turn // D_BUFFERS & 1)
        tma.async_store(d_desc, [row, column], d_smem.index(slot))
        tma.store_wait(0)  # the store has read its buffer
        mbarrier.arrive(d_empty.index(slot))
        turn += 1


@gluon.jit
def specialized_kernel(a_desc, b_desc, d_desc, group_m: gl.constexpr):
    """Each program takes every so-manieth tile; its partitions hand on stages and tiles of D by barriers."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, tile_m, tile_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, tile_n, tile_k], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, [D_BUFFERS, tile_m, tile_n], d_desc.layout)
    load_empty = mbarrier.allocate_mbarrier(batch=STAGES)
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_empty.index(i), count=1)
        mbarrier.init(load_ready.index(i), count=1)
    d_empty = mbarrier.allocate_mbarrier(batch=D_BUFFERS)
    d_ready = mbarrier.allocate_mbarrier(batch=D_BUFFERS)
    for i in gl.static_range(D_BUFFERS):
        mbarrier.init(d_empty.index(i), count=1)
        mbarrier.init(d_ready.index(i), count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, tile_n, 256 // a_desc.dtype.primitive_bitwidth]
    )
    tiles_m = gl.cdiv(d_desc.shape[0], tile_m)
    tiles_n = gl.cdiv(d_desc.shape[1], tile_n)
    steps = gl.cdiv(a_desc.shape[1], tile_k)
    gl.warp_specialize(
        [
            (
                mma_partition,
                (
                    a_smem,
                    b_smem,
                    d_smem,
                    load_empty,
                    load_ready,
                    d_empty,
                    d_ready,
                    layout,
                    tiles_m * tiles_n,
                    steps,
                ),
            ),
            (
                load_partition,
                (a_desc, b_desc, a_smem, b_smem, load_empty, load_ready, tiles_m, tiles_n, steps, group_m),
            ),
            (store_partition, (d_desc, d_smem, d_empty, d_ready, tiles_m, tiles_n, group_m)),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[40, 40],
    )
