"""The region of a reduction or a scan, which combines single elements, applied to whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir_types import TensorType, Type
from gluonsim.operations import block_code
from gluonsim.parse import Block, Dense, Operation
from gluonsim.program import Agent

Combine = Callable[[Agent, Sequence[Tensor]], list[Tensor]]
"""Takes the left operands, then the right ones; returns the results, one for each pair."""


def combiner(op: Operation) -> Combine:
    """Return the function that applies an operation's region to tensors, element by element.

    Raises:
        GemmgenError: The region branches, or has an operation that the simulator does not know.
    """
    body = op.regions[0]
    nested = any(inner.regions for inner in body.operations)
    if body.siblings or nested:
        raise refusal(f"branches in the function that {op.name} applies are not known", op.location)
    code = block_code(_lifted(body))
    assert code.terminator is not None
    handed = code.terminator.op.operands

    def combine(agent: Agent, values: Sequence[Tensor]) -> list[Tensor]:
        known = agent.values
        known.update(zip(body.arguments, values, strict=True))
        for step in code.steps:
            known[step.op.results[0]] = step.run(agent, step.op)
        return [known[name] for name in handed]

    return combine


def _lifted(body: Block) -> Block:
    """Return a block whose operations take and return tensors where they took and returned numbers."""
    operations = [
        replace(
            op,
            attributes=_lifted_constant(op),
            operand_types=tuple(map(_tensor, op.operand_types)),
            result_types=tuple(map(_tensor, op.result_types)),
        )
        for op in body.operations
    ]
    return Block(body.arguments, body.argument_types, body.argument_locations, operations)


def _lifted_constant(op: Operation) -> dict[str, object]:
    attributes = dict(op.attributes)
    if op.name == "arith.constant":
        attributes["value"] = Dense(attributes["value"], _tensor(op.result_types[0]))
    return attributes


def _tensor(type_: Type) -> Type:
    """Return the type of a tensor that broadcasts to any shape."""
    return TensorType((), type_.element, None)
