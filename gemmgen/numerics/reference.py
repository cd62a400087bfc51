"""The exact result of a kernel, the deviation of a computed one, and the tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES, WGMMA
from gemmgen.hardware.elements import Column
from gemmgen.numerics.encoding import (
    decoded,
    dequantized,
    elements_per_byte,
    rounded_to_tf32,
)
from gemmgen.numerics.evaluation import evaluated_d, sums_of
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem import Matmul, Shape, shape_text
from gemmgen.problem.epilogue import PLAIN

HALF_ULP: Final[Column[float]] = Column(DTYPES, lambda dtype: dtype.half_ulp)
"""The most that rounding to an element type costs a number, relative to it. Below the least normal number
it is more, but that is nothing against a root mean square near 1 or above."""
CHUNK_BYTES: Final = 128 << 20
"""Most bytes of each float64 matrix of the reference that exists at a time: rows of A, of B and of D."""
K_MULTIPLE: Final = 256
"""K at which a part of the operands ends is a multiple of this, and so of each block with a scale."""


@dataclass(frozen=True)
class Deviation:
    """Deviation of a result from the exact one; NaN if the result holds a NaN."""

    relative: float
    """||out - ref|| / ||ref||, Frobenius norms."""
    worst_element: float
    """Largest |out - ref|, less the rounding of that element to D's type, over the RMS of the reference."""


def references(inputs: Inputs, problem: Matmul) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows, and those rows of the exact D [M, N] in float64, on the inputs' device.

    tf32 operands are rounded first, as TMA rounds them. Products of 16-bit floats are exact in float64, as
    are products of 8- and 4-bit floats and their scales, of 16 bits together at most; a sum of K of them
    loses at most K * 2**-53 of the sum of their magnitudes: nothing, here; integers lose nothing at all. A D
    of 8-bit floats saturates, with scales at MOST_SCALED. Rows are computed in chunks, each over one part of
    K after the other, so that the memory does not grow with the shape: some matrices of CHUNK_BYTES. With
    groups, slices count the rows of all groups, group by group (`Inputs.computed_rows`).
    """
    before = 0
    for each in inputs.parts():
        for rows, exact in _plain_references(each, problem):
            yield slice(before + rows.start, before + rows.start + len(exact)), exact
        before += each.shape[0]


def _plain_references(inputs: Inputs, problem: Matmul) -> Iterator[tuple[slice, Tensor]]:
    """Yield the same of one A and one B."""
    depths = _parts_of_k(inputs)
    whole = _exact(inputs, problem, "b", depths[0]).T if len(depths) == 1 else None
    count = max(1, CHUNK_BYTES // (8 * max(inputs.b.shape[1], depths[0].stop)))
    for first in range(0, inputs.a.shape[0], count):
        rows = slice(first, first + count)
        product: Tensor | None = None
        for depth in depths:
            b = _exact(inputs, problem, "b", depth).T if whole is None else whole
            part = _exact(inputs, problem, "a", depth, rows) @ b
            product = part if product is None else product.add_(part)
        assert product is not None
        sums = sums_of(product, problem.epilogue)
        d = evaluated_d(problem.epilogue, sums, inputs.extras, rows)
        most = problem.most_d
        yield rows, d if most is None else d.clamp(-most, most)


def _parts_of_k(inputs: Inputs) -> tuple[slice, ...]:
    """Return the parts of K with at most CHUNK_BYTES of B in float64, at least one."""
    _, _, k = inputs.shape
    fit = CHUNK_BYTES // (8 * max(1, inputs.b.shape[1])) // K_MULTIPLE * K_MULTIPLE
    step = max(K_MULTIPLE, fit)
    return tuple(slice(first, min(k, first + step)) for first in range(0, max(1, k), step))


def reference(inputs: Inputs, problem: Matmul) -> Tensor:
    """Return the whole exact D [M, N] in float64; with groups, the rows of all groups."""
    m, n, _ = inputs.shape
    none = inputs.a.new_empty((0, problem.extents_of_d(m, n)[-1]), dtype=torch.float64)
    return torch.cat([none, *(rows for _, rows in references(inputs, problem))])


def compared(
    out: Tensor, inputs: Inputs, problem: Matmul, exact: Iterable[tuple[slice, Tensor]] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows of a result out [M, N], and the same rows of the exact one, which is ``exact`` if given.

    With groups, only rows that belong to a group are compared, group by group; rows that an index drops are
    in no D.
    """
    found, before = inputs.computed_rows(out), 0
    for rows, expected in references(inputs, problem) if exact is None else exact:
        kept = expected if found.kept is None else expected[found.kept[rows]]
        yield found[before : before + len(kept)], kept
        before += len(kept)


def saved_deviation(inputs: Inputs, problem: Matmul) -> Deviation:
    """Compare the sums that a call has saved with the exact product of its inputs.

    With groups, only rows that belong to a group are compared. The mean square is of groups with a result: a
    group without K has zeros.
    """
    return deviation(inputs.extras["saved"], *plain_product(inputs, problem))


def plain_product(inputs: Inputs, problem: Matmul) -> tuple[Inputs, Matmul]:
    """Return the inputs and the problem of the sums that a kernel saves: the product of A and all of B."""
    others = {name: tensor for name, tensor in inputs.extras.items() if name != "saved"}
    return replace(inputs, b_blocks=1, extras=others), replace(problem, epilogue=PLAIN)


def references_of_saved(saved: Tensor, inputs: Inputs, problem: Matmul) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows, and those rows of the D [M, N] in float64 that saved sums have.

    A kernel that saves sums computes D from the numbers that it saves. Close to the middle between two
    numbers it may round a sum to either of them, so D is compared with what its own sums give. With groups,
    slices count the rows of all groups, group by group, as in `references`.
    """
    computed = inputs.computed_rows(saved)
    count = max(1, CHUNK_BYTES // (8 * saved.shape[-1]))
    for first in range(0, len(computed), count):
        rows = slice(first, first + count)
        sums = sums_of(computed[rows].double(), problem.epilogue)
        yield rows, evaluated_d(problem.epilogue, sums, inputs.extras, rows)


def deviation(
    out: Tensor, inputs: Inputs, problem: Matmul, exact: Iterable[tuple[slice, Tensor]] | None = None
) -> Deviation:
    """Compare out [M, N] with the exact result of its inputs, which is ``exact`` if that is given.

    The mean square is of groups with a result: a group without K has zeros.
    """
    zero = torch.zeros((), dtype=torch.float64, device=out.device)
    square_error, square_reference, worst = zero, zero, zero
    rounding, elements = HALF_ULP[problem.d.name], 0
    for found, expected in compared(out, inputs, problem, exact):
        error = found.double().sub_(expected).abs_()
        square_reference = square_reference + expected.square().sum()
        elements += expected.numel() if expected.any() else 0
        worst = torch.maximum(worst, (error - rounding * expected.abs()).max())
        square_error = square_error + error.square_().sum()
    mean_square = square_reference / max(1, elements)
    return Deviation(
        relative=_ratio(math.sqrt(square_error.item()), math.sqrt(square_reference.item())),
        worst_element=_ratio(worst.item(), math.sqrt(mean_square.item())),
    )


def _exact(inputs: Inputs, problem: Matmul, name: str, depth: slice, rows: slice = slice(None)) -> Tensor:
    """Return a part of K of one factor in float64: rows of ``a`` [M, K], or of ``b`` as [N, K].

    The part begins at a multiple of K_MULTIPLE.
    """
    matrix = inputs.a if name == "a" else inputs.b.T
    operand = problem.operand(name)
    if operand.decoded:
        return matrix[rows, depth].double()  # a feature has decoded it
    in_byte = elements_per_byte(matrix.dtype)
    stored = matrix[rows, depth.start // in_byte : -(-depth.stop // in_byte)]
    if operand.dtype.in_memory:
        return rounded_to_tf32(stored).double()
    elements = decoded(stored, operand.dtype.name)
    if (block := operand.scale) is None:
        return elements
    scale = f"{name}_scale"
    blocks = slice(depth.start // block.vector, -(-depth.stop // block.vector))
    of_rows = inputs.extras[scale][:, blocks].repeat_interleave(block.format.rows, dim=0)
    scales = decoded(of_rows[rows][: len(stored)], block.dtype.name)
    return dequantized(elements, scales, block.vector)


def _ratio(error: float, size: float) -> float:
    """Return their quotient; a result that must be 0 everywhere is right or infinitely far off."""
    if size == 0:
        return 0.0 if error == 0 else math.inf
    return error / size


TOLERANCES: Final[Column[float]] = Column(DTYPES, lambda dtype: dtype.tolerance)
"""Largest ||out - ref|| / ||ref|| (Frobenius norms) by D's dtype, for normal inputs and fp32 accumulation.

Rounding D to p significant bits alone costs 0.43 * 2**-p: the error is uniform over 2**(1 - p) of the
power of two below the value, and a normal value squared is on average 1.84 times that power squared. That
is 1.7e-3 for bf16 (p = 8) and 2.1e-4 for fp16 (p = 11); the limits leave room for 2.4 and 4.8 times as
much, and are far below the error of a wrong operand, tile or K step. For fp32 rounding is nothing (2.5e-8)
and accumulation everything: the tensor core truncates its fp32 sums, an error that grows with K.

For 8-bit floats p is 4 and 3, and rounding costs 2.7e-2 and 5.4e-2. The limits are not more than 2.4 times as
much, which every single element must stay within (2**-p), or a D of a few elements could fail by chance. A K
step of 128 elements that is left out costs sqrt(128 / K): more than the limits up to a K of 30,000 and 7,500.
"""

FP16_ACCUMULATION: Final = 1e-4
"""Added for an fp16 accumulator, times sqrt(K + 16).

Each instruction adds 16 products and rounds the sum to 11 bits. After i of them the sum is sqrt(16 * i)
large and the rounding 0.43 * 2**-11 of that; over K / 16 independent ones the errors' squares add up to
(0.43 * 2**-11)**2 * K * (K + 16) / 32, which is 3.7e-5 * sqrt(K + 16) of the result, sqrt(K): 3.4e-3 at K =
8192, where cuBLAS on an H200 was 3.3e-3 off. The limit leaves room for 2.7 times as much: 9.1e-3, where a K
step of 64 that is left out costs sqrt(64 / 8192) = 8.8e-2.
"""

FP16_INSTRUCTION_K: Final = 16

FP8_ACCUMULATION: Final = 1e-4
"""Added for 8-bit float operands, times the root of the K over which the tensor core sums by itself: all of
it, or ``mma.promote_k``; and for block-scaled operands.

An instruction aligns 32 products and the sum so far to the largest of them and keeps 14 bits. The sum is
sqrt(32 * i) large after i instructions, and each of 33 terms loses up to 2**-13 of the power of two below
that, 0.72 of it on average: an error of sqrt(33 / 3) * 0.72 * 2**-13 = 2.9e-4 of the sum. Over K / 32
instructions the squares add up to (2.9e-4)**2 * K**2 / 64: 3.6e-5 * sqrt(K) of the result, 3.3e-3 at K =
8192, where ``torch._scaled_mm`` on an H200 was 1.7e-3 off. The limit is 9.1e-3, and a K step of 128 that is
left out costs 0.125. Promoted every 128 it is 1.1e-3 at any K; without fast accumulation torch was 1.0e-4
off.

On Blackwell nothing was measured, and how many bits ``tcgen05.mma`` keeps is not documented: that it keeps no
fewer than wgmma is assumed. Then the same holds there. For g products an instruction the error is sqrt(g / 3)
* 0.72 * 2**-13 of the sum, and over K / g instructions that times sqrt(K / (2 * g)) of the result: g cancels,
and 64 products of 4 bits cost what 32 of 8 bits do. Scales make the largest product larger beside the root
mean square, some 16 times where it is 5 times of 32 normal ones: the first few instructions feel that, a sum
of many does not. Sums so computed reach a quarter of the limit, and in single elements three quarters, at a K
of 16 to 2048. A block of 32 whose scale is half or twice the right one costs 0.5 or 1 times
sqrt(32 / K): 3.1e-2 at least at K = 8192.
"""

FP32_ACCUMULATION: Final = 4e-8
"""Added for fp32 accumulation: so much for each instruction that a K beyond ``DType.tolerated_k`` takes, 16
elements or 8 of tf32. wgmma and ``tcgen05.mma`` take the same; of the latter no sum was measured.

Truncating the sum costs it half of 2**-23 of the power of two below, 0.72 of it: 4.3e-8. All errors point
to zero, so they add up: the sum after i of n instructions is i / n of the last one, and the result loses
2.15e-8 * n. On an H200 torch and gemmgen lost 1.8e-8 * n: 9.1e-6 in bf16 and 1.9e-5 in tf32 at K = 8192.
Sums that are promoted begin anew: n counts the instructions of one promotion, and their errors have either
sign. The additions in fp32 round to nearest, which costs less than the tolerance of an fp32 D at any K.
"""

FEW_ELEMENTS: Final = 6.6
"""Over the root of the number of D's elements: the addition to a limit of accumulation, as a share of it.

The limits of accumulation are derived for means of squares. Of E normal elements the mean square deviates by
sqrt(2 / E); behind relu, which leaves half of them, by sqrt(5 / E). The ratio of two norms, of such errors
and of such results, deviates by half of the root of both squared: 1.3 / sqrt(E), five times which is this. A
tile of 128 x 128 gets 5 % more, a D of 8 elements 3.3 times as much; where a bias and relu leave only a small
one of 8, which happens twice in 1,000 draws, that is not enough, but inputs are drawn from fixed seeds. (What
rounding D costs is limited in each element; the limits above are beyond that.)
"""

ROUNDING_FACTOR: Final = 4.0
ACCUMULATION_FACTOR: Final = 8.0
"""Largest |out - ref| of one element over the root mean square of the reference: the rounding of
that element, 4 tolerances of D's dtype, and 8 of the error of accumulation (8 of an fp32 D's, which is all
accumulation).

The norm of a large matrix hides a small wrong patch: a wrong 64 x 8 fragment of an 8192 x 8192 result
changes it by sqrt(2 * 64 * 8) / 8192 = 3.9e-3. The limit of bf16 is 1.6e-2 beside rounding; 98 in 100 wrong
elements are further off than that. Errors of accumulation are normal: 6 standard deviations of
the errors derived above are less than 3 tolerances.
"""


PRODUCT_TAIL: Final = 3.0
"""How much further off the worst element is where D is a product of several sums, as with a gate.

The error of a sum is multiplied by the other sum, and both are normal. Of 67 million elements the largest
normal one is 5.6 standard deviations from 0, and the largest product of two is 17. On an H200, the worst
elements of gated kernels with 8-bit floats were 1.1 to 2.7 times the limit without this factor, at K = 8192.
"""


@dataclass(frozen=True)
class Tolerance:
    """The largest deviations of a correct kernel."""

    relative: float
    worst_element: float


def tolerance(problem: Matmul, shape: Shape, promote_k: int | None) -> Tolerance:
    """Return how far the result of a problem may be from the exact one, for ``shape`` = [M, N, K].

    ``promote_k`` is the number of K after which the spec has sums added up in full fp32
    (``mma.promote_k``), None if it states none: the tensor cores then add up all of K.

    int8 into int32 must be exact. tf32 adds nothing for its short mantissa: the reference rounds the
    operands as the kernel does, where truncation instead would cost 9e-4.
    """
    d = problem.d
    if d.integer:
        return Tolerance(0.0, 0.0)
    rounding = TOLERANCES[d.name]
    m, n, k = shape
    # A product of several sums is as far off as all of them together, relative to its size.
    of_sums = problem.b_blocks * _accumulation(problem, k, promote_k)
    accumulation = of_sums * (1 + FEW_ELEMENTS / math.sqrt(m * n))
    activations = sum(op.error for op in problem.operations)
    factor = ACCUMULATION_FACTOR if d.bits == 32 else ROUNDING_FACTOR
    tail = PRODUCT_TAIL if problem.gated or problem.d_blocks > 1 else 1.0
    return Tolerance(
        relative=rounding + accumulation + activations,
        worst_element=factor * rounding + tail * ACCUMULATION_FACTOR * (accumulation + activations),
    )


def _accumulation(problem: Matmul, k: int, promote_k: int | None) -> float:
    """Return what accumulation adds to the tolerance."""
    operand = problem.a.multiplied
    if problem.accumulator.integer:
        return 0.0
    if problem.accumulator.bits == 16:
        return FP16_ACCUMULATION * math.sqrt(k + FP16_INSTRUCTION_K)
    if operand.tolerated_k is None:  # 8 bits or fewer
        block = problem.a.scale.vector if problem.scales_sums and problem.a.scale else k
        return FP8_ACCUMULATION * math.sqrt(min(k, promote_k or block))
    beyond = max(0, min(k, promote_k or k) - operand.tolerated_k)
    return FP32_ACCUMULATION * beyond * operand.bytes / WGMMA.k_bytes


Fault = Literal["wrong-kernel", "out-of-memory"]
"""The reason why a check does not pass. Memory that does not suffice says nothing about a kernel."""


@dataclass(frozen=True)
class Check:
    """One number measured on one shape, and its limit."""

    shape: Shape
    what: str
    """The run and the quantity, e.g. ``strided: elements written outside``."""
    measured: float | None
    """The number; None if the check raised or could not run, and ``detail`` has the reason."""
    limit: float
    """The largest measurement that passes."""
    detail: str = ""
    fault: Fault = "wrong-kernel"
    """The code of the diagnostic if the check does not pass."""

    @property
    def passed(self) -> bool:
        """True if there is a measurement within the limit; NaN is not within it."""
        return self.measured is not None and self.measured <= self.limit

    def __str__(self) -> str:
        found = self.detail
        if self.measured is not None:
            found = f"{self.measured:.3g}, the limit is {self.limit:.3g}"
        return f"{shape_text(self.shape)} {self.what}: {found}"

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold; a measurement that is not finite becomes its name."""
        finite = self.measured is None or math.isfinite(self.measured)
        return {
            "shape": list(self.shape),
            "what": self.what,
            "measured": self.measured if finite else str(self.measured),
            "limit": self.limit,
            "passed": self.passed,
            "detail": self.detail,
            "fault": None if self.passed else self.fault,
        }
