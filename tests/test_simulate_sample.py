"""Launches of many programs: a sample of them can run, and a long run tells how far it is."""

# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
from math import prod
from typing import Any

import pytest
import torch
from kernels.atomics import announce_kernel
from kernels.copies import copy_kernel, descriptors, scaled_kernel

from gemmgen.errors import GemmgenError
from gluonsim import Progress, Result, simulate
from gluonsim import progress as progress_module
from gluonsim.policies import sampled

pytestmark = pytest.mark.simulator

BLOCK = 128
PROGRAMS = 40


def scaled(out: torch.Tensor, programs: int | None, **options: Any) -> Result:
    """The result of a launch that scales a vector by 3, a block for each program."""
    count = out.numel()
    source = torch.arange(count, dtype=torch.float32)
    launch = simulate(scaled_kernel, programs=programs, **options)[count // BLOCK,]
    return launch(source, out, count, 3.0, BLOCK, num_warps=4)


def written(out: torch.Tensor) -> list[int]:
    """The numbers of the programs that have stored their block."""
    whole = (~out.reshape(-1, BLOCK).isnan()).all(1)
    return [number for number in range(len(whole)) if whole[number]]


def nothing() -> torch.Tensor:
    return torch.full((PROGRAMS * BLOCK,), float("nan"))


# --- samples


@pytest.mark.parametrize("size", [1, 2, 3, 17, PROGRAMS - 1])
def test_a_sample_runs_the_first_the_last_and_others_in_between(size: int) -> None:
    out = nothing()
    result = scaled(out, size)
    ran = written(out)
    assert len(ran) == size == result.programs
    assert (ran[0], ran[-1]) == (0, 0 if size == 1 else PROGRAMS - 1)
    assert result.is_sample
    assert result.findings == ()


def test_a_seed_chooses_the_sample() -> None:
    assert list(sampled(1000, 9, 5)) == list(sampled(1000, 9, 5)) != list(sampled(1000, 9, 6))
    assert len({*sampled(1000, 9, 5)}) == 9


@pytest.mark.parametrize("size", [None, PROGRAMS, 10 * PROGRAMS])
def test_as_many_programs_as_the_grid_has_are_no_sample(size: int | None) -> None:
    out = nothing()
    result = scaled(out, size)
    assert written(out) == list(range(PROGRAMS))
    assert (result.programs, result.is_sample) == (PROGRAMS, False)
    assert "sample" not in str(result)


def test_a_result_says_that_it_is_a_sample_and_of_how_many() -> None:
    result = scaled(nothing(), 4, schedules=("lazy",))
    assert result.headline == (
        "scaled_kernel, grid 40 x 1 x 1: a sample of 4 of its 40 programs, 1 schedule, 0 findings"
    )
    told = json.loads(result.json())
    assert (told["programs"], told["sample"], prod(told["grid"])) == (4, True, PROGRAMS)


def test_what_is_expected_counts_where_the_sample_has_written() -> None:
    right = torch.arange(PROGRAMS * BLOCK, dtype=torch.float32) * 3
    assert scaled(nothing(), 4, expect={"out_ptr": right}).findings == ()
    wrong = right.clone()
    wrong[-1] += 1  # of the last program, which every sample has
    (finding,) = scaled(nothing(), 4, expect={"out_ptr": wrong}).findings
    assert finding.text.startswith("1 of 5,120 elements are wrong")
    (all_of_them,) = scaled(nothing(), None, expect={"out_ptr": wrong}).findings
    assert all_of_them == finding


def test_programs_that_may_wait_for_each_other_are_not_sampled() -> None:
    x, flags = torch.zeros(4 * BLOCK), torch.zeros(4, dtype=torch.int32)
    with pytest.raises(GemmgenError, match=r"no-sample.*its programs may wait for each other"):
        simulate(announce_kernel, programs=2)[4,](x, flags, num_warps=4)


def test_a_sample_restores_nothing_and_has_a_program() -> None:
    with pytest.raises(GemmgenError, match=r"only all programs together restore"):
        scaled(nothing(), 2, restored=("out_ptr",))
    with pytest.raises(GemmgenError, match=r"programs is 0: a sample has at least one"):
        scaled(nothing(), 0)


# --- progress


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """Collects progress, in a simulator that tells it at each step."""
    monkeypatch.setattr(progress_module, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress_module, "MOST_SECONDS", 0.0)
    return []


def test_a_long_run_tells_the_programs_that_are_done_of_all(told: list[Progress]) -> None:
    scaled(nothing(), None, schedules=("lazy", "random"), progress=told.append)
    done = [step.done for step in told]
    assert sorted(set(done)) == list(range(PROGRAMS))
    assert done == sorted(done)
    assert {step.programs for step in told} == {PROGRAMS}
    assert str(told[-1]).startswith("scaled_kernel: 39 of 40 programs, schedule 1 of 2 (lazy), ")


def test_a_long_run_tells_its_schedule(told: list[Progress]) -> None:
    source = torch.zeros(64, 32)
    arguments = descriptors(source, torch.empty_like(source))
    launch = simulate(copy_kernel, schedules=("lazy", "eager", "random"), progress=told.append)[1,]
    launch(*arguments, 4, True, num_warps=4)
    schedules = dict.fromkeys((step.number, step.schedule, step.schedules) for step in told)
    assert list(schedules) == [(1, "lazy", 3), (2, "eager", 3), (3, "random", 3)]


def test_a_sample_tells_its_own_programs(told: list[Progress]) -> None:
    scaled(nothing(), 3, schedules=("lazy",), progress=told.append)
    assert {(step.done, step.programs) for step in told} == {(0, 3), (1, 3), (2, 3)}


def test_a_short_run_tells_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[Progress] = []
    scaled(nothing(), None, progress=told.append)
    assert told == []
    assert capfd.readouterr() == ("", "")


def test_nothing_is_told_unless_it_is_asked_for(
    told: list[Progress], capfd: pytest.CaptureFixture[str]
) -> None:
    scaled(nothing(), None)
    assert capfd.readouterr() == ("", "")


def test_lines_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress_module, "perf_counter", lambda: now)
    told: list[Progress] = []
    watch = progress_module.Watch(told.append, "kernel", 8, ("lazy",))
    for _ in range(3000):
        watch.look(1)
        now += 0.125
    assert [round(step.seconds) for step in told] == [5, 10, 20, 40, 80, 140, 200, 260, 320]
    assert str(told[0]) == "kernel: 1 of 8 programs, schedule 1 of 1 (lazy), 5 s of about 40 s"


def test_nothing_is_estimated_before_a_program_has_ended() -> None:
    begun = Progress("kernel", 0, 8, "lazy", 1, 2, 5.0)
    assert begun.estimated_seconds is None
    assert str(begun) == "kernel: 0 of 8 programs, schedule 1 of 2 (lazy), 5 s"
    assert Progress("kernel", 0, 8, "eager", 2, 2, 5.0).estimated_seconds == 10.0
    assert Progress("kernel", 4, 8, "eager", 2, 2, 6.0).estimated_seconds == 8.0


@pytest.mark.usefixtures("told")
def test_a_launch_that_takes_too_long_ends_with_an_estimate() -> None:
    with pytest.raises(GemmgenError) as refused:
        scaled(nothing(), None, progress=progress_module.at_most(0.0))
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "too-long"
    assert diagnostic.message.startswith("the launch takes more than 0 s: scaled_kernel: ")
    scaled(nothing(), None, progress=progress_module.at_most(1e6))
