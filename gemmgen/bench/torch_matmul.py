"""The torch call that multiplies the operands of a spec, with the terms of the epilogue that it supports.

The signature of ``torch._scaled_mm`` is that of torch 2.13; 2.11 takes the same: scales of mxfp8 as
``float8_e8m0fnu``, of nvfp4 as ``float8_e4m3fn``, both in blocks of 128 x 4 as ``pack_scales`` lays them out,
and pairs of e2m1 as ``float4_e2m1fn_x2``. No Blackwell GPU was at hand to run these on: torch's own checks of
shapes accept the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware.elements import FP8
from gemmgen.numerics.encoding import TORCH_DTYPES, DType
from gemmgen.numerics.inputs import Inputs
from gemmgen.problem import Matmul
from gemmgen.problem.contest import formats_text
from gemmgen.spec import SpecFile

CUBLAS_FORMATS: Final = (
    ("mxfp8", "mxfp8"),
    ("nvfp4", "nvfp4"),
    ("fp32_1x128", "fp32_128x128"),
    ("fp32_1x128", "fp32_1x128"),
)
"""Formats of A and B that cuBLAS multiplies. For mxfp4 torch supports only AMD, or another library."""
CUBLAS_D: Final = ("bf16", "fp16", "fp32")
"""Types of D that cuBLAS writes for block-scaled operands."""
VECTORS: Final = ("row_scale", "column_scale")
"""Scales of rows and columns that ``_scaled_mm`` multiplies by."""
Call = Callable[[Inputs, Tensor], Callable[[], Tensor]]
"""Binds inputs and d [M, N]; the function that it returns enqueues the product and returns the result: d, or
another tensor if the call cannot write d.
"""


@dataclass(frozen=True)
class Head:
    """A call of torch that multiplies A and B, with the terms that it includes."""

    text: str
    product: DType
    """Type of the result; the result is d if that is D's type."""
    bind: Call
    taken: int
    """Number of the spec's terms that the call includes."""
    by: str = "cuBLAS's default choice"
    """The software that multiplies, and how its algorithm is chosen."""


def terms_of(problem: Matmul) -> tuple[str, ...]:
    """Return the names of the epilogue's steps, in order; empty if the epilogue is not a chain.

    A call of torch can include only the first steps of a chain.
    """
    return problem.steps if problem.epilogue.is_chain else ()


def head_of(source: SpecFile) -> Head:
    """Return the matmul for a spec's operands.

    Raises GemmgenError (``no-baseline``) for dtypes and formats that torch has no cuBLAS call for.
    """
    problem = source.problem
    if problem.block_scaled:
        return block_scaled_mm(problem)
    a, b, d = problem.a.dtype.name, problem.b.dtype.name, problem.d.name
    into = {"bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32"), "tf32": ("fp32", "bf16", "fp16")}
    if a == "int8" == b:
        return _int_mm(problem)
    if a in FP8 and b in FP8 and (a, b) != ("e5m2", "e5m2"):
        if problem.a.major == "mn":  # _scaled_mm takes a row-major A only
            message = f"torch has no cuBLAS matmul of {a} and {b} with an M-contiguous A"
            raise GemmgenError([Diagnostic("cublas", "no-baseline", message)])
        return scaled_mm(problem, source.promote_k)
    if a != b or d not in (*into.get(a, ()), *FP8) or a in FP8:
        message = f"torch has no cuBLAS matmul of {a} and {b} into {d}"
        raise GemmgenError([Diagnostic("cublas", "no-baseline", message)])
    return _matmul(problem, "fp32" if a == "tf32" or d == "fp32" else a)


# --- 16-bit floats, tf32, int8


def _matmul(problem: Matmul, product: DType) -> Head:
    """Return the product of 16-bit floats or of tf32."""
    into_d = TORCH_DTYPES[product] == TORCH_DTYPES[problem.d.name] and problem.product_is_d_wide
    wide = product == "fp32" and problem.a.dtype.name != "tf32"
    keywords: dict[str, Any] = {"out_dtype": torch.float32} if wide else {}
    addend, factors, taken = _addmm_terms(problem, product, into_d=into_d)
    if not taken:
        name = "mm" if wide else "matmul"
        bind = partial(_bound, getattr(torch, name), (), keywords, into_d)
        return Head(call_text(name, ("a", "b"), keywords, into_d), product, bind, 0)
    keywords = {**factors, **keywords}
    bind = partial(_bound, torch.addmm, (addend,), keywords, into_d)
    return Head(call_text("addmm", (addend, "a", "b"), keywords, into_d), product, bind, taken)


def _addmm_terms(problem: Matmul, product: DType, *, into_d: bool) -> tuple[str, dict[str, float], int]:
    """Return the addend of ``addmm``, its factors other than 1, and the number of terms that it includes.

    If it includes alpha alone, it adds 0 * d, which it does not read.
    """
    terms, alpha = terms_of(problem), problem.epilogue.alpha
    factors = {"alpha": alpha} if terms[:1] == ("alpha",) else {}
    for term, addend in (("c", "c"), ("column_bias", "column_bias")):
        dtype = problem.c if term == "c" else problem.vector_dtype(addend)
        if terms[len(factors) :][:1] == (term,) and dtype is not None and dtype.name == product:
            beta = problem.epilogue.beta if term == "c" else 1.0
            return addend, ({"beta": beta} if beta != 1 else {}) | factors, len(factors) + 1
    return ("d", {"beta": 0, **factors}, 1) if factors and into_d else ("", {}, 0)


def _int_mm(problem: Matmul) -> Head:
    into_d = problem.d.name == "int32" and problem.product_is_d_wide
    function: Any = torch
    bind = partial(_bound, function._int_mm, (), {}, into_d)
    return Head(call_text("_int_mm", ("a", "b"), {}, into_d), "int32", bind, 0)


def _bound(
    function: Callable[..., Tensor],
    before: tuple[str, ...],
    keywords: Mapping[str, Any],
    into_d: bool,
    inputs: Inputs,
    d: Tensor,
) -> Callable[[], Tensor]:
    """Bind a function to its first arguments, A and B."""
    first = [d if name == "d" else inputs.extras[name] for name in before]
    into = {"out": d} if into_d else {}
    return partial(function, *first, inputs.a, inputs.b, **keywords, **into)


# --- 8-bit floats


@dataclass(frozen=True)
class _Scaled:
    """The terms of an epilogue that the call includes."""

    alpha: float
    vectors: tuple[str, ...]
    """Scales of rows and columns; ones stand for a missing one of the two."""
    tensor_scale: bool
    bias: bool
    product: DType
    taken: int


def scaled_mm(problem: Matmul, promote_k: int | None) -> Head:
    """Return the product, with fast accumulation unless the spec promotes its sums (``promote_k``).

    Scales of 1, unless alpha, ``tensor_scale``, or ``row_scale`` and ``column_scale`` come first.
    """
    scaled = _scaled(problem)
    into_d = scaled.product == problem.d.name and problem.product_is_d_wide
    scale_a, scale_b = f"{scaled.alpha:g}", "tensor_scale" if scaled.tensor_scale else "1"
    if scaled.vectors:
        rows, columns = (name if name in scaled.vectors else "ones" for name in VECTORS)
        scale_a, scale_b = f"{rows}[:, None]", f"{columns}[None]"
    scales = {"scale_a": scale_a, "scale_b": scale_b, **({"bias": "column_bias"} if scaled.bias else {})}
    keywords = {
        "out_dtype": TORCH_DTYPES[scaled.product],
        "use_fast_accum": promote_k is None,
    }
    text = call_text("_scaled_mm", ("a", "b"), {**scales, **keywords}, into_d)
    return Head(text, scaled.product, partial(_bind_scaled, scaled, keywords, into_d), scaled.taken)


def _scaled(problem: Matmul) -> _Scaled:
    """Decide which terms the call includes.

    Measured on an H200: cuBLAS writes no e5m2, no e4m3 with vectors of scales, and adds no bias of fp32.
    """
    terms, d = terms_of(problem), problem.d.name
    alpha = problem.epilogue.alpha if terms[:1] == ("alpha",) else 1.0
    leading = 0
    while alpha == 1 and leading < len(terms) and terms[leading] in VECTORS:
        leading += 1
    taken = leading or int(alpha != 1)
    tensor_scale = not leading and terms[taken : taken + 1] == ("tensor_scale",)
    taken += tensor_scale
    more = len(terms) > taken
    product: DType = "bf16" if d == "e5m2" or (d == "e4m3" and (more or leading)) else d
    bias = (
        terms[taken : taken + 1] == ("column_bias",) and problem.vector_dtype("column_bias").name == product
    )
    bias = bias and product != "fp32"
    return _Scaled(alpha, terms[:leading], tensor_scale, bias, product, taken + bias)


def _bind_scaled(
    scaled: _Scaled, keywords: dict[str, Any], into_d: bool, inputs: Inputs, d: Tensor
) -> Callable[[], Tensor]:
    """Bind the call to its tensors; scales of 1 are made here."""
    extras, (m, n, _), device = inputs.extras, inputs.shape, inputs.a.device
    if scaled.vectors:
        ones = {"row_scale": torch.ones(m, device=device), "column_scale": torch.ones(n, device=device)}
        scale_a, scale_b = (extras[name] if name in scaled.vectors else ones[name] for name in VECTORS)
        scale_a, scale_b = scale_a[:, None], scale_b[None]
    else:
        one = torch.ones((), device=device)
        scale_a, scale_b = one * scaled.alpha, extras["tensor_scale"][0] if scaled.tensor_scale else one
    more: dict[str, Tensor] = {"bias": extras["column_bias"]} if scaled.bias else {}
    if into_d:
        more["out"] = d
    function: Any = torch
    return partial(
        function._scaled_mm, inputs.a, inputs.b, scale_a=scale_a, scale_b=scale_b, **more, **keywords
    )


# --- block-scaled operands


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
    return Head(text, product, partial(_bind_block_scaled, of_call, keywords, into_d), 0)


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


def call_text(name: str, arguments: tuple[str, ...], keywords: Mapping[str, Any], into_d: bool) -> str:
    """Return the call as it is written in Python."""
    shown = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in keywords.items()
    ]
    return f"torch.{name}({', '.join((*arguments, *shown, *(('out=d',) if into_d else ())))})"
