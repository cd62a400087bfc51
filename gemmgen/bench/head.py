"""Which matmul a baseline begins with: the torch call that takes in most of what the spec computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmgen.bench.block_scaled import block_scaled_mm
from gemmgen.bench.call import Head, call_text
from gemmgen.bench.eager import terms_of
from gemmgen.bench.scaled import scaled_mm
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.decisions import problem_of
from gemmgen.problem.dtype import FP8, TORCH_DTYPES, DType
from gemmgen.problem.formula import alpha_of, beta_of, dtype_of
from gemmgen.problem.inputs import Inputs
from gemmgen.spec.model import Spec


def head_of(spec: Spec) -> Head:
    """Return the matmul for a spec's operands.

    Raises GemmgenError (``no-baseline``) for dtypes and formats that torch has no cuBLAS call for.
    """
    if problem_of(spec).block_scaled:
        return block_scaled_mm(spec)
    a, b, d = spec.operands.a.dtype, spec.operands.b.dtype, spec.operands.d.dtype
    into = {"bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32"), "tf32": ("fp32", "bf16", "fp16")}
    if a == "int8" == b:
        return _int_mm(spec)
    if a in FP8 and b in FP8 and (a, b) != ("e5m2", "e5m2"):
        if spec.operands.a.major == "mn":  # _scaled_mm takes a row-major A only
            message = f"torch has no cuBLAS matmul of {a} and {b} with an M-contiguous A"
            raise GemmgenError([Diagnostic("cublas", "no-baseline", message)])
        return scaled_mm(spec)
    if a != b or d not in (*into.get(a, ()), *FP8) or a in FP8:
        message = f"torch has no cuBLAS matmul of {a} and {b} into {d}"
        raise GemmgenError([Diagnostic("cublas", "no-baseline", message)])
    return _matmul(spec, "fp32" if a == "tf32" or d == "fp32" else a)


def _matmul(spec: Spec, product: DType) -> Head:
    """Return the product of 16-bit floats or of tf32."""
    into_d = TORCH_DTYPES[product] == TORCH_DTYPES[spec.operands.d.dtype]
    wide = product == "fp32" and spec.operands.a.dtype != "tf32"
    keywords: dict[str, Any] = {"out_dtype": torch.float32} if wide else {}
    addend, factors, taken = _addmm_terms(spec, product, into_d=into_d)
    if not taken:
        name = "mm" if wide else "matmul"
        bind = partial(_bound, getattr(torch, name), (), keywords, into_d)
        return Head(call_text(name, ("a", "b"), keywords, into_d), product, bind, 0)
    keywords = {**factors, **keywords}
    bind = partial(_bound, torch.addmm, (addend,), keywords, into_d)
    return Head(call_text("addmm", (addend, "a", "b"), keywords, into_d), product, bind, taken)


def _addmm_terms(spec: Spec, product: DType, *, into_d: bool) -> tuple[str, dict[str, float], int]:
    """Return what ``addmm`` adds, its factors unless they are 1, and how many terms it takes in.

    Where only alpha is to be taken in, it adds 0 * d, which it does not read.
    """
    terms, alpha = terms_of(spec), alpha_of(spec)
    factors = {"alpha": alpha} if alpha != 1 else {}
    for term, addend in (("c", "c"), ("residual", "c"), ("column_bias", "column_bias")):
        if terms[len(factors) :][:1] == (term,) and dtype_of(spec, addend) == product:
            beta = beta_of(spec) if term == "c" else 1.0
            return addend, ({"beta": beta} if beta != 1 else {}) | factors, len(factors) + 1
    return ("d", {"beta": 0, **factors}, 1) if factors and into_d else ("", {}, 0)


def _int_mm(spec: Spec) -> Head:
    into_d = spec.operands.d.dtype == "int32"
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
    """Bind a function of what comes before A and B, and of them."""
    first = [d if name == "d" else inputs.extras[name] for name in before]
    into = {"out": d} if into_d else {}
    return partial(function, *first, inputs.a, inputs.b, **keywords, **into)
