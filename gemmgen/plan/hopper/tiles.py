"""What a plan puts into shared memory: the tiles, and the barriers that hand them over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmgen.plan.storage import Barrier, SharedBuffer

if TYPE_CHECKING:
    from gemmgen.plan.hopper.plan import WgmmaPlan


def rows_name(plan: WgmmaPlan) -> str:
    """Return the constant that holds the rows of a consumer's tile."""
    return "CONSUMER_TILE_M" if plan.row_shares > 1 else "PROGRAM_TILE_M"


def shared_buffers(plan: WgmmaPlan) -> Iterator[SharedBuffer]:
    """Yield the tiles in the order in which the kernel allocates them."""
    yield from _loaded_tiles(plan)
    yield from _epilogue_tiles(plan)


def _loaded_tiles(plan: WgmmaPlan) -> Iterator[SharedBuffer]:
    ring = () if plan.synchronous else ("STAGES",)
    a_extents, b_extents = (rows_name(plan), "PROGRAM_TILE_K"), ("PROGRAM_TILE_N", "PROGRAM_TILE_K")
    if plan.problem.a.major == "mn":
        a_extents = a_extents[::-1]
    if plan.problem.b.major == "mn":
        b_extents = b_extents[::-1]
    for name in plan.per_share("a_smem"):
        size = plan.stages * plan.a_tile_bytes // plan.row_shares
        yield SharedBuffer(name, "a", (*ring, *a_extents), size, plan.a_swizzle_bytes)
    yield SharedBuffer(
        "b_smem", "b", (*ring, *b_extents), plan.stages * plan.b_tile_bytes, plan.b_swizzle_bytes
    )


def _epilogue_tiles(plan: WgmmaPlan) -> Iterator[SharedBuffer]:
    extents = (rows_name(plan), "PROGRAM_TILE_N")
    if plan.subtiles > 1:
        extents = ("EPILOGUE_BUFFERS", rows_name(plan), "SUBTILE_N")
    if plan.problem.c:
        size = plan.epilogue_buffers * plan.subtile_bytes(plan.problem.c)
        for name in plan.per_consumer("c_smem"):
            yield SharedBuffer(name, "c", extents, size, plan.c_swizzle_bytes)
    for vector in plan.problem.vectors:
        along_m = vector.startswith("row")
        elements = plan.cta_consumer_tile_m if along_m else plan.cta_tile_n
        size = elements * plan.problem.vector_dtype(vector).bytes
        for name in plan.per_consumer(f"{vector}_smem"):
            yield SharedBuffer(name, vector, (rows_name(plan) if along_m else "PROGRAM_TILE_N",), size)
    for name in plan.per_consumer("d_smem"):
        size = plan.epilogue_buffers * plan.subtile_bytes(plan.problem.d)
        yield SharedBuffer(name, "d", extents, size, plan.d_swizzle_bytes)


def barriers(plan: WgmmaPlan) -> Iterator[Barrier]:
    """Yield the mbarriers in the order in which the kernel allocates them."""
    yield from _load_barriers(plan)
    if plan.ping_pong:
        yield Barrier(
            "mma_turn",
            plan.consumers,
            ring="CONSUMERS",
            arrivals=1,
            arrives="1",
            meaning="from one consumer to the other: the tensor cores are yours",
        )
    yield from _epilogue_barriers(plan)


def _load_barriers(plan: WgmmaPlan) -> Iterator[Barrier]:
    if not plan.specialized:
        held = "the tiles have arrived" if plan.synchronous else "the stage holds its tiles"
        ring = "" if plan.synchronous else "STAGES"
        yield Barrier("load_ready", plan.stages, ring, arrivals=1, arrives="1", meaning=f"from TMA: {held}")
        return
    readers, arrives = (plan.row_shares, "CONSUMERS") if plan.row_shares > 1 else (1, "1")
    yield Barrier(
        "load_ready",
        plan.stages,
        "STAGES",
        arrivals=1,
        arrives="1",
        meaning="producer to consumers: the stage holds its tiles",
    )
    yield Barrier(
        "load_empty",
        plan.stages,
        "STAGES",
        arrivals=readers,
        arrives=arrives,
        meaning="consumers to their CTA's producer: the stage has been read",
    )
    for operand in plan.multicast:
        extents = (plan.cluster_n, plan.cluster_m)
        sharing, groups = extents if operand == "a" else extents[::-1]
        bases = plan.bases(0, None, rank=1) if operand == "a" else plan.bases(None, 0, rank=1)
        yield Barrier(
            f"{operand}_multicast_empty",
            plan.stages,
            "STAGES",
            arrivals=readers * sharing,
            arrives=arrives,
            meaning=f"consumers of the CTAs that share a tile of {operand.upper()} to their lead CTA's "
            "producer: all have read the stage",
            groups=groups,
            bases=tuple(map(tuple, bases)),
        )


def _epilogue_barriers(plan: WgmmaPlan) -> Iterator[Barrier]:
    if plan.problem.c:
        for name in plan.per_consumer("c_ready"):
            yield Barrier(
                name,
                plan.epilogue_buffers,
                "EPILOGUE_BUFFERS" if plan.subtiles > 1 else "",
                arrivals=1,
                arrives="1",
                meaning="from TMA: the buffer holds a part of C",
            )
    if plan.problem.vectors:
        for name in plan.per_consumer("vectors_ready"):
            meaning = "from TMA: the epilogue's row and column operands have arrived"
            yield Barrier(name, 1, "", arrivals=1, arrives="1", meaning=meaning)
