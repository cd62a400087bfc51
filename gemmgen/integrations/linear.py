"""A linear layer that a generated kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemmgen.integrations.caller import is_eager
from gemmgen.integrations.kernels import (
    BIAS,
    Kernel,
    again_of,
    dtypes_of,
    has_backward,
    is_traceable,
    name_of,
    require_plain,
)
from gemmgen.integrations.layer import BIAS_OF_LAYER, WEIGHT, ParameterLayer
from gemmgen.integrations.operator import linear, remember
from gemmgen.integrations.reasons import rounds_twice, why_torch


class Linear(ParameterLayer, nn.Linear):
    """A ``torch.nn.Linear`` that a generated kernel computes, with the same parameters and state dict.

    Where the kernel does not take a call ``torch.nn.functional.linear`` computes it, and `reason` says why:
    something requires grad and the kernel has no backward, has another type, is on a CPU, is a DTensor, would
    be cast by autocast. A bias is the kernel's if it has one (``column_bias``). Else torch adds it to a
    product of float32, and computes the layer itself for a narrower type, which would be rounded twice.

    torch.fx records the layer as a whole. torch.jit.script raises NotImplementedError.
    """

    PARAMETERS = (WEIGHT, BIAS_OF_LAYER)
    KNOWN = (nn.Linear,)
    UNKNOWN = "not a torch.nn.Linear"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        kernel: Kernel,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer as ``torch.nn.Linear`` does.

        Raises ValueError if the kernel computes something else than a @ b, or than that and a bias.
        """
        cast(Any, super()).__init__(in_features, out_features, bias, device, dtype)
        self._use(kernel)

    @classmethod
    def of(cls, linear: nn.Module, kernel: Kernel, *, classes: Collection[type[nn.Module]] = ()) -> Linear:
        """Return a layer that shares the parameters of another one, and has its mode and its marks.

        `linear` must be a torch.nn.Linear and nothing more, or a layer of this class, which so gets another
        kernel. Its attributes that are plain values (a bool, a number, a string) are copied. `classes` are
        further classes whose forward is input @ weight.T + bias, which the caller answers for.

        Raises ValueError as the constructor does, and for a layer with anything that the new one would not
        have: a hook, a forward of its own, further parameters, buffers, children or attributes, a weight that
        is a tensor of another class or shape.
        """
        return cls.in_place_of(linear, kernel, classes)

    @classmethod
    def adds_bias(cls, kernel: Kernel) -> bool:
        """Return True if a kernel adds the bias; raise ValueError if it computes no linear layer."""
        return require_plain(kernel, bias=True)

    def _take(self, kernel: Kernel) -> None:
        self._fused = self.adds_bias(kernel)
        if self._fused and cast("Tensor | None", self.bias) is None:
            raise ValueError(f"{name_of(kernel)} needs {BIAS}, and the layer has no bias")
        dtypes = dtypes_of(kernel)
        self._dtype = dtypes.get("a")
        if dtypes.get("out") != self._dtype:
            raise ValueError(
                f"{name_of(kernel)} makes {dtypes['out']} of {self._dtype}, as no linear layer does"
            )
        # A layer can be copied, and a module cannot: the layer keeps the function of the module.
        self._matmul: Callable[..., Tensor] = kernel.matmul
        self._repeat = again_of(kernel)
        self._kernel_name, self._traceable = name_of(kernel), is_traceable(kernel)
        if self._traceable:
            remember(kernel)
        self._differentiable = has_backward(kernel)

    def _again(self, input: Tensor) -> Tensor | None:  # noqa: A002
        if self._repeat is None or not is_eager(input):
            return None
        bias = self.bias
        if self._fused:
            return self._repeat(input, self.weight.T, bias)
        return None if bias is not None else self._repeat(input, self.weight.T)

    def _why_torch(self, input: Tensor) -> str:  # noqa: A002
        bias = cast("Tensor | None", self.bias)
        if reason := why_torch(input, self.weight, bias):
            return reason
        if not input.ndim or input.shape[-1] != self.in_features:
            return "input has another number of columns than the weight"  # torch says what is wrong
        return self._why_unbiased(input.dtype)

    def why_never(self) -> str:
        """Return why the kernel computes no call of the layer as it is now; an empty string if it may."""
        return self._why_unbiased(self._dtype or self.weight.dtype)

    def _why_unbiased(self, dtype: torch.dtype) -> str:
        """Return why the kernel may not multiply for a bias that torch adds, if D has this type."""
        if self._fused or cast("Tensor | None", self.bias) is None or not rounds_twice(dtype):
            return ""
        return f"{self._kernel_name} has no {BIAS}: its product would be rounded before the bias is added"

    def _product(self, call: Tensor) -> Tensor:
        bias = cast("Tensor | None", self.bias)
        extras = {BIAS: bias} if self._fused else {}
        # All dimensions go to a kernel that takes them: a later call with as many is then a known one.
        rows = call if self._repeat is not None and call.ndim > 1 else self._rows(call)
        product = self._matmul(rows, self.weight.T, **extras)
        product = product if self._fused or bias is None else product + bias
        return product.reshape(*call.shape[:-1], product.shape[-1])

    def _traced(self, call: Tensor) -> Tensor | None:
        whole = self.in_features * call.element_size() % 16 == 0 and self.weight.is_contiguous()
        dtypes = call.dtype == self.weight.dtype and self._dtype in (None, call.dtype)
        on_gpu = call.device.type in ("cuda", "meta")  # the second stands for any
        if not (self._traceable and on_gpu and whole and dtypes):
            return None
        bias = cast("Tensor | None", self.bias)
        read = (call, self.weight, bias if self._fused else None)  # else torch adds the bias
        if not (torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in read)):
            rows = linear(self._rows(call), self.weight, read[2], self._kernel_name)
            rows = rows if self._fused or bias is None else rows + bias
            return rows.reshape(*call.shape[:-1], self.out_features)
        # The layer's operator has no backward, and the module's one raises where it would not fit. Rows one
        # behind the other fit: they start at whole rows of memory, each a multiple of 16 bytes.
        return self._product(call) if self._differentiable and call.is_contiguous() else None

    def _torchs(self, input: Tensor) -> Tensor:  # noqa: A002
        return functional.linear(input, self.weight, self.bias)
