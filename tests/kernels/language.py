"""Small Gluon kernels, one for each part of the language that people use beside a matmul."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia import blackwell

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


@gluon.jit
def _larger(a, i, b, j):
    """Return the larger number and its position, the first of equal ones."""
    first = (a > b) | ((a == b) & (i < j))
    return gl.where(first, a, b), gl.where(first, i, j)


@gluon.jit
def _moments(count, mean, squares, other_count, other_mean, other_squares):
    """Return the number, the mean and the sum of squared deviations of two samples together."""
    both = count + other_count
    apart = other_mean - mean
    share = other_count / both
    return both, mean + apart * share, squares + other_squares + apart * apart * count * share


@gluon.jit
def _xor(a, b):
    return a ^ b


@gluon.jit
def _times_plus(a, b, c, d):
    """Return the composition of x -> a * x + b and then x -> c * x + d."""
    return a * c, b * c + d


@gluon.jit
def reductions_kernel(x_ptr, index_ptr, mean_ptr, variance_ptr, parity_ptr):
    """Of each row: where its largest number is, its mean and variance, and the parity of its bits."""
    x = gl.load(tile_of(x_ptr, 64, 64))
    rows = gl.arange(0, 64, gl.SliceLayout(1, TILE))
    column = gl.arange(0, 64, gl.SliceLayout(0, TILE))
    columns, _ = gl.broadcast(column[None, :], x)
    _, largest = gl.reduce((x, columns), 1, _larger)
    gl.store(index_ptr + rows, largest)
    ones = gl.full([64, 64], 1.0, gl.float32, TILE)
    count, mean, squares = gl.reduce((ones, x, ones * 0), 1, _moments)
    gl.store(mean_ptr + rows, mean)
    gl.store(variance_ptr + rows, squares / count)
    gl.store(parity_ptr + rows, gl.reduce(x.to(gl.int32, bitcast=True), 1, _xor))


@gluon.jit
def recurrence_kernel(a_ptr, b_ptr, d_ptr, whole_ptr):
    """The recurrence d[i] = a[i] * d[i - 1] + b[i] of 128 numbers, and its end as a number."""
    offsets = gl.arange(0, 128, LINE)
    a, b = gl.load(a_ptr + offsets), gl.load(b_ptr + offsets)
    _, d = gl.associative_scan((a, b), 0, _times_plus)
    gl.store(d_ptr + offsets, d)
    _, whole = gl.reduce((a, b), 0, _times_plus)
    gl.store(whole_ptr, whole)


@gluon.jit
def elementwise_kernel(x_ptr, index_ptr, gathered_ptr, counts_ptr, clamped_ptr, high_ptr):
    """Gather by index, count each index below 64, clamp to one half, and multiply by a large integer."""
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets, cache_modifier=".ca")
    index = gl.load(index_ptr + offsets, eviction_policy="evict_last")
    gl.store(gathered_ptr + offsets, gl.gather(x, index, 0), cache_modifier=".cg")
    counts = gl.histogram(index, 64, mask=index < 64, layout=LINE)
    gl.store(counts_ptr + gl.arange(0, 64, LINE), counts, cache_modifier=".wt")
    gl.store(clamped_ptr + offsets, gl.clamp(x, -0.5, 0.5), eviction_policy="evict_first")
    factor = (index - 7).to(gl.uint32)
    high = gl.umulhi(factor, gl.full([128], 0xDEADBEEF, gl.uint32, LINE)).to(gl.int32)
    gl.store(high_ptr + offsets, high, cache_modifier=".cs")


@gluon.jit
def gather_beyond_kernel(x_ptr, d_ptr):
    offsets = gl.arange(0, 128, LINE)
    gl.store(d_ptr + offsets, gl.gather(gl.load(x_ptr + offsets), offsets + 1, 0))


@gluon.jit
def fp4_kernel(x_ptr, d_ptr):
    """Convert 64 x 64 bytes to 64 x 128 floats."""
    wide: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    floats = gl.fp4_to_fp(gl.load(tile_of(x_ptr, 64, 64)), gl.bfloat16, 1)
    row, column = gl.arange(0, 64, gl.SliceLayout(1, wide)), gl.arange(0, 128, gl.SliceLayout(0, wide))
    gl.store(d_ptr + row[:, None] * 128 + column[None, :], floats)


@gluon.jit
def packed_kernel(x_ptr, y_ptr, z_ptr, sums_ptr, halves_ptr):
    """Use all packed operations, on fp32 and on fp16."""
    x, y, z = (
        gl.load(tile_of(x_ptr, 64, 64)),
        gl.load(tile_of(y_ptr, 64, 64)),
        gl.load(tile_of(z_ptr, 64, 64)),
    )
    sums = blackwell.fma2(blackwell.add2(x, y), blackwell.mul2(y, 0.5), blackwell.sub2(z, x))
    gl.store(tile_of(sums_ptr, 64, 64), sums)
    halves = blackwell.max2(blackwell.min2(x.to(gl.float16), y.to(gl.float16)), z.to(gl.float16))
    gl.store(tile_of(halves_ptr, 64, 64), halves)
