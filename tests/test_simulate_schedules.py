"""Kernels without a fault show none, in a hundred random schedules of each family; and what that costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernels import blackwell, operations
from kernels.blackwell_launch import scaled
from kernels.launch import launch
from modules import module_file
from torch import Tensor
from work import calls_of

from gemmgen.module import import_generated
from gemmgen.problem import Shape
from gluonsim import Result, run
from gluonsim.findings import Findings

pytestmark = pytest.mark.simulator

SEEDS = 100
AT_A_TIME = 25
"""So that the seeds of a family spread over the processes of a test run."""

Ran = tuple[Result, Tensor, Tensor]


def one_cta(schedules: tuple[str, ...], seed: int) -> Ran:
    # Three tiles of 128 x 256 in one program, four steps of 64 in each: three laps of four stages.
    module = import_generated(module_file("h100_bf16"))
    return launch(module, (360, 248, 248), schedules=schedules, seed=seed)


def two_ctas(schedules: tuple[str, ...], seed: int) -> Ran:
    # As for one, with tiles of 256 x 256.
    module = import_generated(module_file("h100_bf16_cluster2x1"))
    return launch(module, (720, 248, 248), schedules=schedules, seed=seed)


def scaled_pair(schedules: tuple[str, ...], seed: int) -> Ran:
    # Six tiles of 256 x 128, two steps of 128 in each: three turns of both accumulators and of both answers
    # where one program takes over all tiles, and four laps of three stages.
    return scaled(blackwell, (768, 256, 256), schedules=schedules, seed=seed)


@pytest.mark.sample(4)
@pytest.mark.parametrize("first_seed", range(0, SEEDS, AT_A_TIME))
@pytest.mark.parametrize("family", [one_cta, two_ctas, scaled_pair], ids=lambda family: family.__name__)
def test_a_kernel_without_a_fault_shows_none_in_a_hundred_random_schedules(
    family: Callable[[tuple[str, ...], int], Ran], first_seed: int
) -> None:
    result, found, expected = family(("random",) * AT_A_TIME, first_seed)
    assert result.findings == ()
    assert result.uncovered == ()
    assert result.deterministic
    assert found.equal(expected)


@pytest.mark.parametrize(
    ("kernel", "arguments", "runs"),
    [
        # What loads and stores only has one next step.
        ("early_return_kernel", (torch.ones(512), torch.zeros(512), 200), 1),
        # What copies in the background may end at any time.
        ("async_copy_arrive_kernel", (torch.ones(64, 64), torch.zeros(64, 64)), 5),
    ],
)
def test_where_there_is_nothing_to_choose_one_run_stands_for_all_schedules(
    kernel: str, arguments: tuple[object, ...], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Findings] = []
    begin = Findings.begin_run

    def counted(findings: Findings) -> None:
        begun.append(findings)
        begin(findings)

    monkeypatch.setattr(Findings, "begin_run", counted)
    result = run(
        getattr(operations, kernel), (1,), arguments, schedules=("lazy", "eager", "lifo", *["random"] * 2)
    )
    assert result.findings == ()
    assert result.deterministic
    assert len(result.schedules) == 5
    assert len(begun) == runs


@pytest.mark.sample(1)
@pytest.mark.parametrize("along", [(128, 256, 512), (512, 512, 64)], ids=["K", "tiles"])
def test_the_work_of_a_schedule_grows_with_its_steps_and_no_faster(along: Shape) -> None:
    module = import_generated(module_file("h100_bf16"))
    tile = (module.PROGRAM_TILE_M.value, module.PROGRAM_TILE_N.value, module.PROGRAM_TILE_K.value)
    assert tile == (128, 256, 64)
    m, n, k = along  # eight steps of K of one tile each

    def calls(steps: int) -> int:
        shape = (m, n, k * steps) if k > 64 else (m * steps, n, k)

        def simulate() -> None:
            result, _, _ = launch(module, shape, schedules=("lazy",))
            assert result.findings == ()

        return calls_of(simulate)

    one, two, three = calls(1), calls(2), calls(3)
    assert two - one < 40_000
    assert three - two < 1.1 * (two - one)
