"""Blackwell matmuls in the forms that Gluon's tutorials teach, written for the simulator's tests.

All compute D = A @ B.T from A [M, K], B [N, K] and, for one tile, C. The persistent, warp-specialized form
with static tiles and the block-scaled one of CTA pairs are `dense_kernel` and `scaled_kernel` of
`kernels.blackwell`.
"""

from __future__ import annotations

# ruff: noqa: RUF005 - Gluon has neither.
# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tcgen05_mma_scaled,
    tma,
)

from kernels.blackwell import (
    CLC_READERS,
    CLC_STAGES,
    as_matrix,
    next_tile,
    scaled_clc_partition,
)

STAGES = gl.constexpr(3)
ACCUMULATORS = gl.constexpr(2)


@gluon.jit
def store_accumulator(d_desc, row, column, accumulator, d_smem):
    """Store a tile of D from tensor memory, by as many columns as `d_smem` holds."""
    tile_n: gl.constexpr = accumulator.shape[1]
    subtile_n: gl.constexpr = d_desc.block_type.shape[1]
    for i in gl.static_range(tile_n // subtile_n):
        if subtile_n == tile_n:
            subtile = accumulator.load()
        else:
            subtile = accumulator.slice(i * subtile_n, subtile_n).load()
        tma.store_wait(0)  # the store before this one has read the buffer
        d_smem.store(subtile.to(d_desc.dtype))
        fence_async_shared()  # the threads' stores, before TMA reads them
        tma.async_store(d_desc, [row, column + i * subtile_n], d_smem)


# One tile.
@gluon.jit
def single_tile_kernel(a_desc, b_desc, c_desc, d_desc, a_in_tensor_memory: gl.constexpr):
    """D = A @ B.T + C by one MMA sequence; A comes from shared memory or from tensor memory."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    c_smem = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    load_ready = mbarrier.allocate_mbarrier()
    mma_done = mbarrier.allocate_mbarrier()
    mbarrier.init(load_ready, count=1)
    mbarrier.init(mma_done, count=1)
    mbarrier.expect(load_ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta + c_desc.nbytes_per_cta)
    tma.async_load(a_desc, [0, 0], load_ready, a_smem)
    tma.async_load(b_desc, [0, 0], load_ready, b_smem)
    tma.async_load(c_desc, [0, 0], load_ready, c_smem)
    mbarrier.wait(load_ready, 0)

    layout: gl.constexpr = TensorMemoryLayout([tile_m, tile_n], col_stride=1)
    accumulator = allocate_tensor_memory(gl.float32, [tile_m, tile_n], layout)
    accumulator.store(c_smem.load(accumulator.get_reg_layout()))
    b_tile = b_smem.permute((1, 0))
    if a_in_tensor_memory:
        # Two numbers of 16 bits share a column.
        a_layout: gl.constexpr = TensorMemoryLayout(a_desc.block_type.shape, col_stride=1)
        a_tmem = allocate_tensor_memory(a_desc.dtype, a_desc.block_type.shape, a_layout)
        a_tmem.store(a_smem.load(a_tmem.get_reg_layout()))
        tcgen05_mma(a_tmem, b_tile, accumulator)
    else:
        tcgen05_mma(a_smem, b_tile, accumulator)
    tcgen05_commit(mma_done)
    mbarrier.wait(mma_done, 0)
    store_accumulator(d_desc, 0, 0, accumulator, c_smem)  # C is in tensor memory: its tile is free
    tma.store_wait(0)


# One tile per program.
@gluon.jit
def blocked_kernel(a_desc, b_desc, d_desc):
    """A tile of D per program: load, wait, multiply, wait."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    row = gl.program_id(0) * tile_m
    column = gl.program_id(1) * tile_n
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    layout: gl.constexpr = TensorMemoryLayout([tile_m, tile_n], col_stride=1)
    accumulator = allocate_tensor_memory(gl.float32, [tile_m, tile_n], layout)
    load_ready = mbarrier.allocate_mbarrier()
    mma_done = mbarrier.allocate_mbarrier()
    mbarrier.init(load_ready, count=1)
    mbarrier.init(mma_done, count=1)
    use_acc = False
    for step in range(gl.cdiv(a_desc.shape[1], tile_k)):
        mbarrier.expect(load_ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [row, step * tile_k], load_ready, a_smem)
        tma.async_load(b_desc, [column, step * tile_k], load_ready, b_smem)
        mbarrier.wait(load_ready, step & 1)
        tcgen05_mma(a_smem, b_smem.permute((1, 0)), accumulator, use_acc=use_acc)
        tcgen05_commit(mma_done)
        mbarrier.wait(mma_done, step & 1)
        use_acc = True
    store_accumulator(d_desc, row, column, accumulator, d_smem)
    tma.store_wait(0)


# One tile per program, loads and MMAs in flight together.
@gluon.jit
def load_stage(a_desc, b_desc, row, column, k, a_smem, b_smem, load_ready, load, wanted):
    """Start the loads number `load` into their stage of the ring, unless there are no more."""
    stage = load % STAGES
    ready = load_ready.index(stage)
    mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta, pred=wanted)
    tma.async_load(a_desc, [row, k], ready, a_smem.index(stage), pred=wanted)
    tma.async_load(b_desc, [column, k], ready, b_smem.index(stage), pred=wanted)


@gluon.jit
def pipelined_kernel(a_desc, b_desc, d_desc):
    """A tile of D per program; one MMA goes on while the next stage is awaited."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    ahead: gl.constexpr = STAGES - 1  # one MMA stays in flight
    row = gl.program_id(0) * tile_m
    column = gl.program_id(1) * tile_n
    steps = gl.cdiv(a_desc.shape[1], tile_k)
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, tile_m, tile_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, tile_n, tile_k], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    layout: gl.constexpr = TensorMemoryLayout([tile_m, tile_n], col_stride=1)
    accumulator = allocate_tensor_memory(gl.float32, [tile_m, tile_n], layout)
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    mma_done = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_ready.index(i), count=1)
        mbarrier.init(mma_done.index(i), count=1)

    for i in gl.static_range(ahead):
        load_stage(a_desc, b_desc, row, column, i * tile_k, a_smem, b_smem, load_ready, i, i < steps)
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(load_ready.index(stage), step // STAGES & 1)
        b_tile = b_smem.index(stage).permute((1, 0))
        done = [mma_done.index(stage)]
        tcgen05_mma(a_smem.index(stage), b_tile, accumulator, use_acc=step > 0, mbarriers=done)
        # The MMA before this one frees its stage for the next loads. Of a fresh stage no MMA is awaited.
        load = step + ahead
        mbarrier.wait(mma_done.index(load % STAGES), load // STAGES & 1 ^ 1)
        k = load * tile_k
        load_stage(a_desc, b_desc, row, column, k, a_smem, b_smem, load_ready, load, load < steps)
    last = steps - 1
    mbarrier.wait(mma_done.index(last % STAGES), last // STAGES & 1)
    store_accumulator(d_desc, row, column, accumulator, d_smem)
    tma.store_wait(0)


# Block-scaled, one tile per program.
@gluon.jit
def load_scales(scale_ptr, row, column, rows, columns, scale_tmem):
    """Read the part of a [rows, columns] matrix of scales that goes to `scale_tmem`, 0 where it ends."""
    layout: gl.constexpr = scale_tmem.get_reg_layout()
    m = row + gl.arange(0, scale_tmem.shape[0], gl.SliceLayout(1, layout))
    k = column + gl.arange(0, scale_tmem.shape[1], gl.SliceLayout(0, layout))
    inside = (m < rows)[:, None] & (k < columns)[None, :]
    return gl.load(scale_ptr + m[:, None] * columns + k[None, :], mask=inside, other=0.0)


@gluon.jit
def scales_by_threads_kernel(
    a_desc,
    b_desc,
    a_scale_ptr,
    b_scale_ptr,
    d_desc,
    scale_columns,
    step_columns: gl.constexpr,
    a_format: gl.constexpr,
    b_format: gl.constexpr,
):
    """A tile of D per program; threads bring each step's scales, `step_columns` per row, to tensor memory."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    a_step: gl.constexpr = a_desc.block_type.shape[1]
    b_step: gl.constexpr = b_desc.block_type.shape[1]
    row = gl.program_id(0) * tile_m
    column = gl.program_id(1) * tile_n
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    layout: gl.constexpr = TensorMemoryLayout([tile_m, tile_n], col_stride=1)
    accumulator = allocate_tensor_memory(gl.float32, [tile_m, tile_n], layout)
    scale_dtype: gl.constexpr = a_scale_ptr.dtype.element_ty
    a_scale_tmem = allocate_tensor_memory(scale_dtype, [tile_m, step_columns], TensorMemoryScalesLayout())
    b_scale_tmem = allocate_tensor_memory(scale_dtype, [tile_n, step_columns], TensorMemoryScalesLayout())
    load_ready = mbarrier.allocate_mbarrier()
    mma_done = mbarrier.allocate_mbarrier()
    mbarrier.init(load_ready, count=1)
    mbarrier.init(mma_done, count=1)
    for step in range(gl.cdiv(a_desc.shape[1], a_step)):
        mbarrier.expect(load_ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [row, step * a_step], load_ready, a_smem)
        tma.async_load(b_desc, [column, step * b_step], load_ready, b_smem)
        k = step * step_columns
        a_scale_tmem.store(load_scales(a_scale_ptr, row, k, d_desc.shape[0], scale_columns, a_scale_tmem))
        b_scale_tmem.store(load_scales(b_scale_ptr, column, k, d_desc.shape[1], scale_columns, b_scale_tmem))
        mbarrier.wait(load_ready, step & 1)
        tcgen05_mma_scaled(
            a_smem,
            b_smem.permute((1, 0)),
            accumulator,
            a_scale_tmem,
            b_scale_tmem,
            a_format,
            b_format,
            use_acc=step > 0,
        )
        tcgen05_commit(mma_done)
        # The MMA has read its tiles and its scales: the next may come over them.
        mbarrier.wait(mma_done, step & 1)
    store_accumulator(d_desc, row, column, accumulator, d_smem)
    tma.store_wait(0)


@gluon.jit
def load_scaled_stage(
    a_desc,
    b_desc,
    a_scale_desc,
    b_scale_desc,
    a_smem,
    b_smem,
    a_scale_smem,
    b_scale_smem,
    load_ready,
    load,
    steps,
):
    """Start the loads number `load` of operands and scales into their stage, unless there are no more."""
    scale_m: gl.constexpr = a_scale_desc.block_type.shape[1]
    scale_n: gl.constexpr = b_scale_desc.block_type.shape[1]
    scale_k: gl.constexpr = a_scale_desc.block_type.shape[2]
    nbytes: gl.constexpr = (
        a_desc.nbytes_per_cta
        + b_desc.nbytes_per_cta
        + a_scale_desc.nbytes_per_cta
        + b_scale_desc.nbytes_per_cta
    )
    m = gl.program_id(0)
    n = gl.program_id(1)
    stage = load % STAGES
    ready = load_ready.index(stage)
    wanted = load < steps
    mbarrier.expect(ready, nbytes, pred=wanted)
    a_origin = [m * a_desc.block_type.shape[0], load * a_desc.block_type.shape[1]]
    b_origin = [n * b_desc.block_type.shape[0], load * b_desc.block_type.shape[1]]
    tma.async_load(a_desc, a_origin, ready, a_smem.index(stage), pred=wanted)
    tma.async_load(b_desc, b_origin, ready, b_smem.index(stage), pred=wanted)
    a_scale_origin = [0, m * scale_m, load * scale_k, 0, 0]
    b_scale_origin = [0, n * scale_n, load * scale_k, 0, 0]
    tma.async_load(a_scale_desc, a_scale_origin, ready, a_scale_smem.index(stage), pred=wanted)
    tma.async_load(b_scale_desc, b_scale_origin, ready, b_scale_smem.index(stage), pred=wanted)


@gluon.jit
def scales_by_copy_kernel(
    a_desc, b_desc, a_scale_desc, b_scale_desc, d_desc, steps, a_format: gl.constexpr, b_format: gl.constexpr
):
    """A tile of D per program, pipelined; the tensor core copies the scales that TMA brought for itself."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    ahead: gl.constexpr = STAGES - 1  # one MMA stays in flight
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    a_scale_smem = gl.allocate_shared_memory(
        a_scale_desc.dtype, [STAGES] + a_scale_desc.block_type.shape, a_scale_desc.layout
    )
    b_scale_smem = gl.allocate_shared_memory(
        b_scale_desc.dtype, [STAGES] + b_scale_desc.block_type.shape, b_scale_desc.layout
    )
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    layout: gl.constexpr = TensorMemoryLayout([tile_m, tile_n], col_stride=1)
    accumulator = allocate_tensor_memory(gl.float32, [tile_m, tile_n], layout)
    step_columns: gl.constexpr = a_scale_desc.block_type.shape[2] * 4
    scale_layout: gl.constexpr = TensorMemoryScalesLayout()
    a_scale_tmem = allocate_tensor_memory(a_scale_desc.dtype, [tile_m, step_columns], scale_layout)
    b_scale_tmem = allocate_tensor_memory(b_scale_desc.dtype, [tile_n, step_columns], scale_layout)
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    mma_done = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_ready.index(i), count=1)
        mbarrier.init(mma_done.index(i), count=1)

    for i in gl.static_range(ahead):
        load_scaled_stage(
            a_desc,
            b_desc,
            a_scale_desc,
            b_scale_desc,
            a_smem,
            b_smem,
            a_scale_smem,
            b_scale_smem,
            load_ready,
            i,
            steps,
        )
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(load_ready.index(stage), step // STAGES & 1)
        # Copies and MMAs run in order: this one does not overtake the MMA that still reads the last scales.
        tcgen05_copy(as_matrix(a_scale_smem.index(stage)), a_scale_tmem)
        tcgen05_copy(as_matrix(b_scale_smem.index(stage)), b_scale_tmem)
        tcgen05_mma_scaled(
            a_smem.index(stage),
            b_smem.index(stage).permute((1, 0)),
            accumulator,
            a_scale_tmem,
            b_scale_tmem,
            a_format,
            b_format,
            use_acc=step > 0,
            mbarriers=[mma_done.index(stage)],
        )
        # The MMA before this one frees its stage for the next loads. Of a fresh stage no MMA is awaited.
        load = step + ahead
        mbarrier.wait(mma_done.index(load % STAGES), load // STAGES & 1 ^ 1)
        load_scaled_stage(
            a_desc,
            b_desc,
            a_scale_desc,
            b_scale_desc,
            a_smem,
            b_smem,
            a_scale_smem,
            b_scale_smem,
            load_ready,
            load,
            steps,
        )
    last = steps - 1
    mbarrier.wait(mma_done.index(last % STAGES), last // STAGES & 1)
    row = gl.program_id(0) * tile_m
    column = gl.program_id(1) * tile_n
    store_accumulator(d_desc, row, column, accumulator, d_smem)
    tma.store_wait(0)


# Persistent and warp-specialized, tiles by cluster launch control: one CTA, a pair, or pairs that share B.
@gluon.jit
def load_partition(
    a_desc, b_desc, a_smem, b_smem, load_empty, load_ready, clc_results, clc_ready, clc_empty, tiles_n
):
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    load = 0
    turn = 0
    tile = gl.program_id(0)
    working = True
    while working:
        row = tile // tiles_n * tile_m
        column = tile % tiles_n * tile_n
        for k in range(0, a_desc.shape[1], tile_k):
            stage = load % STAGES
            mbarrier.wait(load_empty.index(stage), load // STAGES & 1 ^ 1)
            ready = load_ready.index(stage)
            mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
            tma.async_load(a_desc, [row, k], ready, a_smem.index(stage), multicast=True)
            tma.async_load(b_desc, [column, k], ready, b_smem.index(stage), multicast=True)
            load += 1
        tile, working = next_tile(clc_results, clc_ready, clc_empty, turn)
        turn += 1


@gluon.jit
def mma_partition(
    a_smem,
    b_smem,
    accumulators,
    load_empty,
    load_ready,
    acc_empty,
    acc_ready,
    clc_results,
    clc_ready,
    clc_empty,
    steps,
):
    load = 0
    turn = 0
    working = True
    while working:
        slot = turn % ACCUMULATORS
        mbarrier.wait(acc_empty.index(slot), turn // ACCUMULATORS & 1 ^ 1)
        accumulator = accumulators.index(slot)
        for step in range(steps):
            stage = load % STAGES
            mbarrier.wait(load_ready.index(stage), load // STAGES & 1)
            tcgen05_mma(
                a_smem.index(stage),
                b_smem.index(stage).permute((1, 0)),
                accumulator,
                use_acc=step > 0,
                multicast=True,  # frees the stage in every CTA whose loads it shares
                mbarriers=[load_empty.index(stage)],
            )
            load += 1
        tcgen05_commit(acc_ready.index(slot))
        _, working = next_tile(clc_results, clc_ready, clc_empty, turn)
        turn += 1


@gluon.jit
def epilogue_partition(
    d_desc, d_smem, accumulators, acc_empty, acc_ready, clc_results, clc_ready, clc_empty, tiles_n
):
    tile_m: gl.constexpr = accumulators.shape[1]
    tile_n: gl.constexpr = accumulators.shape[2]
    turn = 0
    tile = gl.program_id(0)
    working = True
    while working:
        slot = turn % ACCUMULATORS
        mbarrier.wait(acc_ready.index(slot), turn // ACCUMULATORS & 1)
        row = tile // tiles_n * tile_m
        column = tile % tiles_n * tile_n
        store_accumulator(d_desc, row, column, accumulators.index(slot), d_smem)
        mbarrier.arrive(acc_empty.index(slot))
        tile, working = next_tile(clc_results, clc_ready, clc_empty, turn)
        turn += 1
    tma.store_wait(0)


@gluon.jit
def launch_control_kernel(a_desc, b_desc, d_desc, layout: gl.constexpr):
    """Each program begins with its own tile and then takes over those of programs that did not start."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    pairs: gl.constexpr = gl.num_ctas() > 1
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, tile_m, tile_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, tile_n, tile_k], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    accumulators = allocate_tensor_memory(gl.float32, [ACCUMULATORS, tile_m, tile_n], layout)

    # Of one CTA: its producer waits until all pairs that its loads fill have read the stage.
    load_empty = mbarrier.allocate_mbarrier(batch=STAGES)
    mma_commits: gl.constexpr = tcgen05_mma_barrier_count(
        [a_smem.index(0), b_smem.index(0)], multicast=True, two_ctas=pairs
    )
    # Of a pair: the even CTA's MMA reads the shared memory of both.
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=pairs)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_empty.index(i), count=mma_commits)
        mbarrier.init(load_ready.index(i), count=1)
    # Of a pair too: the MMA overwrites what both epilogues have read. Each awaits its own CTA's `ready`.
    acc_empty = mbarrier.allocate_mbarrier(batch=ACCUMULATORS, two_ctas=pairs)
    acc_ready = mbarrier.allocate_mbarrier(batch=ACCUMULATORS)
    for i in gl.static_range(ACCUMULATORS):
        mbarrier.init(acc_empty.index(i), count=1)
        mbarrier.init(acc_ready.index(i), count=1)
    # Each CTA gets the answer; the first asks when the readers of all CTAs have read the one before.
    cluster_bases: gl.constexpr = [[0]] * len(a_desc.layout.cga_layout)
    shared_layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=cluster_bases)
    clc_results = gl.allocate_shared_memory(gl.int64, [CLC_STAGES, 2], shared_layout)
    clc_ready = mbarrier.allocate_mbarrier(batch=CLC_STAGES)
    clc_empty = gl.allocate_shared_memory(gl.int64, [CLC_STAGES, 1], shared_layout)
    for i in gl.static_range(CLC_STAGES):
        mbarrier.init(clc_ready.index(i), count=1)
        mbarrier.init(clc_empty.index(i), count=CLC_READERS)
    tiles_n = gl.cdiv(d_desc.shape[1], tile_n)
    steps = gl.cdiv(a_desc.shape[1], tile_k)
    gl.warp_specialize(
        [
            (
                epilogue_partition,
                (
                    d_desc,
                    d_smem,
                    accumulators,
                    acc_empty,
                    acc_ready,
                    clc_results,
                    clc_ready,
                    clc_empty,
                    tiles_n,
                ),
            ),
            (
                mma_partition,
                (
                    a_smem,
                    b_smem,
                    accumulators,
                    load_empty,
                    load_ready,
                    acc_empty,
                    acc_ready,
                    clc_results,
                    clc_ready,
                    clc_empty,
                    steps,
                ),
            ),
            (
                load_partition,
                (
                    a_desc,
                    b_desc,
                    a_smem,
                    b_smem,
                    load_empty,
                    load_ready,
                    clc_results,
                    clc_ready,
                    clc_empty,
                    tiles_n,
                ),
            ),
            (scaled_clc_partition, (clc_results, clc_ready, clc_empty)),
        ],
        worker_num_warps=[1, 1, 1],
        worker_num_regs=[40, 40, 40],
    )
