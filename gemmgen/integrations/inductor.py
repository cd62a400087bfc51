"""A kernel as one of the choices that Inductor times for a product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gemmgen.integrations.kernels import REFUSALS, Kernel, name_of, raise_unless_refused, require_plain


def external_matmul(kernel: Kernel, name: str | None = None) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Return an ``f(a, b, out)`` for ``torch._inductor.config.external_matmul``.

    Inductor then times it beside its own choices, if it chooses by time (``max_autotune_gemm``). ``torch.mm``
    computes the calls that the kernel refuses. `name`, the kernel's by default, is the function's name in
    generated code; no two functions of a process can have the same one.

    Raises ValueError if the kernel computes more than a @ b.
    """
    require_plain(kernel, bias=False)
    matmul = kernel.matmul

    def function(a: Tensor, b: Tensor, out: Tensor) -> None:
        try:
            matmul(a, b, out=out)
        except REFUSALS as error:
            raise_unless_refused(error)
            torch.mm(a, b, out=out)

    function.__name__ = function.__qualname__ = f"gemmgen_{name or name_of(kernel)}"
    function.__doc__ = f"Write a @ b to out, by {name_of(kernel)} where it takes the tensors."
    return function
