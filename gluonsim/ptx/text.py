"""Texts of PTX instructions, and the registers that they work on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ptx.instructions import PACKED_FLOATS, WIDTHS, floats, instruction, masked, reader, width_of

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
_CONSTANT = re.compile(r"-?\d")
_DECLARED = re.compile(r"([\w%$]+)(?:<(\d+)>)?")
_NAME = re.compile(r"(?<![\w%$])[A-Za-z_%$][\w%$]*")
_PART = re.compile(r"\s*([{}]|[^;{}]*(?:\{[^{}]*\}[^;{}]*)*;?)")
"""The beginning or the end of a scope, or a statement, whose vectors are in braces too."""


@dataclass(frozen=True)
class _Statement:
    predicate: str | None
    negated: bool
    name: str
    operands: tuple[str, ...]


def statements(text: str, same: Mapping[str, str] | None = None) -> tuple[_Statement, ...]:
    """Return the instructions of an inline assembly text; a register that a scope declares has its own name.

    `same` are other names of registers.

    Raises:
        GemmgenError: A part of the text is no instruction.
    """
    text = _COMMENT.sub(" ", _ESCAPE.sub(lambda match: chr(int(match.group(1), 16)), text)).strip()
    found: list[_Statement] = []
    scopes = [dict(same or {})]
    for number, match in enumerate(_PART.finditer(text)):
        part = match.group(1).rstrip("; \n\t")
        if part == "{":
            scopes.append({})
        elif part == "}" and len(scopes) > 1:
            scopes.pop()
        elif part.startswith(".reg"):
            scopes[-1] |= {name: f"{name}@{number}" for name in _declared(part)}
        elif part:
            found.append(_statement(part, {name: own for scope in scopes for name, own in scope.items()}))
    return tuple(found)


def _declared(part: str) -> list[str]:
    """Return the registers that a declaration is of."""
    names: list[str] = []
    for name, count in _DECLARED.findall(part.partition(" ")[2].strip().partition(" ")[2]):
        names += [f"{name}{i}" for i in range(int(count))] if count else [name]
    return names


def _statement(part: str, names: Mapping[str, str]) -> _Statement:
    match = _STATEMENT.match(part)
    if match is None:
        raise refusal(f"inline assembly is not known to the simulator: {part}", code="unknown-operation")
    negated, predicate, name, rest = match.groups()
    rest = _NAME.sub(lambda found: names.get(found.group(), found.group()), rest)
    operands = tuple(operand.strip() for operand in _VECTOR.findall(rest))
    return _Statement(names.get(predicate, predicate), bool(negated), name, operands)


class Machine:
    """Registers of many threads, and what a text of instructions makes of them."""

    def __init__(self, text: str, same: Mapping[str, str] | None = None) -> None:
        """Read a text, with other names of registers by name.

        Raises:
            GemmgenError: The text has an instruction that is not in the table, or a constant that ptxas
                refuses there.
        """
        self._statements = statements(text, same)
        for statement in self._statements:
            base, *modifiers = statement.name.split(".")
            if base not in ("mov", "setp", "selp"):
                instruction(statement.name)
                _require_registers(statement, base, modifiers)
            elif not _is_known(base, modifiers):
                message = f"the PTX instruction {statement.name} is not known to the simulator"
                raise refusal(message, code="unknown-operation")

    def run(self, registers: dict[str, Tensor], like: Tensor) -> None:
        """Execute the instructions on registers by name, which get the outputs; `like` has their shape."""
        for statement in self._statements:
            results, values = self._executed(statement, registers, like)
            for name, value in zip(results, values, strict=True):
                if statement.predicate is not None:
                    predicate = self._value(statement.predicate, registers, like)
                    taken = predicate == (0 if statement.negated else 1)
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
            compare, type_ = COMPARISONS[modifiers[0]], modifiers[-1]
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
            is_float = text.lower().startswith(("0f", "0d"))
            number = int(text[2:], 16) if is_float else int(text.rstrip("U"), 0)
        except ValueError:
            raise refusal(f"the operand {text} of inline assembly is not known to the simulator") from None
        return torch.full_like(like, number - (1 << 64) if number >> 63 == 1 else number)


def _require_registers(statement: _Statement, base: str, modifiers: Sequence[str]) -> None:
    """Raise GemmgenError if arithmetic of 16-bit floats has a constant, which ptxas refuses [ptxas 12.9]."""
    if (
        not modifiers
        or base == "cvt"
        or PACKED_FLOATS.get(modifiers[-1], modifiers[-1]) not in ("f16", "bf16")
    ):
        return
    for source in statement.operands[1:]:
        if _CONSTANT.match(source):
            message = (
                f"{statement.name} takes registers alone, found {source}: move the constant to a register"
            )
            raise refusal(message, code="unknown-operation")


def _is_known(base: str, modifiers: Sequence[str]) -> bool:
    """Return whether a move, a comparison or a choice is one that a machine executes."""
    if not modifiers or not width_of(modifiers[-1]):
        return False
    if base != "setp":
        return len(modifiers) == 1
    if len(modifiers) != 2 or modifiers[1] in (*PACKED_FLOATS, "pred"):
        return False
    # Registers are int64: a number from 2**63 on would be a negative one.
    of_order = modifiers[1] in ("u64", "b64") and modifiers[0] not in ("eq", "ne")
    return modifiers[0] in COMPARISONS and not of_order


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
