"""The interface of a kernel for layers and Inductor: its computation, its checks, and its refusals.

A kernel is a generated module, or anything else with a ``matmul(a, b, *, out=None)`` and a constant COMPUTES.
Its ``matmul`` refuses a call with a TypeError or a ValueError, in words and before anything is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

BIAS: Final = "column_bias"
"""The name in modules of a summand for each column."""
Kernel: TypeAlias = Any
"""A generated module, or what else has such a ``matmul``."""


def can_implement(
    kernel: Kernel, a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor
) -> tuple[bool, str]:
    """Return True if a generated module's ``matmul`` takes these tensors, and the text of its error.

    Nothing is launched. A [M, K], B [K, N] and `out` [M, N] are as ``matmul`` takes them, `extras` the
    further inputs of its spec, by name, and tensors that are written beside D, which may be left out. The
    module checks each argument in its table, and then the problem as a whole: compute capability, rows of
    `out` that TMA can write, extents of a single tile.
    """
    contract = getattr(getattr(kernel, "call", None), "contract", None)
    if contract is None:
        return False, f"{name_of(kernel)} has no table of arguments: it is no generated module"
    wanted: tuple[str, ...] = kernel.COMPUTES["inputs"]
    given = {"a": a, "b": b, **extras} | ({} if out is None else {"out": out})
    if unknown := given.keys() - {*wanted, *kernel.COMPUTES.get("written", ()), "out"}:
        return False, f"{name_of(kernel)} takes no {', '.join(sorted(unknown))}"
    if missing := {*wanted} - given.keys():
        return False, f"{name_of(kernel)} needs {', '.join(sorted(missing))}"
    reason: str = contract.first_violation(given)
    return not reason, reason


def name_of(kernel: Kernel) -> str:
    """Return the name of a kernel in messages."""
    return str(getattr(kernel, "__name__", type(kernel).__name__))


def is_traceable(kernel: Kernel) -> bool:
    """Return True if a kernel has an operator that torch's compilers see, or a library chooses one."""
    return hasattr(kernel, "OPERATOR") or hasattr(getattr(kernel, "call", None), "traced")


def has_backward(kernel: Kernel) -> bool:
    """Return True if a kernel computes gradients, too (``backward: true``)."""
    return bool(getattr(getattr(kernel, "call", None), "has_backward", False))


def again_of(kernel: Kernel) -> Callable[..., Tensor | None] | None:
    """Return the function that repeats a known call of a kernel, and for any other call returns None.

    Kernels with a host side of gemmgen's have one, modules and libraries. They take an A of any rank, too.
    """
    side = getattr(kernel, "call", None) or getattr(kernel, "library", None)
    return getattr(side, "again", None)


def require_plain(kernel: Kernel, *, bias: bool) -> bool:
    """Return whether a kernel adds a bias, as it may if `bias`; raise ValueError for one that does more."""
    require_kernel(kernel)
    computes: Mapping[str, Any] = getattr(kernel, "COMPUTES", {})
    inputs, epilogue = {*computes.get("inputs", ())}, computes.get("epilogue")
    if inputs == {"a", "b"} and epilogue == ():
        return False
    if bias and inputs == {"a", "b", BIAS} and epilogue == (BIAS,):
        return True
    raise ValueError(f"{name_of(kernel)} computes more than a @ b{' and a bias' * bias}: {said(kernel)}")


def require_kernel(kernel: Kernel) -> None:
    """Raise ValueError for a value that is no kernel, for example the name of one."""
    if not (hasattr(kernel, "matmul") or hasattr(kernel, "COMPUTES")):
        raise ValueError(
            f"a kernel is an imported module or library with a function matmul, found {kernel!r}"
        )


def axes_of(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """Return the axes of the tensors of a module by their names; a library states none."""
    return {name: tuple(row["axes"]) for name, row in _arguments_of(kernel).items()}


def dtypes_of(kernel: Kernel) -> dict[str, torch.dtype]:
    """Return the types of the tensors of a module by their names; a library states none."""
    return {name: row["dtype"] for name, row in _arguments_of(kernel).items()}


def _arguments_of(kernel: Kernel) -> Mapping[str, Mapping[str, Any]]:
    """Return the table of the tensors of a module; raise ValueError if an earlier release generated it."""
    table: Mapping[str, Any] = getattr(kernel, "ARGUMENTS", {})
    if not all(isinstance(row, Mapping) for row in table.values()):
        raise ValueError(f"{name_of(kernel)} is of an earlier release of gemmgen: generate it again")
    return table


def said(kernel: Kernel) -> str:
    """Return the computation of a kernel as a clause: its tensors with their dimensions, and its epilogue."""
    computes: Mapping[str, Any] = getattr(kernel, "COMPUTES", {})
    if "epilogue" not in computes:
        return "it has no COMPUTES"
    inputs: Sequence[str] = computes.get("inputs", ())
    axes = axes_of(kernel)
    matrices = {name: f"{name} [{', '.join(axes[name])}]" for name in ("a", "b") if name in axes}
    tensors = [matrices.get(name, name) for name in inputs]
    found = f"COMPUTES says that it takes {', '.join(tensors)}"
    if packs := computes.get("packs_weight"):  # whose scale_vector is for a word of several scales
        found = f"{found} with a weight packed in {packs}"
    elif blocks := computes.get("scale_vector"):
        found = f"{found} with a scale for {blocks} elements of K"
    if epilogue := computes["epilogue"]:
        found = f"{found}, and that its epilogue is {', '.join(map(str, epilogue))}"
    return found


REFUSALS: Final = (TypeError, ValueError, RuntimeError)
"""The errors with which a kernel refuses a call."""


def raise_unless_refused(error: Exception) -> None:
    """Raise a RuntimeError again, unless torch's deterministic mode is on, in which it is a refusal.

    Torch raises that type for an operation without a deterministic implementation, and so do kernels.
    """
    if isinstance(error, RuntimeError) and not torch.are_deterministic_algorithms_enabled():
        raise error
