"""The linears of a DeepSeek-V3 layer: generated kernels, torch's own, and a dequantised reference.

Each is a call `linears(name, x)`, where `x` has e4m3 values with a scale for 128 of them. An up projection is
a call `linears.up(name, x)`, which returns such values too, as the down projection reads them. The names are:

    qkv_a          both projections that read x: the columns of q_a, then of kv_a
    q_b, kv_b      the projections of the latent vectors of Q, and of K and V
    o              the output projection of the attention, plus `c`
    shared_up      of the shared expert: silu(x @ gate) * (x @ up)
    shared_down    of the shared expert: x @ down, plus `c`
    experts_up     of each expert for its rows: silu(x @ gate) * (x @ up)
    experts_down   of each expert for its rows: x @ down, times `row_scale`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from examples.deepseek.checkpoint import BLOCK, LARGEST, Weight

MOST_DECODE_TOKENS = 64
"""Most tokens of a call that the kernels for decoding compute; those for prefill compute larger calls."""
GATED = ("shared_up", "experts_up")
"""The linears whose weight has the rows of gate, then of up."""
Matmul = Callable[..., Any]
"""The `matmul` of a generated module: returns D, or D and its scales."""


@dataclass(frozen=True)
class Quantised:
    """Activations in e4m3 with a scale for each row and 128 columns."""

    values: Tensor
    """e4m3 [rows, K]."""
    scales: Tensor
    """fp32 [rows, ceil(K / 128)], contiguous along rows; each block of K begins at a multiple of 16 bytes."""

    def __getitem__(self, rows: Tensor) -> Quantised:
        """Return some rows by their numbers, int64."""
        return Quantised(self.values[rows], by_blocks(self.scales[rows]))


class Linears(Protocol):
    """The linears of a layer."""

    def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Tensor:
        """Return the result [rows, N] of a linear.

        A linear may have operands: `c` [rows, N] is added, `row_scale` [rows] multiplies rows, and `offs`,
        int32 [experts], has for each expert the end of its rows.
        """
        ...

    def up(self, name: str, x: Quantised, **operands: Tensor) -> Quantised:
        """Return the result of an up projection with its gate, in e4m3."""
        ...


def by_blocks(scales: Tensor) -> Tensor:
    """Return scales [rows, blocks of K] as the kernels read them: contiguous along rows, in 16-byte units."""
    rows, blocks = scales.shape
    out = scales.new_zeros(blocks, -(-rows // 4) * 4)[:, :rows]
    return out.copy_(scales.T).T


def quantise(x: Tensor) -> Quantised:
    """Return activations [rows, K] in e4m3 with a scale for 128 elements of a row.

    The largest of these elements becomes the largest e4m3 number. The last block of a row may be shorter.
    """
    rows, k = x.shape
    blocks = -(-k // BLOCK)
    padded = functional.pad(x, (0, blocks * BLOCK - k)).view(rows, blocks, BLOCK)
    # A block of zeros has a scale above zero.
    scales = padded.abs().amax(2).float().clamp_min(2.0**-100) / LARGEST
    values = (padded / scales[..., None]).view(rows, -1)[:, :k]
    return Quantised(values.to(torch.float8_e4m3fn).contiguous(), by_blocks(scales))


def unquantised(x: Tensor) -> Quantised:
    """Return activations [rows, K] as they are, with scales of 1: for a reference of the format's error."""
    return Quantised(x, torch.ones(len(x), -(-x.shape[1] // BLOCK), device=x.device))


@dataclass(frozen=True)
class Generated:
    """The linears from generated kernels."""

    weights: Mapping[str, Weight]
    matmuls: Mapping[str, Matmul]
    """The `matmul` of the module of each linear."""

    def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Any:
        """Return the result [rows, N] of a linear in bf16; of some up projections e4m3 and its scales."""
        weight = self.weights[name]
        return self.matmuls[name](
            x.values, weight.values.mT, a_scale=x.scales, b_scale=weight.scales, **operands
        )

    def up(self, name: str, x: Quantised, **operands: Tensor) -> Quantised:
        """Return the result of an up projection: as the kernel quantised it, or quantised by torch."""
        h = self(name, x, **operands)
        return Quantised(*h) if isinstance(h, tuple) else quantise(h)


# --- the reference


def dequantised(values: Tensor, scales: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Return e4m3 values [M, K] as numbers: a scale is of some rows, and of 128 columns."""
    m, k = values.shape
    repeated = scales.to(dtype).repeat_interleave(rows, 0)[:m].repeat_interleave(BLOCK, 1)[:, :k]
    return values.to(dtype) * repeated


@dataclass(frozen=True)
class Reference:
    """The linears of the dequantised operands, in fp64 and without kernels of fp8."""

    weights: Mapping[str, Weight]
    quantise: Callable[[Tensor], Quantised] = quantise
    """How the results of up projections are quantised."""

    def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Tensor:
        """Return the result [rows, N] of a linear, without any rounding to a smaller type."""
        a = dequantised(x.values, x.scales, 1, torch.float64)
        d = torch.cat([rows @ weight.T for rows, weight in self.groups(name, a, operands.get("offs"))])
        if name in GATED:
            gate, up = d.chunk(2, dim=1)
            d = functional.silu(gate) * up
        if "row_scale" in operands:
            d *= operands["row_scale"][:, None]
        return d + operands["c"] if "c" in operands else d

    def up(self, name: str, x: Quantised, **operands: Tensor) -> Quantised:
        """Return the result of an up projection, which is rounded once, to e4m3."""
        return self.quantise(self(name, x, **operands))

    def groups(self, name: str, a: Tensor, offs: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows of each weight [N, K] of a linear, and the weight as numbers."""
        weight = self.weights[name]
        if offs is None:
            yield a, dequantised(weight.values, weight.scales, BLOCK, torch.float64)
            return
        ends = offs.tolist()
        for expert, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if end > first:
                yield (
                    a[first:end],
                    dequantised(weight.values[expert], weight.scales[expert], BLOCK, torch.float64),
                )


# --- torch's own kernels


def bf16_weights(weight: Weight) -> Tensor:
    """Return the weights of all experts [experts, N, K] in bf16."""
    made = torch.empty(weight.values.shape, dtype=torch.bfloat16, device=weight.values.device)
    for out, values, scales in zip(made, weight.values, weight.scales, strict=True):
        out.copy_(dequantised(values, scales, BLOCK, torch.float32))
    return made


ROWS_OF_SCALED_MM = 8
"""`scaled_mm` gets a multiple of this many rows of A.

cuBLAS refuses a single row with scales of blocks. benchmarks/blockscale/h200_blocks.jsonl has these refusals,
and times of 8 rows.
"""


def whole_rows(x: Quantised) -> Quantised:
    """Return activations as `scaled_mm` needs them: with rows of zeros at the end, and scales by columns."""
    rows = -(-len(x.values) // ROWS_OF_SCALED_MM) * ROWS_OF_SCALED_MM
    values = torch.zeros(rows, x.values.shape[1], device=x.values.device).to(x.values.dtype)
    scales = x.scales.new_ones(x.scales.shape[1], rows).T
    values[: len(x.values)], scales[: len(x.scales)] = x.values, x.scales
    return Quantised(values, scales)


@dataclass(frozen=True)
class TorchLinears:
    """The linears from torch, by one of its calls.

    For dense linears `scaled_mm` with the same scales, or `matmul` in bf16. For experts `grouped_mm` in bf16:
    torch has no kernel of groups with scales of blocks.
    """

    weights: Mapping[str, Weight]
    experts: Mapping[str, Tensor]
    """The weights of `experts_up` and `experts_down` in bf16, as `bf16_weights` returns them."""

    def calls(self, name: str) -> tuple[str, ...]:
        """Return the calls of torch that compute a linear, the one with the fewest bytes first."""
        return ("grouped_mm",) if name in self.experts else ("scaled_mm", "matmul")

    def prepared(
        self,
        name: str,
        x: Quantised,
        *,
        call: str = "",
        c: Tensor | None = None,
        offs: Tensor | None = None,
        row_scale: Tensor | None = None,
    ) -> Callable[[], Tensor]:
        """Return a linear by a call of torch, by default the first one, whose operands are ready for it."""
        call = call or self.calls(name)[0]
        if call == "grouped_mm":
            assert offs is not None
            product = self.grouped(name, x, offs)
        else:
            product = self.scaled(name, x) if call == "scaled_mm" else self.in_bf16(name, x)

        def linear() -> Tensor:
            d = product()
            if name in GATED:
                gate, up = d.chunk(2, dim=1)
                d = functional.silu(gate) * up
            if row_scale is not None:
                d = d * row_scale.to(d.dtype)[:, None]
            return d if c is None else d + c

        return linear

    def scaled(self, name: str, x: Quantised) -> Callable[[], Tensor]:
        """Return the call of a product [rows, N] of fp8 operands with their scales."""
        weight, scaling, a = self.weights[name], functional.ScalingType, whole_rows(x)
        scaled_mm: Any = functional.scaled_mm
        # The scales of 128 x 128 have as many rows as the kernels read, a multiple of 4.
        b_scale, of_a, of_b = weight.scales.T, scaling.BlockWise1x128, scaling.BlockWise128x128
        return lambda: scaled_mm(a.values, weight.values.T, a.scales, of_a, b_scale, of_b)[: len(x.values)]

    def in_bf16(self, name: str, x: Quantised) -> Callable[[], Tensor]:
        """Return the call of a product [rows, N] of the dequantised operands in bf16."""
        weight = self.weights[name]
        rows = dequantised(x.values, x.scales, 1, torch.float32).bfloat16()
        columns = dequantised(weight.values, weight.scales, BLOCK, torch.float32).bfloat16()
        return lambda: rows @ columns.T

    def grouped(self, name: str, x: Quantised, offs: Tensor) -> Callable[[], Tensor]:
        """Return the call of the product [rows, N] of each row, in bf16, with the weight of its expert."""
        rows = dequantised(x.values, x.scales, 1, torch.float32).bfloat16()
        return lambda: functional.grouped_mm(rows, self.experts[name].mT, offs=offs)
