"""The product of rows and a packed weight of integers, as servers call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES
from gemmgen.integrations.kernels import BIAS, REFUSALS, Kernel, dtypes_of, is_traceable
from gemmgen.integrations.operator import by_rows, remember
from gemmgen.integrations.packed_linear import packed_linear
from gemmgen.integrations.packed_weight import (
    PackedWeight,
    PackingKernel,
    WeightFormat,
    pack,
    require_one_format,
)
from gemmgen.integrations.weights.quantized import QuantizedWeight

FEW_ROWS: Final = 8
"""The most rows with which kernels are asked for a weight's extents."""


class PackedProduct:
    """The product of rows and a packed weight in int4 or int8, without a bias, by kernels of one format."""

    name: str
    """The kernels' names."""
    format: WeightFormat
    """The format of the weight."""
    dtype: torch.dtype
    """The type of A and of D."""

    def __init__(self, kernel: Kernel, *, few_rows: Mapping[int, Kernel] | None = None) -> None:
        """Take a kernel.

        `few_rows` has kernels for calls of few rows, by the most rows: the one with the fewest rows is asked
        first, and `kernel` last.

        Raises ValueError for modules that pack no weight of integers, compute more than the product, or pack
        other formats than each other.
        """
        self._asked = by_rows(type(self).__name__, [kernel], few_rows)
        kernels = [PackingKernel.of(each) for each, _ in self._asked]
        self._names, self._most_rows = [each.name for each in kernels], [most for _, most in self._asked]
        self.name, self.dtype = ", ".join(self._names), kernels[0].dtype
        self.format = require_one_format(kernels)
        if not DTYPES[self.format.element].integer:
            raise ValueError(f"{self.name} packs weights of {self.format.element}, and this is for integers")
        if kernels[0].bias_dtype:
            raise ValueError(f"{self.name} adds {BIAS}, and a server adds the bias itself")
        self._kernel = kernel
        for each, _ in self._asked:
            remember(each)

    def __str__(self) -> str:
        return f"{self.name} for up to {self._most_rows} rows"

    def pack(self, weight: QuantizedWeight) -> PackedWeight:
        """Return a weight [N, K] as the kernels read it; raise ValueError for one that they cannot decode."""
        return pack(self._kernel, weight)

    def why_not(self, n: int, k: int) -> str:
        """Return why generated kernels refuse a weight [n, k]; empty if they take it.

        They are asked for a few rows, by shapes and types alone.
        """
        scale = self.format.scale
        blocks = -(-k // scale.vector)
        words = -(-blocks // scale.per_word)
        extents = n, k // self.format.elements_per_byte
        for kernel, most in self._asked:
            if is_traceable(kernel):
                a = torch.empty(min(most, FEW_ROWS), k, dtype=self.dtype, device="meta")
                weight = torch.empty(extents, dtype=dtypes_of(kernel)["b"], device="meta")
                scales = torch.empty(words, n, dtype=dtypes_of(kernel)["b_scale"], device="meta")
                try:
                    kernel.matmul(a, **PackedWeight(weight, scales, None).operands)
                except REFUSALS as error:
                    return str(error)
        return ""

    def __call__(self, a: Tensor, weight: PackedWeight) -> Tensor:
        """Return D [M, N] of rows [M, K].

        Torch multiplies by the decoded weight if all kernels refuse the tensors.
        """
        return packed_linear(a, *weight, None, self.format.scale.name, self._names, self._most_rows)
