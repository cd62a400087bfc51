"""The simulator computes what the device computes of each part of the language."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from gluonsim import Result, simulate

language: Any = importlib.import_module("kernels.language")


def ran(kernel: Any, *args: Any, grid: Any = 1, target: str = "h100", **keywords: Any) -> Result:
    """Return the result of a launch; the schedules are few, since nothing here is asynchronous."""
    return simulate(kernel, target, schedules=("lazy", "random"))[grid](*args, **keywords)


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-8, 1e-3, 1e10, -2.5e-12])
def test_constants_have_exponents(eps: float) -> None:
    x, d = torch.randn(128), torch.zeros(128)
    assert not ran(language.rms_norm_kernel, x, d, eps=eps).findings
    torch.testing.assert_close(d, x * torch.rsqrt((x * x).mean() + eps), rtol=1e-6, atol=0)
