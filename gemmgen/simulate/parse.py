"""MLIR in generic form, as text, to operations with regions, attributes, types and locations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from gemmgen.simulate.errors import refusal
from gemmgen.simulate.location import UNKNOWN, Frame, Location
from gemmgen.simulate.text import Vocabulary, end_of_piece, pieces
from gemmgen.simulate.types import Type

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


@dataclass(eq=False)
class Operation:
    """One operation; values are known by name."""

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, Any]
    regions: tuple[Block, ...]
    """Structured control flow has one block a region; an empty region has a block without operations."""
    operand_types: tuple[Type, ...]
    result_types: tuple[Type, ...]
    location: Location

    def segments(self) -> list[tuple[str, ...]]:
        """Return the operands by group, where the operation has groups."""
        groups: list[tuple[str, ...]] = []
        start = 0
        for size in self.attributes["operandSegmentSizes"]:
            groups.append(self.operands[start : start + size])
            start += size
        return groups


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
            name, results, operands, merged, regions or (), operand_types, result_types, location
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
        blocks: list[Block] = []
        while True:
            self._blank()
            if self._skip("}"):
                break
            if self._text.startswith("^", self._at):
                blocks.append(self._label())
            elif not blocks:
                blocks.append(Block((), (), ()))
            else:
                blocks[-1].operations.append(self.operation())
        if len(blocks) > 1:
            raise refusal(f"a region has {len(blocks)} blocks; the simulator knows structured control flow")
        return blocks[0] if blocks else Block((), (), ())

    def _label(self) -> Block:
        self._expect(_LABEL, "the label of a block")
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
        return Block(tuple(names), tuple(types), tuple(locations))

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
