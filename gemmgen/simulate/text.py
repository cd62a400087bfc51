"""Scanning MLIR text: balanced pieces, attribute values, layouts and types."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gemmgen.simulate.errors import refusal
from gemmgen.simulate.types import (
    DTYPES,
    SHARED_MEMORY,
    TENSOR_MEMORY,
    DescriptorType,
    Encoding,
    MemDescType,
    ScalarType,
    TensorType,
    Type,
)

_OPENING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|->|[()\[\]{}<>,]')
_INTEGER = re.compile(r"(-?\d+)(?: : \w+)?$")
_FLOAT = re.compile(r"(-?\d+\.\d+(?:e[+-]?\d+)?)(?: : \w+)?$")
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
