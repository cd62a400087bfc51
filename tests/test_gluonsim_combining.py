"""Combine functions that make tensors: each element that is combined has its own."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from gluonsim import run

pytestmark = pytest.mark.simulator

kernels: Any = importlib.import_module("kernels.combining")


def numbers() -> torch.Tensor:
    return torch.randint(-4, 5, (64, 32), generator=torch.Generator().manual_seed(0)).float()


@pytest.mark.parametrize("scans", [False, True])
@pytest.mark.parametrize("how", ["split", "sum", "scan", "choice", "branch", "join", "columns", "many"])
def test_a_tensor_of_a_combine_function_is_each_elements_own(how: str, scans: bool) -> None:
    x, y = numbers(), torch.zeros(64, 32)
    wanted = x.cummax(1).values if how in ("choice", "branch") else x.cumsum(1)
    assert run(kernels.combining_kernel, (1,), (x, y, how, scans)).findings == ()
    assert y.equal(wanted) if scans else y[:, 0].equal(wanted[:, -1])


def test_a_pair_of_numbers_is_combined_as_one_tensor() -> None:
    x, y = numbers(), torch.zeros(2, 64)
    assert run(kernels.pairs_kernel, (1,), (x, y)).findings == ()
    assert y.equal(torch.stack([x.sum(1), 2 * x.sum(1)]))
