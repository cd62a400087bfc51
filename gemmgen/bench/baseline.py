"""What a kernel is compared with: what a user of torch would call for the same result."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmgen.bench.block_scaled import formats_text
from gemmgen.bench.call import Call, Head
from gemmgen.bench.eager import Step, steps, terms_of
from gemmgen.bench.head import head_of
from gemmgen.plan.decisions import problem_of
from gemmgen.problem.formula import accumulator_of
from gemmgen.problem.inputs import Inputs
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
