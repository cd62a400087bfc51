"""Kernels without a fault show none, in a hundred random schedules of each family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import simulate_blackwell_kernels
from simulate_blackwell_launch import scaled
from simulate_launch import launch
from torch import Tensor

from gemmgen.module import import_generated
from gemmgen.simulate import Result

GENERATED = Path(__file__).parent.parent / "generated"
SEEDS = 100
AT_A_TIME = 25
"""So that the seeds of a family spread over the processes of a test run."""

Ran = tuple[Result, Tensor, Tensor]


def one_cta(schedules: tuple[str, ...], seed: int) -> Ran:
    # Three tiles of 128 x 256 in one program, four steps of 64 in each: three laps of four stages.
    module = import_generated(GENERATED / "h100_bf16.py")
    return launch(module, (360, 248, 248), schedules=schedules, seed=seed)


def two_ctas(schedules: tuple[str, ...], seed: int) -> Ran:
    # As for one, with tiles of 256 x 256.
    module = import_generated(GENERATED / "h100_bf16_cluster2.py")
    return launch(module, (720, 248, 248), schedules=schedules, seed=seed)


def scaled_pair(schedules: tuple[str, ...], seed: int) -> Ran:
    # Six tiles of 256 x 128, two steps of 128 in each: three turns of both accumulators and of both answers
    # where one program takes over all tiles, and four laps of three stages.
    return scaled(simulate_blackwell_kernels, (768, 256, 256), schedules=schedules, seed=seed)


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
