"""What one call of a kernel takes: random inputs, and small integers whose result is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from gemmgen.module import Matmul
from gemmgen.plan.decisions import problem_of
from gemmgen.problem.dtype import FP8, TORCH_DTYPES, DType
from gemmgen.problem.formula import (
    ACTIVATIONS,
    BLOCK_SCALES,
    ROW_VECTORS,
    SCALES,
    alpha_of,
    beta_of,
    block_scale_of,
    dtype_of,
    keywords_of,
)
from gemmgen.problem.matrix import ALIGNMENT_BYTES, PADDED_ALIGNMENT_BYTES, Matrix
from gemmgen.problem.quantize import E2M1_VALUES, elements_per_byte, encoded
from gemmgen.problem.shape import Shape
from gemmgen.spec.model import Spec

Fill = Callable[[str, tuple[int, int]], Tensor]
"""Returns fp32 numbers of this shape for the input of this name."""

INT8_RMS: Final = math.sqrt((256**2 - 1) / 12 + 0.25)
"""Of numbers from -128 to 127, all equally likely: 73.9."""
SMALL: Final = 3
"""Small integers go from -3 to 3; their mean square is 4."""
LARGEST_ADDEND: Final = 1000.0
"""Root mean square that C and the biases do not exceed: fp16 ends at 65,504."""
E2M1_RMS: Final = math.sqrt((0.5**2 + 1 + 1.5**2 + 2**2 + 3**2 + 4**2 + 6**2) / 8)
"""Of all its numbers, equally likely: 2.93."""
BLOCK_SCALE_RMS: Final[Mapping[DType, float]] = MappingProxyType(
    {
        "ue8m0": math.sqrt(sum(4.0**exponent for exponent in range(-2, 3)) / 5),
        "e4m3": math.sqrt((2**3 - 0.5**3) / 3 / (2 - 0.5)),
    }
)
"""Of the scales of blocks by their type, before all are made smaller: 2.06 of powers of two from 2**-2 to
2**2, equally likely, and 1.32 of what is uniform from 0.5 to 2."""


@dataclass(frozen=True)
class Inputs:
    """A [M, K], B [K, N], and what else the spec takes: C [M, N], vectors [M] or [N], a scale [1].

    e2m1 is uint8 with two elements of K in a byte: A [M, K/2], B [K/2, N]. Scales of blocks are
    [M, ceil(K / vector)] and [N, ceil(K / vector)].
    """

    a: Tensor
    b: Tensor
    extras: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType[str, Tensor]({}))
    """By keyword."""

    @property
    def shape(self) -> Shape:
        """M, N and K, all in elements."""
        k = self.a.shape[1] * elements_per_byte(self.a.dtype)
        return self.a.shape[0], self.b.shape[1], k

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (self.a, self.b, *self.extras.values())

    def packed(self, pack_scales: Callable[[Tensor], Tensor], names: Sequence[str] = BLOCK_SCALES) -> Inputs:
        """Return them with these of the scales of blocks as a module's ``pack_scales`` makes them."""
        extras = {
            name: pack_scales(tensor) if name in names else tensor for name, tensor in self.extras.items()
        }
        return replace(self, extras=MappingProxyType(extras))

    def call(self, matmul: Matmul, out: Tensor | None = None) -> Tensor:
        """Return what a generated ``matmul`` makes of them, written into ``out`` if that is given."""
        if out is None:
            return matmul(self.a, self.b, **self.extras)
        return matmul(self.a, self.b, **self.extras, out=out)


def random_inputs(
    shape: Shape,
    spec: Spec,
    generator: torch.Generator,
    *,
    guarded: bool = False,
    normalized: bool = False,
) -> Inputs:
    """Return random inputs in which every term counts, whatever K is; around them is poison if guarded.

    A and B are N(0, 1), rounded to their type. int8 is uniform from -128 to 127, but from -3 to 3 where the
    full range would leave D's: a D of fp16 or fp8 and no scale. Scales are uniform from 0.5 to 1.5, and the
    first one also brings the result to a root mean square near 1; C and biases are normal and as large as
    what they are added to, up to 1000. A is scaled by 1 / sqrt(K) if ``normalized``, and for an activation
    without a scale before it, whose curve lies between -3 and 3; 8-bit and 4-bit operands never are.

    e2m1 is any of its numbers. Scales of blocks are powers of two over a range of 16 (ue8m0), or uniform over
    one of 4 (e4m3), and such that a scaled operand's root mean square is from 0.75 to 1.05 as well.
    """
    sizes = _sizes(shape, spec, normalized=normalized)

    def fill(name: str, extents: tuple[int, int]) -> Tensor:
        device = generator.device
        if name in "ab" and spec.operands.a.dtype == "int8":
            low, high = (-SMALL, SMALL + 1) if sizes[name] < INT8_RMS else (-128, 128)
            return torch.randint(low, high, extents, generator=generator, device=device).float()
        if name in BLOCK_SCALES:
            return _block_scales(spec, name, extents, generator)
        if name in "ab" and _operand_dtype(spec, name) == "e2m1":
            return _any_e2m1(extents, generator)
        if name in SCALES:
            return (torch.rand(extents, generator=generator, device=device) + 0.5) * sizes[name]
        return torch.randn(extents, generator=generator, device=device) * sizes[name]

    return _inputs(shape, spec, generator.device, fill, guarded=guarded)


def integer_inputs(shape: Shape, spec: Spec, generator: torch.Generator) -> Inputs:
    """Return small integers: A and B from -3 to 3, int8 into int32 from -128 to 127.

    C and biases go from -8 to 8, scales, also of blocks, are 0.5, 1 or 2. e2m1 is any of its numbers, which
    are halves of integers. Where ``is_exact``, so is every step to the result.
    """

    def fill(name: str, extents: tuple[int, int]) -> Tensor:
        device = generator.device
        if name in "ab" and _operand_dtype(spec, name) == "e2m1":
            return _any_e2m1(extents, generator)
        if name in (*SCALES, *BLOCK_SCALES):
            return 2.0 ** torch.randint(-1, 2, extents, generator=generator, device=device)
        low, high = -8, 9
        if name in "ab":
            whole = spec.operands.a.dtype == "int8" and spec.operands.d.dtype == "int32"
            low, high = (-128, 128) if whole else (-SMALL, SMALL + 1)
        return torch.randint(low, high, extents, generator=generator, device=device).float()

    return _inputs(shape, spec, generator.device, fill, guarded=False)


def is_exact(spec: Spec) -> bool:
    """Whether fp32 computes D from small integers without rounding, but for the last step to D's type.

    Factors must be few bits above 1/16, and activations other than relu are transcendental. Block-scaled
    products are exact up to a K of 2048 at least: with e2m1 on both sides they are at most (6 * 2)**2 = 144
    and multiples of (0.5 * 0.5)**2 = 1/16, and 144 * 2048 * 16 is 4.7 million, below 2**24.
    """
    factors = (alpha_of(spec), beta_of(spec))
    few_bits = all((16 * factor).is_integer() and abs(factor) <= 16 for factor in factors)
    return few_bits and all(op == "relu" for op in spec.epilogue.ops if op in ACTIVATIONS)


def _inputs(shape: Shape, spec: Spec, device: torch.device, fill: Fill, *, guarded: bool) -> Inputs:
    m, n, k = shape
    operands, problem = spec.operands, problem_of(spec)
    padded = [name for name, operand in (("a", problem.a), ("b", problem.b)) if operand.padded]

    def matrix(name: str, dtype: DType, rows: int, columns: int) -> Tensor:
        numbers = fill(name, (rows, columns))
        stored = encoded(numbers, dtype) if dtype == "e2m1" else numbers.to(TORCH_DTYPES[dtype])
        alignment = PADDED_ALIGNMENT_BYTES if name in padded else ALIGNMENT_BYTES
        made = Matrix.poisoned(rows, stored.shape[1], dtype, device, guarded=guarded, alignment=alignment)
        return made.view.copy_(stored)

    def extra(keyword: str) -> Tensor:
        if keyword in BLOCK_SCALES:
            scale = block_scale_of(spec, keyword[0])
            assert scale is not None
            rows = m if keyword == "a_scale" else n
            return matrix(keyword, dtype_of(spec, keyword), rows, math.ceil(k / scale.vector))
        if keyword == "c":
            return matrix(keyword, dtype_of(spec, keyword), m, n)
        extent = 1 if keyword == "tensor_scale" else m if keyword in ROW_VECTORS else n
        return matrix(keyword, dtype_of(spec, keyword), 1, extent)[0]

    a_transposed, b_transposed = operands.a.major == "mn", operands.b.major != "mn"
    a = matrix("a", operands.a.dtype, *((k, m) if a_transposed else (m, k)))
    b = matrix("b", operands.b.dtype, *((n, k) if b_transposed else (k, n)))
    extras = {keyword: extra(keyword) for keyword in keywords_of(spec)}
    return Inputs(a.T if a_transposed else a, b.T if b_transposed else b, MappingProxyType(extras))


def _sizes(shape: Shape, spec: Spec, *, normalized: bool) -> dict[str, float]:
    """Return the root mean square of each input; of scales, the middle of their range."""
    ops, k = spec.epilogue.ops, shape[2]
    operand = _operand_size(spec)
    sizes = {"a": operand, "b": operand}
    bare = _first(ops, SCALES) > _first(ops, tuple(ACTIVATIONS)) < len(ops)
    if (normalized or bare) and spec.operands.a.dtype not in (*FP8, "int8", "e2m1"):
        sizes["a"] = k**-0.5
    size = abs(alpha_of(spec)) * sizes["a"] * sizes["b"] * math.sqrt(k) or 1.0
    for term in _terms(spec):
        if term in SCALES:
            sizes[term] = 1.0 / size
            size = 1.0
        elif term not in ACTIVATIONS:
            sizes["c" if term == "residual" else term] = min(size, LARGEST_ADDEND)
    return sizes


def _operand_dtype(spec: Spec, name: str) -> DType:
    return spec.operands.a.dtype if name == "a" else spec.operands.b.dtype


def _any_e2m1(extents: tuple[int, int], generator: torch.Generator) -> Tensor:
    device = generator.device
    codes = torch.randint(len(E2M1_VALUES), extents, generator=generator, device=device)
    return E2M1_VALUES.float().to(device)[codes]


def _block_scales(spec: Spec, name: str, extents: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return scales that bring the size of their operand as close to 1 as a power of two can."""
    device, dtype = generator.device, dtype_of(spec, name)
    elements = E2M1_RMS if _operand_dtype(spec, name[0]) == "e2m1" else 1.0
    smaller = 2.0 ** -round(math.log2(elements * BLOCK_SCALE_RMS[dtype]))
    if dtype == "ue8m0":
        return smaller * 2.0 ** torch.randint(-2, 3, extents, generator=generator, device=device)
    return smaller * (torch.rand(extents, generator=generator, device=device) * 1.5 + 0.5)


def _operand_size(spec: Spec) -> float:
    """Return the root mean square of A and of B, scaled by block where they are."""
    if spec.operands.a.dtype != "int8":
        return 1.0
    narrow = spec.operands.d.dtype in ("fp16", *FP8) and not set(SCALES) & set(spec.epilogue.ops)
    return 2.0 if narrow else INT8_RMS


def _terms(spec: Spec) -> Iterator[str]:
    """Yield what happens to alpha * A @ B, in order."""
    if spec.operands.c is not None and "residual" not in spec.epilogue.ops:
        yield "c"
    yield from spec.epilogue.ops


def _first(ops: tuple[str, ...], wanted: tuple[str, ...]) -> int:
    """Return the position of the first op that is wanted; their number if none is."""
    return next((position for position, op in enumerate(ops) if op in wanted), len(ops))
