"""What a kernel is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.spec.model import Operands


@dataclass(frozen=True)
class Baseline:
    """Another matmul, and the words that say exactly which."""

    text: str
    call: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Enqueues d = a @ b for a [M, K], b [K, N], d [M, N], and returns d."""


def cublas(operands: Operands) -> Baseline:
    """Return cuBLAS as torch calls it, with the algorithm that it chooses by default.

    Raises GemmgenError (``no-baseline``) for dtypes that torch has no cuBLAS call for.
    """
    a, b, d = operands.a.dtype, operands.b.dtype, operands.d.dtype
    if a != b or d not in (a, "fp32"):
        message = f"torch has no cuBLAS matmul of {a} and {b} into {d}"
        raise GemmgenError([Diagnostic("cublas", "no-baseline", message)])
    if d == "fp32":
        return Baseline(
            f"cuBLAS's default choice: torch.mm(a, b, out_dtype=torch.float32, out=d), {a}", _mm_fp32
        )
    matmul: Any = torch.backends.cuda.matmul
    reduced = getattr(matmul, f"allow_{a}_reduced_precision_reduction")
    text = f"cuBLAS's default choice: torch.matmul(a, b, out=d), {a}, reduced-precision reduction {reduced}"
    return Baseline(text, _matmul)


def _matmul(a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return torch.matmul(a, b, out=d)


def _mm_fp32(a: Tensor, b: Tensor, d: Tensor) -> Tensor:
    mm: Any = torch.mm
    return mm(a, b, out_dtype=torch.float32, out=d)
