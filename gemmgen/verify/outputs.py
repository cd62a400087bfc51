"""Outputs of a simulated launch, compared with the exact result: each by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gemmgen.numerics.case import Case
from gemmgen.numerics.encoding import TORCH_DTYPES, poison, rounded
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import is_touched
from gemmgen.numerics.quantized import dequantized_output, quantized
from gemmgen.numerics.reference import HALF_ULP, compared, plain_product, references_of_saved
from gemmgen.problem import Matmul
from gluonsim.global_memory import GlobalMemory
from gluonsim.tensors.differences import Difference, last_write

WRONG = "are wrong"
Rows = Sequence[tuple[Tensor, Tensor]]
"""Rows that were found, and the same rows of the exact result."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of one launch, and who wrote them."""

    d: Tensor
    """D as numbers: if it has scales, its elements times those."""
    d_stored: Tensor
    """D as the kernel writes it."""
    d_scale: Tensor | None
    """The computed scales of D, if it has some."""
    memory: GlobalMemory


@dataclass(frozen=True)
class WrongOutput:
    """An output with wrong elements."""

    tensor: str
    """Its name in the plan: ``d``, ``d_scale`` or ``saved``."""
    keyword: str
    """Its name in a call of `matmul`; ``d`` for the result."""
    how: str
    """The fault of its elements, in words, such as ``are wrong``."""
    difference: Difference

    def __str__(self) -> str:
        return self.difference.told(f"of {self.keyword} {self.how}")


def written_outside(inputs: Inputs, outputs: Outputs) -> WrongOutput | None:
    """Return the elements of D that are of no group, and were written; None if there are none."""
    d = outputs.d
    outside = torch.ones(d.numel(), dtype=torch.bool)
    outside[inputs.computed_rows(torch.arange(d.numel()).view(d.shape))[:].flatten()] = False
    untouched = torch.full_like(d, poison(d.dtype))
    difference = Difference.of(d, untouched, outside.view(d.shape) & is_touched(d), outputs.memory)
    found = _wrong("d", "d", "are of no group, and are written", outputs.d_stored, difference, outputs.memory)
    return next(found, None)


def wrong_outputs(case: Case, inputs: Inputs, outputs: Outputs, *, exact: bool) -> Iterator[WrongOutput]:
    """Yield each output that has wrong elements; rows of no group are not compared.

    Every bit must be right if the result is ``exact``; else a number may be as far off as `gemmgen test`
    allows for one element.
    """
    problem, memory = case.problem, outputs.memory
    saved = inputs.extras["saved"] if problem.saves else None
    if saved is not None:
        rows = list(compared(saved, *plain_product(inputs, problem)))
        wrong = _differs(rows, problem, _limit(case, rows))
        difference = _difference(saved, inputs, rows, wrong, memory)
        yield from _wrong("saved", "saved", WRONG, saved, difference, memory)
    of_saved = None if saved is None else references_of_saved(saved, inputs, problem)
    rows = list(compared(outputs.d, inputs, problem, of_saved))
    limit = _limit(case, rows)
    if outputs.d_scale is not None:
        yield from _wrong_scales(inputs, problem, outputs, rows, 0.0 if exact else limit)
    if exact:
        rows = [(found, _stored(expected, outputs.d.dtype, problem)) for found, expected in rows]
        wrong = torch.cat([found.double() != expected for found, expected in rows])
    else:
        wrong = _differs(rows, problem, limit)
    difference = _difference(outputs.d, inputs, rows, wrong, memory)
    yield from _wrong("d", "d", WRONG, outputs.d_stored, difference, memory)


def _wrong(
    tensor: str, keyword: str, how: str, stored: Tensor, difference: Difference | None, memory: GlobalMemory
) -> Iterator[WrongOutput]:
    if difference is not None:
        written = last_write(stored, difference.first, memory)
        yield WrongOutput(tensor, keyword, how, replace(difference, written=written))


def _limit(case: Case, rows: Rows) -> float:
    """Return how far an element may be off besides its rounding; the mean is of rows with a result."""
    counted = [expected for _, expected in rows if bool(expected.any())]
    square = sum(float(expected.square().sum()) for expected in counted)
    count = sum(expected.numel() for expected in counted)
    return case.tolerance.worst_element * math.sqrt(square / max(1, count))


def _differs(rows: Rows, problem: Matmul, limit: float) -> Tensor:
    """Return which elements are further off than their rounding and a limit; a NaN is."""
    rounding = HALF_ULP[problem.d.name]
    close = [
        (found.double() - expected).abs() <= rounding * expected.abs() + limit for found, expected in rows
    ]
    return ~torch.cat(close)


def _stored(exact: Tensor, dtype: torch.dtype, problem: Matmul) -> Tensor:
    """Return an exact D as the numbers that a kernel stores."""
    if problem.d_scale is None:
        return rounded(exact, dtype).double()
    return dequantized_output(*_quantized(exact, problem)).double()


def _quantized(exact: Tensor, problem: Matmul) -> tuple[Tensor, Tensor]:
    scale = problem.d_scale
    assert scale is not None
    return quantized(exact, scale.vector, TORCH_DTYPES[problem.d.name], TORCH_DTYPES[scale.dtype.name])


def _wrong_scales(
    inputs: Inputs, problem: Matmul, outputs: Outputs, rows: Rows, limit: float
) -> Iterator[WrongOutput]:
    """Yield the scales of D if some are wrong, given how far an element of D may be off.

    A scale is the largest magnitude of a block over the largest number of D's type, so it may be off by the
    same part of the limit. A power of two may be the next one.
    """
    assert outputs.d_scale is not None
    found = inputs.computed_rows(outputs.d_scale)[:].double()
    wanted = torch.cat([_quantized(expected, problem)[1].double() for _, expected in rows])
    allowed = torch.full_like(wanted, limit / torch.finfo(outputs.d_stored.dtype).max)
    if limit and outputs.d_scale.dtype == torch.float8_e8m0fnu:
        allowed = allowed + wanted
    wrong = ~((found - wanted).abs() <= allowed)
    difference = _difference(outputs.d_scale, inputs, [(found, wanted)], wrong, outputs.memory)
    yield from _wrong("d_scale", "out_scale", WRONG, outputs.d_scale, difference, outputs.memory)


def _difference(
    tensor: Tensor, inputs: Inputs, rows: Rows, wrong: Tensor, memory: GlobalMemory
) -> Difference | None:
    """Return the wrong elements of a tensor, given which elements of its computed rows are wrong."""
    places = torch.arange(tensor.numel()).view(tensor.shape)
    of_rows = inputs.computed_rows(places)[:].flatten()
    wanted, differs = tensor.double().flatten(), torch.zeros(tensor.numel(), dtype=torch.bool)
    wanted[of_rows] = torch.cat([expected for _, expected in rows]).double().flatten()
    differs[of_rows] = wrong.flatten()
    return Difference.of(tensor, wanted.view(tensor.shape), differs.view(tensor.shape), memory)
