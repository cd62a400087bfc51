"""Kernels that start while the kernel ahead of them still runs: what they do before and after its end."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def add_kernel(weight_ptr, x_ptr, d_ptr):
    """Reads the weight at once, all else after the wait."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * 128 + gl.arange(0, 128, layout)
    weight = gl.load(weight_ptr + offsets)
    gdc_wait()
    x = gl.load(x_ptr + offsets)
    gdc_launch_dependents()
    gl.store(d_ptr + offsets, weight + x)


@gluon.jit
def add_by_tma_kernel(weight_desc, x_desc, d_desc):
    """Loads the weight at once; the wait's order goes through the barrier to who computes."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    weight = gl.allocate_shared_memory(weight_desc.dtype, [64, 64], weight_desc.layout)
    x = gl.allocate_shared_memory(x_desc.dtype, [64, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    row = gl.program_id(0) * 64
    mbarrier.expect(ready, weight_desc.block_type.nbytes + x_desc.block_type.nbytes)
    tma.async_load(weight_desc, [row, 0], ready, weight)
    gdc_wait()
    tma.async_load(x_desc, [row, 0], ready, x)
    gdc_launch_dependents()
    mbarrier.wait(ready, 0)
    x.store(weight.load(layout) + x.load(layout))
    fence_async_shared()
    tma.async_store(d_desc, [row, 0], x)
    tma.store_wait(0)
    mbarrier.invalidate(ready)


@gluon.jit
def waiter(ahead):
    gdc_wait()
    mbarrier.arrive(ahead)


@gluon.jit
def copier(x_ptr, d_ptr, ahead):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.program_id(0) * 128 + gl.arange(0, 128, layout)
    mbarrier.wait(ahead, 0)
    copied = gl.load(x_ptr + offsets)
    gl.store(d_ptr + offsets, copied)


@gluon.jit
def partitions_kernel(x_ptr, d_ptr):
    """One partition waits for the kernel ahead and tells another, which copies."""
    ahead = mbarrier.allocate_mbarrier()
    mbarrier.init(ahead, count=1)
    gl.warp_specialize(
        [(copier, (x_ptr, d_ptr, ahead)), (waiter, (ahead,))], worker_num_warps=[1], worker_num_regs=[24]
    )
    mbarrier.invalidate(ahead)


@gluon.jit
def message_kernel(x_ptr, d_ptr, flag_ptr):
    """Program 0 waits for the kernel ahead and tells program 1, which copies."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    offsets = gl.arange(0, 128, layout)
    if gl.program_id(0) == 0:
        gdc_wait()
        gl.atomic_store(flag_ptr, 1, sem="release")
    else:
        gl.atomic_poll(flag_ptr, 1, sem="acquire")
        received = gl.load(x_ptr + offsets)
        gl.store(d_ptr + offsets, received)


@gluon.jit
def count_kernel(counter_ptr, last_ptr):
    """The last program to count leaves the counter as it was found."""
    gdc_wait()
    arrived = gl.atomic_add(counter_ptr + 1, 1, sem="acq_rel")
    if arrived == gl.num_programs(0) - 1:
        gl.store(last_ptr, arrived)
        gl.store(counter_ptr + 1, 0)
