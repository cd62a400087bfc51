"""Inline assembly: instructions of a table on the registers of threads, in the order of their layout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import Distributed, Encoding, TensorType, Type, dtype_of
from gluonsim.operations import resolved
from gluonsim.operations.arith import as_tensor
from gluonsim.program import Agent, Handler
from gluonsim.ptx.instructions import INTEGERS, masked, signed
from gluonsim.ptx.text import Machine

REGISTER_BITS = 32


@resolved(
    "tt.elementwise_inline_asm",
    "asm_string",
    "packed_element",
    ignored=("constraints", "pure"),
    computes=True,
)
def elementwise_inline_asm(op: Operation) -> Handler:
    """Execute a text for each group of `packed_element` elements; narrow ones share registers."""
    pack: int = op.attributes["packed_element"]
    machine = Machine(str(op.attributes["asm_string"]))
    lanes = _Lanes(op, pack)

    def run(agent: Agent, op: Operation) -> Any:
        registers: dict[str, Tensor] = {}
        number = sum(_registers(type_, pack) for type_ in op.result_types)
        like = torch.zeros(lanes.groups, dtype=torch.int64)
        for name, type_ in zip(op.operands, op.operand_types, strict=True):
            value = as_tensor(agent.get(name), type_)
            for register in _packed(lanes.spread(_as_integers(value)), type_, pack):
                registers[f"${number}"] = register
                number += 1
        machine.run(registers, like)
        results: list[Any] = []
        number = 0
        for type_ in op.result_types:
            count = _registers(type_, pack)
            parts = [registers.get(f"${number + i}", like) for i in range(count)]
            number += count
            results.append(lanes.gathered(_unpacked(parts, type_, pack), type_))
        return results[0] if len(results) == 1 else tuple(results)

    return run


def _width(type_: Type) -> int:
    return 1 if type_.element == "i1" else dtype_of(type_.element).itemsize * 8


def _together(type_: Type, pack: int) -> int:
    """Return how many elements share a register."""
    return max(1, min(pack, REGISTER_BITS // _width(type_)))


def _registers(type_: Type, pack: int) -> int:
    return pack // _together(type_, pack)


def _as_integers(value: Tensor) -> Tensor:
    """Return the bits of elements as numbers."""
    width = value.element_size() * 8
    return masked(value.contiguous().view(INTEGERS[width]).to(torch.int64), width)


def _packed(lanes: Tensor, type_: Type, pack: int) -> list[Tensor]:
    """Return registers [groups] of elements [pack, groups], the first in the low bits."""
    together, width = _together(type_, pack), _width(type_)
    found: list[Tensor] = []
    for first in range(0, pack, together):
        register = torch.zeros_like(lanes[0])
        for i in range(together):
            register = register | lanes[first + i] << width * i
        found.append(register)
    return found


def _unpacked(registers: Sequence[Tensor], type_: Type, pack: int) -> Tensor:
    together, width = _together(type_, pack), _width(type_)
    return torch.stack(
        [masked(registers[i // together] >> width * (i % together), width) for i in range(pack)]
    )


class _Lanes:
    """The elements of each group of a tensor: those that a thread holds one after the other."""

    def __init__(self, op: Operation, pack: int) -> None:
        tensors = [type_ for type_ in (*op.operand_types, *op.result_types) if isinstance(type_, TensorType)]
        self._shape = tensors[0].local_shape if tensors else ()
        if any(type_.local_shape != self._shape for type_ in tensors):
            raise refusal("inline assembly on tensors of several shapes is not known", op.location)
        flat = torch.arange(prod(self._shape)).reshape(self._shape)
        rows: list[Tensor] = [flat.reshape(-1)]
        if pack > 1:
            steps = _register_steps(tensors[0].encoding, len(self._shape)) if tensors else []
            if 1 << len(steps) < pack:
                message = f"inline assembly on {pack} elements at a time in this layout is not known"
                raise refusal(message, op.location, "unknown-operation")
            rows = [flat]
            for dim, _ in steps[: pack.bit_length() - 1]:
                if rows[0].shape[dim] % 2:
                    message = "inline assembly on fewer elements than a thread holds is not known"
                    raise refusal(message, op.location, "unknown-operation")
                rows = self._divided(rows, dim)
        self._index = torch.stack([row.reshape(-1) for row in rows])
        """The number of each element, by its place in a group and by the group."""

    def _divided(self, rows: list[Tensor], dim: int) -> list[Tensor]:
        """Return twice as many rows: the elements at even coordinates, then the elements at odd ones."""
        sides: list[list[Tensor]] = [[], []]
        for row in rows:
            # Bits of a coordinate are taken from the lowest on, so that the others have moved down.
            parts = cast(Tensor, cast(Any, row).unflatten(dim, (row.shape[dim] // 2, 2)))
            for side in (0, 1):
                sides[side].append(parts.select(dim + 1, side))
        return sides[0] + sides[1]

    @property
    def groups(self) -> int:
        """The number of groups."""
        return self._index.shape[1]

    def spread(self, value: Tensor) -> Tensor:
        """Return the elements of a tensor, or a number for all of them, by place and group."""
        whole = value.expand(self._shape) if value.dim() == 0 else value
        return whole.reshape(-1)[self._index]

    def gathered(self, lanes: Tensor, type_: Type) -> Any:
        """Return a tensor of elements by place and group, or the number of a scalar."""
        width, dtype = _width(type_), dtype_of(type_.element)
        flat = torch.zeros(self._index.numel(), dtype=torch.int64)
        flat[self._index.reshape(-1)] = lanes.reshape(-1)
        if type_.element == "i1":
            whole = (flat & 1).bool()
        else:
            whole = signed(flat, width).to(INTEGERS[width]).view(dtype)
        return whole.reshape(self._shape) if isinstance(type_, Distributed) else whole.reshape(-1)[0].item()


def _register_steps(encoding: Encoding | None, rank: int) -> list[tuple[int, int]]:
    """Return the dimension and the step of each bit of a thread's register number, from the lowest on.

    The list ends where a bit is not the next higher one of its coordinate.
    """
    found: list[tuple[int, int]] = []
    for basis in _register_bases(encoding):
        steps = [(dim, step) for dim, step in enumerate(basis) if step]
        taken = [0] * rank
        for dim, _ in found:
            taken[dim] += 1
        if len(steps) != 1 or steps[0][1] != 1 << taken[steps[0][0]]:
            break
        found.append(steps[0])
    return found


def _register_bases(encoding: Encoding | None) -> list[list[int]]:
    if encoding is None:
        return []
    fields = encoding.fields
    if encoding.kind == "ttg.linear":
        return cast("list[list[int]]", fields["register"])
    if encoding.kind == "ttg.slice":
        dim: int = fields["dim"]
        parent = _register_bases(cast(Encoding, fields["parent"]))
        kept = ([step for each, step in enumerate(basis) if each != dim] for basis in parent)
        return [basis for basis in kept if any(basis)]
    if encoding.kind != "ttg.blocked":
        return []
    sizes: list[int] = fields["sizePerThread"]
    order: list[int] = fields["order"]
    return [
        [1 << bit if each == dim else 0 for each in range(len(sizes))]
        for dim in order
        for bit in range(sizes[dim].bit_length() - 1)
    ]
