"""Runs of several programs, and their report for people, for other programs and for a shell."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import Gpu
from gluonsim.findings import Finding, Severity
from gluonsim.policies import schedules
from gluonsim.programs.program import Program, UsageError, run_program
from gluonsim.progress import Tell
from gluonsim.result import Result, notes_by_kernel


@dataclass(frozen=True)
class Report:
    """The results of several programs."""

    results: Mapping[str, Sequence[Result]]
    """The launches of each program, by the name that a shell gives it."""
    failures: tuple[GemmgenError, ...]
    """Why programs did not run to their end."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all launches, each once."""
        found = (f for results in self.results.values() for result in results for f in result.findings)
        return tuple({str(finding): finding for finding in found}.values())

    @property
    def exit_code(self) -> int:
        """The code for a shell: 2 for wrong usage, 1 for errors or a program that fails, else 0."""
        if any(isinstance(error, UsageError) for error in self.failures):
            return 2
        return int(bool(self.failures) or any(f.severity is Severity.ERROR for f in self.findings))

    @property
    def errors(self) -> tuple[GemmgenError, ...]:
        """All that is to be complained of: first the findings, for wrong numbers may come of them."""
        return GemmgenError(finding.diagnostic for finding in self.findings), *self.failures

    @property
    def timed(self) -> Result | None:
        """The launch whose timeline is worth a look: the first with an error, or else the first."""
        launches = [result for results in self.results.values() for result in results]
        return next((result for result in launches if result.errors), launches[0] if launches else None)

    @property
    def texts(self) -> tuple[str, ...]:
        """For each program with launches, a line for each launch and each note."""
        return tuple(_text(subject, results) for subject, results in self.results.items() if results)

    def as_dict(self) -> dict[str, object]:
        """Return the launches of each program as values that JSON can hold."""
        return {
            subject: [result.as_dict() for result in results] for subject, results in self.results.items()
        }


def _text(subject: str, results: Sequence[Result]) -> str:
    noted = notes_by_kernel(result.evidence for result in results)
    notes = [f"note: {kernel}: {note}" for kernel, notes in noted.items() for note in notes]
    first, *rest = [*(result.headline for result in results), *notes]
    return "\n  ".join([f"{subject}: {first}", *rest])


def simulate_programs(
    programs: Sequence[Program],
    gpu: Gpu,
    random_schedules: int,
    seed: int = 0,
    processes: int = 1,
    sample: int | None = None,
    progress: Tell | None = None,
) -> Report:
    """Run programs on the CPU, and the kernels that they launch in the simulator.

    Programs print to stderr, because stdout is the report's.

    Args:
        programs: Programs, each with another name.
        gpu: GPU that the programs see.
        random_schedules: Random schedules of each launch, besides the fixed policies.
        seed: Seed of the random schedules and of samples.
        processes: Most processes that share the schedules of a launch.
        sample: Most programs of each grid that run; None for all.
        progress: Called now and then during a long launch.
    """
    shown: dict[str, list[Result]] = {}
    failures: list[GemmgenError] = []
    for program in programs:
        results = shown.setdefault(str(program), [])
        try:
            with redirect_stdout(sys.stderr):
                given = schedules(random_schedules)
                run_program(program, gpu, results.append, given, seed, processes, sample, progress)
            if not results:
                message = (
                    "launches no Gluon kernel: name a function that does, or let the file do so as a script"
                )
                raise GemmgenError([Diagnostic(str(program.file), "no-launch", message)])
        except GemmgenError as error:
            failures.append(error)
    return Report(shown, tuple(failures))
