"""cp.async: copies from global to shared memory, awaited by groups or by an mbarrier."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from typing import Any

from gluonsim.clocks import learn
from gluonsim.ir.parse import Operation
from gluonsim.memory import View
from gluonsim.operations import operation
from gluonsim.operations.control import find, owner, party, report_overflow
from gluonsim.operations.loads_stores import CACHING, TOKEN, Chosen, Pointer
from gluonsim.program import Agent, Event, Steps


@operation(
    "ttg.async_copy_global_to_local",
    ignored=(*CACHING, "isVolatile", "contiguity"),
)
def async_copy(agent: Agent, op: Operation) -> Steps:
    """cp.async: the generic proxy, at some time until the group is awaited; a masked element becomes 0."""
    (pointer_name,), (target,), mask_names, other_names = op.segments
    pointer: Pointer = agent.get(pointer_name)
    chosen = Chosen(agent, pointer, mask_names)
    view: View = agent.get(target)
    other = agent.get(other_names[0]) if other_names else 0
    lane, knowledge = agent.copies, agent.knowledge
    number = lane.issue(view.name, op.location)
    access = agent.access("cp.async", op.location)._replace(component=lane.component, number=number)
    view.memory.write(view, access, knowledge.clock, knowledge.fenced)
    agent.cluster.globals.read(chosen.regions(op), pointer.name, access, knowledge.clock)

    def complete() -> None:
        view.fill(chosen.spread(chosen.elements.copied(), other))

    agent.cluster.issue(Event(lane.events, complete, op))
    yield
    return TOKEN


@operation("ttg.async_commit_group")
def async_commit_group(agent: Agent, _: Operation) -> Any:
    agent.copy_groups.append(agent.copies.issued)
    return TOKEN


@operation("ttg.async_wait", "num")
def async_wait(agent: Agent, op: Operation) -> Steps:
    outstanding: int = op.attributes["num"]
    if len(agent.copy_groups) > outstanding:
        last = agent.copy_groups[-1 - outstanding]
        agent.copies.wait(agent.copies.issued - last, agent.knowledge)
        agent.drain(agent.copies)
    yield
    return TOKEN


THREADS_PER_WARP = 32


@operation("ttng.async_copy_mbarrier_arrive", "noIncrement")
def async_copy_arrive(agent: Agent, op: Operation) -> Steps:
    """Arrive when the copies so far are complete.

    With `noIncrement` the barrier's count has an arrival for each thread. Without it each thread adds to the
    count the arrival that it makes; here a single one stands for all of them.
    """
    view: View = agent.get(op.operands[0])
    barrier = find(agent, view, owner(op, 0, agent.cta), "cp.async.mbarrier.arrive")
    lane, cluster = agent.copies, agent.cluster
    issuer = party(agent, op)
    released = agent.knowledge.release()
    number = lane.issue(view.name, op.location)
    learn(released.clock, lane.component, number)
    counted = bool(op.attributes.get("noIncrement"))
    arrivals = agent.warps * THREADS_PER_WARP if counted else 1
    if barrier and not counted:
        barrier.pending += 1

    def complete() -> None:
        if barrier:
            if barrier.pending < arrivals:
                report_overflow(agent, view, op, barrier)
            who = f"cp.async of {agent.label} of CTA {agent.cta}"
            barrier.rounds.arrive(issuer, released.clock)
            barrier.arrive_later(who, op.location, released, arrivals)
            cluster.settle(barrier)

    cluster.issue(Event(lane.events, complete, op))
    yield
