"""Quantised weights, layers that hold them as libraries load them, and kernels that read them packed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gemmgen.features.decoded_weights.stored import weight_of
from gemmgen.hardware import SCALE_FORMATS
from gemmgen.integrations.weights import QuantizedWeight
from gemmgen.integrations.weights.quantized import Element
from gemmgen.launcher_file import launcher_texts
from gemmgen.module import import_generated
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.product import Product, make

BF16 = torch.bfloat16
N, K = 128, 384


class Format(NamedTuple):
    """A format of weights that kernels decode."""

    element: Element
    scales: str
    """The format of scales, by its name in specs."""

    @property
    def vector(self) -> int:
        """Elements of K that share a scale."""
        return SCALE_FORMATS[self.scales].vector


def formats(element: Element, *scales: str) -> dict[str, Format]:
    """Return formats by the names of their scales."""
    return {each: Format(element, each) for each in scales}


FOUR_BITS = formats("int4", "bf16_1x128", "bf16_1x64", "bf16_1x32", "fp16_1x128") | formats(
    "e2m1", "mxfp4", "nvfp4"
)
"""Formats of four bits by the names of their scales."""
EIGHT_BITS = {
    f"{dtype}_{element}": Format(element, f"{dtype}_1x128")
    for element in ("int8", "e4m3")
    for dtype in ("bf16", "fp16")
}
"""Formats of eight bits by the types of scales and elements."""
FORMATS = FOUR_BITS | EIGHT_BITS
ALL_FORMATS = FORMATS | formats("int4", "bf16_zero_1x128", "bf16_zero_1x64")
"""Formats, also of int4 with zero points."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def float_of(name: str) -> torch.dtype:
    """Return the type of the activations beside weights of a format."""
    return TORCH_DTYPES[SCALE_FORMATS[ALL_FORMATS[name].scales].decoded_to]


def in_words(elements: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Return elements [..., words * len(order)] as words by arithmetic: 4 or 8 bits for each place."""
    places = len(order)
    found = sum(
        elements[..., column::places].long() << 32 // places * place for place, column in enumerate(order)
    )
    assert isinstance(found, Tensor)
    return torch.where(found < 1 << 31, found, found - (1 << 32)).int()


def in_bytes(elements: Tensor) -> Tensor:
    """Return elements [..., K] as bytes [..., K / 2]."""
    return (elements[..., ::2] | elements[..., 1::2] << 4).to(torch.uint8)


def drawn(n: int = N, k: int = K, vector: int = 128, *, bits: int = 4) -> tuple[Tensor, Tensor]:
    """Return elements [N, K] from 0 to 15 or 255, and exponents of scales [N, K / vector].

    Exponents are from -6 to -2, and four less beside eight bits.
    """
    draw = torch.Generator().manual_seed(n + k + vector)
    elements = torch.randint(0, 1 << bits, (n, k), generator=draw)
    return elements, torch.randint(-6, -1, (n, -(-k // vector)), generator=draw) - (bits - 4)


def weight_in(scale_format: str, n: int = N, k: int = K) -> QuantizedWeight:
    """Return a weight of a format, whose scales are powers of two.

    An e4m3 has a sixteenth of an integer: kernels then sum without rounding.
    """
    element, vector = FORMATS[scale_format].element, FORMATS[scale_format].vector
    elements, exponents = drawn(n, k, vector, bits=8 if element == "int8" else 4)
    scales = 2.0**exponents
    if scale_format in EIGHT_BITS:
        numbers = (elements - 128).to(torch.int8) if element == "int8" else (elements - 8) / 16
        return QuantizedWeight(
            element, numbers.to(TORCH_DTYPES[element]), scales.to(float_of(scale_format)), vector
        )
    if scale_format == "mxfp4":
        scales = (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
    elif scale_format == "nvfp4":
        scales = scales.to(torch.float8_e4m3fn)
    else:
        scales = scales.to(float_of(scale_format))
    factor = torch.tensor(0.5) if scale_format == "nvfp4" else None
    return QuantizedWeight(element, in_bytes(elements), scales, vector, tensor_scale=factor)


@dataclass
class Kernels:
    """Modules that decode weights, each made once in a folder."""

    folder: Path
    made: dict[str, tuple[Product, Path]] = field(default_factory=dict[str, tuple[Product, Path]])

    def build(self, scale_format: str, *ops: str, rows: int = 16) -> tuple[Product, Path]:
        """Make a module with steps of an epilogue beside the factor of nvfp4; return its file, too."""
        stem = "_".join(("h100", scale_format, *ops, f"rows{rows}"))
        if stem not in self.made:
            steps = (*(["tensor_scale"] if scale_format == "nvfp4" else []), *ops)
            spec = self.folder / f"{stem}.yaml"
            element, scales = ALL_FORMATS[scale_format]
            dtype = SCALE_FORMATS[scales].decoded_to
            spec.write_text(
                f"title: decoded weights\ntarget: h100\noperands:\n  a: {{dtype: {dtype}}}\n"
                f"  b: {{dtype: {element}, scale: {{format: {scales}}}}}\n"
                f"  d: {{dtype: {dtype}}}\nepilogue: {{ops: [{', '.join(steps)}]}}\n"
                f"tile: {{m: {rows}, n: 64, k: 256}}\n"
            )
            product = make(spec)
            for name, text in {**product.files(), **launcher_texts()}.items():
                (self.folder / name).write_text(text)
            self.made[stem] = product, self.folder / f"{stem}.py"
        return self.made[stem]

    def module(self, scale_format: str, *ops: str, rows: int = 16) -> ModuleType:
        """Return a module."""
        return import_generated(self.build(scale_format, *ops, rows=rows)[1])

    def on_the_cpu(self, scale_format: str, *ops: str, rows: int = 16) -> Any:
        """Return what stands for a module that this CPU computes; `calls` has the shape of each A."""
        product, file = self.build(scale_format, *ops, rows=rows)
        module, calls = import_generated(file), list[tuple[int, ...]]()
        operand = product.source.problem.b

        def matmul(
            a: Tensor, b: Tensor, *, b_scale: Tensor, tensor_scale: Any = 1.0, column_bias: Any = 0.0
        ) -> Tensor:
            assert b.mT.is_contiguous()
            assert b_scale.mT.is_contiguous()
            calls.append(tuple(a.shape))
            weight = weight_of(b, b_scale, operand)
            return (a.double() @ weight.double().T * tensor_scale + column_bias).to(float_of(scale_format))

        return SimpleNamespace(
            __name__=file.stem, matmul=matmul, pack_weight=module.pack_weight, calls=calls,
            ARGUMENTS=module.ARGUMENTS, COMPUTES=module.COMPUTES,
        )  # fmt: skip


# --- layers as libraries have loaded them


def holder(bias: Tensor | None = None, **tensors: Tensor) -> Any:
    """Return a layer with these tensors as buffers, in evaluation."""
    layer: Any = nn.Module()
    for name, tensor in tensors.items():
        layer.register_buffer(name, tensor)
    layer.bias = bias
    return layer.eval()


def of_compressed_tensors(group_size: int | None = 128, *, bits: int = 4, **more: Tensor) -> Any:
    """Return a layer of integers in words, symmetric unless `more` has zero points."""
    elements, exponents = drawn(bits=bits)
    words = in_words(elements, tuple(range(32 // bits)))
    layer = holder(weight_packed=words, weight_scale=(2.0**exponents).bfloat16(), **more)
    layer.quantization_scheme = SimpleNamespace(weights=SimpleNamespace(num_bits=bits, group_size=group_size))
    return layer


def of_gptq(*, zero: int | None = None, bits: int = 4, **more: Tensor) -> Any:
    """Return a layer of GPTQ, whose zero points are stored less 1."""
    elements, exponents = drawn(bits=bits)
    order, zero = tuple(range(32 // bits)), (1 << bits - 1) - 1 if zero is None else zero
    zeros = in_words(torch.full((exponents.shape[1], N), zero), order)
    given = {"qzeros": zeros, "g_idx": torch.arange(K, dtype=torch.int32) // 128, **more}
    qweight = in_words(elements, order).mT.contiguous()
    layer = holder(qweight=qweight, scales=(2.0**exponents).half().mT, **given)
    layer.bits, layer.group_size = bits, 128
    return layer


def of_awq(*, zero: int = 8, bits: int = 4) -> Any:
    """Return a layer of AWQ, whose zero points are all the same."""
    elements, exponents = drawn()
    zeros = in_words(torch.full((exponents.shape[1], N), zero), AWQ_ORDER)
    layer = holder(qweight=in_words(elements.mT, AWQ_ORDER), scales=(2.0**exponents).half().mT, qzeros=zeros)
    layer.w_bit, layer.group_size = bits, 128
    return layer


def of_mxfp4(**more: Tensor) -> Any:
    """Return a layer of compressed-tensors in mxfp4."""
    weight = weight_in("mxfp4")
    return holder(weight_packed=weight.codes, weight_scale=weight.scales.view(torch.uint8), **more)


def of_nvfp4() -> Any:
    """Return a layer of compressed-tensors in nvfp4, whose global scale is a divisor."""
    weight = weight_in("nvfp4")
    divisor = torch.tensor([2.0])
    return holder(weight_packed=weight.codes, weight_scale=weight.scales, weight_global_scale=divisor)


def of_modelopt() -> Any:
    """Return a layer of modelopt in nvfp4, whose second scale is a factor."""
    weight = weight_in("nvfp4")
    return holder(weight=weight.codes, weight_scale=weight.scales, weight_scale_2=torch.tensor(0.5))


def of_unpacked(scale_format: str, name: str = "weight_scale", **more: Tensor) -> Any:
    """Return a layer whose weight of eight bits is not packed, with scales by a name."""
    weight = weight_in(scale_format)
    return holder(weight=weight.codes, **{name: weight.scales}, **more)


def of_fp8_blocks() -> Any:
    """Return a layer of e4m3 with an fp32 scale for each 128 x 128, as DeepSeek and Qwen have it."""
    scales = 2.0 ** drawn(N // 128)[1]
    return holder(weight=weight_in("bf16_e4m3").codes, weight_scale_inv=scales)
