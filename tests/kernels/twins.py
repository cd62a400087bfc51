"""A product in Gluon, and the same one in Triton's own language."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton
import triton.experimental.gluon.language as gl
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma


@gluon.jit
def gluon_kernel(a_desc, b_desc, d_ptr, k, instruction_k: gl.constexpr):
    """Multiply one tile of 64 x 64 in steps of K."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, instruction_k]
    )
    step: gl.constexpr = a_desc.block_shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, [64, step], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [64, step], b_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    sums = gl.zeros([64, 64], gl.float32, layout)
    for i in range(k // step):
        mbarrier.expect(ready, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [0, i * step], ready, a)
        tma.async_load(b_desc, [0, i * step], ready, b)
        mbarrier.wait(ready, i & 1)
        sums = warpgroup_mma(a, b.permute([1, 0]), sums)
    rows, columns = gl.arange(0, 64, gl.SliceLayout(1, layout)), gl.arange(0, 64, gl.SliceLayout(0, layout))
    gl.store(d_ptr + rows[:, None] * 64 + columns[None, :], sums)


@triton.jit
def triton_kernel(a_ptr, b_ptr, d_ptr, k, step: tl.constexpr):
    """Multiply the same tile in the same steps."""
    rows, within = tl.arange(0, 64), tl.arange(0, step)
    sums = tl.zeros([64, 64], tl.float32)
    for i in range(k // step):
        a = tl.load(a_ptr + rows[:, None] * k + i * step + within[None, :])
        b = tl.load(b_ptr + rows[None, :] * k + i * step + within[:, None])
        sums = tl.dot(a, b, sums)
    tl.store(d_ptr + rows[:, None] * 64 + rows[None, :], sums)


@triton.jit
def exact_kernel(a_ptr, b_ptr, d_ptr):
    """Multiply tiles of 64 x 64 with all bits of fp32."""
    rows = tl.arange(0, 64)
    a = tl.load(a_ptr + rows[:, None] * 64 + rows[None, :])
    b = tl.load(b_ptr + rows[:, None] * 64 + rows[None, :])
    tl.store(d_ptr + rows[:, None] * 64 + rows[None, :], tl.dot(a, b, input_precision="ieee"))
