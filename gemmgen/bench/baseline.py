"""What a kernel is compared with: what a user of torch would call for the same result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmgen.bench.torch_calls import Call, Head, formats_text, head_of, terms_of
from gemmgen.hardware.elements import FP8
from gemmgen.numerics.encoding import TORCH_DTYPES, DType, saturated
from gemmgen.numerics.inputs import Inputs, accumulator_of, alpha_of, beta_of
from gemmgen.numerics.reference import activated
from gemmgen.plan.decisions import problem_of
from gemmgen.problem.operations import ACTIVATIONS, ROW_VECTORS, SCALES, torch_call
from gemmgen.spec.model import Spec


@dataclass(frozen=True)
class Baseline:
    """Another way to the same result, and the words that say exactly which."""

    text: str
    bind: Call
    settings: Callable[[], AbstractContextManager[None]] = nullcontext
    """Of torch, while it runs."""


def cublas(spec: Spec) -> Baseline:
    """Return cuBLAS as torch calls it, with the algorithm that it chooses by default.

    The call takes in what its own arguments can say: alpha, beta and C (``addmm``), scales and a bias, or the
    scales of blocks (``_scaled_mm``). The operations that are left follow, each a kernel of its own.

    Raises GemmgenError (``no-baseline``) for dtypes and formats that torch has no cuBLAS call for.
    """
    head = head_of(spec)
    rest = tuple(steps(spec, terms_of(spec)[head.taken :], head.product))
    words, settings = _settings(spec)
    text = ", then ".join((f"{head.text}, {words}", *(step.text for step in rest)))
    return Baseline(f"cuBLAS's default choice: {text}", partial(_bind, head, rest), settings)


def _bind(head: Head, rest: tuple[Step, ...], inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
    """Bind the matmul and what follows it to the tensors of a call."""
    first = head.bind(inputs, d)
    operations = tuple(step.bind(inputs) for step in rest)
    if not operations:
        return first

    def call() -> Tensor:
        result = first()
        for operation in operations:
            result = operation(result)
        return result

    return call


def _settings(spec: Spec) -> tuple[str, Callable[[], AbstractContextManager[None]]]:
    """Return the operands' type and torch's settings for it in words, and the settings to be made."""
    a, b, d = spec.operands.a.dtype, spec.operands.b.dtype, spec.operands.d.dtype
    matmul: Any = torch.backends.cuda.matmul
    if problem_of(spec).block_scaled:
        return f"{formats_text(spec)}, scales packed before", nullcontext
    if a == "tf32":
        return "tf32, allow_tf32 True", partial(_set, "allow_tf32")
    if a == "fp16" and accumulator_of(spec) == "fp16":
        return "fp16, allow_fp16_accumulation True", partial(_set, "allow_fp16_accumulation")
    if a in ("bf16", "fp16") and d != "fp32":
        reduced = getattr(matmul, f"allow_{a}_reduced_precision_reduction")
        return f"{a}, reduced-precision reduction {reduced}", nullcontext
    return (a if a == b else f"{a} and {b}"), nullcontext


@contextmanager
def _set(name: str) -> Generator[None]:
    """Set a flag of ``torch.backends.cuda.matmul``, and put it back."""
    matmul: Any = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, True)
    try:
        yield
    finally:
        setattr(matmul, name, before)


# --- what follows the matmul: each operation a kernel of its own


@dataclass(frozen=True)
class Step:
    """One operation on the result so far, and the words that say which."""

    text: str
    bind: Callable[[Inputs], Callable[[Tensor], Tensor]]
    """Returns the operation for these inputs; it may change its argument."""


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
        parameters = problem_of(spec).parameters
        return Step(torch_call(term, "d", parameters), lambda _: lambda x: activated(term, x, parameters))
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
