"""Kernels whose CTAs read each other's registers and shared memory; none of them comes from a template."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    cluster,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def addresses(ptr, layout: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :]
    return ptr + rows * 64 + columns


@gluon.jit
def convert_kernel(x_ptr, out_ptr, before: gl.constexpr, after: gl.constexpr):
    """out = 2x: CTAs load it divided in one way, and store it divided in another."""
    x = gl.load(addresses(x_ptr, before)) * 2
    gl.store(addresses(out_ptr, after), gl.convert_layout(x, after))


@gluon.jit
def convert_addresses_kernel(x_ptr, out_ptr, before: gl.constexpr, after: gl.constexpr):
    """out = x, whose addresses CTAs hand to each other."""
    x = gl.load(gl.convert_layout(addresses(x_ptr, before), after))
    gl.store(addresses(out_ptr, after), x)


@gluon.jit
def through_shared_kernel(
    x_ptr,
    out_ptr,
    before: gl.constexpr,
    shared: gl.constexpr,
    after: gl.constexpr,
    meet: gl.constexpr,
    at_once: gl.constexpr,
):
    """out = x through a buffer, stored as `before` divides it among CTAs and loaded as `after` does."""
    x = gl.load(addresses(x_ptr, before))
    if at_once:
        buffer = gl.allocate_shared_memory(gl.float32, [64, 64], shared, x)
    else:
        buffer = gl.allocate_shared_memory(gl.float32, [64, 64], shared)
        buffer.store(x)
    if meet:
        cluster.barrier()
    gl.store(addresses(out_ptr, after), buffer.load(after))


@gluon.jit
def converted_between_kernel(
    x_ptr,
    out_ptr,
    other_ptr,
    rows: gl.constexpr,
    columns: gl.constexpr,
    shared: gl.constexpr,
    other: gl.constexpr,
):
    """out = x through a buffer; between store and load, numbers in the layout `other` are converted."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], shared)
    numbers = gl.load(addresses(other_ptr, other)) + 1
    buffer.store(gl.load(addresses(x_ptr, rows)))
    gl.store(addresses(other_ptr, columns), gl.convert_layout(numbers, columns))
    gl.store(addresses(out_ptr, columns), buffer.load(columns))


@gluon.jit
def ring_kernel(x_ptr, out_ptr, layout: gl.constexpr, shared: gl.constexpr):
    """out = x through the second slot of a ring, whose layout is that of a slot."""
    ring = gl.allocate_shared_memory(gl.float32, [2, 64, 64], shared)
    ring.index(1).store(gl.load(addresses(x_ptr, layout)))
    gl.store(addresses(out_ptr, layout), ring.index(1).load(layout))


@gluon.jit
def sliced_kernel(x_ptr, out_ptr, layout: gl.constexpr, shared: gl.constexpr):
    """out = the last rows of x, by a slice of a buffer."""
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], shared)
    buffer.store(gl.load(addresses(x_ptr, layout)))
    cluster.barrier()
    rows = gl.arange(0, 32, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :]
    gl.store(out_ptr + rows * 64 + columns, buffer.slice(32, 32, 0).load(layout))


@gluon.jit
def reduce_kernel(x_ptr, out_ptr, layout: gl.constexpr, axis: gl.constexpr, largest: gl.constexpr):
    """Each row or column of out = what x is reduced to along an axis: every CTA stores what it has of it."""
    x = gl.load(addresses(x_ptr, layout))
    reduced = gl.max(x, axis) if largest else gl.sum(x, axis)
    tile = gl.zeros((64, 64), gl.float32, layout) + gl.expand_dims(reduced, axis)
    gl.store(addresses(out_ptr, layout), tile)


@gluon.jit
def parting_kernel(x_ptr, flag_ptr, rows: gl.constexpr, columns: gl.constexpr, both: gl.constexpr):
    """CTAs part at a flag that CTA 0 sets, and convert a tensor at different lines, or one of them none."""
    x = gl.load(addresses(x_ptr, rows))
    seen = gl.load(flag_ptr)
    gl.store(flag_ptr, 1)
    if seen == 0:
        gl.store(addresses(x_ptr, columns), gl.convert_layout(x, columns))  # CTA 0
    elif both:
        gl.store(addresses(x_ptr, columns), gl.convert_layout(x + 1, columns))  # CTA 1


@gluon.jit
def quotient_kernel(x_ptr, out_ptr, n, rows: gl.constexpr, columns: gl.constexpr):
    """out = x + 64 // n, which CTAs hand to each other."""
    x = gl.load(addresses(x_ptr, rows)) + 64 // n
    gl.store(addresses(out_ptr, columns), gl.convert_layout(x, columns))  # where it is used


@gluon.jit
def divided_k_loader(a_desc, b_desc, a_smem, b_smem, ready, empty, k_steps):
    stages: gl.constexpr = a_smem.shape[0]
    program_k: gl.constexpr = a_smem.shape[2]
    for step in range(k_steps):
        stage = step % stages
        bar = ready.index(stage)
        mbarrier.wait(empty.index(stage), step // stages & 1 ^ 1)
        mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [0, step * program_k], bar, a_smem.index(stage))
        tma.async_load(b_desc, [0, step * program_k], bar, b_smem.index(stage))


@gluon.jit
def divided_k_multiplier(
    d_desc,
    a_smem,
    b_smem,
    d_smem,
    ready,
    empty,
    k_steps,
    own: gl.constexpr,
    accumulator_layout: gl.constexpr,
    parts_layout: gl.constexpr,
    rows_layout: gl.constexpr,
):
    ctas: gl.constexpr = rows_layout.shape[0]
    tile_m: gl.constexpr = d_smem.shape[0]
    tile_n: gl.constexpr = d_smem.shape[1]
    cta_k: gl.constexpr = a_smem.shape[2] // ctas
    stages: gl.constexpr = a_smem.shape[0]
    total = gl.zeros((tile_m, tile_n), gl.float32, accumulator_layout)
    for step in range(k_steps):
        stage = step % stages
        mbarrier.wait(ready.index(stage), step // stages & 1)
        a = a_smem.index(stage).reinterpret(gl.bfloat16, [tile_m, cta_k], own)
        b = b_smem.index(stage).reinterpret(gl.bfloat16, [tile_n, cta_k], own)
        total = warpgroup_mma(a, b.permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(empty.index(stage))
    # Each CTA has the sums of its part of K: name them as parts of one tensor, which moves nothing.
    total = gl.convert_layout(total, gl.SliceLayout(0, parts_layout), assert_trivial=True)
    zeros = gl.zeros((ctas, tile_m, tile_n), gl.float32, parts_layout)
    parts, _ = gl.broadcast(gl.expand_dims(total, 0), zeros)
    # Now each CTA gets all parts of its share of the rows, and adds them up.
    sums = gl.sum(gl.convert_layout(parts, rows_layout), 0)
    d_smem.store(sums.to(d_desc.dtype))
    fence_async_shared()
    tma.async_store(d_desc, [0, 0], d_smem)
    tma.store_wait(0)


@gluon.jit
def divided_k_kernel(
    a_desc,
    b_desc,
    d_desc,
    k_steps,
    own: gl.constexpr,
    accumulator_layout: gl.constexpr,
    parts_layout: gl.constexpr,
    rows_layout: gl.constexpr,
    stages: gl.constexpr,
):
    """A tile of D = A @ B, whose CTAs divide K and add up their sums through each other's shared memory."""
    tile_m: gl.constexpr = d_desc.block_type.shape[0]
    tile_n: gl.constexpr = d_desc.block_type.shape[1]
    program_k: gl.constexpr = a_desc.block_type.shape[1]
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [stages, tile_m, program_k], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [stages, tile_n, program_k], b_desc.layout)
    d_smem = gl.allocate_shared_memory(d_desc.dtype, [tile_m, tile_n], d_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=stages)
    empty = mbarrier.allocate_mbarrier(batch=stages)
    for i in gl.static_range(stages):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (
                divided_k_multiplier,
                (
                    d_desc,
                    a_smem,
                    b_smem,
                    d_smem,
                    ready,
                    empty,
                    k_steps,
                    own,
                    accumulator_layout,
                    parts_layout,
                    rows_layout,
                ),
            ),
            (divided_k_loader, (a_desc, b_desc, a_smem, b_smem, ready, empty, k_steps)),
        ],
        worker_num_warps=[1],
        worker_num_regs=[40],
    )


@gluon.jit
def multicast_kernel(x_desc, out_ptr, layout: gl.constexpr, steps, meet: gl.constexpr):
    """Copy tiles of 64 x 64: the first CTA loads each one for all CTAs, and each CTA stores it.

    `meet` is the cluster barrier after each tile: none, relaxed, or full.
    """
    buffer = gl.allocate_shared_memory(gl.float32, [64, 64], x_desc.layout)
    ready = mbarrier.allocate_mbarrier()
    mbarrier.init(ready, count=1)
    for step in range(steps):
        mbarrier.expect(ready, x_desc.nbytes_per_cta)
        tma.async_load(x_desc, [step * 64, 0], ready, buffer, multicast=True)
        mbarrier.wait(ready, step & 1)
        gl.store(addresses(out_ptr + step * 4096, layout), buffer.load(layout))
        fence_async_shared()
        if meet == "full":
            cluster.barrier()
        elif meet == "relaxed":
            cluster.barrier(relaxed=True)  # relaxed
