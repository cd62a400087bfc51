"""Inline assembly: instructions of a table on the registers of threads, in the order of their layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.threads import held_elements
from gluonsim.ir.types import Distributed, MemDescType, TensorType, Type, dtype_of
from gluonsim.operations import resolved
from gluonsim.operations.arith import as_tensor
from gluonsim.program import Agent, Handler
from gluonsim.ptx.instructions import INTEGERS, masked, signed
from gluonsim.ptx.text import Machine
from gluonsim.tensors.deferred import Undefined

REGISTER_BITS = 32


@resolved(
    "tt.elementwise_inline_asm",
    "asm_string",
    "constraints",
    "packed_element",
    ignored=("pure",),
    computes=True,
)
def elementwise_inline_asm(op: Operation) -> Handler:
    """Execute a text for each group of `packed_element` elements; narrow ones share registers."""
    _refuse_unknown(op)
    pack: int = op.attributes["packed_element"]
    tensors = [type_ for type_ in (*op.operand_types, *op.result_types) if isinstance(type_, TensorType)]
    if any(type_.local_shape != tensors[0].local_shape for type_ in tensors):
        raise refusal("inline assembly on tensors of several shapes is not known", op.location)
    if pack == 1:
        index = torch.arange(prod(tensors[0].local_shape) if tensors else 1).unsqueeze(0)
    else:
        held = held_elements(tensors[0]) if tensors else torch.zeros(1, 1, dtype=torch.int64)
        if len(held) % pack:
            message = (
                f"inline assembly on {pack} elements at a time, of {len(held)} of a thread, is not known"
            )
            raise refusal(message, op.location, "unknown-operation")
        index = held.reshape(-1, pack, held.shape[1]).transpose(0, 1).reshape(pack, -1)

    def value(type_: Type) -> _Value:
        return _Value(type_, index, max(1, min(pack, REGISTER_BITS // _width(type_))))

    return _handler(op, list(map(value, op.result_types)), list(map(value, op.operand_types)))


@resolved("ttg.inline_asm", "asm_string", "constraints", ignored=("pure",), computes=True)
def inline_asm(op: Operation) -> Handler:
    """Execute a text once in each thread: a tensor has a register for each element that the thread holds."""
    _refuse_unknown(op)
    types = (*op.result_types, *op.operand_types)
    held = {type_: held_elements(type_) for type_ in types if isinstance(type_, TensorType)}
    threads = max((index.shape[1] for index in held.values()), default=1)
    if any(index.shape[1] != threads for index in held.values()):
        raise refusal("inline assembly on tensors of several numbers of threads is not known", op.location)
    everywhere = torch.zeros(1, threads, dtype=torch.int64)

    def value(type_: Type) -> _Value:
        return _Value(type_, held[type_] if isinstance(type_, TensorType) else everywhere, 1)

    return _handler(op, list(map(value, op.result_types)), list(map(value, op.operand_types)))


def _refuse_unknown(op: Operation) -> None:
    """Refuse an instruction by its name, and else an address: no instruction of the table goes to memory."""
    Machine(str(op.attributes["asm_string"]))
    for type_ in op.operand_types:
        if isinstance(type_, MemDescType) or "!tt.ptr" in type_.element:
            raise refusal("an address in inline assembly is not known to the simulator", op.location)


def _handler(op: Operation, results: Sequence[_Value], operands: Sequence[_Value]) -> Handler:
    """Return what executes a text; its registers are numbered through the results, then the operands."""
    outputs, inputs = (sum(value.registers for value in values) for values in (results, operands))
    same = _tied(op, outputs, inputs)
    machine = Machine(str(op.attributes["asm_string"]), same)
    lanes = next((value.lanes for value in (*results, *operands)), 1)

    def run(agent: Agent, op: Operation) -> Any:
        registers: dict[str, Tensor] = {}
        number = outputs
        for name, type_, held in zip(op.operands, op.operand_types, operands, strict=True):
            for register in held.spread(as_tensor(agent.get(name), type_)):
                registers[same.get(f"${number}", f"${number}")] = register
                number += 1
        machine.run(registers, torch.zeros(lanes, dtype=torch.int64))
        found: list[Any] = []
        number = 0
        for held in results:
            names = [f"${number + i}" for i in range(held.registers)]
            number += held.registers
            found.append(_result(op, held, names, registers))
        return found[0] if len(found) == 1 else tuple(found)

    return run


def _result(op: Operation, held: _Value, names: Sequence[str], registers: Mapping[str, Tensor]) -> Any:
    """Return a result; it is undefined if a register has none, or if copies of an element differ."""
    parts = [registers.get(name, torch.zeros(held.lanes, dtype=torch.int64)) for name in names]
    value, agree = held.gathered(parts)
    missing = [name for name in names if name not in registers]
    if missing:
        return Undefined(value, f"inline assembly does not write {missing[0]}", op.location)
    if not agree:
        why = "inline assembly leaves different numbers in registers that hold the same element"
        return Undefined(value, why, op.location)
    return value


def _tied(op: Operation, outputs: int, inputs: int) -> dict[str, str]:
    """Map the name of each input that shares the register of an output to the name of that output.

    Raises:
        GemmgenError: There are not as many constraints as registers.
    """
    text: str = op.attributes["constraints"]
    constraints = [part.strip() for part in text.split(",") if part.strip() and not part.startswith("~")]
    written = [part for part in constraints if part.startswith("=")]
    if (len(written), len(constraints)) != (outputs, outputs + inputs):
        message = (
            f"inline assembly has {outputs} registers of results and {inputs} of operands, and constraints "
            f"for {len(written)} and {len(constraints) - len(written)}"
        )
        raise refusal(message, op.location, "bad-operand")
    return {f"${i}": f"${part}" for i, part in enumerate(constraints) if part.isdigit()}


def _width(type_: Type) -> int:
    return 1 if type_.element == "i1" else dtype_of(type_.element).itemsize * 8


class _Value:
    """The registers that hold a number or a tensor: of many threads, `together` elements in each."""

    def __init__(self, type_: Type, index: Tensor, together: int) -> None:
        self._type = type_
        self._index = index
        """Element numbers [elements of a thread, threads]."""
        self._together = together
        self.registers = len(index) // together
        """Their count."""
        self.lanes = index.shape[1]
        """The count of threads, or of groups of elements."""

    def spread(self, value: Tensor) -> list[Tensor]:
        """Return the registers [lanes], the first element of each in its low bits."""
        bits = value.element_size() * 8
        flat = masked(value.contiguous().view(INTEGERS[bits]).to(torch.int64), bits).reshape(-1)
        elements = flat[self._index]
        width = _width(self._type)
        found: list[Tensor] = []
        for first in range(0, len(self._index), self._together):
            register = torch.zeros_like(elements[0])
            for i in range(self._together):
                register = register | elements[first + i] << width * i
            found.append(register)
        return found

    def gathered(self, registers: Sequence[Tensor]) -> tuple[Any, bool]:
        """Return the tensor, or the number, and whether all copies of an element are the same."""
        type_, width, together = self._type, _width(self._type), self._together
        elements = torch.stack(
            [
                masked(registers[i // together] >> width * (i % together), width)
                for i in range(len(self._index))
            ]
        )
        shape = type_.local_shape if isinstance(type_, Distributed) else ()
        flat = torch.zeros(prod(shape), dtype=torch.int64)
        flat[self._index.reshape(-1)] = elements.reshape(-1)
        agree = self._index.numel() == flat.numel() or torch.equal(flat[self._index], elements)
        if type_.element == "i1":
            whole = flat.bool()
        else:
            whole = signed(flat, width).to(INTEGERS[width]).view(dtype_of(type_.element))
        return (whole.reshape(shape) if isinstance(type_, Distributed) else whole[0].item()), agree
