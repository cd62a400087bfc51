"""Small Gluon kernels, one for each kind of operation that no matmul of this project needs."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.blackwell import tma as blackwell_tma
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def tile_of(pointer, rows: gl.constexpr, columns: gl.constexpr):
    row = gl.arange(0, rows, gl.SliceLayout(1, TILE))
    column = gl.arange(0, columns, gl.SliceLayout(0, TILE))
    return pointer + row[:, None] * columns + column[None, :]


@gluon.jit
def early_return_kernel(x_ptr, d_ptr, count):
    """Each program copies 128 elements; those behind the end return at once."""
    start = gl.program_id(0) * 128
    if start >= count:
        return
    offsets = start + gl.arange(0, 128, LINE)
    gl.store(d_ptr + offsets, gl.load(x_ptr + offsets))


@gluon.jit
def reinterpret_kernel(x_ptr, d_ptr):
    """Half of a buffer of 32-bit elements becomes a buffer of 16-bit ones."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    whole = gl.allocate_shared_memory(gl.float32, [2, 64, 64], layout)
    half = whole.index(1).reinterpret(gl.float16, [64, 64], layout)
    half.store(gl.load(tile_of(x_ptr, 64, 64)))
    gl.store(tile_of(d_ptr, 64, 64), half.load(TILE))


@gluon.jit
def async_copy_kernel(x_ptr, d_ptr, steps, depth: gl.constexpr, outstanding: gl.constexpr):
    """Copies by cp.async, `depth` tiles in a ring; a read awaits all but the newest `outstanding`."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    ring = gl.allocate_shared_memory(gl.float32, [depth, 64, 64], layout)
    for step in gl.static_range(depth - 1):
        async_copy.async_load(ring.index(step), tile_of(x_ptr + step * 4096, 64, 64))
        async_copy.commit_group()
    for step in range(steps):
        following = step + depth - 1
        source = tile_of(x_ptr + following * 4096, 64, 64)
        inside = gl.full([64, 64], following, gl.int32, TILE) < steps
        async_copy.async_load(ring.index(following % depth), source, mask=inside)
        async_copy.commit_group()
        async_copy.wait_group(outstanding)
        gl.store(tile_of(d_ptr + step * 4096, 64, 64), ring.index(step % depth).load(TILE))
    async_copy.wait_group(0)


@gluon.jit
def async_copy_arrive_kernel(x_ptr, d_ptr):
    """A copy that an mbarrier tells of."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    async_copy.async_load(buffer, tile_of(x_ptr, 64, 64))
    async_copy.mbarrier_arrive(ready, increment_count=True)
    mbarrier.arrive(ready)
    mbarrier.wait(ready, 0)
    gl.store(tile_of(d_ptr, 64, 64), buffer.load(TILE))


@gluon.jit
def mma_v2_kernel(a_ptr, b_ptr, d_ptr):
    """64 x 64 x 64 in registers."""
    result: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    a = gl.convert_layout(gl.load(tile_of(a_ptr, 64, 64)), gl.DotOperandLayout(0, result, 2))
    b = gl.convert_layout(gl.load(tile_of(b_ptr, 64, 64)), gl.DotOperandLayout(1, result, 2))
    sums = mma_v2(a, b, gl.zeros([64, 64], gl.float32, result))
    gl.store(tile_of(d_ptr, 64, 64), gl.convert_layout(sums, TILE))


@gluon.jit
def _sum(x, y):
    return x + y


@gluon.jit
def _product(x, y):
    return x * y


@gluon.jit
def scan_kernel(x_ptr, sums_ptr, products_ptr):
    """Running sums along the rows, and running products along them from the end."""
    x = gl.load(tile_of(x_ptr, 64, 64))
    gl.store(tile_of(sums_ptr, 64, 64), gl.associative_scan(x, 1, _sum))
    gl.store(tile_of(products_ptr, 64, 64), gl.associative_scan(x, 1, _product, reverse=True))


@gluon.jit
def precise_kernel(x_ptr, d_ptr):
    """A square root and a quotient that are rounded to nearest."""
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    gl.store(d_ptr + offsets, gl.div_rn(gl.sqrt_rn(x), x))


@gluon.jit
def dependent_launch_kernel(x_ptr, d_ptr):
    """Waits for the kernel before it and lets the next one begin."""
    gdc_wait()
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    gdc_launch_dependents()
    gl.store(d_ptr + offsets, x)


@gluon.jit
def assert_kernel(x_ptr, d_ptr):
    """Copies what must be positive."""
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    gl.device_assert(x > 0, "not positive")
    gl.device_print("x", x)
    gl.store(d_ptr + offsets, x)


@gluon.jit
def inline_assembly_kernel(x_ptr, d_ptr):
    """Negates 128 numbers by an instruction."""
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    y = gl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)
    gl.store(d_ptr + offsets, y)


@gluon.jit
def device_descriptor_kernel(x_ptr, d_ptr, rows, columns, column):
    """Descriptors that the kernel makes of pointers."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float32)
    x_desc = tma.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [64, 64], layout)
    d_desc = tma.make_tensor_descriptor(d_ptr, [rows, columns], [columns, 1], [64, 64], layout)
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [64, column], ready, buffer)
    mbarrier.wait(ready, 0)
    tma.async_store(d_desc, [64, column], buffer)
    tma.store_wait(0)


@gluon.jit
def gather_kernel(x_desc, d_desc, rows_ptr, skip_wait: gl.constexpr, column):
    """Rows that a tensor names, gathered and scattered by TMA."""
    layout: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))
    rows = gl.load(rows_ptr + gl.arange(0, 32, layout))
    buffer = gl.allocate_shared_memory(x_desc.dtype, [32, x_desc.block_type.shape[1]], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, 32 * x_desc.block_type.shape[1] * 4)
    blackwell_tma.async_gather(x_desc, rows, column, ready, buffer)
    if not skip_wait:
        mbarrier.wait(ready, 0)
    blackwell_tma.async_scatter(d_desc, rows, column, buffer)
    tma.store_wait(0)


@gluon.jit
def allocates_in_a_loop_kernel(x_ptr, d_ptr, steps):
    """The buffer is declared in the loop, and each turn reads what the first one wrote."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    for step in range(steps):
        buffer = gl.allocate_shared_memory(gl.float32, [64, 64], layout)
        if step == 0:
            buffer.store(gl.load(tile_of(x_ptr, 64, 64)))
        gl.store(tile_of(d_ptr + step * 4096, 64, 64), buffer.load(TILE))


@gluon.jit
def initialising(ready):
    mbarrier.init(ready, count=1)
    mbarrier.arrive(ready)


@gluon.jit
def awaiting(ready):
    mbarrier.wait(ready, 0)


@gluon.jit
def initialised_beside_a_wait_kernel():
    """One partition initialises a barrier, and nothing tells the other one when it may use it."""
    ready = mbarrier.allocate_mbarrier()
    gl.warp_specialize([(initialising, (ready,)), (awaiting, (ready,))], [1], [24])


@gluon.jit
def barrier_lives_kernel(again: gl.constexpr, invalidate: gl.constexpr, parity):
    """A barrier with a second life, and a wait for any parity."""
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.arrive(ready)
    mbarrier.wait(ready, parity)
    if invalidate:
        mbarrier.invalidate(ready)
    if again:
        mbarrier.init(ready, count=1)


@gluon.jit
def undefined_kernel(x_ptr, d_ptr, divisor, predicate):
    """Where the predicate is false, nothing depends on the quotient, nor on the slot before the first one."""
    bars = mbarrier.allocate_mbarrier(batch=2)
    mbarrier.init(bars.index(0), count=1)
    mbarrier.init(bars.index(1), count=1)
    quotient = 8 // divisor
    mbarrier.arrive(bars.index(quotient - 9), pred=predicate != 0)
    offsets = gl.arange(0, 128, LINE)
    x = gl.load(x_ptr + offsets)
    if predicate:
        gl.store(d_ptr + offsets + quotient * 0, x)
    else:
        gl.store(d_ptr + offsets, x)


@gluon.jit
def first_of_two(ready, done):
    mbarrier.wait(ready, 0)
    mbarrier.arrive(done)


@gluon.jit
def second_of_two(ready, done, release: gl.constexpr):
    if release:
        mbarrier.arrive(ready)
    mbarrier.wait(done, 0)


@gluon.jit
def handshake_kernel(release: gl.constexpr):
    """Two partitions wait for each other; without the release neither goes on, and `ready` is why."""
    done = mbarrier.allocate_mbarrier()
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(done, count=1)
    mbarrier.init(ready, count=1)
    gl.warp_specialize([(second_of_two, (ready, done, release)), (first_of_two, (ready, done))], [1], [24])


@gluon.jit
def cluster_column_kernel(x_ptr, d_ptr):
    """Pointers of a column, `[:, None]`, in a cluster that divides the columns of the tile."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 1]])
    row = gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, 128, gl.SliceLayout(0, layout))
    factors = gl.load(x_ptr + row[:, None])
    gl.store(d_ptr + row[:, None] * 128 + column[None, :], factors + column[None, :])


@gluon.jit
def same_place_kernel(x_ptr, d_ptr, offset):
    """Every program stores its own tile to the same place: what it loads from `offset` times its number."""
    tile = gl.load(tile_of(x_ptr + gl.program_id(0) * offset, 64, 64))
    gl.store(tile_of(d_ptr, 64, 64), tile)


@gluon.jit
def same_box_kernel(x_ptr, d_desc, offset):
    """As `same_place_kernel`, by TMA."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], d_desc.layout)
    buffer.store(gl.load(tile_of(x_ptr + gl.program_id(0) * offset, 64, 64)))
    fence_async_shared()
    tma.async_store(d_desc, [0, 0], buffer)
    tma.store_wait(0)


@gluon.jit
def half_a_box_apart_kernel(x_desc, d_desc, offset):
    """Program p stores the rows from 32 p on, with those that the next program stores too."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], d_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    row = gl.program_id(0) * 32
    tma.async_load(x_desc, [row + gl.program_id(0) * offset, 0], ready, buffer)
    mbarrier.wait(ready, 0)
    tma.async_store(d_desc, [row, 0], buffer)
    tma.store_wait(0)


@gluon.jit
def narrowing_kernel(x_ptr, d_ptr):
    """Converts a tile to what the pointer points to."""
    gl.store(tile_of(d_ptr, 64, 64), gl.load(tile_of(x_ptr, 64, 64)).to(d_ptr.dtype.element_ty))


@gluon.jit
def halves_kernel(x_ptr, out_ptr):
    """out = the halves of 32-bit numbers, from the third number on."""
    offsets = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    halves = (x_ptr + 2).to(gl.pointer_type(gl.int16), bitcast=True)
    gl.store(out_ptr + offsets, gl.load(halves + offsets))


@gluon.jit
def _first(a, b):
    return a


@gluon.jit
def first_kernel(x_ptr, out_ptr):
    """Reduces by a function that is neither a sum nor an extremum."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))
    columns = gl.arange(0, 64, gl.SliceLayout(0, layout))
    x = gl.load(x_ptr + rows[:, None] * 64 + columns[None, :])
    gl.store(out_ptr + rows, gl.reduce(x, 1, _first))
