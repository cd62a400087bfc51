"""Texts of PTX instructions, and the registers that they work on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ptx.instructions import WIDTHS, floats, instruction, masked, reader, width_of

COMPARISONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "eq": torch.eq,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}
"""Comparisons by name; each is false if an operand is NaN."""
_STATEMENT = re.compile(r"(?:@(!?)([\w%$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_VECTOR = re.compile(r"\{[^}]*\}|[^,\s][^,]*")
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2})")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_REGISTERS = re.compile(r"([\w%$]+)(?:<(\d+)>)?")


@dataclass(frozen=True)
class _Statement:
    predicate: str | None
    negated: bool
    name: str
    operands: tuple[str, ...]


def statements(text: str) -> tuple[_Statement, ...]:
    """Return the instructions of an inline assembly text, without its declarations.

    Raises:
        GemmgenError: A part of the text is no instruction.
    """
    text = _COMMENT.sub(" ", _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), text))
    found: list[_Statement] = []
    for part in _outside_vectors(text):
        match = _STATEMENT.match(part)
        if part.startswith(".reg"):
            continue
        if match is None:
            raise refusal(f"inline assembly is not known to the simulator: {part}", code="unknown-operation")
        negated, predicate, name, rest = match.groups()
        operands = tuple(operand.strip() for operand in _VECTOR.findall(rest))
        found.append(_Statement(predicate, bool(negated), name, operands))
    return tuple(found)


def _outside_vectors(text: str) -> list[str]:
    """Return the statements of a text; its outer braces are a scope."""
    text = text.strip()
    while text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    return [part for each in text.split(";") if (part := each.strip())]


class Machine:
    """Registers of many threads, and what a text of instructions makes of them."""

    def __init__(self, text: str) -> None:
        """Read a text.

        Raises:
            GemmgenError: The text has an instruction that is not in the table.
        """
        self._statements = statements(text)
        for statement in self._statements:
            if statement.name.split(".")[0] not in ("mov", "setp", "selp"):
                instruction(statement.name)

    def run(self, registers: dict[str, Tensor], like: Tensor) -> None:
        """Execute the instructions on registers by name, which get the outputs; `like` has their shape."""
        for statement in self._statements:
            results, values = self._executed(statement, registers, like)
            for name, value in zip(results, values, strict=True):
                if statement.predicate is not None:
                    taken = registers[statement.predicate] == (0 if statement.negated else 1)
                    value = torch.where(taken, value, registers.get(name, torch.zeros_like(like)))
                registers[name] = value

    def _executed(
        self, statement: _Statement, registers: Mapping[str, Tensor], like: Tensor
    ) -> tuple[tuple[str, ...], list[Tensor]]:
        base, *modifiers = statement.name.split(".")
        target, *sources = statement.operands
        names = tuple(part.strip() for part in target.strip("{}").split(","))
        width = width_of(modifiers[-1]) if modifiers else 0
        if base == "mov":
            return names, _moved(names, self._vector(sources[0], registers, like), width)
        values = [self._value(source, registers, like) for source in sources]
        if base == "setp":
            compare, type_ = COMPARISONS.get(modifiers[0]), modifiers[-1]
            of_order = type_ in ("u64", "b64") and modifiers[0] not in ("eq", "ne")
            if compare is None or len(modifiers) != 2 or of_order:
                message = f"the PTX instruction {statement.name} is not known to the simulator"
                raise refusal(message, code="unknown-operation")
            a, b = (reader(type_)(v) if type_ in WIDTHS else floats(v, type_) for v in values)
            return names, [compare(a, b).to(torch.int64)]
        if base == "selp":
            return names, [torch.where(values[2] == 1, values[0], values[1])]
        return names, [instruction(statement.name)(values)]

    def _vector(self, text: str, registers: Mapping[str, Tensor], like: Tensor) -> list[Tensor]:
        parts = text.strip("{}").split(",")
        return [self._value(part.strip(), registers, like) for part in parts]

    def _value(self, text: str, registers: Mapping[str, Tensor], like: Tensor) -> Tensor:
        if text in registers:
            return registers[text]
        try:
            number = int(text[2:], 16) if text.lower().startswith("0f") else int(text.rstrip("U"), 0)
        except ValueError:
            raise refusal(f"the operand {text} of inline assembly is not known to the simulator") from None
        return torch.full_like(like, number)


def _moved(names: Sequence[str], values: Sequence[Tensor], width: int) -> list[Tensor]:
    """Return values that a move joins into one register, or divides among several."""
    if len(values) > 1:
        part = width // len(values)
        joined = torch.zeros_like(values[0])
        for i, value in enumerate(values):
            joined = joined | masked(value, part) << part * i
        return [joined]
    part = width // len(names)
    return [masked(values[0] >> part * i, part) for i in range(len(names))]
