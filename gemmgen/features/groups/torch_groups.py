"""The torch call that multiplies the groups of a spec, and the tensors of its epilogue as torch needs them.

``torch._grouped_mm`` and ``torch._scaled_grouped_mm`` are private in torch 2.11; the public
``torch.nn.functional.grouped_mm`` of later releases calls the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.block_scales.torch_scaled import operands_text
from gemmgen.hardware.elements import FP8
from gemmgen.numerics.encoding import TORCH_DTYPES, DType
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.torch_call import VECTORS, Head, call_text, terms_of
from gemmgen.problem import Matmul
from gemmgen.problem.epilogue import Load
from gemmgen.problem.groups import Groups

GROUPED: Final = "torch"
"""The software behind the calls of groups, which has kernels of its own."""
HALVES: Final = ("bf16", "fp16")
any_torch: Any = torch


def head_of_groups(problem: Matmul, *, fast_accum: bool) -> Head:
    """Return the product of the groups of a problem.

    It is ``torch.bmm`` for batches and for masked groups, whose rows of no group are then multiplied too, and
    ``torch._grouped_mm`` for groups that `offs` divides; ``torch._scaled_grouped_mm`` for 8-bit floats.

    Raises GemmgenError (``no-baseline``) for types that these calls do not take, and for vectors of groups in
    an epilogue that is an expression, except for factors of the rows of one A.
    """
    groups = problem.groups
    assert groups is not None
    a, b = problem.a.dtype.name, problem.b.dtype.name
    of_rows = not groups.apart and all(Load(name).operand == "row" for name in problem.vectors)
    if problem.vectors and not (problem.epilogue.is_chain or of_rows):
        raise _refused("torch has no call for vectors of groups in an expression")
    if a in FP8 and b == a == "e4m3" and not groups.divides_k:
        head = _scaled_grouped_mm(problem, fast_accum=fast_accum)
    elif a != b or a not in (*HALVES, "tf32") or (a == "tf32" and not groups.apart):
        raise _refused(f"torch has no matmul of groups of {a} and {b}")
    else:
        head = _bmm(problem) if groups.apart else _grouped_mm(problem)
    operands = operands_text(problem) if problem.block_scaled else None
    if not groups.apart:
        operands = a if a == b else f"{a} and {b}"
    return replace(head, operands=operands, vectors=GroupVectors(groups))


def _refused(message: str) -> GemmgenError:
    return GemmgenError([Diagnostic("torch", "no-baseline", message)])


def _bmm(problem: Matmul) -> Head:
    """Return the product of batches; into fp32 with a D of fp32."""
    a, d = problem.a.dtype.name, problem.d.name
    product: DType = "fp32" if a == "tf32" or d == "fp32" else a
    keywords: dict[str, Any] = {"out_dtype": torch.float32} if product == "fp32" and a != "tf32" else {}
    into_d = TORCH_DTYPES[product] == TORCH_DTYPES[d] and problem.product_is_d_wide
    text = call_text("bmm", ("a", "b"), keywords, into_d)
    if problem.groups and problem.groups.counts:
        text += " of all M rows"
    return Head(text, product, partial(_bind, torch.bmm, keywords, into_d), 0)


def _grouped_mm(problem: Matmul) -> Head:
    text = call_text("_grouped_mm", ("a", "b", "offs=offs"), {}, into_d=False)
    return Head(text, problem.a.dtype.name, _bind_grouped, 0, GROUPED)


def _bind(
    function: Callable[..., Tensor], keywords: dict[str, Any], into_d: bool, inputs: Inputs, d: Tensor
) -> Callable[[], Tensor]:
    """Bind a function of A and B, and of D if it writes that."""
    into = {"out": d} if into_d else {}
    count = max(len(inputs.a), len(inputs.b))  # all groups may share one of them
    a, b = (each.expand(count, -1, -1) for each in (inputs.a, inputs.b))
    return partial(function, a, b, **keywords, **into)


def _bind_grouped(inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:  # noqa: ARG001 - torch allocates D
    return partial(any_torch._grouped_mm, inputs.a, inputs.b, offs=inputs.extras["offs"])


def _scaled_grouped_mm(problem: Matmul, *, fast_accum: bool) -> Head:
    """Return the product of 8-bit floats with scales of rows and columns; ones stand for missing scales.

    Torch writes bf16 only.
    """
    terms = terms_of(problem)
    taken = 0
    while taken < len(terms) and terms[taken] in VECTORS:
        taken += 1
    scales = terms[:taken]
    rows, columns = (name if name in scales else "ones" for name in VECTORS)
    keywords: dict[str, Any] = {"scale_a": rows, "scale_b": columns}
    keywords |= {} if problem.groups and problem.groups.apart else {"offs": "offs"}
    options: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": fast_accum}
    text = call_text("_scaled_grouped_mm", ("a", "b"), {**keywords, **options}, into_d=False)
    if problem.groups and problem.groups.of == "m_masked":
        text += " of all M rows"
    return Head(text, "bf16", partial(_bind_scaled, scales, options), taken, GROUPED)


def _bind_scaled(
    scales: tuple[str, ...],
    options: dict[str, Any],
    inputs: Inputs,
    d: Tensor,  # noqa: ARG001 - torch allocates D
) -> Callable[[], Tensor]:
    """Bind the call to its tensors; scales of 1 are made here."""
    a, b, device = inputs.a, inputs.b, inputs.a.device
    extents = {"row_scale": a.shape[:-1], "column_scale": (b.shape[0], b.shape[-1])}
    scale_a, scale_b = (
        inputs.extras[name] if name in scales else torch.ones(extents[name], device=device)
        for name in VECTORS
    )
    offs = {"offs": inputs.extras["offs"]} if "offs" in inputs.extras else {}
    return partial(any_torch._scaled_grouped_mm, a, b, scale_a=scale_a, scale_b=scale_b, **offs, **options)


@dataclass(frozen=True)
class GroupVectors:
    """The row and column operands of groups, which have elements of their own."""

    groups: Groups

    def text(self, load: Load) -> str:
        """Return the text of an operand, as it is added to D."""
        if load.operand == "row":
            return f"{load.tensor}[..., None]"
        return f"{load.tensor}[:, None]" if self.groups.apart else f"{load.tensor}[group of each row]"

    def bind(self, load: Load, inputs: Inputs) -> Callable[[], Tensor]:
        """Return a function that returns an operand which broadcasts to D.

        The group of each row is found here, as a caller knows the expert of each row. Each call of the
        function gathers the elements of all rows: with `offs`, that is a tensor [M, N].
        """
        vector = inputs.extras[load.tensor]
        if load.operand == "row":
            return lambda: vector[..., None]
        if self.groups.apart:
            return lambda: vector[:, None]
        rows = torch.arange(inputs.a.shape[0], dtype=torch.int32, device=vector.device)
        of_rows = torch.searchsorted(inputs.extras["offs"], rows, right=True).clamp(max=len(vector) - 1)
        return lambda: vector[of_rows]
