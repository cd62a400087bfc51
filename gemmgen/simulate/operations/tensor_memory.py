"""Tensor memory as a partition touches it: at once, and the compiler inserts the waits that this takes."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from typing import Any

from torch import Tensor

from gemmgen.simulate.agent import Agent
from gemmgen.simulate.errors import refusal
from gemmgen.simulate.memory import View
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.registry import operation
from gemmgen.simulate.types import MemDescType

TOKEN = None
"""Orders operations for the compiler; here the order is that of the program."""


@operation("ttng.tmem_alloc", "tensor_memory_col_offset", "tensor_memory_row_offset")
def tmem_alloc(agent: Agent, op: Operation) -> Any:
    view = agent.cluster.tensor_memories[agent.cta].allocate(op)
    if op.operands:
        _store(agent, op, agent.get(op.operands[0]), view)
    return view if len(op.results) == 1 else (view, TOKEN)


@operation("ttng.tmem_subslice", "dim", "offset")
def tmem_subslice(agent: Agent, op: Operation) -> View:
    view: View = agent.get(op.operands[0])
    before, after = op.operand_types[0], op.result_types[0]
    assert isinstance(before, MemDescType)
    assert isinstance(after, MemDescType)
    dim: int = op.attributes["dim"]
    if before.local_shape[dim] != before.shape[dim]:
        raise refusal("a slice of tensor memory across CTAs is not known to the simulator", op.location)
    return view.view((op.name, (dim, op.attributes["offset"], after.shape[dim])), after)


@operation("ttng.tmem_load", "resultSegmentSizes")
def tmem_load(agent: Agent, op: Operation) -> Any:
    result_count, token_count, reduced_count = op.attributes["resultSegmentSizes"]
    if reduced_count:
        raise refusal("loads from tensor memory that reduce are not known to the simulator", op.location)
    view: View = agent.get(op.operands[0])
    access = agent.access("load from tensor memory", op.location)
    view.memory.read(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    value = view.data.clone()
    return value if result_count + token_count == 1 else (value, TOKEN)


@operation("ttng.tmem_store")
def tmem_store(agent: Agent, op: Operation) -> Any:
    if len(op.operands) != 3:
        raise refusal("a store to tensor memory that takes a token is not known", op.location)
    if agent.get(op.operands[2]):
        _store(agent, op, agent.get(op.operands[1]), agent.get(op.operands[0]))
    return TOKEN


def _store(agent: Agent, op: Operation, value: Tensor, view: View) -> None:
    access = agent.access("store to tensor memory", op.location)
    view.memory.write(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    view.data.copy_(value)
