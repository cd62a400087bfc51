"""Reductions and scans whose combine functions make tensors, though they combine single elements."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon

TILE = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))
PAIR = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [1, 4], [1, 0]))
LANES = gl.constexpr(gl.SliceLayout(0, PAIR))
LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _sum(a, b):
    return a + b


@gluon.jit
def _paired(a, b):
    """A tensor of two numbers."""
    return gl.where(gl.arange(0, 2, layout=LANES) == 0, a, b)


@gluon.jit
def by_split(a, b):
    """Add two numbers as a tensor that is split."""
    x, y = gl.split(_paired(a, b))
    return x + y


@gluon.jit
def by_sum(a, b):
    """Add two numbers as a tensor that is reduced."""
    return gl.sum(_paired(a, b), 0)


@gluon.jit
def by_scan(a, b):
    """Add two numbers as a tensor that is scanned."""
    _, y = gl.split(gl.associative_scan(_paired(a, b), 0, _sum))
    return y


@gluon.jit
def by_choice(a, b):
    """Return the larger number: which tensor holds it first depends on the numbers."""
    x, _ = gl.split(gl.where(a > b, _paired(a, b), _paired(b, a)))
    return x


@gluon.jit
def by_branch(a, b):
    """Return the larger number: a branch says which tensor holds it first."""
    both = _paired(b, a)
    if a > b:
        both = _paired(a, b)
    x, _ = gl.split(both)
    return x


@gluon.jit
def by_join(a, b):
    """Add two numbers four times over, in a matrix that is turned, reshaped and gathered."""
    both = _paired(a, b)
    line = gl.join(both, both).trans(1, 0).reshape([4])
    turned = gl.gather(line, 3 - gl.arange(0, 4, line.type.layout), 0)
    return gl.sum(turned, 0) / 2


@gluon.jit
def by_columns(a, b):
    """Add two numbers on the diagonal of a matrix."""
    rows = gl.arange(0, 2, layout=gl.SliceLayout(1, PAIR))
    both = gl.expand_dims(_paired(a, b), 0)
    on_diagonal = rows[:, None] == gl.arange(0, 2, layout=LANES)[None, :]
    return gl.sum(gl.sum(gl.where(on_diagonal, both, 0.0), 1), 0)


@gluon.jit
def by_many(a, b):
    """Add two numbers as the sum of a tensor that lies in several warps."""
    line = gl.arange(0, 128, layout=LINE)
    return gl.sum(gl.where(line == 5, a, gl.where(line == 77, b, 0.0)), 0)


@gluon.jit
def _combined(v, how: gl.constexpr, scans: gl.constexpr):
    if how == "split":
        return gl.associative_scan(v, 1, by_split) if scans else gl.reduce(v, 1, by_split)
    if how == "sum":
        return gl.associative_scan(v, 1, by_sum) if scans else gl.reduce(v, 1, by_sum)
    if how == "scan":
        return gl.associative_scan(v, 1, by_scan) if scans else gl.reduce(v, 1, by_scan)
    if how == "choice":
        return gl.associative_scan(v, 1, by_choice) if scans else gl.reduce(v, 1, by_choice)
    if how == "branch":
        return gl.associative_scan(v, 1, by_branch) if scans else gl.reduce(v, 1, by_branch)
    if how == "join":
        return gl.associative_scan(v, 1, by_join) if scans else gl.reduce(v, 1, by_join)
    if how == "columns":
        return gl.associative_scan(v, 1, by_columns) if scans else gl.reduce(v, 1, by_columns)
    return gl.associative_scan(v, 1, by_many) if scans else gl.reduce(v, 1, by_many)


@gluon.jit
def combining_kernel(x_ptr, y_ptr, how: gl.constexpr, scans: gl.constexpr):
    """Combine the columns of a tile of 64 x 32, or those up to each one."""
    rows, columns = gl.arange(0, 64, gl.SliceLayout(1, TILE)), gl.arange(0, 32, gl.SliceLayout(0, TILE))
    places = rows[:, None] * 32 + columns[None, :]
    found = _combined(gl.load(x_ptr + places), how, scans)
    if scans:
        gl.store(y_ptr + places, found)
    else:
        gl.store(y_ptr + rows * 32, found)


@gluon.jit
def both_sums(a, b, c, d):
    """Add two pairs as one tensor, as Triton's attention example does."""
    return gl.split(_paired(a, b) + _paired(c, d))


@gluon.jit
def pairs_kernel(x_ptr, y_ptr):
    """Sum up the rows of a tile of 64 x 32, and of twice the tile."""
    rows, columns = gl.arange(0, 64, gl.SliceLayout(1, TILE)), gl.arange(0, 32, gl.SliceLayout(0, TILE))
    x = gl.load(x_ptr + rows[:, None] * 32 + columns[None, :])
    once, twice = gl.reduce((x, x * 2), 1, both_sums)
    gl.store(y_ptr + rows, once)
    gl.store(y_ptr + 64 + rows, twice)
