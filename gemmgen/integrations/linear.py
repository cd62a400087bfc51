"""A linear layer that a generated kernel computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional

from gemmgen.integrations.kernels import (
    BIAS,
    REFUSALS,
    Kernel,
    name_of,
    raise_unless_refused,
    require_plain,
)
from gemmgen.integrations.operator import linear, remember
from gemmgen.integrations.plain_linear import data_attributes, more_than_linear, registered
from gemmgen.integrations.reasons import rounds_twice, why_torch


class LayerError(ValueError):
    """A layer that cannot become one of a kernel, whichever kernel that would be."""


class Linear(nn.Linear):
    """A ``torch.nn.Linear`` that a generated kernel computes, with the same parameters and state dict.

    Where the kernel does not take a call ``torch.nn.functional.linear`` computes it, and `reason` says why:
    something requires grad and the kernel has no backward, has another type, is on a CPU, is a DTensor, would
    be cast by autocast. A bias is the kernel's if it has one (``column_bias``). Else torch adds it to a
    product of float32, and computes the layer itself for a narrower type, which would be rounded twice.

    torch.fx records the layer as a whole. torch.jit.script raises NotImplementedError.
    """

    reason: str
    """Why the last call was not the kernel's; empty if it was, or before the first."""

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
    def of(cls, linear: nn.Linear, kernel: Kernel) -> Linear:
        """Return a layer that shares the parameters of another one, and has its mode and its marks.

        `linear` must be a torch.nn.Linear and nothing more, or a layer of this class, which so gets another
        kernel. Its attributes that are plain values (a bool, a number, a string) are copied.

        Raises ValueError as the constructor does, and for a layer with anything that the new one would not
        have: a hook, a forward of its own, further parameters, buffers, children or attributes, a weight that
        is a tensor of another class or shape.
        """
        bound = type(linear) is Linear
        kind, own = (Linear, linear._of_kernel) if bound else (nn.Linear, frozenset[str]())
        if reason := more_than_linear(linear, kind, own):
            raise LayerError(reason)
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.in_features, layer.out_features = linear.in_features, linear.out_features
        for name, parameter in registered(linear).items():  # in its order, by which optimizers save state
            layer.register_parameter(name, cast("nn.Parameter | None", parameter))
        layer.train(linear.training)
        layer._use(kernel)
        for name, value in data_attributes(linear, own).items():
            if hasattr(layer, name):
                raise LayerError(f"layer has an attribute {name}, a name that {cls.__name__} uses itself")
            setattr(layer, name, value)
        return layer

    def _use(self, kernel: Kernel) -> None:
        before = frozenset(vars(self))
        self._fused = require_plain(kernel, bias=True)
        if self._fused and cast("Tensor | None", self.bias) is None:
            raise ValueError(f"{name_of(kernel)} needs {BIAS}, and the layer has no bias")
        table: Mapping[str, tuple[Any, ...]] = getattr(kernel, "ARGUMENTS", {})
        self._dtype = table["a"][0] if table else None
        if table and table["out"][0] != self._dtype:
            raise ValueError(
                f"{name_of(kernel)} makes {table['out'][0]} of {self._dtype}, as no linear layer does"
            )
        # A layer can be copied, and a module cannot: the layer keeps the function of the module.
        self._matmul: Callable[..., Tensor] = kernel.matmul
        host = getattr(kernel, "call", None)
        self._kernel_name, self._traceable = (
            name_of(kernel),
            hasattr(kernel, "OPERATOR") or hasattr(host, "traced"),
        )
        if self._traceable:
            remember(kernel)
        self._differentiable = bool(getattr(host, "has_backward", False))
        self.reason = ""
        # Attributes that another kernel is to replace. Any further one was put on the layer by its user.
        self._of_kernel = frozenset(vars(self)) - before | {"_of_kernel"}

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        """Return input @ weight.T + bias, for an input of any number of dimensions."""
        if isinstance(input, Proxy):
            return self._recorded(input)
        reason = self._why_torch(input)
        if torch.compiler.is_compiling():
            return self._compiled(input, reason)
        if not reason:
            try:
                product = self._product(input)
            except REFUSALS as error:
                raise_unless_refused(error)
                reason = str(error)
            else:
                self.reason = ""
                return product
        self.reason = reason
        return functional.linear(input, self.weight, self.bias)

    def _why_torch(self, input: Tensor) -> str:  # noqa: A002
        """Return why the kernel is not asked; an empty string if it is."""
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

    def _product(self, input: Tensor) -> Tensor:  # noqa: A002
        bias = cast("Tensor | None", self.bias)
        extras = {BIAS: bias} if self._fused else {}
        product = self._matmul(input.reshape(-1, self.in_features), self.weight.T, **extras)
        product = product if self._fused or bias is None else product + bias
        return product.reshape(*input.shape[:-1], self.out_features)

    def _compiled(self, input: Tensor, reason: str) -> Tensor:  # noqa: A002
        """Return the output under torch.compile and torch.export, by facts known before the call runs."""
        whole = self.in_features * input.element_size() % 16 == 0 and self.weight.is_contiguous()
        dtypes = input.dtype == self.weight.dtype and self._dtype in (None, input.dtype)
        on_gpu = input.device.type in ("cuda", "meta")  # the second stands for any
        if reason or not (self._traceable and on_gpu and whole and dtypes):
            return functional.linear(input, self.weight, self.bias)
        bias = cast("Tensor | None", self.bias)
        read = (input, self.weight, bias if self._fused else None)  # else torch adds the bias
        if not (torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in read)):
            rows = linear(input.reshape(-1, self.in_features), self.weight, read[2], self._kernel_name)
            rows = rows if self._fused or bias is None else rows + bias
            return rows.reshape(*input.shape[:-1], self.out_features)
        # The layer's operator has no backward, and the module's one raises where it would not fit. Rows one
        # behind the other fit: they start at whole rows of memory, each a multiple of 16 bytes.
        if self._differentiable and input.is_contiguous():
            return self._product(input)
        return functional.linear(input, self.weight, self.bias)

    def _recorded(self, proxy: Proxy) -> Any:
        """Return the call that torch.fx records: one of the layer as a whole, as for torch's own layers.

        A layer that is itself the traced root is recorded as torch's linear.
        """
        tracer: Any = proxy.tracer
        if getattr(tracer, "root", self) is self:
            return functional.linear(cast(Any, proxy), self.weight, self.bias)
        return tracer.create_proxy("call_module", tracer.path_of_module(self), (proxy,), {})

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which compiles the source of forward, and so no kernel.

        Raises NotImplementedError always.
        """
        raise NotImplementedError(
            f"torch.jit.script compiles no layer of {self._kernel_name}: use torch.compile or torch.export"
        )

    def extra_repr(self) -> str:
        """Return the text between the brackets of the layer's repr."""
        return f"{super().extra_repr()}, kernel={self._kernel_name}"
