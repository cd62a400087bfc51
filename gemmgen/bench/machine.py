"""The machine that benchmarks run on: the interface, and a CUDA GPU."""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import os
import tempfile
import time
import typing
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

import gemmgen
from gemmgen.bench.nvidia_smi import STATE_FIELDS, mean_state, query_gpu, state_of, watching
from gemmgen.bench.record import Environment, GpuState
from gemmgen.device import captured_graph, context_lost
from gemmgen.processes.locks import lock

STATE_SAMPLES: Final = 30
"""Samples that are enqueued while ``nvidia-smi`` starts: 0.3 s of work at 10 ms each."""
UNFINISHED_SECONDS: Final = 30
"""Seconds after which work counts as hung: twenty samples take a tenth of a second, or a few of slow kernels.
"""
Work = Callable[[], None]
"""Enqueues operations on the device's current stream and returns without waiting for them."""


class Machine(typing.Protocol):
    """A device with two clocks, its own and the host's: ``CudaMachine``, or the fake of a test."""

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        ...

    def environment(self) -> Environment:
        """Return the versions and the GPU."""
        ...

    def state(self, work: Work) -> GpuState | None:
        """Return clock, power and temperature during ``work``; None if they cannot be read."""
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
    """Raised if work did not end in time: the device cannot be used any more."""


class SuiteMachine(Machine, typing.Protocol):
    """A machine for rounds of many kernels, with no pause between one kernel and the next."""

    def quiet(self) -> AbstractContextManager[None]:
        """Keep Python's garbage collection, and the unloading that it causes, out of the context."""
        ...

    def recorded(self, work: Work) -> Work:
        """Return the work as ``capture`` does, in a quiet context."""
        ...

    def times(self, works: Sequence[Work]) -> list[float]:
        """Run the works one after the other without a pause; return the device time of each in seconds.

        The last work also runs once before the first, so that the first does not wait for the host.
        """
        ...

    def finish(self) -> None:
        """Wait until the device has finished its work; raises UnfinishedError if that takes too long."""
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Wait until no other process is in this context with the device, and keep them out of it."""
        ...

    def lost(self) -> bool:
        """Return True if a fault has made the device unusable for this process."""
        ...

    def watched(self) -> AbstractContextManager[Callable[[float], GpuState | None]]:
        """Give a function that tells the mean state of the GPU since a time of ``now``."""
        ...


@dataclass(frozen=True)
class CudaMachine:
    """One GPU, whose settings are read and never changed."""

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
        """Freeze existing objects, switch collection off, and use a stream that can be captured."""
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            with torch.cuda.stream(torch.cuda.Stream(self.device)):
                yield
        finally:
            gc.unfreeze()
            gc.enable()
            torch.cuda.empty_cache()  # another process may measure next

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
        """Wait for an event after the enqueued work."""
        event = torch.cuda.Event()
        event.record()
        _finish(event)

    @contextmanager
    def alone(self) -> Generator[None]:
        """Hold the lock of a file named after the GPU in the directory for temporary files."""
        path = Path(tempfile.gettempdir()) / f"gemmgen-gpu-{self._properties().uuid}.lock"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        except OSError:  # without a lock file no process can wait for another
            yield
            return
        try:
            lock(descriptor, exclusive=True, wait=True)
            yield
        finally:
            os.close(descriptor)

    def lost(self) -> bool:
        """Return True if an earlier fault has made the CUDA context unusable."""
        return context_lost()

    @contextmanager
    def watched(self) -> Generator[Callable[[float], GpuState | None]]:
        """Read what ``nvidia-smi`` prints ten times a second, in a thread of its own."""
        with watching(str(self._properties().uuid)) as rows:

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


def _finish(event: torch.cuda.Event) -> None:
    """Wait for an event; raises UnfinishedError after UNFINISHED_SECONDS."""
    end = time.monotonic() + UNFINISHED_SECONDS
    while not event.query():
        if time.monotonic() > end:
            raise UnfinishedError(f"did not end within {UNFINISHED_SECONDS} seconds")
        time.sleep(1e-4)


def _cublas_version() -> str:
    for package in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"
