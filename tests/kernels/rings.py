"""A producer and consumers around a ring of slots, of which right and faulty twins differ in a flag."""

from __future__ import annotations

# pyright: basic, reportAssignmentType=false, reportMissingTypeStubs=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

SLOTS = gl.constexpr(3)
TILE = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def _consume(ring, ready, empty, d_ptr, steps, consumer: gl.constexpr, release: gl.constexpr):
    row, column = gl.arange(0, 32, gl.SliceLayout(1, TILE)), gl.arange(0, 32, gl.SliceLayout(0, TILE))
    offsets = row[:, None] * 32 + column[None, :]
    for step in range(steps):
        slot = step % SLOTS
        if release == "before the wait" and consumer == 0:
            mbarrier.arrive(empty.index(slot))  # before the wait
        mbarrier.wait(ready.index(slot), step // SLOTS & 1)
        x = ring.index(slot).load(TILE)
        gl.store(d_ptr + (consumer * steps + step) * 1024 + offsets, x)
        fence_async_shared()
        if release == "the next slot" and consumer == 0:
            mbarrier.arrive(empty.index((step + 1) % SLOTS))  # the next slot
        elif release == "twice":
            mbarrier.arrive(empty.index(slot))
            mbarrier.arrive(empty.index(slot))  # twice
        elif release == "in halves":
            mbarrier.arrive(empty.index(slot))
            mbarrier.arrive(empty.index(slot))
        elif release != "before the wait" or consumer > 0:
            mbarrier.arrive(empty.index(slot))


@gluon.jit
def _produce(x_desc, ring, ready, empty, steps, expect: gl.constexpr):
    for step in range(steps):
        slot = step % SLOTS
        if expect == "before the wait":
            mbarrier.expect(ready.index(slot), x_desc.nbytes_per_cta)  # expected before the wait
        mbarrier.wait(empty.index(slot), step // SLOTS & 1 ^ 1)
        if expect != "before the wait":
            mbarrier.expect(ready.index(slot), x_desc.nbytes_per_cta)
        tma.async_load(x_desc, [step * 32, 0], ready.index(slot), ring.index(slot))


@gluon.jit
def ring_kernel(x_desc, d_ptr, steps, consumers: gl.constexpr, release: gl.constexpr, expect: gl.constexpr):
    """Copy `steps` tiles of 32 x 32 through a ring, once by each of one or two consumers."""
    ring = gl.allocate_shared_memory(gl.float32, [SLOTS, 32, 32], x_desc.layout)
    ready = mbarrier.allocate_mbarrier(batch=SLOTS)
    empty = mbarrier.allocate_mbarrier(batch=SLOTS)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2 * consumers if release == "in halves" else consumers)
    if consumers == 1:
        gl.warp_specialize(
            [
                (_consume, (ring, ready, empty, d_ptr, steps, 0, release)),
                (_produce, (x_desc, ring, ready, empty, steps, expect)),
            ],
            [1],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (ring, ready, empty, d_ptr, steps, 0, release)),
                (_produce, (x_desc, ring, ready, empty, steps, expect)),
                (_consume, (ring, ready, empty, d_ptr, steps, 1, release)),
            ],
            [1, 4],
        )


@gluon.jit
def _work(lines, met, done, d_ptr, steps, worker: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    place = gl.arange(0, 128, layout)
    for step in range(steps):
        lines.index(worker).store(gl.full([128], 0, gl.int32, layout) + step * 2 + worker)
        mbarrier.arrive(met)
        mbarrier.wait(met, step & 1)
        other = lines.index(1 - worker).load(layout)
        gl.store(d_ptr + (step * 2 + worker) * 128 + place, other)
        mbarrier.arrive(done)
        mbarrier.wait(done, step & 1)


@gluon.jit
def meeting_kernel(d_ptr, steps):
    """Let two partitions read each other's line in each step: both arrive at a barrier and wait for it."""
    lines = gl.allocate_shared_memory(gl.int32, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    met = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(met, count=2)
    mbarrier.init(done, count=2)
    gl.warp_specialize(
        [(_work, (lines, met, done, d_ptr, steps, 0)), (_work, (lines, met, done, d_ptr, steps, 1))],
        [4],
    )
