"""A kernel of Triton's own language sums as a Gluon kernel does: their results compare bit for bit."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from triton.experimental.gluon.language import NVMMASharedLayout  # pyright: ignore[reportMissingTypeStubs]
from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
    TensorDescriptor as TensorDescriptor_,
)

from gluonsim import Result, gpu_of_target
from gluonsim.programs.pretended import pretended

pytestmark = pytest.mark.simulator

kernels: Any = importlib.import_module("kernels.twins")
TensorDescriptor: Any = TensorDescriptor_
K = 256
BITS = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float8_e4m3fn: 8}


@pytest.mark.parametrize("dtype", BITS)
def test_a_twin_in_tritons_language_has_the_same_bits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, K, generator=generator).to(dtype) for _ in range(2))
    step = 1024 // BITS[dtype]
    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=BITS[dtype], rank=2)
    one, other = torch.zeros(64, 64), torch.zeros(64, 64)
    results: list[Result] = []
    with pretended(gpu_of_target("h100"), results.append):
        described = (TensorDescriptor.from_tensor(tensor, [64, step], layout) for tensor in (a, b))
        kernels.gluon_kernel[(1,)](*described, one, K, 256 // BITS[dtype], num_warps=4)
        kernels.triton_kernel[(1,)](a, b, other, K, step)
    assert [result.findings for result in results] == [()]
    assert one.equal(other)
    torch.testing.assert_close(one.double(), a.double() @ b.double().T, rtol=1e-2, atol=5e-2)


def test_a_product_of_fp32_keeps_its_bits_if_it_is_told_to() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    d = torch.zeros(64, 64)
    with pretended(gpu_of_target("h100"), lambda _: None):
        kernels.exact_kernel[(1,)](a, b, d)
    torch.testing.assert_close(d.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
