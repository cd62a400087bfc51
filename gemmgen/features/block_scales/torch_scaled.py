"""The torch call that multiplies block-scaled operands.

The signature of ``torch._scaled_mm`` is that of torch 2.13; 2.11 takes the same: scales of mxfp8 as
``float8_e8m0fnu``, of nvfp4 as ``float8_e4m3fn``, both in blocks of 128 x 4 as ``pack_scales`` lays them out,
and pairs of e2m1 as ``float4_e2m1fn_x2``. No Blackwell GPU was at hand to run these on: torch's own checks of
shapes accept the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.numerics.encoding import TORCH_DTYPES, DType
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.torch_call import Head, call_text
from gemmgen.problem import Matmul
from gemmgen.problem.contest import formats_text

CUBLAS_FORMATS: Final = (
    ("mxfp8", "mxfp8"),
    ("nvfp4", "nvfp4"),
    ("fp32_1x128", "fp32_128x128"),
    ("fp32_1x128", "fp32_1x128"),
)
"""Formats of A and B that cuBLAS multiplies. For mxfp4 torch supports only AMD, or another library."""
CUBLAS_D: Final = ("bf16", "fp16", "fp32")
"""Types of D that cuBLAS writes for block-scaled operands."""


def offered(problem: Matmul) -> bool:
    """Return True if ``torch._scaled_mm`` multiplies the block-scaled operands on an NVIDIA GPU."""
    a, b = problem.a, problem.b
    if a.scale is None or b.scale is None:
        return False
    formats = (a.scale.format.name, b.scale.format.name)
    return formats in CUBLAS_FORMATS and (a.dtype.name, b.dtype.name) != ("e5m2", "e5m2")


def block_scaled_mm(problem: Matmul) -> Head:
    """Return the product of scaled operands in D's type, or in bf16 if cuBLAS cannot write that type.

    Scales that the tensor cores read must be packed; fp32 scales lie as the kernel reads them. The call
    includes no operations, and no factor for the tensor either.

    Raises GemmgenError (``no-baseline``) for formats that it does not support.
    """
    if not offered(problem):
        lacking = f"torch has no cuBLAS matmul of block-scaled {formats_text(problem)}"
        message = f"{lacking}: state another module of the spec with --against"
        raise GemmgenError([Diagnostic("cublas", "no-baseline", message)])
    d = problem.d.name
    product: DType = d if d in CUBLAS_D and problem.packs_scales else "bf16"
    into_d = product == d
    operands = tuple(
        f"{name}.view(torch.float4_e2m1fn_x2)" if operand.dtype.name == "e2m1" else name
        for name, operand in (("a", problem.a), ("b", problem.b))
    )
    scales = {"scale_a": "a_scale", "scale_b": f"b_scale{'.T' * problem.scales_sums}"}
    keywords = {"out_dtype": TORCH_DTYPES[product]}
    text = call_text("_scaled_mm", operands, {**scales, **keywords}, into_d)
    of_call = _packed_scales if problem.packs_scales else _scales_of_sums
    bind = partial(_bind_block_scaled, of_call, keywords, into_d)
    return Head(text, product, bind, 0, operands=operands_text(problem))


def _packed_scales(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return packed scales of A and of B as the call takes them."""
    return inputs.extras["a_scale"].flatten(), inputs.extras["b_scale"].flatten()


def _scales_of_sums(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return fp32 scales of A and of B as the call takes them: columns of M or N scales without a gap."""
    scale_a, scale_b = inputs.extras["a_scale"], inputs.extras["b_scale"]
    if scale_b.shape[0] == inputs.shape[1]:
        scale_b = scale_b.T.contiguous().T
    return scale_a.T.contiguous().T, scale_b.T


def _bind_block_scaled(
    of_call: Callable[[Inputs], tuple[Tensor, Tensor]],
    keywords: dict[str, Any],
    into_d: bool,
    inputs: Inputs,
    d: Tensor,
) -> Callable[[], Tensor]:
    """Bind the call to its tensors, with scales as it takes them."""
    scale_a, scale_b = of_call(inputs)
    into = {"out": d} if into_d else {}
    function: Any = torch
    return partial(
        function._scaled_mm,
        _pairs(inputs.a),
        _pairs(inputs.b),
        scale_a=scale_a,
        scale_b=scale_b,
        **keywords,
        **into,
    )


def _pairs(operand: Tensor) -> Tensor:
    """Return bytes of e2m1 as torch's type for two of them."""
    return operand.view(torch.float4_e2m1fn_x2) if operand.dtype == torch.uint8 else operand


def operands_text(problem: Matmul) -> str:
    """Return the formats of A and B, and how their scales are passed, in words."""
    before = "scales packed before" if problem.packs_scales else "scales as both kernels read them"
    return f"{formats_text(problem)}, {before}"
