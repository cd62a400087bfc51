"""Kernels in which memory of a barrier becomes that of something else."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
OTHER = gl.constexpr(gl.SliceLayout(1, gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _nothing():
    pass


@gluon.jit
def _copy(x_ptr, y_ptr):
    offsets = gl.arange(0, 128, LINE)
    gl.store(y_ptr + offsets, gl.load(x_ptr + offsets))


@gluon.jit
def ended_kernel(x_desc, x_ptr, y_ptr, how: gl.constexpr, invalidate: gl.constexpr):
    """Copy 128 numbers by way of memory where a barrier was that nothing uses any more."""
    offsets = gl.arange(0, 128, LINE)
    ended = mbarrier.allocate_mbarrier()
    mbarrier.init(ended, count=1)
    if invalidate:
        mbarrier.invalidate(ended)
    if how == "store":
        buffer = gl.allocate_shared_memory(gl.int32, [128], PLAIN)
        buffer.store(gl.load(x_ptr + offsets))
        gl.store(y_ptr + offsets, buffer.load(LINE))
    elif how == "filled":
        buffer = gl.allocate_shared_memory(gl.int32, [128], PLAIN, gl.load(x_ptr + offsets))
        gl.store(y_ptr + offsets, buffer.load(LINE))
    elif how == "conversion":
        others = gl.arange(0, 128, OTHER)
        gl.store(y_ptr + others, gl.convert_layout(gl.load(x_ptr + offsets), OTHER))
    elif how == "cp.async":
        buffer = gl.allocate_shared_memory(gl.int32, [128], PLAIN)
        async_copy.async_load(buffer, x_ptr + offsets)
        async_copy.commit_group()
        async_copy.wait_group(0)
        gl.store(y_ptr + offsets, buffer.load(LINE))
    elif how == "captures":
        gl.warp_specialize([(_nothing, ()), (_copy, (x_ptr, y_ptr))], [4], [24])
    else:
        buffer = gl.allocate_shared_memory(gl.int32, [128], x_desc.layout)
        loaded = mbarrier.allocate_mbarrier()
        mbarrier.init(loaded, count=1)
        mbarrier.expect(loaded, x_desc.nbytes_per_cta)
        tma.async_load(x_desc, [0], loaded, buffer)
        mbarrier.wait(loaded, 0)
        gl.store(y_ptr + offsets, buffer.load(LINE))


@gluon.jit
def own_kernel():
    """Store into the memory of a barrier as if it were a buffer."""
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    ready.store(gl.full([1], 7, gl.int64, LINE))


@gluon.jit
def successor_kernel(invalidate: gl.constexpr):
    """A barrier after another one, in the same place."""
    former = mbarrier.allocate_mbarrier()
    mbarrier.init(former, count=1)
    mbarrier.arrive(former)
    mbarrier.wait(former, 0)
    if invalidate:
        mbarrier.invalidate(former)
    latter = mbarrier.allocate_mbarrier()
    mbarrier.init(latter, count=1)
    mbarrier.arrive(latter)
    mbarrier.wait(latter, 0)


@gluon.jit
def beside_a_store_kernel(y_desc, x_ptr, awaited: gl.constexpr):
    """A barrier in memory that a TMA store may still read."""
    page = gl.allocate_shared_memory(gl.int32, [128], y_desc.layout, gl.load(x_ptr + gl.arange(0, 128, LINE)))
    fence_async_shared()
    tma.async_store(y_desc, [0], page)
    if awaited:
        tma.store_wait(0)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.arrive(ready)
    mbarrier.wait(ready, 0)
    tma.store_wait(0)
