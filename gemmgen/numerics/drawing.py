"""Inputs are drawn: random ones, and small integers whose result is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES
from gemmgen.numerics.divided_rows import drawn_index, drawn_rows, hostile_rows, tensor_of_rows
from gemmgen.numerics.encoding import CHUNK_ELEMENTS, E2M1_VALUES, TORCH_DTYPES, elements_per_byte, encoded
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.keywords import dtype_of, keywords_of
from gemmgen.numerics.matrices import ALIGNMENT_BYTES, PADDED_ALIGNMENT_BYTES, Matrix
from gemmgen.problem import Matmul, Shape
from gemmgen.problem.epilogue import (
    TIMES,
    Algebra,
    Call,
    Cast,
    Epilogue,
    Load,
    Step,
    fold,
    is_computed,
    loads_of,
)
from gemmgen.problem.operations import BLOCK_SCALES, OPERATIONS, SCALES, few_bits

Fill = Callable[[str, tuple[int, int]], Tensor]
"""Returns fp32 numbers of this shape for the input of this name."""

INT8_RMS: Final = math.sqrt((256**2 - 1) / 12 + 0.25)
"""Root mean square of numbers from -128 to 127, all equally likely: 73.9."""
SMALL: Final = 3
"""Small integers go from -3 to 3; their mean square is 4."""
LONGEST_FP16_SUM: Final = 4_096
"""Products of them that fp16 adds up exactly: 2,048 is eight times 4 * 64, the sum's root mean square."""
NARROW: Final = 2.0**17
"""A D that ends below this does not hold sums of products of int8 without a scale: fp16 ends at 65,504."""
LARGEST_ADDEND: Final = 1000.0
"""Root mean square that C and the biases do not exceed: fp16 ends at 65,504."""
E2M1_RMS: Final = math.sqrt((0.5**2 + 1 + 1.5**2 + 2**2 + 3**2 + 4**2 + 6**2) / 8)
"""Root mean square of all numbers of e2m1, equally likely: 2.93."""
BLOCK_SCALE_RMS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "scale": math.sqrt(sum(4.0**exponent for exponent in range(-2, 3)) / 5),
        "float": math.sqrt((2**3 - 0.5**3) / 3 / (2 - 0.5)),
    }
)
"""Root mean square of block scales by the kind of their type, before all are reduced: 2.06 for powers of two
from 2**-2 to 2**2, equally likely, and 1.32 for uniform numbers from 0.5 to 2.
"""


def random_inputs(
    shape: Shape,
    problem: Matmul,
    generator: torch.Generator,
    *,
    guarded: bool = False,
    normalized: bool = False,
    misaligned: bool = False,
) -> Inputs:
    """Return random inputs in which every term counts for any K; poison surrounds them if guarded.

    If ``misaligned``, rows follow one another as torch has them, without alignment for TMA.

    A and B are N(0, 1), rounded to their type. int8 is uniform from -128 to 127, or from -3 to 3 if the full
    range would leave the range of D: a D of fp16 or fp8 and no scale. Scales are uniform from 0.5 to 1.5, and
    the first one also brings the result to a root mean square near 1; C and biases are normal and as large as
    the value that they are added to, up to 1000. A is scaled by 1 / sqrt(K) if ``normalized``, and for an
    activation without a scale before it, whose curve lies between -3 and 3; 8-bit and 4-bit operands never
    are. Sums that are limited are half as large as the smallest limit, if that is more than 2.

    e2m1 is any of its numbers. Block scales are powers of two over a range of 16 (ue8m0), or uniform over one
    of 4 (e4m3), and bring a scaled operand's root mean square to 0.75 to 1.05 as well.
    """
    sizes = _sizes(shape, problem, normalized=normalized)

    def fill(name: str, extents: tuple[int, int]) -> Tensor:
        device = generator.device
        if name in "ab" and problem.a.dtype.integer:
            low, high = (-SMALL, SMALL + 1) if sizes[name] < INT8_RMS else (-128, 128)
            return torch.randint(low, high, extents, generator=generator, device=device).float()
        if name in BLOCK_SCALES:
            return _block_scales(problem, name, extents, generator)
        if name in "ab" and problem.operand(name).dtype.coded:
            return _any_e2m1(extents, generator)
        if name in SCALES:
            return (torch.rand(extents, generator=generator, device=device) + 0.5) * sizes[name]
        return torch.randn(extents, generator=generator, device=device) * sizes[name]

    drawing = _Drawing(generator, fill)
    return _inputs(shape, problem, generator.device, drawing, guarded=guarded, misaligned=misaligned)


def unfilled_inputs(
    shape: Shape, problem: Matmul, *, guarded: bool = False, misaligned: bool = False
) -> Inputs:
    """Return inputs as `random_inputs` lays them out, on torch's device ``meta``, which has no memory."""
    return _inputs(shape, problem, torch.device("meta"), None, guarded=guarded, misaligned=misaligned)


def integer_inputs(
    shape: Shape, problem: Matmul, generator: torch.Generator, *, hostile: bool = False
) -> Inputs:
    """Return small integers: A and B from -3 to 3, int8 into int32 from -128 to 127.

    Sums of many products in fp16, which holds integers up to 2,048, are of -1, 0 and 1, as are sums that are
    multiplied by others for a D that ends below 2**17. C and biases go from -8 to 8; all scales are 0.5, 1
    or 2. e2m1 is any of its numbers, which are halves of integers. Rows are divided into groups at random.
    If ``hostile``, the tensor that divides them has numbers out of bounds, and indices of rows have some.
    If ``is_exact``, every step to the result is exact.
    """

    def fill(name: str, extents: tuple[int, int]) -> Tensor:
        device = generator.device
        if name in "ab" and problem.operand(name).dtype.coded:
            return _any_e2m1(extents, generator)
        if name in (*SCALES, *BLOCK_SCALES):
            return 2.0 ** torch.randint(-1, 2, extents, generator=generator, device=device)
        low, high = -8, 9
        if name in "ab":
            whole = problem.a.dtype.integer and problem.d.integer
            low, high = (-128, 128) if whole else (-small, small + 1)
        return torch.randint(low, high, extents, generator=generator, device=device).float()

    long = problem.accumulator.name == "fp16" and shape[2] > LONGEST_FP16_SUM
    multiplied = problem.gated and problem.d.largest < NARROW
    small = 1 if long or multiplied else SMALL
    divided: Tensor | None = None
    if groups := problem.groups:
        outside = hostile_rows(groups, shape, generator.device) if hostile else None
        divided = drawn_rows(groups, shape, generator) if outside is None else outside
    drawing = _Drawing(generator, fill)
    return _inputs(shape, problem, generator.device, drawing, divided=divided, hostile=hostile)


def is_exact(problem: Matmul) -> bool:
    """Return True if fp32 computes D from small integers without rounding before the conversion to D.

    Numbers must have few bits above 1/16, and activations only comparisons and products; two values that both
    depend on the sums are not multiplied. Products of scaled blocks are exact up to a K of 2048 at least:
    with e2m1 on both sides they are at most (6 * 2)**2 = 144 and multiples of (0.5 * 0.5)**2 = 1/16, and 144
    * 2048 * 16 is 4.7 million, below 2**24.
    """
    epilogue = problem.epilogue
    numbers = (*epilogue.numbers, *(found.value for found in problem.parameters))
    exact = all(OPERATIONS[call.op].exact for call in epilogue.activations)
    squares = any(all(map(is_computed, step.call.args)) for step in epilogue.steps if step.call.op == TIMES)
    return all(map(few_bits, numbers)) and exact and not (squares or epilogue.saved)


@dataclass(frozen=True)
class _Drawing:
    """The source of the numbers of inputs."""

    generator: torch.Generator
    fill: Fill


def _inputs(
    shape: Shape,
    problem: Matmul,
    device: torch.device,
    drawing: _Drawing | None,
    *,
    guarded: bool = False,
    misaligned: bool = False,
    divided: Tensor | None = None,
    hostile: bool = False,
) -> Inputs:
    """Return inputs on a device; without a drawing their storage alone, which is all poison."""
    m, n, k = shape
    columns = problem.columns_of_b(n)
    padded = [name for name, operand in (("a", problem.a), ("b", problem.b)) if operand.padded]

    def matrix(name: str, dtype: str, rows: int, columns: int, *, may_guard: bool = True) -> Tensor:
        alignment = PADDED_ALIGNMENT_BYTES if name in padded else ALIGNMENT_BYTES
        width, is_guarded = columns // elements_per_byte(TORCH_DTYPES[dtype]), guarded and may_guard
        at = rows, width, dtype, device
        made = Matrix.poisoned(*at, guarded=is_guarded, alignment=alignment, misaligned=misaligned).view
        if drawing is None:
            return made
        # In parts: the numbers in fp32 and what they are made of need several times the tensor's memory.
        count = max(1, CHUNK_ELEMENTS // max(1, columns))
        for first in range(0, rows, count):
            part = made[first : first + count]
            numbers = drawing.fill(name, (len(part), columns))
            if DTYPES[dtype].bits < 8:
                part.copy_(encoded(numbers, dtype))
            else:
                part.copy_(numbers.to(TORCH_DTYPES[dtype]))
        return made

    groups = problem.groups

    def extra(keyword: str) -> Tensor:
        if groups and keyword == groups.counts:
            return divided if divided is not None else tensor_of_rows(groups, shape, device)
        if groups and keyword in groups.row_indices:
            if drawing is None:
                return torch.empty(m, dtype=torch.int32, device=device)
            return drawn_index(keyword, m, drawing.generator, hostile=hostile)
        if keyword in BLOCK_SCALES:
            scale, dtype = problem.operand(keyword[0]).scale, dtype_of(problem, keyword)
            assert scale is not None
            extents = scale.extents(m if keyword == "a_scale" else columns, k)
            if problem.packs_scales:
                return matrix(keyword, dtype, *extents)
            if problem.scales_groups_of_rows:
                return scales_of_groups(keyword, dtype, *extents)
            if scale.format.rows == 1:
                return matrix(keyword, dtype, *extents[::-1]).T
            return matrix(keyword, dtype, *extents, may_guard=False)  # the kernel reads rows without a gap
        if keyword == "saved":  # which a call writes, so that it is poison
            *counts, _ = problem.extents_of_d(m, n)
            at = math.prod(counts), columns, dtype_of(problem, keyword), device
            return Matrix.poisoned(*at, guarded=guarded).view.view(*counts, columns)
        if keyword == "c":
            *counts, width = extents = problem.extents_of_d(m, n)
            return matrix(keyword, dtype_of(problem, keyword), math.prod(counts), width).view(extents)
        along, dtype = OPERATIONS[keyword].operand, dtype_of(problem, keyword)
        extent = 1 if along == "scalar" else m if along == "row" else columns
        if groups is None or along == "scalar" or (along == "row" and not groups.apart):
            return matrix(keyword, dtype, 1, extent)[0]
        return matrix(keyword, dtype, 1, groups.count * extent)[0].view(groups.count, extent)

    def scales_of_groups(keyword: str, dtype: str, rows: int, blocks: int) -> Tensor:
        """Return scales of groups of rows as they are passed, without a gap between rows in memory."""
        count = groups.first_extent("a" if keyword == "a_scale" else "b") if groups else None
        by_blocks = keyword == "a_scale"
        lines = blocks if by_blocks else rows
        made = matrix(keyword, dtype, (count or 1) * lines, rows if by_blocks else blocks, may_guard=False)
        made = made.view(count, lines, -1) if count else made
        return made.mT if by_blocks else made

    def operand(name: Literal["a", "b"], rows: int, columns: int) -> Tensor:
        """Return an operand as it lies in memory, with a dimension for groups if it has one."""
        count = groups.first_extent(name) if groups else None
        made = matrix(name, problem.operand(name).dtype.name, rows * (count or 1), columns)
        return made.view(count, rows, -1) if count else made

    a_transposed, b_transposed = problem.a.major == "mn", problem.b.major != "mn"
    a = operand("a", *((k, m) if a_transposed else (m, k)))
    b = operand("b", *((columns, k) if b_transposed else (k, columns)))
    extras = {keyword: extra(keyword) for keyword in keywords_of(problem)}
    a, b = a.mT if a_transposed else a, b.mT if b_transposed else b
    return Inputs(a, b, MappingProxyType(extras), problem.b_blocks)


def _sizes(shape: Shape, problem: Matmul, *, normalized: bool) -> dict[str, float]:
    """Return the root mean square of each input; of scales, the middle of their range."""
    k, operand = shape[2], _operand_size(problem)
    sizes = {"a": operand, "b": operand}
    if problem.d_blocks > 1:
        # Activations and their derivatives are computed of the matrices in C, and their curves end near 3.
        c, others = _spread(problem.epilogue), dict.fromkeys(problem.epilogue.loads, 1.0)
        return others | {"a": operand if problem.a.dtype.bits <= 8 else k**-0.5, "b": operand, "c": c}
    if (normalized or _is_bare(problem.epilogue)) and problem.a.dtype.bits > 8:
        sizes["a"] = _spread(problem.epilogue) * k**-0.5
    measured = _Sized(sizes["a"] * sizes["b"] * math.sqrt(k), sizes)
    fold(problem.epilogue.value, measured)
    return sizes


def _spread(epilogue: Epilogue) -> float:
    """Return the root mean square for sums with limits, half of the smallest one, or 1 if that is less."""
    limits = (abs(each.value) for call in epilogue.activations for each in call.parameters if each.limits)
    return max(1.0, min(limits, default=0.0) / 2)


def _is_bare(epilogue: Epilogue) -> bool:
    """Return True if an activation is computed of sums that no loaded factor has scaled."""
    for step in epilogue.steps:
        if step.call.op in OPERATIONS:
            return True
        if _scaled_by(step):
            return False
    return False


def _scaled_by(step: Step) -> tuple[Load, ...]:
    """Return the loaded tensors in the factor of a step; empty for a number, and for sums."""
    factor = step.operand if step.call.op == TIMES else None
    return () if factor is None else loads_of(factor)


@dataclass(frozen=True)
class _Sized(Algebra[float]):
    """Algebra of root mean squares of values that depend on sums; the use of a loaded tensor sizes it."""

    sums: float
    loaded: dict[str, float]
    """Root mean squares of the loaded tensors so far."""

    def accumulator(self, name: str) -> float:  # noqa: ARG002
        return self.sums or 1.0

    def load(self, load: Load) -> float:
        return self.loaded.get(load.tensor, 1.0)

    def number(self, value: float) -> float:
        return abs(value)

    def call(self, call: Call, arguments: tuple[float, ...]) -> float:
        if call.op in OPERATIONS:
            return arguments[0]
        size, other = arguments
        value, operand = call.args
        tensors = loads_of(operand) if is_computed(value) and not is_computed(operand) else ()
        if call.op == TIMES:
            if not tensors:
                return size * other or 1.0
            first, *_ = tensors
            self.loaded[first.tensor] = 1.0 / size
            return 1.0
        for load in tensors:
            self.loaded[load.tensor] = min(size, LARGEST_ADDEND)
        return size if tensors else math.hypot(size, other)

    def cast(self, cast: Cast, argument: float) -> float:  # noqa: ARG002
        return argument


def _any_e2m1(extents: tuple[int, int], generator: torch.Generator) -> Tensor:
    device = generator.device
    codes = torch.randint(len(E2M1_VALUES), extents, generator=generator, device=device)
    return E2M1_VALUES.float().to(device)[codes]


def _block_scales(problem: Matmul, name: str, extents: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return scales that bring the size of their operand as close to 1 as a power of two can."""
    device, dtype = generator.device, DTYPES[dtype_of(problem, name)]
    elements = E2M1_RMS if problem.operand(name[0]).dtype.coded else 1.0
    smaller = 2.0 ** -round(math.log2(elements * BLOCK_SCALE_RMS[dtype.kind]))
    if dtype.kind == "scale":
        return smaller * 2.0 ** torch.randint(-2, 3, extents, generator=generator, device=device)
    return smaller * (torch.rand(extents, generator=generator, device=device) * 1.5 + 0.5)


def _operand_size(problem: Matmul) -> float:
    """Return the root mean square of A and of B, with their block scales if they have them."""
    if not problem.a.dtype.integer:
        return 1.0
    narrow = problem.d.largest < NARROW and not any(map(_scaled_by, problem.epilogue.steps))
    return 2.0 if narrow else INT8_RMS
