"""The record of a suite as JSON Lines: a session, followed by its results shape by shape.

Each line is written whole or not at all, so an interrupted run resumes from its record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

from gemmgen.bench.record import Ceilings, Environment, GpuState, Subject, encoded_line, from_line
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.files import read_bytes
from gemmgen.kinds import (
    Count,
    Extents,
    Lines,
    Multiple,
    OneLine,
    Seconds,
    Sha256,
    Share,
    Version,
)
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.observation import Observation, ratios

SCHEMA: Final = 3
BASELINE: Final = "baseline"
"""Name of the baseline among the names of kernels."""


@dataclass(frozen=True)
class Rounds:
    """Number and duration of samples, and memory of inputs.

    All kernels of a shape and the baseline alternate on the same tensors, each once a round, without a pause.
    Each round has another random order, because at the power limit a kernel runs at the clock that the kernel
    before it has caused.
    """

    rounds: Count = 7
    graph_seconds: Seconds = 2e-3
    """Least device time of a sample, the replay of one CUDA graph of calls."""
    warm_up_seconds: Seconds = 1.5
    """Seconds of work before the first shape."""
    settle_seconds: Seconds = 0.25
    """Seconds of the timed work before the first round of each shape, until clock and power settle."""
    l2_multiple: Multiple = 2.5
    max_input_sets: Count = 1024
    host_calls: Count = 20
    """Number of eager calls; their median is the cost on the host."""
    seed: int = 0
    playoff_seconds: Seconds | None = None
    """Seconds of pairs of the winner and the baseline, at least one pair a round; None in older records: no
    more.
    """


@dataclass(frozen=True)
class KernelEntry:
    """A kernel of a session, identified by its spec and its module."""

    name: OneLine
    subject: Subject
    contest: Contest
    """Contest of the kernel."""
    spec: Lines | None = None
    """Text of a spec that states every decision, for a kernel that the planner chose for an open spec. None
    if the file of the spec is that of the kernel.
    """


@dataclass(frozen=True)
class ContestOf:
    """A contest in a session: one problem and one baseline, with the ceilings of the GPU."""

    contest: Contest
    description: OneLine
    """Description of the problem, for people."""
    dtypes: Dtypes
    baseline: OneLine
    """Exact text of the baseline."""
    peak: Ceilings | None
    """Peaks of the datasheet, which nothing can exceed. None for a GPU that no spec can name."""
    measured: Ceilings | None
    """Ceilings that were measured on such a GPU; None if there are none."""


@dataclass(frozen=True)
class Session:
    """Beginning of a run: environment, protocol and kernels of the lines that follow."""

    line: Literal["session"]
    schema: Annotated[int, Version(SCHEMA)]
    date: OneLine
    suite: OneLine
    """Path of the suite's file."""
    suite_sha256: Sha256
    environment: Environment
    protocol: Rounds
    contests: tuple[ContestOf, ...]
    kernels: tuple[KernelEntry, ...]


@dataclass(frozen=True)
class ArmSamples:
    """Samples of one arm in the format of a record; ``Result.observed`` makes an observation of two arms."""

    kernel: OneLine
    seconds: tuple[Seconds, ...]
    """Seconds per call, by rounds."""
    calls: Count
    """Number of calls in a sample."""
    relative_error: Share
    host_seconds: Seconds
    """Time of an eager call on the host."""

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("an arm needs samples, at least one")


@dataclass(frozen=True)
class FinalPair:
    """The kernel that won the rounds and the baseline again, in pairs of their own.

    The fastest of many kernels owes some of its lead in the rounds to luck, and none of it here.
    """

    kernel: OneLine
    seconds: tuple[Seconds, ...]
    baseline_seconds: tuple[Seconds, ...]

    def __post_init__(self) -> None:
        if len(self.seconds) != len(self.baseline_seconds) or not self.seconds:
            raise ValueError("both arms need the same number of samples, at least one")


@dataclass(frozen=True)
class Result:
    """Rounds on one shape: samples of the baseline and of the kernels."""

    line: Literal["result"]
    shape: Extents
    contest: Contest
    families: tuple[OneLine, ...]
    input_sets: Count
    baseline: ArmSamples
    baseline_kernels: tuple[OneLine, ...]
    """Kernels that the baseline launches, by the profiler's names; empty if they are not known."""
    kernels: tuple[ArmSamples, ...]
    playoff: FinalPair | None
    state: GpuState | None
    """State of the GPU during the rounds."""

    def __post_init__(self) -> None:
        if any(len(arm.seconds) != len(self.baseline.seconds) for arm in self.kernels):
            raise ValueError("all arms need the same number of samples")

    def observed(self, arm: ArmSamples) -> Observation[str]:
        """Return the observation of an arm's kernel, with the ratio round by round."""
        return observed(self.shape, arm.kernel, arm.seconds, self.baseline.seconds)

    @property
    def splits_k(self) -> bool:
        """Return True if the baseline splits K: its kernel's name says so, or it launches a second kernel."""
        named = any("splitk" in name.lower() for name in self.baseline_kernels)
        return named or len(self.baseline_kernels) > 1


@dataclass(frozen=True)
class Refused:
    """A kernel that was not timed on a shape."""

    line: Literal["refused"]
    shape: Extents
    contest: Contest
    kernel: OneLine
    """Name of the kernel; ``BASELINE`` if the baseline cannot compute the shape, and then nothing is timed.
    """
    why: Literal["cannot", "wrong", "failed"]
    """Reason: it does not support the problem, its numbers are wrong, or it raised or hung."""
    message: OneLine


@dataclass(frozen=True)
class PlannerRanking:
    """The planner's ranking of a spec's kernels for a shape, before any measurement."""

    line: Literal["choice"]
    shape: Extents
    contest: Contest
    spec: OneLine
    kernels: tuple[OneLine, ...]
    """Names of the kernels in the order of the ranking."""


Line: TypeAlias = Session | Result | Refused | PlannerRanking
LINES: Final[Mapping[str, type[Line]]] = MappingProxyType(
    {"session": Session, "result": Result, "refused": Refused, "choice": PlannerRanking}
)
FORMER: Final = "peer"
"""Lines that earlier versions wrote for other generators. They are left out: nothing reads them any more."""


@dataclass
class ResultLog:
    """The record of a suite, in memory and, if it has a path, in a file that grows line by line."""

    path: Path | None = None
    lines: list[Line] = field(default_factory=list[Line])
    half_a_line_from: int | None = None
    """Offset in the file of an incomplete last line, left by an interrupted run; None without one."""

    @classmethod
    def opened(cls, path: Path) -> ResultLog:
        """Return the log in a file, empty if the file does not exist; an incomplete last line is ignored.

        Raises GemmgenError (``bad-record``) if a line is not one of such a record.
        """
        try:
            data = read_bytes(path)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise _bad_record(path, f"cannot read the record: {error.strerror or error}") from error
        whole = data[: data.rfind(b"\n") + 1]
        return cls(path, list(_lines(whole, path)), len(whole) if len(whole) < len(data) else None)

    def write(self, line: Line) -> None:
        """Append a line; it is on the disk when this returns.

        Raises GemmgenError (``cannot-write``).
        """
        self.lines.append(line)
        if self.path is None:
            return
        try:
            if self.half_a_line_from is not None:
                os.truncate(self.path, self.half_a_line_from)
                self.half_a_line_from = None
            with self.path.open("ab") as file:
                file.write(f"{encoded_line(line)}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            message = f"cannot write the record: {error.strerror or error}"
            raise GemmgenError([Diagnostic(self.path.as_posix(), "cannot-write", message)]) from error

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions, the latest last."""
        return tuple(line for line in self.lines if isinstance(line, Session))

    @property
    def contests(self) -> dict[Contest, ContestOf]:
        """The contests, each as in the latest session that has it."""
        return {found.contest: found for session in self.sessions for found in session.contests}

    @property
    def kernels(self) -> dict[str, KernelEntry]:
        """The kernels by their names, each as in the latest session that has it."""
        return {entry.name: entry for session in self.sessions for entry in session.kernels}

    @property
    def choices(self) -> dict[tuple[Contest, Shape, str], PlannerRanking]:
        """The planner's latest ranking, by contest, shape and spec."""
        found = (line for line in self.lines if isinstance(line, PlannerRanking))
        return {(line.contest, line.shape, line.spec): line for line in found}

    def current(self) -> Iterator[Result | Refused]:
        """Yield the results that are current: kernels whose modules have changed since are left out."""
        latest = self.kernels
        own: dict[str, KernelEntry] = {}
        for line in self.lines:
            if isinstance(line, Session):
                own = {entry.name: entry for entry in line.kernels}
                continue
            stale = {name for name, entry in own.items() if entry != latest[name]}
            if isinstance(line, Result):
                kept = tuple(arm for arm in line.kernels if arm.kernel not in stale)
                playoff = line.playoff if line.playoff and line.playoff.kernel not in stale else None
                if kept:
                    yield replace(line, kernels=kept, playoff=playoff)
            elif isinstance(line, Refused) and line.kernel not in stale:
                yield line

    def done(self) -> set[tuple[Contest, Shape, str]]:
        """Return what needs no timing any more: contest, shape, and kernel; ``BASELINE`` stands for all."""
        found: set[tuple[Contest, Shape, str]] = set()
        for line in self.current():
            if isinstance(line, Result):
                found |= {(line.contest, line.shape, arm.kernel) for arm in line.kernels}
            else:
                found.add((line.contest, line.shape, line.kernel))
        return found


def _lines(data: bytes, path: Path) -> Iterator[Line]:
    contests: set[Contest] = set()
    begun = False
    for number, text in enumerate(data.splitlines(), 1):
        try:
            found = json.loads(text)
            if found["line"] == FORMER:
                continue
            known = LINES[found["line"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _bad_record(path, "no line of a suite's record", number) from error
        line = from_line(known, text, path.as_posix(), number)
        if isinstance(line, Session):
            begun = True
            contests |= {found.contest for found in line.contests}
        if not begun:
            raise _bad_record(path, "a record begins with its session", number)
        for where, contest in _contests_of(line):
            if contest not in contests:
                raise _bad_record(path, f"is {contest}, which no session above has", number, where)
        yield line


def _contests_of(line: Line) -> Iterator[tuple[str, Contest]]:
    """Yield the contests in a line, each with the path of its member."""
    if isinstance(line, Session):
        yield from ((f"kernels.{index}.contest", entry.contest) for index, entry in enumerate(line.kernels))
    else:
        yield "contest", line.contest


def _bad_record(path: Path, message: str, line: int | None = None, field: str | None = None) -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), "bad-record", message, field=field, line=line)])


def observed(
    shape: Shape, kernel: str, seconds: Sequence[float], baseline_seconds: Sequence[float]
) -> Observation[str]:
    """Return the observation of a kernel on a shape by samples taken in pairs with the baseline's."""
    medians = median(seconds), median(baseline_seconds)
    return Observation(shape, kernel, *medians, ratios(baseline_seconds, seconds))
