"""Kernels whose programs wait for each other: split K, stream-K, a lock and a grid barrier."""

from __future__ import annotations

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


@gluon.jit
def product(a_desc, b_desc, row, column, first, steps, a_smem, b_smem, ready, done, layout: gl.constexpr):
    """A tile of A B over some steps of K, after `done` steps that have used `ready`."""
    block_m: gl.constexpr = a_desc.block_type.shape[0]
    block_k: gl.constexpr = a_desc.block_type.shape[1]
    block_n: gl.constexpr = b_desc.block_type.shape[1]
    total = gl.zeros((block_m, block_n), gl.float32, layout)
    for step in range(first, first + steps):
        mbarrier.expect(ready, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_load(a_desc, [row, step * block_k], ready, a_smem)
        tma.async_load(b_desc, [step * block_k, column], ready, b_smem)
        mbarrier.wait(ready, (done + step - first) & 1)
        total = warpgroup_mma(a_smem, b_smem, total, is_async=True)
        total = warpgroup_mma_wait(0, deps=[total])
    return total


@gluon.jit
def split_k_kernel(a_desc, b_desc, d_ptr, partial_ptr, counter_ptr, n, steps):
    """Programs of axis 1 compute parts of a tile; the last to arrive adds them up in their order."""
    block_m: gl.constexpr = a_desc.block_type.shape[0]
    block_n: gl.constexpr = b_desc.block_type.shape[1]
    tile, part, parts = gl.program_id(0), gl.program_id(1), gl.num_programs(1)
    row = tile // (n // block_n) * block_m
    column = tile % (n // block_n) * block_n
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, block_n, 16]
    )
    rows = gl.arange(0, block_m, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, block_n, gl.SliceLayout(0, layout))[None, :]
    parts_ptr = partial_ptr + tile * parts * block_m * block_n + rows * block_n + columns
    total = product(a_desc, b_desc, row, column, part * steps, steps, a_smem, b_smem, ready, 0, layout)
    mbarrier.invalidate(ready)
    gl.store(parts_ptr + part * block_m * block_n, total)
    arrived = gl.atomic_add(counter_ptr + tile, 1, sem="acq_rel", scope="gpu")
    if arrived == parts - 1:
        total = gl.zeros((block_m, block_n), gl.float32, layout)
        for other in range(parts):
            total += gl.load(parts_ptr + other * block_m * block_n)
        gl.store(d_ptr + (row + rows) * n + column + columns, total.to(gl.float16))
        gl.atomic_store(counter_ptr + tile, 0, sem="relaxed")


@gluon.jit
def stream_k_kernel(a_desc, b_desc, d_ptr, partial_ptr, flag_ptr, n, steps_per_tile, steps_per_program):
    """Programs take equal shares of all steps; who begins a tile adds what later programs compute of it."""
    block_m: gl.constexpr = a_desc.block_type.shape[0]
    block_n: gl.constexpr = b_desc.block_type.shape[1]
    a_smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, block_n, 16]
    )
    rows = gl.arange(0, block_m, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, block_n, gl.SliceLayout(0, layout))[None, :]
    offsets = rows * block_n + columns
    program = gl.program_id(0)
    step = program * steps_per_program
    end = step + steps_per_program
    while step < end:
        tile = step // steps_per_tile
        tile_end = (tile + 1) * steps_per_tile
        steps = min(end, tile_end) - step
        row = tile // (n // block_n) * block_m
        column = tile % (n // block_n) * block_n
        first = step - tile * steps_per_tile
        done = step - program * steps_per_program
        total = product(a_desc, b_desc, row, column, first, steps, a_smem, b_smem, ready, done, layout)
        if first > 0:
            gl.store(partial_ptr + program * block_m * block_n + offsets, total)
            gl.atomic_store(flag_ptr + program, 1, sem="release")
        else:
            other = program + 1
            for _ in range(end, tile_end, steps_per_program):
                gl.atomic_poll(flag_ptr + other, 1, sem="acquire")
                total += gl.load(partial_ptr + other * block_m * block_n + offsets)
                gl.atomic_store(flag_ptr + other, 0, sem="relaxed")
                other += 1
            gl.store(d_ptr + (row + rows) * n + column + columns, total.to(gl.float16))
        step += steps
    mbarrier.invalidate(ready)


@gluon.jit
def grid_barrier(arrivals_ptr, generation_ptr):
    """Wait for all programs; both words are ready for the next barrier then."""
    generation = gl.atomic_load(generation_ptr, sem="relaxed")
    arrived = gl.atomic_add(arrivals_ptr, 1, sem="acq_rel", scope="gpu")
    if arrived == gl.num_programs(0) - 1:
        gl.atomic_store(arrivals_ptr, 0, sem="relaxed")
        gl.atomic_add(generation_ptr, 1, sem="release")
    else:
        while gl.atomic_load(generation_ptr, sem="acquire") == generation:
            pass


@gluon.jit
def relaxation_kernel(x_ptr, y_ptr, arrivals_ptr, generation_ptr, rounds):
    """x = the sum of both neighbours, for blocks of 128 in a ring, again and again."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, 128, layout)
    program, programs = gl.program_id(0), gl.num_programs(0)
    left, right = (program + programs - 1) % programs, (program + 1) % programs
    for _ in range(rounds):
        total = gl.load(x_ptr + left * 128 + offsets) + gl.load(x_ptr + right * 128 + offsets)
        gl.store(y_ptr + program * 128 + offsets, total)
        grid_barrier(arrivals_ptr, generation_ptr)
        gl.store(x_ptr + program * 128 + offsets, gl.load(y_ptr + program * 128 + offsets))
        grid_barrier(arrivals_ptr, generation_ptr)


@gluon.jit
def locked_sum_kernel(x_ptr, total_ptr, lock_ptr):
    """total += x, a program's block at a time: who holds the lock adds."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, 128, layout)
    x = gl.load(x_ptr + gl.program_id(0) * 128 + offsets)
    while gl.atomic_cas(lock_ptr, 0, 1, sem="acquire") == 1:
        pass
    gl.store(total_ptr + offsets, gl.load(total_ptr + offsets) + x)
    gl.atomic_xchg(lock_ptr, 0, sem="release")


@gluon.jit
def announce_kernel(x_ptr, flag_ptr):
    """The threads of all warps store, and one of them announces it."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, 128, layout)
    gl.store(x_ptr + offsets, offsets)
    gl.atomic_add(flag_ptr, 1, sem="release")  # one thread
    gl.store(x_ptr + 128 + offsets, offsets)


@gluon.jit
def arriver(counter_ptr, stored):
    mbarrier.wait(stored, 0)
    gl.atomic_add(counter_ptr, 1, sem="release")


@gluon.jit
def writer(x_ptr, partial_ptr, stored):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * 128 + gl.arange(0, 128, layout)
    gl.store(partial_ptr + offsets, gl.load(x_ptr + offsets))
    mbarrier.arrive(stored)


@gluon.jit
def partitions_kernel(x_ptr, partial_ptr, total_ptr, counter_ptr):
    """One partition stores, another announces it; program 0 adds up all that was announced."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, 128, layout)
    stored = mbarrier.allocate_mbarrier()
    mbarrier.init(stored, count=1)
    gl.warp_specialize(
        [(writer, (x_ptr, partial_ptr, stored)), (arriver, (counter_ptr, stored))],
        worker_num_warps=[1],
        worker_num_regs=[24],
    )
    if gl.program_id(0) == 0:
        gl.atomic_poll(counter_ptr, gl.num_programs(0))
        total = gl.zeros((128,), gl.int32, layout)
        for program in range(gl.num_programs(0)):
            total += gl.load(partial_ptr + program * 128 + offsets)
        gl.store(total_ptr + offsets, total)


@gluon.jit
def message_kernel(x_ptr, message_desc, message_ptr, out_ptr, flag_ptr, read_by_tma: gl.constexpr):
    """Program 0 sends a tile through TMA, program 1 takes it."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :]
    offsets = rows * 64 + columns
    buffer = gl.allocate_shared_memory(message_desc.dtype, [64, 64], message_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    if gl.program_id(0) == 0:
        buffer.store(gl.load(x_ptr + offsets))
        fence_async_shared()
        tma.async_store(message_desc, [0, 0], buffer)
        tma.store_wait(0, read_only=False)
        gl.atomic_store(flag_ptr, 1, sem="release")
    else:
        gl.atomic_poll(flag_ptr, 1)
        if read_by_tma:
            mbarrier.expect(ready, message_desc.block_type.nbytes)
            tma.async_load(message_desc, [0, 0], ready, buffer)
            mbarrier.wait(ready, 0)
            gl.store(out_ptr + offsets, buffer.load(layout))
        else:
            gl.store(out_ptr + offsets, gl.load(message_ptr + offsets))
    mbarrier.invalidate(ready)


@gluon.jit
def cluster_counter_kernel(x_ptr, out_ptr, counter_ptr):
    """Clusters of two CTAs: the last to arrive copies what all have written."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[1]])
    offsets = gl.arange(0, 256, layout)
    gl.store(x_ptr + gl.program_id(0) * 256 + offsets, gl.program_id(0) + offsets)
    if gl.atomic_add(counter_ptr, 1, sem="acq_rel") == gl.num_programs(0) - 1:
        for program in range(gl.num_programs(0)):
            gl.store(out_ptr + program * 256 + 255 - offsets, gl.load(x_ptr + program * 256 + 255 - offsets))


@gluon.jit
def arithmetic_kernel(x_ptr, y_ptr, old_ptr):
    """Every read-modify-write; those of floats compare them as integers, some without a sign."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    o = gl.arange(0, 128, layout)
    gl.store(old_ptr + o, gl.atomic_add(x_ptr + o, o - 50, mask=o < 100))
    gl.atomic_max(x_ptr + 128 + o, o - 64)
    gl.atomic_min(x_ptr + 256 + o, o - 64)
    gl.atomic_and(x_ptr + 384 + o, o)
    gl.atomic_or(x_ptr + 512 + o, o)
    gl.atomic_xor(x_ptr + 640 + o, o)
    gl.store(old_ptr + 128 + o, gl.atomic_xchg(x_ptr + 768 + o, o))
    gl.store(old_ptr + 256 + o, gl.atomic_cas(x_ptr + 896 + o, o % 3, o + 1000))
    gl.atomic_add(x_ptr + 1024 + o % 5, 1)  # several add to one element
    gl.atomic_add(y_ptr + o, 0.5)
    gl.atomic_max(y_ptr + 128 + o, (o - 64).to(gl.float32))
    gl.atomic_min(y_ptr + 256 + o, (o - 64).to(gl.float32))
