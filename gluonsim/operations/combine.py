"""The region that combines single elements, of a reduction and its like, applied to whole tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Block, Dense, Operation, walk
from gluonsim.ir.types import Distributed, TensorType, Type
from gluonsim.operations import block_code
from gluonsim.operations.arith import as_tensor
from gluonsim.program import Agent, Code

BRANCH = "scf.if"


@dataclass(frozen=True)
class _Branch:
    """Two sides of which each element takes one; both are computed, since neither does anything else."""

    condition: str
    results: tuple[str, ...]
    sides: tuple[_Body, _Body]


@dataclass(frozen=True)
class _Body:
    """Computations in order, and the names of the values that they hand on."""

    parts: tuple[Code | _Branch, ...]
    handed: tuple[str, ...]

    def run(self, agent: Agent) -> list[Tensor]:
        """Return the values that are handed on."""
        known = agent.values
        for part in self.parts:
            if isinstance(part, Code):
                for step in part.steps:
                    known[step.op.results[0]] = step.run(agent, step.op)
                continue
            taken, left = (side.run(agent) for side in part.sides)
            condition: Tensor = known[part.condition]
            chosen = [torch.where(condition, one, other) for one, other in zip(taken, left, strict=True)]
            known.update(zip(part.results, chosen, strict=True))
        return [known[name] for name in self.handed]


class Combiner:
    """The function that applies an operation's region to tensors, element by element."""

    def __init__(self, op: Operation) -> None:
        """Read the region of an operation.

        Raises:
            GemmgenError: The region has a loop, or an operation that the simulator does not know.
        """
        body = op.regions[0]
        inner = list(walk(body))
        if body.siblings or any(each.regions and each.name != BRANCH for each in inner):
            raise refusal(f"loops in the function that {op.name} applies are not known", op.location)
        own = {name for each in inner for name in each.results} | set(body.arguments)
        self._arguments = body.arguments
        self._outer: dict[str, Type] = {
            name: type_
            for each in inner
            for name, type_ in zip(each.operands, each.operand_types, strict=True)
            if name not in own
        }
        """Values from outside of the region, by name."""
        self._body = _body(body, {name: f"{name}^" for name in self._outer})

    def __call__(self, agent: Agent, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the results for the region's arguments, which have one shape."""
        for name, type_ in self._outer.items():
            agent.values[f"{name}^"] = as_tensor(agent.get(name), type_)
        agent.values.update(zip(self._arguments, values, strict=True))
        return self._body.run(agent)


def _body(block: Block, renamed: Mapping[str, str]) -> _Body:
    parts: list[Code | _Branch] = []
    handed: tuple[str, ...] = ()
    for op in block.operations:
        names = tuple(renamed.get(name, name) for name in op.operands)
        if op is block.operations[-1]:
            handed = names
        elif op.name == BRANCH:
            then, otherwise = (_body(region, renamed) for region in op.regions)
            parts.append(_Branch(names[0], op.results, (then, otherwise)))
        else:
            lifted = replace(
                op,
                operands=names,
                attributes=_attributes(op),
                operand_types=tuple(map(_tensor, op.operand_types)),
                result_types=tuple(map(_tensor, op.result_types)),
            )
            parts.append(block_code(Block((), (), (), [lifted])))
    return _Body(tuple(parts), handed)


def _attributes(op: Operation) -> Mapping[str, object]:
    if op.name != "arith.constant":
        return op.attributes
    return {**op.attributes, "value": Dense(op.attributes["value"], _tensor(op.result_types[0]))}


def _tensor(type_: Type) -> Type:
    """Return the type of a tensor that broadcasts to any shape."""
    return type_ if isinstance(type_, Distributed) else TensorType((), type_.element, None)
