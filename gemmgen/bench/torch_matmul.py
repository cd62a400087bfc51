"""The torch call that multiplies the operands of a spec, with the terms of the epilogue that it supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware.elements import FP8
from gemmgen.numerics.encoding import TORCH_DTYPES, DType
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.torch_call import VECTORS, Head, call_text, terms_of
from gemmgen.problem import Matmul
from gemmgen.spec import SpecFile


def head_of(source: SpecFile) -> Head:
    """Return the matmul for a spec's operands.

    Raises GemmgenError (``no-baseline``) for dtypes and formats that torch has no cuBLAS call for.
    """
    problem = source.problem
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
