"""Small Gluon kernels of which a right and a faulty twin differ in a flag."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
OTHER = gl.constexpr(gl.SliceLayout(1, gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])))


@gluon.jit
def pair_commit_kernel(a_desc, b_desc, d_desc, awaits: gl.constexpr):
    """D = A @ B by a pair of CTAs, each of which has a barrier of its own, awaits it and invalidates it."""
    tile_m: gl.constexpr = a_desc.block_shape[0]
    tile_n: gl.constexpr = b_desc.block_shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_shape, b_desc.layout)
    loaded = mbarrier.allocate_mbarrier(two_ctas=True)
    multiplied = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    mbarrier.init(multiplied, count=1)
    mbarrier.expect(loaded, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
    tma.async_load(a_desc, [0, 0], loaded, a)
    tma.async_load(b_desc, [0, 0], loaded, b)
    mbarrier.wait(loaded, 0, deps=[a, b])
    layout: gl.constexpr = blackwell.TensorMemoryLayout(
        (tile_m // 2, tile_n), col_stride=1, cga_layout=d_desc.layout.cga_layout, two_ctas=True
    )
    acc = blackwell.allocate_tensor_memory(gl.float32, [tile_m, tile_n], layout)
    blackwell.tcgen05_mma(a, b, acc, use_acc=False, mbarriers=[multiplied])
    if awaits:
        mbarrier.wait(multiplied, 0, deps=[a, b])
    mbarrier.invalidate(loaded)
    mbarrier.invalidate(multiplied)
    d = gl.allocate_shared_memory(d_desc.dtype, d_desc.block_shape, d_desc.layout)
    d.store(acc.load().to(d_desc.dtype))
    fence_async_shared()
    tma.async_store(d_desc, [0, 0], d)
    tma.store_wait(0)


@gluon.jit
def _sum(a, b):
    return a + b


@gluon.jit
def scratch_kernel(y_desc, x_ptr, sink_ptr, steps, how: gl.constexpr, early: gl.constexpr):
    """Store a page in each step; what the next step computes lies, for a while, where the page is.

    `how` is a conversion, a reduction or a scan: the compiler gives it scratch memory. With `early` a page
    is awaited before that, as it must be.
    """
    offsets, others = gl.arange(0, 128, LINE), gl.arange(0, 128, OTHER)
    for step in range(steps):
        x = gl.load(x_ptr + step * 128 + offsets)
        if early:
            tma.store_wait(0)
        if how == "convert":
            gl.store(sink_ptr + step * 128 + others, gl.convert_layout(x, OTHER))
        elif how == "reduce":
            gl.store(sink_ptr + step, gl.sum(x, 0))
        else:
            gl.store(sink_ptr + step * 128 + offsets, gl.associative_scan(x, 0, _sum))
        tma.store_wait(0)
        page = gl.allocate_shared_memory(gl.int32, [128], y_desc.layout, x)
        fence_async_shared()
        tma.async_store(y_desc, [step * 128], page)
        page._keep_alive()
    tma.store_wait(0)


@gluon.jit
def remade_descriptor_kernel(x_ptr, d_ptr, steps, awaits: gl.constexpr):
    """Make a descriptor for each tile; with `awaits`, after the load by the one before has been awaited."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float32)
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row, column = gl.arange(0, 64, gl.SliceLayout(1, tile)), gl.arange(0, 64, gl.SliceLayout(0, tile))
    ring = gl.allocate_shared_memory(gl.float32, [2, 64, 64], layout)
    ready = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(ready.index(i), count=1)
    for step in range(steps + 1):
        if step < steps:
            x_desc = tma.make_tensor_descriptor(x_ptr + step * 4096, [64, 64], [64, 1], [64, 64], layout)
            mbarrier.expect(ready.index(step % 2), x_desc.nbytes_per_cta)
            tma.async_load(x_desc, [0, 0], ready.index(step % 2), ring.index(step % 2))
            if awaits:
                mbarrier.wait(ready.index(step % 2), step // 2 & 1)
        if step > 0:
            last = step - 1
            mbarrier.wait(ready.index(last % 2), last // 2 & 1)
            x = ring.index(last % 2).load(tile)
            gl.store(d_ptr + last * 4096 + row[:, None] * 64 + column[None, :], x)
            fence_async_shared()


@gluon.jit
def _consume(a, b, ready, room):
    mbarrier.wait(ready, 0)
    mbarrier.arrive(room)


@gluon.jit
def _produce(x_desc, a, b, ready, room, parity: gl.constexpr, factor: gl.constexpr):
    mbarrier.expect(ready, factor * x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [0, 0], ready, a)
    mbarrier.wait(room, parity)
    tma.async_load(x_desc, [64, 0], ready, b)


@gluon.jit
def load_behind_a_wait_kernel(x_desc, parity: gl.constexpr, factor: gl.constexpr):
    """Load two tiles, the second one once there is room: with parity 0 it never comes to that."""
    a = gl.allocate_shared_memory(gl.float32, [64, 64], x_desc.layout)
    b = gl.allocate_shared_memory(gl.float32, [64, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    room = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.init(room, count=1)
    gl.warp_specialize(
        [
            (_consume, (a, b, ready, room)),
            (_produce, (x_desc, a, b, ready, room, parity, factor)),
        ],
        [1],
    )


@gluon.jit
def _await(barriers):
    mbarrier.init(barriers.index(0), count=1)
    mbarrier.wait(barriers.index(0), 0)


@gluon.jit
def barrier_without_a_variable_kernel(sizes: gl.constexpr):
    """Wait without end for a barrier that no variable names, in a line with brackets."""
    _await(mbarrier.allocate_mbarrier(batch=sizes[1]))
