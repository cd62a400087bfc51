"""Loops over K of two products, which right and slow twins accumulate in different ways."""

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
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

LAYOUT = gl.constexpr(
    gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
)
STAGES = gl.constexpr(4)


@gluon.jit
def _zeros():
    return gl.zeros([64, 128], gl.float32, LAYOUT)


@gluon.jit
def _load(a_desc, b_desc, a, b, ready, step):
    stage = step % STAGES
    mbarrier.expect(ready.index(stage), a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
    tma.async_load(a_desc, [0, step * 64], ready.index(stage), a.index(stage))
    tma.async_load(b_desc, [step * 64, 0], ready.index(stage), b.index(stage))


@gluon.jit
def loop_kernel(a_desc, b_desc, d_desc, steps, how: gl.constexpr):
    """D = A @ B for one tile. `how` is the number of accumulators, and when their MMAs are awaited."""
    a = gl.allocate_shared_memory(gl.float16, [STAGES, 64, 64], a_desc.layout)
    b = gl.allocate_shared_memory(gl.float16, [STAGES, 64, 128], b_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    x, y = _zeros(), warpgroup_mma_init(_zeros())
    for step in range(STAGES - 1):
        _load(a_desc, b_desc, a, b, ready, step)
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(ready.index(stage), step // STAGES & 1)
        left, right = a.index(stage), b.index(stage)
        if how == "one in flight":
            x = warpgroup_mma(left, right, x, is_async=True)
            x = warpgroup_mma_wait(1, deps=[x])
        elif how == "two, awaited":
            y = warpgroup_mma(left, right, _zeros(), is_async=True)
            x += warpgroup_mma_wait(0, deps=[y])
            y = warpgroup_mma_init(_zeros())
        elif how == "two, each in its own":
            x = warpgroup_mma(left.slice(0, 32, 1), right.slice(0, 32, 0), x, is_async=True)
            y = warpgroup_mma(left.slice(32, 32, 1), right.slice(32, 32, 0), y, is_async=True)
            x = warpgroup_mma_wait(1, deps=[x])
        elif how == "two, handed over":
            z = warpgroup_mma(left, right, _zeros(), is_async=True)  # handed over
            x += warpgroup_mma_wait(1, deps=[y])
            y = z
        if step + STAGES - 1 < steps:
            _load(a_desc, b_desc, a, b, ready, step + STAGES - 1)
    x, y = warpgroup_mma_wait(0, deps=[x, y])
    d = gl.allocate_shared_memory(gl.float16, [64, 128], d_desc.layout)
    d.store((x + y).to(gl.float16))
    fence_async_shared()
    tma.async_store(d_desc, [0, 0], d)
    tma.store_wait(0)
