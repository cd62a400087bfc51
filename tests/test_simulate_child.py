"""The forked child that compiles for the simulator ends as a child, whatever becomes of its parent."""

from __future__ import annotations

import os
import signal

import pytest

from gemmgen.errors import GemmgenError
from gemmgen.simulate.ttgir import in_child, reply


def test_a_child_returns_the_text() -> None:
    assert in_child(lambda: "text") == "text"


def test_an_interrupt_ends_a_child_that_compiles() -> None:
    def interrupted() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "text"

    with pytest.raises(GemmgenError, match=r"Triton aborts on the kernel \(signal 2\)"):
        in_child(interrupted)


def test_a_child_whose_parent_has_gone_does_not_go_on_as_its_parent() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = os.fork()
    if child == 0:
        try:
            reply(lambda: "text", writing)
        finally:
            os._exit(1)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
