"""Small Blackwell kernels whose accumulators and operands lie in tensor memory."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)

SUMS = gl.constexpr(TensorMemoryLayout([128, 64], col_stride=1))


@gluon.jit
def stored(d_ptr, tile, values):
    """Store a tile of 128 x 64."""
    layout: gl.constexpr = values.type.layout
    row, column = gl.arange(0, 128, gl.SliceLayout(1, layout)), gl.arange(0, 64, gl.SliceLayout(0, layout))
    gl.store(d_ptr + tile * 8192 + row[:, None] * 64 + column[None, :], values)


@gluon.jit
def product_kernel(a_desc, b_desc, d_ptr, steps, tiles):
    """Multiply tiles step by step through two stages; a step is loaded while the MMA of another one runs."""
    a = gl.allocate_shared_memory(a_desc.dtype, [2, 128, 64], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [2, 64, 64], b_desc.layout)
    sums = allocate_tensor_memory(gl.float32, [128, 64], SUMS)
    loaded = mbarrier.allocate_mbarrier(batch=2)
    multiplied = mbarrier.allocate_mbarrier(batch=2)
    for i in gl.static_range(2):
        mbarrier.init(loaded.index(i), count=1)
        mbarrier.init(multiplied.index(i), count=1)
    for tile in range(tiles):
        for step in range(steps):
            number = tile * steps + step
            stage = number % 2
            mbarrier.wait(multiplied.index(stage), number // 2 & 1 ^ 1)
            mbarrier.expect(loaded.index(stage), a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
            tma.async_load(a_desc, [tile * 128, step * 64], loaded.index(stage), a.index(stage))
            tma.async_load(b_desc, [step * 64, 0], loaded.index(stage), b.index(stage))
            mbarrier.wait(loaded.index(stage), number // 2 & 1)
            tcgen05_mma(a.index(stage), b.index(stage), sums, use_acc=step > 0)
            tcgen05_commit(multiplied.index(stage))
        last = tile * steps + steps - 1
        mbarrier.wait(multiplied.index(last % 2), last // 2 & 1)
        stored(d_ptr, tile, sums.load())


@gluon.jit
def chained_kernel(a_desc, b_desc, c_desc, d_ptr, tiles):
    """Compute (A @ B * 2) @ C, tile by tile: the first product is an operand in tensor memory."""
    a = gl.allocate_shared_memory(a_desc.dtype, [128, 64], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [64, 64], b_desc.layout)
    c = gl.allocate_shared_memory(c_desc.dtype, [64, 64], c_desc.layout)
    first = allocate_tensor_memory(gl.float32, [128, 64], SUMS)
    operand = allocate_tensor_memory(gl.float16, [128, 64], SUMS)
    second = allocate_tensor_memory(gl.float32, [128, 64], SUMS)
    loaded = mbarrier.allocate_mbarrier()
    multiplied = mbarrier.allocate_mbarrier()
    mbarrier.init(loaded, count=1)
    mbarrier.init(multiplied, count=1)
    for tile in range(tiles):
        mbarrier.expect(loaded, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta + c_desc.nbytes_per_cta)
        tma.async_load(a_desc, [tile * 128, 0], loaded, a)
        tma.async_load(b_desc, [0, 0], loaded, b)
        tma.async_load(c_desc, [0, 0], loaded, c)
        mbarrier.wait(loaded, tile & 1)
        tcgen05_mma(a, b, first, use_acc=False)
        tcgen05_commit(multiplied)
        mbarrier.wait(multiplied, 0)
        scaled = (first.load() * 2).to(gl.float16)
        operand.store(gl.convert_layout(scaled, operand.get_reg_layout()))
        tcgen05_mma(operand, c, second, use_acc=False)
        tcgen05_commit(multiplied)
        mbarrier.wait(multiplied, 1)
        stored(d_ptr, tile, second.load())


@gluon.jit
def _multiplies(a_desc, b_desc, a, b, sums, ready, empty, loaded, tiles):
    """Multiply tiles into two accumulators, each of which the other partition must have read."""
    for tile in range(tiles):
        slot = tile % 2
        mbarrier.wait(empty.index(slot), tile // 2 & 1 ^ 1)
        mbarrier.expect(loaded, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [tile * 128, 0], loaded, a)
        tma.async_load(b_desc, [0, 0], loaded, b)
        mbarrier.wait(loaded, tile & 1)
        tcgen05_mma(a, b, sums.index(slot), use_acc=False)
        tcgen05_commit(ready.index(slot))
        mbarrier.wait(ready.index(slot), tile // 2 & 1)


@gluon.jit
def _stores(d_desc, page, sums, ready, empty, tiles):
    """Store tiles by halves of their columns through two pages."""
    layout: gl.constexpr = sums.index(0).slice(0, 32).get_reg_layout()
    for tile in range(tiles):
        slot = tile % 2
        mbarrier.wait(ready.index(slot), tile // 2 & 1)
        for half in gl.static_range(2):
            values = sums.index(slot).slice(half * 32, 32).load(layout)
            tma.store_wait(1)
            page.index(half).store(values)
            fence_async_shared()
            tma.async_store(d_desc, [tile * 128, half * 32], page.index(half))
        mbarrier.arrive(empty.index(slot))
    tma.store_wait(0)


@gluon.jit
def roles_kernel(a_desc, b_desc, d_desc, tiles):
    """Multiply tiles in one partition and store them in another."""
    a = gl.allocate_shared_memory(a_desc.dtype, [128, 64], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [64, 64], b_desc.layout)
    page = gl.allocate_shared_memory(gl.float32, [2, 128, 32], d_desc.layout)
    sums = allocate_tensor_memory(gl.float32, [2, 128, 64], SUMS)
    loaded = mbarrier.allocate_mbarrier()
    ready = mbarrier.allocate_mbarrier(batch=2)
    empty = mbarrier.allocate_mbarrier(batch=2)
    mbarrier.init(loaded, count=1)
    for slot in gl.static_range(2):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    gl.warp_specialize(
        [
            (_stores, (d_desc, page, sums, ready, empty, tiles)),
            (_multiplies, (a_desc, b_desc, a, b, sums, ready, empty, loaded, tiles)),
        ],
        [1],
    )
