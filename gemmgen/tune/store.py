"""Where trials are kept: a study of Optuna's for each spec, shape and GPU; SQLite, a journal or PostgreSQL.

A *job* is a kernel to be measured so thoroughly, against another one. A *trial* is a job that somebody has
taken. Whoever takes one adds it as a running trial, which is one transaction in every kind of store, and then
looks: of the trials of a job the one with the lowest number counts, so that no job is done twice. A trial
whose process is gone counts no more.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, Literal, cast, get_args

import optuna
import sqlalchemy
from optuna.exceptions import DuplicatedStudyError, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from gemmgen import __version__
from gemmgen.bench.record import Environment, Spread
from gemmgen.bench.result_log import ratios
from gemmgen.documents.decode import BadFieldError, decode, shown
from gemmgen.documents.kinds import Extents, GpuName, Kind, Seconds, Share
from gemmgen.errors import Diagnostic, GemmgenError, install_advice
from gemmgen.literals import visible
from gemmgen.plan.decisions import FIELDS
from gemmgen.problem import Shape, shape_text
from gemmgen.tune.candidates import Pins, TuningCandidate, Value

FORMAT: Final = 2
"""Of what is kept in a study."""
PREFIX: Final = "gemmgen/"
"""Of the names of studies."""
JOURNALS: Final = (".journal", ".log")
"""What the names of journals end in."""
LEASE_SECONDS: Final = 900.0
"""A trial takes seconds: one that another machine began so long ago has lost its process."""
BUSY_SECONDS: Final = 60
"""How long a writer waits for another one of the same SQLite file."""
NEEDED_TABLES: Final = frozenset(
    (
        "studies",
        "study_directions",
        "study_user_attributes",
        "trials",
        "trial_user_attributes",
        "trial_values",
        "version_info",
    )
)
"""Of Optuna's, what is used here."""
TABLES: Final = NEEDED_TABLES | {
    "alembic_version",
    "study_system_attributes",
    "trial_heartbeats",
    "trial_intermediate_values",
    "trial_params",
    "trial_system_attributes",
}
"""All of Optuna's, version 5. It makes them one by one, so that others see a part of them meanwhile."""
OPENINGS: Final = 20
"""How often a store is opened that others are just making."""


@dataclass(frozen=True)
class Job:
    """A kernel to be measured, by the hashes of modules."""

    kernel: str
    rung: int
    """How thoroughly."""
    against: str
    """The kernel that it takes turns with."""


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
    """Clock, power and temperature meanwhile."""

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


def _is_field(path: str) -> bool:
    return path in FIELDS


FieldOfSpec = Annotated[str, Kind(_is_field, "the path of a field of a spec")]
Why = Literal["cannot", "wrong", "failed", "impossible", "lost", "taken"]
UNDONE: Final = ("lost", "taken")
"""Why a trial failed that says nothing of its kernel: the job is to be done, or another trial does it."""


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
    """When it ended, UTC."""
    gpu_seconds: float = 0.0
    samples: TrialSamples | None = None
    why: Why | None = None
    message: str = ""


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Whether the process that took a trial is no more; of another machine's, whether it took it long ago."""
    if owner.get("host") != _host():
        return time.time() - float(owner.get("since", 0.0)) > LEASE_SECONDS
    return _started(int(owner.get("pid", 0))) != owner.get("started")


def _owner() -> dict[str, Any]:
    """Return what tells this process from all others."""
    return {"host": _host(), "pid": os.getpid(), "started": _started(os.getpid()), "since": time.time()}


def _host() -> str:
    """Return a hash that tells this machine, since it started, and this container from others."""
    known = [str(uuid.getnode())]
    with suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        known.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("".join(known).encode()).hexdigest()[:16]


def _started(pid: int) -> int | None:
    """Return when a process of this machine was started, in ticks; None of one that is no more."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *others = text[text.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(others[18])


# --- opening


class Store:
    """A store of studies."""

    def __init__(self, place: str, *, new: bool = True) -> None:
        """Open a path of a SQLite file or of a journal (``.journal``), or a URL of PostgreSQL.

        Without ``new`` it must be there. Raises GemmgenError (``bad-store``).
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.place = _shown(place)
        """What messages name: without a password."""
        try:
            self.storage = self._opened(place, new=new)
            self._refuse_other_formats()
        except GemmgenError:
            raise
        except Exception as error:
            reason = next(iter(str(error.__cause__ or error).splitlines()), type(error).__name__)
            raise self._error(f"cannot be opened: {reason}") from error

    def _error(self, message: str) -> GemmgenError:
        return GemmgenError([Diagnostic(self.place, "bad-store", message)])

    def _opened(self, place: str, *, new: bool) -> BaseStorage:
        scheme, separator, rest = place.partition("://")
        if not separator:
            path = Path(place).resolve()
        elif scheme == "sqlite":
            path = Path(rest.removeprefix("/")).resolve()
        elif scheme in ("postgresql", "postgres", "postgresql+psycopg"):
            return self._server(f"postgresql+psycopg://{rest}")
        else:
            raise self._error("a store is a SQLite file, a .journal file or a postgresql:// URL")
        if not path.parent.is_dir():
            raise self._error(f"there is no directory {path.parent}")
        if path.is_dir():
            raise self._error("is a directory: name a file in it")
        if not new and not path.exists():
            raise self._error("there is no such store")
        return self._journal(path) if path.suffix in JOURNALS else self._file(path)

    def _journal(self, path: Path) -> BaseStorage:
        if path.exists():
            with path.open("rb") as file:
                first = file.readline()
            if first and not (first.startswith(b"{") and b'"op_code"' in first):
                raise self._error("is no journal of Optuna's: name another --store")
        # Its lock is a link to the path, which is found again only if that is whole.
        return JournalStorage(JournalFileBackend(str(path)))

    def _file(self, path: Path) -> BaseStorage:
        if path.exists() and path.stat().st_size:
            try:
                reader = sqlite3.connect(f"{path.as_uri()}?mode=ro", BUSY_SECONDS, uri=True)
                with closing(reader) as connection:
                    rows = connection.execute(
                        "SELECT name FROM sqlite_master WHERE type = 'table'"
                    ).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._error(f"is no SQLite database ({error}): name another --store") from error
            self._refuse_foreign([str(name) for (name,) in rows])
        return self._tables(f"sqlite:///{path}", {"timeout": BUSY_SECONDS})

    def _server(self, url: str) -> BaseStorage:
        try:
            engine = sqlalchemy.create_engine(url, poolclass=NullPool)
            names = sqlalchemy.inspect(engine).get_table_names()
        except ModuleNotFoundError as error:
            message = f"PostgreSQL needs psycopg: {install_advice('tune')}"
            raise self._error(message) from error
        self._refuse_foreign(names)
        return self._tables(url, {})

    def _refuse_foreign(self, tables: Sequence[str]) -> None:
        """Refuse a database that has other tables than Optuna's; it has a part of them while it is made."""
        if not {*tables} <= TABLES and not {*tables} >= NEEDED_TABLES:
            named = ", ".join(sorted(tables)[:3]) + ", …" * (len(tables) > 3)
            raise self._error(f"is a database of another program (its tables: {named}): name another --store")

    def _tables(self, url: str, arguments: Mapping[str, object]) -> BaseStorage:
        """Return the storage in a database; where others are just making its tables, after them.

        No connection is kept: a process that is forked must not have it too.
        """
        options = {"poolclass": NullPool, "connect_args": dict(arguments)}
        for opening in range(OPENINGS):
            try:
                return optuna.storages.get_storage(RDBStorage(url, engine_kwargs=options))
            except RuntimeError as error:
                raise self._error(
                    f"was written by another Optuna: {str(error).partition('. ')[0]}"
                ) from error
            except (SQLAlchemyError, StorageInternalError, AssertionError):
                if opening == OPENINGS - 1:
                    raise
                time.sleep(0.05 * (opening + 1))
        raise AssertionError

    def _refuse_other_formats(self) -> None:
        for name, facts in self._facts().items():
            if (found := facts.get("format")) != FORMAT:
                message = (
                    f"has format {found} of trials ({visible(name)}); this gemmgen reads format {FORMAT}"
                )
                raise self._error(f"{message}: name another --store")

    def _facts(self) -> dict[str, dict[str, Any]]:
        """Return what each study of gemmgen's says of itself, by its name; not of one that is being made."""
        found: dict[str, dict[str, Any]] = {}
        for study in self.storage.get_all_studies():
            facts: object = study.user_attrs.get("gemmgen")
            if not study.study_name.startswith(PREFIX) or not facts:
                continue
            what = f"the study {visible(study.study_name)}"
            if not isinstance(facts, dict):
                raise self._error(f"{what} is none of gemmgen's")
            stated = cast("dict[str, Any]", facts)
            if stated.get("format") == FORMAT:
                self._refuse_bad(StoredFacts, stated, what)
            found[study.study_name] = stated
        return found

    def _refuse_bad(self, kind: type, value: object, what: str) -> None:
        """Refuse what this gemmgen cannot have written."""
        try:
            decode(kind, value)
        except BadFieldError as error:
            raise self._error(f"{what} is not what `gemmgen tune` writes: {error}") from error

    def gpus(self, digest: str, shape: Shape) -> list[str]:
        """Return the GPUs that there is a study of a problem [M, N, K] for, with all that its spec states."""
        facts = self._facts().values()
        mine = [each for each in facts if each["digest"] == digest and tuple(each["shape"]) == shape]
        return sorted({str(each["gpu"]) for each in mine if each["gemmgen"] == __version__})

    def study(self, facts: StudyFacts) -> Study:
        """Return the study for these facts, made if there is none.

        Raises GemmgenError (``other-machine``) for one that was measured with other versions.
        """
        storage, name = self.storage, facts.name
        with suppress(DuplicatedStudyError):
            storage.create_new_study([StudyDirection.MINIMIZE], name)
        study_id = storage.get_study_id_from_name(name)
        before = storage.get_study_user_attrs(study_id).get("gemmgen")
        if before is not None:
            self._refuse_bad(StoredFacts, before, f"the study {name}")
        if before is None:
            storage.set_study_user_attr(study_id, "gemmgen", facts.as_dict())
        elif facts.environment is not None:
            self._refuse_other_machine(before["environment"], facts)
        return Study(storage, study_id, storage.get_study_user_attrs(study_id)["gemmgen"], self.place)

    def forget(self, facts: StudyFacts) -> None:
        """Remove the study for these facts, if there is one."""
        with suppress(KeyError):
            self.storage.delete_study(self.storage.get_study_id_from_name(facts.name))

    def _refuse_other_machine(self, before: Mapping[str, Any] | None, facts: StudyFacts) -> None:
        assert facts.environment is not None
        for member, new in asdict(facts.environment).items():
            if before is not None and before[member] != new:
                message = (
                    f"was measured with another {member}, {before[member]}, here it is {new}: "
                    "tune into another --store, or measure it --again"
                )
                raise GemmgenError([Diagnostic(self.place, "other-machine", message, field=facts.field)])


def _shown(place: str) -> str:
    """Return a path or a URL, without a password."""
    if "://" not in place:
        return Path(place).as_posix()
    try:
        return sqlalchemy.make_url(place).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return place.partition("://")[0] + "://…"


@dataclass(frozen=True)
class StudyFacts:
    """What a study is of."""

    stem: str
    digest: str
    """Of all that the spec states."""
    description: str
    shape: Extents
    gpu: GpuName
    baseline: str
    environment: Environment | None
    """None where there is no GPU: then it is what the study says."""

    @property
    def name(self) -> str:
        """The name of the study."""
        words = (__version__, self.gpu, shape_text(self.shape), self.digest[:16])
        return PREFIX + "/".join(words)

    @property
    def field(self) -> str:
        """What messages name."""
        return f"{self.stem} {shape_text(self.shape)}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"format": FORMAT, "gemmgen": __version__, **asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class StoredFacts(StudyFacts):
    """The same as a store keeps it: a document, in which somebody else may have written."""

    format: int
    gemmgen: str


# --- trials


@dataclass(frozen=True)
class Study:
    """The trials of one spec, shape and GPU."""

    storage: BaseStorage
    study_id: int
    facts: Mapping[str, Any]
    """What it says of itself, as ``StudyFacts.as_dict`` has it."""
    place: str
    """What messages call its store."""

    def trials(self) -> list[TrialRecord]:
        """Return all that count, by their numbers; running ones whose process is gone are failed as lost.

        Raises GemmgenError (``bad-store``) for a trial that `gemmgen tune` does not write.
        """
        found: list[TrialRecord] = []
        for frozen in self.storage.get_all_trials(self.study_id, deepcopy=False):
            trial = self._trial(frozen)
            if trial is not None and trial.state == "running" and is_gone(trial.owner):
                # It may have ended, and its process with it, since it was read.
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
        """Take a job; return the number of its trial, or None where another process was first."""
        token = uuid.uuid4().hex
        attributes = {
            "kernel": job.kernel,
            "rung": job.rung,
            "against": job.against,
            "label": candidate.label,
            "pins": dict(candidate.pins),
            "owner": _owner(),
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
        """Keep what a trial found; return False where it has been given to another process meanwhile."""
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
        """Keep why a trial found nothing; the same is returned."""
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
    """What tells a process from all others."""

    host: str
    pid: int
    started: int | None
    since: float


@dataclass(frozen=True)
class _StoredTrial:
    """What every trial has in a store."""

    kernel: str
    rung: int
    against: str
    label: str
    pins: Mapping[FieldOfSpec, Value]
    owner: _Owner
    date: str = ""
    gpu_seconds: Share = 0.0


def _trial(frozen: FrozenTrial) -> TrialRecord | None:
    """Return a trial of Optuna's as one of gemmgen's; None of what somebody else has added.

    Raises BadFieldError for one that is not as gemmgen writes them.
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
        pins=kept.pins,
        owner=asdict(kept.owner),
        date=kept.date,
        gpu_seconds=kept.gpu_seconds,
        samples=samples,
        why=why,
        message=visible(str(known.get("message", ""))),
    )
