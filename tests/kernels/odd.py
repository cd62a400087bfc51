"""Small Gluon kernels with arithmetic that few matmuls need: wide unsigned integers, libdevice, roundings."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout, allocate_tensor_memory
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma
from triton.language.extra import libdevice

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
QUADS = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
BATCH = gl.constexpr(gl.BlockedLayout([1, 1, 4], [1, 2, 16], [1, 4, 1], [2, 1, 0]))


@gluon.jit
def top_kernel(x_ptr, value_ptr, index_ptr, size: gl.constexpr, count: gl.constexpr):
    """The largest numbers of a row and their places, by keys of 64 bits that hold both."""
    row = gl.program_id(0)
    at = gl.arange(0, size, LINE)
    x = gl.load(x_ptr + row * size + at)
    bits = x.to(gl.uint32, bitcast=True)
    order = gl.where(bits >> 31 != 0, ~bits, bits | 0x80000000)
    keys = (order.to(gl.uint64) << 32) | (0xFFFFFFFF - at.to(gl.uint32)).to(gl.uint64)
    for turn in gl.static_range(count):
        best = gl.max(keys, 0)
        index = (0xFFFFFFFF - (best & 0xFFFFFFFF)).to(gl.int32)
        gl.store(index_ptr + row * count + turn, index)
        gl.store(value_ptr + row * count + turn, gl.sum(gl.where(at == index, x, 0.0), 0))
        keys = gl.where(at == index, 0, keys)


@gluon.jit
def unsigned_kernel(x_ptr, y_ptr, d_ptr, float_ptr, size: gl.constexpr):
    """Quotient, remainder, shift, order and upper half of unsigned numbers of 64 bits."""
    at = gl.arange(0, size, LINE)
    x = gl.load(x_ptr + at).to(gl.uint64, bitcast=True)
    y = gl.load(y_ptr + at).to(gl.uint64, bitcast=True)
    gl.store(d_ptr + at, (x // y).to(gl.int64, bitcast=True))
    gl.store(d_ptr + size + at, (x % y).to(gl.int64, bitcast=True))
    gl.store(d_ptr + 2 * size + at, (x >> (y & 63)).to(gl.int64, bitcast=True))
    gl.store(d_ptr + 3 * size + at, gl.minimum(x, y).to(gl.int64, bitcast=True))
    gl.store(d_ptr + 4 * size + at, gl.maximum(x, y).to(gl.int64, bitcast=True))
    gl.store(d_ptr + 5 * size + at, gl.where(x < y, 1, 0).to(gl.int64))
    gl.store(d_ptr + 6 * size + at, gl.umulhi(x, y).to(gl.int64, bitcast=True))
    gl.store(float_ptr + at, x.to(gl.float32))


@gluon.jit
def toward_zero_kernel(x_ptr, half_ptr, brain_ptr, eight_ptr):
    """Round 512 numbers toward zero."""
    at = gl.arange(0, 512, QUADS)
    x = gl.load(x_ptr + at)
    gl.store(half_ptr + at, x.to(gl.float16, fp_downcast_rounding="rtz"))
    gl.store(brain_ptr + at, x.to(gl.bfloat16, fp_downcast_rounding="rtz"))
    gl.store(eight_ptr + at, x.to(gl.float8e5, fp_downcast_rounding="rtz"))


@gluon.jit
def libdevice_kernel(x_ptr, d_ptr, is_ptr, size: gl.constexpr):
    """Functions of libdevice: one row of D for each."""
    at = gl.arange(0, size, LINE)
    x = gl.load(x_ptr + at)
    gl.store(d_ptr + at, libdevice.tanh(x))
    gl.store(d_ptr + size + at, libdevice.round(x))
    gl.store(d_ptr + 2 * size + at, libdevice.pow(gl.abs(x), 2.5))
    gl.store(d_ptr + 3 * size + at, libdevice.cbrt(x))
    gl.store(d_ptr + 4 * size + at, libdevice.fast_expf(x))
    gl.store(d_ptr + 5 * size + at, libdevice.fma(x, x, x))
    gl.store(is_ptr + at, libdevice.isnan(x).to(gl.int32))


@gluon.jit
def bessel_kernel(x_ptr):
    at = gl.arange(0, 128, LINE)
    gl.store(x_ptr + at, libdevice.cyl_bessel_i0(gl.load(x_ptr + at)))


@gluon.jit
def _batch(pointer):
    batch = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, BATCH)))
    row = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(2, BATCH)))
    column = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, BATCH)))
    return pointer + batch[:, None, None] * 1024 + row[None, :, None] * 32 + column[None, None, :]


@gluon.jit
def batches_kernel(x_ptr, y_ptr, d_ptr):
    """D[i] = X[i] @ Y[i] of four 32 x 32 matrices by fused multiply-adds, in the type of D."""
    x = gl.convert_layout(gl.load(_batch(x_ptr)), gl.DotOperandLayout(0, BATCH, 0))
    y = gl.convert_layout(gl.load(_batch(y_ptr)), gl.DotOperandLayout(1, BATCH, 0))
    zero = gl.zeros([4, 32, 32], d_ptr.dtype.element_ty, BATCH)
    gl.store(_batch(d_ptr), gl.dot_fma(x, y, zero))


@gluon.jit
def batched_wgmma_kernel(d_ptr):
    """Triton 3.9 has no wgmma of three dimensions, and its assertion ends the compiler."""
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    result: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [1, 4, 1], [1, 16, 64, 16])
    a = gl.allocate_shared_memory(gl.float16, [2, 64, 64], shared, gl.zeros([2, 64, 64], gl.float16, BATCH))
    fence_async_shared()
    d = warpgroup_mma(a, a, gl.zeros([2, 64, 64], gl.float32, result))
    gl.store(d_ptr, gl.sum(gl.sum(gl.sum(d, 2), 1), 0))


@gluon.jit
def reducing_load_kernel(d_ptr):
    layout: gl.constexpr = TensorMemoryLayout([128, 64], 1)
    memory = allocate_tensor_memory(gl.float32, [128, 64], layout)
    registers: gl.constexpr = memory.get_reg_layout()
    memory.store(gl.zeros([128, 64], gl.float32, registers))
    _, largest = memory.load_max(abs=True)
    gl.store(d_ptr + gl.arange(0, 128, largest.type.layout), largest)


@gluon.jit
def wgmma_kernel(d_ptr):
    """D = 0 by one wgmma."""
    shared: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    result: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    rows: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    a = gl.allocate_shared_memory(gl.float16, [64, 64], shared, gl.zeros([64, 64], gl.float16, rows))
    fence_async_shared()
    d = warpgroup_mma(a, a, gl.zeros([64, 64], gl.float32, result))
    row = gl.arange(0, 64, gl.SliceLayout(1, result))
    column = gl.arange(0, 64, gl.SliceLayout(0, result))
    gl.store(d_ptr + row[:, None] * 64 + column[None, :], d)


@gluon.jit
def integers_kernel(x_ptr, d_ptr, float_ptr):
    """Compare, multiply, shift, divide and convert 128 unsigned integers of any width."""
    at = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + at)
    large = gl.where(x > 127, x, 5)
    gl.store(d_ptr + at, large * 3 + (x >> 2))
    gl.store(d_ptr + 128 + at, gl.minimum(x // 7, x % 11))
    gl.store(float_ptr + at, x.to(gl.float32))


@gluon.jit
def reductions_kernel(x_ptr, d_desc, operation: gl.constexpr):
    """Reduce 32 x 32 integers into D by TMA."""
    rows: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, 32, gl.SliceLayout(1, rows))
    column = gl.arange(0, 32, gl.SliceLayout(0, rows))
    x = gl.load(x_ptr + row[:, None] * 32 + column[None, :])
    buffer = gl.allocate_shared_memory(d_desc.dtype, [32, 32], d_desc.layout, x)
    fence_async_shared()
    operation(d_desc, [0, 0], buffer)
    tma.store_wait(0)
