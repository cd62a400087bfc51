"""Kernels that decode weights: their formats, and the numbers of a packed weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from gemmgen.features.decoded_weights.stored import weight_of
from gemmgen.hardware import DTYPES, ScaleFormat
from gemmgen.hardware.elements import SCALE_FORMATS
from gemmgen.integrations.kernels import BIAS, Kernel, dtypes_of, is_traceable, name_of, require_kernel, said
from gemmgen.integrations.weights.quantized import MIDDLE, QuantizedWeight
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.problem.matmul import Operand

FACTOR: Final = "tensor_scale"
"""The name in modules of a factor of the whole weight."""
MATRICES: Final = ("a", "b", "b_scale")


class WeightFormat(NamedTuple):
    """The format of a packed weight."""

    element: str
    """The type of its elements."""
    scale: ScaleFormat

    @classmethod
    def of(cls, scale_format: str, dtype: torch.dtype) -> WeightFormat:
        """Return the format with scales of a name, of a packed weight that is a tensor of a type."""
        scale = SCALE_FORMATS[scale_format]
        return cls(next(each for each in scale.elements if TORCH_DTYPES[each] == dtype), scale)

    def __str__(self) -> str:
        scale = self.scale
        return f"{self.element} with {scale.dtype} scales of {scale.vector} elements of K ({scale.name})"

    def require_activations(self, name: str) -> None:
        """Raise ValueError for a kernel of this name beside activations that no layer has."""
        if self.scale.factor not in ("", FACTOR):
            raise ValueError(
                f"{name} multiplies activations in {self.scale.decoded_to}, to which no layer brings its "
                "input: take a kernel beside bf16 or fp16"
            )

    @property
    def operand(self) -> Operand:
        """The B of a kernel that has it."""
        return Operand.of_weight(self.element, self.scale)

    @property
    def elements_per_byte(self) -> int:
        """Elements of the weight in a byte."""
        return DTYPES[self.element].elements_per_byte


class PackedWeight(NamedTuple):
    """A weight as `pack_weight` of a module puts it in memory: tensors without gaps, in layout 1.

    A weight of experts has them in a dimension before the others.
    """

    weight: Tensor
    """uint8 [N, K / 2] of four bits, int8 or float8_e4m3fn [N, K] of eight: words in blocks of 64 x 64."""
    scales: Tensor
    """[words, N]: for each column the scales of a block of K, or a word of several."""
    factor: Tensor | None
    """fp32, one element, of a format with a factor; one for all experts."""

    @property
    def operands(self) -> dict[str, Tensor]:
        """The arguments of `matmul` that hold the weight, as views."""
        found = {"b": self.weight.mT, "b_scale": self.scales.mT}
        return found if self.factor is None else {**found, FACTOR: self.factor}

    def of_expert(self, expert: int) -> PackedWeight:
        """Return the weight of one expert, as views."""
        return PackedWeight(self.weight[expert], self.scales[expert], self.factor)

    def numbers(self, scale_format: str, dtype: torch.dtype) -> Tensor:
        """Return the numbers [N, K] that a kernel multiplies, each rounded once more to a type.

        Rows of a gate are in the kernel's order (`in_turn`). It has them in float64 for a while.
        """
        operand = WeightFormat.of(scale_format, self.weight.dtype).operand
        found = weight_of(self.weight.mT, self.scales.mT, operand)
        return (found if self.factor is None else found.float() * self.factor).to(dtype)


class PackingKernel(NamedTuple):
    """A module that multiplies a weight which its `pack_weight` has packed."""

    name: str
    format: WeightFormat
    inputs: tuple[str, ...]
    """The inputs of `matmul` in its order."""
    dtype: torch.dtype
    """The type of A and of D."""
    bias_dtype: torch.dtype | None
    """The type of the bias that it adds; None if it adds none."""
    is_traceable: bool

    @classmethod
    def of(cls, kernel: Kernel) -> PackingKernel:
        """Return a module as such a kernel.

        Raises ValueError if it packs no weight, or computes more than the product and a bias.
        """
        require_kernel(kernel)
        name = name_of(kernel)
        packs = format_packed_by(kernel)
        if packs is None:
            raise ValueError(f"{name} packs no weight: {said(kernel)}")
        computes: Mapping[str, Any] = kernel.COMPUTES
        inputs, epilogue = tuple[str, ...](computes["inputs"]), tuple[str, ...](computes["epilogue"])
        packs.require_activations(name)
        factor = (FACTOR,) if packs.scale.factor == FACTOR else ()
        if epilogue not in (factor, (*factor, BIAS)) or {*inputs} != {*MATRICES, *epilogue}:
            raise ValueError(f"{name} computes more than a @ b and a bias: {said(kernel)}")
        dtypes = dtypes_of(kernel)
        if dtypes["out"] != dtypes["a"]:
            raise ValueError(f"{name} makes {dtypes['out']} of {dtypes['a']}, as no linear layer does")
        return cls(name, packs, inputs, dtypes["a"], dtypes.get(BIAS), is_traceable(kernel))


def format_packed_by(kernel: Kernel) -> WeightFormat | None:
    """Return the format of the weights that a kernel packs; None if it packs none.

    Raises ValueError for a format of a later gemmgen.
    """
    packs = getattr(kernel, "COMPUTES", {}).get("packs_weight")
    if not packs or not hasattr(kernel, "pack_weight"):
        return None
    if packs not in SCALE_FORMATS:
        raise ValueError(
            f"{name_of(kernel)} packs weights of {packs!r}, a format that this gemmgen does not know"
        )
    return WeightFormat.of(packs, dtypes_of(kernel)["b"])


def require_one_format(kernels: Sequence[PackingKernel]) -> WeightFormat:
    """Return the format that all kernels pack; raise ValueError if they differ, or if some add no bias."""
    first, *others = kernels
    for other in others:
        if other.format != first.format:
            found = " and ".join(f"{each.name} packs {each.format}" for each in (first, other))
            raise ValueError(f"{found}: a layer has its weight in one format")
        if (other.bias_dtype, other.dtype) != (first.bias_dtype, first.dtype):
            raise ValueError(f"{first.name} and {other.name} have different biases or types of A")
    return first.format


def pack(kernel: Kernel, weight: QuantizedWeight) -> PackedWeight:
    """Return a weight [N, K] as a kernel reads it.

    A weight with a scale for each row, or for several blocks of the kernel's, gets a scale for each block,
    unless it is an e2m1.

    Raises ValueError for a weight of another format than the kernel's, one with zero points that the kernel
    does not subtract, and one that `pack_weight` refuses. To look at zero points and scales waits for the
    GPU.
    """
    packing = PackingKernel.of(kernel)
    if len(weight.shape) != 2:
        raise ValueError(f"a layer has a weight [N, K], found {weight.shape}")
    return _packed(kernel, packing.format, weight)


def pack_experts(kernel: Kernel, weight: QuantizedWeight) -> PackedWeight:
    """Return a weight [experts, N, K] as a kernel of groups reads it.

    A gate takes [experts, 2N, K], whose rows of gate and up come in turn. Raises ValueError as `pack` does,
    and for a weight whose experts have different factors: a kernel takes one.
    """
    packs = format_packed_by(kernel)
    if packs is None:
        raise ValueError(f"{name_of(kernel)} packs no weight: {said(kernel)}")
    if len(weight.shape) != 3:
        raise ValueError(f"a layer of experts has a weight [experts, N, K], found {weight.shape}")
    return _packed(kernel, packs, weight)


def _packed(kernel: Kernel, packs: WeightFormat, weight: QuantizedWeight) -> PackedWeight:
    """Return a weight as a kernel reads it; raise ValueError for one that it cannot decode."""
    vector, has_floats = packs.scale.vector, weight.element == packs.element != "e2m1"
    if has_floats and (weight.vector % vector == 0 or weight.scales.shape[-1] == 1):
        weight = weight.with_blocks_of(vector)
    _require_weight(name_of(kernel), packs, weight)
    factors: list[Tensor] = []
    if packs.scale.factor == FACTOR:
        found = weight.tensor_scale
        found = torch.ones(1, device=weight.codes.device) if found is None else found.reshape(-1)
        if bool((found != found[0]).any()):
            raise ValueError(
                "the weight has another tensor_scale for each expert, and "
                f"{name_of(kernel)} takes one for all of them"
            )
        factors = [found[:1]]
    if packs.scale.zeros:
        zeros = weight.zeros
        factors = [torch.full(weight.scales.shape, MIDDLE, dtype=torch.uint8) if zeros is None else zeros]
        factors = [each.to(weight.codes.device) for each in factors]
    b, b_scale, *factors = kernel.pack_weight(weight.codes, weight.scales, *factors)
    return PackedWeight(b.mT.contiguous(), b_scale.mT.contiguous(), factors[0] if factors else None)


def _require_weight(name: str, wanted: WeightFormat, weight: QuantizedWeight) -> None:
    """Raise ValueError for a weight that a kernel of this name cannot decode."""
    scale = wanted.scale
    of_elements = (weight.element, weight.vector) == (wanted.element, scale.vector)
    if not of_elements or (weight.element == "e2m1" and weight.scales.dtype != TORCH_DTYPES[scale.dtype]):
        found = f"{weight.element} with {weight.scales.dtype} scales of {weight.vector} elements of K"
        raise ValueError(f"{name} packs {wanted}, and the weight is {found}")
    if weight.tensor_scale is not None and scale.factor != FACTOR:
        raise ValueError(f"{name} packs {wanted}, and the weight has a tensor_scale")
    if not scale.zeros and weight.zeros is not None and not bool((weight.zeros == MIDDLE).all()):
        raise ValueError(
            f"the weight has zero points of its own (asymmetric), and {name} subtracts {MIDDLE}: "
            f"a kernel of {scale.dtype}_zero_1x{scale.vector} takes it"
        )
