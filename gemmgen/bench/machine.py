"""The machine that benchmarks run on: what they need of one, and a CUDA GPU, read through ``nvidia-smi``."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

import gemmgen
from gemmgen.bench.record import Environment, GpuState
from gemmgen.device import captured_graph

STATE_SAMPLES: Final = 30
"""Samples that are enqueued while ``nvidia-smi`` starts: 0.3 s of work at 10 ms each."""
STATE_FIELDS: Final = "clocks.sm,power.draw,temperature.gpu"
SMI_TIMEOUT_SECONDS: Final = 10

Work = Callable[[], None]
"""Enqueues operations on the device's current stream and returns without waiting for them."""


class Machine(Protocol):
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
