"""Small kernels that store pages by TMA while the compiler puts scratch memory where a page was."""

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

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
OTHER = gl.constexpr(gl.SliceLayout(1, gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
COLUMNS = gl.constexpr(gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1]))


@gluon.jit
def _sum(a, b):
    return a + b


@gluon.jit
def pages_kernel(y_desc, x_ptr, sums_ptr, scans_ptr, turned_ptr, steps):
    """Store a page in each step, behind a sum, a scan and a conversion of its numbers."""
    offsets, others = gl.arange(0, 128, LINE), gl.arange(0, 128, OTHER)
    for step in range(steps):
        x = gl.load(x_ptr + step * 128 + offsets)
        tma.store_wait(0)
        gl.store(sums_ptr + step, gl.sum(x, 0))
        gl.store(scans_ptr + step * 128 + offsets, gl.associative_scan(x, 0, _sum))
        gl.store(turned_ptr + step * 128 + others, gl.convert_layout(x, OTHER))
        page = gl.allocate_shared_memory(gl.int32, [128], y_desc.layout, x)
        fence_async_shared()
        tma.async_store(y_desc, [step * 128], page)
        page._keep_alive()
    tma.store_wait(0)


@gluon.jit
def counted_kernel(y_desc, x_ptr, counts_ptr, total_ptr):
    """Store a page, then count its numbers, gather them, and add them to a total by an atomic."""
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    page = gl.allocate_shared_memory(gl.int32, [128], y_desc.layout, x)
    fence_async_shared()
    tma.async_store(y_desc, [0], page)
    page._keep_alive()
    tma.store_wait(0)
    counts = gl.histogram(x, 128, layout=LINE)
    gl.store(counts_ptr + offsets, counts)
    gl.store(counts_ptr + 128 + offsets, gl.gather(counts, 127 - offsets, 0))
    before = gl.atomic_add(total_ptr, gl.sum(x, 0))
    gl.store(total_ptr + 1, before)


@gluon.jit
def multiplied_kernel(a_desc, b_desc, d_ptr, x_ptr, turned_ptr):
    """Multiply two tiles; while the tensor cores read them, nothing else may lie over them."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]
    )
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    row, column = gl.arange(0, 64, gl.SliceLayout(1, TILE)), gl.arange(0, 64, gl.SliceLayout(0, TILE))
    x = gl.load(x_ptr + row[:, None] * 64 + column[None, :])
    a = gl.allocate_shared_memory(a_desc.dtype, [64, 64], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [64, 64], b_desc.layout)
    mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
    tma.async_load(a_desc, [0, 0], ready, a)
    tma.async_load(b_desc, [0, 0], ready, b)
    mbarrier.wait(ready, 0)
    sums = warpgroup_mma(a, b, gl.zeros([64, 64], gl.float32, layout), use_acc=False, is_async=True)
    sums = warpgroup_mma_wait(0, deps=[sums])
    turned = gl.convert_layout(x, COLUMNS)
    r, c = gl.arange(0, 64, gl.SliceLayout(1, COLUMNS)), gl.arange(0, 64, gl.SliceLayout(0, COLUMNS))
    gl.store(turned_ptr + r[:, None] * 64 + c[None, :], turned)
    r, c = gl.arange(0, 64, gl.SliceLayout(1, layout)), gl.arange(0, 64, gl.SliceLayout(0, layout))
    gl.store(d_ptr + r[:, None] * 64 + c[None, :], sums)
    mbarrier.invalidate(ready)
