"""The scales of a weight that threads decode, and the numbers that a kernel multiplies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.decoded_weights.stored import in_turn, stored_scales, weight_of
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Draw, Layout
from gemmgen.numerics.side import Checking
from gemmgen.numerics.torch_call import Head
from gemmgen.problem import Matmul
from gemmgen.problem.matmul import Operand

SMALLEST: Final = {"int4": 2.0**-3, "int8": 2.0**-8, "e2m1": 2.0**-4, "e4m3": 2.0**-2}
"""The least random scale but one of an element: the root mean square of weights comes near 1."""


@dataclass(frozen=True)
class WeightNumbers(Checking):
    """Numbers of a matmul whose B threads decode.

    Random bytes are a weight in any order, so B is drawn as other operands are.
    """

    problem: Matmul

    def tensors(self, layout: Layout) -> Mapping[str, Callable[[], Tensor]]:
        """Return the scales of B as a kernel reads them, whose rows of N lie in memory without a gap."""
        return {"b_scale": partial(self._scales, layout)}

    def _scales(self, layout: Layout) -> Tensor:
        b, (_, n, k) = self.problem.b, layout.shape
        columns = self.problem.columns_of_b(n)
        fill, name = partial(_drawn, b), b.scale_dtype.name
        made = layout.matrix(
            name, -(-k // b.scale_k), columns, fill, leading=self.problem.leading_extents("b")
        )
        return made.mT

    def parts(self, inputs: Inputs) -> Iterator[Inputs]:
        """Yield the inputs with the weight as the kernel multiplies it."""
        extras = dict(inputs.extras)
        weight = weight_of(inputs.b, extras.pop("b_scale"), self.problem.b)
        weight = in_turn(weight) if self.problem.gated else weight
        yield replace(inputs, b=weight.T, extras=extras)

    def head(self, *, fast_accum: bool) -> Head | None:  # noqa: ARG002
        """Raise GemmgenError (``no-baseline``): torch multiplies no weight of these layouts."""
        message = "torch has no matmul of weights in this order"
        raise GemmgenError([Diagnostic("torch", "no-baseline", message)])


def side_of(problem: Matmul) -> Checking | None:
    """Return the side of a matmul whose B threads decode; None for others."""
    return WeightNumbers(problem) if problem.b.decoded else None


def _drawn(operand: Operand, extents: tuple[int, int], draw: Draw) -> Tensor:
    """Return scales [words, N] as integers of their bits, or as floats; of small integers, powers of two."""
    assert operand.scale is not None
    words, columns = extents
    blocks = (columns, words * operand.scale.format.per_word)
    generator, device = draw.generator, draw.generator.device
    least = SMALLEST[operand.dtype.name]
    if draw.integers or operand.scale.dtype.kind == "scale":
        scales = least * 2.0 ** torch.randint(-1, 2, blocks, generator=generator, device=device).double()
    else:
        assert operand.scale.dtype.significand is not None
        steps = 1 << operand.scale.dtype.significand - 1
        whole = torch.randint(steps, blocks, generator=generator, device=device).double()
        scales = (
            least
            * (1 + whole / steps)
            * 2.0 ** torch.randint(0, 2, blocks, generator=generator, device=device)
        )
    zeros = None
    if operand.scale.format.zeros:
        zeros = torch.randint(0, 16, blocks, generator=generator, device=device)
    stored = stored_scales(scales, operand, zeros).T
    if operand.scale_dtype.bits == 16:
        return stored.to(torch.int16).view(TORCH_DTYPES[operand.scale_dtype.name])
    return stored
