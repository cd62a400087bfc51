"""MLIR in generic form, as text, to operations with regions, attributes, types and locations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

from gemmgen.errors import GemmgenError
from gluonsim.findings import UNKNOWN, Frame, Location, refusal
from gluonsim.ir.types import (
    DTYPES,
    PADDED,
    SHARED_MEMORY,
    TENSOR_MEMORY,
    DescriptorType,
    Encoding,
    MemDescType,
    ScalarType,
    TensorType,
    Type,
    bits_to_float,
)

_OPENING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|->|[()\[\]{}<>,]')
_INTEGER = re.compile(r"(-?\d+)(?: : \w+)?$")
_FLOAT = re.compile(r"(-?\d+\.\d+(?:[eE][+-]?\d+)?)(?: : \w+)?$")
_HEX = re.compile(r"0x([0-9A-Fa-f]+)(?: : (\w+))?$")
_PADDING = re.compile(r"(\d+):\+(\d+)")
_SHAPED = re.compile(r"(tensor|!ttg\.memdesc|!tt\.tensordesc|!ttng\.tensordesc_im2col)<(.*)>$", re.DOTALL)
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
        kind, body = match.groups()
        if kind != PADDED:
            return Encoding(kind, dict(self._fields(body)))
        intervals, _, rest = body.partition("] {")
        paddings = [[int(interval), int(padding)] for interval, padding in _PADDING.findall(intervals)]
        return Encoding(kind, {"paddings": paddings, **dict(self._fields(rest.removesuffix("}")))})

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
        match = _SHAPED.match(text)
        if match is None:
            raise refusal(f"type {text} is not known to the simulator", code="unknown-type")
        first, *rest = pieces(match.group(2))
        shape: tuple[int, ...] = ()
        while extent := re.match(r"(\d+)x", first):
            shape, first = (*shape, int(extent.group(1))), first[extent.end() :]
        encoding = self.encoding(rest[0]) if rest else None
        if match.group(1) == "tensor":
            return TensorType(shape, first, encoding)
        if "tensordesc" in match.group(1):
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
        if _ENUM.match(text) or text.startswith(("(", "[", "{", "#", "!", "@")):
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
        "tt.map_elementwise.return",
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
        """Read an operation; a refusal gets the place of the operation that it is about."""
        try:
            return self._operation()
        except GemmgenError as error:
            diagnostic = error.diagnostics[0]
            if diagnostic.line is not None:
                raise
            raise refusal(diagnostic.message, self._place_near(), diagnostic.code) from error
        except Exception as error:
            text = f"cannot read the compiler's output ({type(error).__name__}: {error})"
            raise refusal(text, self._place_near()) from error

    def _place_near(self) -> Location:
        """Return the next location in the text: an operation ends with its own."""
        start = self._text.find(" loc(", self._at)
        if start < 0:
            return UNKNOWN
        first = start + len(" loc(")
        return self._place(self._text[first : end_of_piece(self._text, first, ")")])

    def _operation(self) -> Operation:
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
