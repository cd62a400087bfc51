"""Benchmark one kernel against the baseline, shape by shape."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.bench.baseline import Baseline, Call, cublas
from gemmgen.bench.machine import CudaMachine, Machine, Work
from gemmgen.bench.record import (
    SCHEMA,
    Ceilings,
    Dtypes,
    Environment,
    Measurement,
    Protocol,
    Record,
    Samples,
    Subject,
    Timing,
    ceilings_of,
    utc_now,
)
from gemmgen.device import require_gpu
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import Matmul, matmul_of, pack_scales_of
from gemmgen.numerics.encoding import poison
from gemmgen.numerics.inputs import Inputs, Matrix, random_inputs, takes_out
from gemmgen.numerics.reference import Deviation, deviation, tolerance
from gemmgen.plan.decisions import problem_of
from gemmgen.problem import Shape, shape_text
from gemmgen.spec.model import Spec
from gemmgen.verify.shapes import refuse_k

Arm = Callable[[int], object]
"""Enqueues the product of the input set of this index."""

ESTIMATE_SECONDS: Final = 1e-3
"""An estimate is good once it took this long: a launch is a hundredth of it."""
HOST_ROUND_SECONDS: Final = 0.05
"""Device time of a round of host calls: a full launch queue makes the host wait."""
LEAST_HOST_CALLS: Final = 10


def measure(
    ours: Arm,
    baseline: Arm,
    input_sets: int,
    machine: Machine,
    protocol: Protocol,
    progress: Callable[[str], None],
) -> Timing:
    """Time both arms, each over all input sets in turn. Both must have run once before."""
    arms = (baseline, ours)
    progress("warming up")
    passes = tuple(machine.capture(_each_set(arm, input_sets, 1)) for arm in arms)
    call_seconds = min(_estimate(machine, one_pass) for one_pass in passes) / input_sets
    method, units, unit_calls = _units(arms, input_sets, call_seconds, machine, protocol)
    runs = math.ceil(protocol.sample_seconds / (call_seconds * unit_calls))
    samples = tuple(_repeat(unit, runs) for unit in units)
    _warm_up(machine, samples, protocol.warm_up_seconds)
    before = machine.state(samples[1])
    baseline_times, our_times = _pairs(samples, runs * unit_calls, machine, protocol, progress)
    return Timing(
        method=method,
        calls_per_sample=runs * unit_calls,
        ours_seconds=our_times,
        baseline_seconds=baseline_times,
        ours_host_seconds=_host_seconds(ours, input_sets, call_seconds, machine, protocol),
        baseline_host_seconds=_host_seconds(baseline, input_sets, call_seconds, machine, protocol),
        state_before=before,
        state_after=machine.state(samples[1]),
    )


def _units(
    arms: tuple[Arm, Arm], input_sets: int, call_seconds: float, machine: Machine, protocol: Protocol
) -> tuple[Literal["events", "graph"], tuple[Work, ...], int]:
    """Return how to time, each arm's unit of work, and the calls in a unit: all sets equally often."""
    if call_seconds >= protocol.graph_below_seconds:
        return "events", tuple(_each_set(arm, input_sets, 1) for arm in arms), input_sets
    rounds = math.ceil(protocol.graph_seconds / (call_seconds * input_sets))
    graphs = tuple(machine.capture(_each_set(arm, input_sets, rounds)) for arm in arms)
    return "graph", graphs, rounds * input_sets


def _pairs(
    samples: tuple[Work, ...],
    calls: int,
    machine: Machine,
    protocol: Protocol,
    progress: Callable[[str], None],
) -> tuple[Samples, Samples]:
    """Return seconds per call of each arm, sampled in turn: A B A B."""
    times: tuple[list[tuple[float, ...]], ...] = ([], [])
    for repetition in range(protocol.repetitions):
        progress(f"repetition {repetition + 1} of {protocol.repetitions}")
        pairs = [tuple(machine.seconds(sample) / calls for sample in samples) for _ in range(protocol.pairs)]
        for arm, arm_times in enumerate(times):
            arm_times.append(tuple(pair[arm] for pair in pairs))
    return tuple(times[0]), tuple(times[1])


def _warm_up(machine: Machine, samples: tuple[Work, ...], seconds: float) -> None:
    start = machine.now()
    while machine.now() - start < seconds:
        for sample in samples:
            machine.seconds(sample)


def _estimate(machine: Machine, work: Work) -> float:
    """Return about how long the work takes: the mean of as many runs as fill ESTIMATE_SECONDS."""
    runs = 1
    while (seconds := machine.seconds(_repeat(work, runs))) < ESTIMATE_SECONDS:
        runs *= 2
    return seconds / runs


def _host_seconds(
    arm: Arm, input_sets: int, call_seconds: float, machine: Machine, protocol: Protocol
) -> float:
    """Return what an eager call costs the host: the smallest of the rounds' medians."""
    calls = max(LEAST_HOST_CALLS, min(protocol.host_calls, int(HOST_ROUND_SECONDS / call_seconds)))
    medians: list[float] = []
    for _ in range(protocol.host_rounds):
        machine.synchronize()
        medians.append(statistics.median(_call_times(arm, input_sets, calls, machine)))
    machine.synchronize()
    return min(medians)


def _call_times(arm: Arm, input_sets: int, calls: int, machine: Machine) -> list[float]:
    times: list[float] = []
    for call in range(calls):
        start = machine.now()
        arm(call % input_sets)
        times.append(machine.now() - start)
    return times


def _each_set(arm: Arm, input_sets: int, rounds: int) -> Work:
    def work() -> None:
        for _ in range(rounds):
            for index in range(input_sets):
                arm(index)

    return work


def _repeat(work: Work, times: int) -> Work:
    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated


Progress = Callable[[str], None]


def bench(
    module: ModuleType,
    subject: Subject,
    spec: Spec,
    shapes: Iterable[Shape],
    *,
    protocol: Protocol | None = None,
    ceilings: Ceilings | None = None,
    machine: Machine | None = None,
    baseline: Baseline | None = None,
    progress: Progress = lambda _: None,
) -> Record:
    """Time the module's matmul and the baseline on each shape [M, N, K], by turns and on the same tensors.

    Where the module's matmul takes no ``out``, its result is one that it allocates in each call.

    Left out: the default protocol, the ceilings of this product for these operands (without any, there is no
    roofline, and progress says so), the current GPU, what a user of torch would call. Scales of blocks are
    packed before anything is timed, for both.

    Raises GemmgenError: ``bad-shapes`` for a K that the operands cannot have; ``no-gpu``; ``no-baseline``;
    ``wrong-result`` when the kernel is wrong on the tensors to be timed, and then it is not timed;
    ``kernel-failed`` when a call of either arm raises.
    """
    chosen = tuple(shapes)
    refuse_k(spec, chosen)
    machine = machine or CudaMachine(require_gpu(problem_of(spec).gpu.architecture))
    contest = _Contest(
        spec_path=subject.spec_path,
        spec=spec,
        matmul=matmul_of(module),
        pack_scales=pack_scales_of(module) if problem_of(spec).block_scaled else None,
        baseline=baseline or cublas(spec),
        protocol=protocol or Protocol(),
        machine=machine,
        environment=machine.environment(),
    )
    return Record(
        schema=SCHEMA,
        subject=subject,
        environment=contest.environment,
        dtypes=dtypes_of(spec),
        baseline=contest.baseline.text,
        protocol=contest.protocol,
        ceilings=ceilings or _ceilings(contest.environment.gpu, spec, progress),
        measurements=tuple(contest.measurement(shape, progress) for shape in chosen),
        date=utc_now(),  # evaluated last: when it ended
    )


def _ceilings(gpu: str, spec: Spec, progress: Progress) -> Ceilings | None:
    """Return the ceilings for the spec's operands, or say that there are none."""
    operand, problem = spec.operands.a.dtype, problem_of(spec)
    found = ceilings_of(gpu, operand, max(problem.a.smem_bits, problem.b.smem_bits))
    if found is None:
        progress(f"no ceiling was measured for {operand} on {gpu}: there is no roofline")
    return found


@dataclass(frozen=True)
class _Contest:
    """The two arms and the rules."""

    spec_path: str
    spec: Spec
    matmul: Matmul
    pack_scales: Callable[[Tensor], Tensor] | None
    baseline: Baseline
    protocol: Protocol
    machine: Machine
    environment: Environment

    def measurement(self, shape: Shape, progress: Progress) -> Measurement:
        """Judge both arms on one shape, and time them if ours is right."""
        tell = partial(_tell, progress, shape_text(shape))
        tell("checking the numbers")
        with self._failures(shape), self.baseline.settings():
            generator = torch.Generator(self.machine.device).manual_seed(self.protocol.seed)
            l2_bytes = self.environment.l2_bytes
            sets = input_sets(shape, self.spec, l2_bytes, generator, self.protocol, self.pack_scales)
            bind = partial(bound, self.matmul)
            ours, baseline = (self._judged(arm, sets[0]) for arm in (bind, self.baseline.bind))
            self._refuse_wrong(shape, ours)
            timing = measure(
                _arm(bind, sets),
                _arm(self.baseline.bind, sets),
                len(sets),
                self.machine,
                self.protocol,
                tell,
            )
        return Measurement(shape, len(sets), ours.relative, baseline.relative, timing)

    def _judged(self, bind: Call, inputs_and_d: InputSet) -> Deviation:
        inputs, d = inputs_and_d.inputs, inputs_and_d.d
        call = bind(inputs_and_d.timed, d)
        d.fill_(poison(d.dtype))
        # Freed at once: on a GPU a result that the call allocates gets this block, and is poisoned as d is.
        Matrix.poisoned(d.shape[0], d.shape[1], self.spec.operands.d.dtype, self.machine.device)
        return deviation(call(), inputs, self.spec)

    def _refuse_wrong(self, shape: Shape, found: Deviation) -> None:
        allowed = tolerance(self.spec, shape)
        limits = (
            ("relative error", found.relative, allowed.relative),
            ("worst element", found.worst_element, allowed.worst_element),
        )
        for what, measured, limit in limits:
            if not measured <= limit:  # NaN is not
                message = f"{what} {measured:.3g}, the limit is {limit:.3g}; a wrong kernel is not timed"
                raise self._error("wrong-result", shape, message)

    @contextmanager
    def _failures(self, shape: Shape) -> Generator[None, None, None]:
        """Turn whatever a kernel raises into a diagnostic."""
        try:
            yield
        except GemmgenError:
            raise
        except Exception as error:
            first_line = next(iter(str(error).splitlines()), "")
            raise self._error("kernel-failed", shape, f"{type(error).__name__}: {first_line}") from error

    def _error(self, code: str, shape: Shape, message: str) -> GemmgenError:
        return GemmgenError([Diagnostic(self.spec_path, code, message, field=shape_text(shape))])


def bound(matmul: Matmul, inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
    """Bind a module's matmul to its tensors; where it takes no ``out`` it allocates in each call."""
    into = {"out": d} if takes_out(d.shape[1], d.dtype) else {}
    return partial(matmul, inputs.a, inputs.b, **inputs.extras, **into)


def _arm(bind: Call, sets: tuple[InputSet, ...]) -> Callable[[int], object]:
    calls = tuple(bind(each.timed, each.d) for each in sets)
    results = [each.d for each in sets]

    def enqueue(index: int) -> None:
        # Kept until the set's next turn: results that a call allocates are then rotated like the sets.
        results[index] = calls[index]()

    return enqueue


def _tell(progress: Progress, subject: str, message: str) -> None:
    progress(f"{subject}: {message}")


# --- the tensors: the same for both arms, and enough of them to leave the cache


@dataclass(frozen=True)
class InputSet:
    """What one call takes, and d [M, N] for its result."""

    inputs: Inputs
    """As the spec has them, for the reference."""
    timed: Inputs
    """What the calls get: the same, but scales of blocks are packed already, as those of weights would be."""
    d: Tensor


def dtypes_of(spec: Spec) -> Dtypes:
    """Return the element types as the spec has them."""
    operands = spec.operands
    return Dtypes(
        a=operands.a.dtype,
        b=operands.b.dtype,
        d=operands.d.dtype,
        c=operands.c.dtype if operands.c else None,
        a_scale=operands.a.scale.format if operands.a.scale else None,
        b_scale=operands.b.scale.format if operands.b.scale else None,
    )


def input_sets(
    shape: Shape,
    spec: Spec,
    l2_bytes: int,
    generator: torch.Generator,
    protocol: Protocol,
    pack_scales: Callable[[Tensor], Tensor] | None = None,
) -> tuple[InputSet, ...]:
    """Return the sets that calls are rotated over: random and normalized inputs, and poisoned results."""
    set_bytes = dtypes_of(spec).moved_bytes(shape)
    count = min(protocol.max_input_sets, math.ceil(protocol.l2_multiple * l2_bytes / set_bytes))
    return tuple(_input_set(shape, spec, generator, pack_scales) for _ in range(count))


def _input_set(
    shape: Shape,
    spec: Spec,
    generator: torch.Generator,
    pack_scales: Callable[[Tensor], Tensor] | None,
) -> InputSet:
    d = Matrix.poisoned(*shape[:2], spec.operands.d.dtype, generator.device).view
    inputs = random_inputs(shape, spec, generator, normalized=True)
    return InputSet(inputs, inputs.packed(pack_scales) if pack_scales else inputs, d)
