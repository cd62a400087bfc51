"""Jobs, the samples of trials, and the processes that own them.

A *job* is a kernel to measure against another one on a rung, and a *trial* is a job that a process claimed.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from gemmgen.bench.record import Spread
from gemmgen.bench.result_log import ratios
from gemmgen.documents.kinds import Kind, Seconds, Share
from gemmgen.plan.decisions import FIELDS
from gemmgen.spec.spelling import today
from gemmgen.tune.candidates import Pins

LEASE_SECONDS: Final = 900.0
"""Seconds after which a trial of another machine counts as lost: a trial takes seconds."""


@dataclass(frozen=True)
class Job:
    """A kernel to be measured, by the hashes of modules."""

    kernel: str
    rung: int
    """Rung of the search, which decides the number of rounds."""
    against: str
    """Hash of the kernel that it is compared with."""


@dataclass(frozen=True)
class TrialSamples:
    """Samples of a trial, in seconds per call: the kernel, the kernel it is compared with, and the baseline.

    The class is separate from ``Observation``, which has medians of two arms: a search compares kernels with
    one another, sample by sample.
    """

    seconds: tuple[Seconds, ...]
    against_seconds: tuple[Seconds, ...]
    baseline_seconds: tuple[Seconds, ...]
    relative_error: Share
    machine: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Clock, power and temperature during the samples."""

    def __post_init__(self) -> None:
        lengths = {len(arm) for arm in (self.seconds, self.against_seconds, self.baseline_seconds)}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError("all arms need the same number of samples, at least one")

    @property
    def against_spread(self) -> Spread:
        """Spread of the other kernel's time over this kernel's: above 1, this kernel is faster."""
        return ratios(self.against_seconds, self.seconds)

    @property
    def baseline_spread(self) -> Spread:
        """Spread of the baseline's time over this kernel's: above 1, this kernel is faster."""
        return ratios(self.baseline_seconds, self.seconds)


FieldOfSpec = Annotated[
    str, Kind(lambda path: {*today({path: 0})} <= {*FIELDS}, "the path of a field of a spec")
]


Why = Literal["cannot", "wrong", "failed", "impossible", "out-of-memory", "lost", "taken"]
UNDONE: Final = ("lost", "taken")
"""Reasons of failures that tell nothing about the kernel: the job is open, or another trial measures it."""


@dataclass(frozen=True)
class TrialRecord:
    """A job that a process has claimed: its owner and state, and its samples or the reason of its failure."""

    number: int
    state: Literal["running", "done", "failed"]
    job: Job
    label: str
    pins: Pins
    owner: Mapping[str, Any]
    date: str = ""
    """UTC time at which the trial ended."""
    gpu_seconds: float = 0.0
    samples: TrialSamples | None = None
    why: Why | None = None
    message: str = ""


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Return True if the process that claimed a trial has ended.

    The claim of another machine counts as ended after LEASE_SECONDS.
    """
    if owner.get("host") != _host():
        return time.time() - float(owner.get("since", 0.0)) > LEASE_SECONDS
    return _started(int(owner.get("pid", 0))) != owner.get("started")


def this_process() -> dict[str, Any]:
    """Return the identity of this process."""
    return {"host": _host(), "pid": os.getpid(), "started": _started(os.getpid()), "since": time.time()}


def _host() -> str:
    """Return a hash that identifies this machine, its boot and its container."""
    known = [str(uuid.getnode())]
    with suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        known.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("".join(known).encode()).hexdigest()[:16]


def _started(pid: int) -> int | None:
    """Return the start of a process of this machine in clock ticks; None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *others = text[text.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(others[18])
