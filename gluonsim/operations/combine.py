"""The region that combines single elements, of a reduction and its like, applied to whole tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Block, Dense, Operation, blocks, walk
from gluonsim.ir.types import Distributed, TensorType, Type
from gluonsim.operations import OFFSET, SIZE, block_code, has_scratch, with_scratch
from gluonsim.operations.arith import as_tensor
from gluonsim.program import Agent, Step
from gluonsim.tensors.batches import of_all, rank, widened

BRANCH = "scf.if"
APPLIED = frozenset({"tt.reduce", "tt.scan", "tt.map_elementwise"})
"""Operations that have such a function themselves, which may stand in one."""


@dataclass(frozen=True)
class _Branch:
    """Two sides of which each element takes one; both are computed, since neither does anything else."""

    condition: str
    op: Operation
    sides: tuple[_Body, _Body]


@dataclass(frozen=True)
class _Body:
    """Computations in order, and the names of the values that they hand on."""

    parts: tuple[Step | _Branch, ...]
    handed: tuple[str, ...]

    def run(self, agent: Agent) -> list[Tensor]:
        """Return the values that are handed on."""
        known = agent.values
        for part in self.parts:
            if isinstance(part, Step):
                result = part.run(agent, part.op)
                results = (result,) if part.result is not None else result
                known.update(zip(part.op.results, results, strict=True))
                continue
            taken, left = (side.run(agent) for side in part.sides)
            asked: Tensor = known[part.condition]
            for name, type_, one, other in zip(
                part.op.results, part.op.result_types, taken, left, strict=True
            ):
                known[name] = torch.where(widened(asked, part.op.operand_types[0], rank(type_)), one, other)
        return [known[name] for name in self.handed]


class Combiner:
    """The function that applies an operation's region to tensors, element by element."""

    def __init__(self, op: Operation, dimensions: int) -> None:
        """Read the region of an operation; all its elements together have `dimensions` dimensions.

        Raises:
            GemmgenError: The region has a loop, or an operation that the simulator does not know.
        """
        body = op.regions[0]
        inner = list(walk(body))
        if body.siblings or any(each.regions and each.name not in (BRANCH, *APPLIED) for each in inner):
            raise refusal(f"loops in the function that {op.name} applies are not known", op.location)
        own = {name for each in inner for name in each.results}
        own |= {name for each in blocks(body) for name in each.arguments}
        self._dimensions = dimensions
        self._arguments = body.arguments
        self._outer: dict[str, tuple[Type, str]] = {
            name: (type_, f"{name}^{dimensions}")
            for each in inner
            for name, type_ in zip(each.operands, each.operand_types, strict=True)
            if name not in own
        }
        """Types of values from outside of the region, and their names in it."""
        self._body = _body(body, {name: renamed for name, (_, renamed) in self._outer.items()})

    def __call__(self, agent: Agent, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the results for the region's arguments; all of them have the shape of the elements."""
        for name, (type_, renamed) in self._outer.items():
            # It may have the elements of a function that this one stands in; this one's come after them.
            agent.values[renamed] = widened(as_tensor(agent.get(name), type_), type_, self._dimensions)
        agent.values.update(zip(self._arguments, values, strict=True))
        return of_all(values[0], *self._body.run(agent))[1:]


def _body(block: Block, renamed: Mapping[str, str]) -> _Body:
    parts: list[Step | _Branch] = []
    handed: tuple[str, ...] = ()
    for op in block.operations:
        names = tuple(renamed.get(name, name) for name in op.operands)
        if op is block.operations[-1]:
            handed = names
        elif op.name == BRANCH:
            then, otherwise = (_body(region, renamed) for region in op.regions)
            parts.append(_Branch(names[0], op, (then, otherwise)))
        else:
            lifted = replace(
                op,
                operands=names,
                attributes=_attributes(op),
                operand_types=tuple(map(_tensor, op.operand_types)),
                result_types=tuple(map(_tensor, op.result_types)),
            )
            (step,) = block_code(Block((), (), (), [lifted])).steps
            parts.append(replace(step, run=with_scratch(step.run, op)) if has_scratch(op) else step)
    return _Body(tuple(parts), handed)


def _attributes(op: Operation) -> Mapping[str, object]:
    """Return the attributes of an operation on single elements as they are for tensors of them."""
    changed = {name: value for name, value in op.attributes.items() if name not in (OFFSET, SIZE)}
    if op.name == "arith.constant" and not isinstance(op.attributes["value"], Dense):
        changed["value"] = Dense(op.attributes["value"], _tensor(op.result_types[0]))
    return changed


def _tensor(type_: Type) -> Type:
    """Return the type of a tensor that broadcasts to any shape."""
    return type_ if isinstance(type_, Distributed) else TensorType((), type_.element, None)
