"""``torch._scaled_mm``: the product of 8-bit floats, with the scales and the bias that it can apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from gemmgen.bench.call import Head, call_text
from gemmgen.bench.eager import terms_of
from gemmgen.problem.dtype import TORCH_DTYPES, DType
from gemmgen.problem.formula import alpha_of, dtype_of
from gemmgen.problem.inputs import Inputs
from gemmgen.spec.model import Spec

VECTORS: Final = ("row_scale", "column_scale")


@dataclass(frozen=True)
class _Scaled:
    """What of a spec the call takes in."""

    alpha: float
    vectors: bool
    """Whether it scales by a vector for the rows and one for the columns, of ones where the spec has none."""
    tensor_scale: bool
    bias: bool
    product: DType
    taken: int


def scaled_mm(spec: Spec) -> Head:
    """Return the product, with fast accumulation unless the spec promotes its sums (``mma.promote_k``).

    Scales of 1, unless alpha, ``tensor_scale``, or ``row_scale`` and ``column_scale`` come first.
    """
    scaled = _scaled(spec)
    into_d = scaled.product == spec.operands.d.dtype
    scale_a, scale_b = f"{scaled.alpha:g}", "tensor_scale" if scaled.tensor_scale else "1"
    if scaled.vectors:
        rows, columns = (name if name in spec.epilogue.ops else "ones" for name in VECTORS)
        scale_a, scale_b = f"{rows}[:, None]", f"{columns}[None]"
    scales = {"scale_a": scale_a, "scale_b": scale_b, **({"bias": "column_bias"} if scaled.bias else {})}
    keywords = {
        "out_dtype": TORCH_DTYPES[scaled.product],
        "use_fast_accum": spec.mma.promote_k is None,
    }
    text = call_text("_scaled_mm", ("a", "b"), {**scales, **keywords}, into_d)
    return Head(text, scaled.product, partial(_bind, scaled, keywords, into_d), scaled.taken)


def _scaled(spec: Spec) -> _Scaled:
    """Decide what the call takes in.

    Measured on an H200: cuBLAS writes no e5m2, no e4m3 with vectors of scales, and adds no bias of fp32.
    """
    terms, d, alpha = terms_of(spec), spec.operands.d.dtype, alpha_of(spec)
    leading = 0
    while alpha == 1 and leading < len(terms) and terms[leading] in VECTORS:
        leading += 1
    taken = leading or int(alpha != 1)
    tensor_scale = not leading and terms[taken : taken + 1] == ("tensor_scale",)
    taken += tensor_scale
    more = len(terms) > taken
    product: DType = "bf16" if d == "e5m2" or (d == "e4m3" and (more or leading)) else d
    bias = terms[taken : taken + 1] == ("column_bias",) and dtype_of(spec, "column_bias") == product
    bias = bias and product != "fp32"
    return _Scaled(alpha, bool(leading), tensor_scale, bias, product, taken + bias)


def _bind(
    scaled: _Scaled, keywords: dict[str, Any], into_d: bool, inputs: Inputs, d: Tensor
) -> Callable[[], Tensor]:
    """Bind the call to its tensors; scales of 1 are made here."""
    extras, (m, n, _), device = inputs.extras, inputs.shape, inputs.a.device
    if scaled.vectors:
        scale_a = extras.get("row_scale", torch.ones(m, device=device))[:, None]
        scale_b = extras.get("column_scale", torch.ones(n, device=device))[None]
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
