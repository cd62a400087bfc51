"""Cases on a GPU: a process for each stage of each, many at a time, until all are done or time is up.

``python -m consan.device FILE --seconds 420``, run in tests/, writes what was observed as JSON. The process
itself never touches CUDA, so that those forked from it can: a fault ends the CUDA context of its own only.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import pytest
import torch
from foreign import as_on

from consan.atomics import ATOMIC_CASES, BARE_LAUNCHES, PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY
from consan.case import CLEAN, HANGS, NO_VERDICT, REFUSED, SKIPPED, Case
from consan.foreign_files import FOREIGN, FOREIGN_FAULTS, foreign_cases
from consan.generated import AS_GENERATED, KINDS, MODULE_CASES, RINGS, STRUCTURES
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER

AT_A_TIME = max(1, min(15, (os.cpu_count() or 2) - 1))
LIMITS_S = {"consan": 60, "gsan": 30, "bare": 20, "numbers": 200}
"""A launch that takes longer, without its compilation, hangs."""
ASSERTION = re.compile(r"([^\s:]*):(\d+): .*Assertion `(.+?)` failed")
MODES = {"consan": "consan", "gsan": "gsan"}
PRIORITIES = (
    *(AS_GENERATED, PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY, RINGS),
    *(FOREIGN, FOREIGN_FAULTS, STRUCTURES, KINDS),
)
LAST = (STRUCTURES, KINDS)
"""Groups that come after everything else, the numbers too."""
REFUSALS = ("CompilationError", "CompileTimeAssertionFailure")
NOT_VERIFIED = "error encountered during parsing"
"""What Triton raises of a kernel that its verifier refuses, whose reason it prints."""


@dataclass(frozen=True)
class Observed:
    """What one stage of a case showed."""

    outcome: str
    """`CLEAN`, a sanitizer's message, what else is wrong, or `NO_VERDICT` and why."""
    source: str = ""
    """What a sanitizer's message names."""
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0


@dataclass(frozen=True)
class Job:
    """A stage of a case."""

    case: Case
    stage: str


@dataclass
class Running:
    """A job's process."""

    job: Job
    pid: int
    folder: Path
    begin: float

    def outcome(self, status: int | None) -> Observed:
        """Return what came of it; None is the status of a process that was killed."""
        lines = [json.loads(line) for line in self._text("said").splitlines()]
        errors = self._text("errors")
        seconds = round(time.monotonic() - self.begin, 1)
        result = next((line for line in lines if "outcome" in line), None)
        told = ASSERTION.search(errors)
        case = self.job.case
        if told and self.job.stage in MODES:
            file, line = told[1], int(told[2])
            try:
                source = case.source(file, line, self.folder)
            except (IndexError, OSError):  # of a library
                source = f"{Path(file).name}, line {line}"
            return Observed(told[3], source, seconds=seconds)
        if result and isinstance(result["outcome"], dict):
            return Observed("numbers", numbers=result["outcome"], seconds=seconds)
        if result:
            return Observed(result["outcome"], seconds=seconds)
        if status is None:
            return Observed(HANGS if self.launched() else f"{NO_VERDICT}: out of time", seconds=seconds)
        last = " ".join(errors.split())[-300:]
        return Observed(f"{NO_VERDICT}: ended with status {status}: {last}", seconds=seconds)

    def launched(self) -> float | None:
        """Return when the last kernel had been compiled; None while one is, or before the first."""
        lines = self._text("said").splitlines()
        marks = [json.loads(line) for line in lines if '"mark"' in line]
        return marks[-1]["at"] if marks and marks[-1]["mark"] == "compiled" else None

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def kill(self) -> None:
        """End it, and the compilers that it has started; the driver may take a while over a hung kernel."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def start(job: Job, folder: Path, dry_run: bool) -> Running:
    """Begin a job in a process of its own, and in a folder of its own."""
    folder.mkdir(parents=True)
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _be(job, folder, dry_run)
    with suppress(OSError):  # whichever of the two is first
        os.setpgid(pid, pid)
    return Running(job, pid, folder, begin)


def _be(job: Job, folder: Path, dry_run: bool) -> NoReturn:
    """Do a job in this process, and end it."""
    try:
        os.setpgid(0, 0)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for descriptor in (1, 2):
            os.dup2(os.open(folder / "errors", flags | os.O_APPEND), descriptor)
        said = os.open(folder / "said", flags)

        def say(**what: Any) -> None:
            os.write(said, (json.dumps(what) + "\n").encode())

        say(outcome=_observed(job, folder, say, dry_run))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _observed(job: Job, folder: Path, say: Callable[..., None], dry_run: bool) -> str | Mapping[str, Any]:
    import triton  # pyright: ignore[reportMissingTypeStubs]
    from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingTypeStubs]

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, device="cuda", dtype=torch.int8)

    compiles = cast(Any, JITFunction)._do_compile

    def compiling(self: Any, *args: Any, **keywords: Any) -> Any:
        say(mark="compiling", at=time.monotonic())
        try:
            return compiles(self, *args, **keywords)
        finally:
            say(mark="compiled", at=time.monotonic())

    cast(Any, JITFunction)._do_compile = compiling
    cast(Any, triton).set_allocator(allocate)
    cast(Any, triton).knobs.compilation.instrumentation_mode = "" if dry_run else MODES.get(job.stage, "")
    try:
        return job.case.observe(job.stage, folder, ThisDevice(say, dry_run))
    except pytest.skip.Exception:
        return SKIPPED
    except AssertionError as error:
        lines = str(error).splitlines() or [""]
        return "wrong numbers" if "are not" in lines[0] else f"{NO_VERDICT}: AssertionError: {lines[0]}"
    except GemmgenError as error:
        return f"{NO_VERDICT}: {error}"
    except Exception as error:  # whatever the compiler, the launcher or the driver raises may be the verdict
        traceback.print_exc()
        name, text = type(error).__name__, (str(error).splitlines() or [""])[0]
        if name in REFUSALS or "PassManager" in text or text == NOT_VERIFIED:
            return REFUSED
        is_kernels = name == "OutOfResources" or ("CUDA" in text and name != "OutOfMemoryError")
        return f"{name}: {text}" if is_kernels else f"{NO_VERDICT}: {name}: {text}"


@dataclass(frozen=True)
class ThisDevice:
    """The GPU; in a dry run, the simulator."""

    say: Callable[..., None]
    dry_run: bool

    @contextmanager
    def used(self) -> Generator[None]:
        """In it, ``device="cuda"`` is the device."""
        if not self.dry_run:
            yield
            return
        found: list[str] = []
        self.alive()
        with as_on(HOPPER, ("random",), lambda result: found.extend(map(str, result.findings))):
            yield
        sys.stderr.write("\n".join(found))

    def alive(self) -> None:
        """Say that a launch has ended."""
        self.say(mark="compiled", at=time.monotonic())


T = TypeVar("T")
Found = dict[str, dict[str, Observed]]
"""What each stage of each case showed."""


def measured(
    cases: Sequence[Case], seconds: float, *, at_a_time: int = AT_A_TIME, dry_run: bool = False,
    log: Callable[[str], None] = lambda _: None, save: Callable[[Found], None] = lambda _: None,
) -> Found:  # fmt: skip
    """Observe every stage of cases, as far as time goes; what it does not go for has no verdict."""
    found: Found = {}
    waiting = deque(_jobs(cases))
    running: list[Running] = []
    end, saved, started = time.monotonic() + seconds, time.monotonic(), 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < at_a_time and time.monotonic() < end:
                running.append(start(waiting.popleft(), Path(temporary) / str(started), dry_run))
                started += 1
            for one in list(running):
                observed = _ended(one, end)
                if observed is None:
                    continue
                running.remove(one)
                case, stage = one.job.case, one.job.stage
                found.setdefault(case.name, {})[stage] = observed
                left = f"{end - time.monotonic():4.0f} s left, {len(waiting):3} wait"
                log(f"{left}  {observed.seconds:6.1f} s  {stage:7} {case.name}: {observed.outcome[:200]}")
                if stage == "consan" and observed.outcome == CLEAN and "bare" in _after_consan(case):
                    waiting.appendleft(Job(case, "bare"))
            if time.monotonic() > saved + 10:
                save(found)
                saved = time.monotonic()
            time.sleep(0.02)
    save(found)
    return found


def _ended(one: Running, end: float) -> Observed | None:
    """Return what came of a job that has ended or taken too long, or None."""
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    if pid:
        return one.outcome(os.waitstatus_to_exitcode(status))
    now, launched = time.monotonic(), one.launched()
    hangs = launched is not None and now > launched + LIMITS_S[one.job.stage]
    if not hangs and now < end:
        return None
    one.kill()
    return one.outcome(None) if hangs else Observed(f"{NO_VERDICT}: out of time", seconds=now - one.begin)


def _jobs(cases: Sequence[Case]) -> list[Job]:
    """Return what to begin with, in order: first what takes longest to compile."""
    large = sorted((case for case in cases if case.weight > 1), key=lambda case: -case.weight)
    first = [case for case in large if case.group == PRIORITIES[0]]
    ordered = sorted(cases, key=lambda case: PRIORITIES.index(case.group))
    rest = [case for case in ordered if case not in first]
    jobs = [
        Job(case, stage)
        for case in (*first, *rest)
        for stage in case.stages
        if stage != "numbers" and stage not in _after_consan(case)
    ]
    numbers = [Job(case, "numbers") for case in cases if "numbers" in case.stages]
    late = sorted((job for job in jobs if job.case.group in LAST), key=lambda job: job.case.weight)
    return [*(job for job in jobs if job not in late), *numbers, *late]


def _after_consan(case: Case) -> tuple[str, ...]:
    """Return the stages that wait for a verdict of ConSan, and are left out if that is a fault."""
    stages = case.stages
    return ("bare",) if "consan" in stages[: stages.index("bare")] else ()


def cases_of(
    groups: Sequence[str], names: Sequence[str], per_test: int, launches: int = BARE_LAUNCHES
) -> list[Case]:
    """Return the cases of some groups, or of some names."""
    atomic = [replace(case, launches=launches) for case in ATOMIC_CASES.values()]
    # To list these, files are imported that ask for a GPU: not in the process that is forked.
    foreign = in_a_fork(lambda: foreign_cases(per_test))
    every: list[Case] = [*MODULE_CASES.values(), *atomic, *foreign.values()]
    return [case for case in every if case.group in groups and (not names or case.name in names)]


def in_a_fork(function: Callable[[], T]) -> T:
    """Return what a function returns in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(writing, "wb") as stream:
                stream.write(pickle.dumps(function()))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError("a forked process failed")
    return pickle.loads(data)


def this_machine() -> dict[str, str]:
    """Return the GPU's name, the driver's version and those of torch and Triton."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        asked = "no GPU, no driver"
    gpu, driver = asked.split(", ")
    versions = {name: str(cast(Any, sys.modules[name]).__version__) for name in ("torch", "triton")}
    return {"gpu": gpu, "driver": driver, **versions}


def main() -> None:
    """Measure and write; a line for each stage that ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--groups", default=",".join(PRIORITIES))
    parser.add_argument(
        "--per-test", type=int, default=6, help="cases of each test of other people's kernels"
    )
    parser.add_argument("--at-a-time", type=int, default=AT_A_TIME)
    parser.add_argument("--limit", type=int, help="seconds that a launch may take in any stage")
    parser.add_argument("--dry-run", action="store_true", help="simulate every launch: no GPU is used")
    parser.add_argument(
        "--launches", type=int, default=BARE_LAUNCHES, help="of what waits, without a sanitizer"
    )
    parser.add_argument("names", nargs="*")
    given = parser.parse_intermixed_args()
    begin = time.monotonic()
    torch.set_num_threads(1)
    limit: int | None = given.limit
    if limit:
        LIMITS_S.update(dict.fromkeys(LIMITS_S, limit))
    machine = this_machine()

    def save(found: Found) -> None:
        rows = {name: {stage: asdict(one) for stage, one in stages.items()} for name, stages in found.items()}
        given.file.write_text(json.dumps({"machine": machine, "found": rows}, indent=1), encoding="utf-8")

    def log(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    cases = cases_of(given.groups.split(","), given.names, given.per_test, given.launches)
    log(f"{len(cases)} cases, {given.at_a_time} at a time")
    left = given.seconds - (time.monotonic() - begin)
    measured(cases, left, at_a_time=given.at_a_time, dry_run=given.dry_run, log=log, save=save)


if __name__ == "__main__":
    main()
