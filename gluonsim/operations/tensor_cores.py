"""Tensor cores: Hopper's warpgroup MMAs, and Blackwell's copies, MMAs and commits."""

# ruff: noqa: D103 - the name of a handler is its operation's, and says what it does.

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from gemmgen.numerics.encoding import as_float32
from gluonsim.accesses import Access, Proxy
from gluonsim.clocks import Tick, learn
from gluonsim.findings import Kind, refusal
from gluonsim.ir.parse import Operation
from gluonsim.ir.types import SHARED_MEMORY, TENSOR_MEMORY, MemDescType, TensorType
from gluonsim.memory import View
from gluonsim.operations import computation, operation
from gluonsim.operations.arith import as_float16
from gluonsim.operations.control import find, owner, party, report_overflow
from gluonsim.operations.loads_stores import TOKEN, loaded
from gluonsim.operations.scaled import packed_outside, scaled_operands
from gluonsim.places import Place
from gluonsim.program import Agent, Event, Lane, Steps
from gluonsim.tensors.deferred import Accumulator
from gluonsim.tensors.known import Known
from gluonsim.timeline import Span


@operation(
    "ttng.warp_group_dot",
    "isAsync",
    "inputPrecision",
    # Promotion of fp8 partial sums: exact sums do not depend on it.
    ignored=("maxNumImpreciseAcc",),
)
def warp_group_dot(agent: Agent, op: Operation) -> Steps:
    cluster = agent.cluster
    a, b = agent.get(op.operands[0]), agent.get(op.operands[1])
    accumulator: Accumulator | Tensor = agent.values[op.operands[2]]
    use_accumulator = len(op.operands) < 4 or bool(agent.get(op.operands[3]))
    name = op.location.called
    number = agent.mma.issue(name, op.location)
    access = agent.asynchronous(agent.mma.component, number, "wgmma", op.location)
    for operand in (a, b):
        if isinstance(operand, View):
            operand.memory.read(operand, access, agent.knowledge.clock, agent.knowledge.fenced)
    result = Accumulator(number, op.location)
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    begin = cluster.step

    def retire() -> None:
        # An accumulator in flight is an earlier MMA's of this lane, which has retired before this one.
        earlier = accumulator.value if isinstance(accumulator, Accumulator) else accumulator
        earlier = earlier if use_accumulator else None
        short = type_.dtype == torch.float16
        dtype = torch.float32 if short else type_.dtype
        operands = [numbers(cluster.known, operand) for operand in (a, b, earlier)]
        found = cluster.known.tensor(op, operands, lambda: product(a, b, earlier, dtype))
        result.value = as_float16(agent, op, found) if short else found
        if cluster.trace:
            row = f"{agent.label} mma"
            cluster.trace.spans.append(
                Span(name, "mma", row, agent.cta, begin, cluster.step, op.location.line, (access.work,))
            )

    cluster.issue(Event(agent.mma.events, retire, op))
    if not op.attributes["isAsync"]:  # the compiler waits for all of them
        agent.mma.wait(0, agent.knowledge)
        agent.drain(agent.mma)
    yield
    return result


_TF32, _IEEE = 0, 2
"""Precisions of inputs, as MLIR numbers them: the first one drops bits of fp32, the second one keeps all."""


@computation("tt.dot", "inputPrecision", ignored=("maxNumImpreciseAcc",))
def dot(agent: Agent, op: Operation) -> Tensor:
    """Multiply in registers: the warps' own instruction, done at once."""
    a, b, accumulator = (agent.get(name) for name in op.operands)
    type_ = op.result_types[0]
    assert isinstance(type_, TensorType)
    precision: int = op.attributes.get("inputPrecision", _TF32)
    # Threads that hold blocks multiply by fused multiply-adds, whatever the precision.
    fused = type_.encoding is not None and type_.encoding.kind == "ttg.blocked"
    keeps_fp32 = precision == _IEEE or fused
    if precision not in (_TF32, _IEEE) and not _keeps_all(a, keeps_fp32=keeps_fp32):
        raise refusal(f"tt.dot of {a.dtype} with precision {precision} is not known", op.location)
    return added_product(a, b, accumulator, keeps_fp32=keeps_fp32)


def added_product(a: Tensor, b: Tensor, accumulator: Tensor, *, keeps_fp32: bool) -> Tensor:
    """Return accumulator + a @ b in the type of the accumulator; fp32 keeps all bits, or becomes tf32."""
    if _keeps_all(a, keeps_fp32=keeps_fp32):
        return accumulator + a @ b
    return product(a, b, accumulator, accumulator.dtype)


def _keeps_all(a: Tensor, *, keeps_fp32: bool) -> bool:
    return a.dtype == torch.float64 or (a.dtype == torch.float32 and keeps_fp32)


EXACT_PRODUCTS = 2**24 // 2**14
"""Of two int8: the sum of so many is at most 2**24, up to which float32 has all integers."""


def product(a: View | Tensor, b: View | Tensor, accumulator: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a @ b + accumulator. Sums are exact for small integers, and else right but for their order."""
    left = a.data if isinstance(a, View) else a
    right = b.data if isinstance(b, View) else b
    if not dtype.is_floating_point:
        # Sums of so many products of int8 are exact in float32, of 2**38 in float64; the device wraps, as a
        # conversion of integers does.
        exact_in = torch.float32 if left.shape[-1] <= EXACT_PRODUCTS else torch.float64
        total = (left.to(exact_in) @ right.to(exact_in)).to(torch.int64)
        return (total if accumulator is None else total + accumulator).to(dtype)
    if left.dtype == torch.float32:
        left, right = as_tf32(left), as_tf32(right)
    left, right = as_float32(left), as_float32(right)
    if accumulator is None:
        return (left @ right).to(dtype)
    if left.dim() == 3:
        return torch.baddbmm(accumulator.float(), left, right).to(dtype)
    return torch.addmm(accumulator.float(), left, right).to(dtype)


NO_SUMS = "none"
"""Stands for there being no earlier sums."""


def numbers(known: Known, operand: View | Tensor | None) -> Hashable | None:
    """Return what stands for the numbers of an operand of an MMA; None if nothing does."""
    if operand is None:
        return NO_SUMS
    return operand.numbers if isinstance(operand, View) else known.numbers(operand)


def as_tf32(tensor: Tensor) -> Tensor:
    """Return what the tensor core sees of an fp32 number: it ignores the last 13 bits."""
    return (tensor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


@operation(
    "ttng.warp_group_dot_wait",
    "pendings",
    # Which warps the compiler synchronizes after it: all warps of a partition run here as one.
    ignored=("warpGroupLocal",),
)
def warp_group_dot_wait(agent: Agent, op: Operation) -> Steps:
    agent.mma.wait(op.attributes["pendings"], agent.knowledge)
    agent.drain(agent.mma)
    yield
    results: tuple[Any, ...] = tuple(agent.values[name] for name in op.operands)
    return results[0] if len(results) == 1 else results


def issues(agent: Agent) -> bool:
    """Return whether this CTA issues: of a pair, the even one does, for both."""
    return not (agent.cluster.kernel.pairs and agent.cta & 1)


def group(agent: Agent) -> list[int]:
    """Return the CTAs whose memory an operation touches."""
    return [agent.cta, agent.cta + 1] if agent.cluster.kernel.pairs else [agent.cta]


def in_cta(agent: Agent, view: View, cta: int) -> View:
    """Return the part of another CTA's memory that a view is of this one's."""
    if view.memory.cta == cta:
        return view
    cluster = agent.cluster
    space = cast(MemDescType, view.place.allocation.result_types[0]).space
    return view.on((cluster.tensor_memories if space == TENSOR_MEMORY else cluster.memories)[cta])


class _Issue:
    """One operation of the lane: what it touches, and its work when its turn comes."""

    def __init__(self, agent: Agent, op: Operation, what: str, name: str) -> None:
        self.agent = agent
        self.op = op
        self.what = what
        self.name = name
        self.lane: Lane = agent.tensor_core
        self.number = self.lane.issue(name, op.location)
        # The lane works in order: all that it was given before is over when this begins.
        self.clock = dict(agent.knowledge.clock)
        learn(self.clock, self.lane.component, self.number - 1)
        self.begin = agent.cluster.step

    def _access(self, view: View) -> Access:
        shared = cast(MemDescType, view.place.allocation.result_types[0]).space == SHARED_MEMORY
        # Tensor memory has no proxies.
        proxy = Proxy.ASYNC if shared else Proxy.GENERIC
        agent = self.agent
        return Access(
            self.lane.component,
            self.number,
            agent.key,
            agent.label,
            agent.cta,
            proxy,
            self.what,
            self.op.location,
        )

    def reads(self, view: View) -> None:
        view.memory.read(view, self._access(view), self.clock, self.agent.knowledge.fenced)

    def writes(self, view: View) -> None:
        clock = dict(self.clock)  # an MMA reads what it adds to before it writes
        learn(clock, self.lane.component, self.number)
        view.memory.write(view, self._access(view), clock, self.agent.knowledge.fenced)

    def enqueue(self, work: Callable[[], None]) -> None:
        cluster = self.agent.cluster

        def complete() -> None:
            work()
            if cluster.trace:
                row, line = f"{self.agent.label} tensor core", self.op.location.line
                works = (Tick(self.lane.component, self.number).work,)
                cluster.trace.spans.append(
                    Span(self.name, "mma", row, self.agent.cta, self.begin, cluster.step, line, works)
                )

        cluster.issue(Event(self.lane.events, complete, self.op))


@operation("ttng.tmem_copy")
def tmem_copy(agent: Agent, op: Operation) -> Steps:
    if not issues(agent):
        return
    source: View = agent.get(op.operands[0])
    target: View = agent.get(op.operands[1])
    before, after = op.operand_types[:2]
    if source.place.index.shape != target.place.index.shape or before.dtype != after.dtype:
        raise refusal("a tcgen05 copy that changes the shape or the type is not known", op.location)
    issue = _Issue(agent, op, "tcgen05 copy", target.name)
    moves = [(in_cta(agent, source, cta), in_cta(agent, target, cta)) for cta in group(agent)]
    for from_, to in moves:
        issue.reads(from_)
        issue.writes(to)

    def work() -> None:
        for from_, to in moves:
            values = loaded(agent, op, from_)
            to.fill(values, agent.cluster.known.numbers(values))

    issue.enqueue(work)
    yield


_FLAGS = ("is_async", "two_ctas", "multicast")


@operation("ttng.tc_gen5_mma", *_FLAGS)
def tc_gen5_mma(agent: Agent, op: Operation) -> Steps:
    (a,), (b,), (d,), _, (use,), (predicate,), barriers, barrier_predicates = op.segments
    if issues(agent) and agent.get(predicate):
        positions = (0, 1)

        def multiply(a: Tensor, b: Tensor, before: Tensor | None, dtype: torch.dtype, cta: int) -> Tensor:
            del cta
            return product(a, b, before, dtype)

        _mma(agent, op, (a, b, d), (), bool(agent.get(use)), multiply)
        _commit_all(agent, op, barriers, barrier_predicates, positions)
        yield
    return TOKEN


@operation("ttng.tc_gen5_mma_scaled", "a_type", "b_type", *_FLAGS)
def tc_gen5_mma_scaled(agent: Agent, op: Operation) -> Steps:
    (a,), (b,), (d,), token, (a_scale,), (b_scale,), (use,), (predicate,), barriers, predicates = op.segments
    if issues(agent) and agent.get(predicate):
        first_scale = 3 + len(token)
        scales: list[View] = [agent.get(a_scale), agent.get(b_scale)]
        dequantize = scaled_operands(op, first_scale)

        def multiply(a: Tensor, b: Tensor, before: Tensor | None, dtype: torch.dtype, cta: int) -> Tensor:
            a_scales, b_scales = (in_cta(agent, view, cta).data for view in scales)
            left, right = dequantize(a, b, a_scales, b_scales)
            if before is None:
                return (left @ right).to(dtype)
            return torch.addmm(before.to(left.dtype), left, right).to(dtype)

        _mma(agent, op, (a, b, d), (a_scale, b_scale), bool(agent.get(use)), multiply)
        _commit_all(agent, op, barriers, predicates, (0, 1, first_scale, first_scale + 1))
        yield
    return TOKEN


@lru_cache(maxsize=64)
def _overlap(a: Place, b: Place) -> bool:
    return bool(torch.isin(a.granules, b.granules).any())


_Multiply = Callable[[Tensor, Tensor, Tensor | None, torch.dtype, int], Tensor]


def _mma(
    agent: Agent,
    op: Operation,
    names: tuple[str, str, str],
    scales: tuple[str, ...],
    use_accumulator: bool,
    multiply: _Multiply,
) -> None:
    """Multiply into each CTA's part of the accumulator."""
    a, b, d = cast("tuple[View, View, View]", tuple(agent.get(name) for name in names))
    ctas = group(agent)
    issue = _Issue(agent, op, "tcgen05 MMA", d.name)
    inputs: list[View] = [a, b, *(agent.get(name) for name in scales)]
    for view in inputs:
        if view.memory is d.memory and _overlap(view.place, d.place):
            text = f"{d.name}: the tcgen05 MMA overwrites a part of {view.name} that it still reads"
            agent.report(Kind.WRITE_AFTER_READ, d.name, (op.location,), text)
    for cta in ctas:
        for view in inputs:
            issue.reads(in_cta(agent, view, cta))
        if use_accumulator:
            issue.reads(in_cta(agent, d, cta))
        issue.writes(in_cta(agent, d, cta))
    known = agent.cluster.known
    rights = [in_cta(agent, b, cta) for cta in _b_order(op, tuple(ctas))]

    def multiplied(left: View, into: View, cta: int) -> Tensor:
        right = torch.cat([view.data for view in rights], dim=1)
        before = into.data if use_accumulator else None
        return multiply(left.data, right, before, into.data.dtype, cta)

    def work() -> None:
        for cta in ctas:
            into, left = in_cta(agent, d, cta), in_cta(agent, a, cta)
            others = [in_cta(agent, view, cta) for view in inputs[2:]]
            before = into if use_accumulator else None
            operands = [numbers(known, operand) for operand in (left, *rights, *others, before)]
            found = known.tensor(op, operands, partial(multiplied, left, into, cta))
            into.fill(found, known.numbers(found))

    issue.enqueue(work)


@lru_cache(maxsize=64)
def _b_order(op: Operation, ctas: tuple[int, ...]) -> tuple[int, ...]:
    """Return the CTAs whose parts of B make up the columns of the accumulator, from left to right.

    Raises:
        GemmgenError: The layouts do not fit each other.
    """
    a, b, d = (cast(MemDescType, type_) for type_ in op.operand_types[:3])
    in_a_row, in_a_column = (2 if packed else 1 for packed in packed_outside(op))
    found: dict[int, int] = {}
    for cta in ctas:
        found.setdefault(b.origin(cta)[1] * in_a_column, cta)
    first = {d.origin(cta)[1] for cta in ctas}
    starts = sorted(found)
    width = b.local_shape[1] * in_a_column
    whole = [min(starts) + i * width for i in range(len(starts))] == starts
    same_rows = all(a.origin(cta)[0] * in_a_row == d.origin(cta)[0] for cta in ctas)
    if first != {starts[0]} or not whole or len(starts) * width != d.local_shape[1] or not same_rows:
        raise refusal(
            "the operands of this MMA are divided among CTAs in a way that is not known", op.location
        )
    return tuple(found[start] for start in starts)


@operation("ttng.tc_gen5_commit")
def tc_gen5_commit(agent: Agent, op: Operation) -> Steps:
    (barrier,), predicate, descriptors = op.segments
    if not issues(agent) or (predicate and not agent.get(predicate[0])):
        return
    first = 1 + len(predicate)
    _commit(agent, op, barrier, 0, _receivers(agent, op, range(first, first + len(descriptors))))
    yield


def _commit_all(
    agent: Agent, op: Operation, barriers: Sequence[str], predicates: Sequence[str], operands: Sequence[int]
) -> None:
    """Commit to the barriers of an MMA."""
    receivers = _receivers(agent, op, operands if op.attributes.get("multicast") else ())
    start = len(op.operands) - len(barriers) - len(predicates)
    for i, (barrier, predicate) in enumerate(zip(barriers, predicates, strict=True)):
        if agent.get(predicate):
            _commit(agent, op, barrier, start + i, receivers)


def _receivers(agent: Agent, op: Operation, operands: Sequence[int]) -> list[int]:
    """Return the CTAs whose barriers a commit arrives at: those that share an operand with an issuing one."""
    cluster = agent.cluster
    pair = 1 if cluster.kernel.pairs else 0
    masks = [cast(MemDescType, op.operand_types[i]).shared_bits | pair for i in operands] or [pair]
    ctas = range(cluster.kernel.ctas)
    return [cta for cta in ctas if any(cta & ~mask == agent.cta & ~mask for mask in masks)]


def _commit(agent: Agent, op: Operation, name: str, operand: int, receivers: Sequence[int]) -> None:
    """Arrive once at each receiver's barrier when all earlier work of the lane is over."""
    view: View = agent.get(name)
    cluster = agent.cluster
    lane = agent.tensor_core
    # The arrival tells of the commit's own use of the barrier too: who has awaited it may invalidate it.
    barriers = [find(agent, view, owner(op, operand, cta), "tcgen05 commit") for cta in receivers]
    issuer = party(agent, op)
    released = agent.knowledge.release()
    learn(released.clock, lane.component, lane.issued)
    who = f"tcgen05 commit by {agent.label} of CTA {agent.cta}"

    def complete() -> None:
        for barrier in barriers:
            if barrier is None:
                continue
            if not barrier.pending:
                report_overflow(agent, view, op, barrier)
            barrier.rounds.arrive(issuer, released.clock)
            barrier.arrive_later(who, op.location, released)
            cluster.settle(barrier)

    cluster.issue(Event(lane.events, complete, op))
