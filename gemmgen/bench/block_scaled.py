"""``torch._scaled_mm`` of block-scaled operands, where cuBLAS has their formats.

Its signature is that of torch 2.13; 2.11 takes the same: scales of mxfp8 as ``float8_e8m0fnu``, of nvfp4 as
``float8_e4m3fn``, both in blocks of 128 x 4 as ``pack_scales`` lays them out, and pairs of e2m1 as
``float4_e2m1fn_x2``. No Blackwell GPU was at hand to run it on: torch's own checks of shapes accept the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from gemmgen.bench.call import Head, call_text
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.decisions import problem_of
from gemmgen.problem.dtype import TORCH_DTYPES, DType
from gemmgen.problem.inputs import Inputs
from gemmgen.spec.model import Spec

CUBLAS_FORMATS: Final = ("mxfp8", "nvfp4")
"""Each by itself: cuBLAS mixes none. mxfp4 torch has for AMD only, or from another library than cuBLAS."""
CUBLAS_D: Final = ("bf16", "fp16", "fp32")


def offered(spec: Spec) -> bool:
    """Whether ``torch._scaled_mm`` multiplies a spec's block-scaled operands on an NVIDIA GPU."""
    a, b = spec.operands.a, spec.operands.b
    if a.scale is None or b.scale is None or a.scale.format != b.scale.format:
        return False
    return a.scale.format in CUBLAS_FORMATS and (a.dtype, b.dtype) != ("e5m2", "e5m2")


def formats_text(spec: Spec) -> str:
    """Return the formats of A and B, with the types of elements where a format has several."""
    problem = problem_of(spec)
    names: list[str] = []
    for operand in (problem.a, problem.b):
        name = operand.scale.format.name if operand.scale else operand.dtype.name
        names.append(f"{name} ({operand.dtype.name})" if name == "mxfp8" else name)
    return names[0] if names[0] == names[1] else " and ".join(names)


def block_scaled_mm(spec: Spec) -> Head:
    """Return the product of scaled operands into D's type, or into bf16 where cuBLAS writes no such D.

    It takes scales that are packed already. Operations, a factor for the tensor too, are not among its
    arguments.

    Raises GemmgenError (``no-baseline``) for formats that it does not take.
    """
    if not offered(spec):
        message = f"torch has no cuBLAS matmul of block-scaled {formats_text(spec)}"
        raise GemmgenError([Diagnostic("cublas", "no-baseline", message)])
    d = spec.operands.d.dtype
    product: DType = d if d in CUBLAS_D else "bf16"
    into_d = product == d
    operands = tuple(
        f"{name}.view(torch.float4_e2m1fn_x2)" if operand.dtype == "e2m1" else name
        for name, operand in (("a", spec.operands.a), ("b", spec.operands.b))
    )
    scales = {f"scale_{name}": f"{name}_scale" for name in "ab"}
    keywords = {"out_dtype": TORCH_DTYPES[product]}
    text = call_text("_scaled_mm", operands, {**scales, **keywords}, into_d)
    return Head(text, product, partial(_bind, keywords, into_d), 0)


def _bind(keywords: dict[str, Any], into_d: bool, inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
    """Bind the call to its tensors, of which the scales are packed."""
    scale_a, scale_b = (inputs.extras[name].flatten() for name in ("a_scale", "b_scale"))
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
