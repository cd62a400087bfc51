"""Inputs are drawn: random ones, and small integers whose result is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.numerics.encoding import E2M1_VALUES, INT4_ZERO
from gemmgen.numerics.inputs import Inputs, Numbers
from gemmgen.numerics.matrices import (
    ALIGNMENT_BYTES,
    PADDED_ALIGNMENT_BYTES,
    Draw,
    Fill,
    Layout,
    powers_of_two,
)
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
from gemmgen.problem.operations import KEYWORDS, OPERATIONS, SCALES, few_bits

NamedFill = Callable[[str, tuple[int, int], Draw], Tensor]
"""Returns fp32 numbers of these extents for the operand, or the tensor of the epilogue, of this name."""

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


def drawn_inputs(
    layout: Layout, problem: Matmul, sides: tuple[Numbers, ...], *, normalized: bool = False
) -> Inputs:
    """Return inputs in a layout: random ones, small integers, or poison if nothing is drawn.

    The ``sides`` belong to the problem's features, which add their tensors. If ``normalized``, random inputs
    have an A that is scaled by 1 / sqrt(K).
    """
    if layout.draw is None:
        return _inputs(problem, sides, layout, None)
    made = _integers(problem, layout.shape) if layout.draw.integers else None
    return _inputs(problem, sides, layout, made or _random(problem, layout.shape, normalized=normalized))


def _random(problem: Matmul, shape: Shape, *, normalized: bool) -> NamedFill:
    """Return a function that draws numbers with which each term of the result counts for any K.

    A and B are N(0, 1), rounded to their type. int8 is uniform from -128 to 127, or from -3 to 3 if the full
    range would leave the range of D: a D of fp16 or fp8 and no scale. Scales are uniform from 0.5 to 1.5, and
    the first one also brings the result to a root mean square near 1; C and biases are normal and as large as
    the value that they are added to, up to 1000. A is scaled by 1 / sqrt(K) if ``normalized``, and for an
    activation without a scale before it, whose curve lies between -3 and 3; 8-bit and 4-bit operands never
    are. Sums that are limited are half as large as the smallest limit, if that is more than 2.

    e2m1 and int4 are any of their numbers. Block scales are powers of two over a range of 16 (ue8m0), or
    uniform over one of 4 (e4m3), and bring a scaled operand's root mean square to 0.75 to 1.05 as well.
    """
    sizes = _sizes(shape, problem, normalized=normalized)

    def fill(name: str, extents: tuple[int, int], draw: Draw) -> Tensor:
        generator, device = draw.generator, draw.generator.device
        if name in "ab" and problem.operand(name).dtype.coded:
            return _any_code(problem.operand(name).dtype.name, extents, generator)
        if name in "ab" and problem.operand(name).dtype.integer:
            low, high = (-SMALL, SMALL + 1) if sizes[name] < INT8_RMS else (-128, 128)
            return torch.randint(low, high, extents, generator=generator, device=device).float()
        if name in SCALES:
            return (torch.rand(extents, generator=generator, device=device) + 0.5) * sizes[name]
        return torch.randn(extents, generator=generator, device=device) * sizes[name]

    return fill


def _integers(problem: Matmul, shape: Shape) -> NamedFill:
    """Return a function that draws small integers: A and B from -3 to 3, int8 into int32 from -128 to 127.

    Sums of many products in fp16, which holds integers up to 2,048, are of -1, 0 and 1, as are sums that are
    multiplied by others for a D that ends below 2**17. C and biases go from -8 to 8; all scales are 0.5, 1
    or 2. e2m1 and int4 are any of their numbers, which are halves of integers. Rows are divided into groups
    at random.
    If ``hostile``, the tensor that divides them has numbers out of bounds, and indices of rows have some.
    If ``is_exact``, every step to the result is exact.
    """

    def fill(name: str, extents: tuple[int, int], draw: Draw) -> Tensor:
        generator, device = draw.generator, draw.generator.device
        if name in "ab" and problem.operand(name).dtype.coded:
            return _any_code(problem.operand(name).dtype.name, extents, generator)
        if name in SCALES:
            return powers_of_two(extents, draw)
        low, high = -8, 9
        if name in "ab":
            whole = problem.accumulator.integer and problem.d.integer
            low, high = (-128, 128) if whole else (-small, small + 1)
        return torch.randint(low, high, extents, generator=generator, device=device).float()

    long = problem.accumulator.name == "fp16" and shape[2] > LONGEST_FP16_SUM
    multiplied = problem.gated and problem.d.largest < NARROW
    small = 1 if long or multiplied else SMALL
    return fill


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


def _inputs(problem: Matmul, sides: tuple[Numbers, ...], layout: Layout, fill: NamedFill | None) -> Inputs:
    """Return inputs in a layout, with the numbers of ``fill``; tensors of features have their own."""
    m, n, k = layout.shape
    columns = problem.columns_of_b(n)
    # Before A and B: a feature may draw numbers first.
    of_features = {name: make for side in sides for name, make in side.tensors(layout).items()}

    def numbers_of(name: str) -> Fill | None:
        return fill and partial(fill, name)

    def operand(name: Literal["a", "b"], rows: int, columns: int) -> Tensor:
        """Return A or B with the dimensions in the order of their strides."""
        found = problem.operand(name)
        alignment = PADDED_ALIGNMENT_BYTES if found.padded else ALIGNMENT_BYTES
        return layout.matrix(
            *(found.dtype.name, rows, columns, numbers_of(name)),
            leading=problem.leading_extents(name),
            alignment=alignment,
        )

    def of_epilogue(keyword: str) -> Tensor:
        """Return C, or a tensor of an operation."""
        if keyword == "c":
            assert problem.c is not None
            *leading, rows, width = problem.extents_of_d(m, n)
            of_c = problem.c.name, rows, width, numbers_of(keyword)
            return layout.matrix(*of_c, leading=tuple(leading))
        along, leading = OPERATIONS[keyword].operand, problem.leading_extents(keyword)
        extent = 1 if along == "scalar" else m if along == "row" else columns
        dtype, elements = problem.vector_dtype(keyword).name, math.prod(leading) * extent
        return layout.matrix(dtype, 1, elements, numbers_of(keyword))[0].view(*leading, extent)

    a_transposed, b_transposed = problem.a.major == "mn", problem.b.major != "mn"
    a = operand("a", *((k, m) if a_transposed else (m, k)))
    b = operand("b", *((columns, k) if b_transposed else (k, columns)))
    first = [name for name in KEYWORDS if name in of_features or name in problem.epilogue.loads]
    last = [name for name in of_features if name not in first]
    extras = {
        name: of_features[name]() if name in of_features else of_epilogue(name) for name in (*first, *last)
    }
    a, b = a.mT if a_transposed else a, b.mT if b_transposed else b
    return Inputs(a, b, MappingProxyType(extras), problem.b_blocks, sides=sides)


def _sizes(shape: Shape, problem: Matmul, *, normalized: bool) -> dict[str, float]:
    """Return the root mean square of each input; of scales, the middle of their range."""
    k, sizes = shape[2], {name: _operand_size(problem, name) for name in "ab"}
    if problem.d_blocks > 1:
        # Activations and their derivatives are computed of the matrices in C, and their curves end near 3.
        c, others = _spread(problem.epilogue), dict.fromkeys(problem.epilogue.loads, 1.0)
        of_a = sizes["a"] if problem.a.dtype.bits <= 8 else k**-0.5
        return others | sizes | {"a": of_a, "c": c}
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


def _any_code(dtype: str, extents: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return any numbers of a type of four bits."""
    device = generator.device
    codes = torch.randint(len(E2M1_VALUES), extents, generator=generator, device=device)
    return E2M1_VALUES.float().to(device)[codes] if dtype == "e2m1" else codes.float() - INT4_ZERO


def _operand_size(problem: Matmul, name: str) -> float:
    """Return the root mean square of A or of B, with its block scales if it has them."""
    if not problem.operand(name).multiplied.integer:
        return 1.0
    narrow = problem.d.largest < NARROW and not any(map(_scaled_by, problem.epilogue.steps))
    return 2.0 if narrow else INT8_RMS
