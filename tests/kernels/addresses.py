"""Copies of 32 rows by TMA descriptors whose base is not the beginning of a tensor."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

LARGE = gl.constexpr(0x7FFF0000)
ROWS = gl.constexpr(0x40000000)
"""See Triton's tools/ragged_tma.py: so many rows, and a step of 2**34 elements for each, wrap around."""


@gluon.jit
def _copy(x_desc, d_desc, place, shape: gl.constexpr):
    buffer = gl.allocate_shared_memory(x_desc.dtype, shape, x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, place, ready, buffer)
    mbarrier.wait(ready, 0)
    tma.async_store(d_desc, place, buffer)
    tma.store_wait(0)


@gluon.jit
def host_kernel(x_desc, d_desc, row):
    """Copy rows from `row` on."""
    _copy(x_desc, d_desc, [row, 0], [32, 64])


@gluon.jit
def ahead_kernel(x_ptr, d_ptr, ahead, row, rows):
    """Copy rows from `row` on, by descriptors of `rows` rows that begin `ahead` rows before the tensors."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([32, 64], gl.float16)
    x_desc = tma.make_tensor_descriptor(x_ptr - ahead * 64, [rows, 64], [64, 1], [32, 64], layout)
    d_desc = tma.make_tensor_descriptor(d_ptr - ahead * 64, [rows, 64], [64, 1], [32, 64], layout)
    _copy(x_desc, d_desc, [ahead + row, 0], [32, 64])


@gluon.jit
def ragged_kernel(x_ptr, d_ptr, first, size, row):
    """Copy rows of a group from `row` on; the group has `size` rows from `first` on."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, 32, 64], gl.float16)
    step: gl.constexpr = 2**34 - 64
    extents: gl.constexpr = [LARGE, LARGE, ROWS, 64]
    x_desc = tma.make_tensor_descriptor(x_ptr, extents, [step, 64, 64, 1], [1, 1, 32, 64], layout)
    d_desc = tma.make_tensor_descriptor(d_ptr, extents, [step, 64, 64, 1], [1, 1, 32, 64], layout)
    _copy(x_desc, d_desc, [ROWS, first + size, ROWS - size + row, 0], [1, 1, 32, 64])


@gluon.jit
def strides_kernel(x_ptr, d_ptr, stride):
    """Copy rows by descriptors with a stride that the launch gives."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([32, 64], gl.float16)
    x_desc = tma.make_tensor_descriptor(x_ptr, [100, 64], [stride, 1], [32, 64], layout)
    d_desc = tma.make_tensor_descriptor(d_ptr, [100, 64], [stride, 1], [32, 64], layout)
    _copy(x_desc, d_desc, [0, 0], [32, 64])


@gluon.jit
def widen_kernel(x_ptr, d_ptr):
    """D = X of 128 numbers, in another type."""
    at = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(d_ptr + at, gl.load(x_ptr + at).to(d_ptr.dtype.element_ty))
