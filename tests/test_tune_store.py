"""Where trials are kept: a storage of Optuna's, in SQLite files here."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from told import refusal

from gemmgen.bench.record import Environment
from gemmgen.errors import install_advice
from gemmgen.processes.forking import forked
from gemmgen.spec import load_spec
from gemmgen.tune import require_optuna
from gemmgen.tune.candidates import TuningTarget
from gemmgen.tune.store import Store, Study
from gemmgen.tune.trials import Job, Trial, TrialSamples

ENVIRONMENT = Environment("0", "2.11", "3.9", "13", "13", "580", "NVIDIA H200", 132, 1 << 26)
SPEC = "title: t\ntarget: h200\noperands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}\n"
SAMPLES = TrialSamples((2e-6, 3e-6, 4e-6), (3e-6,) * 3, (6e-6,) * 3, 1e-4, {"power_w": 650.0})
DATE = "2026-11-22T23:00:00Z"
DONE = Trial(0.5, DATE, SAMPLES)
WRONG = Trial(0.25, DATE, why="wrong", message="relative error 2")
JOB = Job("k", 0, "f")


@pytest.fixture
def target(tmp_path: Path) -> TuningTarget:
    (tmp_path / "open.yaml").write_text(SPEC)
    return TuningTarget(load_spec(tmp_path / "open.yaml"), (8, 16, 32))


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "tune.db")


@pytest.fixture
def study(place: str, target: TuningTarget) -> Study:
    return Store(place).study(target, ENVIRONMENT)


def claimed(study: Study, job: Job) -> optuna.Trial:
    found = study.claim(job, "a label")
    assert found is not None
    return found


# --- trials


def test_what_a_job_found_is_read_back(place: str, target: TuningTarget, study: Study) -> None:
    jobs = [Job("k", rung, "f") for rung in range(3)]
    first, second, _ = [claimed(study, job) for job in jobs]
    study.finish(second, WRONG)
    study.finish(first, DONE)
    again = Store(place, new=False).recorded(target, "NVIDIA H200")
    assert again.environment == ENVIRONMENT
    assert [*again.trials().items()] == [(jobs[0], DONE), (jobs[1], WRONG), (jobs[2], None)]
    assert (SAMPLES.against_spread.median, SAMPLES.baseline_spread.median) == (1.0, 2.0)


def test_tools_of_optuna_read_a_store(study: Study, place: str) -> None:
    study.finish(claimed(study, JOB), DONE)
    study.finish(claimed(study, Job("l", 0, "f")), WRONG)
    found = optuna.load_study(study_name=None, storage=f"sqlite:///{place}")
    assert [each.state for each in found.trials] == [TrialState.COMPLETE, TrialState.FAIL]
    assert (found.best_value, found.best_trial.user_attrs["label"]) == (3e-6, "a label")  # seconds


def test_processes_that_open_a_new_store_at_once_do_no_job_twice(place: str, target: TuningTarget) -> None:
    jobs = [Job(f"k{number}", 0, "f") for number in range(8)]

    def work() -> int:
        study = Store(place).study(target, ENVIRONMENT)
        mine = 0
        for job in jobs:
            while job not in study.trials():  # both withdraw if two claim it at once
                if found := study.claim(job, ""):
                    study.finish(found, DONE)
                    mine += 1
        return mine

    with forked(work) as one, forked(work) as two, forked(work) as three:
        counts = [one(), two(), three()]
    assert sum(counts) == len(jobs)
    found = optuna.load_study(study_name=None, storage=f"sqlite:///{place}").trials
    done = Counter(each.user_attrs["job"]["kernel"] for each in found if each.state == TrialState.COMPLETE)
    assert done == {job.kernel: 1 for job in jobs}
    assert all(each.state.is_finished() for each in found)


def test_a_job_is_taken_once(study: Study) -> None:
    first = claimed(study, JOB)
    assert study.claim(JOB, "") is None
    study.finish(first, DONE)
    assert study.claim(JOB, "") is None
    assert study.trials() == {JOB: DONE}


def test_of_two_claims_at_the_same_time_no_more_than_one_stays(
    study: Study, place: str, target: TuningTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, seen = Store(place).study(target, ENVIRONMENT), list[object]()
    look = Study._claims  # pyright: ignore[reportPrivateUsage]

    def looking(self: Study) -> object:
        if self is study and not seen:
            seen.append(None)
            seen.append(other.claim(JOB, ""))  # between the first one's claim and its look
        return look(self)

    monkeypatch.setattr(Study, "_claims", looking)
    assert study.claim(JOB, "") is not None
    assert seen == [None, None]


def test_a_job_that_failed_is_not_taken_again_but_one_that_was_released_is(study: Study) -> None:
    late = claimed(study, JOB)
    study.release(JOB)
    assert study.trials() == {}
    second = claimed(study, JOB)
    study.finish(late, DONE)  # too late
    assert study.trials() == {JOB: None}
    study.finish(second, WRONG)
    study.release(JOB)  # there is nothing to release any more
    assert study.trials() == {JOB: WRONG}
    assert study.claim(JOB, "") is None


def test_the_job_of_a_killed_process_can_be_released_and_taken_up_again(
    place: str, target: TuningTarget
) -> None:
    def take_and_die() -> None:
        claimed(Store(place).study(target, ENVIRONMENT), JOB)
        os.kill(os.getpid(), signal.SIGKILL)

    with forked(take_and_die) as result, contextlib.suppress(Exception):
        result()
    study = Store(place).study(target, ENVIRONMENT)
    assert study.trials() == {JOB: None}
    study.release(JOB)
    study.finish(claimed(study, JOB), DONE)
    assert study.trials() == {JOB: DONE}


def test_a_result_whose_process_was_killed_before_it_told_it_counts(study: Study) -> None:
    claimed(study, JOB).set_user_attr("result", asdict(DONE))
    assert study.trials() == {JOB: DONE}
    study.release(JOB)
    assert study.trials() == {JOB: DONE}


def test_there_is_a_study_for_each_problem_shape_and_gpu(
    tmp_path: Path, place: str, target: TuningTarget, study: Study
) -> None:
    study.finish(claimed(study, JOB), DONE)
    store = Store(place)
    (tmp_path / "other.yaml").write_text(f"{SPEC}tile: {{m: 64}}\n")
    others = [
        (TuningTarget(load_spec(tmp_path / "other.yaml"), target.shape), ENVIRONMENT),
        (replace(target, shape=(8, 16, 64)), ENVIRONMENT),
        (target, replace(ENVIRONMENT, gpu="NVIDIA H100")),
    ]
    assert all(store.study(*other).trials() == {} for other in others)
    (tmp_path / "renamed.yaml").write_text(SPEC.replace("title: t", "title: another"))
    renamed = TuningTarget(load_spec(tmp_path / "renamed.yaml"), target.shape)
    assert store.study(renamed, ENVIRONMENT).trials() == {JOB: DONE}
    store.forget(target, "NVIDIA H200")
    assert store.study(target, ENVIRONMENT).trials() == {}
    store.forget(replace(target, shape=(1, 1, 1)), "NVIDIA H200")  # there is none


def test_a_gpu_that_the_store_does_not_have_is_told(place: str, target: TuningTarget, study: Study) -> None:
    found = refusal(lambda: Store(place).recorded(target, "NVIDIA H100"))
    assert (found.path, found.code, found.field) == (place, "other-gpu", "open 8x16x32")


# --- stores that are none


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a store be opened in one attempt."""
    monkeypatch.setattr("gemmgen.tune.store.PAUSES", ())


@pytest.mark.usefixtures("at_once")
def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tune.db"
    path.write_text("title: t\n" * 100)
    assert refusal(lambda: Store(str(path))).code == "bad-store"
    assert path.read_text() == "title: t\n" * 100


@pytest.mark.usefixtures("at_once")
def test_places_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    for place in (str(tmp_path / "nowhere" / "tune.db"), str(tmp_path), "nothing://host/tune"):
        assert refusal(partial(Store, place)).code == "bad-store"


def test_a_store_that_is_read_must_be_there(tmp_path: Path) -> None:
    assert refusal(lambda: Store(str(tmp_path / "tune.db"), new=False)).code == "bad-store"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_driver_is_told_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("…") from ModuleNotFoundError("No module named 'psycopg2'")

    monkeypatch.setattr("gemmgen.tune.store.RDBStorage", missing)
    found = refusal(lambda: Store("postgresql://me:secret@host:1234/tune?password=secret"))
    assert (found.path, found.code) == ("postgresql://host/tune", "bad-store")
    assert "psycopg2" in found.message
    assert "secret" not in str(found)


def test_a_store_whose_tables_another_process_is_making_is_opened_at_the_next_attempt(
    place: str, target: TuningTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[object] = []
    storage = optuna.storages.RDBStorage

    def opened(*arguments: object, **options: object) -> object:
        attempts.append(arguments)
        if len(attempts) == 1:
            raise RuntimeError("table studies already exists")
        return storage(*arguments, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("gemmgen.tune.store.RDBStorage", opened)
    assert Store(place).study(target, ENVIRONMENT).trials() == {}
    assert len(attempts) == 2


@pytest.mark.parametrize(
    "members",
    [{"gpu": 'x"'}, {"torch": "x\ntarget: h100"}, {"sm_count": "132"}],
    ids=["gpu", "torch", "sm_count"],
)
def test_a_study_that_gemmgen_does_not_write_is_refused(
    place: str, target: TuningTarget, study: Study, members: dict[str, object]
) -> None:
    study.optunas.set_user_attr("environment", {**asdict(ENVIRONMENT), **members})
    found = refusal(lambda: Store(place).study(target, ENVIRONMENT))
    assert found.code == "bad-store"
    assert all(f": {name}: " in found.message for name in members)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"message": "\x1b[31m"}, "message"),
        ({"samples": {**asdict(SAMPLES), "seconds": [1e-320] * 3}}, "samples.seconds.0"),
        ({"samples": {**asdict(SAMPLES), "seconds": [1e-5]}}, "samples"),
        ({"why": "because"}, "why"),
    ],
)
def test_a_trial_that_gemmgen_does_not_write_is_refused(
    study: Study, members: dict[str, object], field: str
) -> None:
    claimed(study, JOB).set_user_attr("result", {**asdict(DONE), **members})
    found = refusal(study.trials)
    assert found.code == "bad-store"
    assert f": {field}: " in found.message


@pytest.mark.parametrize(("member", "found"), [("triton", "3.10"), ("driver", "590")])
def test_trials_of_other_versions_are_not_gone_on_with(
    place: str, target: TuningTarget, study: Study, member: str, found: str
) -> None:
    told = refusal(lambda: Store(place).study(target, replace(ENVIRONMENT, **{member: found})))
    assert (told.path, told.code, told.field) == (place, "other-machine", "open 8x16x32")
    assert all(word in told.message for word in (member, getattr(ENVIRONMENT, member), found))


def test_without_optuna_one_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        pass

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    found = refusal(require_optuna)
    assert found.code == "no-optuna"
    assert install_advice("tune") in found.message
