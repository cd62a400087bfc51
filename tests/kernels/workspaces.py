"""Small kernels whose programs or CTAs hand parts to each other: in turns, by exchange, and by multicast."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
SPLIT = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0]]))
QUARTERS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[1, 0], [2, 0]]))
ACROSS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=[[0, 1]]))
BY_COLUMNS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=[[0, 1]]))


@gluon.jit
def turns_kernel(x_ptr, sums_ptr, d_ptr, turns_ptr, parts):
    """Add up the parts of a tile in the order of the programs; the last program stores the sum.

    `turns` is the part that may add next; the workspace `sums` may hold anything at the beginning.
    """
    offsets = gl.arange(0, 128, LINE)
    tile = gl.program_id(0) // parts
    part = gl.program_id(0) % parts
    x = gl.load(x_ptr + gl.program_id(0) * 128 + offsets)
    gl.atomic_poll(turns_ptr + tile, part, sem="acquire", scope="gpu")
    if part > 0:
        x += gl.load(sums_ptr + tile * 128 + offsets)
    if part < parts - 1:
        gl.store(sums_ptr + tile * 128 + offsets, x)
        gl.atomic_store(turns_ptr + tile, part + 1, sem="release", scope="gpu")
    else:
        gl.store(d_ptr + tile * 128 + offsets, x)
        gl.atomic_store(turns_ptr + tile, 0, sem="relaxed")


@gluon.jit
def places(ptr, layout: gl.constexpr, rows: gl.constexpr = 64):
    row, column = gl.arange(0, rows, gl.SliceLayout(1, layout)), gl.arange(0, 64, gl.SliceLayout(0, layout))
    return ptr + row[:, None] * 64 + column[None, :]


@gluon.jit
def exchange_kernel(x_ptr, d_ptr, rounds):
    """Hand tiles from CTAs that divide their rows to CTAs that divide their columns, through one buffer."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], BY_COLUMNS)
    for step in range(rounds):
        x = gl.load(places(x_ptr + step * 4096, SPLIT))
        hopper.cluster.barrier()
        buffer.store(x)
        hopper.cluster.barrier()
        gl.store(places(d_ptr + step * 4096, ACROSS), buffer.load(ACROSS))


@gluon.jit
def sent_kernel(x_ptr, d_ptr, rounds):
    """Send tiles as `exchange_kernel` does, by asynchronous stores that a barrier of each CTA counts."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], BY_COLUMNS)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    for step in range(rounds):
        x = gl.load(places(x_ptr + step * 4096, SPLIT))
        mbarrier.expect(ready, buffer.nbytes_per_cta)
        hopper.cluster.barrier()
        hopper.async_store(buffer, x, ready)
        mbarrier.wait(ready, step & 1)
        gl.store(places(d_ptr + step * 4096, ACROSS), buffer.load(ACROSS))


@gluon.jit
def _shared_loads(x_desc, page, ready, empty, group_empty, steps):
    """Load tiles; the first CTA of a pair issues for both, once both have read the slot."""
    for step in range(steps):
        slot = step % 2
        mbarrier.wait(empty.index(slot), step // 2 & 1 ^ 1)
        mbarrier.expect(ready.index(slot), x_desc.nbytes_per_cta)
        mbarrier.wait(group_empty.index(slot), step // 2 & 1 ^ 1)
        tma.async_load(x_desc, [step * 128, 0], ready.index(slot), page.index(slot), multicast=True)


@gluon.jit
def _shared_reads(d_ptr, page, ready, empty, group_empty, steps):
    """Add up tiles; each CTA reads a quarter of the rows in its own memory."""
    total = gl.zeros([128, 64], gl.float32, QUARTERS)
    for step in range(steps):
        slot = step % 2
        mbarrier.wait(ready.index(slot), step // 2 & 1)
        total += page.index(slot).load(QUARTERS)
        fence_async_shared()
        mbarrier.arrive(empty.index(slot))
        mbarrier.arrive(group_empty.index(slot))
    gl.store(places(d_ptr, QUARTERS, 128), total)


@gluon.jit
def multicast_kernel(x_desc, d_ptr, steps):
    """Add up tiles of 128 x 64, of which each pair of CTAs loads half of the rows by multicast."""
    page = gl.allocate_shared_memory(gl.float32, [2, 128, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=2)
    empty = mbarrier.allocate_mbarrier(batch=2)
    group_empty = gl.allocate_shared_memory(gl.int64, [2, 2], mbarrier.MBarrierLayout([[0], [1]]))
    for slot in gl.static_range(2):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
        mbarrier.init(group_empty.index(slot), count=1)
    gl.warp_specialize(
        [
            (_shared_reads, (d_ptr, page, ready, empty, group_empty, steps)),
            (_shared_loads, (x_desc, page, ready, empty, group_empty, steps)),
        ],
        [1],
    )


@gluon.jit
def dependent_kernel(weight_ptr, x_desc, d_desc, count_ptr):
    """Add a weight, which no kernel writes, to a tile of the kernel ahead; count the programs."""
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row, column = gl.arange(0, 64, gl.SliceLayout(1, tile)), gl.arange(0, 64, gl.SliceLayout(0, tile))
    page = gl.allocate_shared_memory(gl.float32, [64, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    first = gl.program_id(0) * 64
    weight = gl.load(weight_ptr + (first + row)[:, None] * 64 + column[None, :])
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    gdc_wait()
    tma.async_load(x_desc, [first, 0], ready, page)
    gdc_launch_dependents()
    mbarrier.wait(ready, 0)
    page.store(page.load(tile) + weight)
    fence_async_shared()
    tma.async_store(d_desc, [first, 0], page)
    gl.atomic_add(count_ptr, 1)
    tma.store_wait(0)
