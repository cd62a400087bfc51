"""The forked child that compiles for the simulator ends as a child, whatever becomes of its parent."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from gemmgen.errors import GemmgenError
from gemmgen.scratch import LostError, forked
from gemmgen.simulate.ttgir import in_child


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
    with pytest.raises(LostError, match="no message"), forked(lambda: 1 / 0) as result:
        result()
    with pytest.raises(LostError, match="signal 9"), forked(lambda: os.kill(os.getpid(), 9)) as result:
        result()


def test_a_child_that_nobody_waits_for_is_ended() -> None:
    begin = time.monotonic()
    with forked(lambda: time.sleep(60)):
        pass
    assert time.monotonic() - begin < 30


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
