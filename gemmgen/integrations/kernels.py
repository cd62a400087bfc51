"""What a layer or Inductor asks of a kernel: what it computes, whether it takes tensors, how it refuses them.

A kernel is a generated module, or anything else with a ``matmul(a, b, *, out=None)`` and a constant COMPUTES
that refuses what it does not take with a TypeError or a ValueError, in words and before anything is launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

BIAS: Final = "column_bias"
"""What modules call a summand for each column."""
Kernel: TypeAlias = Any
"""A generated module, or what else has such a ``matmul``."""


def can_implement(
    kernel: Kernel, a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor
) -> tuple[bool, str]:
    """Return whether a generated module's ``matmul`` takes these tensors, and what it would say if not.

    Nothing is launched. A [M, K], B [K, N] and `out` [M, N] are as ``matmul`` takes them, `extras` what else
    its spec asks for, by name. The module's own checks of each argument in its table are made, and those of
    the problem as a whole: compute capability, rows of `out` that TMA can write, extents of a single tile.
    """
    contract = getattr(getattr(kernel, "call", None), "contract", None)
    if contract is None:
        return False, f"{name_of(kernel)} has no table of arguments: it is no generated module"
    wanted: tuple[str, ...] = kernel.COMPUTES["inputs"]
    given = {"a": a, "b": b, **extras} | ({} if out is None else {"out": out})
    if unknown := given.keys() - {*wanted, "out"}:
        return False, f"{name_of(kernel)} takes no {', '.join(sorted(unknown))}"
    if missing := {*wanted} - given.keys():
        return False, f"{name_of(kernel)} needs {', '.join(sorted(missing))}"
    reason: str = contract.first_violation(given)
    return not reason, reason


def name_of(kernel: Kernel) -> str:
    """Return what a kernel is called in messages."""
    return str(getattr(kernel, "__name__", type(kernel).__name__))


def require_plain(kernel: Kernel, *, bias: bool) -> bool:
    """Return whether a kernel adds a bias, as it may if `bias`; raise ValueError for one that does more."""
    computes: Mapping[str, Any] = getattr(kernel, "COMPUTES", {})
    epilogue = computes.get("epilogue")
    if computes.get("inputs") == ("a", "b") and epilogue == ():
        return False
    if bias and epilogue == (BIAS,):
        return True
    said = "it has no COMPUTES" if epilogue is None else f"COMPUTES says {dict(computes)}"
    raise ValueError(f"{name_of(kernel)} computes more than a @ b{' and a bias' * bias}: {said}")


REFUSALS: Final = (TypeError, ValueError, RuntimeError)
"""What a kernel raises for a call that it does not take."""


def raise_unless_refused(error: Exception) -> None:
    """Raise a RuntimeError again, unless torch's deterministic mode is on, in which it is a refusal.

    Torch raises that type for an operation without a deterministic implementation, and so do kernels.
    """
    if isinstance(error, RuntimeError) and not torch.are_deterministic_algorithms_enabled():
        raise error
