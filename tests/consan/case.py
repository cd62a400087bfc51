"""What is compared: kernels as they are and with planted faults, each by name.

A case is simulated without a GPU, and observed on one in stages, each in a process of its own
(`consan.device`): ``consan`` and ``gsan``, under Triton's sanitizers of concurrency and of global memory, and
``bare``, as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gluonsim import Finding, Severity

CLEAN = "clean"
NO_VERDICT = "no verdict"
"""With the reason after it: what was out of time, or what stopped that is not the kernel's own doing."""
REFUSED = "refused by Triton"
SKIPPED = "skips itself"
HANGS = "hangs"


@dataclass(frozen=True)
class Simulated:
    """What the simulator says of a case."""

    fault: bool
    """Whether it finds an error; a lint is none."""
    findings: tuple[str, ...]
    """Kinds and names of its findings, the planted fault's first; or that it was refused."""

    @classmethod
    def of(cls, findings: tuple[Finding, ...], planted: frozenset[str]) -> Simulated:
        """Return what findings say."""
        titles = {f"{finding.kind} {finding.name}" for finding in findings}
        ordered = sorted(titles, key=lambda title: (title not in planted, title))
        error = any(finding.severity is Severity.ERROR for finding in findings)
        return cls(error, tuple(ordered))


class Device(Protocol):
    """What a case is launched on."""

    def used(self) -> AbstractContextManager[None]:
        """Return the context in which ``device="cuda"`` is the device."""
        ...

    def alive(self) -> None:
        """Say that a launch has ended: what is silent for long hangs."""
        ...


class Case(Protocol):
    """A kernel, as it is or with a planted fault, and how to run it."""

    @property
    def name(self) -> str:
        """Its own among all cases."""
        ...

    @property
    def group(self) -> str:
        """The table that it stands in."""
        ...

    @property
    def subject(self) -> str:
        """The module, kernel or file that it is about."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """M, N and K, or the grid of programs; empty where its own test says."""
        ...

    @property
    def planted(self) -> frozenset[str]:
        """Kind and name of the finding that its changes are made for, for each variable it may be about."""
        ...

    @property
    def stages(self) -> tuple[str, ...]:
        """What it is observed in; `bare` only after a clean `consan` if that comes before it."""
        ...

    @property
    def weight(self) -> int:
        """CTAs that share memory: the larger, the longer does ConSan's compilation take."""
        ...

    def simulate(self, folder: Path) -> Simulated:
        """Return what the simulator says; files may be written to a folder."""
        ...

    def observe(self, stage: str, folder: Path, device: Device) -> str | Mapping[str, Any]:
        """Launch it, and return `CLEAN` or what is wrong, or the numbers of its results."""
        ...

    def source(self, file: str, line: int, folder: Path) -> str:
        """Return what to print of a line that a sanitizer's message names."""
        ...
