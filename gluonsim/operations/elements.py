"""Single elements of shared memory, chosen by index: gathers, scatters, and scatters that are atomic."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

import torch
from torch import Tensor

from gluonsim.accesses import ATOMIC
from gluonsim.findings import Kind, refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import MemDescType, TensorType
from gluonsim.memory import View
from gluonsim.operations import operation
from gluonsim.operations.atomics import RMW
from gluonsim.operations.shapes import within
from gluonsim.places import Place
from gluonsim.program import Agent
from gluonsim.tensors.regions import same_bits


@operation("ttg.local_gather", "axis")
def local_gather(agent: Agent, op: Operation) -> Tensor:
    chosen = _Chosen(agent, op, agent.get(op.operands[0]), op.operands[1])
    access = agent.access("gather from shared memory", op.location)
    view, knowledge = chosen.view, agent.knowledge
    view.memory.read(view, access, knowledge.clock, knowledge.fenced, chosen.place())
    return view.data.gather(chosen.axis, chosen.indices)


@operation("ttg.local_scatter", "axis")
def local_scatter(agent: Agent, op: Operation) -> None:
    chosen = _Chosen(agent, op, agent.get(op.operands[0]), op.operands[2])
    values: Tensor = agent.get(op.operands[1])
    access = agent.access("scatter to shared memory", op.location)
    view, knowledge = chosen.view, agent.knowledge
    view.memory.write(view, access, knowledge.clock, knowledge.fenced, chosen.place())
    view.data.scatter_(chosen.axis, chosen.indices, values)
    view.memory.note(view.place, None)
    if not same_bits(view.data.gather(chosen.axis, chosen.indices), values):
        name = view.place.allocation.location.called
        text = f"{view.name}: several threads scatter different values to one element, in no order"
        agent.report(Kind.WRITE_AFTER_WRITE, name, (op.location,), text)


@operation("ttg.local_atomic_scatter_rmw", "atomic_rmw_op", "axis")
def local_atomic_scatter_rmw(agent: Agent, op: Operation) -> Tensor:
    chosen = _Chosen(agent, op, agent.get(op.operands[0]), op.operands[2])
    _, combine = RMW[op.attributes["atomic_rmw_op"]]
    values: Tensor = agent.get(op.operands[1])
    mask: Tensor | None = agent.get(op.operands[3]).reshape(-1) if len(op.operands) > 3 else None
    access = agent.access(ATOMIC, op.location)
    view, knowledge = chosen.view, agent.knowledge
    if mask is None or bool(mask.any()):
        view.memory.write(view, access, knowledge.clock, knowledge.fenced, chosen.place(mask))
    data, shape = view.data, values.shape
    # One element after the other: several may go to one place.
    flat = data.reshape(-1)
    targets = torch.arange(flat.numel()).reshape(data.shape).gather(chosen.axis, chosen.indices).reshape(-1)
    found = torch.zeros_like(targets, dtype=flat.dtype)
    given = values.reshape(-1)
    for i in range(len(targets)) if mask is None else map(int, mask.nonzero()):
        target = targets[i]
        found[i] = flat[target]
        flat[target] = combine(found[i], given[i])
    data.copy_(flat.reshape(data.shape))
    view.memory.note(view.place, None)
    return found.reshape(shape)


class _Chosen:
    """The elements of a buffer that indices choose along an axis."""

    def __init__(self, agent: Agent, op: Operation, view: View, indices: str) -> None:
        memory, tensor = op.operand_types[0], op.operand_types[op.operands.index(indices)]
        assert isinstance(memory, MemDescType)
        assert isinstance(tensor, TensorType)
        if memory.local_shape != memory.shape or tensor.local_shape != tensor.shape:
            raise refusal(f"{op.name} of what CTAs divide is not known to the simulator", op.location)
        self.view = view
        self.axis: int = op.attributes["axis"]
        self.indices = within(op, agent.get(indices), memory.shape[self.axis])

    def place(self, mask: Tensor | None = None) -> Place:
        """Return where the elements lie, or some of them."""
        whole = self.view.place
        index = whole.index.gather(self.axis, self.indices).reshape(-1)
        return whole.chosen(index if mask is None else index[mask])
