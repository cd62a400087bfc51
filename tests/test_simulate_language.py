"""The simulator computes what the device computes of each part of the language."""

from __future__ import annotations

import functools
import importlib
import linecache
from typing import Any

import pytest
import torch

from gemmgen.errors import GemmgenError
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


def test_reductions_have_several_operands_and_any_function() -> None:
    x = torch.randint(-9, 9, (64, 64)).float()
    index, parity = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    mean, variance = torch.zeros(64), torch.zeros(64)
    assert not ran(language.reductions_kernel, x, index, mean, variance, parity).findings
    assert index.equal(x.argmax(1).int())
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(variance, x.var(1, correction=0))
    wanted = functools.reduce(torch.bitwise_xor, x.view(torch.int32).unbind(1))
    assert parity.equal(wanted)


def test_scans_have_several_operands_in_their_order() -> None:
    a, b, d, whole = torch.rand(128), torch.randn(128), torch.zeros(128), torch.zeros(1)
    assert not ran(language.recurrence_kernel, a, b, d, whole).findings
    state, wanted = torch.zeros(()), list[torch.Tensor]()
    for factor, addend in zip(a, b, strict=True):
        state = factor * state + addend
        wanted.append(state)
    torch.testing.assert_close(d, torch.stack(wanted))
    torch.testing.assert_close(whole[0], state)


def test_tensors_are_gathered_counted_clamped_and_multiplied_to_the_upper_half() -> None:
    x, index = torch.randn(128), torch.randint(0, 128, (128,), dtype=torch.int32)
    x[5] = torch.nan
    gathered, clamped = torch.zeros(128), torch.zeros(128)
    counts, high = torch.zeros(64, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    assert not ran(language.elementwise_kernel, x, index, gathered, counts, clamped, high).findings
    torch.testing.assert_close(gathered, x[index.long()], rtol=0, atol=0, equal_nan=True)
    assert counts.equal(torch.bincount(index[index < 64], minlength=64).int())
    assert clamped.equal(x.nan_to_num(-0.5).clamp(-0.5, 0.5))  # without propagation, the lower bound for NaN
    products = [((int(i) - 7) % 2**32 * 0xDEADBEEF) >> 32 for i in index]
    assert [int(value) % 2**32 for value in high] == products


def test_an_index_beyond_its_tensor_is_refused_with_its_line() -> None:
    with pytest.raises(GemmgenError, match=r"indices of 1 to 128 into 128 elements") as error:
        ran(language.gather_beyond_kernel, torch.randn(128), torch.zeros(128))
    assert "gl.gather" in linecache.getline(language.__file__, error.value.diagnostics[0].line or 0)


def test_four_bits_become_floats_the_low_ones_first() -> None:
    x, d = torch.randint(0, 256, (64, 64), dtype=torch.uint8), torch.zeros(64, 128, dtype=torch.bfloat16)
    assert not ran(language.fp4_kernel, x, d).findings
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    wanted = torch.stack([values[(x & 15).long()], values[(x >> 4).long()]], -1).reshape(64, 128)
    assert d.equal(wanted.bfloat16())


def test_packed_arithmetic_rounds_once() -> None:
    x, y, z = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64, 64)
    x[0, 0] = torch.nan
    sums, halves = torch.zeros(64, 64), torch.zeros(64, 64, dtype=torch.float16)
    assert not ran(language.packed_kernel, x, y, z, sums, halves, target="b200").findings
    wanted = (x + y).double() * (y * 0.5).double() + (z - x).double()
    torch.testing.assert_close(sums, wanted.float(), rtol=0, atol=0, equal_nan=True)
    assert halves.equal(torch.fmax(torch.fmin(x.half(), y.half()), z.half()))
