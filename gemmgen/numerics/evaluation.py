"""Evaluation of an epilogue's expression by torch, in the precision of the given sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmgen.numerics.encoding import TORCH_DTYPES, rounded
from gemmgen.problem.epilogue import PLAIN, TIMES, Algebra, Call, Cast, Epilogue, Load, Value, fold
from gemmgen.problem.operations import (
    OPERATIONS,
    OpParameter,
    parameters_of_activation,
    stretch_of,
    torch_keywords,
)

ALL = slice(None)
MODULES: dict[str, Any] = {"torch.nn.functional": torch.nn.functional, "torch": torch}
"""The modules of the functions that are references of activations."""


@dataclass(frozen=True)
class _TorchAlgebra(Algebra[Tensor]):
    """Algebra of tensors [rows, N], or of tensors that broadcast to that shape."""

    sums: Mapping[str, Tensor]
    extras: Mapping[str, Tensor]
    rows: slice
    epilogue: Epilogue = PLAIN

    @property
    def like(self) -> Tensor:
        """A tensor of the type and device of the computation."""
        return next(iter(self.sums.values()))

    def accumulator(self, name: str) -> Tensor:
        return self.sums[name]

    def load(self, load: Load) -> Tensor:
        tensor = operand(load, self.extras, self.rows).to(self.like.dtype)
        if load.block:
            return columns_of(tensor, self.epilogue.c_blocks, interleaved=self.epilogue.interleaved)[
                load.block
            ]
        return sums_of(tensor, self.epilogue)[load.accumulator] if load.accumulator else tensor

    def number(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=self.like.dtype, device=self.like.device)

    def call(self, call: Call, arguments: tuple[Tensor, ...]) -> Tensor:
        if call.op in OPERATIONS:
            return activated(call.op, arguments[0], call.parameters)
        left, right = arguments
        return left * right if call.op == TIMES else left + right

    def cast(self, cast: Cast, argument: Tensor) -> Tensor:
        return rounded(argument, TORCH_DTYPES[cast.dtype.name]).to(argument.dtype)


def sums_of(product: Tensor, epilogue: Epilogue) -> dict[str, Tensor]:
    """Return each accumulator's columns of A @ B, or elements of a vector [..., b_blocks * N], by name.

    They are views [..., N].
    """
    return columns_of(product, epilogue.accumulators, interleaved=epilogue.interleaved)


def columns_of(matrix: Tensor, names: Sequence[str], *, interleaved: bool) -> dict[str, Tensor]:
    """Return the matrices [..., N] in a matrix [..., len(names) * N] by their names, as views."""
    if len(names) == 1:
        return {names[0]: matrix}
    if interleaved:
        return {name: matrix[..., first :: len(names)] for first, name in enumerate(names)}
    return dict(zip(names, matrix.chunk(len(names), -1), strict=True))


def evaluated(
    epilogue: Epilogue, sums: Mapping[str, Tensor], extras: Mapping[str, Tensor], rows: slice = ALL
) -> dict[str, Tensor]:
    """Return the outputs of an epilogue, by name, for some rows of each accumulator's sums [rows, N].

    The extras are whole: C [M, N], vectors [M] or [N], a scale [1]. With several accumulators, column
    operands are [b_blocks * N]. The precision is that of the sums.
    """
    algebra, known = _TorchAlgebra(sums, extras, rows, epilogue), dict[Value, Tensor]()
    return {output.name: fold(output.value, algebra, known) for output in epilogue.outputs}


def evaluated_d(
    epilogue: Epilogue, sums: Mapping[str, Tensor], extras: Mapping[str, Tensor], rows: slice = ALL
) -> Tensor:
    """Return D for some rows of the sums: the output of an epilogue, or all outputs side by side."""
    matrices = tuple(evaluated(epilogue, sums, extras, rows).values())
    if len(matrices) == 1:
        return matrices[0]
    return torch.stack(matrices, -1).flatten(-2) if epilogue.interleaved else torch.cat(matrices, -1)


def evaluated_operand(value: Value, like: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
    """Return a value that depends on no accumulator, in the type of a tensor and on its device."""
    return fold(value, _TorchAlgebra({"": like}, extras, ALL))


def operand(load: Load, extras: Mapping[str, Tensor], rows: slice = ALL) -> Tensor:
    """Return the loaded tensor for some rows of D, broadcastable to [rows, N], in its own type."""
    tensor = extras[load.tensor]
    match load.operand:
        case "scalar":
            return tensor.reshape(())
        case "matrix":
            return tensor[rows]
        case "row":
            return tensor[rows, None]
        case _:  # one element for each column, for all rows
            return tensor


def activated(op: str, x: Tensor, parameters: Iterable[OpParameter] = ()) -> Tensor:
    """Return torch's result of an activation of x.

    Raises KeyError if `op` is not an activation.
    """
    operation, stated = OPERATIONS[op], tuple(parameters)
    if activation := operation.derivative_of:
        with torch.enable_grad():
            argument = x.detach().requires_grad_()
            value = activated(activation, argument, parameters_of_activation(op, stated))
        return torch.autograd.grad(value.sum(), argument)[0]
    keywords, factor = torch_keywords(op, stated), stretch_of(op, stated)
    function: Callable[..., Tensor] = getattr(MODULES[operation.module], operation.torch)
    value = function(x, **keywords) if factor is None else function(factor * x, **keywords) / factor
    for name in operation.then:
        after: Callable[[Tensor], Tensor] = getattr(torch, name)
        value = after(value)
    return value
