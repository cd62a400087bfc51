"""The state of a GPU as ``nvidia-smi`` reads it: clock, power and temperature."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Final

from gemmgen.bench.record import GpuState
from gemmgen.processes.forking import started

STATE_FIELDS: Final = "clocks.sm,power.draw,temperature.gpu"
SMI_TIMEOUT_SECONDS: Final = 10
WATCH_MS: Final = 100
WATCHED_ROWS: Final = 600
"""Number of rows kept, a minute of them: a measurement takes less."""


def query_gpu(uuid: str, fields: str) -> list[str]:
    """Return the values of comma-separated ``nvidia-smi`` query fields; empty if it does not respond."""
    command = ["nvidia-smi", f"--query-gpu={fields}", f"--id=GPU-{uuid}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=SMI_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [value.strip() for value in done.stdout.strip().split(",")]


@contextmanager
def watching(uuid: str) -> Generator[deque[tuple[float, GpuState]]]:
    """Give the latest states of the GPU with the times of their arrival; empty without ``nvidia-smi``."""
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
    """Return the mean of each value over the states that have it; None without states."""
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


def state_of(values: list[str]) -> GpuState | None:
    """Return the state in the values of STATE_FIELDS; None unless there are three values."""
    return GpuState(*map(_number, values)) if len(values) == 3 else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None
