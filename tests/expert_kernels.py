"""Kernels of experts on this CPU, and what they compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cpu_kernels import kernel_on_the_cpu
from modules import ROOT, made
from torch import Tensor, nn

from gemmgen.integrations.experts import GATES, Experts, ExpertTensors
from gemmgen.module import import_generated
from gemmgen.product import write

SILU, GPT_OSS = "silu(gate) * up", list(GATES)[3]
EXAMPLES = ROOT / "examples"
KERNELS = {
    "qwen3_moe": ("moe/specs/up_gather", "moe/specs/down_scatter"),
    "gpt_oss": ("gpt_oss/specs/gpt_oss_up", "gpt_oss/specs/gpt_oss_down"),
}
"""The specs of the kernels of a model, without the end that says for how many tokens."""
calls: list[str] = []
"""The names of the kernels of this CPU that were called."""


def groups_of(offs: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield each group and its rows."""
    first = 0
    for group, end in enumerate(map(int, offs)):
        yield group, slice(first, end)
        first = end


def up_kernel(gate: str = SILU, *, interleaved: bool = False, name: str = "up", least: int = 0) -> Any:
    """Return a kernel that gates groups of rows by an index, and refuses fewer than `least` of them."""

    def matmul(
        a: Tensor, b: Tensor, *, offs: Tensor, a_rows: Tensor, column_bias: Tensor | None = None
    ) -> Tensor:
        if len(a_rows) < least:
            raise ValueError(f"{name} is for {least} rows and more")
        calls.append(name)
        assert (offs.dtype, a_rows.dtype) == (torch.int32, torch.int32)
        d = torch.full((len(a_rows), b.shape[-1] // 2), math.nan, dtype=a.dtype)
        for group, rows in groups_of(offs):
            sums = a[a_rows[rows]].float() @ b[group].float()
            if column_bias is not None:
                sums = sums + column_bias[group].float()
            parts = (sums[:, ::2], sums[:, 1::2]) if interleaved else sums.chunk(2, 1)
            d[rows] = GATES[gate](*parts).to(a.dtype)
        return d

    bias = ["column_bias"] * ("column_bias" in gate)
    computes = {"interleaved": True} if interleaved else {}
    return kernel_on_the_cpu(name, matmul, *bias, "offs", "a_rows", epilogue=(gate,), **computes)


def down_kernel(*, bias: bool = False, name: str = "down") -> Any:
    """Return a kernel that multiplies groups and stores rows by an index."""

    def matmul(
        a: Tensor,
        b: Tensor,
        *,
        row_scale: Tensor,
        offs: Tensor,
        d_rows: Tensor,
        column_bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        calls.append(name)
        assert row_scale.dtype == torch.float32
        d = torch.full((len(a), b.shape[-1]), math.nan, dtype=a.dtype) if out is None else out
        for group, rows in groups_of(offs):
            sums = a[rows].float() @ b[group].float()
            if column_bias is not None:
                sums = sums + column_bias[group].float()
            d[d_rows[rows]] = (sums * row_scale[rows, None]).to(a.dtype)
        return d

    steps = (*["column_bias"] * bias, "row_scale")
    return kernel_on_the_cpu(name, matmul, *steps, "offs", "d_rows", epilogue=steps)


def silu_experts(**options: Any) -> Experts:
    return Experts(up_kernel(**options), down_kernel())


def gpt_oss_experts(*, interleaved: bool = True) -> Experts:
    return Experts(up_kernel(GPT_OSS, interleaved=interleaved), down_kernel(bias=True))


def generated_experts(name: str, folder: Path, *, k_major: bool = False) -> Experts:
    """Return generated kernels for few tokens of a model, written to a folder and imported.

    With `k_major`, the weights are K-contiguous whatever the specs say.
    """
    kernels: list[Any] = []
    for path in KERNELS[name]:
        spec = EXAMPLES / f"{path}_decode.yaml"
        if k_major:
            text = spec.read_text().replace(", major: mn", "")
            spec = folder / spec.name
            spec.write_text(text)
        kernels.append(import_generated(write(made(spec), folder)))
    return Experts(*kernels)


def tensors(tokens: int = 5, *, top_k: int = 2, experts: int = 4) -> ExpertTensors[Tensor]:
    draw = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    expert = torch.stack([torch.randperm(experts, generator=draw)[:top_k] for _ in range(tokens)])
    weight = torch.rand(tokens, top_k, generator=draw)
    return ExpertTensors(
        numbers(tokens, 16), expert, weight, numbers(experts, 16, 48), numbers(experts, 24, 16)
    )


def reference(call: ExpertTensors[Tensor]) -> Tensor:
    """Return the sum of each token's experts, pair by pair; experts without a number add nothing."""
    total = torch.zeros_like(call.x)
    for token, experts in enumerate(call.expert):
        for choice, expert in enumerate(map(int, experts)):
            if expert < len(call.gate_up):
                gate, up = (call.x[token] @ call.gate_up[expert]).chunk(2)
                h = nn.functional.silu(gate) * up
                total[token] += call.weight[token, choice] * (h @ call.down[expert])
    return total
