"""The store of trials: an Optuna storage with a study for each spec, shape, GPU and version of gemmgen.

Only Optuna's public interface is used: a process creates a trial by ``ask``, writes a job into it as an
attribute, measures the job, and ends the trial by ``tell``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from gemmgen import __version__
from gemmgen.bench.record import Environment
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.json_files import BadFieldError, decode
from gemmgen.problem import shape_text
from gemmgen.tune.candidates import TuningTarget
from gemmgen.tune.trials import Job, Trial

FORMAT: Final = 3
"""Format of the data in a study."""
BUSY_SECONDS: Final = 60
"""Seconds for which a writer waits for another writer of the same SQLite file."""
PAUSES: Final = (0.2, 1.0)
"""Seconds between attempts to open a store: another process may be making its tables."""

T = TypeVar("T")


class Store:
    """A store of studies."""

    def __init__(self, place: str, *, new: bool = True) -> None:
        """Open a store: the path of a SQLite file, or the URL of a database that Optuna supports.

        If `new` is False, a file must exist. Raises GemmgenError (``bad-store``).
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.place = _shown(place)
        """Name of the store in messages, without a password."""
        url, options = place, dict[str, Any]()
        if "://" not in place:
            path = Path(place).resolve()
            if not new and not path.exists():
                raise _bad_store(self.place, "there is no such store")
            url, options = f"sqlite:///{path}", {"connect_args": {"timeout": BUSY_SECONDS}}
        self.storage = self._opened(url, options)

    def _opened(self, url: str, options: dict[str, Any]) -> RDBStorage:
        for pause in (*PAUSES, None):
            try:
                return RDBStorage(url, engine_kwargs=options)
            except ImportError as error:
                reason = f"the Python driver of this database is not installed ({error.__cause__ or error})"
                raise _bad_store(self.place, reason) from error
            except Exception as error:  # of Optuna, of SQLAlchemy or of a driver
                if pause is None:
                    reason = next(iter(str(error.__cause__ or error).splitlines()), type(error).__name__)
                    raise _bad_store(self.place, f"cannot be opened: {reason}") from error
                time.sleep(pause)
        raise AssertionError

    def study(self, tuned: TuningTarget, environment: Environment) -> Study:
        """Return the study of a spec and shape on a GPU; it is created if it does not exist.

        Raises GemmgenError (``other-machine``) if its trials are of other versions than the environment.
        """
        name = _name(tuned, environment.gpu)
        found = optuna.create_study(storage=self.storage, study_name=name, load_if_exists=True)
        if "environment" not in found.user_attrs:
            found.set_user_attr("environment", asdict(environment))
        study = self._read(found)
        for member, new in asdict(environment).items():
            if (before := getattr(study.environment, member)) != new:
                message = (
                    f"was measured with another {member}, {before}, here it is {new}: "
                    "use another --store, or measure again with --again"
                )
                raise GemmgenError([Diagnostic(self.place, "other-machine", message, field=tuned.field)])
        return study

    def recorded(self, tuned: TuningTarget, gpu: str) -> Study:
        """Return the study of a spec and shape on a GPU that need not be in this machine.

        Raises GemmgenError (``other-gpu``) if there is none.
        """
        name = _name(tuned, gpu)
        if name not in optuna.get_all_study_names(self.storage):
            message = f"has no trials on {gpu} of gemmgen {__version__}"
            raise GemmgenError([Diagnostic(self.place, "other-gpu", message, field=tuned.field)])
        return self._read(optuna.load_study(study_name=name, storage=self.storage))

    def forget(self, tuned: TuningTarget, gpu: str) -> None:
        """Remove the study of a spec and shape on a GPU, if there is one."""
        with suppress(KeyError):
            optuna.delete_study(study_name=_name(tuned, gpu), storage=self.storage)

    def _read(self, found: optuna.Study) -> Study:
        environment = found.user_attrs.get("environment")
        return Study(found, _decoded(Environment, environment, self.place, "environment"), self.place)


@dataclass(frozen=True)
class Study:
    """The trials of one spec, shape and GPU: a study of Optuna's, read and written as values."""

    optunas: optuna.Study
    environment: Environment
    """Versions and GPU of all trials."""
    place: str
    """Name of the store in messages."""

    def trials(self) -> dict[Job, Trial | None]:
        """Return the result of each job in the order of the claims, None while a process measures it.

        Raises GemmgenError (``bad-store``) for a trial that `gemmgen tune` does not write.
        """
        found: dict[Job, Trial | None] = {}
        for job, each in self._claims():
            if "result" in each.user_attrs:
                place = f"trial {each.number}"
                found[job] = _decoded(Trial, each.user_attrs["result"], self.place, place)
            else:
                found.setdefault(job, None)
        return found

    def _claims(self) -> Iterator[tuple[Job, FrozenTrial]]:
        """Yield each job that has a result or is being measured, and its trial of Optuna's."""
        for each in self.optunas.get_trials(deepcopy=False):
            if "job" in each.user_attrs and ("result" in each.user_attrs or not each.state.is_finished()):
                yield _decoded(Job, each.user_attrs["job"], self.place, f"trial {each.number}"), each

    def claim(self, job: Job, label: str) -> optuna.Trial | None:
        """Claim a job; return its trial of Optuna's, or None if another process has claimed the job.

        If two processes claim a job at the same time, at least one of them sees the other claim and
        withdraws: each process writes its own claim before it looks for others.
        """
        claimed = self.optunas.ask()
        claimed.set_user_attr("label", label)  # for people
        claimed.set_user_attr("job", asdict(job))
        if any(other == job and each.number != claimed.number for other, each in self._claims()):
            self.optunas.tell(claimed, state=TrialState.FAIL)
            return None
        return claimed

    def finish(self, claimed: optuna.Trial, trial: Trial) -> None:
        """Record the result of a claimed job, unless another process has released the job meanwhile."""
        seconds = median(trial.samples.seconds) if trial.samples else None
        state = TrialState.FAIL if seconds is None else TrialState.COMPLETE
        with suppress(UpdateFinishedTrialError):
            claimed.set_user_attr("result", asdict(trial))
            self.optunas.tell(claimed, seconds, state, skip_if_finished=True)

    def release(self, job: Job) -> None:
        """End the unfinished trials of a job, whoever claimed it: the job can be claimed again."""
        for other, each in self._claims():
            if other == job and not each.state.is_finished():
                with suppress(UpdateFinishedTrialError):  # it has ended meanwhile
                    self.optunas.tell(each.number, state=TrialState.FAIL, skip_if_finished=True)


def _name(tuned: TuningTarget, gpu: str) -> str:
    """Return the name of the study of a spec and shape on a GPU."""
    return f"gemmgen/{FORMAT}/{__version__}/{gpu}/{shape_text(tuned.shape)}/{tuned.digest[:16]}"


def _decoded(kind: type[T], value: object, store: str, place: str) -> T:
    """Return data of a store as a value.

    Raises GemmgenError (``bad-store``) if gemmgen cannot have written it.
    """
    try:
        return decode(kind, value)
    except BadFieldError as error:
        raise _bad_store(store, f"its {place} is not what `gemmgen tune` writes: {error}") from error


def _bad_store(store: str, message: str) -> GemmgenError:
    return GemmgenError([Diagnostic(store, "bad-store", message)])


def _shown(place: str) -> str:
    """Return a path, or the scheme, host and path of a URL: other parts may have a password."""
    if "://" not in place:
        return Path(place).as_posix()
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
