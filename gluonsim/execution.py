"""Run a kernel on the CPU under several schedules, and say what is wrong with it."""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from operator import index
from time import perf_counter
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from gemmgen.hardware import HOPPER, Architecture
from gemmgen.processes.forking import LostError, forked
from gluonsim.compiled import bind, changed_tensors, described, parsed_kernel
from gluonsim.findings import Findings, Kind, refusal
from gluonsim.global_memory import Dependence, GlobalMemory
from gluonsim.interleaved import Interleaved
from gluonsim.ir.parse import Block, Operation, walk
from gluonsim.ir.ttgir import GenericTtgir, lower_kernel
from gluonsim.lints.loops import slow_loops
from gluonsim.operations.control import GDC_WAIT, only_looks
from gluonsim.policies import DEFAULT_SCHEDULES, POLICIES, Policy, policy_of, sampled
from gluonsim.program import Kernel
from gluonsim.progress import Tell, Watch
from gluonsim.result import Result
from gluonsim.tensors.known import Known
from gluonsim.tensors.regions import Slice
from gluonsim.tensors.restored import Restored
from gluonsim.timeline import Trace
from gluonsim.verdicts import check_budget, resident_programs_of

MIN_IDLE_OPERATIONS = 1 << 18
BYTES_PER_IDLE_OPERATION = 16
"""A matmul reads again for one tile of D what it has read for others, and then stores the tile, which is new.
On the way it executes fewer operations than one for so many bytes of its tensors: a step of K takes up to
250, the partitions of two CTAs together, and brings 8,192 bytes of an operand or more."""


class Check(Protocol):
    """Looks at the tensors that a schedule has left, and reports wrong elements."""

    def __call__(self, findings: Findings, memory: GlobalMemory, *, sampled: bool) -> None:
        """Look at the tensors; the memory knows who wrote which elements, and of a sample which it wrote."""
        ...


def run(
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    *,
    target: Architecture = HOPPER,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    seed: int = 0,
    max_idle_operations: int | None = None,
    resident_programs: int | None = None,
    processes: int = 1,
    early: Sequence[str] | None = None,
    restored: Sequence[str] = (),
    recomputed: Sequence[Tensor] = (),
    checks: Sequence[Check] = (),
    programs: int | None = None,
    progress: Tell | None = None,
    **keywords: Any,
) -> Result:
    """Compile a ``@gluon.jit`` kernel, run it once under each schedule, and return what was found.

    Args:
        kernel: The kernel.
        grid: As at a launch: programs along each axis, or a function of the arguments that returns them; or
            one number. With clusters, a program is a cluster.
        args: As at a launch: CPU tensors, host ``TensorDescriptor`` over such, numbers, constexprs.
        target: What the kernel is compiled for.
        schedules: Names of policies: lazy, eager, lifo, random. Each starts from the tensors as given, and
            they are left as the last one made them; at least one.
        seed: The random schedule at position i of `schedules` has the seed `seed + i`.
        max_idle_operations: A program that executes so many operations, those of all its partitions counted,
            without touching a part of a tensor that was not touched before is taken for one that has no end,
            and the run ends with it. 262,144 and one for each 16 bytes of the tensors by default.
        resident_programs: Programs that the GPU holds at one time; the others begin when one of them ends.
            Those that can wait for each other through global memory run interleaved. By default as many as
            the largest GPU of the target has room for, by shared memory and warps.
        processes: Among which the schedules behind the first one are divided, where that one took long. The
            others are forked from this process: no other thread may be inside torch then.
        early: Names of parameters that a launch with ``launch_pdl=True`` may read before gdc_wait, since no
            kernel ahead of it still writes them. By default nothing is known of that, and such a read is a
            lint; with names, one of any other parameter is an error.
        restored: Names of parameters whose tensors each schedule must leave as it finds them: counters that
            the next launch relies on.
        recomputed: Views of the tensors, with elements that several stores compute on purpose: that nothing
            orders these stores is no fault, unless they store different bits.
        checks: Functions that look at the tensors after each schedule that came to its end.
        programs: Size of a sample of the grid: the first program, the last one, and random ones by `seed`,
            the same in each schedule. By default all programs run. A kernel whose programs may wait for each
            other is refused, and so is `restored`, which takes all programs.
        progress: Called with a `Progress` when the launch has taken five seconds, and then more and more
            rarely; by default nothing is told. Forked processes tell nothing.
        keywords: As at a launch: arguments by name, and options (``num_warps``, ``num_ctas``, ``maxnreg``,
            ``launch_pdl``).

    Raises:
        GemmgenError: The arguments do not fit the kernel, the compiler refuses it, or the simulator does not
            know something in it.
    """
    lowered = lower_kernel(kernel, args, target, keywords)
    return run_lowered(
        kernel,
        lowered,
        grid,
        schedules,
        seed,
        max_idle_operations,
        checks=checks,
        resident_programs=resident_programs,
        processes=processes,
        dependent=is_dependent(keywords),
        early=early,
        restored=restored,
        recomputed=recomputed,
        sample=programs,
        progress=progress,
    )


def is_dependent(keywords: Mapping[str, Any]) -> bool:
    """Return whether a launch with these options may begin before the kernel ahead of it has ended."""
    return bool(keywords.get("launch_pdl"))


def run_lowered(
    kernel: Any,
    lowered: GenericTtgir,
    grid: Any,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    seed: int = 0,
    max_idle_operations: int | None = None,
    checks: Sequence[Check] = (),
    resident_programs: int | None = None,
    processes: int = 1,
    dependent: bool = False,
    early: Sequence[str] | None = None,
    restored: Sequence[str] = (),
    recomputed: Sequence[Tensor] = (),
    sample: int | None = None,
    progress: Tell | None = None,
) -> Result:
    """Run a compiled launch as `run` does; each check is called after each schedule that came to its end.

    `sample` is the number of programs that run, as ``programs`` of `run`.
    """
    if not schedules:
        raise refusal(f"no schedule to run: there are {', '.join(POLICIES)}")
    if isinstance(schedules, str):
        raise refusal(f"schedules is {schedules!r}: it must be a sequence of names", code="bad-launch")
    if max_idle_operations is not None and max_idle_operations < 1:
        raise refusal(f"max_idle_operations is {max_idle_operations}: it must be positive")
    if processes < 1:
        raise refusal(f"processes is {processes}: it must be positive")
    if resident_programs is not None and resident_programs < 1:
        raise refusal(f"resident_programs is {resident_programs}: it must be positive")
    for option, names in (("early", early or ()), ("restored", restored)):
        _check_names(option, names, lowered.arguments)
    policies = [policy_of(name, seed + i) for i, name in enumerate(schedules)]
    programs = programs_of(grid, lowered.bound)
    numbers = sampled(prod(programs), sample, seed)
    module, known, files = parsed_kernel(lowered.text, lowered.library)
    for file in files:  # and not all that this process has quoted: each is looked up on the disk
        linecache.checkcache(file)  # it may have been edited since
    compiled = replace(known, layout=known.layout.afresh(), tensor_layout=known.tensor_layout.afresh())
    findings = Findings()
    check_budget(module, compiled.function, lowered.target, findings)
    resident = 1
    if len(numbers) < prod(programs):
        _check_sample(compiled.function, restored)
    if _exchanges(compiled.function):
        resident = resident_programs or resident_programs_of(module, lowered.target)
    dependence: Dependence | None = None
    if dependent:
        body = walk(compiled.function.regions[0])
        waits = dict.fromkeys(op.location for op in body if op.name == GDC_WAIT)
        dependence = Dependence(None if early is None else frozenset(early), tuple(waits))
    with undisturbed(), torch.inference_mode():  # nothing here has a gradient, and views cost half as much
        runs = _Schedules(
            compiled,
            lowered,
            programs,
            numbers,
            resident,
            max_idle_operations,
            checks,
            dependence,
            restored,
            recomputed,
            policies,
            Watch(progress, kernel.__name__, len(numbers), schedules) if progress else None,
        )
        result = _run_schedules(runs, len(policies), findings, processes)
    return replace(
        result,
        kernel=kernel.__name__,
        grid=programs,
        schedules=tuple(schedules),
        performance=slow_loops(compiled.function, compiled.warps),
        programs=len(numbers),
    )


def _check_sample(function: Operation, restored: Sequence[str]) -> None:
    """Raise an error for a sample of programs that need the others."""
    if _exchanges(function):
        message = "its programs may wait for each other, so a sample of them may never end: run all of them"
        raise refusal(message, code="no-sample")
    if restored:
        message = f"restored names {restored[0]!r}: only all programs together restore a tensor, not a sample"
        raise refusal(message, code="no-sample")


def _check_names(option: str, names: Sequence[str], arguments: Mapping[str, Any]) -> None:
    """Raise an error where an option names what is no tensor of a launch."""
    if isinstance(names, str):
        raise refusal(f"{option} is {names!r}: it must be a sequence of names", code="bad-launch")
    for name in names:
        if described(arguments.get(name)) is None:
            raise refusal(f"{option} names {name!r}, which is no tensor of the launch", code="bad-launch")


@contextmanager
def undisturbed() -> Generator[None]:
    """Keep torch to one thread, since tiles are small and the child that compiles is a fork of this process.

    Look for no garbage in circles: a run makes none, and to look for it takes a tenth of the time.
    """
    threads, collects = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if collects:
            gc.enable()


def programs_of(grid: Any, bound: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the programs along three axes, as a launch understands a grid."""
    extents: Any = grid(dict(bound)) if callable(grid) else grid
    listed = cast("Sequence[Any]", extents if isinstance(extents, tuple | list) else (extents,))
    try:
        counts = [index(extent) for extent in listed]
    except TypeError:
        counts = []
    if not 1 <= len(counts) <= 3 or min(counts) < 0:
        raise refusal(
            f"the grid is {extents!r}: it must be one to three numbers of programs", code="bad-launch"
        )
    return cast("tuple[int, int, int]", (*counts, 1, 1)[:3])


SECONDS_WORTH_A_PROCESS = 0.1
"""Of the first schedule: to fork takes a tenth of that."""


@dataclass(frozen=True)
class _Outcome:
    """What one schedule showed."""

    findings: Findings
    phases: Mapping[str, int]
    same: bool
    """True if it left the bits that the first one left."""
    chose: bool
    """True if there was ever more than one step to take: if not, every schedule takes the same."""
    trace: Trace | None
    """Its timeline, if it is the first schedule or shows errors."""


class _Schedules:
    """The runs of a launch, each from the tensors as they were given."""

    def __init__(
        self,
        kernel: Kernel,
        lowered: GenericTtgir,
        programs: tuple[int, int, int],
        numbers: Sequence[int],
        resident: int,
        max_idle_operations: int | None,
        checks: Sequence[Check],
        dependence: Dependence | None,
        restored: Sequence[str],
        recomputed: Sequence[Tensor],
        policies: Sequence[Policy],
        watch: Watch | None,
    ) -> None:
        self._kernel = kernel
        self._programs = programs
        self._numbers = numbers
        self._policies = policies
        self._watch = watch
        self._resident = resident
        self._checks = checks
        self._dependence = dependence
        self._recomputed = [Slice(tensor) for tensor in recomputed]
        self._restored = [Restored(name, lowered.arguments[name]) for name in restored]
        self._arguments = bind(kernel, lowered)
        self._tensors = changed_tensors(lowered.arguments.values())
        self._initial = [tensor.clone() for tensor in self._tensors]
        size = sum(tensor.nbytes for tensor in self._tensors)
        self._max_idle_operations = (
            max_idle_operations or MIN_IDLE_OPERATIONS + size // BYTES_PER_IDLE_OPERATION
        )
        self._known = Known(keeps=len(policies) > 1)
        self._left: list[Tensor] | None = None
        """What the first run left."""

    def run(self, position: int) -> _Outcome:
        """Run the schedule at a position; the tensors are left as it made them."""
        if self._watch:
            self._watch.begin(position)
        for tensor, before in zip(self._tensors, self._initial, strict=True):
            tensor.copy_(before)
        findings, trace = Findings(), Trace(position)
        memory = GlobalMemory(findings, self._dependence, self._recomputed)
        arguments, limit = self._arguments, self._max_idle_operations
        launch = Interleaved(
            self._kernel,
            self._programs,
            self._numbers,
            self._resident,
            arguments,
            memory,
            findings,
            self._known,
            trace,
            limit,
            self._watch,
        )
        launch.run(self._policies[position])
        # What a kernel that does not end leaves behind is no result.
        if not findings.has(Kind.LIVELOCK) and not findings.has(Kind.DEADLOCK):
            for tensor in self._restored:
                tensor.judge(findings, memory)
            is_sample = len(self._numbers) < prod(self._programs)
            for check in self._checks:
                check(findings, memory, sampled=is_sample)
        if self._left is None:
            self._left = [tensor.clone() for tensor in self._tensors]
        same = all(map(torch.equal, self._left, self._tensors))
        kept = trace if position == 0 or trace.shows_errors else None
        return _Outcome(findings, launch.phases, same, launch.chose, kept)

    def run_all(self, positions: Sequence[int]) -> list[_Outcome]:
        """Run several, the last one last; after one that does not end, which takes longest, no other."""
        outcomes: list[_Outcome] = []
        for position in positions:
            outcomes.append(self.run(position))
            if outcomes[-1].findings.has(Kind.LIVELOCK):
                break
        return outcomes

    def answer(self, positions: Sequence[int]) -> list[_Outcome]:
        """Run several for another process, which tells the progress alone."""
        self._watch = None
        return self.run_all(positions)


def _run_schedules(schedules: _Schedules, count: int, findings: Findings, processes: int) -> Result:
    """Run the first schedule, and the others beside each other if they are worth it.

    A kernel of one partition without asynchronous work leaves nothing to choose: the first run is every run.
    """
    begin = perf_counter()
    first = schedules.run(0)
    rest = range(1, count)
    processes = min(processes, len(rest))
    if first.findings.has(Kind.LIVELOCK) or not first.chose:
        outcomes = [first]
    elif processes > 1 and perf_counter() - begin >= SECONDS_WORTH_A_PROCESS:
        outcomes = [first, *_beside(schedules, rest, processes)]
    else:
        outcomes = [first, *schedules.run_all(rest)]
    phases: dict[str, int] = {}
    for outcome in outcomes:
        findings.merge(outcome.findings)
        for name, count in outcome.phases.items():
            phases[name] = max(count, phases.get(name, 0))
    traces = [outcome.trace for outcome in outcomes if outcome.trace]
    trace = next((trace for trace in traces if trace.shows_errors), traces[0])
    return Result(findings.all(), trace, phases, all(outcome.same for outcome in outcomes))


def _beside(schedules: _Schedules, positions: range, processes: int) -> list[_Outcome]:
    """Run schedules in forked processes and in this one, which runs the last: it leaves the tensors."""
    first, last = positions[0], positions[-1]
    shares = [sorted(range(last - i, first - 1, -processes)) for i in range(processes)]
    outcomes: dict[int, _Outcome] = {}
    with ExitStack() as stack:
        others = [stack.enter_context(forked(partial(schedules.answer, share))) for share in shares[1:]]
        outcomes |= zip(shares[0], schedules.run_all(shares[0]), strict=False)
        for share, result in zip(shares[1:], others, strict=True):
            outcomes |= zip(share, _received(result), strict=False)
    return [outcomes[i] for i in sorted(outcomes)]


def _received(result: Callable[[], list[_Outcome]]) -> list[_Outcome]:
    try:
        return result()
    except LostError as lost:
        message = f"a process that ran schedules ended without a result ({lost}): processes=1 needs none"
        raise refusal(message, code="process-lost") from lost


def _exchanges(function: Operation) -> bool:
    """Return whether programs may wait for each other: by atomics, or loops that look at memory."""

    def tells(op: Operation) -> bool:
        looks = op.name == "scf.while" and only_looks(op) and any(map(_loads, op.regions))
        return looks or op.name.startswith("tt.atomic_") or bool(op.attributes.get("isVolatile"))

    return any(map(tells, walk(function.regions[0])))


def _loads(block: Block) -> bool:
    return any(op.name == "tt.load" for op in walk(block))
