"""Kernels of this CPU as modules that integrations take, and layers that such kernels replace."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemmgen.integrations.quantize import dequantized_weight


def kernel_on_the_cpu(name: str, matmul: Callable[..., Tensor], *inputs: str, **computes: Any) -> Any:
    """Return what stands for a module whose `matmul` is a function; `inputs` are those besides A and B."""
    of_all = {"inputs": ("a", "b", *inputs), "epilogue": tuple({"column_bias"} & {*inputs}), **computes}
    return SimpleNamespace(__name__=name, matmul=matmul, arrange_scales=as_it_is, COMPUTES=of_all)


def as_it_is(_: str, scales: Tensor) -> Tensor:
    """Arrange scales for a kernel that reads any."""
    return scales


class Fp8Linear(nn.Module):
    """A layer as models of checkpoints with scales of blocks have it."""

    def __init__(self, n: int = 144, k: int = 272, *, bias: bool = False, device: str = "cpu") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn).to(device)
        scales = (torch.rand(-(-n // 128), -(-k // 128), generator=generator) + 0.5).to(device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale_inv = nn.Parameter(scales, requires_grad=False)
        self.block_size = [128, 128]
        self.bias = nn.Parameter(torch.zeros(n).bfloat16(), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with the dequantised weight, and the bias."""
        weight = dequantized_weight(self.weight, self.weight_scale_inv, x.dtype)
        return functional.linear(x, weight, self.bias)
