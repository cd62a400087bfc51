"""A model of the arithmetic of tensor cores: the sums that a kernel's order of additions gives, on the CPU.

An instruction adds some products and the sum so far at once. It aligns all terms to the largest of their
exponents, cuts off the bits below, adds the rest exactly, and cuts off or rounds the bits that the sum
has no place for. The model is a pure function of numbers: nothing is simulated, and no GPU is asked.

Sources, cited by their tag:

* [mma-sim] P. Xie et al., MMA-Sim: bits of the alignment and of the result, products of one addition; equal
  to the bits of the instructions on the GPUs that its authors had (arXiv 2511.10909).
* [models] F. Khattak, M. Mikaitis, Accurate Models of NVIDIA Tensor Cores: an independent one of H100 and
  B200 (arXiv 2512.07004).
* [dsv3] DeepSeek-V3 Technical Report (arXiv 2412.19437), 3.3.2: sums of fp8 keep 14 bits on H800.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from gemmgen.plan.kernel import Kernel
from gemmgen.plan.sum_order import SumOrder

FP32_BITS: Final = 24
FP16_BITS: Final = 11
FP8_SUM_BITS: Final = 14
"""[mma-sim] [dsv3] Bits of a sum of 8-bit products in fp32 that wgmma keeps; the other ten are zeros."""
ALIGNED_BITS: Final = 25
"""[mma-sim] Bits of a term below the largest exponent, on Hopper and Blackwell."""
ALIGNED_FP8_BITS: Final = 13
"""[mma-sim] The same for 8-bit products of wgmma."""
ALIGNED_FP4_BITS: Final = 35
"""[mma-sim] The same for sums of 16 scaled 4-bit products, which are exact."""
FP4_GROUP: Final = 16
LEAST_EXPONENTS: Final = {"fp16": -14, "e4m3": -6, "e5m2": -14, "e2m1": 0}
"""Exponents of the least normal numbers: a number below has this one. Other types have that of fp32."""
LEAST_EXPONENT: Final = -126


@dataclass(frozen=True)
class Accumulator:
    """How one instruction adds products to a sum."""

    terms: int
    """Products that are added at once."""
    aligned_bits: int
    """Bits of a term that are kept below the largest exponent of all terms."""
    bits: int
    """Significant bits of a sum."""
    cuts_off: bool
    """True if the bits that a sum has no place for are cut off; False if they are rounded to nearest even."""
    grouped: int = 1
    """Products that are added exactly before they are aligned."""

    @property
    def error(self) -> float:
        """The most that an instruction loses of normal numbers, over the sum of the magnitudes of its terms.

        Each term loses less than a unit of the alignment, which is at most the largest term times
        2**-`aligned_bits`; the sum loses less than a unit of its last bit, or half of one.
        """
        # A group is aligned by the exponents of its scales: its sum is at least 1/4, of products of 4 bits.
        largest = 1.0 if self.grouped == 1 else 4.0
        aligned = (self.terms // self.grouped + 1) * largest * 2.0**-self.aligned_bits
        return aligned + (2.0 ** (1 - self.bits) if self.cuts_off else 2.0**-self.bits)


def accumulator_of(kernel: Kernel) -> Accumulator | None:
    """Return the arithmetic of a kernel's instructions, by [mma-sim]; None for integers, which are exact."""
    problem, terms = kernel.problem, kernel.sum_order.mma_k
    if problem.accumulator.integer:
        return None
    if problem.a.multiplied.bits == problem.b.multiplied.bits == 4 and not problem.a.padded:
        return Accumulator(terms, ALIGNED_FP4_BITS, FP32_BITS, cuts_off=True, grouped=FP4_GROUP)
    fp8 = problem.a.multiplied.fp8 and kernel.architecture.mma == "wgmma"
    aligned = ALIGNED_FP8_BITS if fp8 else ALIGNED_BITS
    if problem.accumulator.bits == 16:
        return Accumulator(terms, aligned, FP16_BITS, cuts_off=False)
    return Accumulator(terms, aligned, FP8_SUM_BITS if fp8 else FP32_BITS, cuts_off=True)


@dataclass(frozen=True)
class Factor:
    """Rows of A, or columns of B: their numbers [rows, K] and the scales of them, all in float64."""

    elements: Tensor
    dtype: str
    scales: Tensor | None = None
    """Scales [rows, ceil(K / vector)], or None."""
    vector: int = 0
    """Elements of K that have one scale."""

    @property
    def exponents(self) -> Tensor:
        """The exponents of the elements, for which ``2**exponent <= |element|`` if it is normal."""
        found = self.elements.frexp().exponent - 1
        return found.clamp(min=LEAST_EXPONENTS.get(self.dtype, LEAST_EXPONENT)).double()

    @property
    def scale_of_each(self) -> Tensor:
        """The scale of each element [rows, K]; 1 without scales."""
        if self.scales is None:
            return torch.ones_like(self.elements)
        return self.scales.repeat_interleave(self.vector, dim=1)[:, : self.elements.shape[1]]

    @property
    def numbers(self) -> Tensor:
        """The elements times their scales."""
        return self.elements * self.scale_of_each


NO_TERM: Final = -1e6
"""Exponent of a term that is 0: it decides no alignment."""


def _rounded(sums: Tensor, bits: int, *, cuts_off: bool = False) -> Tensor:
    """Return numbers of float64 with `bits` significant bits, cut off or rounded to nearest even."""
    mantissas, exponents = sums.frexp()
    scaled = mantissas * 2.0**bits
    return torch.ldexp(scaled.trunc() if cuts_off else scaled.round(), exponents - bits)


def _instructions(unit: Accumulator, a: Factor, b: Factor, *, scaled: bool) -> Tensor:
    """Return the sums [M, N] of all K of two factors, one instruction after the other from 0.

    If ``scaled``, the instructions multiply by the scales.
    """
    total = torch.zeros(len(a.elements), len(b.elements), dtype=torch.float64)
    values, exponents = _groups(unit, a, b) if unit.grouped > 1 else _products(a, b, scaled=scaled)
    step = unit.terms // unit.grouped
    for first in range(0, values.shape[-1], step):
        terms = torch.cat((values[..., first : first + step], total[..., None]), dim=-1)
        own = (total.frexp().exponent - 1).double()[..., None]
        aligned = torch.cat((exponents[..., first : first + step], own), dim=-1)
        largest = torch.where(terms == 0, NO_TERM, aligned).amax(dim=-1, keepdim=True)
        last = torch.exp2(largest.clamp(min=LEAST_EXPONENT) - unit.aligned_bits)
        total = _rounded(((terms / last).trunc() * last).sum(-1), unit.bits, cuts_off=unit.cuts_off)
    return total


def _products(a: Factor, b: Factor, *, scaled: bool) -> tuple[Tensor, Tensor]:
    """Return the products [M, N, K] and the exponents by which they are aligned."""
    values = [factor.numbers if scaled else factor.elements for factor in (a, b)]
    exponents = [factor.exponents for factor in (a, b)]
    if scaled:
        for i, factor in enumerate((a, b)):
            exponents[i] = exponents[i] + (factor.scale_of_each.frexp().exponent - 1)
    return values[0][:, None] * values[1], exponents[0][:, None] + exponents[1]


def _groups(unit: Accumulator, a: Factor, b: Factor) -> tuple[Tensor, Tensor]:
    """Return exact sums [M, N, K / 16] of products times their scales, and the exponents of the scales."""
    each = a.numbers[:, None] * b.numbers
    products = each.view(*each.shape[:2], -1, unit.grouped).sum(-1)
    scales = [(factor.scale_of_each.frexp().exponent - 1).double() for factor in (a, b)]
    return products, (scales[0][:, None] + scales[1])[..., :: unit.grouped]


def sums(unit: Accumulator | None, order: SumOrder, a: Factor, b: Factor, *, in_threads: bool) -> Tensor:
    """Return A @ B [M, N] in float64, as a kernel of an order adds it up.

    If ``in_threads``, threads multiply the sums of each promotion by its scales, in one fused addition; else
    the instructions have the scales. Without a ``unit`` sums are exact. An order that depends on the run or
    the shape is taken in the order of K, and K as one part if the shape decides the parts.
    """
    if unit is None:
        return a.numbers @ b.numbers.T
    bits = FP16_BITS if order.accumulator == "fp16" else FP32_BITS
    k = a.elements.shape[1]
    part = k
    if order.splits > 1:
        part = math.ceil(k / (order.splits * order.split_step)) * order.split_step
    parts: list[Tensor] = []
    for first, end in pairwise((*range(0, k, part), k)):
        if not order.promote_k:
            parts.append(_instructions(unit, _cut(a, first, end), _cut(b, first, end), scaled=not in_threads))
            continue
        total = torch.zeros(len(a.elements), len(b.elements), dtype=torch.float64)
        for start, stop in pairwise((*range(first, end, order.promote_k), end)):
            own = [_cut(factor, start, stop) for factor in (a, b)]
            found = _instructions(unit, own[0], own[1], scaled=not in_threads)
            if in_threads:
                factors = own[0].scale_of_each[:, :1] * own[1].scale_of_each[:, :1].T
                found = found * _rounded(factors, FP32_BITS)
            total = _rounded(total + found, FP32_BITS)
        parts.append(total)
    return _added(parts, order.side_by_side, bits)


def _cut(factor: Factor, first: int, end: int) -> Factor:
    """Return a range of K of a factor; it begins with a block of a scale."""
    scales = factor.scales
    if scales is not None:
        scales = scales[:, first // factor.vector : -(-end // factor.vector)]
    return Factor(factor.elements[:, first:end], factor.dtype, scales, factor.vector)


def _added(parts: list[Tensor], side_by_side: int, bits: int) -> Tensor:
    """Return the sum of the sums of parts, by as many threads: each takes its own in order, then pairs."""
    own = [torch.zeros_like(parts[0]) for _ in range(side_by_side)]
    for number, part in enumerate(parts):
        own[number % side_by_side] = _rounded(own[number % side_by_side] + part, bits)
    while len(own) > 1:
        half = len(own) // 2
        own = [_rounded(own[i] + own[i + half], bits) for i in range(half)]
    return own[0]


def bound(unit: Accumulator | None, order: SumOrder, k: int, *, in_threads: bool = False) -> float:
    """Return the most that an element of A @ B is off, over the sum of the magnitudes of its K products.

    1 says nothing: all products may be lost. It holds for normal numbers whose sums are finite: cut-off
    sums never exceed the sum of the magnitudes.
    """
    if unit is None:
        return 0.0
    part = k
    if order.splits > 1:
        part = math.ceil(k / (order.splits * order.split_step)) * order.split_step
    chain = min(part, order.promote_k or part)
    count = math.ceil(chain / unit.terms)
    lost = count * unit.error if unit.cuts_off else math.expm1(count * math.log1p(unit.error))
    half = 2.0 ** -(FP16_BITS if order.accumulator == "fp16" else FP32_BITS)
    # The first addition is to 0; scales that threads multiply by are one more rounding, their product.
    additions = math.ceil(part / chain) + math.ceil(k / part) - 2 + in_threads
    return min(1.0, (1.0 + lost) * (1.0 + half) ** additions - 1.0)
