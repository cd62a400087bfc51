"""The result of tuning a spec for a shape: its figures, the spec of the winner, and its row in the table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from gemmgen import __version__
from gemmgen.bench.record import Environment, Spread
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.literals import comment_text
from gemmgen.plan.rule import counted
from gemmgen.problem import shape_text
from gemmgen.problem.dtypes import Dtypes
from gemmgen.product import make, write_files
from gemmgen.tune.candidates import TuningCandidate, TuningTarget, kernel_sha256
from gemmgen.tune.measuring import StudyRun
from gemmgen.tune.options import TuningOptions
from gemmgen.tune.search import SearchVerdict
from gemmgen.tune.table import TunedRow
from gemmgen.tune.trials import TrialSamples

MARK: Final = "# Tuned by gemmgen"
"""First words of a winner's spec."""


@dataclass(frozen=True)
class Outcome:
    """Result of tuning one spec for one shape."""

    tuned: TuningTarget
    environment: Environment
    """Versions and GPU of the trials."""
    baseline: str
    """The call that the kernels are timed against."""
    verdict: SearchVerdict
    measured: int
    """Number of trials that this run measured."""
    path: Path
    """Path of the winner's spec."""
    row: TunedRow

    @property
    def winner(self) -> TuningCandidate:
        """The fastest kernel."""
        return self.verdict.winner

    @property
    def samples(self) -> TrialSamples:
        """Samples of the winner."""
        assert self.verdict.final.samples
        return self.verdict.final.samples

    @property
    def failures(self) -> dict[str, int]:
        """Number of failed trials by their reasons."""
        return dict(Counter(trial.why for trial in self.verdict.trials.values() if trial.why))

    @property
    def remark(self) -> str:
        """Remark for the user on the first choice and on impossible trials; empty without one."""
        said: list[str] = []
        if self.verdict.winner == self.verdict.first:
            said.append("the planner's first choice stays")
        if self.verdict.refused:
            kernel, trial = self.verdict.refused
            found = trial.samples and f"{trial.samples.against_spread.median:.3f}"
            found = found or f"{trial.why}: {trial.message}"
            said.append(f"once more `{kernel.label}` reads {found}, which is within the noise")
        if count := self.failures.get("impossible"):
            said.append(f"{count} above the roofline ignored as measurement errors")
        return "; ".join(said)

    def as_row(self) -> dict[str, object]:
        """Return the figures as cells of a table."""
        return {
            "spec": self.path.as_posix(),
            "us": f"{self.row.seconds * 1e6:.2f}",
            "over first": f"{self.samples.against_spread.median:.3f}",
            "over baseline": f"{self.samples.baseline_spread.median:.3f}",
            "tried": self.row.tried,
            "GPU s": f"{self.verdict.gpu_seconds:.1f}",
            "kernel": self.winner.label,
        }

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        ratio, baseline = self.samples.against_spread, self.samples.baseline_spread
        return {
            "spec": self.tuned.source.path,
            "shape": list(self.tuned.shape),
            "gpu": self.environment.gpu,
            "winner": self.winner.label,
            "kernel_sha256": self.winner.kernel,
            "first_choice_stays": self.verdict.winner == self.verdict.first,
            "microseconds": self.row.seconds * 1e6,
            "ratio_to_first": ratio.median,
            "ratio_to_first_quartiles": list(ratio.quartiles),
            "ratio_to_baseline": baseline.median,
            "ratio_to_baseline_quartiles": list(baseline.quartiles),
            "tried": self.row.tried,
            "failures": self.failures,
            "measured": self.measured,
            "gpu_seconds": self.verdict.gpu_seconds,
            "remark": self.remark,
            "written": self.path.as_posix(),
        }


def outcome_of(
    tuned: TuningTarget, run: StudyRun, verdict: SearchVerdict, baseline: str, options: TuningOptions
) -> Outcome:
    """Return the outcome of a search that has ended; nothing is written."""
    environment, samples = run.study.environment, verdict.final.samples
    assert samples
    path = options.out / f"{tuned.stem}.yaml"
    beside = Path.cwd() if options.table is None else options.table.parent
    m, n, k = tuned.shape
    row = TunedRow(
        gpu=environment.gpu,
        m=m,
        n=n,
        k=k,
        dtypes=Dtypes.of(tuned.source.problem),
        problem=tuned.source.contest,
        description=tuned.source.description,
        spec=Path(os.path.relpath(path, beside)).as_posix(),
        kernel_sha256=verdict.winner.kernel,
        seconds=median(samples.seconds),
        baseline_seconds=median(samples.baseline_seconds),
        first_seconds=median(samples.against_seconds),
        tried=len({job.kernel for job in verdict.trials}),
        date=verdict.final.date,
        gemmgen=__version__,
        torch=environment.torch,
        triton=environment.triton,
    )
    return Outcome(tuned, environment, baseline, verdict, run.measured, path, row)


def write_winner(outcome: Outcome) -> None:
    """Write the winner's spec; a file of that name is replaced only if this command wrote it.

    Raises GemmgenError: ``foreign-file``; ``cannot-write``.
    """
    path = outcome.path
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
        message = "exists and was not written by `gemmgen tune`: move it, or choose another --out"
        raise GemmgenError([Diagnostic(path.as_posix(), "foreign-file", message)])
    write_files({path: f"{_evidence_text(outcome)}{outcome.winner.text}".encode()})
    product = make(path)
    if kernel_sha256(product.plan, product.source.stem) != outcome.winner.kernel:
        raise AssertionError(f"{path}: does not make the kernel that was measured")


def _evidence_text(outcome: Outcome) -> str:
    """Return the comments that a winner's spec begins with."""
    row, samples, environment = outcome.row, outcome.samples, outcome.environment
    states = [f"{value:g} {unit}" for name, unit in UNITS if (value := samples.machine.get(name)) is not None]
    failed = sum(outcome.failures.values())
    failures = f", {counted(failed, 'trial')} failed" if failed else ""
    tuned, tried = outcome.tuned, counted(row.tried, "kernel")
    at = f" at {', '.join(states)}" if states else ""
    stays = ", which this is" if outcome.verdict.winner == outcome.verdict.first else ""
    lines = [
        f"{MARK} {row.gemmgen} from {tuned.source.stem}.yaml for {shape_text(tuned.shape)}, {row.date}.",
        f"# {_times(samples.seconds)} a call{at}:",
        f"# {_ratio(samples.baseline_spread)} times as fast as {outcome.baseline},",
        f"# {_ratio(samples.against_spread)} times as fast as the planner's first choice{stays}.",
        f"# {tried} tried{failures}, {outcome.verdict.gpu_seconds:.1f} s of GPU time.",
        f"# {row.gpu}, torch {row.torch}, Triton {row.triton}, driver {environment.driver}.",
        f"# kernel {row.kernel_sha256}",
    ]
    if outcome.remark:
        lines.insert(-2, f"# {outcome.remark[0].upper()}{outcome.remark[1:]}.")
    return "".join(f"{comment_text(line)}\n" for line in lines)


UNITS: Final = (("sm_clock_mhz", "MHz"), ("power_w", "W"), ("temperature_c", "degrees"))


def _times(seconds: Sequence[float]) -> str:
    found = Spread.of((tuple(seconds),))
    lower, upper = found.quartiles
    return f"{found.median * 1e6:.2f} us [{lower * 1e6:.2f}, {upper * 1e6:.2f}]"


def _ratio(found: Spread) -> str:
    return f"{found.median:.3f} [{found.quartiles[0]:.3f}, {found.quartiles[1]:.3f}]"
