"""The trials of one spec, shape and GPU: an Optuna study, read and written as values.

A process claims a job by adding a running trial, which is one transaction in every kind of store. Of the
trials of a job the one with the lowest number counts, so no job is done twice.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Final, Literal, get_args

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from gemmgen import __version__
from gemmgen.bench.record import Environment
from gemmgen.documents.decode import BadFieldError, decode, shown
from gemmgen.documents.kinds import Extents, GpuName, Share
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.literals import visible
from gemmgen.problem import shape_text
from gemmgen.spec.spelling import today
from gemmgen.tune.candidates import TuningCandidate, Value
from gemmgen.tune.trials import (
    UNDONE,
    FieldOfSpec,
    Job,
    TrialRecord,
    TrialSamples,
    Why,
    has_ended,
    this_process,
)

FORMAT: Final = 2
"""Format of the data in a study."""
PREFIX: Final = "gemmgen/"
"""Prefix of the names of studies."""


@dataclass(frozen=True)
class StudyFacts:
    """Identity of a study: spec, shape, GPU, baseline and versions."""

    stem: str
    digest: str
    """SHA-256 of all that the spec states."""
    description: str
    shape: Extents
    gpu: GpuName
    baseline: str
    environment: Environment | None
    """Versions and GPU; None on a machine without a GPU, where the study's own environment counts."""

    @property
    def name(self) -> str:
        """The name of the study."""
        words = (__version__, self.gpu, shape_text(self.shape), self.digest[:16])
        return PREFIX + "/".join(words)

    @property
    def field(self) -> str:
        """Name of the study in messages."""
        return f"{self.stem} {shape_text(self.shape)}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"format": FORMAT, "gemmgen": __version__, **asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class StoredFacts(StudyFacts):
    """Facts as a store keeps them, which another program may have changed."""

    format: int
    gemmgen: str


@dataclass(frozen=True)
class Study:
    """The trials of one spec, shape and GPU."""

    storage: BaseStorage
    study_id: int
    facts: Mapping[str, Any]
    """Facts of the study, in the form of ``StudyFacts.as_dict``."""
    place: str
    """Name of the store in messages."""

    def trials(self) -> list[TrialRecord]:
        """Return all that count, by their numbers; running ones whose process is gone are failed as lost.

        Raises GemmgenError (``bad-store``) for a trial that `gemmgen tune` does not write.
        """
        found: list[TrialRecord] = []
        for frozen in self.storage.get_all_trials(self.study_id, deepcopy=False):
            trial = self._trial(frozen)
            if trial is not None and trial.state == "running" and has_ended(trial.owner):
                # The trial may have ended since it was read, and its process with it.
                self._end(frozen.number, TrialState.FAIL, {"why": "lost", "message": "its process is gone"})
                trial = self._trial(self.storage.get_trial(self._trial_id(frozen.number)))
            if trial is not None and trial.why not in UNDONE:
                found.append(trial)
        first: dict[Job, TrialRecord] = {}
        for trial in sorted(found, key=lambda trial: trial.number):
            first.setdefault(trial.job, trial)
        return list(first.values())

    def _trial(self, frozen: FrozenTrial) -> TrialRecord | None:
        try:
            return _trial(frozen)
        except BadFieldError as error:
            message = f"the trial {frozen.number} is not what `gemmgen tune` writes: {error}"
            raise GemmgenError([Diagnostic(self.place, "bad-store", message)]) from error

    def claim(self, job: Job, candidate: TuningCandidate) -> int | None:
        """Claim a job; return the number of its trial, or None if another process claimed it first."""
        token = uuid.uuid4().hex
        attributes = {
            "kernel": job.kernel,
            "rung": job.rung,
            "against": job.against,
            "label": candidate.label,
            "pins": dict(candidate.pins),
            "owner": this_process(),
            "token": token,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            template = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
        self.storage.create_new_trial(self.study_id, template_trial=template)
        every = self.storage.get_all_trials(self.study_id, deepcopy=False)
        (own,) = (frozen.number for frozen in every if frozen.user_attrs.get("token") == token)
        if any(trial.job == job and trial.number < own for trial in self.trials()):
            self._end(own, TrialState.FAIL, {"why": "taken"})
            return None
        return own

    def finish(self, number: int, samples: TrialSamples, gpu_seconds: float, date: str) -> bool:
        """Record the samples of a trial; return False if another process ended the trial before."""
        ratio = samples.against_spread
        attributes = {
            **asdict(samples),
            "ratio": ratio.median,
            "ratio_quartiles": ratio.quartiles,
            "gpu_seconds": gpu_seconds,
            "date": date,
        }
        return self._end(number, TrialState.COMPLETE, attributes, [median(samples.seconds)])

    def fail(self, number: int, why: Why, message: str, gpu_seconds: float, date: str) -> bool:
        """Record the failure of a trial; return False if another process ended the trial before."""
        attributes = {"why": why, "message": message, "gpu_seconds": gpu_seconds, "date": date}
        return self._end(number, TrialState.FAIL, attributes)

    def _end(
        self,
        number: int,
        state: TrialState,
        attributes: Mapping[str, Any],
        values: Sequence[float] | None = None,
    ) -> bool:
        trial_id = self._trial_id(number)
        try:
            for name, value in attributes.items():
                self.storage.set_trial_user_attr(trial_id, name, value)
            self.storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            return False
        return True

    def _trial_id(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)


STATES: Final[Mapping[TrialState, Literal["running", "done", "failed"]]] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class _Owner:
    """Identity of a process."""

    host: str
    pid: int
    started: int | None
    since: float


@dataclass(frozen=True)
class _StoredTrial:
    """Members of every trial in a store."""

    kernel: str
    rung: int
    against: str
    label: str
    pins: Mapping[FieldOfSpec, Value]
    owner: _Owner
    date: str = ""
    gpu_seconds: Share = 0.0


def _trial(frozen: FrozenTrial) -> TrialRecord | None:
    """Return a trial of Optuna's as a record; None if another program added it.

    Raises BadFieldError if gemmgen cannot have written it.
    """
    known = frozen.user_attrs
    if "kernel" not in known or frozen.state not in STATES:
        return None
    state = STATES[frozen.state]
    written = {"date": "", "gpu_seconds": 0.0, **known}
    kept = decode(_StoredTrial, {each.name: written.get(each.name) for each in fields(_StoredTrial)})
    samples = None
    if state == "done":
        samples = decode(TrialSamples, {each.name: known.get(each.name) for each in fields(TrialSamples)})
    why = known.get("why") if state == "failed" else None
    if why is not None and why not in get_args(Why):
        raise BadFieldError("why", f"must be one of {', '.join(get_args(Why))}, not {shown(why)}")
    return TrialRecord(
        number=frozen.number,
        state=state,
        job=Job(kept.kernel, kept.rung, kept.against),
        label=kept.label,
        pins=today(kept.pins),
        owner=asdict(kept.owner),
        date=kept.date,
        gpu_seconds=kept.gpu_seconds,
        samples=samples,
        why=why,
        message=visible(str(known.get("message", ""))),
    )
