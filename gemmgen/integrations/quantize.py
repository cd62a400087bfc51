"""Activations as e4m3 with a scale for each row and 128 columns, as kernels with scales read them."""

from __future__ import annotations

from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from gemmgen.hardware.elements import LEAST_SCALED, MOST_SCALED

BLOCK: Final = 128
"""Columns of a row that share a scale."""
E4M3: Final = torch.float8_e4m3fn
LARGEST: Final = torch.finfo(E4M3).max
HALVES: Final = (torch.bfloat16, torch.float16)
"""Types of two bytes, whose numbers are numbers of fp32."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a tensor [..., K] of floats as e4m3 [..., K], and its scales [..., ceil(K / 128)] in fp32.

    A scale is the largest magnitude of its block divided by 448, and each element is multiplied by the
    inverse quotient and rounded to the nearest e4m3, of two to the even one. The largest magnitude counts as
    2^-100 at least and 2^127 at most, so that zeros stay zeros and infinities become 448. A NaN stays where
    it is, and the other elements of its block keep their scale. The product of an element and its scale is
    the element of `x` within one rounding. Kernels with computed scales of D follow the same rule.

    Rows of e4m3 begin at multiples of 128 bytes. All blocks of the rows of a matrix lie in memory as
    ``a_scale`` of a kernel: the scales of a block of K follow one another, and blocks begin at multiples of
    16 bytes. A vector [K] has [ceil(K / 128)] scales.

    Raises ValueError for a scalar.
    """
    if not x.dim():
        raise ValueError("x must have a dimension to quantise along, found a scalar")
    *rows, k = x.shape
    matrix: Tensor = x.flatten(0, -2) if rows else x.unsqueeze(0)
    if matrix.dtype not in HALVES:  # a copy of these in fp32 would be twice the bytes to read
        matrix = matrix.float()
    blocks = (k + BLOCK - 1) // BLOCK
    if k % BLOCK:
        matrix = cast(Any, functional).pad(matrix, (0, blocks * BLOCK - k))
    padded: Tensor = cast(Any, matrix).unflatten(1, (blocks, BLOCK))
    largest = padded.abs().nan_to_num(0.0, posinf=torch.inf).amax(2)
    magnitudes = largest.float().clamp(LEAST_SCALED, MOST_SCALED)
    # Tensors divide as IEEE 754 has it: with a number, torch may multiply by its rounded inverse.
    most = torch.full_like(magnitudes, LARGEST)
    # torch has no e4m3 beyond 448: without the clamp an infinity would become a NaN.
    scaled = (padded * (most / magnitudes)[..., None]).clamp(-LARGEST, LARGEST)
    # Rows keep their padding: Inductor of torch 2.13 computes wrong elements after the last whole block on a
    # CPU if rows follow one another without it.
    elements = scaled.flatten(1).to(E4M3)[:, :k]
    scales = _by_blocks(magnitudes / most)
    if not rows:
        return elements[0], scales[0]
    return elements.view(*rows, k), cast(Any, scales).unflatten(0, rows)


def _by_blocks(scales: Tensor) -> Tensor:
    """Return scales [M, blocks] with a block's scales one after the other, and blocks at whole 16 bytes."""
    m, blocks = scales.shape
    pitch = (m + 3) // 4 * 4
    if not torch.compiler.is_compiling():
        return scales.new_empty_strided((m, blocks), (1, pitch)).copy_(scales)
    # torch.export would guard M for a copy into padded rows, and for a slice of them.
    places = torch.arange(pitch, device=scales.device).clamp(max=m - 1)
    return scales.T.index_select(1, places).as_strided((m, blocks), (1, pitch))


def dequantized_weight(
    weight: Tensor, scales: Tensor, dtype: torch.dtype, extents: tuple[int, int] | None = None
) -> Tensor:
    """Return a weight [N, K] with a scale for each 128 x 128 elements as numbers of a type.

    `extents` are N and K, which a proxy of torch.fx does not tell.
    """
    n, k = extents or (weight.shape[0], weight.shape[1])
    wide = scales.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return (weight.float() * wide).to(dtype)
