"""Places of trials: SQLite files, journals and PostgreSQL servers, a study for each spec, shape and GPU."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, cast

import optuna
import sqlalchemy
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from gemmgen import __version__
from gemmgen.documents.decode import BadFieldError, decode
from gemmgen.errors import Diagnostic, GemmgenError, install_advice
from gemmgen.literals import visible
from gemmgen.problem import Shape
from gemmgen.tune.study import FORMAT, PREFIX, StoredFacts, Study, StudyFacts

JOURNALS: Final = (".journal", ".log")
"""Suffixes of journals."""
BUSY_SECONDS: Final = 60
"""Seconds for which a writer waits for another writer of the same SQLite file."""
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
"""Tables of Optuna that gemmgen uses."""
TABLES: Final = NEEDED_TABLES | {
    "alembic_version",
    "study_system_attributes",
    "trial_heartbeats",
    "trial_intermediate_values",
    "trial_params",
    "trial_system_attributes",
}
"""All tables of Optuna 5. Optuna makes them one by one, so another process may see only some of them."""
OPENINGS: Final = 20
"""Number of attempts to open a store whose tables another process is making."""


class Store:
    """A store of studies."""

    def __init__(self, place: str, *, new: bool = True) -> None:
        """Open a store: the path of a SQLite file or a journal (``.journal``), or a URL of PostgreSQL.

        Without ``new`` the store must exist. Raises GemmgenError (``bad-store``).
        """
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.place = _shown(place)
        """Name of the store in messages, without a password."""
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
                raise self._error("is not a journal of Optuna: name another --store")
        # The lock is a link to the path, so the path must be absolute.
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
                raise self._error(f"is not a SQLite database ({error}): name another --store") from error
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
        """Refuse a database with tables of another program; while Optuna makes its own, some are missing."""
        if not {*tables} <= TABLES and not {*tables} >= NEEDED_TABLES:
            named = ", ".join(sorted(tables)[:3]) + ", …" * (len(tables) > 3)
            raise self._error(f"is a database of another program (its tables: {named}): name another --store")

    def _tables(self, url: str, arguments: Mapping[str, object]) -> BaseStorage:
        """Return the storage in a database; if another process is making its tables, wait for that process.

        No connection is kept, because a forked process must not share it.
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
                raise self._error(f"{what} was not made by gemmgen")
            stated = cast("dict[str, Any]", facts)
            if stated.get("format") == FORMAT:
                self._refuse_bad(StoredFacts, stated, what)
            found[study.study_name] = stated
        return found

    def _refuse_bad(self, kind: type, value: object, what: str) -> None:
        """Refuse data that this gemmgen cannot have written."""
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
        """Return the study for these facts; it is created if it does not exist.

        Raises GemmgenError (``other-machine``) if the study was measured with other versions.
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
                    "use another --store, or measure again with --again"
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
