"""The buffers and barriers of a Hopper kernel, and what each of its roles is passed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

from gemmgen.plan.kernel import (
    EpilogueStorage,
    epilogue_storage,
)
from gemmgen.plan.roles import K_STEPS, TILES_M, TILES_N, Argument, Partition
from gemmgen.plan.storage import Barrier, Extent, Measure, Ring, Scope, SharedBuffer, numbered
from gemmgen.plan.wgmma.geometry import WgmmaGeometry
from gemmgen.problem import Operand

PRODUCER_WARPS = 1
"""Warps that load: one thread issues all loads."""
COUNTS = (TILES_M, TILES_N, K_STEPS)
"""From which a partition derives its tiles and K steps."""


@dataclass(frozen=True)
class ConsumerResources:
    """What one consumer has of its own."""

    number: int | None
    """None of a lone one."""
    a: SharedBuffer
    epilogue: EpilogueStorage | None
    """None where it leaves its sums to another kernel."""


@dataclass(frozen=True)
class WgmmaResources:
    """The buffers, barriers and partitions of one kernel."""

    a: tuple[SharedBuffer, ...]
    """One for each share of the tile's rows."""
    b: tuple[SharedBuffer, ...]
    """One for each part of its columns."""
    load_ready: Barrier
    load_empty: tuple[Barrier, ...]
    """On which consumers release a stage: that of their CTA's producer, then those of CTAs that multicast."""
    mma_turn: Barrier | None
    consumers: tuple[ConsumerResources, ...]

    @property
    def epilogues(self) -> tuple[EpilogueStorage, ...]:
        """What each consumer's epilogue has, where consumers have one."""
        return tuple(consumer.epilogue for consumer in self.consumers if consumer.epilogue)

    @property
    def buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in the order in which the kernel allocates them."""
        epilogues = self.epilogues
        # That of each consumer, buffer by buffer: all C, then the vectors one after the other, then all D.
        return (*self.a, *self.b, *chain.from_iterable(zip(*(own.buffers for own in epilogues), strict=True)))

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """The barriers in the order in which the kernel allocates them."""
        epilogues = self.epilogues
        loaded = chain.from_iterable(zip(*(own.barriers for own in epilogues), strict=True))
        barriers = (self.load_ready, *self.load_empty, self.mma_turn, *loaded)
        return tuple(barrier for barrier in barriers if barrier)


def resources_of(kernel: WgmmaGeometry) -> WgmmaResources:
    """Return the buffers and barriers of a kernel."""
    stages = _stages(kernel)
    a = tuple(_a_buffer(kernel, stages, number) for number in _numbers(kernel.row_shares))
    return WgmmaResources(
        a=a,
        b=tuple(_b_buffer(kernel, stages, number) for number in _numbers(len(kernel.column_parts))),
        load_ready=_load_ready(kernel, stages),
        load_empty=tuple(_load_empty(kernel, stages)) if kernel.specialized else (),
        mma_turn=_mma_turn(kernel) if kernel.ping_pong else None,
        # Consumers that divide a tile's rows have a share each, others all of them.
        consumers=tuple(
            _consumer(kernel, a[(number or 0) % len(a)], number) for number in _numbers(kernel.consumers)
        ),
    )


def partitions_of(
    kernel: WgmmaGeometry, resources: WgmmaResources, arguments: tuple[Argument, ...]
) -> tuple[Partition, ...]:
    """Return all roles; the first is the default partition, the others are workers."""
    loaded = tuple(argument for argument in arguments if argument.tensor in ("a", "b"))
    stored = tuple(argument for argument in arguments if argument.name == "d")
    sources = tuple(argument for argument in arguments if argument not in (*loaded, *stored))
    turn = (resources.mma_turn,) if resources.mma_turn else ()
    consumers = (
        Partition(
            role="consumer",
            number=consumer.number,
            warps=kernel.consumer_warps,
            registers=kernel.consumer_registers,
            passes=(
                *stored,
                consumer.a,
                *resources.b,
                *((consumer.epilogue.d,) if consumer.epilogue else ()),
                resources.load_ready,
                *resources.load_empty,
                *turn,
                *sources,
                *(consumer.epilogue.loaded if consumer.epilogue else ()),
                *COUNTS,
            ),
        )
        for consumer in resources.consumers
    )
    producer = Partition(
        role="producer",
        warps=PRODUCER_WARPS,
        registers=kernel.producer_registers,
        passes=(
            *loaded,
            *resources.a,
            *resources.b,
            resources.load_ready,
            *resources.load_empty,
            *COUNTS,
        ),
    )
    return (*consumers, producer)


def _numbers(count: int) -> tuple[int | None, ...]:
    """Return the numbers of several things; a lone one has none."""
    return (None,) if count == 1 else tuple(range(count))


# --- rings


def _stages(kernel: WgmmaGeometry) -> Ring:
    return Ring(Extent(kernel.stages, "stages"), indexed=not kernel.synchronous)


# --- buffers


def _rows(kernel: WgmmaGeometry) -> Extent:
    """Return the rows of a consumer's tile."""
    return Extent(kernel.consumer_tile_m, "consumer_tile_m" if kernel.row_shares > 1 else "tile_m")


def _a_buffer(kernel: WgmmaGeometry, stages: Ring, number: int | None) -> SharedBuffer:
    """Return the ring of one consumer's tiles of A."""
    name, rows = numbered("a_smem", number), (_rows(kernel), kernel.cta_consumer_tile_m)
    return _operand_buffer(kernel, kernel.problem.a, (name, "a"), rows, kernel.a_swizzle_bytes, stages)


def _b_buffer(kernel: WgmmaGeometry, stages: Ring, number: int | None) -> SharedBuffer:
    """Return the ring of a part of B's tiles."""
    columns, measure = kernel.column_parts[number or 0], "tile_n"
    if number is not None:
        measure = cast("Measure", f"part_n_{number}")
    names = (numbered("b_smem", number), "b")
    part = (Extent(columns * kernel.cluster_n, measure), columns)
    swizzle_bytes = kernel.b_swizzle_of(columns)
    return replace(
        _operand_buffer(kernel, kernel.problem.b, names, part, swizzle_bytes, stages), part=number or None
    )


def _operand_buffer(
    kernel: WgmmaGeometry,
    operand: Operand,
    names: tuple[str, str],
    rows: tuple[Extent, int],
    swizzle_bytes: int,
    stages: Ring,
) -> SharedBuffer:
    """Return the ring of an operand's tiles: `names` are the buffer's and its argument's.

    `rows` are the rows of A or columns of B in it, over all CTAs and in one.
    """
    (name, argument), (outer, each) = names, rows
    k = Extent(kernel.cta_tile_k, "tile_k")
    return SharedBuffer(
        name,
        argument,
        (outer, k) if operand.major == "k" else (k, outer),
        kernel.stages * each * kernel.cta_tile_k * operand.dtype.bytes,
        f"{kernel.stages} x {each} x {kernel.cta_tile_k} {operand.dtype.name}, swizzle {swizzle_bytes}",
        stages,
        swizzle_bytes,
    )


def _consumer(kernel: WgmmaGeometry, a: SharedBuffer, number: int | None) -> ConsumerResources:
    if kernel.reduces_apart:
        return ConsumerResources(number, a, None)
    columns = None
    if kernel.composed:
        elements = kernel.vector_columns
        columns = (Extent(elements * kernel.cluster_n, "vector_n"), elements)
    return ConsumerResources(
        number=number,
        a=a,
        epilogue=epilogue_storage(kernel, _rows(kernel), columns, number),
    )


# --- barriers


def _load_ready(kernel: WgmmaGeometry, stages: Ring) -> Barrier:
    meaning = "producer to consumers: the stage holds its tiles"
    if not kernel.specialized:
        held = "the tiles have arrived" if kernel.synchronous else "the stage holds its tiles"
        meaning = f"from TMA: {held}"
    return Barrier("load_ready", stages, meaning)


def _load_empty(kernel: WgmmaGeometry, stages: Ring) -> Iterator[Barrier]:
    """Yield the barriers on which a consumer releases a stage."""
    readers = kernel.row_shares
    counts = "consumers" if readers > 1 else None
    meaning = "consumers to their CTA's producer: the stage has been read"
    yield Barrier("load_empty", stages, meaning, readers, counts)
    for operand in kernel.multicast:
        sharing, groups = (kernel.cluster_n, kernel.cluster_m)
        bases = kernel.bases(0, None, rank=1)
        if operand == "b":
            sharing, groups = groups, sharing
            bases = kernel.bases(None, 0, rank=1)
        yield Barrier(
            f"{operand}_multicast_empty",
            stages,
            f"consumers of the CTAs that share a tile of {operand.upper()} to their lead CTA's producer: all "
            "have read the stage",
            readers,
            counts,
            Scope(sharing, groups=groups, bases=tuple(map(tuple, bases)), shared="a tile"),
        )


def _mma_turn(kernel: WgmmaGeometry) -> Barrier:
    turns = Ring(Extent(kernel.consumers, "consumers"))
    return Barrier("mma_turn", turns, "from one consumer to the other: it is the other's turn to multiply")
