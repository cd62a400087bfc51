"""A block-scaled MMA of one tile, with operands of any format and layout."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma_scaled,
)
from triton.experimental.gluon.language.nvidia.hopper import cluster


@gluon.jit
def _matrix(pointer, rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    row = gl.arange(0, rows, gl.SliceLayout(1, layout))
    column = gl.arange(0, columns, gl.SliceLayout(0, layout))
    return pointer + row[:, None] * columns + column[None, :]


@gluon.jit
def _buffer(pointer, shape: gl.constexpr, layout: gl.constexpr):
    """Return shared memory with a matrix of contiguous rows in it."""
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=layout.cga_layout)
    value = gl.load(_matrix(pointer, shape[0], shape[1], tile))
    return gl.allocate_shared_memory(pointer.dtype.element_ty, shape, layout, value)


@gluon.jit
def _scales(pointer, rows: gl.constexpr, blocks: gl.constexpr, bases: gl.constexpr):
    """Return tensor memory with scales in it."""
    layout: gl.constexpr = TensorMemoryScalesLayout(bases)
    memory = allocate_tensor_memory(pointer.dtype.element_ty, [rows, blocks], layout)
    registers: gl.constexpr = memory.get_reg_layout()
    memory.store(gl.load(_matrix(pointer, rows, blocks, registers)))
    return memory


@gluon.jit
def tile_kernel(
    a_ptr,
    b_ptr,
    a_scale_ptr,
    b_scale_ptr,
    d_ptr,
    a_shape: gl.constexpr,
    b_shape: gl.constexpr,
    d_shape: gl.constexpr,
    blocks: gl.constexpr,
    formats: gl.constexpr,
    a_layout: gl.constexpr,
    b_layout: gl.constexpr,
    b_transposed: gl.constexpr,
    scale_bases: gl.constexpr,
    by_registers: gl.constexpr,
):
    """D = A @ B of one tile per cluster; B comes as [N, K] if it is transposed."""
    paired: gl.constexpr = gl.num_ctas() > 1
    rows: gl.constexpr = d_shape[0]
    columns: gl.constexpr = d_shape[1]
    a = _buffer(a_ptr, a_shape, a_layout)
    if by_registers:
        a_tensor: gl.constexpr = TensorMemoryLayout([128, a_shape[1]], 1, fp4_padded=a_layout.fp4_padded)
        a_memory = allocate_tensor_memory(a.dtype, a_shape, a_tensor)
        if not a_layout.fp4_padded:  # of padding, no registers have a layout
            a_memory.store(a.load(a_memory.get_reg_layout()))
    else:
        a_memory = a
    b = _buffer(b_ptr, b_shape, b_layout)
    b = b.permute((1, 0)) if b_transposed else b
    fence_async_shared()
    a_scale = _scales(a_scale_ptr, rows, blocks, scale_bases[0])
    b_scale = _scales(b_scale_ptr, columns, blocks, scale_bases[1])
    bases: gl.constexpr = [[1, 0]] if paired else []
    layout: gl.constexpr = TensorMemoryLayout([128, columns], 1, cga_layout=bases, two_ctas=paired)
    accumulator = allocate_tensor_memory(gl.float32, d_shape, layout)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(done, count=1)
    if paired:
        cluster.barrier()
    a_format: gl.constexpr = formats[0]
    b_format: gl.constexpr = formats[1]
    tcgen05_mma_scaled(a_memory, b, accumulator, a_scale, b_scale, a_format, b_format, use_acc=False)
    tcgen05_commit(done)
    mbarrier.wait(done, 0)
    registers: gl.constexpr = accumulator.get_reg_layout()
    gl.store(_matrix(d_ptr, rows, columns, registers), accumulator.load())
