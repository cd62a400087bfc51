"""The machine that benchmarks run on, a CUDA GPU read through ``nvidia-smi``; how arms are timed on one."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import math
import os
import signal
import statistics
import subprocess
import tempfile
import time
import typing
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal

import torch

import gemmgen
from gemmgen.bench.record import Environment, GpuState, Protocol, Samples, Timing
from gemmgen.device import captured_graph, context_lost
from gemmgen.scratch import lock, started

STATE_SAMPLES: Final = 30
"""Samples that are enqueued while ``nvidia-smi`` starts: 0.3 s of work at 10 ms each."""
STATE_FIELDS: Final = "clocks.sm,power.draw,temperature.gpu"
SMI_TIMEOUT_SECONDS: Final = 10
WATCH_MS: Final = 100
WATCHED_ROWS: Final = 600
"""A minute of them: what is measured at a time takes less."""
UNFINISHED_SECONDS: Final = 30
"""A round of twenty samples takes a tenth of a second, of slow kernels a few: what takes longer hangs."""

Work = Callable[[], None]
"""Enqueues operations on the device's current stream and returns without waiting for them."""


class Machine(typing.Protocol):
    """A device and two clocks, its own and the host's: ``CudaMachine``, or what a test brings."""

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        ...

    def environment(self) -> Environment:
        """Return the versions and the GPU."""
        ...

    def state(self, work: Work) -> GpuState | None:
        """Return clock, power and temperature while ``work`` is done; None where they cannot be read."""
        ...

    def now(self) -> float:
        """Return the host's clock in seconds."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all its work."""
        ...

    def seconds(self, work: Work) -> float:
        """Do the work and wait for it; return the device time from its start to its end."""
        ...

    def capture(self, work: Work) -> Work:
        """Return the work as a graph that replays its operations without the host's part in them."""
        ...


class UnfinishedError(Exception):
    """Work did not end in time: the device cannot be used any more."""


class SuiteMachine(Machine, typing.Protocol):
    """What the rounds of many kernels need besides: they take no time between one kernel and the next."""

    def quiet(self) -> AbstractContextManager[None]:
        """Keep Python's collection of garbage, and what it unloads, out of what is done in the context."""
        ...

    def recorded(self, work: Work) -> Work:
        """Return the work as ``capture`` does, in a quiet context."""
        ...

    def times(self, works: Sequence[Work]) -> list[float]:
        """Do the works one after the other without a pause; return the device time of each.

        The last one is done once more before the first, so that this does not wait for the host.
        """
        ...

    def finish(self) -> None:
        """Wait until the device has done its work; raises UnfinishedError where that takes too long."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Wait until no other process is in this context with the device, and keep them out of it."""
        ...

    def lost(self) -> bool:
        """Whether a fault has made the device unusable for this process."""
        ...

    def watched(self) -> AbstractContextManager[Callable[[float], GpuState | None]]:
        """Give a function that tells the mean state of the GPU since a time of ``now``."""
        ...


@dataclass(frozen=True)
class CudaMachine:
    """One GPU. Its settings are read, never changed."""

    device: torch.device

    def environment(self) -> Environment:
        """Return the versions and the GPU; what cannot be found out is ``unknown``."""
        triton: Any = importlib.import_module("triton")
        properties = self._properties()
        return Environment(
            gemmgen=gemmgen.__version__,
            torch=torch.__version__,
            triton=triton.__version__,
            cuda=torch.version.cuda or "unknown",
            cublas=_cublas_version(),
            driver=(self._query("driver_version") or ["unknown"])[0],
            gpu=properties.name,
            sm_count=properties.multi_processor_count,
            l2_bytes=properties.L2_cache_size,
        )

    def state(self, work: Work) -> GpuState | None:
        """Return what ``nvidia-smi`` reads while the GPU does the work again and again."""
        for _ in range(STATE_SAMPLES):
            work()
        state = state_of(self._query(STATE_FIELDS))
        self.synchronize()
        return state

    def now(self) -> float:
        """Return the host's monotonic clock in seconds."""
        return time.perf_counter()

    def synchronize(self) -> None:
        """Wait until the GPU has done all its work."""
        torch.cuda.synchronize(self.device)

    def seconds(self, work: Work) -> float:
        """Return the time between an event before the work and one after it."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    def capture(self, work: Work) -> Work:
        """Return the replay of a CUDA graph of the work, which must have been done once before."""
        with captured_graph() as graph:
            work()
        return graph.replay

    @contextmanager
    def quiet(self) -> Generator[None]:
        """Freeze what there is, switch collection off, and work on a stream that can be captured."""
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            with torch.cuda.stream(torch.cuda.Stream(self.device)):
                yield
        finally:
            gc.unfreeze()
            gc.enable()
            torch.cuda.empty_cache()  # what comes next may be another process

    def recorded(self, work: Work) -> Work:
        """Return the replay of a CUDA graph, without the collection that ``torch.cuda.graph`` begins with."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()
        return graph.replay

    def times(self, works: Sequence[Work]) -> list[float]:
        """Return the times between events, one before each work and one after the last."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(works) + 1)]
        works[-1]()
        events[0].record()
        for work, event in zip(works, events[1:], strict=True):
            work()
            event.record()
        _finish(events[-1])
        return [before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)]

    def finish(self) -> None:
        """Wait for an event behind what is enqueued."""
        event = torch.cuda.Event()
        event.record()
        _finish(event)

    @contextmanager
    def alone(self) -> Generator[None]:
        """Hold the lock of a file in the directory for temporary files, which is named by the GPU."""
        path = Path(tempfile.gettempdir()) / f"gemmgen-gpu-{self._properties().uuid}.lock"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        except OSError:  # nobody can wait for anybody there
            yield
            return
        try:
            lock(descriptor, exclusive=True, wait=True)
            yield
        finally:
            os.close(descriptor)

    def lost(self) -> bool:
        """Whether an earlier fault has made the CUDA context unusable."""
        return context_lost()

    @contextmanager
    def watched(self) -> Generator[Callable[[float], GpuState | None]]:
        """Read what ``nvidia-smi`` prints ten times a second, in a thread of its own."""
        with _watching(str(self._properties().uuid)) as rows:

            def since(start: float) -> GpuState | None:
                taken = tuple(rows)
                return mean_state(
                    [state for at, state in taken if at >= start] or [taken[-1][1]] if taken else []
                )

            yield since

    def _properties(self) -> Any:
        cuda: Any = torch.cuda
        return cuda.get_device_properties(self.device)

    def _query(self, fields: str) -> list[str]:
        return query_gpu(str(self._properties().uuid), fields)


def query_gpu(uuid: str, fields: str) -> list[str]:
    """Return the values of comma-separated ``nvidia-smi`` query fields; none where it does not respond."""
    command = ["nvidia-smi", f"--query-gpu={fields}", f"--id=GPU-{uuid}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=SMI_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [value.strip() for value in done.stdout.strip().split(",")]


@contextmanager
def _watching(uuid: str) -> Generator[deque[tuple[float, GpuState]]]:
    """Give the latest states of the GPU with the times at which they came; none without ``nvidia-smi``."""
    rows: deque[tuple[float, GpuState]] = deque(maxlen=WATCHED_ROWS)
    command = ["nvidia-smi", f"--query-gpu={STATE_FIELDS}", f"--id=GPU-{uuid}"]
    command += ["--format=csv,noheader,nounits", f"--loop-ms={WATCH_MS}"]
    try:
        smi = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0
        )
    except OSError:
        yield rows
        return

    def read() -> None:
        for line in smi.stdout or ():
            state = state_of([value.strip() for value in line.split(",")])
            if state:
                rows.append((time.perf_counter(), state))

    with started(smi.pid), smi:
        reader = Thread(target=read, daemon=True)
        reader.start()
        try:
            yield rows
        finally:
            with suppress(ProcessLookupError):
                os.killpg(smi.pid, signal.SIGKILL)
            reader.join()


def mean_state(states: Sequence[GpuState]) -> GpuState | None:
    """Return the mean of states, of each value over those that have it; None without any."""
    if not states:
        return None

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return round(statistics.fmean(known), 1) if known else None

    return GpuState(
        mean(state.sm_clock_mhz for state in states),
        mean(state.power_w for state in states),
        mean(state.temperature_c for state in states),
    )


def _finish(event: torch.cuda.Event) -> None:
    """Wait for an event, but not for ever."""
    end = time.monotonic() + UNFINISHED_SECONDS
    while not event.query():
        if time.monotonic() > end:
            raise UnfinishedError(f"did not end within {UNFINISHED_SECONDS} seconds")
        time.sleep(1e-4)


def state_of(values: list[str]) -> GpuState | None:
    """Return the state that the values of STATE_FIELDS describe; None unless there are three."""
    return GpuState(*map(_number, values)) if len(values) == 3 else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None


def _cublas_version() -> str:
    for package in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


# --- two arms by turns


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
    passes = tuple(machine.capture(each_set(arm, input_sets, 1)) for arm in arms)
    call_seconds = min(estimate(machine, one_pass) for one_pass in passes) / input_sets
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
        return "events", tuple(each_set(arm, input_sets, 1) for arm in arms), input_sets
    rounds = math.ceil(protocol.graph_seconds / (call_seconds * input_sets))
    graphs = tuple(machine.capture(each_set(arm, input_sets, rounds)) for arm in arms)
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


def estimate(machine: Machine, work: Work) -> float:
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
        medians.append(statistics.median(call_times(arm, input_sets, calls, machine)))
    machine.synchronize()
    return min(medians)


def call_times(arm: Arm, input_sets: int, calls: int, machine: Machine) -> list[float]:
    """Return the host's time in each of so many eager calls, over the sets in turn."""
    times: list[float] = []
    for call in range(calls):
        start = machine.now()
        arm(call % input_sets)
        times.append(machine.now() - start)
    return times


def each_set(arm: Arm, input_sets: int, rounds: int) -> Work:
    """Return the calls of an arm for all input sets in turn, so many times."""

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
