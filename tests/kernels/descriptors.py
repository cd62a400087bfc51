"""Small kernels about TMA descriptors: made in the kernel, rewritten, and over groups of rows."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

LAYOUT = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2))


@gluon.jit
def copied_kernel(x_ptr, y_ptr, rows, columns, stride, tiles):
    """Copy tiles of 32 x 64 of a matrix, each by two descriptors that the kernel makes for it."""
    page = gl.allocate_shared_memory(gl.float32, [32, 64], LAYOUT)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    for tile in range(tiles):
        first = tile * 32
        x_desc = tma.make_tensor_descriptor(
            x_ptr + first * stride, [rows - first, columns], [stride, 1], [32, 64], LAYOUT
        )
        tma.store_wait(0)
        mbarrier.expect(ready, x_desc.nbytes_per_cta)
        tma.async_load(x_desc, [0, 0], ready, page)
        mbarrier.wait(ready, tile & 1)
        y_desc = tma.make_tensor_descriptor(
            y_ptr + first * stride, [rows - first, columns], [stride, 1], [32, 64], LAYOUT
        )
        tma.async_store(y_desc, [0, 0], page)
    tma.store_wait(0)
    mbarrier.invalidate(ready)


@gluon.jit
def boxes_kernel(x_desc, y_desc, tiles_m, tiles_n):
    """Copy boxes of a matrix through two pages by descriptors of the host."""
    rows: gl.constexpr = x_desc.block_type.shape[0]
    columns: gl.constexpr = x_desc.block_type.shape[1]
    page = gl.allocate_shared_memory(x_desc.dtype, [2, rows, columns], x_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(ready.index(i), count=1)
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        row, column = tile // tiles_n * rows, tile % tiles_n * columns
        turn = tile // gl.num_programs(0)
        bar = ready.index(turn % 2)
        tma.store_wait(1)
        mbarrier.expect(bar, x_desc.nbytes_per_cta)
        tma.async_load(x_desc, [row, column], bar, page.index(turn % 2))
        mbarrier.wait(bar, turn // 2 & 1)
        tma.async_store(y_desc, [row, column], page.index(turn % 2))
    tma.store_wait(0)


@gluon.jit
def groups_kernel(x_desc, y_desc, ends_ptr):
    """Multiply a group of rows by its number, in each program; TMA drops the rows beyond a group's end.

    The first two dimensions belong to Triton's tools/ragged_tma.py: addresses wrap around, and the third
    coordinate passes the bound of its dimension at the end of the group.
    """
    tile: gl.constexpr = gl.BlockedLayout([1, 1, 1, 8], [1, 1, 4, 8], [1, 1, 4, 1], [3, 2, 1, 0])
    page = gl.allocate_shared_memory(x_desc.dtype, [1, 1, 32, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    group = gl.program_id(0)
    first = gl.load(ends_ptr + group)
    end = gl.load(ends_ptr + group + 1)
    size = end - first
    phase = 0
    for row in range(0, size, 32):
        place = [0x40000000, first + size, 0x40000000 - size + row, 0]
        tma.store_wait(0)
        mbarrier.expect(ready, x_desc.nbytes_per_cta)
        tma.async_load(x_desc, place, ready, page)
        mbarrier.wait(ready, phase)
        phase ^= 1
        page.store(page.load(tile) * group.to(gl.float16))
        fence_async_shared()
        tma.async_store(y_desc, place, page)
    tma.store_wait(0)


@gluon.jit
def rows_ahead_kernel(x_desc, y_desc, row, ahead):
    """Copy a box of overlapping boxes of rows, from a negative place in the box on."""
    rows: gl.constexpr = x_desc.block_type.shape[1]
    columns: gl.constexpr = x_desc.block_type.shape[2]
    page = gl.allocate_shared_memory(x_desc.dtype, [1, rows, columns], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [row, ahead, 0], ready, page)
    mbarrier.wait(ready, 0)
    tma.async_store(y_desc, [0, 0, 0], page)
    tma.store_wait(0)


@gluon.jit
def moved_base_kernel(x_desc, y_desc, x_first, y_first):
    """Copy a box of a matrix between descriptors with bases of their own."""
    page = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [x_first, 0], ready, page)
    mbarrier.wait(ready, 0)
    tma.async_store(y_desc, [y_first, 0], page)
    tma.store_wait(0)


@gluon.jit
def moved_pointer_kernel(x_ptr, y_ptr, ahead, rows: gl.constexpr, columns: gl.constexpr):
    """Copy a matrix between descriptors of the kernel, the one of loads some rows ahead of the matrix."""
    page = gl.allocate_shared_memory(gl.float32, [rows, columns], LAYOUT)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    x_desc = tma.make_tensor_descriptor(
        x_ptr - ahead * columns, [rows + ahead, columns], [columns, 1], [rows, columns], LAYOUT
    )
    y_desc = tma.make_tensor_descriptor(y_ptr, [rows, columns], [columns, 1], [rows, columns], LAYOUT)
    mbarrier.expect(ready, x_desc.nbytes_per_cta)
    tma.async_load(x_desc, [ahead, 0], ready, page)
    mbarrier.wait(ready, 0)
    tma.async_store(y_desc, [0, 0], page)
    tma.store_wait(0)
