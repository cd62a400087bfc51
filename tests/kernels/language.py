"""Small Gluon kernels, one for each part of the language that people use beside a matmul."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def tile_of(pointer, rows: gl.constexpr, columns: gl.constexpr):
    """Return pointers to a matrix of contiguous rows."""
    row = gl.arange(0, rows, gl.SliceLayout(1, TILE))
    column = gl.arange(0, columns, gl.SliceLayout(0, TILE))
    return pointer + row[:, None] * columns + column[None, :]


@gluon.jit
def rms_norm_kernel(x_ptr, d_ptr, eps: gl.constexpr):
    """Divide 128 numbers by the root of their mean square."""
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    gl.store(d_ptr + offsets, x * gl.rsqrt(gl.sum(x * x, 0) / 128 + eps))
