"""Small Gluon kernels, one for each part of the language that people use beside a matmul."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
ROWS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))


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


@gluon.jit
def fused_kernel(x_ptr, y_ptr, d_ptr):
    """D = X * X + Y of 128 numbers, by fused multiply-adds."""
    offsets = gl.arange(0, 128, LINE)
    x, y = gl.load(x_ptr + offsets), gl.load(y_ptr + offsets)
    gl.store(d_ptr + offsets, gl.fma(x, x, y))


@gluon.jit
def _steps(a, b, factor):
    """Return a number that depends on which of two is larger."""
    if a > b:  # noqa: SIM108 - a branch is meant
        r = a * factor
    else:
        r = b if b > 1 else b - 3.0
    return r


@gluon.jit
def _larger_twice(a, b):
    """Return the larger number, by a branch that also doubles and halves it."""
    if a > b:  # noqa: SIM108 - a branch is meant
        r = a * 2 * 0.5
    else:
        r = b
    return r


@gluon.jit
def branches_kernel(x_ptr, y_ptr, d_ptr, largest_ptr, factor):
    """Apply functions with branches to each element."""
    x, y = gl.load(tile_of(x_ptr, 64, 64)), gl.load(tile_of(y_ptr, 64, 64))
    factors = gl.full([64, 64], factor, gl.float32, TILE)
    gl.store(tile_of(d_ptr, 64, 64), gl.map_elementwise(_steps, x, y, factors))
    rows = gl.arange(0, 64, gl.SliceLayout(1, TILE))
    gl.store(largest_ptr + rows, gl.reduce(x, 1, _larger_twice))


@gluon.jit(noinline=True)
def _double_kept(x_ptr, d_ptr, addend):
    """Store twice a tile plus a number, by way of shared memory; return the next number."""
    kept = gl.allocate_shared_memory(gl.float32, [64, 64], ROWS, gl.load(tile_of(x_ptr, 64, 64)))
    gl.store(tile_of(d_ptr, 64, 64), kept.load(TILE) * 2 + addend)
    return addend + 1


@gluon.jit
def calls_kernel(x_ptr, d_ptr, addend, count):
    """Call a function that is not inlined, while a buffer of the kernel's own is in use."""
    kept = gl.allocate_shared_memory(gl.float32, [64, 64], ROWS, gl.load(tile_of(x_ptr, 64, 64)))
    addend = _double_kept(x_ptr, d_ptr, addend)
    for _ in range(count):
        addend = _double_kept(d_ptr, d_ptr, addend)
    gl.store(tile_of(d_ptr, 64, 64), gl.load(tile_of(d_ptr, 64, 64)) + kept.load(TILE))


@gluon.jit
def tuples_kernel(pair, d_ptr):
    """Add a tile and a multiple of another, which come with the factor in a tuple of tuples."""
    x_ptr, (y_ptr, factor) = pair
    x, y = gl.load(tile_of(x_ptr, 64, 64)), gl.load(tile_of(y_ptr, 64, 64))
    gl.store(tile_of(d_ptr, 64, 64), x + y * factor)


@gluon.jit
def elements_kernel(x_ptr, index_ptr, counts_ptr, d_ptr):
    """Gather along rows, scatter along columns, and count by atomics in shared memory, with padding."""
    padded: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[64, 4], [1024, 8]], [64, 64], [1, 0])
    x, index = gl.load(tile_of(x_ptr, 64, 64)), gl.load(tile_of(index_ptr, 64, 64))
    kept = gl.allocate_shared_memory(gl.float32, [64, 64], padded, x)
    moved = gl.allocate_shared_memory(gl.float32, [64, 64], ROWS)
    moved.scatter(kept.gather(index, 0), index, 1)
    gl.store(tile_of(d_ptr, 64, 64), moved.load(TILE))
    counts = gl.allocate_shared_memory(gl.int32, [64, 64], ROWS, gl.zeros([64, 64], gl.int32, TILE))
    ones = gl.full([64, 64], 1, gl.int32, TILE)
    counts.atomic_scatter_add(ones, index * 0, 1, mask=index < 32)
    gl.store(tile_of(counts_ptr, 64, 64), counts.load(TILE))


@gluon.jit
def _store_row(buffer, x_ptr, row, ready):
    """Scatter 64 numbers into a row of a buffer."""
    column = gl.arange(0, 64, gl.SliceLayout(0, TILE))
    x = gl.load(x_ptr + row * 64 + column)
    buffer.scatter(x[None, :], gl.full([1, 64], row, gl.int32, TILE), 0)
    mbarrier.arrive(ready)


@gluon.jit
def scatter_in_roles_kernel(x_ptr, d_ptr, other_row):
    """Scatter a row in each of two partitions; with both of row 0, they race."""
    buffer = gl.allocate_shared_memory(gl.float32, [2, 64], ROWS)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=2)
    gl.warp_specialize(
        [(_store_row, (buffer, x_ptr, 0, ready)), (_store_row, (buffer, x_ptr, other_row, ready))], [4]
    )
    mbarrier.wait(ready, 0)
    row, column = gl.arange(0, 2, gl.SliceLayout(1, TILE)), gl.arange(0, 64, gl.SliceLayout(0, TILE))
    gl.store(d_ptr + row[:, None] * 64 + column[None, :], buffer.load(TILE))


@gluon.jit
def _count(counts, ready, arrives: gl.constexpr):
    """Add 1 to each of 64 elements."""
    ones = gl.full([1, 64], 1, gl.int32, TILE)
    counts.atomic_scatter_add(ones, gl.zeros([1, 64], gl.int32, TILE), 0)
    if arrives:
        mbarrier.arrive(ready)


@gluon.jit
def _report(counts, d_ptr, ready):
    mbarrier.wait(ready, 0)
    column = gl.arange(0, 64, gl.SliceLayout(0, TILE))
    gl.store(d_ptr + column[None, :], counts.load(TILE))


@gluon.jit
def count_in_roles_kernel(d_ptr, both: gl.constexpr):
    """Count in two partitions, and read in a third one that awaits both of them, or the second one only."""
    counts = gl.allocate_shared_memory(gl.int32, [1, 64], ROWS, gl.zeros([1, 64], gl.int32, TILE))
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=2 if both else 1)
    gl.warp_specialize(
        [
            (_count, (counts, ready, both)),
            (_count, (counts, ready, True)),
            (_report, (counts, d_ptr, ready)),
        ],
        [4, 4],
    )


@gluon.jit
def scatter_twice_kernel(x_ptr, d_ptr):
    """Scatter two numbers to each element."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], ROWS, gl.load(tile_of(d_ptr, 64, 64)))
    column = gl.arange(0, 64, gl.SliceLayout(0, TILE))
    halves = gl.zeros([64, 64], gl.int32, TILE) + (column // 2)[None, :]
    buffer.scatter(gl.load(tile_of(x_ptr, 64, 64)), halves, 1)
    gl.store(tile_of(d_ptr, 64, 64), buffer.load(TILE))


@gluon.jit
def arrivals_of_threads_kernel(x_ptr, d_ptr, count: gl.constexpr):
    """Await copies by cp.async whose arrivals the barrier counts."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], ROWS)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=count)
    async_copy.async_load(buffer, tile_of(x_ptr, 64, 64))
    async_copy.mbarrier_arrive(ready, increment_count=False)
    mbarrier.wait(ready, 0)
    gl.store(tile_of(d_ptr, 64, 64), buffer.load(TILE))


SPLIT = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]]))
CROSSED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=[[0, 1]]))
ACROSS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 1]]))
ALIKE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 0]]))


@gluon.jit
def divided_gather_kernel(x_ptr, index_ptr, d_ptr, source: gl.constexpr):
    """Gather along rows by an index that two CTAs divide by rows, from a tile in a layout."""
    row, column = gl.arange(0, 64, gl.SliceLayout(1, source)), gl.arange(0, 64, gl.SliceLayout(0, source))
    x = gl.load(x_ptr + row[:, None] * 64 + column[None, :])
    row, column = gl.arange(0, 64, gl.SliceLayout(1, SPLIT)), gl.arange(0, 64, gl.SliceLayout(0, SPLIT))
    places = row[:, None] * 64 + column[None, :]
    gl.store(d_ptr + places, gl.gather(x, gl.load(index_ptr + places), 1))


@gluon.jit
def async_store_kernel(x_ptr, d_ptr, waits: gl.constexpr):
    """Store a tile that two CTAs divide by rows into a buffer that they divide by columns."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], CROSSED)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, buffer.nbytes_per_cta)
    row, column = gl.arange(0, 64, gl.SliceLayout(1, SPLIT)), gl.arange(0, 64, gl.SliceLayout(0, SPLIT))
    x = gl.load(x_ptr + row[:, None] * 64 + column[None, :])
    hopper.cluster.barrier()
    hopper.async_store(buffer, x, ready)
    if waits:
        mbarrier.wait(ready, 0)
    found = buffer.load(ACROSS)
    row, column = gl.arange(0, 64, gl.SliceLayout(1, ACROSS)), gl.arange(0, 64, gl.SliceLayout(0, ACROSS))
    gl.store(d_ptr + row[:, None] * 64 + column[None, :], found)


@gluon.jit
def tensor_memory_kernel(x_ptr, halves_ptr, low_ptr):
    """Store fp32, then bf16 over the second half of each row; read all as fp32 and the rest as bf16."""
    whole: gl.constexpr = blackwell.TensorMemoryLayout((128, 64), col_stride=1)
    half: gl.constexpr = blackwell.TensorMemoryLayout((128, 64), col_stride=1)
    memory = blackwell.allocate_tensor_memory(gl.float32, [128, 64], whole)
    layout: gl.constexpr = memory.get_reg_layout()
    row, column = gl.arange(0, 128, gl.SliceLayout(1, layout)), gl.arange(0, 64, gl.SliceLayout(0, layout))
    places = row[:, None] * 64 + column[None, :]
    x = gl.load(x_ptr + places)
    memory.store(x)
    upper = memory.slice(32, 32).reinterpret(gl.bfloat16, [128, 64], half)
    halves: gl.constexpr = upper.get_reg_layout()
    upper.store(gl.convert_layout((x * 2).to(gl.bfloat16), halves))
    gl.store(halves_ptr + places, gl.convert_layout(memory.load(layout), layout))
    lower = memory.reinterpret(gl.bfloat16, [128, 64], half)
    gl.store(low_ptr + places, gl.convert_layout(lower.load(halves), layout))


@gluon.jit
def im2col_kernel(x_desc, d_ptr, steps, image, row, column, taps: gl.constexpr):
    """Load 64 pixels by 64 channels from a position on, for each tap of a filter."""
    ring = gl.allocate_shared_memory(gl.float16, [2, 64, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(ready.index(i), count=1)
    for step in range(steps):
        slot = step % 2
        mbarrier.expect(ready.index(slot), x_desc.nbytes_per_cta)
        offsets = [(step // taps).to(gl.int16), (step % taps).to(gl.int16)]
        place = [image, row, column, 0]
        tma.async_load_im2col(x_desc, place, offsets, ready.index(slot), ring.index(slot))
        mbarrier.wait(ready.index(slot), step // 2 & 1)
        gl.store(tile_of(d_ptr + step * 4096, 64, 64), ring.index(slot).load(TILE))
        hopper.fence_async_shared()


@gluon.jit
def ragged_kernel(x_desc, d_desc, first, size, row):
    """Copy 32 rows of a group from `row` on; the group has `size` rows from `first` on."""
    page = gl.allocate_shared_memory(gl.float16, [1, 1, 32, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    place = [0x40000000, first + size, 0x40000000 - size + row, 0]
    tma.async_load(x_desc, place, ready, page)
    mbarrier.wait(ready, 0)
    tma.async_store(d_desc, place, page)
    tma.store_wait(0)


QUADS = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))


@gluon.jit
def assembly_kernel(x_ptr, y_ptr, words_ptr, exp_ptr, pairs_ptr, codes_ptr, bytes_ptr, chosen_ptr):
    """Use instructions on 512 numbers: alone, in pairs, and on four bytes at a time."""
    offsets = gl.arange(0, 512, QUADS)
    x, y, words = gl.load(x_ptr + offsets), gl.load(y_ptr + offsets), gl.load(words_ptr + offsets)
    exp = gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )
    gl.store(exp_ptr + offsets, exp)
    pairs = gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x, y], dtype=gl.uint32, is_pure=True, pack=1
    )
    gl.store(pairs_ptr + offsets, pairs.to(gl.int32, bitcast=True))
    # Four bits of each half to bf16: 0x4300 and a code c are 128 + c.
    codes = gl.inline_asm_elementwise(
        """{
        .reg .b32 t, c;  // 128 + 8, twice
        mov.b32 c, 0x43084308;
        shr.u32 t, $1, 4;
        lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA;
        sub.rn.bf16x2 $0, t, c;
        }""",
        "=r,r",
        [words],
        dtype=gl.uint32,
        is_pure=True,
        pack=1,
    )
    gl.store(codes_ptr + offsets, codes.to(gl.int32, bitcast=True))
    eight = gl.inline_asm_elementwise(
        """{
        .reg .b16 lo, hi;
        cvt.rn.satfinite.e4m3x2.f32 lo, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 hi, $4, $3;
        mov.b32 $0, {lo, hi};
        }""",
        "=r,f,f,f,f",
        [x * 200],
        dtype=gl.int8,
        is_pure=True,
        pack=4,
    )
    gl.store(bytes_ptr + offsets, eight)
    chosen = gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.f32 p, $1, $2; prmt.b32 $0, $1, $2, 0x1076; @p mov.b32 $0, 7; }",
        "=r,f,f",
        [x, y],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    gl.store(chosen_ptr + offsets, chosen)


@gluon.jit
def unknown_assembly_kernel(x_ptr):
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    y = gl.inline_asm_elementwise(
        "vabsdiff4.u32 $0, $1, $1, $1;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1
    )
    gl.store(x_ptr + offsets, y)


BATCH = gl.constexpr(gl.BlockedLayout([1, 1, 8], [1, 4, 8], [1, 4, 1], [2, 1, 0]))


@gluon.jit
def batched_dot_kernel(x_ptr, d_ptr, fused: gl.constexpr):
    """D[i] = X[i] @ X[i] of two 64 x 64 matrices, by the warps' MMA or by fused multiply-adds."""
    batch = gl.arange(0, 2, gl.SliceLayout(1, gl.SliceLayout(2, BATCH)))
    row = gl.arange(0, 64, gl.SliceLayout(0, gl.SliceLayout(2, BATCH)))
    column = gl.arange(0, 64, gl.SliceLayout(0, gl.SliceLayout(1, BATCH)))
    places = batch[:, None, None] * 4096 + row[None, :, None] * 64 + column[None, None, :]
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, 4, 1], [1, 16, 8])
    parent: gl.constexpr = BATCH if fused else mma
    width: gl.constexpr = 0 if fused else 2
    x = gl.load(x_ptr + places)
    a = gl.convert_layout(x, gl.DotOperandLayout(0, parent, width))
    b = gl.convert_layout(x, gl.DotOperandLayout(1, parent, width))
    zeros = gl.zeros([2, 64, 64], gl.float32, parent)
    if fused:  # noqa: SIM108 - a branch of the compiler
        d = gl.dot_fma(a, b, zeros)
    else:
        d = mma_v2(a, b, zeros)
    gl.store(d_ptr + places, gl.convert_layout(d, BATCH))


@gluon.jit
def strange_type_kernel(x_ptr):
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    gl.store(x_ptr + offsets, x.to(gl.float8e5).to(gl.float16))
