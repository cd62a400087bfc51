"""A stage of the ring: the tiles that TMA loads for one K step, as a list of payloads.

Bytes, loads, buffers, arguments, multicast and the ledger follow from the payloads of a stage. Another tensor
that a K step needs is another payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gemmgen.hardware import DType
from gemmgen.plan.roles import Argument
from gemmgen.plan.storage import Extent, Ring, SharedBuffer, numbered, numbers

NAMES = {"a_scale": "A's scales", "b_scale": "B's scales"}
"""Names of tensors in messages; a matrix is named by its letter."""

LEAST_ROW_BYTES = 128
"""Bytes that TMA loads at least of a row by itself, so that each stage's begins where TMA can write."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Tiles of one tensor that a stage holds in each CTA: one for all consumers, or an equal one for each."""

    tensor: str
    kind: Literal["matrix", "block_scales"]
    dtype: DType
    axis: Literal["m", "n"]
    """The dimension of D along the tile's rows: CTAs along the other dimension need the same tile."""
    box: tuple[Extent, ...]
    """The extents of one tile's buffer over all CTAs of a program."""
    elements: int
    """Elements of one tile in one CTA."""
    bits: int
    """Bits of an element in shared memory."""
    loads_per_tile: int
    """TMA operations that bring one tile of one CTA."""
    words: str
    """The extents and the type of one tile, as a ledger says them."""
    row_k: Extent | None = None
    """The K that a row of the tensor is of; None unless its rows are of blocks of K."""
    loaded_box: tuple[Extent, ...] | None = None
    """The extents of a block of the tile that is loaded by itself; None if the tile is loaded whole."""
    swizzle_bytes: int = 0
    """0 where the rows lie in shared memory as they are."""
    sharing: int = 1
    """CTAs that need the same tile: one of several loads it and multicasts it to all."""
    count: int = 1
    """Tiles in a CTA: more than one where consumers divide the rows, and each reads its own."""
    part: int | None = None
    """The part of a composed tile's columns that it belongs to, counted from 0; None in a plain tile."""

    @property
    def name(self) -> str:
        """The name of its tensor in messages."""
        return NAMES.get(self.tensor, self.tensor.upper())

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile in the shared memory of one CTA."""
        return self.elements * self.bits // 8

    @property
    def bytes(self) -> int:
        """Bytes of all its tiles in the shared memory of one CTA."""
        return self.count * self.tile_bytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes that TMA counts on the barrier, without padding in shared memory."""
        return self.bytes * self.dtype.bits // self.bits

    @property
    def loads(self) -> int:
        """TMA operations that bring all its tiles of one CTA."""
        return self.count * self.loads_per_tile

    @property
    def argument(self) -> Argument:
        """The tensor that the kernel is launched with to load it."""
        along = self.axis if self.kind == "block_scales" else None
        return Argument(self.tensor, self.kind, self.dtype, along, self.part or None)

    def buffers(self, ring: Ring) -> tuple[SharedBuffer, ...]:
        """Return the buffer of each of its tiles, with room for all stages of a ring."""
        name = numbered(f"{self.tensor}_smem", self.part)
        swizzle = f", swizzle {self.swizzle_bytes}" if self.swizzle_bytes else ""
        return tuple(
            SharedBuffer(
                numbered(name, number),
                self.tensor,
                self.box,
                ring.depth * self.tile_bytes,
                f"{ring.depth} x {self.words}{swizzle}",
                ring,
                self.swizzle_bytes,
                part=self.part or None,
                loaded_shape=self.loaded_box,
            )
            for number in numbers(self.count)
        )


@dataclass(frozen=True)
class Stage:
    """All that one K step of a CTA reads from shared memory."""

    payloads: tuple[Payload, ...]
    """In the order in which they are allocated and loaded."""

    # Each sum is computed once: a search asks for them thousands of times, and plans share their stages.

    @cached_property
    def bytes(self) -> int:
        """Bytes in the shared memory of one CTA."""
        return sum(payload.bytes for payload in self.payloads)

    @cached_property
    def awaited_bytes(self) -> int:
        """Bytes that a CTA's barrier expects from TMA."""
        return sum(payload.loaded_bytes for payload in self.payloads)

    @cached_property
    def bytes_per_cta(self) -> float:
        """Bytes that a CTA requests from L2: of a tile that several CTAs share, an equal part."""
        return sum(payload.loaded_bytes / payload.sharing for payload in self.payloads)

    def requested_bytes_of(self, tensor: str) -> float:
        """Return the part of `bytes_per_cta` that belongs to a tensor; 0 without any."""
        return sum(payload.loaded_bytes / payload.sharing for payload in self.payloads_of(tensor))

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of its payloads, in order, each once."""
        return tuple(dict.fromkeys(payload.tensor for payload in self.payloads))

    @cached_property
    def loads(self) -> dict[str, int]:
        """TMA operations of one CTA, by tensor."""
        return {tensor: sum(each.loads for each in self.payloads_of(tensor)) for tensor in self.tensors}

    @cached_property
    def multicast(self) -> tuple[Payload, ...]:
        """The first payload of each tensor that CTAs share, in order."""
        firsts = (self.payloads_of(tensor)[0] for tensor in self.tensors)
        return tuple(payload for payload in firsts if payload.sharing > 1)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that the kernel is launched with to load them, in order, each once."""
        return tuple(dict.fromkeys(payload.argument for payload in self.payloads))

    @property
    def words(self) -> str:
        """The bytes of each tensor in words: ``per stage: 8,192 bytes of A + 8,192 bytes of B``."""
        kinds = {payload.tensor: payload.kind for payload in self.payloads}
        matrices = [name for name in self.tensors if kinds[name] == "matrix"]
        scales = [f"{self.bytes_of(name):,}" for name in self.tensors if kinds[name] == "block_scales"]
        matrix_bytes = " + ".join(f"{self.bytes_of(name):,} bytes of {name.upper()}" for name in matrices)
        of_scales = f" + {' + '.join(scales)} of scales" if scales else ""
        return f"per stage: {matrix_bytes}{of_scales}"

    def bytes_of(self, tensor: str) -> int:
        """Return the bytes of a tensor's payloads in the shared memory of one CTA; 0 without any."""
        return sum(payload.bytes for payload in self.payloads_of(tensor))

    def bytes_shared_along(self, dimension: Literal["m", "n"]) -> int:
        """Return the bytes in one CTA of the tiles that it shares with CTAs along a dimension of D."""
        shared = (each for each in self.payloads if each.sharing > 1 and each.axis != dimension)
        return sum(payload.bytes for payload in shared)

    def payloads_of(self, tensor: str) -> list[Payload]:
        """Return the payloads of a tensor, in order."""
        return [payload for payload in self.payloads if payload.tensor == tensor]


def least_elements(dtype: DType) -> int:
    """Return the elements of a type that TMA loads at least of a row by itself."""
    return LEAST_ROW_BYTES // dtype.bytes


def boxes(rows: int, row_bytes: int, swizzle_bytes: int, box_rows: int) -> int:
    """Return the TMA operations for a tile: one moves as much as a swizzle spans of `box_rows` rows."""
    spans = max(1, row_bytes // swizzle_bytes) if swizzle_bytes else 1
    return spans * -(-rows // box_rows)


def in_words(payloads: Sequence[Payload]) -> str:
    """Return the names of payloads: ``A and B``."""
    *most, last = (payload.name for payload in payloads)
    return f"{', '.join(most)} and {last}" if most else last
