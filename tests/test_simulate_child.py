"""Processes that compile: a child ends as one, whatever becomes of its parent; one is kept."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
from kernels.launch import launch
from modules import ROOT, module_file

import gemmgen.processes.workers
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import import_generated
from gemmgen.processes.forking import LateError, LostError, forked
from gemmgen.processes.workers import call_in_worker, discard, run_in_worker
from gluonsim.ir import ttgir
from gluonsim.ir.ttgir import in_child


def test_a_child_returns_the_text() -> None:
    assert in_child(lambda: "text") == "text"


def test_an_interrupt_ends_a_child_that_compiles() -> None:
    def interrupted() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "text"

    with pytest.raises(GemmgenError, match=r"Triton aborts on the kernel \(signal 2\)"):
        in_child(interrupted)


def test_a_child_hands_over_any_value_and_says_how_it_was_lost() -> None:
    with forked(lambda: {"pid": os.getpid()}) as result:
        assert result()["pid"] != os.getpid()
    with pytest.raises(LostError, match="ZeroDivisionError: division by"), forked(lambda: 1 / 0) as result:
        result()
    with pytest.raises(LostError, match="SystemExit: 3"), forked(lambda: sys.exit(3)) as result:
        result()
    with pytest.raises(GemmgenError, match="no-scratch"), forked(refused) as result:
        result()
    with pytest.raises(LostError, match="no message"), forked(lambda: os._exit(3)) as result:
        result()
    with pytest.raises(LostError, match="signal 9"), forked(lambda: os.kill(os.getpid(), 9)) as result:
        result()


def test_a_child_that_nobody_waits_for_is_ended() -> None:
    reading, writing = os.pipe()

    def waits() -> None:
        os.write(writing, str(os.getpid()).encode())
        time.sleep(600)

    with forked(waits):
        child = int(os.read(reading, 32))
        assert is_there(child)
    assert not is_there(child)
    os.close(reading)
    os.close(writing)


def test_a_child_may_start_children() -> None:
    def nested() -> str:
        with forked(lambda: "text") as result:
            return result()

    with forked(nested) as result:
        assert result() == "text"


def test_a_child_ends_with_its_parent_and_does_not_go_on_as_one(tmp_path: Path) -> None:
    worked, went_on = tmp_path / "worked", tmp_path / "went on"

    def work() -> None:
        time.sleep(2)
        worked.touch()

    def orphaning() -> None:
        with forked(work):
            os._exit(0)
        went_on.touch()

    with pytest.raises(LostError), forked(orphaning) as result:
        result()
    time.sleep(3)
    assert not worked.exists()
    assert not went_on.exists()


def test_a_process_that_is_lost_costs_no_other_one() -> None:
    reading, writing = os.pipe()

    def waits() -> bytes:
        return os.read(reading, 1)

    with forked(waits) as one, forked(os.abort) as two:
        with pytest.raises(LostError, match="signal 6"):
            two()
        os.write(writing, b"x")
        assert one() == b"x"
    os.close(reading)
    os.close(writing)


def test_the_end_of_a_process_kills_what_its_children_have_started() -> None:
    reading, writing = os.pipe()

    def starts() -> None:
        with subprocess.Popen(("sleep", "600")) as program:
            os.write(writing, str(program.pid).encode())

    with forked(starts):
        program = int(os.read(reading, 32))
        assert is_there(program)
    until_gone(program)
    os.close(reading)
    os.close(writing)


# --- a process that is kept


def refused() -> None:
    """Raise an error that the user can act on."""
    raise GemmgenError([Diagnostic("TMPDIR", "no-scratch", "no")])


def timed_out() -> None:
    """Raise what a limit of seconds raises too."""
    raise TimeoutError("its own")


def test_how_a_process_was_lost_can_be_handed_over() -> None:
    lost = pickle.loads(pickle.dumps(LateError(-9, "too late")))
    assert (type(lost), str(lost), lost.returncode) == (LateError, "too late", -9)
    assert str(pickle.loads(pickle.dumps(LostError(-9)))) == "signal 9"


@pytest.fixture
def nothing_kept() -> Generator[None]:
    """No process waits for a call, before and after a test."""
    end = gemmgen.processes.workers._end_idle  # pyright: ignore[reportPrivateUsage]
    end()
    yield
    end()


def until_gone(process: int) -> None:
    """Wait until a process is gone."""
    end = time.monotonic() + 30
    while is_there(process):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_there(process: int) -> bool:
    """Whether a process is still there."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # it has ended, and nobody has asked how


@pytest.mark.usefixtures("nothing_kept")
def test_one_process_runs_so_many_calls_and_then_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmgen.processes.workers.MOST_CALLS", 3)
    first, *others = [call_in_worker(os.getpid) for _ in range(6)]
    assert others[:2] == [first, first]
    assert others[2] != first
    assert others[3:] == [others[2]] * 2
    assert not is_there(first)


@pytest.mark.usefixtures("nothing_kept")
def test_what_ends_its_process_is_told_and_the_next_call_gets_a_new_one() -> None:
    first = call_in_worker(os.getpid)
    with pytest.raises(LostError, match=r"^signal 6$") as lost:
        call_in_worker(os.abort)
    assert lost.value.returncode == -signal.SIGABRT
    with pytest.raises(LostError, match=r"^no message$") as lost:
        call_in_worker(partial(os._exit, 3))
    assert lost.value.returncode == 3
    second = call_in_worker(os.getpid)
    with pytest.raises(LateError, match=r"^no answer within 0\.1 seconds$"):
        call_in_worker(partial(time.sleep, 60), 0.1)
    with pytest.raises(LostError, match="TimeoutError: its own"):
        call_in_worker(timed_out, 60)
    third = call_in_worker(os.getpid)
    os.kill(third, signal.SIGKILL)  # while nobody waits for it
    fourth = call_in_worker(os.getpid)
    assert len({first, second, third, fourth}) == 4
    assert [is_there(process) for process in (first, second, third, fourth)] == [False, False, False, True]


@pytest.mark.usefixtures("nothing_kept")
def test_a_call_sees_the_environment_as_it_is_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value in ("one", "two"):
        monkeypatch.setenv("GEMMGEN_OF_THIS_TEST", value)
        assert call_in_worker(partial(os.getenv, "GEMMGEN_OF_THIS_TEST")) == value
    monkeypatch.delenv("GEMMGEN_OF_THIS_TEST")
    assert call_in_worker(partial(os.getenv, "GEMMGEN_OF_THIS_TEST")) is None
    monkeypatch.chdir(tmp_path)
    assert call_in_worker(os.getcwd) == str(tmp_path)


@pytest.mark.usefixtures("nothing_kept")
def test_it_keeps_no_pipe_open_and_prints_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    call_in_worker(partial(subprocess.run, ("echo", "to nobody"), check=True))
    os.close(writing)
    assert os.read(reading, 1) == b""  # would wait for ever
    os.close(reading)
    for text in ("one", "two"):
        command = ("sh", "-c", f"echo {text}; echo not {text} >&2")
        ran = run_in_worker(partial(subprocess.run, command, check=True), tmp_path, {}, 60)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{text}\n", f"not {text}\n")
    ran = run_in_worker(partial(int, "x"), tmp_path, {}, 60)
    assert ran.returncode == 1
    assert "ValueError: invalid literal" in ran.stderr
    for lost, status in ((partial(os._exit, 0), 1), (partial(os._exit, 3), 3), (os.abort, -signal.SIGABRT)):
        assert run_in_worker(lost, tmp_path, {}, 60).returncode == status
    call_in_worker(partial(print, "to nobody"))
    command = ("sh", "-c", "readlink /proc/$PPID/fd/0 /proc/$PPID/fd/1 /proc/$PPID/fd/2")
    places = call_in_worker(partial(subprocess.run, command, capture_output=True, text=True, check=True))
    assert places.stdout.split() == ["/dev/null"] * 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("nothing_kept")
def test_a_fork_has_processes_of_its_own() -> None:
    kept = call_in_worker(os.getpid)
    with forked(lambda: (call_in_worker(os.getpid), call_in_worker(os.getpid))) as result:
        first, second = result()
    assert first == second != kept
    until_gone(first)  # it ends with the fork
    assert call_in_worker(os.getpid) == kept


@pytest.mark.usefixtures("nothing_kept")
def test_at_the_end_one_that_waits_is_not_waited_for() -> None:
    def ending() -> bool:
        kept = call_in_worker(os.getpid)
        discard()
        return is_there(kept)

    with forked(ending) as result:
        assert not result()


@pytest.mark.usefixtures("nothing_kept")
def test_a_kernel_of_a_module_that_has_changed_since_is_compiled_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", "")
    in_kept_only: list[bool] = []
    compiled = ttgir._in_kept  # pyright: ignore[reportPrivateUsage]

    def watched(specialized: object) -> str | None:
        text = compiled(specialized)  # pyright: ignore[reportArgumentType]
        in_kept_only.append(text is not None)
        return text

    monkeypatch.setattr(ttgir, "_in_kept", watched)
    path = tmp_path / "kernel.py"
    source = module_file("h100_bf16").read_text()
    stages = "STAGES = gl.constexpr("
    assert source.count(stages) == 1
    path.write_text(source)
    module = import_generated(path)
    assert launch(module, (128, 256, 64), schedules=("lazy",))[0].findings == ()
    path.write_text(source.replace(stages, f"{stages}1 + "))
    assert launch(module, (128, 256, 64), schedules=("lazy",))[0].findings == ()
    path.unlink()
    assert launch(module, (128, 256, 64), schedules=("lazy",))[0].findings == ()
    assert in_kept_only == [True, False, False]


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("lost", [True, False])
def test_a_process_that_is_kept_has_no_say_against_a_kernel(
    monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """What earlier kernels have left there must not count: a fork compiles what it refuses, or dies of."""

    def refusing(*_: object) -> None:
        if lost:
            raise LostError(-signal.SIGKILL)

    monkeypatch.setenv("GEMMGEN_CACHE_DIR", "")
    monkeypatch.setattr(ttgir, "call_in_worker", refusing)
    result, found, expected = launch(
        import_generated(module_file("h100_bf16")), (128, 256, 64), schedules=("lazy",)
    )
    assert result.findings == ()
    assert found.equal(expected)


FORKED_UNDER_A_SIGNAL = """
import os, signal, sys
from gemmgen.processes.forking import LostError, forked

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
try:
    with forked(lambda: 1) as result:
        result()
except LostError:
    print("lost")
print(*signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
"""A program whose child gets a signal before it has handlers of its own; it prints the signals held back."""


def test_a_signal_within_a_fork_ends_the_child_without_the_handlers_of_its_parent() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED_UNDER_A_SIGNAL], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "lost\n\n", "")
