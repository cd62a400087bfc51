"""What a spec computes: D = ops(alpha * A @ B + beta * C), and which inputs that takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, cast

import torch
from torch import Tensor

from gemmgen.plan.decisions import problem_of
from gemmgen.plan.problem import BlockScale
from gemmgen.problem.dtype import DType
from gemmgen.spec.model import AccumulatorDType, EpilogueOp, Spec

ROW_VECTORS: Final = ("row_scale", "row_bias")
SCALES: Final = ("tensor_scale", "row_scale", "column_scale")
BLOCK_SCALES: Final = ("a_scale", "b_scale")
KEYWORDS: Final = (
    *BLOCK_SCALES,
    "c",
    "row_scale",
    "column_scale",
    "tensor_scale",
    "row_bias",
    "column_bias",
)
"""What a generated ``matmul`` takes besides A and B if its spec names it, in the order of its signature."""

ACTIVATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "relu": "torch.nn.functional.relu({})",
        "gelu_tanh": "torch.nn.functional.gelu({}, approximate='tanh')",
        "gelu_erf": "torch.nn.functional.gelu({})",
        "silu": "torch.nn.functional.silu({})",
    }
)
"""The operations that take nothing but the number, as torch spells them."""


def accumulator_of(spec: Spec) -> AccumulatorDType:
    """Return the type in which products are summed: as stated, or else int32 for int8 and fp32 for floats."""
    return cast(AccumulatorDType, problem_of(spec).accumulator.name)


def alpha_of(spec: Spec) -> float:
    """Return the factor of A @ B."""
    return problem_of(spec).alpha


def beta_of(spec: Spec) -> float:
    """Return the factor of the C that is added before the ops, 0 where none is."""
    problem = problem_of(spec)
    return 0.0 if problem.c is None or problem.residual else problem.beta


def block_scale_of(spec: Spec, operand: str) -> BlockScale | None:
    """Return how the operand ``a`` or ``b`` is scaled block by block, or None."""
    problem = problem_of(spec)
    return problem.a.scale if operand == "a" else problem.b.scale


def dtype_of(spec: Spec, keyword: str) -> DType:
    """Return the element type of an input besides A and B.

    Scales of blocks have that of their format, others are fp32; biases are D's type or fp32.
    """
    if keyword in BLOCK_SCALES:
        scale = block_scale_of(spec, keyword[0])
        assert scale is not None
        return cast(DType, scale.dtype.name)
    if keyword == "c":
        assert spec.operands.c is not None
        return spec.operands.c.dtype
    return cast(DType, problem_of(spec).vector_dtype(keyword).name)


def keywords_of(spec: Spec) -> Iterator[str]:
    """Yield what ``matmul`` takes besides A and B, in the order of its signature."""
    for keyword in KEYWORDS:
        scaled = keyword in BLOCK_SCALES and block_scale_of(spec, keyword[0]) is not None
        if scaled or keyword in spec.epilogue.ops or (keyword == "c" and spec.operands.c is not None):
            yield keyword


def apply(op: EpilogueOp, x: Tensor, extras: Mapping[str, Tensor], rows: slice) -> Tensor:
    """Return an operation's result for some rows x [rows, N] of the result, in x's own precision."""
    if op in ACTIVATIONS:
        return activated(op, x)
    other = extras["c" if op == "residual" else op]
    if op == "tensor_scale":
        other = other.reshape(())
    elif op == "residual":
        other = other[rows]
    elif op in ROW_VECTORS:
        other = other[rows, None]
    return x * other.to(x.dtype) if op in SCALES else x + other.to(x.dtype)


def activated(op: str, x: Tensor) -> Tensor:
    """Return what ``torch.nn.functional`` makes of x."""
    if op == "relu":
        return torch.nn.functional.relu(x)
    if op == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if op == "gelu_tanh" else "none")
