"""Where trials are kept: on SQLite, in a journal and on a PostgreSQL server that is started here."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

import optuna
import psycopg
import pytest
import sqlalchemy.event
from optuna.trial import TrialState

from gemmgen import __version__
from gemmgen.bench.record import Environment
from gemmgen.errors import GemmgenError
from gemmgen.processes.forking import forked
from gemmgen.tune import require_optuna
from gemmgen.tune.candidates import TuningCandidate
from gemmgen.tune.store import TABLES, Store
from gemmgen.tune.study import Study, StudyFacts
from gemmgen.tune.trials import LEASE_SECONDS, Job, TrialRecord, TrialSamples, has_ended

ENVIRONMENT = Environment("0", "2.11", "3.9", "13", "13", "580", "NVIDIA H200", 132, 1 << 26)
FACTS = StudyFacts("open", "d" * 64, "bf16", (8, 16, 32), "NVIDIA H200", "a baseline", ENVIRONMENT)
CANDIDATE = TuningCandidate("a label", MappingProxyType({"tile.m": 64}), "", "", "k")
SAMPLES = TrialSamples((2e-6, 3e-6, 4e-6), (3e-6,) * 3, (6e-6,) * 3, 1e-4, {"power_w": 650.0})
JOB = Job("k", 0, "f")
DATE = "2026-11-22T23:00:00Z"
MISSING = "no PostgreSQL server: install it with `apt-get install postgresql`"


def postgres_programs() -> Path | None:
    """Return the directory of PostgreSQL's programs."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    return next((path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)


@pytest.fixture(scope="module")
def postgres() -> Generator[str]:
    """Start a server of its own and give its URL; root may not run one."""
    programs = postgres_programs()
    if programs is None:
        if os.environ.get("CI") == "1":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    user = "nobody" if os.getuid() == 0 else None
    if user:
        shutil.chown(directory, user)
    made = ["-U", "gemmgen", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
    initdb = [str(programs / "initdb"), "-D", str(directory / "data"), *made]
    subprocess.run(initdb, user=user, cwd=directory, check=True, capture_output=True)
    settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"]
    command = [str(programs / "postgres"), "-D", str(directory / "data"), "-k", str(directory), *settings]
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(command, user=user, cwd=directory, stdout=log, stderr=log)
    try:
        url = f"postgresql://gemmgen@/postgres?host={directory}"
        wait_for(url, server, directory / "log")
        yield url
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(20)
        shutil.rmtree(directory)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        else:
            return


@pytest.fixture(params=["SQLite", "a journal", "PostgreSQL"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind that nobody has used."""
    if request.param == "PostgreSQL":
        url: str = request.getfixturevalue("postgres")
        name = f"t{uuid4().hex}"
        with contextlib.closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return url.replace("/postgres?", f"/{name}?")
    return str(tmp_path / ("tune.db" if request.param == "SQLite" else "tune.journal"))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Store(str(tmp_path / "tune.db")).study(FACTS)


# --- trials


def test_what_a_trial_found_is_read_back(place: str) -> None:
    study = Store(place).study(FACTS)
    first, second, third = (study.claim(Job("k", rung, "f"), CANDIDATE) for rung in range(3))
    assert (first, second, third) == (0, 1, 2)
    assert study.finish(0, SAMPLES, 0.5, DATE)
    assert study.fail(1, "wrong", "relative error 2", 0.25, DATE)
    done, failed, running = Store(place, new=False).study(FACTS).trials()
    assert (done.state, done.samples, done.gpu_seconds, done.date) == ("done", SAMPLES, 0.5, DATE)
    assert (SAMPLES.against_spread.median, SAMPLES.baseline_spread.median) == (1.0, 2.0)
    assert (done.label, done.pins) == ("a label", {"tile.m": 64})
    assert (failed.state, failed.why, failed.message) == ("failed", "wrong", "relative error 2")
    assert (running.state, running.job, running.samples) == ("running", Job("k", 2, "f"), None)
    optunas = optuna.load_study(study_name=FACTS.name, storage=study.storage)
    assert optunas.best_trial.user_attrs["ratio"] == 1.0
    assert optunas.best_value == 3e-6  # seconds


def test_processes_that_open_a_new_store_at_once_do_no_job_twice(place: str) -> None:
    jobs = [Job(f"k{number}", 0, "f") for number in range(8)]

    def work() -> list[int]:
        study = Store(place).study(FACTS)
        mine: list[int] = []
        for job in jobs:
            if (number := study.claim(job, CANDIDATE)) is not None:
                mine.append(number)
                study.finish(number, SAMPLES, 1.0, DATE)
        return mine

    with forked(work) as one, forked(work) as two, forked(work) as three:
        taken = [*one(), *two(), *three()]
    trials = Store(place).study(FACTS).trials()
    assert Counter(trial.job for trial in trials) == dict.fromkeys(jobs, 1)
    assert sorted(taken) == sorted(trial.number for trial in trials)
    assert all(trial.state == "done" for trial in trials)


def test_a_database_that_another_process_is_just_making_is_waited_for(tmp_path: Path) -> None:
    """Its tables come one by one: a reader must not take it for another program's meanwhile."""
    path = tmp_path / "tune.db"

    def slowly(connection: object, cursor: object, statement: str, *others: object) -> None:
        if statement.lstrip().startswith("CREATE TABLE"):
            time.sleep(0.05)

    def make() -> list[TrialRecord]:
        sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", slowly)
        return Store(str(path)).study(FACTS).trials()

    with forked(make) as other:
        tables: list[str] = []
        while not tables:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            tables = [name for (name,) in rows]
        assert len(tables) < len(TABLES)
        assert Store(str(path)).study(FACTS).claim(JOB, CANDIDATE) == 0
        assert [trial.job for trial in other()] in ([], [JOB])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert {name for (name,) in rows} == TABLES


def test_a_job_is_taken_once(study: Study) -> None:
    assert study.claim(JOB, CANDIDATE) == 0
    assert study.claim(JOB, CANDIDATE) is None
    study.finish(0, SAMPLES, 1.0, DATE)
    assert study.claim(JOB, CANDIDATE) is None
    assert [trial.number for trial in study.trials()] == [0]


def test_a_job_that_failed_is_not_taken_again_but_one_that_was_interrupted_is(study: Study) -> None:
    study.claim(JOB, CANDIDATE)
    study.fail(0, "lost", "interrupted", 0.0, DATE)
    assert study.trials() == []
    assert study.claim(JOB, CANDIDATE) == 1
    study.fail(1, "failed", "signal 6", 1.0, DATE)
    assert study.claim(JOB, CANDIDATE) is None


def test_the_trial_of_a_killed_process_is_taken_up_again(place: str) -> None:
    def take_and_die() -> None:
        Store(place).study(FACTS).claim(JOB, CANDIDATE)
        os.kill(os.getpid(), signal.SIGKILL)

    with forked(take_and_die) as result, contextlib.suppress(Exception):
        result()
    study = Store(place).study(FACTS)
    assert study.trials() == []
    assert study.claim(JOB, CANDIDATE) == 1
    assert not study.finish(0, SAMPLES, 1.0, DATE)  # it would be too late
    assert study.finish(1, SAMPLES, 1.0, DATE)


def test_a_trial_that_ends_with_its_process_while_others_look_counts(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, other = Store(place).study(FACTS), Store(place).study(FACTS)
    assert other.claim(JOB, CANDIDATE) == 0

    def ends(owner: object) -> bool:
        return other.finish(0, SAMPLES, 1.0, DATE)

    monkeypatch.setattr("gemmgen.tune.study.has_ended", ends)
    assert [trial.state for trial in study.trials()] == ["done"]
    assert study.claim(JOB, CANDIDATE) is None


def test_another_machine_s_trial_is_its_own_until_the_lease_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gemmgen.tune.trials.time.time", lambda: 1e9)
    assert not has_ended({"host": "another", "pid": 1, "started": 1, "since": 1e9 - LEASE_SECONDS})
    assert has_ended({"host": "another", "pid": 1, "started": 1, "since": 1e9 - LEASE_SECONDS - 1})


def test_a_process_of_the_same_number_that_started_later_is_another_one(study: Study) -> None:
    study.claim(JOB, CANDIDATE)
    (trial,) = study.trials()
    assert not has_ended(trial.owner)
    assert has_ended({**trial.owner, "started": trial.owner["started"] - 1})


def test_a_zombie_is_gone(study: Study) -> None:
    study.claim(JOB, CANDIDATE)
    (trial,) = study.trials()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended({**trial.owner, "pid": ended.pid})


def test_there_is_a_study_for_each_problem_shape_and_gpu(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "tune.db"))
    others = [
        replace(FACTS, digest="e" * 64),
        replace(FACTS, shape=(8, 16, 64)),
        replace(FACTS, gpu="NVIDIA H100"),
    ]
    store.study(FACTS).claim(JOB, CANDIDATE)
    assert all(store.study(other).trials() == [] for other in others)
    assert FACTS.name == f"gemmgen/{__version__}/NVIDIA H200/8x16x32/dddddddddddddddd"
    assert store.gpus("d" * 64, (8, 16, 32)) == ["NVIDIA H100", "NVIDIA H200"]
    assert store.gpus("e" * 64, (8, 16, 64)) == []
    store.forget(FACTS)
    assert store.study(FACTS).trials() == []


# --- stores that are none


def refused(place: str, *, new: bool = True) -> str:
    with pytest.raises(GemmgenError) as caught:
        Store(place, new=new)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "bad-store"
    return diagnostic.message


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tune.db"
    path.write_text("title: t\n" * 100)
    assert refused(str(path)) == "is not a SQLite database (file is not a database): name another --store"
    assert path.read_text() == "title: t\n" * 100


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tune.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in ("songs", "artists", "albums", "labels"):
            connection.execute(f"CREATE TABLE {table} (name)")
    before = path.read_bytes()
    expected = (
        "is a database of another program (its tables: albums, artists, labels, …): name another --store"
    )
    assert refused(str(path)) == expected
    assert refused(f"sqlite:///{path}") == expected
    assert path.read_bytes() == before


def test_a_server_s_database_of_another_program_is_refused(postgres: str) -> None:
    name = f"t{uuid4().hex}"
    url = postgres.replace("/postgres?", f"/{name}?")
    with contextlib.closing(psycopg.connect(postgres, autocommit=True)) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    with contextlib.closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("CREATE TABLE songs (name text)")
    assert refused(url) == "is a database of another program (its tables: songs): name another --store"


def test_a_server_that_does_not_answer_is_told_without_the_password(tmp_path: Path) -> None:
    url = f"postgresql://me:secret@/tune?host={tmp_path}"
    with pytest.raises(GemmgenError) as caught:
        Store(url)
    (diagnostic,) = caught.value.diagnostics
    assert "secret" not in str(diagnostic)
    assert diagnostic.path.startswith("postgresql://me:***@/tune")
    assert diagnostic.message.startswith("cannot be opened: connection ")


def test_trials_of_another_format_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "tune.db")
    study = Store(path).study(FACTS)
    study.storage.set_study_user_attr(study.study_id, "gemmgen", {**study.facts, "format": 1})
    expected = f"has format 1 of trials ({FACTS.name}); this gemmgen reads format 2: name another --store"
    assert refused(path) == expected


@pytest.mark.parametrize("kind", ["tune.db", "tune.journal"])
@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"gpu": 'x"'}, "gpu: must be the name of a GPU"),
        ({"baseline": "x\ntarget: h100"}, "baseline: must be one line of printable text"),
        ({"environment": {}}, "environment.gemmgen: is missing"),
        ({"shape": [1, 2]}, "shape: must have 3 elements, not 2"),
    ],
)
def test_a_study_that_gemmgen_does_not_write_is_refused(
    tmp_path: Path, kind: str, members: dict[str, object], said: str
) -> None:
    path = str(tmp_path / kind)
    study = Store(path).study(FACTS)
    study.storage.set_study_user_attr(study.study_id, "gemmgen", {**study.facts, **members})
    assert refused(path).startswith(f"the study {FACTS.name} is not what `gemmgen tune` writes: {said}")
    study.storage.set_study_user_attr(study.study_id, "gemmgen", "text")
    assert refused(path) == f"the study {FACTS.name} was not made by gemmgen"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"pins": {"a.b": 1}}, 'pins."a.b": must be the path of a field of a spec, not "a.b"'),
        ({"pins": {"tile.m": [1]}}, 'pins."tile.m": must be an integer, not [1]'),
        ({"owner": 1}, "owner: must be an object, not 1"),
        ({"label": "\x1b[31m"}, "label: must be one line of printable text"),
        ({"seconds": [1e-320] * 3}, "seconds.0: must be seconds from 1e-09 to 1e+06, not 1e-320"),
        ({"seconds": [1e-5]}, "all arms need the same number of samples, at least one"),
        ({"why": "because"}, None),
    ],
)
def test_a_trial_that_gemmgen_does_not_write_is_refused(
    tmp_path: Path, members: dict[str, object], said: str | None
) -> None:
    study = Store(str(tmp_path / "tune.db")).study(FACTS)
    number = study.claim(JOB, CANDIDATE)
    assert number is not None
    trial = study.storage.get_trial_id_from_study_id_trial_number(study.study_id, number)
    for name, value in {**asdict(SAMPLES), **members}.items():
        study.storage.set_trial_user_attr(trial, name, value)
    state = TrialState.COMPLETE if said else TrialState.FAIL
    study.storage.set_trial_state_values(trial, state, [1.0] if said else None)
    with pytest.raises(GemmgenError) as caught:
        study.trials()
    (found,) = caught.value.diagnostics
    expected = (
        said
        or 'why: must be one of cannot, wrong, failed, impossible, out-of-memory, lost, taken, not "because"'
    )
    assert found.code == "bad-store"
    assert found.message.startswith(f"the trial {number} is not what `gemmgen tune` writes: {expected}")


def test_a_database_of_another_optuna_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tune.db"
    Store(str(path))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v9.0.0.a'")
        connection.commit()
    message = refused(str(path))
    pattern = r"was written by another Optuna: The runtime optuna version \S+ is no longer compatible with .*"
    assert re.fullmatch(pattern, message)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tune.journal", "no journal\n", "is not a journal of Optuna: name another --store"),
        ("nowhere/tune.db", None, "there is no directory {directory}/nowhere"),
        ("", None, "is a directory: name a file in it"),
    ],
)
def test_paths_that_are_no_store_are_refused(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert refused(str(path)) == message.format(directory=tmp_path)


def test_a_store_that_is_read_must_be_there(tmp_path: Path) -> None:
    assert refused(str(tmp_path / "tune.db"), new=False) == "there is no such store"
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_of_stores_are_refused() -> None:
    expected = "a store is a SQLite file, a .journal file or a postgresql:// URL"
    assert refused("mysql://host/tune") == expected


@pytest.mark.parametrize(("member", "found"), [("triton", "3.10"), ("driver", "590")])
def test_trials_of_other_versions_are_not_gone_on_with(tmp_path: Path, member: str, found: str) -> None:
    path = tmp_path / "tune.db"
    store = Store(str(path))
    store.study(FACTS)
    other = replace(FACTS, environment=replace(ENVIRONMENT, **{member: found}))
    with pytest.raises(GemmgenError) as caught:
        store.study(other)
    assert str(caught.value) == (
        f"{path}: error[other-machine] open 8x16x32: was measured with another {member}, "
        f"{getattr(ENVIRONMENT, member)}, here it is {found}: "
        "use another --store, or measure again with --again"
    )


def test_without_optuna_one_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        pass

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(GemmgenError) as caught:
        require_optuna()
    assert str(caught.value) == (
        "error[no-optuna]: Optuna, which keeps the trials, is not installed: "
        "run `pip install '.[tune]'` in a checkout of gemmgen"
    )
