"""Kernels of experts that decode weights, also on this CPU, and layers of gpt-oss that have such weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from expert_kernels import groups_of
from stored_weights import EIGHT_BITS, FORMATS, float_of
from torch import Tensor, nn

from gemmgen.features.decoded_weights.stored import in_turn, weight_of
from gemmgen.hardware import SCALE_FORMATS
from gemmgen.integrations.experts import Experts, gpt_oss_gate, silu_gate
from gemmgen.integrations.weights import QuantizedWeight, from_mxfp4
from gemmgen.launcher_file import launcher_texts
from gemmgen.module import import_generated
from gemmgen.product import Product, make

EXPERTS, HIDDEN, INTERMEDIATE = 8, 128, 64
GPT_OSS, SILU = "gpt_oss", "silu"
EXPRESSIONS = {
    GPT_OSS: "quick_gelu(clamp_max({gate}, max=7)) * (clamp({up}, min=-7, max=7) + 1)",
    SILU: "silu({gate}) * ({up})",
}
FUNCTIONS = {GPT_OSS: gpt_oss_gate, SILU: silu_gate}


def epilogue_of(part: str, scale_format: str, gate: str, *, bias: bool) -> str:
    """Return the epilogue of the spec of a kernel, which is the first one or the second one."""
    has_factor = SCALE_FORMATS[FORMATS[scale_format].scales].factor == "tensor_scale"
    if part == "down":
        steps = [*["tensor_scale"] * has_factor, *["column_bias"] * bias, "row_scale"]
        return f"{{ops: [{', '.join(steps)}]}}"
    end = " * tensor_scale" * has_factor + " + column_bias" * bias
    text = EXPRESSIONS[gate].format(gate=f"gate{end}", up=f"up{end}")
    return f"{{accumulators: [gate, up], columns: interleaved, d: '{text}'}}"


@dataclass
class ExpertModules:
    """Modules of experts that decode weights, each made once in a folder."""

    folder: Path
    made: dict[str, tuple[Product, Path]] = field(default_factory=dict[str, tuple[Product, Path]])

    def build(
        self, part: str, scale_format: str, gate: str = GPT_OSS, *, bias: bool = True, rows: int = 16
    ) -> tuple[Product, Path]:
        """Make the module of the up or the down projection; return its file, too."""
        stem = "_".join((part, scale_format, gate, *["bias"] * bias, f"rows{rows}"))
        if stem not in self.made:
            spec, (element, scales) = self.folder / f"{stem}.yaml", FORMATS[scale_format]
            dtype = SCALE_FORMATS[scales].decoded_to
            index = "a_rows" if part == "up" else "d_rows"
            spec.write_text(
                f"title: experts of decoded weights\ntarget: h100\noperands:\n  a: {{dtype: {dtype}}}\n"
                f"  b: {{dtype: {element}, scale: {{format: {scales}}}}}\n"
                f"  d: {{dtype: {dtype}}}\n"
                f"groups: {{kind: m_offsets, count: {EXPERTS}, {index}: true}}\n"
                f"epilogue: {epilogue_of(part, scale_format, gate, bias=bias)}\n"
                f"tile: {{m: {rows}, n: 64, k: 128}}\n"
            )
            product = make(spec)
            for name, text in {**product.files(), **launcher_texts()}.items():
                (self.folder / name).write_text(text)
            self.made[stem] = product, self.folder / f"{stem}.py"
        return self.made[stem]

    def module(self, *given: str, **options: Any) -> ModuleType:
        """Return a module."""
        return import_generated(self.build(*given, **options)[1])

    def modules(self, up: str = "mxfp4", down: str | None = None, **options: Any) -> Experts:
        """Return the modules of an MLP, whose weights have one format or two."""
        return Experts(self.module("up", up, **options), self.module("down", down or up, **options))

    def on_the_cpu(
        self, part: str, scale_format: str, gate: str = GPT_OSS, *, bias: bool = True, rows: int = 16
    ) -> Any:
        """Return what stands for a module that this CPU computes; `calls` has the rows of each call."""
        product, file = self.build(part, scale_format, gate, bias=bias, rows=rows)
        module, calls, operand = import_generated(file), list[int](), product.source.problem.b

        def sums(a: Tensor, b: Tensor, given: dict[str, Any], group: int) -> Tensor:
            weight = weight_of(b[group], given["b_scale"][group], operand)
            weight = in_turn(weight) if part == "up" else weight
            found = a.double() @ weight.double().T * given.get("tensor_scale", 1.0)
            return found + given["column_bias"][group] if bias else found

        def up(a: Tensor, b: Tensor, *, offs: Tensor, a_rows: Tensor, **given: Tensor) -> Tensor:
            require_packed(b, given["b_scale"])
            calls.append(len(a_rows))
            d = a.new_empty(len(a_rows), b.shape[-1] // 2)
            for group, rows in groups_of(offs):
                found = sums(a[a_rows[rows]], b, given, group)
                d[rows] = FUNCTIONS[gate](found[:, ::2], found[:, 1::2]).to(a.dtype)
            return d

        def down(
            a: Tensor,
            b: Tensor,
            *,
            row_scale: Any,
            offs: Tensor,
            d_rows: Tensor,
            out: Any,
            **given: Tensor,
        ) -> Tensor:
            require_packed(b, given["b_scale"])
            calls.append(len(a))
            d = a.new_empty(len(a), b.shape[-1]) if out is None else out
            for group, rows in groups_of(offs):
                d[d_rows[rows]] = (sums(a[rows], b, given, group) * row_scale[rows, None]).to(a.dtype)
            return d

        return SimpleNamespace(
            __name__=file.stem, matmul=up if part == "up" else down, pack_weight=module.pack_weight,
            calls=calls, ARGUMENTS=module.ARGUMENTS, COMPUTES=module.COMPUTES,
        )  # fmt: skip

    def cpu_experts(self, up: str = "mxfp4", down: str | None = None, **options: Any) -> Experts:
        """Return the same of an MLP."""
        return Experts(self.on_the_cpu("up", up, **options), self.on_the_cpu("down", down or up, **options))


def require_packed(b: Tensor, b_scale: Tensor) -> None:
    assert b.mT.is_contiguous()
    assert b_scale.mT.is_contiguous()


def calls_of(experts: Experts) -> list[list[int]]:
    """Return the rows of the calls of both kernels of the CPU."""
    return [kernel.calls for kernel in experts.pair]


# --- weights


def drawn_weight(scale_format: str, n: int, k: int, experts: int = EXPERTS, seed: int = 0) -> QuantizedWeight:
    """Return random weights of experts, whose scales are small powers of two."""
    element, vector = FORMATS[scale_format].element, FORMATS[scale_format].vector
    draw = torch.Generator().manual_seed(seed + n + k)
    bytes_of_row = k if scale_format in EIGHT_BITS else k // 2
    codes = torch.randint(0, 256, (experts, n, bytes_of_row), dtype=torch.uint8, generator=draw)
    exponents = torch.randint(-6, -2, (experts, n, -(-k // vector)), generator=draw)
    if scale_format == "mxfp4":
        return from_mxfp4(codes, (exponents + 127).to(torch.uint8))
    factor = torch.full((experts,), 0.5) if scale_format == "nvfp4" else None
    scales = (2.0**exponents).to(torch.float8_e4m3fn if scale_format == "nvfp4" else float_of(scale_format))
    if element == "int8":
        codes, scales = codes.view(torch.int8), scales / 16
    elif element == "e4m3":  # from -15 to 15, and no NaN
        codes = (codes & 0xD7).view(torch.float8_e4m3fn)
    return QuantizedWeight(element, codes, scales, vector, tensor_scale=factor)


def drawn_weights(up: str = "mxfp4", down: str | None = None) -> tuple[QuantizedWeight, QuantizedWeight]:
    return (
        drawn_weight(up, 2 * INTERMEDIATE, HIDDEN),
        drawn_weight(down or up, HIDDEN, INTERMEDIATE),
    )


def drawn_biases(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    sizes = {"gate_up_bias": 2 * INTERMEDIATE, "down_bias": HIDDEN}
    return {name: torch.randn(EXPERTS, size, generator=draw).to(dtype) for name, size in sizes.items()}


def drawn_call(tokens: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, two experts of each, and the router's weights."""
    draw = torch.Generator().manual_seed(tokens)
    index = torch.stack([torch.randperm(EXPERTS, generator=draw)[:2] for _ in range(tokens)])
    return (
        torch.randn(tokens, HIDDEN, generator=draw).to(dtype),
        index,
        torch.rand(tokens, 2, generator=draw).to(dtype),
    )


def exact(
    call: tuple[Tensor, Tensor, Tensor],
    weights: tuple[QuantizedWeight, QuantizedWeight],
    biases: dict[str, Tensor],
    gate: str = GPT_OSS,
) -> Tensor:
    """Return the sum of each token's experts in float64, pair by pair, with h rounded as kernels do."""
    x, index, router = call
    gate_up, down = (weight.numbers() for weight in weights)
    of_up, of_down = (biases[name].double() if biases else None for name in ("gate_up_bias", "down_bias"))
    total = torch.zeros(x.shape, dtype=torch.float64)
    for token, experts in enumerate(index):
        for choice, expert in enumerate(map(int, experts)):
            sums = gate_up[expert] @ x[token].double() + (0 if of_up is None else of_up[expert])
            h = FUNCTIONS[gate](sums[::2], sums[1::2]).to(x.dtype).double()
            product = down[expert] @ h + (0 if of_down is None else of_down[expert])
            total[token] += product * router[token, choice].double()
    return total


def assert_close(found: Tensor, wanted: Tensor) -> None:
    """Compare with a sum in bf16, whose summands were rounded before they were added."""
    bound = 2.0**-7 if found.dtype == torch.bfloat16 else 2.0**-10
    assert (found.cpu().double() - wanted).abs().max() <= bound * wanted.abs().max()


# --- layers of transformers


class Reversed:
    """A layout that stores the bytes of a row from the last to the first, and rows before columns."""

    def unswizzle_data(self, data: Tensor) -> Tensor:
        """Return what was stored, columns before rows, as the layouts of the hub's kernels do."""
        return data.flip(-1).mT


def stored(tensor: Tensor) -> Any:
    """Return a tensor as an object of the hub's kernels."""
    return SimpleNamespace(storage=SimpleNamespace(data=tensor.flip(-1), layout=Reversed()))


def checkpoint_tensors(config: Any, seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors of a layer of experts by their names in a checkpoint."""
    experts, hidden, intermediate = config.num_local_experts, config.hidden_size, config.intermediate_size
    found = dict[str, Tensor]()
    for name, n, k in (("gate_up_proj", 2 * intermediate, hidden), ("down_proj", hidden, intermediate)):
        weight = drawn_weight("mxfp4", n, k, experts, seed)
        found[f"{name}_blocks"] = weight.codes.unflatten(-1, (k // 32, 16))
        found[f"{name}_scales"] = weight.scales.view(torch.uint8)
        found[f"{name}_bias"] = torch.randn(experts, n, generator=torch.Generator().manual_seed(n)).bfloat16()
    return found


def put_as_loaded(layer: Any, tensors: dict[str, Tensor]) -> nn.Module:
    """Put tensors into transformers' layer as it does when it loads a model for the hub's kernels."""
    for name in ("gate_up_proj", "down_proj"):
        del layer._parameters[name]
        setattr(layer, name, stored(tensors[f"{name}_blocks"].flatten(-2)))
        scales = stored(tensors[f"{name}_scales"])
        setattr(layer, f"{name}_precision_config", SimpleNamespace(weight_scale=scales))
        setattr(layer, f"{name}_bias", nn.Parameter(tensors[f"{name}_bias"].float(), requires_grad=False))
    return layer


def put_blocks(layer: Any, tensors: dict[str, Tensor]) -> nn.Module:
    """Put tensors into a layer by the names of a checkpoint, as earlier releases have them for a while."""
    for name in ("gate_up_proj", "down_proj"):
        if name in layer._parameters:
            del layer._parameters[name]
    for name, tensor in tensors.items():
        layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
    return layer
