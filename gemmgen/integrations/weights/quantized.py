"""A weight of four or eight bits in the order that all formats of checkpoints are brought to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

from gemmgen.hardware import DTYPES
from gemmgen.numerics.encoding import TORCH_DTYPES, decoded

Element = Literal["int4", "e2m1", "int8", "e4m3"]
"""int4 is stored as a number from 0 to 15, less its zero point; e2m1 is stored as its code
in the OCP Microscaling Formats 1.0; int8 and e4m3 are torch's."""
Bits = Literal[4, 8]
"""Bits of an element."""
MIDDLE: Final = 8
"""The zero point of an int4 that has none of its own: the numbers are -8 to 7."""
FLOATS: Final = (torch.bfloat16, torch.float16, torch.float32)
SCALES: Final = {
    "int4": FLOATS,
    "e2m1": (torch.float8_e8m0fnu, torch.float8_e4m3fn),
    "int8": FLOATS,
    "e4m3": FLOATS,
}
"""The types of scales by the element's type."""


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """A weight [..., N, K] of four or eight bits, of one layer or of all experts of a layer.

    Its numbers are (code - zero) * scale of int4, element * scale of int8 and e4m3, and
    e2m1 * scale * tensor_scale of e2m1. Dimensions before N count experts.

    Raises ValueError if tensors do not fit each other.
    """

    element: Element
    codes: Tensor
    """uint8 [..., N, K / 2] of four bits: the element of even K is in the lower half of a byte. int8 or
    float8_e4m3fn [..., N, K] of eight."""
    scales: Tensor
    """[..., N, ceil(K / vector)]: ue8m0 or e4m3 of e2m1, and floats of other elements."""
    vector: int
    """Elements along K that share a scale; the last scale of a row may have fewer."""
    zeros: Tensor | None = None
    """uint8 [..., N, ceil(K / vector)] from 0 to 15, of int4 whose zero points differ; None if all are 8."""
    tensor_scale: Tensor | None = None
    """fp32 [...]: a factor of each matrix, of scales in e4m3; None for 1."""

    def __post_init__(self) -> None:
        *experts, n, k = self.shape
        blocks = (*experts, n, -(-k // self.vector))
        self._require("codes", self.codes, TORCH_DTYPES[self.element], tuple(self.codes.shape))
        if self.scales.dtype not in SCALES[self.element]:
            names = " or ".join(str(dtype) for dtype in SCALES[self.element])
            raise ValueError(f"scales of {self.element} must be {names}, found {self.scales.dtype}")
        self._require("scales", self.scales, self.scales.dtype, blocks)
        if self.zeros is not None:
            if self.element != "int4":
                raise ValueError(f"{self.element} has no zero points")
            self._require("zeros", self.zeros, torch.uint8, blocks)
        if self.tensor_scale is not None:
            self._require("tensor_scale", self.tensor_scale, torch.float32, tuple(experts))

    def _require(self, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raise ValueError unless a tensor has this type, shape and the codes' device."""
        if (tensor.dtype, tuple(tensor.shape)) != (dtype, shape):
            found = f"{tensor.dtype} {[*tensor.shape]}"
            raise ValueError(f"{name} of a weight {self.shape} must be {dtype} {[*shape]}, found {found}")
        if tensor.device != self.codes.device:
            raise ValueError(f"{name} is on {tensor.device}, and the codes are on {self.codes.device}")

    @property
    def shape(self) -> list[int]:
        """[..., N, K], in elements."""
        *rows, stored = self.codes.shape
        return [*rows, DTYPES[self.element].elements_per_byte * stored]

    def numbers(self) -> Tensor:
        """Return the weight [..., N, K] in float64, exactly: a kernel is compared with its product.

        It has 64 bits for each element.
        """
        elements = self._elements()
        scales = decoded(self.scales, "ue8m0") if self._is_ue8m0 else self.scales.double()
        found = elements * self._of_each(scales)
        return found if self.tensor_scale is None else found * self.tensor_scale.double()[..., None, None]

    def with_blocks_of(self, vector: int) -> QuantizedWeight:
        """Return the same numbers with a scale, and a zero point, for each `vector` elements of K.

        The weight has larger blocks that are several of these, or a scale for each row. Its codes are not
        copied.

        Raises ValueError for other blocks.
        """
        blocks = -(-self.shape[-1] // vector)
        times = blocks if self.scales.shape[-1] == 1 else self.vector // vector
        if self.scales.shape[-1] > 1 and self.vector % vector:
            raise ValueError(f"blocks of {self.vector} elements of K are no whole blocks of {vector}")

        def repeated(of_blocks: Tensor) -> Tensor:
            return of_blocks.repeat_interleave(times, dim=-1)[..., :blocks]

        zeros = None if self.zeros is None else repeated(self.zeros)
        return replace(self, scales=repeated(self.scales), vector=vector, zeros=zeros)

    @property
    def _is_ue8m0(self) -> bool:
        return self.scales.dtype == torch.float8_e8m0fnu

    def _elements(self) -> Tensor:
        """Return the elements in float64, less their zero points."""
        if self.element == "e2m1":
            return decoded(self.codes, "e2m1")
        if self.element != "int4":
            return self.codes.double()
        codes = torch.stack((self.codes & 0xF, self.codes >> 4), dim=-1).flatten(-2).double()
        return codes - (MIDDLE if self.zeros is None else self._of_each(self.zeros.double()))

    def _of_each(self, blocks: Tensor) -> Tensor:
        """Return numbers of blocks [..., N, ceil(K / vector)] as numbers of their elements [..., N, K]."""
        return blocks.repeat_interleave(self.vector, dim=-1)[..., : self.shape[-1]]
