"""Types of values in TTGIR: layouts, and the part of a tensor or buffer that each CTA of a cluster holds."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, cast

import torch

from gemmgen.hardware import DTYPES as ELEMENTS
from gemmgen.numerics.encoding import TORCH_DTYPES
from gluonsim.findings import refusal

DTYPES: dict[str, torch.dtype] = {
    "i1": torch.bool,
    "i16": torch.int16,
    "i64": torch.int64,
    "index": torch.int64,
    "f64": torch.float64,
    "ui8": torch.uint8,  # of descriptors only
    **{dtype.mlir: TORCH_DTYPES[name] for name, dtype in ELEMENTS.items() if not dtype.coded},
}

SHARED_MEMORY = "ttg.shared_memory"
TENSOR_MEMORY = "ttng.tensor_memory"
PADDED = "ttg.padded_shared"


@dataclass(frozen=True)
class Encoding:
    """A layout: its kind, e.g. ``ttg.nvidia_mma``, and its fields."""

    kind: str
    fields: Mapping[str, Any]
    """Numbers, booleans, nested lists of numbers, and encodings."""

    def __hash__(self) -> int:
        return hash(self.kind)

    def blocks(self, shape: tuple[int, ...]) -> list[list[int]]:
        """Return for each bit of the CTA's number where it moves along each dimension, in CTA tiles.

        The layout may have a lower rank than `shape`: it describes the trailing dimensions.
        """
        bases = self._bases(shape)
        rank = len(shape)
        return [[0] * (rank - len(basis)) + basis for basis in bases]

    def _bases(self, shape: tuple[int, ...]) -> list[list[int]]:
        if "CGALayout" in self.fields:
            return cast("list[list[int]]", self.fields["CGALayout"])
        if "block" in self.fields:  # a linear layout counts elements, not tiles
            return _in_tiles(cast("list[list[int]]", self.fields["block"]), shape)
        parent = cast("Encoding | None", self.fields.get("parent"))
        if parent is None:
            return []  # one CTA
        if self.kind == "ttg.slice":
            dim = cast(int, self.fields["dim"])
            inner = parent.blocks((*shape[:dim], 1, *shape[dim:]))
            return [[*basis[:dim], *basis[dim + 1 :]] for basis in inner]
        if self.kind == "ttg.dot_op":
            # Every CTA holds all of K for its part of the result.
            k_dim = len(shape) - 1 if self.fields["opIdx"] == 0 else len(shape) - 2
            bases = parent.blocks(shape)
            return [[0 if dim == k_dim else step for dim, step in enumerate(basis)] for basis in bases]
        raise refusal(f"layout {self.kind} is not known to the simulator")


def _in_tiles(bases: list[list[int]], shape: tuple[int, ...]) -> list[list[int]]:
    rank = len(bases[0]) if bases else 0
    shape = shape[len(shape) - rank :]
    # A layout may be of a larger shape: a CTA whose part lies beyond the end of this one holds the first.
    bases = [
        [step if step < extent else 0 for step, extent in zip(basis, shape, strict=True)] for basis in bases
    ]
    splits = [2 ** sum(1 for basis in bases if basis[dim]) for dim in range(len(shape))]
    tile = [extent // split for extent, split in zip(shape, splits, strict=True)]
    if any(basis[dim] % tile[dim] for basis in bases for dim in range(len(shape))):
        raise refusal(f"a layout interleaves the CTAs of a cluster: bases {bases} of shape {list(shape)}")
    return [[step // extent for step, extent in zip(basis, tile, strict=True)] for basis in bases]


@dataclass(frozen=True)
class Holding:
    """The elements of a region, of a tensor or of a buffer, that one CTA holds."""

    cta: int
    here: tuple[slice, ...]
    """Where they are in the region."""
    there: tuple[slice, ...]
    """Where they are in what the CTA holds."""


@dataclass(frozen=True)
class Distributed:
    """A shape that the CTAs of a cluster hold together."""

    shape: tuple[int, ...]
    element: str
    encoding: Encoding | None

    @cached_property
    def blocks(self) -> list[list[int]]:
        """See `Encoding.blocks`; a step beyond the tensor's end is none: there the tensor begins again."""
        bases = self.encoding.blocks(self.shape) if self.encoding else []
        return [[step % extent for step, extent in zip(basis, self.shape, strict=True)] for basis in bases]

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The part that one CTA holds."""
        splits = [1] * len(self.shape)
        for basis in self.blocks:
            for dim, step in enumerate(basis):
                splits[dim] *= 2 if step else 1
        return tuple(extent // split for extent, split in zip(self.shape, splits, strict=True))

    def origin(self, cta: int) -> tuple[int, ...]:
        """Return where the part of a CTA begins."""
        known = self._origins.get(cta)
        if known is None:
            known = self._origins[cta] = self._origin(cta)
        return known

    @cached_property
    def _origins(self) -> dict[int, tuple[int, ...]]:
        return {}

    def _origin(self, cta: int) -> tuple[int, ...]:
        tile = [0] * len(self.shape)
        for bit, basis in enumerate(self.blocks):
            if cta >> bit & 1:
                tile = [position + step for position, step in zip(tile, basis, strict=True)]
        return tuple(t * extent for t, extent in zip(tile, self.local_shape, strict=True))

    @cached_property
    def shared_bits(self) -> int:
        """Bits of the CTA's number that make no difference: CTAs that differ in them hold the same."""
        return sum(1 << bit for bit, basis in enumerate(self.blocks) if not any(basis))

    def holdings(self, cta: int, origin: tuple[int, ...], extents: tuple[int, ...]) -> tuple[Holding, ...]:
        """Return from which CTA a given one gets each element of a region.

        Of CTAs that hold the same elements it is the one with the same `shared_bits` as the given one, as
        Triton 3.9 has it: a CTA that holds an element itself takes its own.
        """
        others = (each for each in range(1 << len(self.blocks)) if not (each ^ cta) & self.shared_bits)
        return tuple(found for each in others if (found := self._holding(each, origin, extents)))

    def _holding(self, cta: int, origin: tuple[int, ...], extents: tuple[int, ...]) -> Holding | None:
        own = self.origin(cta)
        here: list[slice] = []
        there: list[slice] = []
        for begin, extent, first, count in zip(origin, extents, own, self.local_shape, strict=True):
            low, high = max(begin, first), min(begin + extent, first + count)
            if low >= high:
                return None
            here.append(slice(low - begin, high - begin))
            there.append(slice(low - first, high - first))
        return Holding(cta, tuple(here), tuple(there))

    @property
    def dtype(self) -> torch.dtype:
        """The torch type of an element.

        Raises:
            GemmgenError: There is none.
        """
        return dtype_of(self.element)

    @property
    def fp4_padded(self) -> bool:
        """Return whether each byte, two numbers of four bits, takes two bytes of shared memory."""
        return self.encoding is not None and bool(self.encoding.fields.get("fp4Padded"))

    @property
    def element_bytes(self) -> int:
        """Bytes of memory that an element takes."""
        return self.dtype.itemsize * (2 if self.fp4_padded else 1)

    @property
    def local_bytes(self) -> int:
        """Bytes of memory that one CTA's part takes, without padding."""
        return prod(self.local_shape) * self.element_bytes


@dataclass(frozen=True)
class TensorType(Distributed):
    """A tensor in registers; `element` may be a pointer, ``!tt.ptr<f32>``."""


@dataclass(frozen=True)
class MemDescType(Distributed):
    """A view of shared memory, or of tensor memory."""

    space: str = SHARED_MEMORY


@dataclass(frozen=True)
class DescriptorType(Distributed):
    """A TMA descriptor, and the box that the cluster moves at once: pixels by channels for im2col."""


@dataclass(frozen=True)
class ScalarType:
    """A number or a pointer."""

    element: str

    @property
    def dtype(self) -> torch.dtype:
        """The torch type of the number."""
        return dtype_of(self.element)


Type = TensorType | MemDescType | DescriptorType | ScalarType


def dtype_of(element: str) -> torch.dtype:
    """Return the torch type of an MLIR element type."""
    try:
        return DTYPES[element]
    except KeyError:
        raise refusal(f"element type {element} is not known to the simulator") from None


def pointee_of(type_: Type) -> torch.dtype:
    """Return the torch type of the elements that a pointer points to, or a descriptor describes."""
    element = type_.element.removeprefix("!tt.ptr<").partition(",")[0].removesuffix(">")
    return dtype_of(element if element in DTYPES else element.removeprefix("s"))  # si32 of a descriptor


def bits_to_float(bits: int, element: str) -> float:
    """Return the number that MLIR spells as bits: infinities and NaNs."""
    formats = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e")}
    if element == "bf16":
        bits, element = bits << 16, "f32"
    if element not in formats:
        raise refusal(f"cannot read the bits of a constant of type {element}")
    as_integer, as_float = formats[element]
    return struct.unpack(as_float, struct.pack(as_integer, bits))[0]
