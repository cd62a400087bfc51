"""How each layer and function of this package answers a call: a kernel computes it, or else torch does.

Subclasses add the rest: the tensors that no kernel may have, the kernel's product, the operator that torch's
compilers see, and torch's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Proxy

from gemmgen.integrations.kernels import REFUSALS, raise_unless_refused
from gemmgen.integrations.reasons import PLAIN


class KernelCaller:
    """A callable that kernels compute, and torch if they refuse: the base of layers and functions."""

    reason: str
    """Why torch computed the last call that was not compiled; empty if a kernel did, or before the first."""

    def _answer(self, call: Any, reason: str, torchs: Callable[[], Any]) -> Any:
        """Return the D of a kernel, or that of `torchs`.

        Args:
            call: What `_product` and `_traced` take.
            reason: Why no kernel is asked; empty if one is.
            torchs: Compute the call with torch's own function.
        """
        if torch.compiler.is_compiling():
            d = None if reason else self._traced(call)
            return torchs() if d is None else d
        if not reason:
            try:
                d = self._product(call)
            except REFUSALS as error:
                raise_unless_refused(error)
                reason = str(error)
            else:
                self._taken()
                return d
        self.reason = reason
        return torchs()

    def _taken(self) -> None:
        """Note that a kernel has computed the call."""
        if self.reason:  # to set an attribute of a module takes torch longer than to read one
            self.reason = ""

    def _product(self, call: Any) -> Tensor:
        """Return the D of a kernel; raise one of REFUSALS if none takes the call."""
        raise NotImplementedError

    def _traced(self, call: Any) -> Tensor | None:
        """Return the D of an operator of kernels for torch's compilers, by facts known before the call runs.

        Return None if torch's function belongs into the program.
        """
        raise NotImplementedError


def is_eager(*tensors: object) -> bool:
    """Return True for plain tensors of a call that no compiler or trace records, and that no autocast casts.

    A kernel may then repeat a known call with the same tensors' shapes, strides and types.
    """
    for each in tensors:
        if type(each) not in PLAIN:
            return False
    looks_on = torch.compiler.is_compiling() or cast(Any, torch).jit.is_tracing()
    return not (looks_on or torch.is_autocast_enabled("cuda"))


def is_recorded(arguments: Sequence[Any]) -> bool:
    """Return True if torch.fx records a call: one of its arguments, or of a list among them, is a proxy."""
    return any(
        is_recorded(cast("Sequence[Any]", each))
        if isinstance(each, (list, tuple))
        else isinstance(each, Proxy)
        for each in arguments
    )
