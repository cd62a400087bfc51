"""Small Gluon kernels written for the simulator's tests; none of them comes from a template."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    cluster,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def writer(x_ptr, buffer, full, fence: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))
    columns = gl.arange(0, 64, gl.SliceLayout(0, layout))
    tile = gl.load(x_ptr + rows[:, None] * 64 + columns[None, :])
    buffer.store(tile * 2)
    if fence:
        fence_async_shared()
    mbarrier.arrive(full)


@gluon.jit
def storer(d_desc, buffer, full):
    mbarrier.wait(full, 0)
    tma.async_store(d_desc, [0, 0], buffer)
    tma.store_wait(0)


@gluon.jit
def handoff_kernel(x_ptr, d_desc, fence: gl.constexpr):
    """One partition writes a tile, another stores it through TMA."""
    buffer = gl.allocate_shared_memory(d_desc.dtype, [64, 64], d_desc.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    gl.warp_specialize(
        [(writer, (x_ptr, buffer, full, fence)), (storer, (d_desc, buffer, full))],
        worker_num_warps=[1],
        worker_num_regs=[24],
    )


@gluon.jit
def blocked_matmul_kernel(a_desc, b_desc, d_desc, steps_per_program):
    """A tile of D per program of axis 0 and 1, a part of K per program of axis 2, added by TMA."""
    block_m: gl.constexpr = a_desc.block_type.shape[0]
    block_k: gl.constexpr = a_desc.block_type.shape[1]
    block_n: gl.constexpr = b_desc.block_type.shape[1]
    row = gl.program_id(0) * block_m
    column = gl.program_id(1) * block_n
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [block_m, block_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [block_k, block_n], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, [block_m, block_n], d_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, block_n, 16]
    )
    total = gl.zeros((block_m, block_n), gl.float32, layout)
    first = gl.program_id(2) * steps_per_program
    for step in range(steps_per_program):
        k = (first + step) * block_k
        mbarrier.expect(ready, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_load(a_desc, [row, k], ready, a_smem)
        tma.async_load(b_desc, [k, column], ready, b_smem)
        mbarrier.wait(ready, step & 1)
        total = warpgroup_mma(a_smem, b_smem, total, is_async=True)
        total = warpgroup_mma_wait(0, deps=[total])
    mbarrier.invalidate(ready)
    d_smem.store(total.to(d_desc.dtype))
    fence_async_shared()
    if gl.num_programs(2) == 1:
        tma.async_store(d_desc, [row, column], d_smem)
    else:
        tma.async_atomic_add(d_desc, [row, column], d_smem)
    tma.store_wait(0)


@gluon.jit
def increment_kernel(x_ptr, out_ptr, count, stride):
    """out = x + 1 by programs of 128 elements that begin `stride` apart."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * stride + gl.arange(0, 128, layout)
    mask = offsets < count
    gl.store(out_ptr + offsets, gl.load(x_ptr + offsets, mask=mask, other=0) + 1, mask=mask)


@gluon.jit
def integers_kernel(a, b, out_ptr):
    """What the device's 32-bit integer operations make of two numbers."""
    gl.store(out_ptr + 0, a + b)
    gl.store(out_ptr + 1, a - b)
    gl.store(out_ptr + 2, a * b)
    gl.store(out_ptr + 3, a // b)
    gl.store(out_ptr + 4, a % b)
    gl.store(out_ptr + 5, a & b)
    gl.store(out_ptr + 6, a | b)
    gl.store(out_ptr + 7, a ^ b)
    gl.store(out_ptr + 8, a >> (b & 31))
    gl.store(out_ptr + 9, a << (b & 31))
    gl.store(out_ptr + 10, gl.minimum(a, b))
    gl.store(out_ptr + 11, gl.maximum(a, b))
    gl.store(out_ptr + 12, gl.where(a < b, a, b + 1))


@gluon.jit
def unknown_operation_kernel(out_ptr):
    """Make a pointer of a number."""
    address = gl.load(out_ptr).to(gl.int64)
    gl.store(address.to(gl.pointer_type(gl.int32)), 1)


@gluon.jit
def overlong_wait_kernel(out_ptr):
    """Waits for a phase that nobody completes."""
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=2)
    mbarrier.arrive(full)
    mbarrier.wait(full, 0)
    gl.store(out_ptr, 1)


@gluon.jit
def spinner(flag_ptr):
    tries = 1
    while gl.load(flag_ptr, volatile=True) < tries:
        tries += 1


@gluon.jit
def sleeper(full):
    mbarrier.wait(full, 0)  # asleep


@gluon.jit
def endless_kernel(flag_ptr):
    """Waits for a flag that nobody sets."""
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    gl.warp_specialize([(spinner, (flag_ptr,)), (sleeper, (full,))], [1], [24])


@gluon.jit
def pipelined_multicast_kernel(a_desc, b_desc, d_desc, k_steps, meet: gl.constexpr):
    """Two CTAs share B by multicast, without partitions: they meet before each reuse of the ring."""
    stages: gl.constexpr = 2
    tile_m: gl.constexpr = a_desc.block_type.shape[0]
    tile_k: gl.constexpr = a_desc.block_type.shape[1]
    tile_n: gl.constexpr = b_desc.block_type.shape[1]
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [stages, tile_m, tile_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [stages, tile_k, tile_n], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, [tile_m, tile_n], d_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=stages)
    for i in gl.static_range(stages):
        mbarrier.init(ready.index(i), count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, tile_n, 16], cga_layout=[[1, 0]]
    )
    total = gl.zeros((tile_m, tile_n), gl.float32, layout)
    for step in range(k_steps):
        stage = step % stages
        bar = ready.index(stage)
        if meet:
            cluster.barrier(relaxed=True)
        mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [0, step * tile_k], bar, a_smem.index(stage))
        tma.async_load(b_desc, [step * tile_k, 0], bar, b_smem.index(stage), multicast=True)
        mbarrier.wait(bar, step // stages & 1)
        total = warpgroup_mma(a_smem.index(stage), b_smem.index(stage), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=[total])
    d_smem.store(total.to(d_desc.dtype))
    fence_async_shared()
    tma.async_store(d_desc, [0, 0], d_smem)
    tma.store_wait(0)


@gluon.jit
def tensor_integers_kernel(a_ptr, b_ptr, out_ptr, unsigned: gl.constexpr):
    """What the device's integer operations make of 32 pairs of numbers, 32 results for each operation."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, 32, layout)
    a = gl.load(a_ptr + offsets)
    b = gl.load(b_ptr + offsets)
    shift = b & (a_ptr.dtype.element_ty.primitive_bitwidth - 1)
    if unsigned:
        a = a.to(gl.uint32, bitcast=True)
        b = b.to(gl.uint32, bitcast=True)
        shift = shift.to(gl.uint32, bitcast=True)
    results = (
        a + b,
        a - b,
        a * b,
        a // b,
        a % b,
        a & b,
        a | b,
        a ^ b,
        a >> shift,
        a << shift,
        gl.minimum(a, b),
        gl.maximum(a, b),
        gl.where(a < b, a, b),
    )
    for i in gl.static_range(13):
        gl.store(out_ptr + i * 32 + offsets, results[i].to(out_ptr.dtype.element_ty, bitcast=True))


@gluon.jit
def views_kernel(
    x_ptr,
    out_ptr,
    shape: gl.constexpr,
    order: gl.constexpr,
    slot: gl.constexpr,
    start: gl.constexpr,
    extent: gl.constexpr,
):
    """A slot of a buffer of three dimensions, permuted and cut; shape is the slot's."""
    blocked: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 1, 32], [1, 1, 4], [2, 1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    i = gl.arange(0, shape[0], gl.SliceLayout(1, gl.SliceLayout(2, blocked)))[:, None, None]
    j = gl.arange(0, shape[1], gl.SliceLayout(0, gl.SliceLayout(2, blocked)))[None, :, None]
    k = gl.arange(0, shape[2], gl.SliceLayout(0, gl.SliceLayout(1, blocked)))[None, None, :]
    offsets = (i * shape[1] + j) * shape[2] + k
    buffers = gl.allocate_shared_memory(gl.int32, [2, shape[0], shape[1], shape[2]], shared)
    for number in gl.static_range(2):
        buffers.index(number).store(gl.load(x_ptr + number * shape[0] * shape[1] * shape[2] + offsets))
    view = buffers.index(slot).permute(order).slice(start, extent, dim=0)
    tile = view.load(blocked)
    rows: gl.constexpr = view.shape[0]
    columns: gl.constexpr = view.shape[1]
    depth: gl.constexpr = view.shape[2]
    p = gl.arange(0, rows, gl.SliceLayout(1, gl.SliceLayout(2, blocked)))[:, None, None]
    q = gl.arange(0, columns, gl.SliceLayout(0, gl.SliceLayout(2, blocked)))[None, :, None]
    r = gl.arange(0, depth, gl.SliceLayout(0, gl.SliceLayout(1, blocked)))[None, None, :]
    gl.store(out_ptr + (p * columns + q) * depth + r, tile)


@gluon.jit
def convert_kernel(x_ptr, out_ptr):
    """out = x in the type of out, 256 elements a program."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * 256 + gl.arange(0, 256, layout)
    gl.store(out_ptr + offsets, gl.load(x_ptr + offsets).to(out_ptr.dtype.element_ty))
