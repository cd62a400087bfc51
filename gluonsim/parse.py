"""MLIR in generic form, as text, to operations with regions, attributes, types and locations."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NoReturn, cast

import torch

from gemmgen.hardware import DTYPES as ELEMENTS
from gemmgen.numerics.encoding import TORCH_DTYPES
from gluonsim.findings import UNKNOWN, Frame, Location, refusal

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
        """Whether each byte, two numbers of four bits, takes two bytes of shared memory."""
        return self.encoding is not None and bool(self.encoding.fields.get("fp4Padded"))

    @property
    def element_bytes(self) -> int:
        """Bytes of memory that an element takes."""
        return self.dtype.itemsize * (2 if self.fp4_padded else 1)

    @property
    def local_bytes(self) -> int:
        """Bytes of memory that one CTA's part takes."""
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
    """A TMA descriptor and the box that the cluster moves with one operation."""


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


_OPENING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|->|[()\[\]{}<>,]')
_INTEGER = re.compile(r"(-?\d+)(?: : \w+)?$")
_FLOAT = re.compile(r"(-?\d+\.\d+(?:[eE][+-]?\d+)?)(?: : \w+)?$")
_HEX = re.compile(r"0x([0-9A-Fa-f]+)(?: : (\w+))?$")
_ENUM = re.compile(r"#\w+\.\w+<\w+>$")


@dataclass(frozen=True)
class Dense:
    """A constant tensor: one number for all elements, or nested lists of numbers."""

    value: Any
    type: Type


def end_of_piece(text: str, start: int, stop: str = ",)]}>") -> int:
    """Return where the piece that begins at `start` ends: at the first of `stop` outside brackets."""
    depth = 0
    for match in _PIECE.finditer(text, start):
        token = match.group()
        if depth == 0 and token in stop:
            return match.start()
        if token in _OPENING:
            depth += 1
        elif len(token) == 1 and token in ")]}>":
            depth -= 1
    return len(text)


def pieces(text: str) -> Iterator[str]:
    """Yield what top-level commas separate."""
    start = 0
    while start < len(text):
        end = end_of_piece(text, start, ",")
        if piece := text[start:end].strip():
            yield piece
        start = end + 1


def split_pair(piece: str) -> tuple[str, str | None]:
    """Return a name and its value's text; None where an attribute is only there."""
    name, separator, value = piece.partition(" = ")
    return name.strip().strip('"'), value.strip() if separator else None


class Vocabulary:
    """Layouts by alias, and every type and attribute value that has been read."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        self._types: dict[str, Type] = {}

    def encoding(self, text: str) -> Encoding:
        """Read a layout, or the alias of one."""
        text = self.aliases.get(text, text)
        match = re.match(r"#([\w.]+)<(.*)>$", text, re.DOTALL)
        if match is None:
            raise refusal(f"cannot read the layout {text}")
        return Encoding(match.group(1), dict(self._fields(match.group(2))))

    def _fields(self, text: str) -> Iterator[tuple[str, Any]]:
        for piece in pieces(text):
            if piece.startswith("{"):
                yield from self._fields(piece[1:-1])
                continue
            name, value = split_pair(piece)
            yield name, self._field(value or "true")

    def _field(self, text: str) -> Any:
        if text.startswith("#"):
            return self.encoding(text)
        try:
            return json.loads(text)
        except ValueError:
            raise refusal(f"cannot read {text} in a layout") from None

    def type(self, text: str) -> Type:
        """Read a type."""
        known = self._types.get(text)
        if known is None:
            known = self._types[text] = self._read_type(text)
        return known

    def _read_type(self, text: str) -> Type:
        if text in DTYPES or text.startswith("!tt.ptr<") or text in ("!ttg.async.token", "i128"):
            return ScalarType(text)
        match = re.match(r"(tensor|!ttg\.memdesc|!tt\.tensordesc)<(.*)>$", text, re.DOTALL)
        if match is None:
            raise refusal(f"type {text} is not known to the simulator", code="unknown-type")
        first, *rest = pieces(match.group(2))
        shape: tuple[int, ...] = ()
        while extent := re.match(r"(\d+)x", first):
            shape, first = (*shape, int(extent.group(1))), first[extent.end() :]
        encoding = self.encoding(rest[0]) if rest else None
        if match.group(1) == "tensor":
            return TensorType(shape, first, encoding)
        if match.group(1) == "!tt.tensordesc":
            return DescriptorType(shape, first, encoding)
        space = self.aliases.get(rest[1], rest[1]).lstrip("#")
        if space not in (SHARED_MEMORY, TENSOR_MEMORY):
            raise refusal(f"memory space {space} is not known to the simulator", code="unknown-type")
        return MemDescType(shape, first, encoding, space)

    def attributes(self, text: str) -> Mapping[str, Any]:
        """Read what stands between the braces of an attribute dictionary."""
        found: dict[str, Any] = {}
        for piece in pieces(text):
            name, value = split_pair(piece)
            found[name] = True if value is None else self.value(value)
        return found

    def value(self, text: str) -> Any:
        """Read an attribute's value."""
        if text in ("true", "false"):
            return text == "true"
        if match := _INTEGER.match(text):
            return int(match.group(1))
        if match := _FLOAT.match(text):
            return float(match.group(1))
        if match := _HEX.match(text):
            return bits_to_float(int(match.group(1), 16), match.group(2) or "f32")
        if text.startswith('"'):
            return text.strip('"')
        if text.startswith("array<"):
            body = text[len("array<") : -1].partition(":")[2]
            return tuple(int(self.value(piece)) for piece in pieces(body))
        if text.startswith("dense<"):
            return self._dense(text)
        if _ENUM.match(text) or text.startswith(("(", "[", "{", "#", "!")):
            return text
        raise refusal(f"cannot read the attribute value {text}")

    def _dense(self, text: str) -> Dense:
        end = end_of_piece(text, len("dense<"), ">")
        type_ = self.type(text[end + 1 :].strip().removeprefix(":").strip())
        body = text[len("dense<") : end]
        if body.startswith("["):
            return Dense(json.loads(body), type_)
        if match := _HEX.match(body):
            return Dense(bits_to_float(int(match.group(1), 16), type_.element), type_)
        return Dense(self.value(body), type_)


def bits_to_float(bits: int, element: str) -> float:
    """Return the number that MLIR spells as bits: infinities and NaNs."""
    formats = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e")}
    if element == "bf16":
        bits, element = bits << 16, "f32"
    if element not in formats:
        raise refusal(f"cannot read the bits of a constant of type {element}")
    as_integer, as_float = formats[element]
    return struct.unpack(as_float, struct.pack(as_integer, bits))[0]


_ALIAS = re.compile(r"^(#\w+) = (.*)$", re.MULTILINE)
_RESULTS = re.compile(r"(%[\w.$-]+)(?::(\d+))?(, | = )")
_LABEL = re.compile(r"\^\w+")
_NAME = re.compile(r'"([\w.]+)"\(')
_FILE = re.compile(r'"([^"]*)":(\d+):(\d+)(?: to [\d:]+)?$')
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\((.*)\))?$', re.DOTALL)


@dataclass(eq=False)
class Block:
    """Operations in order, and the names of the values that enter them."""

    arguments: tuple[str, ...]
    argument_types: tuple[Type, ...]
    argument_locations: tuple[Location, ...]
    operations: list[Operation] = field(default_factory=list["Operation"])
    siblings: dict[str, Block] = field(default_factory=dict[str, "Block"])
    """The blocks of its region by label, itself too; empty where the region has no other."""


@dataclass(eq=False)
class Operation:
    """One operation; values are known by name."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, Any]
    regions: tuple[Block, ...]
    """The first block of each region; an empty region has a block without operations."""
    operand_types: tuple[Type, ...]
    result_types: tuple[Type, ...]
    location: Location
    successors: tuple[str, ...] = ()
    """Labels of the blocks that a branch may go to."""

    @cached_property
    def segments(self) -> list[tuple[str, ...]]:
        """The operands by group, where the operation has groups."""
        groups: list[tuple[str, ...]] = []
        start = 0
        for size in self.attributes["operandSegmentSizes"]:
            groups.append(self.operands[start : start + size])
            start += size
        return groups


def blocks(block: Block) -> Iterator[Block]:
    """Yield every block of a region, given its first one, and of the regions in it."""
    for part in block.siblings.values() or (block,):
        yield part
        for op in part.operations:
            for region in op.regions:
                yield from blocks(region)


def walk(block: Block) -> Iterator[Operation]:
    """Yield every operation of a region, given its first block, and of the regions in it, in order."""
    for op in (op for part in block.siblings.values() or (block,) for op in part.operations):
        yield op
        for region in op.regions:
            yield from walk(region)


TERMINATORS = frozenset(
    {
        "cf.br",
        "cf.cond_br",
        "scf.yield",
        "scf.condition",
        "tt.return",
        "tt.reduce.return",
        "tt.scan.return",
        "ttg.warp_yield",
        "ttg.warp_return",
    }
)
"""The operations that end a block."""


def parse(text: str, library: str) -> Operation:
    """Read a module.

    `library` is the directory of the toolchain's own source: no location points there if it can be helped.

    Raises:
        GemmgenError: The text has something that the parser does not know.
    """
    return _Parser(text, library).operation()


class _Parser:
    def __init__(self, text: str, library: str) -> None:
        self._text = text
        self._library = library
        self._vocabulary = Vocabulary()
        self._location_aliases: dict[str, str] = {}
        self._locations: dict[str, Location] = {}
        for match in _ALIAS.finditer(text):
            if match.group(2).startswith("loc("):
                self._location_aliases[match.group(1)] = match.group(2)[4:-1]
            else:
                self._vocabulary.aliases[match.group(1)] = match.group(2)
        self._at = text.index('"builtin.module"')

    def operation(self) -> Operation:
        results = self._results()
        name = self._expect(_NAME, "an operation").group(1)
        operands = tuple(pieces(self._until(")")))
        successors = tuple(pieces(self._until("]"))) if self._skip("[") else ()
        properties = regions = attributes = None
        if self._skip(" <{"):
            properties = self._vocabulary.attributes(self._until("}"))
            self._require(">")
        if self._skip(" ({"):
            regions = self._regions()
        if self._skip(" {"):
            attributes = self._vocabulary.attributes(self._until("}"))
        self._require(" : (")
        operand_types = self._types(self._until(")"))
        self._require(" -> ")
        if self._skip("("):
            result_types = self._types(self._until(")"))
        else:
            end = self._text.index(" loc(", self._at)
            result_types = self._types(self._text[self._at : end])
            self._at = end
        location = self._location()
        merged = {**(properties or {}), **(attributes or {})}
        return Operation(
            name, results, operands, merged, regions or (), operand_types, result_types, location, successors
        )

    def _results(self) -> tuple[str, ...]:
        names: list[str] = []
        while match := _RESULTS.match(self._text, self._at):
            self._at = match.end()
            count = match.group(2)
            names += [f"{match.group(1)}#{i}" for i in range(int(count))] if count else [match.group(1)]
        return tuple(names)

    def _regions(self) -> tuple[Block, ...]:
        regions = [self._region()]
        while self._skip(", {"):
            regions.append(self._region())
        self._require(")")
        return tuple(regions)

    def _region(self) -> Block:
        blocks: dict[str, Block] = {}
        block = Block((), (), ())
        while True:
            self._blank()
            if self._skip("}"):
                break
            if self._text.startswith("^", self._at):
                label, block = self._label()
                blocks[label] = block
            else:
                block.operations.append(self.operation())
                blocks = blocks or {"": block}
        first = next(iter(blocks.values()), block)
        for block in blocks.values() if len(blocks) > 1 else ():
            block.siblings = blocks
        return first

    def _label(self) -> tuple[str, Block]:
        label = self._expect(_LABEL, "the label of a block").group()
        names: list[str] = []
        types: list[Type] = []
        locations: list[Location] = []
        if self._skip("("):
            for argument in pieces(self._until(")")):
                name, _, rest = argument.partition(": ")
                type_, _, location = rest.partition(" loc(")
                names.append(name)
                types.append(self._vocabulary.type(type_))
                locations.append(self._place(location[:-1]))
        self._require(":")
        self._at = self._text.index("\n", self._at)  # the printer's comment on what leads here
        return label, Block(tuple(names), tuple(types), tuple(locations))

    def _types(self, text: str) -> tuple[Type, ...]:
        return tuple(self._vocabulary.type(piece) for piece in pieces(text))

    def _location(self) -> Location:
        if not self._skip(" loc("):
            return UNKNOWN
        return self._place(self._until(")"))

    def _place(self, text: str) -> Location:
        """Return a location without the toolchain's own frames."""
        return self._frames(text).within(self._library)

    def _frames(self, text: str) -> Location:
        known = self._locations.get(text)
        if known is None:
            known = self._locations[text] = self._read_location(text)
        return known

    def _read_location(self, text: str) -> Location:
        if text == "unknown":
            return UNKNOWN
        if text.startswith("#"):
            return self._frames(self._location_aliases[text])
        if text.startswith("callsite("):
            callee, caller = text[len("callsite(") : -1].split(" at ", 1)
            return Location(self._frames(callee).frames + self._frames(caller).frames)
        if text.startswith("fused"):
            parts = pieces(text[text.index("[") + 1 : -1])
            return next((found for part in parts if (found := self._frames(part)).frames), UNKNOWN)
        if match := _FILE.match(text):
            return Location((Frame(match.group(1), int(match.group(2))),))
        if match := _NAMED.match(text):
            child = self._frames(match.group(2)) if match.group(2) else UNKNOWN
            return child.named(match.group(1))
        raise refusal(f"cannot read the location {text}")

    def _until(self, closing: str) -> str:
        """Return the text up to a closing bracket and go past it."""
        end = end_of_piece(self._text, self._at, closing)
        found = self._text[self._at : end]
        self._at = end + 1
        return found

    def _blank(self) -> None:
        while self._text[self._at] in " \n":
            self._at += 1

    def _skip(self, word: str) -> bool:
        if self._text.startswith(word, self._at):
            self._at += len(word)
            return True
        return False

    def _require(self, word: str) -> None:
        if not self._skip(word):
            self._fail(repr(word))

    def _expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(what)
        self._at = match.end()
        return match

    def _fail(self, what: str) -> NoReturn:
        line = self._text[self._at :].split("\n", 1)[0]
        raise refusal(f"cannot read the compiler's output: expected {what} at {line[:80]!r}")
