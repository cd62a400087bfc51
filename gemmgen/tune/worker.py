"""The process that measures on one GPU: a kernel alternates with another kernel and the baseline.

A kernel that ends the process or hangs costs one trial: the next trial gets a new process.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

import torch

from gemmgen import triton_api
from gemmgen.bench.arms import first_line, wrong
from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.machine import CudaMachine, SuiteMachine
from gemmgen.bench.module_arm import bound
from gemmgen.bench.prepare import primed
from gemmgen.bench.record import Environment, GpuState, utc_now
from gemmgen.bench.result_log import BASELINE, Rounds
from gemmgen.bench.timing_session import Running, Sample, TimingSession
from gemmgen.device import OUT_OF_MEMORY, is_out_of_memory, memory_faults, memory_text, require_gpu
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import Architecture
from gemmgen.literals import visible
from gemmgen.module import import_generated, matmul_of, packing_of
from gemmgen.problem import Request, Shape, shape_text
from gemmgen.processes.forking import LostError, forked, serving, usable_cores
from gemmgen.spec import SpecFile
from gemmgen.tune.trials import Trial, TrialSamples, Why

PROTOCOL: Final = Rounds(graph_seconds=2e-3, warm_up_seconds=1.0, settle_seconds=0.05)
"""Timing protocol: seconds of warm-up before a worker's first trial, and of settling before each other trial.
"""
ANSWER_SECONDS: Final = 120.0
"""Seconds after which a trial counts as hung: it takes less than a second, or some for the first one of a
large shape.
"""

MachineOn = Callable[[int, Architecture], SuiteMachine]
"""Returns the machine with the GPU of an index, in the process that measures on it."""


def cuda_machine(device: int, architecture: Architecture) -> SuiteMachine:
    """Return the machine with a GPU that must be of an architecture; raises GemmgenError (``no-gpu``)."""
    if count := torch.cuda.device_count():
        if device >= count:
            known = "0 alone" if count == 1 else f"0 to {count - 1}"
            raise GemmgenError(
                [Diagnostic("--devices", "no-gpu", f"there is no GPU {device}: it is {known}")]
            )
        torch.cuda.set_device(device)
    return CudaMachine(require_gpu(architecture))


@dataclass(frozen=True)
class Comparison:
    """A kernel to be measured against another one of the same problem."""

    source: SpecFile
    """Spec of the problem that both kernels compute; their modules have the decisions."""
    shape: Shape
    kernel: str
    against: str
    modules: Mapping[str, Path]
    """Files of both modules, by their hashes."""
    rounds: int


class _FaultError(Exception):
    """Raised if the result of a kernel is wrong."""


class Worker:
    """State of the measuring process, kept between trials: the machine, tensors and modules of a problem."""

    def __init__(self, device: int, machine_on: MachineOn, protocol: Rounds) -> None:
        self._on = device, machine_on
        self._protocol = protocol
        self._stack = ExitStack()  # left open: the process ends with it
        self._machine: SuiteMachine | None = None
        self._session: TimingSession | None = None
        self._baseline: tuple[Sample, int] | None = None
        self._modules: dict[str, ModuleType] = {}
        self._against: tuple[str, Sample] | None = None
        self._warm = False
        self._state_since: Callable[[float], GpuState | None] = lambda _: None

    def __call__(self, comparison: Comparison) -> Trial | GemmgenError:
        """Measure a comparison: return the samples, or why the kernel has none.

        An error is returned if no kernel could be measured: there is no GPU, or no memory for the tensors.
        """
        began = time.perf_counter()
        try:
            with memory_faults(comparison.source.path, shape_text(comparison.shape)):
                machine = self._opened(comparison)
                starting = time.perf_counter() - began
                with machine.alone():
                    start = machine.now()
                    trial = self._trial(machine, comparison)
                    return replace(trial, gpu_seconds=starting + machine.now() - start, date=utc_now())
        except GemmgenError as error:
            return error

    def _opened(self, comparison: Comparison) -> SuiteMachine:
        if self._machine is None:
            device, machine_on = self._on
            machine = machine_on(device, comparison.source.request.gpu.architecture)
            self._stack.enter_context(machine.quiet())
            self._state_since = self._stack.enter_context(machine.watched())
            self._machine = machine
        return self._machine

    def _trial(self, machine: SuiteMachine, comparison: Comparison) -> Trial:
        """Return the samples, or why the kernel has none; an error of memory for the tensors is raised."""
        why: Why
        try:
            with (baseline := cublas(comparison.source)).settings():
                self._draw(machine, baseline, comparison)
                return Trial(0.0, "", self._samples(machine, comparison))
        except _FaultError as fault:
            why, message = "wrong", str(fault)
        except (ValueError, TypeError) as error:
            why, message = "cannot", first_line(error)
        except Exception as error:
            if not is_out_of_memory(error):
                why, message = "failed", first_line(error)
            elif self._baseline is None:
                raise
            else:
                why, message = OUT_OF_MEMORY, memory_text(error)
        return Trial(0.0, "", why=why, message=visible(message))

    def _samples(self, machine: SuiteMachine, comparison: Comparison) -> TrialSamples:
        session, baseline = self._session, self._baseline
        assert session
        assert baseline
        theirs, passes = baseline
        other = self._other(session, comparison, passes)
        running = self._right(session, comparison, comparison.kernel)
        own = session.sample(running, passes)
        samples = (theirs, other, own)
        settle = self._protocol.settle_seconds if self._warm else self._protocol.warm_up_seconds
        session.settle(samples, settle)
        self._warm = True
        start = machine.now()
        found = session.rounds(samples, comparison.rounds)
        if faults := session.faults_after(own):
            raise _FaultError(f"after many replays: {'; '.join(faults)}")
        state = self._state_since(start)
        return TrialSamples(
            seconds=found[2],
            against_seconds=found[1],
            baseline_seconds=found[0],
            relative_error=running.deviation.relative,
            machine=asdict(state) if state else {},
        )

    def _draw(self, machine: SuiteMachine, baseline: Baseline, comparison: Comparison) -> None:
        """Draw the tensors and capture the baseline, anew for another problem or shape."""
        gc.collect()  # frees the previous trial: automatic collection is off in a quiet context
        session = self._session
        if session and (session.source, session.shape) == (comparison.source, comparison.shape):
            return
        # These have the memory that the next tensors need.
        self._session = session = self._baseline = self._against = None
        self._modules.clear()
        l2_bytes = machine.environment().l2_bytes
        source, shape = comparison.source, comparison.shape
        packing = packing_of(source.problem, partial(self._module, comparison, comparison.against))
        session = TimingSession.of(source, shape, self._protocol, machine, l2_bytes, packing)
        running = session.running(BASELINE, baseline.bind)
        passes = session.passes(session.pass_seconds(running))
        self._session, self._baseline = session, (session.sample(running, passes), passes)

    def _other(self, session: TimingSession, comparison: Comparison, passes: int) -> Sample:
        """Return a sample of the kernel that is measured against, captured once."""
        if self._against is None or self._against[0] != comparison.against:
            self._against = None
            running = self._right(session, comparison, comparison.against)
            self._against = comparison.against, session.sample(running, passes)
        return self._against[1]

    def _right(self, session: TimingSession, comparison: Comparison, kernel: str) -> Running:
        """Return a kernel that has run and is right."""
        running = session.running(kernel, partial(bound, matmul_of(self._module(comparison, kernel))))
        if faults := tuple(wrong(session.tolerance, running.deviation)):
            raise _FaultError("; ".join(faults))
        return running

    def _module(self, comparison: Comparison, kernel: str) -> ModuleType:
        if kernel not in self._modules:
            self._modules[kernel] = import_generated(comparison.modules[kernel])
        return self._modules[kernel]


class GpuWorker:
    """A GPU by its index, and the process that measures on it: started when there is something to measure."""

    def __init__(
        self, device: int, machine_on: MachineOn = cuda_machine, protocol: Rounds = PROTOCOL
    ) -> None:
        self._made = partial(Worker, device, machine_on, protocol)
        self._stack = ExitStack()
        self._ask: Callable[[Comparison, float], Trial | GemmgenError] | None = None

    def start(self) -> None:
        """Start the process, unless there is one."""
        if self._ask is None:
            self._ask = self._stack.enter_context(serving(self._made))

    def measure(self, comparison: Comparison) -> Trial:
        """Measure a kernel in the process; a kernel that ends the process or takes too long has failed.

        Raises GemmgenError if no kernel could be measured: ``no-gpu``, ``out-of-memory``.
        """
        self.start()
        assert self._ask
        began = time.monotonic()
        try:
            answer = self._ask(comparison, ANSWER_SECONDS)
        except LostError as error:
            message = f"it ended its process: {error}"
            answer = Trial(time.monotonic() - began, utc_now(), why="failed", message=message)
        if isinstance(answer, GemmgenError) or answer.why in ENDING:
            self.close()
        if isinstance(answer, GemmgenError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        self._ask = None
        self._stack.close()


ENDING: Final = ("failed", OUT_OF_MEMORY)
"""Faults that may leave the GPU unusable for the process, or its memory occupied: the next trial gets a new
process.
"""


# --- preparation in child processes


def find_gpus(
    machine_on: MachineOn, devices: Sequence[int] | None, architecture: Architecture
) -> tuple[list[int], Environment]:
    """Return the GPUs to measure on (by default all visible ones) and the environment that they share.

    Raises GemmgenError: ``no-gpu``; ``other-gpu`` if the GPUs are of several kinds; ``out-of-memory`` if a
    GPU has no memory left for a process.
    """

    def found() -> tuple[list[int], list[Environment]] | GemmgenError:
        try:
            chosen = list(range(max(1, torch.cuda.device_count())) if devices is None else devices)
            with memory_faults("--devices"):
                return chosen, [machine_on(device, architecture).environment() for device in chosen]
        except GemmgenError as error:
            return error

    with forked(found) as result:
        answer = result()
    if isinstance(answer, GemmgenError):
        raise answer
    chosen, environments = answer
    for device, environment in zip(chosen, environments, strict=True):
        if environment.gpu != environments[0].gpu:
            message = (
                f"GPU {device} is {environment.gpu}, GPU {chosen[0]} {environments[0].gpu}: "
                "the fastest kernel differs between GPUs, so name GPUs of one kind"
            )
            raise GemmgenError([Diagnostic("--devices", "other-gpu", message)])
    return chosen, environments[0]


Prepare = Callable[[Request, Shape, Sequence[Path]], Mapping[Path, str]]
"""Compiles the modules of kernels; returns why some cannot be compiled and run at all."""


def compile_in_children(request: Request, shape: Shape, modules: Sequence[Path]) -> Mapping[Path, str]:
    """Compile modules in parallel, each in a child process that runs it once; return the faults by file.

    Triton keeps compiled kernels on the disk, where the workers find them. Raises GemmgenError (``no-gpu``).
    """
    triton_api.load()  # once, before the children are forked
    with ThreadPoolExecutor(usable_cores()) as pool:
        outcomes = list(pool.map(partial(primed, request, shape), modules))
    for outcome in outcomes:
        if isinstance(outcome, GemmgenError):
            raise outcome
    return {path: found for path, found in zip(modules, outcomes, strict=True) if isinstance(found, str)}


@contextmanager
def gpus(devices: Sequence[int], machine_on: MachineOn, protocol: Rounds) -> Generator[list[GpuWorker]]:
    """Give a worker for each of these GPUs; their processes end with the context."""
    found = [GpuWorker(device, machine_on, protocol) for device in devices]
    try:
        yield found
    finally:
        for gpu in found:
            gpu.close()
