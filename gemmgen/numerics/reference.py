"""The exact result, and how far a computed one is from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES
from gemmgen.hardware.elements import Column
from gemmgen.numerics.encoding import TORCH_DTYPES, decoded, dequantized, rounded_to_tf32, saturated
from gemmgen.numerics.inputs import Inputs, alpha_of, beta_of, block_scale_of, dtype_of
from gemmgen.plan.decisions import problem_of
from gemmgen.problem.operations import OPERATIONS, OpParameter, torch_keywords
from gemmgen.spec.model import Spec

HALF_ULP: Final[Column[float]] = Column(DTYPES, lambda dtype: dtype.half_ulp)
"""The most that rounding to an element type costs a number, relative to it. Below the least normal number
it is more, but that is nothing against a root mean square near 1 or above."""
CHUNK_BYTES: Final = 256 << 20
"""Of reference rows that exist at a time."""


@dataclass(frozen=True)
class Deviation:
    """How far a result is from the exact one; NaN when the result holds one."""

    relative: float
    """||out - ref|| / ||ref||, Frobenius norms."""
    worst_element: float
    """Largest |out - ref|, less what rounding that element to D's type may cost, over the root mean square
    of the reference."""


def references(inputs: Inputs, spec: Spec) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the exact D [M, N] in float64, on the inputs' device, and which rows they are.

    tf32 operands are rounded first, as TMA rounds them. Products of 16-bit floats are exact in float64, as
    are those of 8- and 4-bit floats and their scales, of 16 bits together at most; a sum of K of them loses
    at most K * 2**-53 of the sum of their magnitudes: nothing, here; integers lose nothing at all. A D of
    8-bit floats saturates. Rows are computed in chunks, so that besides B in float64 only one chunk, and
    what the ops make of it, needs memory.
    """
    problem = problem_of(spec)
    b_exact = _exact(inputs, spec, "b").T
    count = max(1, CHUNK_BYTES // (8 * inputs.b.shape[1]))
    for first in range(0, inputs.a.shape[0], count):
        rows = slice(first, first + count)
        d = _exact(inputs, spec, "a", rows) @ b_exact
        if (alpha := alpha_of(spec)) != 1:
            d = alpha * d
        if beta := beta_of(spec):
            d = d + beta * inputs.extras["c"][rows].double()
        for op in problem.ops:
            d = apply(op, d, inputs.extras, rows, problem.parameters)
        yield rows, saturated(d, TORCH_DTYPES[spec.operands.d.dtype])


def reference(inputs: Inputs, spec: Spec) -> Tensor:
    """Return the whole exact D [M, N] in float64."""
    return torch.cat([rows for _, rows in references(inputs, spec)])


def deviation(out: Tensor, inputs: Inputs, spec: Spec) -> Deviation:
    """Compare out [M, N] with the exact result of its inputs."""
    zero = torch.zeros((), dtype=torch.float64, device=out.device)
    square_error, square_reference, worst = zero, zero, zero
    rounding = HALF_ULP[spec.operands.d.dtype]
    for rows, exact in references(inputs, spec):
        error = (out[rows].double() - exact).abs_()
        square_reference = square_reference + exact.square().sum()
        worst = torch.maximum(worst, (error - rounding * exact.abs_()).max())
        square_error = square_error + error.square_().sum()
    mean_square = square_reference / out.numel()
    return Deviation(
        relative=_ratio(math.sqrt(square_error.item()), math.sqrt(square_reference.item())),
        worst_element=_ratio(worst.item(), math.sqrt(mean_square.item())),
    )


def apply(
    op: str, x: Tensor, extras: Mapping[str, Tensor], rows: slice, parameters: Iterable[OpParameter] = ()
) -> Tensor:
    """Return an operation's result for some rows x [rows, N] of the result, in x's own precision."""
    operation = OPERATIONS[op]
    if operation.function:
        return activated(op, x, parameters)
    other = extras["c" if operation.operand == "matrix" else op].to(x.dtype)
    match operation.operand:
        case "scalar":
            other = other.reshape(())
        case "matrix":
            other = other[rows]
        case "row":
            other = other[rows, None]
        case _:  # that of the columns is added to each row
            pass
    return x * other if operation.effect == "times" else x + other


def activated(op: str, x: Tensor, parameters: Iterable[OpParameter] = ()) -> Tensor:
    """Return what an activation's function of ``torch.nn.functional`` makes of x.

    Raises KeyError for what is no activation.
    """
    keywords = torch_keywords(op, parameters)
    function: Callable[..., Tensor] = getattr(torch.nn.functional, OPERATIONS[op].torch)
    return function(x, **keywords)


def _exact(inputs: Inputs, spec: Spec, name: str, rows: slice = slice(None)) -> Tensor:
    """Return what the tensor cores multiply, in float64: rows of ``a`` [M, K], or of ``b`` as [N, K]."""
    stored, dtype = (inputs.a, spec.operands.a.dtype) if name == "a" else (inputs.b.T, spec.operands.b.dtype)
    operand = stored[rows]
    if DTYPES[dtype].in_memory:
        return rounded_to_tf32(operand).double()
    elements = decoded(operand, dtype)
    if (block := block_scale_of(spec, name)) is None:
        return elements
    scale = f"{name}_scale"
    scales = decoded(inputs.extras[scale][rows], dtype_of(spec, scale))
    return dequantized(elements, scales, block.vector)


def _ratio(error: float, size: float) -> float:
    """Return their quotient; a result that must be 0 everywhere is right or infinitely far off."""
    if size == 0:
        return 0.0 if error == 0 else math.inf
    return error / size
