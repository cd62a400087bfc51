"""A D of 8-bit floats with computed scales: the rule that a kernel follows, and D as numbers again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from gemmgen.hardware.elements import LEAST_SCALED, MOST_SCALED
from gemmgen.numerics.encoding import TORCH_DTYPES, bits, pieces, poison, rounded
from gemmgen.numerics.matrices import ALIGNMENT_BYTES
from gemmgen.problem import Matmul

UNWRITTEN: Final = -1
"""The bits of an element of D before it is written: a NaN with a sign, which no conversion makes."""


def quantized(
    values: Tensor, vector: int, dtype: torch.dtype, scale_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return D [M, N] of a type of 8 bits and its scales [M, N / vector], by the rule of a kernel.

    The largest magnitude of a block, but at least LEAST_SCALED and at most MOST_SCALED, is divided by the
    largest number of the type: the scale. The elements are multiplied by the inverse quotient and rounded. A
    scale of ue8m0 is the least power of two that is at least the exact quotient.
    """
    blocks = values.float().view(len(values), values.shape[1] // vector, vector)
    # A NaN is no magnitude: the other elements of its block keep their scale.
    largest = blocks.abs().nan_to_num(0.0, posinf=math.inf).amax(2).clamp(LEAST_SCALED, MOST_SCALED)
    # Tensors divide as IEEE 754 has it: with a number, torch may multiply by its rounded inverse.
    most = torch.full_like(largest, torch.finfo(dtype).max)
    if scale_dtype == torch.float8_e8m0fnu:
        # The quotient is in [0.5, 1) * 2**exponent; a power of two, a little reduced, is the power itself.
        reduced = largest.double() / most.double() * (1 - 2.0**-40)
        power = torch.ldexp(torch.ones_like(reduced), torch.frexp(reduced).exponent).float()
        return rounded((blocks * (1 / power)[..., None]).flatten(1), dtype), power.to(scale_dtype)
    return rounded((blocks * (most / largest)[..., None]).flatten(1), dtype), largest / most


def dequantized_output(d: Tensor, scales: Tensor) -> Tensor:
    """Return D [..., N] of 8 bits with scales [..., blocks] as fp32 numbers."""
    found = torch.empty_like(d, dtype=torch.float32)
    for numbers, elements, of_blocks in pieces(found, d, scales):
        numbers.copy_(_dequantized(elements, of_blocks))
    return found


def _dequantized(d: Tensor, scales: Tensor) -> Tensor:
    vector = d.shape[-1] // max(1, scales.shape[-1])
    return d.float() * scales.float().repeat_interleave(vector, dim=-1)


def poisoned_outputs(problem: Matmul, extents: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a poisoned D of these extents, and poisoned scales as a kernel writes them."""
    scale = problem.d_scale
    assert scale is not None
    *groups, rows, columns = extents
    dtype, scale_dtype = TORCH_DTYPES[problem.d.name], TORCH_DTYPES[scale.dtype.name]
    unit = ALIGNMENT_BYTES // scale_dtype.itemsize
    pitch = -(-rows // unit) * unit
    stored = torch.full(
        (*groups, columns // scale.vector, pitch), poison(scale_dtype), dtype=scale_dtype, device=device
    )
    # After the scales, as a wrapper allocates both: what is freed here is then each one's place again.
    d = torch.full(tuple(extents), UNWRITTEN, dtype=torch.int8, device=device).view(dtype)
    return d, stored[..., :rows].mT


def written_into(out: Tensor, d: Tensor, scales: Tensor) -> Tensor:
    """Return `out` with the numbers of D; elements without a D and a scale that were written stay.

    An element is infinite if its scale is written alone, and NaN if it is written without a scale.
    """
    vector = d.shape[-1] // max(1, scales.shape[-1])
    for into, elements, of_blocks in pieces(out, d, scales):
        has_no_scale = of_blocks.float().isnan().repeat_interleave(vector, dim=-1)
        is_left = bits(elements) == UNWRITTEN
        numbers = _dequantized(elements, of_blocks).masked_fill(is_left, math.inf)
        into.copy_(torch.where(is_left & has_no_scale, into, numbers))
    return out


@dataclass(frozen=True)
class Dequantized:
    """A module's `matmul` that returns D and its scales, as one that returns D as fp32 numbers."""

    matmul: Callable[..., tuple[Tensor, Tensor]]
    problem: Matmul

    def __call__(self, *inputs: Tensor, out: Tensor | None = None, **others: Tensor) -> Tensor:
        """Return D as numbers, in ``out`` if that is given, where rows that the kernel leaves stay."""
        if out is None:
            return dequantized_output(*self.matmul(*inputs, **others))
        d, scales = poisoned_outputs(self.problem, out.shape, out.device)
        return written_into(out, *self.matmul(*inputs, **others, out=d, out_scale=scales))


def numbers_of(matmul: Any, problem: Matmul) -> Any:
    """Return a module's `matmul` as one that returns numbers: itself, unless D has scales."""
    return Dequantized(matmul, problem) if problem.d_scale else matmul
