"""The bases of layers that kernels compute: how one takes another's place, and what torch traces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Final, NoReturn, Self, cast

from torch import Tensor, nn
from torch.fx import Proxy

from gemmgen.integrations.caller import KernelCaller
from gemmgen.integrations.kernels import Kernel
from gemmgen.integrations.plain_layer import (
    Shape,
    data_attributes,
    more_than_plain,
    not_plain,
    other_shape,
    registered,
)

WEIGHT: Final = "weight"
BIAS_OF_LAYER: Final = "bias"


class LayerError(ValueError):
    """A layer that cannot become one of a kernel, whichever kernel that would be."""


class KernelModule(KernelCaller, nn.Module):
    """A layer that kernels compute.

    A subclass says how kernels and how torch compute a call. torch.fx records the layer as a whole.
    torch.jit.script raises NotImplementedError.
    """

    _kernel_name: str

    def _recorded(self, torchs: Callable[..., Any], *given: Any) -> Any:
        """Return the call that torch.fx records: one of the layer as a whole, as for torch's own layers.

        One of the arguments is a proxy. A layer that is itself the traced root is recorded as torch's
        operators, which `torchs` calls.
        """
        tracer: Any = next(each.tracer for each in given if isinstance(each, Proxy))
        if getattr(tracer, "root", self) is self:
            return torchs(*given)
        return tracer.create_proxy("call_module", tracer.path_of_module(self), given, {})

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which compiles the source of forward, and so no kernel.

        Raises NotImplementedError always.
        """
        raise NotImplementedError(
            f"torch.jit.script compiles no layer of {self._kernel_name}: use torch.compile or torch.export"
        )

    @property
    def kernel_name(self) -> str:
        """The name of the kernel."""
        return self._kernel_name


class KernelLayer(KernelModule):
    """A linear layer that a kernel computes."""

    in_features: int
    out_features: int
    bias: nn.Parameter | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        """Return input [..., K] @ weight.T + bias, for an input of any number of dimensions."""
        if isinstance(input, Proxy):
            return self._recorded(self._torchs, input)
        if (d := self._again(input)) is not None:
            self._taken()
            return d
        return self._answer(input, self._why_torch(input), lambda: self._torchs(input))

    def _again(self, input: Tensor) -> Tensor | None:  # noqa: A002, ARG002
        """Return the D of a call whose like the kernel has computed before; None for any other call."""
        return None

    def _why_torch(self, input: Tensor) -> str:  # noqa: A002
        """Return why the kernel is not asked; an empty string if it is."""
        raise NotImplementedError

    def _torchs(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the output by torch's own operators, also for a proxy."""
        raise NotImplementedError

    def _rows(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return an input [..., K] as a matrix [M, K], also if K is 0."""
        return input.flatten(0, -2) if input.ndim > 1 else input.unsqueeze(0)

    def extra_repr(self) -> str:
        """Return the text between the brackets of the layer's repr."""
        features = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{features}, bias={self.bias is not None}, kernel={self._kernel_name}"


class ParameterLayer(KernelLayer):
    """A layer of a kernel with the parameters of the layer in whose place it comes.

    A subclass names its parameters.
    """

    PARAMETERS: ClassVar[tuple[str, ...]]
    """The names of the parameters."""
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    """Names of parameters that another layer may lack altogether."""
    KNOWN: ClassVar[tuple[type[nn.Module], ...]] = ()
    """Classes of other layers whose forward is the product with the weight, and the bias."""
    UNKNOWN: ClassVar[str]
    """The end of the sentence about a layer of another class."""
    _of_kernel: frozenset[str]

    @classmethod
    def in_place_of(
        cls, layer: nn.Module, kernel: Kernel, classes: Collection[type[nn.Module]] | None
    ) -> Self:
        """Return a layer with the parameters, the mode and the marks of another one.

        `classes` are those whose forward the caller knows to be plain, beside `KNOWN`; None stands for any
        class. Raises LayerError for a layer with anything that the new one would not have, and ValueError as
        the constructor does.
        """
        own = cast(ParameterLayer, layer)._of_kernel if type(layer) is cls else frozenset[str]()
        known = None if classes is None else (cls, *cls.KNOWN, *classes)
        shape = Shape(cls, cls.UNKNOWN, known, cls.PARAMETERS, cls.OPTIONAL, own)
        cls._require_tensors(layer)
        if reason := more_than_plain(layer, shape) or _other_tensors(layer, cls.PARAMETERS):
            raise LayerError(reason)
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.out_features, made.in_features = cast(Tensor, registered(layer)[WEIGHT]).shape
        for name, parameter in registered(layer).items():  # in its order, by which optimizers save state
            made.register_parameter(name, cls._converted(name, cast("nn.Parameter | None", parameter)))
        for name in cls.OPTIONAL - registered(layer).keys():
            made.register_parameter(name, None)
        made.train(layer.training)
        made._use(kernel)
        for name, value in data_attributes(layer, shape).items():
            if hasattr(made, name):
                raise LayerError(f"layer has an attribute {name}, a name that {cls.__name__} uses itself")
            setattr(made, name, value)
        return made

    @classmethod
    def _require_tensors(cls, layer: nn.Module) -> None:
        """Raise LayerError if a tensor of a layer has another type or shape than in this class."""

    @classmethod
    def _converted(cls, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:  # noqa: ARG003
        """Return a parameter of another layer as this class has it: the same object if it can be."""
        return parameter

    @classmethod
    def adds_bias(cls, kernel: Kernel) -> bool:
        """Return True if a kernel adds the bias; raise ValueError if it computes no layer of this class."""
        raise NotImplementedError

    def _use(self, kernel: Kernel) -> None:
        """Take a kernel; raise ValueError if it does not compute the layer."""
        before = frozenset(vars(self))
        self._take(kernel)
        self.reason = ""
        # Attributes that another kernel is to replace. Any further one was put on the layer by its user.
        self._of_kernel = frozenset(vars(self)) - before | {"_of_kernel"}

    def _take(self, kernel: Kernel) -> None:
        """Keep the functions of a kernel and its facts; raise ValueError if it does not compute the layer."""
        raise NotImplementedError

    def why_never(self) -> str:
        """Return why the kernel computes no call of the layer as it is now; an empty string if it may."""
        raise NotImplementedError


def _other_tensors(layer: nn.Module, names: Sequence[str]) -> str:
    """Return in which way a parameter is no dense tensor of the layer's features; empty if all are."""
    tensors = {name: registered(layer).get(name) for name in names}
    for name, tensor in tensors.items():
        if tensor is None and name == BIAS_OF_LAYER:
            continue
        reason = not_plain(name, tensor)
        if not reason and name in (WEIGHT, BIAS_OF_LAYER):
            features = cast(Tensor, tensors[WEIGHT]).shape
            reason = other_shape(layer, name, (*features, 0)[:2])
        if reason:
            return reason
    return ""
