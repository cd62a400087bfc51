"""Atomics: what they do to global memory, and what they order between programs."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from gluonsim.findings import refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import Distributed
from gluonsim.operations import operation
from gluonsim.operations.control import meet
from gluonsim.operations.loads_stores import Chosen, Pointer
from gluonsim.program import Agent, Steps
from gluonsim.tensors.accesses import Scope, Strength
from gluonsim.waits import PollWait, Watch

_ORDERS = {1: "relaxed", 2: "acquire", 3: "release", 4: "acq_rel"}
_SCOPES = {1: Scope.GPU, 2: Scope.CTA, 3: Scope.SYSTEM}

Combine = Callable[[Tensor, Tensor], Tensor]


def _unsigned(choose: Combine) -> Combine:
    """Compare integers without their sign: with the highest bit turned, their order is that."""

    def combine(old: Tensor, value: Tensor) -> Tensor:
        lowest = torch.iinfo(old.dtype).min
        return choose(old ^ lowest, value ^ lowest) ^ lowest

    return combine


RMW: dict[int, tuple[str, Combine]] = {
    1: ("and", torch.bitwise_and),
    2: ("or", torch.bitwise_or),
    3: ("xor", torch.bitwise_xor),
    4: ("add", torch.add),
    5: ("add", torch.add),
    6: ("max", torch.maximum),
    7: ("min", torch.minimum),
    8: ("max", _unsigned(torch.maximum)),
    9: ("min", _unsigned(torch.minimum)),
    10: ("exchange", lambda _, value: value),
}


@operation("tt.atomic_rmw", "atomic_rmw_op", "sem", "scope")
def atomic_rmw(agent: Agent, op: Operation) -> Steps:
    name, combine = RMW[op.attributes["atomic_rmw_op"]]

    def perform() -> Any:
        place = _Place(agent, op, f"atomic {name}", op.operands[2:])
        return place.replace(combine, place.value(op.operands[1]))

    return (yield from _in_cluster(agent, op, perform))


@operation("tt.atomic_cas", "sem", "scope")
def atomic_cas(agent: Agent, op: Operation) -> Steps:
    def perform() -> Any:
        place = _Place(agent, op, "atomic compare-and-swap", ())
        expected = place.value(op.operands[1])
        swapped = torch.stack((expected, place.value(op.operands[2])), dim=-1)

        def combine(old: Tensor, pair: Tensor) -> Tensor:
            return torch.where(old == pair[..., 0], pair[..., 1], old)

        return place.replace(combine, swapped, only_if_changed=True)

    return (yield from _in_cluster(agent, op, perform))


@operation("tt.atomic_load", "sem", "scope")
def atomic_load(agent: Agent, op: Operation) -> Steps:
    def perform() -> Any:
        place = _Place(agent, op, "atomic load", op.operands[1:])
        return place.look()

    return (yield from _in_cluster(agent, op, perform))


@operation("tt.atomic_store", "sem", "scope")
def atomic_store(agent: Agent, op: Operation) -> Steps:
    def perform() -> None:
        place = _Place(agent, op, "atomic store", op.operands[2:])
        place.overwrite(place.value(op.operands[1]))

    yield from _in_cluster(agent, op, perform)


@operation("tt.atomic_poll", "sem", "scope")
def atomic_poll(agent: Agent, op: Operation) -> Steps:
    if len(op.operands) != 2:
        raise refusal("polls with a timeout are not known to the simulator, which has no time", op.location)
    if _leads(agent, op):
        place = _Place(agent, op, "atomic poll", ())
        yield PollWait(place.watch(place.value(op.operands[1])))

    def perform() -> Any:
        place = _Place(agent, op, "atomic poll", ())
        place.look()
        return torch.ones(place.shape, dtype=torch.bool) if place.is_tensor else 1

    return (yield from _in_cluster(agent, op, perform))


class _Place:
    """The elements that one atomic operation touches, and the access to them."""

    def __init__(self, agent: Agent, op: Operation, what: str, mask: tuple[str, ...]) -> None:
        self._agent = agent
        self._pointer: Pointer = agent.get(op.operands[0])
        self.is_tensor = isinstance(op.operand_types[0], Distributed)
        self._chosen = Chosen(agent, self._pointer, mask)
        self._touched = self._chosen.elements
        self._regions = self._chosen.regions(op)
        self._access = agent.access(what, op.location)
        self._strength = Strength(_ORDERS[op.attributes["sem"]], _SCOPES[op.attributes["scope"]])

    @property
    def shape(self) -> torch.Size:
        """Of the pointers."""
        return self._chosen.shape

    def value(self, name: str) -> Tensor:
        """Return an operand, for each element that is touched."""
        return self._chosen.part(self._agent.get(name))

    def watch(self, values: Tensor) -> Watch:
        """Return the elements with some values."""
        pointer, offsets = self._pointer, self._touched.offsets
        return Watch(pointer.name, pointer.flat, offsets, values, self._access.location)

    def look(self) -> Any:
        """Read the elements."""
        self._judge(writes=False)
        found = self._touched.copied()
        self._remember(found, found)
        self._acquire()
        return self._result(found)

    def overwrite(self, values: Tensor) -> None:
        """Write the elements, whatever they are."""
        self._judge(writes=True)
        self._agent.polled = None
        self._touched.mark(self._pointer.flat, values)
        self._release(hands_on=False)

    def replace(self, combine: Combine, values: Tensor, *, only_if_changed: bool = False) -> Any:
        """Write what becomes of the elements, and return what they were."""
        flat, touched = self._pointer.flat, self._touched
        old = touched.copied()
        if touched.ascending or _differ(touched.offsets):
            new = combine(old, values)
            touched.mark(flat, new)
        else:  # one after the other, in the order of the elements
            new = old.clone()
            offsets = cast("list[int]", cast(Any, touched.offsets).tolist())
            for i, offset in enumerate(offsets):
                old[i] = flat[offset]
                new[i] = flat[offset] = combine(old[i], values[i])
        self._judge(writes=True)
        self._remember(old, new)
        self._acquire()
        if not (only_if_changed and torch.equal(old, new)):
            self._release(hands_on=True)
        return self._result(old)

    def _judge(self, *, writes: bool) -> None:
        memory, clock = self._agent.cluster.globals, self._agent.knowledge.clock
        judge = memory.write if writes else memory.read
        judge(self._regions, self._pointer.name, self._access, clock, self._strength)

    def _remember(self, old: Tensor, new: Tensor) -> None:
        """Tell the loop around, if it waits for others, what is there; it does more if that changes."""
        polled = self._agent.polled
        if polled is not None and torch.equal(old, new):
            polled.append(self.watch(old))
        else:
            self._agent.polled = None

    def _acquire(self) -> None:
        knowledge = self._agent.knowledge
        self._agent.cluster.globals.acquire(self._regions, self._access, knowledge, self._strength)

    def _release(self, *, hands_on: bool) -> None:
        knowledge = self._agent.knowledge
        memory = self._agent.cluster.globals
        memory.release(self._regions, self._access, knowledge, self._strength, hands_on=hands_on)

    def _result(self, found: Tensor) -> Any:
        if not self.is_tensor:
            return found.reshape(-1)[0].item() if found.numel() else 0
        return self._chosen.spread(found, 0)


def _differ(numbers: Tensor) -> bool:
    """Return whether no number is there twice."""
    return len(set(cast("list[int]", cast(Any, numbers).tolist()))) == numbers.numel()


def _leads(agent: Agent, op: Operation) -> bool:
    """Return whether a CTA does an operation for those that hold the same elements: the lowest of them."""
    type_ = op.operand_types[0]
    return not (agent.cta & type_.shared_bits if isinstance(type_, Distributed) else agent.cta)


def _in_cluster(agent: Agent, op: Operation, perform: Callable[[], Any]) -> Steps:
    """Perform an operation at some time from now on, in a cluster by one CTA of those that share it.

    All of the cluster's CTAs meet before one that orders something, and after it if it acquires, or if
    others need what the one has got. The compiler makes them do so.
    """
    cluster = agent.cluster
    yield
    if cluster.kernel.ctas == 1:
        return perform()
    order = _ORDERS[op.attributes["sem"]]
    type_ = op.operand_types[0]
    shared = type_.shared_bits if isinstance(type_, Distributed) else -1
    if order != "relaxed":
        yield from meet(agent, op)
    leader = agent.cta & ~shared
    if leader == agent.cta:
        cluster.atomics[op, agent.partition, leader] = perform()
    if order in ("acquire", "acq_rel") or (shared and op.results and op.results[0] in cluster.kernel.used):
        yield from meet(agent, op)
    return cluster.atomics.get((op, agent.partition, leader))
