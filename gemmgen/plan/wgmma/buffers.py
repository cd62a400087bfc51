"""The buffers and barriers of a Hopper kernel, and what each of its roles is passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from gemmgen.plan.epilogue_storage import EpilogueStorage, epilogue_storage
from gemmgen.plan.roles import (
    A_STRIDE,
    D_STRIDE,
    GROUPS,
    K_STEPS,
    LAST_ROW,
    ROWS_OF_A,
    ROWS_OF_D,
    TILES_M,
    TILES_N,
    Argument,
    Count,
    K,
    M,
    N,
    Partition,
)
from gemmgen.plan.storage import Barrier, Extent, KernelResources, Ring, Scope, SharedBuffer, numbers
from gemmgen.plan.wgmma.geometry import WgmmaGeometry


@dataclass(frozen=True)
class ConsumerResources:
    """The buffers and barriers of one consumer."""

    number: int | None
    """None of a lone one."""
    tiles: tuple[SharedBuffer, ...]
    """The tiles of a stage that it reads: its own share of divided rows, and the tiles that all consumers
    read.
    """
    epilogue: EpilogueStorage | None
    """None if it leaves its sums to another kernel."""


@dataclass(frozen=True)
class WgmmaResources(KernelResources):
    """The buffers, barriers and partitions of one kernel."""

    tiles: tuple[SharedBuffer, ...]
    """The ring, a buffer for each payload of a stage."""
    load_ready: Barrier
    load_empty: tuple[Barrier, ...]
    """Barriers on which consumers release a stage: first their own CTA's, then those of CTAs that multicast.
    """
    mma_turn: Barrier | None
    consumers: tuple[ConsumerResources, ...]

    @property
    def a(self) -> tuple[SharedBuffer, ...]:
        """The buffers of A, one for each share of the tile's rows."""
        return self.of("a")

    @property
    def b(self) -> tuple[SharedBuffer, ...]:
        """The buffers of B, one for each part of the tile's columns."""
        return self.of("b")

    def of(self, tensor: str) -> tuple[SharedBuffer, ...]:
        """Return the buffers of the ring that have tiles of a tensor."""
        return tuple(buffer for buffer in self.tiles if buffer.tensor == tensor)

    @property
    def epilogues(self) -> tuple[EpilogueStorage, ...]:
        """The storage of each consumer's epilogue; empty if consumers have none."""
        return tuple(consumer.epilogue for consumer in self.consumers if consumer.epilogue)

    @property
    def buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in the order in which the kernel allocates them."""
        epilogues = self.epilogues
        # That of each consumer, buffer by buffer: all C, then the vectors one after the other, then all D.
        return (*self.tiles, *chain.from_iterable(zip(*(own.buffers for own in epilogues), strict=True)))

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
    tiles = [payload.buffers(stages) for payload in kernel.stage.payloads]
    return WgmmaResources(
        tiles=tuple(chain.from_iterable(tiles)),
        load_ready=_load_ready(kernel, stages),
        load_empty=tuple(_load_empty(kernel, stages)) if kernel.specialized else (),
        mma_turn=_mma_turn(kernel) if kernel.ping_pong else None,
        consumers=tuple(_consumer(kernel, tiles, number) for number in numbers(kernel.consumers)),
    )


def partitions_of(
    kernel: WgmmaGeometry, resources: WgmmaResources, arguments: tuple[Argument, ...]
) -> tuple[Partition, ...]:
    """Return all roles; the first is the default partition, the others are workers."""
    loaded = tuple(argument for argument in arguments if argument.tensor in kernel.stage.tensors)
    copied: tuple[Argument | Count, ...] = ()
    if kernel.problem.gathers_a:
        # Threads read A by its address: its descriptor stays in the kernel, which passes the extents on.
        copied = (*(each for each in arguments if each.name == "a_rows"), K, ROWS_OF_A, A_STRIDE)
    described = tuple(argument for argument in arguments if argument.name in ("d", "saved"))
    stored = described
    if kernel.problem.scatters_d:
        # Threads store D by its address: its descriptor stays in the kernel.
        stored = tuple(argument for argument in arguments if argument.kind == "address")
    others = (*loaded, *copied, *described, *stored)
    sources = tuple(argument for argument in arguments if argument not in others)
    turn = (resources.mma_turn,) if resources.mma_turn else ()
    consumers = (
        Partition(
            role="consumer",
            number=consumer.number,
            warps=kernel.consumer_warps,
            registers=kernel.consumer_registers,
            passes=(
                *stored,
                *consumer.tiles,
                *(consumer.epilogue.stored if consumer.epilogue else ()),
                resources.load_ready,
                *resources.load_empty,
                *turn,
                *sources,
                *(consumer.epilogue.loaded if consumer.epilogue else ()),
                *extents_of(kernel),
                *counts_of(kernel),
            ),
        )
        for consumer in resources.consumers
    )
    producer = Partition(
        role="producer",
        warps=kernel.producer_warps,
        registers=kernel.producer_registers,
        passes=(
            *(each for each in loaded if not (copied and each.name == "a")),
            *resources.tiles,
            resources.load_ready,
            *resources.load_empty,
            *(argument for argument in sources if argument.kind == "groups"),
            *((N,) * kernel.access.places_b_by_n),
            *copied,
            *counts_of(kernel),
        ),
    )
    return (*consumers, producer)


CONSUMER_EXTENTS = (N, K, M, ROWS_OF_D, D_STRIDE)
"""Extents that features pass to consumers, in order."""


def extents_of(kernel: WgmmaGeometry) -> tuple[Count, ...]:
    """Return the extents that features need in consumers."""
    needed = {count.name for side in kernel.sides for count in side.counts(kernel)}
    return tuple(each for each in CONSUMER_EXTENTS if each.name in needed)


def counts_of(kernel: WgmmaGeometry) -> tuple[Count, ...]:
    """Return the numbers from which each partition derives its tiles and K steps."""
    groups = kernel.problem.groups
    if groups is None:
        return (TILES_M, TILES_N, *(LAST_ROW,) * kernel.last_tile_ends_with_d, K_STEPS)
    if groups.divides_k:
        return (M, K, GROUPS, TILES_M, TILES_N)
    return (M, *([TILES_M] if groups.counts is None else []), TILES_N, GROUPS, K_STEPS)


# --- rings


def _stages(kernel: WgmmaGeometry) -> Ring:
    return Ring(Extent(kernel.stages, "stages"), indexed=not kernel.synchronous)


# --- buffers


def _rows(kernel: WgmmaGeometry) -> Extent:
    """Return the rows of a consumer's tile."""
    return Extent(kernel.consumer_tile_m, "consumer_tile_m" if kernel.row_shares > 1 else "tile_m")


def _consumer(
    kernel: WgmmaGeometry, ring: Sequence[tuple[SharedBuffer, ...]], number: int | None
) -> ConsumerResources:
    """Return what one consumer has: of each payload's buffers in the ring, its own or the one for all."""
    tiles = tuple(buffers[(number or 0) % len(buffers)] for buffers in ring)
    if kernel.reduces_apart:
        return ConsumerResources(number, tiles, None)
    columns = None
    if kernel.composed:
        elements = kernel.vector_columns
        columns = (Extent(elements * kernel.cluster_n, "vector_n"), elements)
    return ConsumerResources(
        number=number,
        tiles=tiles,
        epilogue=epilogue_storage(kernel, _rows(kernel), columns, number),
    )


# --- barriers


def _load_ready(kernel: WgmmaGeometry, stages: Ring) -> Barrier:
    meaning = "producer to consumers: the stage holds its tiles"
    if not kernel.specialized:
        held = "the tiles have arrived" if kernel.synchronous else "the stage holds its tiles"
        meaning = f"from TMA: {held}"
    if kernel.problem.gathers_a:
        meaning = (
            "one thread for the bytes of B, and each thread for its copies of A: the stage holds its tiles"
        )
        threads = kernel.producer_warps * kernel.architecture.threads_per_warp
        return Barrier("load_ready", stages, meaning, 1 + threads)
    return Barrier("load_ready", stages, meaning)


def _load_empty(kernel: WgmmaGeometry, stages: Ring) -> Iterator[Barrier]:
    """Yield the barriers on which a consumer releases a stage."""
    readers = kernel.row_shares
    counts = "consumers" if readers > 1 else None
    meaning = "consumers to their CTA's producer: the stage has been read"
    yield Barrier("load_empty", stages, meaning, readers, counts)
    for payload in kernel.stage.multicast:
        bases = kernel.bases(*((0, None) if payload.axis == "m" else (None, 0)), rank=1)
        yield Barrier(
            f"{payload.tensor}_multicast_empty",
            stages,
            f"consumers of the CTAs that share a tile of {payload.name} to their lead CTA's producer: all "
            "have read the stage",
            readers,
            counts,
            Scope(
                payload.sharing,
                groups=kernel.cluster_size // payload.sharing,
                bases=tuple(map(tuple, bases)),
                shared="a tile",
            ),
        )


def _mma_turn(kernel: WgmmaGeometry) -> Barrier:
    turns = Ring(Extent(kernel.consumers, "consumers"))
    return Barrier("mma_turn", turns, "from one consumer to the other: it is the other's turn to multiply")
