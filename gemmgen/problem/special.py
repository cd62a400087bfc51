"""Inputs with NaN, infinities and negative zeros, and where they must show in the result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from gemmgen.problem.case import Case
from gemmgen.problem.check import Check
from gemmgen.problem.dtype import TORCH_DTYPES, rounded
from gemmgen.problem.inputs import Inputs
from gemmgen.problem.reference import references

E2M1: Final = TORCH_DTYPES["e2m1"]
E2M1_NEGATIVE_ZEROS: Final = 0x88
"""Two elements of -0.0."""
WITHOUT_INFINITY: Final = (torch.float8_e4m3fn, torch.int8, E2M1)


def special_values(case: Case) -> Iterator[Check]:
    """Check that NaN and infinities are where torch has them, and that a row of -0.0 keeps torch's signs.

    The first row of A has an infinity, the last a NaN, the middle one is -0.0 throughout; the last column of
    B has a NaN in its last row, which lies in the last K step. Integers have no such values: then there is no
    check. A D of 8-bit floats has no infinity either: it holds its largest number instead. Of a relu's zeros
    the sign is not checked: torch's own differ between CPU and GPU.

    e2m1 has neither NaN nor infinity, and its zeros have signs. Of a block-scaled operand one scale is NaN
    besides, in a row of A and a column of B of its own where there are enough of them.
    """
    if not case.spec.operands.a.dtype.startswith("int"):
        inputs = case.inputs()
        zeros = _plant(inputs)
        yield from _compared(case, case.run(inputs), inputs, zeros)


def _plant(inputs: Inputs) -> int | None:
    """Write the values; return the row of -0.0, if there are rows enough for one."""
    m, n, k = inputs.shape
    if inputs.a.dtype != E2M1:
        inputs.a[-1, k // 2] = math.nan
    if inputs.a.dtype not in WITHOUT_INFINITY:
        inputs.a[0, 0] = math.inf
    if inputs.b.dtype != E2M1:
        inputs.b[-1, -1] = math.nan
    if (a_scale := inputs.extras.get("a_scale")) is not None:
        # The first row has an infinity, the middle one is -0.0, the last one has a NaN: the row between.
        a_scale[m // 4 or -1, a_scale.shape[1] // 2] = math.nan
    if (b_scale := inputs.extras.get("b_scale")) is not None:
        b_scale[n // 2, -1] = math.nan
    if m < 3:
        return None
    inputs.a[m // 2] = E2M1_NEGATIVE_ZEROS if inputs.a.dtype == E2M1 else -0.0
    return m // 2


def _compared(case: Case, out: Tensor, inputs: Inputs, zeros: int | None) -> Iterator[Check]:
    nan = infinite = sign = 0
    for rows, exact in references(inputs, case.spec):
        expected, found = rounded(exact, out.dtype).float(), out[rows].float()
        nan += int((expected.isnan() != found.isnan()).sum().item())
        infinite += int((_infinity(expected) != _infinity(found)).sum().item())
        if zeros is not None and zeros in range(inputs.shape[0])[rows]:
            row = zeros - rows.start
            sign = int(_other_zeros(expected[row], found[row]).sum().item())
    yield case.check("special values: NaN or no NaN unlike torch", nan, 0)
    yield case.check("special values: infinite or finite unlike torch", infinite, 0)
    if "relu" not in case.spec.epilogue.ops:
        yield case.check("special values: zeros of another sign than torch's", sign, 0)


def _infinity(matrix: Tensor) -> Tensor:
    """Return 1 and -1 where a matrix is infinite, and 0 elsewhere."""
    return torch.where(matrix.isinf(), matrix.sign(), 0.0)


def _other_zeros(expected: Tensor, found: Tensor) -> Tensor:
    return (expected == 0) & (found == 0) & (expected.signbit() != found.signbit())
