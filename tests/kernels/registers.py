"""Small kernels that compute in registers: packed arithmetic, inline PTX, and reductions with edges."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

QUADS = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
ROWS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


@gluon.jit
def packed_kernel(x_ptr, y_ptr, z_ptr, d_ptr):
    """Store (x + y) * z + (x - z), clamped by y and z, in pairs of numbers."""
    offsets = gl.arange(0, 512, QUADS)
    x, y, z = gl.load(x_ptr + offsets), gl.load(y_ptr + offsets), gl.load(z_ptr + offsets)
    sums = blackwell.add2(x, y)
    differences = blackwell.sub2(x, z)
    values = blackwell.fma2(sums, z, differences)
    y, z = y.to(gl.float16), z.to(gl.float16)
    low, high = blackwell.min2(y, z), blackwell.max2(y, z)
    gl.store(d_ptr + offsets, blackwell.max2(blackwell.min2(values.to(gl.float16), high), low))


@gluon.jit
def assembly_kernel(x_ptr, y_ptr, words_ptr, pairs_ptr, codes_ptr, moved_ptr, signs_ptr):
    """Convert pairs to bf16, and fields of words to numbers, by inline PTX."""
    offsets = gl.arange(0, 512, QUADS)
    x, y, words = gl.load(x_ptr + offsets), gl.load(y_ptr + offsets), gl.load(words_ptr + offsets)
    pairs = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x, y], dtype=gl.int32, is_pure=True, pack=1
    )
    gl.store(pairs_ptr + offsets, pairs)
    codes = gl.inline_asm_elementwise(
        "{ .reg .b32 t; shr.u32 t, $1, 4; lop3.b32 $0, t, 0x000F000F, 0x43004300, 0xEA; }",
        "=r,r",
        [words],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    gl.store(codes_ptr + offsets, codes)
    moved = gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, 0x5410;", "=r,r,r", [words, pairs], dtype=gl.int32, is_pure=True, pack=1
    )
    gl.store(moved_ptr + offsets, moved)
    signs = gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.lt.f32 p, $1, $2; selp.b32 $0, -1, 1, p; }",
        "=r,f,f",
        [x, y],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    gl.store(signs_ptr + offsets, signs)


@gluon.jit
def _larger(a, i, b, j):
    """Return the larger number and its position, the first one of equal numbers."""
    first = (a > b) | ((a == b) & (i < j))
    return gl.where(first, a, b), gl.where(first, i, j)


@gluon.jit
def reduced_kernel(x_ptr, largest_ptr, position_ptr, mean_ptr, rows, columns):
    """Reduce the rows of a matrix that ends within a tile: largest number, its position, and the mean."""
    row, column = gl.arange(0, 64, gl.SliceLayout(1, TILE)), gl.arange(0, 64, gl.SliceLayout(0, TILE))
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    addresses = x_ptr + row[:, None] * columns + column[None, :]
    x = gl.load(addresses, mask=inside, other=-float("inf"))
    positions, _ = gl.broadcast(column[None, :], x)
    largest, position = gl.reduce((x, positions), 1, _larger)
    gl.store(largest_ptr + row, largest, mask=row < rows)
    gl.store(position_ptr + row, position, mask=row < rows)
    total = gl.sum(gl.where(inside, x, 0.0), 1)
    gl.store(mean_ptr + row, total / columns, mask=row < rows)


@gluon.jit
def _summing(x_ptr, parts, part, ready):
    """Sum 32 rows of a matrix into one part."""
    row, column = gl.arange(0, 32, gl.SliceLayout(1, TILE)), gl.arange(0, 64, gl.SliceLayout(0, TILE))
    x = gl.load(x_ptr + (part * 32 + row)[:, None] * 64 + column[None, :])
    sums = gl.sum(x, 0)
    parts.slice(part, 1).store(sums[None, :])
    mbarrier.arrive(ready)


@gluon.jit
def _adding(d_ptr, parts, ready):
    """Add two parts up when both are there."""
    mbarrier.wait(ready, 0)
    column = gl.arange(0, 64, gl.SliceLayout(0, TILE))
    gl.store(d_ptr + column, gl.sum(parts.load(TILE), 0))


@gluon.jit
def parts_kernel(x_ptr, d_ptr):
    """Sum the columns of 64 rows: two partitions sum half of the rows each, and a third one adds them up."""
    parts = gl.allocate_shared_memory(gl.float32, [2, 64], ROWS)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=2)
    gl.warp_specialize(
        [
            (_adding, (d_ptr, parts, ready)),
            (_summing, (x_ptr, parts, 0, ready)),
            (_summing, (x_ptr, parts, 1, ready)),
        ],
        [4, 4],
    )


@gluon.jit
def running_kernel(x_ptr, d_ptr, blocks):
    """Add up blocks of 64 x 64 into a sum that shared memory keeps, and store the sum at the end."""
    row, column = gl.arange(0, 64, gl.SliceLayout(1, TILE)), gl.arange(0, 64, gl.SliceLayout(0, TILE))
    places = row[:, None] * 64 + column[None, :]
    kept = gl.allocate_shared_memory(gl.float32, [64, 64], ROWS)
    kept.store(gl.zeros([64, 64], gl.float32, TILE))
    for block in range(blocks):
        kept.store(kept.load(TILE) + gl.load(x_ptr + block * 4096 + places))
    gl.store(d_ptr + places, kept.load(TILE))
