"""Epilogue operations as a user of torch applies them: one after the other, each a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from gemmgen.problem.dtype import FP8, TORCH_DTYPES, DType, saturated
from gemmgen.problem.formula import ACTIVATIONS, ROW_VECTORS, SCALES, activated, alpha_of, beta_of
from gemmgen.problem.inputs import Inputs
from gemmgen.spec.model import Spec


@dataclass(frozen=True)
class Step:
    """One operation on the result so far, and the words that say which."""

    text: str
    bind: Callable[[Inputs], Callable[[Tensor], Tensor]]
    """Returns the operation for these inputs; it may change its argument."""


def terms_of(spec: Spec) -> tuple[str, ...]:
    """Return what happens to A @ B, in order: ``alpha`` unless it is 1, ``c``, and the ops."""
    alpha = ("alpha",) if alpha_of(spec) != 1 else ()
    c = ("c",) if beta_of(spec) else ()
    return (*alpha, *c, *spec.epilogue.ops)


def steps(spec: Spec, terms: Sequence[str], product: DType) -> Iterator[Step]:
    """Yield what is left to do to a product of this type: the terms, and the conversion to D's type."""
    d = spec.operands.d.dtype
    held = product
    if terms and product == "int32":
        held = d if d in ("bf16", "fp32") else "fp32"  # fp16 ends at 65,504
        yield _conversion(held)
    for term in terms:
        yield _step(spec, term)
    if TORCH_DTYPES[held] != TORCH_DTYPES[d]:
        yield _conversion(d)


def _step(spec: Spec, term: str) -> Step:
    if term in ACTIVATIONS:
        return Step(ACTIVATIONS[term].format("d"), lambda _: lambda x: activated(term, x))
    if term == "alpha":
        alpha = alpha_of(spec)
        return Step(f"d.mul_({alpha:g})", lambda _: lambda x: x.mul_(alpha))
    if term in ("c", "residual"):
        beta = beta_of(spec) if term == "c" else 1.0
        return Step(_with("d.add_(c", "alpha", beta), lambda inputs: _adding(inputs.extras["c"], beta))
    name = f"{term}[:, None]" if term in ROW_VECTORS else term

    def operand(inputs: Inputs) -> Tensor:
        vector = inputs.extras[term]
        return vector[:, None] if term in ROW_VECTORS else vector

    if term in SCALES:
        return Step(f"d.mul_({name})", lambda inputs: _multiplying(operand(inputs)))
    return Step(f"d.add_({name})", lambda inputs: _adding(operand(inputs), 1.0))


def _multiplying(factor: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x.mul_(factor)


def _adding(addend: Tensor, factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x.add_(addend, alpha=factor)


def _conversion(dtype: DType) -> Step:
    torch_dtype = TORCH_DTYPES[dtype]
    clamp = "clamp to its range and " if dtype in FP8 else ""
    return Step(f"{clamp}d.to({torch_dtype})", lambda _: lambda x: saturated(x, torch_dtype).to(torch_dtype))


def _with(call: str, name: str, factor: float) -> str:
    """Close a call, with a keyword unless it is 1."""
    return f"{call}, {name}={factor:g})" if factor != 1 else f"{call})"
