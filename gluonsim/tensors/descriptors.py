"""TMA descriptors: tensors in global memory, and the boxes that a transfer moves of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import mul
from typing import Any

import torch
from torch import Tensor

from gemmgen.numerics.encoding import rounded_to_tf32
from gluonsim.accesses import Access
from gluonsim.clocks import Component
from gluonsim.findings import refusal
from gluonsim.tensors.addresses import without_sign
from gluonsim.tensors.regions import Region, Slice

REDUCTIONS: dict[str, Any] = {
    "add": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


def _reduced(old: Tensor, new: Tensor, reduction: str) -> Tensor:
    """Return elements after a reduction; integers without a sign are compared as such."""
    compute, bits = REDUCTIONS[reduction], without_sign(old)
    new = new.view(bits.dtype)
    if bits.dtype == old.dtype or reduction not in ("min", "max"):
        return compute(bits, new).view(old.dtype)
    top = torch.iinfo(bits.dtype).min  # with this bit turned, signed numbers have the order of unsigned ones
    return (compute(bits ^ top, new ^ top) ^ top).view(old.dtype)


@dataclass(frozen=True, eq=False)
class Box:
    """A box of a tensor: what one TMA transfer moves."""

    descriptor: Descriptor
    shape: tuple[int, ...]
    region: Slice
    """The part that lies within the tensor."""
    inside: tuple[slice, ...]
    """Where in the box that part is."""

    @property
    def regions(self) -> list[Region]:
        """The elements that lie within the tensor."""
        return [self.region]

    def load(self) -> Tensor:
        """Return the contents now, with padding outside of the tensor."""
        found = self.region.tensor
        if self.descriptor.rounds_to_tf32:
            found = rounded_to_tf32(found)
        if found.shape == self.shape:
            return found
        box = self.descriptor.outside(self.shape, found.dtype).clone()
        box[self.inside] = found
        return box

    def store(self, values: Tensor, reduction: str | None) -> None:
        """Write the box; a part outside of the tensor is dropped."""
        region, part = self.region.tensor, values.reshape(self.shape)[self.inside]
        region.copy_(part if reduction is None else _reduced(region, part, reduction))


@dataclass(eq=False)
class Home:
    """Memory of a program in which it makes a descriptor, one after the other in a loop."""

    descriptor: Descriptor | None = None
    uses: dict[Component, Access] = field(default_factory=dict[Component, Access])
    """The newest transfer of each lane that reads the descriptor."""


ADDRESSES = 1 << 64
"""Addresses wrap around here: descriptors of ragged tensors rely on that."""


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A TMA descriptor: where a tensor lies, what a load returns outside of it, and how the load converts."""

    name: str
    flat: Tensor
    """The storage of the tensor as one dimension."""
    first: int
    """The number of the tensor's first element in the storage; coordinates may lead elsewhere."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Steps in elements, the innermost last."""
    padding: float
    rounds_to_tf32: bool = False
    """True if a load rounds fp32 to tf32; the tensor core would drop the bits instead."""
    pixels: Pixels | None = None
    """The box of pixels of an im2col descriptor."""
    home: Home | None = None
    """The memory in which the kernel made the descriptor; None for one of the host."""
    _boxes: dict[Hashable, Box] = field(default_factory=dict[Hashable, Box])
    _outside: dict[Hashable, Tensor] = field(default_factory=dict[Hashable, Tensor])

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of one element of the tensor."""
        return self.flat.element_size()

    @property
    def base_elements_outside(self) -> int:
        """Elements from the storage to the base: negative if it lies ahead, 0 if it is in the storage."""
        first, last = self._wrapped(self.first), max(0, len(self.flat) - 1)
        return min(first, 0) or max(first - last, 0)

    def _wrapped(self, place: int) -> int:
        """Return the number of an element, of a place that may have wrapped around all addresses."""
        size = self.element_bytes
        return (place * size + ADDRESSES // 2) % ADDRESSES // size - ADDRESSES // 2 // size

    def outside(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the contents of a box outside of the tensor; they are only to be read."""
        key = (shape, dtype)
        found = self._outside.get(key)
        if found is None:
            found = self._outside[key] = torch.full(shape, self.padding, dtype=torch.float32).to(dtype)
        return found

    def box(self, origin: tuple[int, ...], shape: tuple[int, ...]) -> Box:
        """Return a box of the tensor; one that was asked for before is the same object.

        Raises:
            GemmgenError: An element within the tensor lies outside of its storage (``out-of-bounds``).
        """
        key = (origin, shape)
        found = self._boxes.get(key)
        if found is None:
            found = self._boxes[key] = self._box(origin, shape)
        return found

    def _box(self, origin: tuple[int, ...], shape: tuple[int, ...]) -> Box:
        lows: list[int] = []
        extents: list[int] = []
        inside: list[slice] = []
        for start, extent, size in zip(origin, shape, self.shape, strict=True):
            low = min(max(start, 0), size)
            high = min(max(start + extent, low), size)
            lows.append(low)
            extents.append(high - low)
            # An empty box inside the box's bounds: where nothing is copied, the place does not matter.
            inside.append(slice(low - start, high - start) if high > low else slice(0, 0))
        return Box(self, shape, Slice(self._part(lows, extents)), tuple(inside))

    def _part(self, lows: Sequence[int], extents: Sequence[int]) -> Tensor:
        """Return the view of a part of the tensor."""
        if 0 in extents:
            return self.flat[:0].as_strided(extents, [0] * len(extents))
        place = self._wrapped(self.first + sum(map(mul, lows, self.strides)))
        # The step of a dimension makes no difference where the part has one element of it.
        steps = [stride if extent > 1 else 1 for stride, extent in zip(self.strides, extents, strict=True)]
        ends = [0, *((extent - 1) * step for extent, step in zip(extents, steps, strict=True))]
        if place < 0 or place + sum(ends) >= len(self.flat):
            text = f"{self.name}: a transfer from {list(lows)} on reaches outside of the tensor's storage"
            raise refusal(text, code="out-of-bounds")
        return self.flat.as_strided(extents, steps, place)


@dataclass(frozen=True)
class Pixels:
    """The pixels that an im2col transfer goes through: a box in the inner dimensions of an image."""

    lower: tuple[int, ...]
    """Where the box begins, from the image's first pixel, the innermost dimension last."""
    upper: tuple[int, ...]
    """Where the box ends, from the image's last pixel."""
    steps: tuple[int, ...]
    """Pixels from one to the next, in each dimension."""

    def walk(
        self, sizes: Sequence[int], image: int, start: Sequence[int], count: int
    ) -> Iterator[tuple[int, ...]]:
        """Yield (image, *position) of pixels: along the innermost dimension first, then into the next image.

        `sizes` are those of an image, and `start` is the position of the first pixel.
        """
        position = list(start)
        for _ in range(count):
            yield (image, *position)
            for dim in range(len(position) - 1, -1, -1):
                position[dim] += self.steps[dim]
                if position[dim] < sizes[dim] + self.upper[dim]:
                    break
                position[dim] = self.lower[dim]
            else:
                image += 1


@dataclass(frozen=True)
class Boxes:
    """Boxes of one tensor, one below the other in shared memory: rows of a gather, or pixels of im2col."""

    descriptor: Descriptor
    origins: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    """The shape of each box, the innermost dimension last; the others have one element."""

    @property
    def _boxes(self) -> list[Box]:
        return [self.descriptor.box(origin, self.shape) for origin in self.origins]

    @property
    def regions(self) -> list[Region]:
        """The elements that lie within the tensor."""
        return [region for box in self._boxes for region in box.regions]

    def load(self) -> Tensor:
        """Return the contents, padding outside of the tensor, a row for each box."""
        return torch.stack([box.load().reshape(-1) for box in self._boxes])

    def store(self, values: Tensor, reduction: str | None) -> None:
        """Write a row of values for each box; a part outside of the tensor is dropped."""
        for box, row in zip(self._boxes, values, strict=True):
            box.store(row, reduction)
