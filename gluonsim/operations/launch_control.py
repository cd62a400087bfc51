"""Cluster launch control: requests for another program, and their responses."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch

from gluonsim.clocks import reached
from gluonsim.findings import Kind
from gluonsim.ir.parse import Operation
from gluonsim.memory import POISON_INTEGER, View
from gluonsim.operations import operation
from gluonsim.operations.control import find, owner
from gluonsim.operations.transfers import deliver, destination
from gluonsim.policies import Pending, program_at
from gluonsim.program import Agent, Steps

RESULT_BYTES = 16
_CANCELLED, _REFUSED = 1, 0
_UNDEFINED = POISON_INTEGER * 0x01010101
"""What a refusal says of the program: nothing that a kernel should use."""


class Response(NamedTuple):
    """The result of a request, as it stands in shared memory: two words."""

    state: int
    program: int


@operation("ttng.clc_try_cancel")
def try_cancel(agent: Agent, op: Operation) -> Steps:
    """Ask for one program, by the cluster's first CTA for all of them."""
    if agent.cta != 0:
        return
    _check_refusals(agent, op)
    request = _Request(agent.cluster.grid.pending)
    result: View = agent.get(op.operands[0])
    for cta in range(agent.cluster.kernel.ctas):
        _respond_into(agent, op, request, result.on(agent.cluster.memories[cta]))
    yield


class _Request:
    """One request: it is decided once, when the first CTA gets the response."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    @cached_property
    def response(self) -> Response:
        program = self._pending.cancel()
        return Response(_REFUSED, _UNDEFINED) if program is None else Response(_CANCELLED, program)


def _respond_into(agent: Agent, op: Operation, request: _Request, view: View) -> None:
    barrier_view: View = agent.get(op.operands[1])
    barrier = find(agent, barrier_view, owner(op, 1, view.memory.cta), "try_cancel")
    write = destination(agent, op, view, "try_cancel")

    def fill() -> None:
        view.fill(torch.tensor(request.response))
        if request.response.state == _REFUSED:
            agent.cluster.refusals.append(write)

    deliver(agent, op, barrier, RESULT_BYTES, write, fill)


def _check_refusals(agent: Agent, op: Operation) -> None:
    """Report a request by one who has seen a refusal: what it does is undefined [ptx]."""
    clock = agent.knowledge.clock
    if any(reached(clock, component) >= number for component, number in agent.cluster.refusals):
        view: View = agent.get(op.operands[0])
        name = view.place.allocation.location.called
        text = f"{view.name}: another program is asked for after a request was refused"
        agent.report(Kind.CANCEL_AFTER_REFUSAL, name, (op.location,), text)


@operation("ttng.clc_load_result")
def load_result(agent: Agent, op: Operation) -> Response:
    view: View = agent.get(op.operands[0])
    access = agent.access("load of the launch control's response", op.location)
    view.memory.read(view, access, agent.knowledge.clock, agent.knowledge.fenced)
    return Response(int(view.data[0]), int(view.data[1]))


@operation("ttng.clc_is_canceled")
def is_canceled(agent: Agent, op: Operation) -> int:
    response: Response = agent.get(op.operands[0])
    return int(response.state == _CANCELLED)


@operation("ttng.clc_get_program_id", "dim")
def get_program_id(agent: Agent, op: Operation) -> int:
    response: Response = agent.get(op.operands[0])
    if response.state != _CANCELLED:
        return _UNDEFINED
    dim: int = op.attributes["dim"]
    return program_at(agent.cluster.grid.programs, response.program)[dim]
