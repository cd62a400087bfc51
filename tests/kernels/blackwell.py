"""Blackwell matmuls written for the simulator's tests; none of them comes from a template."""

from __future__ import annotations

# ruff: noqa: RUF005, SIM113 - Gluon has neither.
# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    clc,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
    tcgen05_mma_scaled,
    tma,
)

STAGES = gl.constexpr(3)
ACCUMULATORS = gl.constexpr(2)
CLC_STAGES = gl.constexpr(2)
CLC_READERS = gl.constexpr(4)


# Dense: one CTA, or two that share B by multicast and multiply for themselves.
@gluon.jit
def dense_load_partition(a_desc, b_desc, a_smem, b_smem, load_empty, load_ready, tiles_n, tiles):
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    load = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row = tile // tiles_n * tile_m
        column = tile % tiles_n * tile_n
        for k in range(0, a_desc.shape[1], tile_k):
            stage = load % STAGES
            mbarrier.wait(load_empty.index(stage), load // STAGES & 1 ^ 1)
            ready = load_ready.index(stage)
            mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
            tma.async_load(a_desc, [row, k], ready, a_smem.index(stage))
            tma.async_load(b_desc, [column, k], ready, b_smem.index(stage), multicast=True)
            load += 1


@gluon.jit
def dense_mma_partition(
    a_smem, b_smem, accumulators, load_empty, load_ready, acc_empty, acc_ready, steps, tiles
):
    load = 0
    turn = 0
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        slot = turn % ACCUMULATORS
        mbarrier.wait(acc_empty.index(slot), turn // ACCUMULATORS & 1 ^ 1)
        accumulator = accumulators.index(slot)
        use_acc = False
        for _ in range(steps):
            stage = load % STAGES
            mbarrier.wait(load_ready.index(stage), load // STAGES & 1)
            b_tile = b_smem.index(stage).permute((1, 0))
            tcgen05_mma(a_smem.index(stage), b_tile, accumulator, use_acc=use_acc)
            tcgen05_commit(load_empty.index(stage), descs=[a_smem.index(stage), b_smem.index(stage)])
            use_acc = True
            load += 1
        tcgen05_commit(acc_ready.index(slot))
        turn += 1


@gluon.jit
def dense_epilogue_partition(
    a_desc, b_desc, d_desc, d_smem, accumulators, acc_empty, acc_ready, tiles_n, tiles
):
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    subtile_n: gl.constexpr = d_desc.block_type.shape[1]
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row = tile // tiles_n * tile_m
        column = tile % tiles_n * tile_n
        slot = turn % ACCUMULATORS
        mbarrier.wait(acc_ready.index(slot), turn // ACCUMULATORS & 1)
        accumulator = accumulators.index(slot)
        for i in gl.static_range(tile_n // subtile_n):
            subtile = accumulator.slice(i * subtile_n, subtile_n).load()
            tma.store_wait(0)
            d_smem.store(subtile.to(d_desc.dtype))
            fence_async_shared()
            tma.async_store(d_desc, [row, column + i * subtile_n], d_smem)
        mbarrier.arrive(acc_empty.index(slot))
        turn += 1
    tma.store_wait(0)


@gluon.jit
def dense_kernel(a_desc, b_desc, d_desc, bases: gl.constexpr):
    """D[M, N] = A[M, K] @ B[N, K].T, each program several tiles; two accumulators take turns."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    subtile_n: gl.constexpr = d_desc.block_type.shape[1]
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, tile_m, tile_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, tile_n, tile_k], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, [tile_m, subtile_n], d_desc.layout)
    layout: gl.constexpr = TensorMemoryLayout(
        [tile_m // gl.num_ctas(), tile_n], col_stride=1, cga_layout=bases
    )
    accumulators = allocate_tensor_memory(gl.float32, [ACCUMULATORS, tile_m, tile_n], layout)
    # Every CTA that a multicast fills must have read its stage.
    mma_commits: gl.constexpr = tcgen05_mma_barrier_count(
        [a_smem.index(0), b_smem.index(0)], multicast=True, two_ctas=False
    )
    load_empty = mbarrier.allocate_mbarrier(batch=STAGES)
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_empty.index(i), count=mma_commits)
        mbarrier.init(load_ready.index(i), count=1)
    acc_empty = mbarrier.allocate_mbarrier(batch=ACCUMULATORS)
    acc_ready = mbarrier.allocate_mbarrier(batch=ACCUMULATORS)
    for i in gl.static_range(ACCUMULATORS):
        mbarrier.init(acc_empty.index(i), count=1)
        mbarrier.init(acc_ready.index(i), count=1)
    tiles_n = gl.cdiv(d_desc.shape[1], tile_n)
    tiles = gl.cdiv(d_desc.shape[0], tile_m) * tiles_n
    steps = gl.cdiv(a_desc.shape[1], tile_k)
    gl.warp_specialize(
        [
            (
                dense_epilogue_partition,
                (a_desc, b_desc, d_desc, d_smem, accumulators, acc_empty, acc_ready, tiles_n, tiles),
            ),
            (
                dense_mma_partition,
                (a_smem, b_smem, accumulators, load_empty, load_ready, acc_empty, acc_ready, steps, tiles),
            ),
            (
                dense_load_partition,
                (a_desc, b_desc, a_smem, b_smem, load_empty, load_ready, tiles_n, tiles),
            ),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[32, 32],
    )


# Two CTAs, block-scaled, tiles by cluster launch control.
@gluon.jit
def next_tile(clc_results, clc_ready, clc_empty, turn):
    """The next tile, and whether there is one."""
    slot = turn % CLC_STAGES
    mbarrier.wait(clc_ready.index(slot), turn // CLC_STAGES & 1)
    answer = clc.load_result(clc_results.index(slot))
    mbarrier.arrive(clc_empty.index(slot))
    return answer.program_id(0), answer.is_canceled()


@gluon.jit
def scaled_clc_partition(clc_results, clc_ready, clc_empty):
    turn = 0
    working = True
    while working:
        slot = turn % CLC_STAGES
        mbarrier.wait(clc_empty.index(slot), turn // CLC_STAGES & 1 ^ 1)
        mbarrier.expect(clc_ready.index(slot), 16, from_cta=0)
        clc.try_cancel(clc_results.index(slot), clc_ready.index(slot))
        _, working = next_tile(clc_results, clc_ready, clc_empty, turn)
        turn += 1


@gluon.jit
def scaled_load_partition(
    a_desc,
    b_desc,
    a_scale_desc,
    b_scale_desc,
    a_smem,
    b_smem,
    a_scale_smem,
    b_scale_smem,
    load_empty,
    load_ready,
    clc_results,
    clc_ready,
    clc_empty,
    tiles_n,
    steps,
):
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    a_step: gl.constexpr = a_desc.block_type.shape[1]
    b_step: gl.constexpr = b_desc.block_type.shape[1]
    scale_m: gl.constexpr = a_scale_desc.block_type.shape[1]
    scale_n: gl.constexpr = b_scale_desc.block_type.shape[1]
    scale_k: gl.constexpr = a_scale_desc.block_type.shape[2]
    nbytes: gl.constexpr = (
        a_desc.nbytes_per_cta
        + b_desc.nbytes_per_cta
        + a_scale_desc.nbytes_per_cta
        + b_scale_desc.nbytes_per_cta
    )
    load = 0
    turn = 0
    tile = gl.program_id(0)
    working = True
    while working:
        m = tile // tiles_n
        n = tile % tiles_n
        for k in range(steps):
            stage = load % STAGES
            mbarrier.wait(load_empty.index(stage), load // STAGES & 1 ^ 1)
            ready = load_ready.index(stage)
            mbarrier.expect(ready, nbytes)
            tma.async_load(a_desc, [m * tile_m, k * a_step], ready, a_smem.index(stage))
            tma.async_load(b_desc, [n * tile_n, k * b_step], ready, b_smem.index(stage))
            a_scales = a_scale_smem.index(stage)
            b_scales = b_scale_smem.index(stage)
            tma.async_load(a_scale_desc, [0, m * scale_m, k * scale_k, 0, 0], ready, a_scales)
            tma.async_load(b_scale_desc, [0, n * scale_n, k * scale_k, 0, 0], ready, b_scales, multicast=True)
            load += 1
        tile, working = next_tile(clc_results, clc_ready, clc_empty, turn)
        turn += 1


@gluon.jit
def as_matrix(scales):
    """Scales as TMA brings them, [1, rows / 128, columns / 4, 2, 256], as [rows, columns]."""
    rows: gl.constexpr = scales.shape[1]
    columns: gl.constexpr = scales.shape[2]
    blocks = scales.reshape((rows, columns, 32, 4, 4)).permute((0, 3, 2, 1, 4))
    return blocks.reshape((rows * 128, columns * 4))


@gluon.jit
def scaled_mma_partition(
    a_smem,
    b_smem,
    a_scale_smem,
    b_scale_smem,
    a_scale_tmem,
    b_scale_tmem,
    accumulators,
    load_empty,
    load_ready,
    acc_empty,
    acc_ready,
    clc_results,
    clc_ready,
    clc_empty,
    steps,
    a_format: gl.constexpr,
    b_format: gl.constexpr,
):
    load = 0
    turn = 0
    working = True
    while working:
        slot = turn % ACCUMULATORS
        mbarrier.wait(acc_empty.index(slot), turn // ACCUMULATORS & 1 ^ 1)
        accumulator = accumulators.index(slot)
        use_acc = False
        for _ in range(steps):
            stage = load % STAGES
            mbarrier.wait(load_ready.index(stage), load // STAGES & 1)
            tcgen05_copy(as_matrix(a_scale_smem.index(stage)), a_scale_tmem)
            tcgen05_copy(as_matrix(b_scale_smem.index(stage)), b_scale_tmem)
            b_tile = b_smem.index(stage).permute((1, 0))
            tcgen05_mma_scaled(
                a_smem.index(stage),
                b_tile,
                accumulator,
                a_scale_tmem,
                b_scale_tmem,
                a_format,
                b_format,
                use_acc=use_acc,
                multicast=True,
                mbarriers=[load_empty.index(stage)],
            )
            use_acc = True
            load += 1
        tcgen05_commit(acc_ready.index(slot))
        _, working = next_tile(clc_results, clc_ready, clc_empty, turn)
        turn += 1


@gluon.jit
def scaled_epilogue_partition(
    a_desc,
    b_desc,
    d_desc,
    d_smem,
    accumulators,
    acc_empty,
    acc_ready,
    clc_results,
    clc_ready,
    clc_empty,
    tiles_n,
):
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    subtile_n: gl.constexpr = d_desc.block_type.shape[1]
    turn = 0
    tile = gl.program_id(0)
    working = True
    while working:
        row = tile // tiles_n * tile_m
        column = tile % tiles_n * tile_n
        slot = turn % ACCUMULATORS
        mbarrier.wait(acc_ready.index(slot), turn // ACCUMULATORS & 1)
        accumulator = accumulators.index(slot)
        for i in gl.static_range(tile_n // subtile_n):
            subtile = accumulator.slice(i * subtile_n, subtile_n).load()
            tma.store_wait(0)
            d_smem.store(subtile.to(d_desc.dtype))
            fence_async_shared()
            tma.async_store(d_desc, [row, column + i * subtile_n], d_smem)
        mbarrier.arrive(acc_empty.index(slot))
        tile, working = next_tile(clc_results, clc_ready, clc_empty, turn)
        turn += 1
    tma.store_wait(0)


@gluon.jit
def scaled_kernel(
    a_desc, b_desc, a_scale_desc, b_scale_desc, d_desc, steps, a_format: gl.constexpr, b_format: gl.constexpr
):
    """D[M, N] = (A * scales) @ (B * scales).T by pairs of CTAs; one that runs takes over others' tiles."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    a_scale_smem = gl.allocate_shared_memory(
        a_scale_desc.dtype, [STAGES] + a_scale_desc.block_type.shape, a_scale_desc.layout
    )
    b_scale_smem = gl.allocate_shared_memory(
        b_scale_desc.dtype, [STAGES] + b_scale_desc.block_type.shape, b_scale_desc.layout
    )
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    layout: gl.constexpr = TensorMemoryLayout(
        [tile_m // 2, tile_n], col_stride=1, cga_layout=[[1, 0]], two_ctas=True
    )
    accumulators = allocate_tensor_memory(gl.float32, [ACCUMULATORS, tile_m, tile_n], layout)
    scale_columns: gl.constexpr = a_scale_desc.block_type.shape[2] * 4
    a_scale_layout: gl.constexpr = TensorMemoryScalesLayout(cga_layout=[[1, 0]])
    b_scale_layout: gl.constexpr = TensorMemoryScalesLayout(cga_layout=[[0, 0]])
    a_scale_tmem = allocate_tensor_memory(a_scale_desc.dtype, [tile_m, scale_columns], a_scale_layout)
    b_scale_tmem = allocate_tensor_memory(b_scale_desc.dtype, [tile_n, scale_columns], b_scale_layout)

    # Of one CTA: each CTA's producer waits for its own stage.
    load_empty = mbarrier.allocate_mbarrier(batch=STAGES)
    # Of the pair: the even CTA's MMA reads the shared memory of both.
    load_ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    for i in gl.static_range(STAGES):
        mbarrier.init(load_empty.index(i), count=1)
        mbarrier.init(load_ready.index(i), count=1)
    acc_empty = mbarrier.allocate_mbarrier(batch=ACCUMULATORS, two_ctas=True)
    acc_ready = mbarrier.allocate_mbarrier(batch=ACCUMULATORS)
    for i in gl.static_range(ACCUMULATORS):
        mbarrier.init(acc_empty.index(i), count=1)
        mbarrier.init(acc_ready.index(i), count=1)
    shared_layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=[[0]])
    clc_results = gl.allocate_shared_memory(gl.int64, [CLC_STAGES, 2], shared_layout)
    clc_ready = mbarrier.allocate_mbarrier(batch=CLC_STAGES)
    clc_empty = gl.allocate_shared_memory(gl.int64, [CLC_STAGES, 1], shared_layout)
    for i in gl.static_range(CLC_STAGES):
        mbarrier.init(clc_ready.index(i), count=1)
        mbarrier.init(clc_empty.index(i), count=CLC_READERS)
    tiles_n = gl.cdiv(d_desc.shape[1], tile_n)
    gl.warp_specialize(
        [
            (
                scaled_epilogue_partition,
                (
                    a_desc,
                    b_desc,
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
                scaled_mma_partition,
                (
                    a_smem,
                    b_smem,
                    a_scale_smem,
                    b_scale_smem,
                    a_scale_tmem,
                    b_scale_tmem,
                    accumulators,
                    load_empty,
                    load_ready,
                    acc_empty,
                    acc_ready,
                    clc_results,
                    clc_ready,
                    clc_empty,
                    steps,
                    a_format,
                    b_format,
                ),
            ),
            (
                scaled_load_partition,
                (
                    a_desc,
                    b_desc,
                    a_scale_desc,
                    b_scale_desc,
                    a_smem,
                    b_smem,
                    a_scale_smem,
                    b_scale_smem,
                    load_empty,
                    load_ready,
                    clc_results,
                    clc_ready,
                    clc_empty,
                    tiles_n,
                    steps,
                ),
            ),
            (scaled_clc_partition, (clc_results, clc_ready, clc_empty)),
        ],
        worker_num_warps=[1, 1, 1],
        worker_num_regs=[40, 40, 40],
    )


@gluon.jit
def pairs_kernel(a_desc, b_desc, d_desc, block: gl.constexpr, bases: gl.constexpr, acc_dtype: gl.constexpr):
    """D[M, N] = A[M, K] @ B[N, K].T, a tile per cluster: of one CTA, of a pair, or of two pairs."""
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    tile_n: gl.constexpr = b_desc.block_type.shape[0]
    paired: gl.constexpr = gl.num_ctas() > 1
    row = gl.program_id(0) * tile_m
    column = gl.program_id(1) * tile_n
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_type.shape, d_desc.layout)
    col_stride: gl.constexpr = 32 // acc_dtype.primitive_bitwidth
    layout: gl.constexpr = TensorMemoryLayout(block, col_stride=col_stride, cga_layout=bases, two_ctas=paired)
    accumulator = allocate_tensor_memory(acc_dtype, [tile_m, tile_n], layout)
    # Of the pair: the even CTA's MMA reads the shared memory of both.
    ready = mbarrier.allocate_mbarrier(two_ctas=paired)
    mbarrier.init(ready, count=1)
    # Every CTA that a multicast fills must have read its operands.
    commits: gl.constexpr = tcgen05_mma_barrier_count([a_smem, b_smem], multicast=True, two_ctas=paired)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(done, count=commits)
    for step in range(a_desc.shape[1] // tile_k):
        mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [row, step * tile_k], ready, a_smem, multicast=True)
        tma.async_load(b_desc, [column, step * tile_k], ready, b_smem, multicast=True)
        mbarrier.wait(ready, step & 1)
        b_tile = b_smem.permute((1, 0))
        tcgen05_mma(a_smem, b_tile, accumulator, use_acc=step > 0, multicast=True, mbarriers=[done])
        mbarrier.wait(done, step & 1)
    d_smem.store(accumulator.load().to(d_desc.dtype))
    fence_async_shared()
    tma.async_store(d_desc, [row, column], d_smem)
    tma.store_wait(0)


@gluon.jit
def registers_kernel(a_ptr, b_ptr, d_ptr, rows: gl.constexpr, columns: gl.constexpr, depth: gl.constexpr):
    """D = A @ B with A by way of tensor memory; the right half of D is doubled there."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([depth, columns], gl.float16)
    m = gl.arange(0, rows, gl.SliceLayout(1, layout))
    k = gl.arange(0, depth, gl.SliceLayout(0, layout))
    b_row = gl.arange(0, depth, gl.SliceLayout(1, layout))
    n = gl.arange(0, columns, gl.SliceLayout(0, layout))
    a = gl.load(a_ptr + m[:, None] * depth + k[None, :])
    b = gl.load(b_ptr + b_row[:, None] * columns + n[None, :])
    a_tmem_layout: gl.constexpr = TensorMemoryLayout([rows, depth], col_stride=1)
    a_tmem = allocate_tensor_memory(gl.float16, [rows, depth], a_tmem_layout)
    a_tmem.store(gl.convert_layout(a, a_tmem.get_reg_layout()))
    b_smem = gl.allocate_shared_memory(gl.float16, [depth, columns], b_layout)
    b_smem.store(b)
    fence_async_shared()
    accumulator_layout: gl.constexpr = TensorMemoryLayout([rows, columns], col_stride=1)
    accumulator = allocate_tensor_memory(gl.float32, [rows, columns], accumulator_layout)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(done, count=1)
    tcgen05_mma(a_tmem, b_smem, accumulator, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0)
    right = accumulator.slice(columns // 2, columns // 2)
    right.store(right.load() * 2)
    d = gl.convert_layout(accumulator.load(), layout)
    gl.store(d_ptr + m[:, None] * columns + n[None, :], d)
