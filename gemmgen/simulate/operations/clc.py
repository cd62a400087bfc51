"""Cluster launch control: a running program takes over one that has not begun."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch

from gemmgen.simulate.agent import Agent, Event, Steps
from gemmgen.simulate.findings import Kind
from gemmgen.simulate.grid import Pending, program_at
from gemmgen.simulate.memory import POISON_INTEGER, View
from gemmgen.simulate.operations.barrier import find, owner
from gemmgen.simulate.operations.tma import destination
from gemmgen.simulate.parse import Operation
from gemmgen.simulate.registry import operation

RESULT_BYTES = 16
_CANCELLED, _REFUSED = 1, 0
_UNDEFINED = POISON_INTEGER * 0x01010101
"""What a refusal says of the program: nothing that a kernel should use."""


class Answer(NamedTuple):
    """The result of a request, as it stands in shared memory: two words."""

    state: int
    program: int


@operation("ttng.clc_try_cancel", blocking=True)
def try_cancel(agent: Agent, op: Operation) -> Steps:
    """Ask for one program, by the cluster's first CTA for all of them."""
    if agent.cta != 0:
        return
    _check_refusals(agent, op)
    request = _Request(agent.cluster.grid.pending)
    result: View = agent.get(op.operands[0])
    for cta in range(agent.cluster.kernel.ctas):
        _answer_into(agent, op, request, result.on(agent.cluster.memories[cta]))
    yield


class _Request:
    """One request: it is decided once, when the first CTA gets the answer."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    @cached_property
    def answer(self) -> Answer:
        program = self._pending.cancel()
        return Answer(_REFUSED, _UNDEFINED) if program is None else Answer(_CANCELLED, program)


def _answer_into(agent: Agent, op: Operation, request: _Request, view: View) -> None:
    cluster = agent.cluster
    barrier_view: View = agent.get(op.operands[1])
    barrier = find(agent, barrier_view, owner(op, 1, view.memory.cta), "try_cancel")
    component, number = destination(agent, op, view, "try_cancel")
    cluster.load_count += 1
    identity = cluster.load_count
    if barrier:
        barrier.in_flight[identity] = RESULT_BYTES

    def complete() -> None:
        view.data.copy_(torch.tensor(request.answer))
        if request.answer.state == _REFUSED:
            cluster.refusals.append((component, number))
        if barrier:
            barrier.receive(RESULT_BYTES, identity, component, number)
            cluster.settle(barrier)

    cluster.issue(Event([], complete))


def _check_refusals(agent: Agent, op: Operation) -> None:
    """Report a request by one who has seen a refusal: what it does is undefined [ptx]."""
    clock = agent.knowledge.clock
    if any(clock.get(component, 0) >= number for component, number in agent.cluster.refusals):
        view: View = agent.get(op.operands[0])
        name = view.place.allocation.location.name or "<unnamed buffer>"
        text = f"{view.name}: another program is asked for after a request was refused"
        agent.report(Kind.CANCEL_AFTER_REFUSAL, name, (op.location,), text)


@operation("ttng.clc_load_result")
def load_result(agent: Agent, op: Operation) -> Answer:
    view: View = agent.get(op.operands[0])
    access = agent.access("load of the launch control's answer", op.location)
    view.memory.read(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    return Answer(int(view.data[0]), int(view.data[1]))


@operation("ttng.clc_is_canceled")
def is_canceled(agent: Agent, op: Operation) -> int:
    answer: Answer = agent.get(op.operands[0])
    return int(answer.state == _CANCELLED)


@operation("ttng.clc_get_program_id", "dim")
def get_program_id(agent: Agent, op: Operation) -> int:
    answer: Answer = agent.get(op.operands[0])
    if answer.state != _CANCELLED:
        return _UNDEFINED
    dim: int = op.attributes["dim"]
    return program_at(agent.cluster.grid.programs, answer.program)[dim]
