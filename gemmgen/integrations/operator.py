"""The operator that torch.compile and torch.export see of a layer: a kernel, or torch where it refuses.

A kernel takes or refuses a tensor by its address and strides too, and torch guards no addresses. So the
choice is made when the operator runs, as it is without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, cast

import torch
from torch import Tag, Tensor
from torch.nn import functional
from torch.utils import flop_counter

from gemmgen.integrations.kernels import BIAS, REFUSALS, Kernel, name_of, raise_unless_refused

NAMESPACE: Final = "gemmgen_integrations"
"""The namespace of layers: a module may have the name of this operator, and has another namespace."""
ROW_BYTES: Final = 16
"""The rows of a kernel's D are multiples of these bytes apart."""
kernels: dict[str, Any] = {}
"""The modules and libraries that layers have had in this process, by name."""


def remember(kernel: Kernel) -> None:
    """Let the operator find a kernel by its name; a later one of the same name takes its place."""
    kernels[name_of(kernel)] = kernel


def find_kernel(name: str) -> Any:
    """Return a module or library; one that no layer of this process has had is imported by its name."""
    if name not in kernels:
        kernels[name] = import_module(name)
    return kernels[name]


ANY_ROWS: Final = 2**31 - 1
"""The most rows of a kernel that is not for few rows alone."""


def by_rows(
    title: str, kernels: Sequence[Kernel], few_rows: Mapping[int, Kernel] | None
) -> list[tuple[Kernel, int]]:
    """Return the kernels of a function in the order in which they are asked, with the most rows of each.

    The kernels of `few_rows` come first, the one with the fewest rows before the others. Raises ValueError
    without a kernel, and for a key of `few_rows` that is no number of rows; `title` is the function's name.
    """
    for most in few_rows or {}:
        if type(most) is not int or most < 1:
            raise ValueError(f"a key of few_rows must be a number of rows from 1 on, found {most!r}")
    few = sorted((few_rows or {}).items())
    found = [*((kernel, most) for most, kernel in few), *((kernel, ANY_ROWS) for kernel in kernels)]
    if not found:
        raise ValueError(f"{title} needs a kernel")
    return found


def first_taken(
    kernels: Sequence[str],
    refused_rows: Callable[[str, int], str],
    most_rows: Sequence[int],
    compute: Callable[[Any], Tensor],
) -> Tensor:
    """Return the D of the first kernel that takes a call.

    Args:
        kernels: The names of the kernels, in the order in which they are asked.
        refused_rows: Say for a name and the most rows of a kernel why it is not asked; empty if it is.
        most_rows: The most rows of each kernel.
        compute: Return the D of a kernel, or raise one of REFUSALS.

    Raises ValueError with all refusals if no kernel takes the call.
    """
    refusals: list[str] = []
    for name, most in zip(kernels, most_rows, strict=True):
        if reason := refused_rows(name, most):
            refusals.append(reason)
            continue
        try:
            return compute(find_kernel(name))
        except REFUSALS as error:
            raise_unless_refused(error)
            refusals.append(f"{name}: {error}")
    raise ValueError("; ".join(refusals))


def new_d(
    a: Tensor, n: int, dtype: torch.dtype | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """Return D [..., M, N] of an A [..., M, K] before anything is written to it, with rows of whole units.

    Its type and device are A's unless others are given.
    """
    dtype = dtype or a.dtype
    unit = ROW_BYTES // dtype.itemsize
    pitch = -(-n // unit) * unit
    return a.new_empty((*a.shape[:-1], pitch), dtype=dtype, device=device or a.device)[..., :n]


def in_units(d: Tensor) -> Tensor:
    """Return D, or a copy of it unless D has the strides of `new_d`.

    The stride of a dimension with one element does not matter.
    """
    wanted = new_d(d, d.shape[-1], device="meta").stride()
    found = zip(d.shape, d.stride(), wanted, strict=True)
    same = all(size <= 1 or stride == other for size, stride, other in found)
    return d if same else new_d(d, d.shape[-1]).copy_(d)


def count_flops(a: Any, b: Any, *_: object, **__: object) -> int:
    """Return 2 K N for each row of A, which torch's FlopCounterMode adds up, by the shapes of A and B."""
    *rows, k = a
    return 2 * torch.Size(rows).numel() * k * b[-1]


def count_flops_of_layer(a: Any, weight: Any, *_: object, **__: object) -> int:
    """Return 2 M N K by the shapes of the input [M, K] and the weight [N, K]."""
    return count_flops(a, (weight[1], weight[0]))


LIBRARY: Final[Any] = torch.library.Library(NAMESPACE, "FRAGMENT")


def registered(
    name: str,
    schema: str,
    compute: Callable[..., Tensor],
    shape: Callable[..., Tensor],
    flops: Callable[..., int] = count_flops,
) -> Any:
    """Register an operator of the namespace, and return it.

    Args:
        name: Its name.
        schema: Its parameters and its result, as torch writes them.
        compute: Return D.
        shape: Return D without memory, for the same arguments.
        flops: Return the operations by the shapes of the arguments.
    """
    LIBRARY.define(f"{name}{schema}", tags=(Tag.pt2_compliant_tag, Tag.needs_exact_strides))
    LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    LIBRARY.impl(name, shape, "Meta")
    operator = getattr(getattr(cast(Any, torch.ops), NAMESPACE), name)
    cast(Any, flop_counter).register_flop_formula(operator)(flops)
    return operator


def compute(input: Tensor, weight: Tensor, bias: Tensor | None, kernel: str) -> Tensor:  # noqa: A002
    """Return input [M, K] @ weight [N, K].T + bias [N] with rows of whole 16-byte units."""
    extras = {} if bias is None else {BIAS: bias}
    try:
        d = find_kernel(kernel).matmul(input, weight.T, **extras)
    except REFUSALS as error:
        raise_unless_refused(error)
        d = functional.linear(input, weight, bias)
    return in_units(d)


def shape(input: Tensor, weight: Tensor, *_: object) -> Tensor:  # noqa: A002
    """Return D [M, N] without memory."""
    return new_d(input, weight.shape[0])


linear: Final[Any] = registered(
    "linear",
    "(Tensor input, Tensor weight, Tensor? bias, str kernel) -> Tensor",
    compute,
    shape,
    count_flops_of_layer,
)
