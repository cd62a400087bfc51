"""The example of a DeepSeek-V3 layer: its kernels in the simulator, its reference, and its record."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import Cuda
from hopper import hopper
from modules import ROOT, made
from simulated import on_the_cpu, simulated_file
from torch import Tensor

from examples.deepseek import check as program
from examples.deepseek.checkpoint import Layer, Sizes, Weight, drawn, laid_out, quantised_weight, read
from examples.deepseek.layer import Decoder, chosen, weights_of
from examples.deepseek.linears import (
    GATED,
    Generated,
    Quantised,
    Reference,
    TorchLinears,
    bf16_weights,
    dequantised,
    quantise,
    unquantised,
    whole_rows,
)
from gemmgen.lower import lower
from gemmgen.problem import Groups
from gemmgen.product import write

EXAMPLE = ROOT / "examples" / "deepseek"
SPECS = sorted((EXAMPLE / "specs").glob("*.yaml"))
SMALL = Sizes(
    hidden=512,
    q_rank=256,
    kv_rank=128,
    heads=4,
    nope=48,
    rope=16,
    value=64,
    intermediate=256,
    experts=32,
    top_k=4,
)
TOKENS = {"decode": 9, "prefill": 30}
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
every_regime = pytest.mark.parametrize("regime", list(TOKENS))


@pytest.fixture(scope="module")
def layer() -> Layer:
    return read(dict(drawn(SMALL, "cpu")), SMALL)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example's modules, with the launcher."""
    folder = tmp_path_factory.mktemp("deepseek")
    for spec in SPECS:
        write(made(spec), folder)
    return folder


def inputs(tokens: int, sizes: Sizes = SMALL) -> Tensor:
    return program.inputs(tokens, sizes, seed=tokens, device="cpu")


def on_gpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Cuda)


def from_gpu(matmul: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `matmul` that takes tensors of the CPU, and returns such."""

    def call(a: Tensor, b: Tensor, **operands: Tensor) -> Any:
        named = {name: on_gpu(each) for name, each in operands.items()}
        d = matmul(on_gpu(a), on_gpu(b), **named)
        if isinstance(d, Tensor):
            return d.as_subclass(Tensor)
        values, scales = d
        return values.as_subclass(Tensor), scales.as_subclass(Tensor)

    return call


def simulated_linears(regime: str, layer: Layer, built: Path, monkeypatch: pytest.MonkeyPatch) -> Generated:
    """The linears from the modules of a regime, whose launches the simulator executes."""
    stems = {name: f"{name}_{regime}" for name in layer.linears}
    modules = {
        name: simulated_file(built / f"{stem}.py", made(EXAMPLE / "specs" / f"{stem}.yaml"), monkeypatch)
        for name, stem in stems.items()
    }
    return Generated(layer.linears, {name: from_gpu(module.matmul) for name, module in modules.items()})


class InBf16(Reference):
    """The reference as exact kernels round it: results in bf16, and in e4m3 after an up projection."""

    def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Tensor:
        d = super().__call__(name, x, **operands)
        return d if name in GATED else d.bfloat16()


# --- the checkpoint


def test_a_linear_of_the_layer_has_the_sizes_of_its_specs() -> None:
    tensors = {
        name: torch.empty(shape, dtype=dtype, device="meta") for name, shape, dtype in of_deepseek_v3()
    }
    layer = read(tensors, Sizes())
    for spec in SPECS:
        name = spec.stem.rpartition("_")[0]
        source = made(spec).source
        problem, (*experts, n, k) = source.problem, layer.linears[name].values.shape
        stated = source.spec.problem
        assert stated is not None
        assert (n, k) == (stated.n[1] * (1 + (name in GATED)), stated.k[1])
        assert problem.groups == (Groups("m_offsets", experts[0]) if experts else None)
        assert layer.linears[name].scales.shape == (*experts, -(-n // 128), -(-k // 128))


def of_deepseek_v3() -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Names, shapes and types of the tensors of a layer of DeepSeek-V3, written out."""
    fp8 = {
        "self_attn.q_a_proj": (1536, 7168),
        "self_attn.q_b_proj": (24576, 1536),
        "self_attn.kv_a_proj_with_mqa": (576, 7168),
        "self_attn.kv_b_proj": (32768, 512),
        "self_attn.o_proj": (7168, 16384),
    }
    for of in ("shared_experts", *(f"experts.{number}" for number in range(256))):
        fp8 |= {f"mlp.{of}.{part}_proj": (2048, 7168) for part in ("gate", "up")}
        fp8[f"mlp.{of}.down_proj"] = (7168, 2048)
    plain: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (7168,),
        "self_attn.q_a_layernorm.weight": (1536,),
        "self_attn.kv_a_layernorm.weight": (512,),
        "post_attention_layernorm.weight": (7168,),
        "mlp.gate.weight": (256, 7168),
        "mlp.gate.e_score_correction_bias": (256,),
    }
    return [
        *((f"{name}.weight", shape, torch.float8_e4m3fn) for name, shape in fp8.items()),
        *(
            (f"{name}.weight_scale_inv", (-(-n // 128), k // 128), torch.float32)
            for name, (n, k) in fp8.items()
        ),
        *((name, shape, torch.bfloat16) for name, shape in plain.items()),
    ]


def test_random_tensors_have_the_names_of_the_checkpoint() -> None:
    named = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in drawn(SMALL, "cpu")}
    expected = {name for name, *_ in of_deepseek_v3()}
    of_32 = {name for name in expected if not name.startswith("mlp.experts.") or int(name.split(".")[2]) < 32}
    assert set(named) == of_32
    assert named["self_attn.kv_a_proj_with_mqa.weight"] == ((144, 512), torch.float8_e4m3fn)
    assert named["self_attn.kv_a_proj_with_mqa.weight_scale_inv"] == ((2, 4), torch.float32)


def test_the_tensors_of_a_checkpoint_are_read_without_a_copy() -> None:
    tensors = dict(drawn(replace(SMALL, q_rank=512), "cpu"))
    weight = read(tensors, SMALL).linears["q_b"]
    assert weight.values is tensors["self_attn.q_b_proj.weight"]
    assert weight.scales is tensors["self_attn.q_b_proj.weight_scale_inv"]


def test_other_scales_are_laid_out_in_rows_of_whole_units() -> None:
    scales = torch.rand(3, 5, 6)
    found = laid_out(scales)
    assert torch.equal(found, scales)
    assert found.stride() == (40, 8, 1)


def test_rows_of_joined_linears_keep_their_scales() -> None:
    tensors = dict(drawn(SMALL, "cpu"))
    linears = read(tensors, SMALL).linears

    def numbers(name: str) -> Tensor:
        return dequantised(tensors[f"{name}.weight"], tensors[f"{name}.weight_scale_inv"], 128, torch.float64)

    def of(weight: Weight, *expert: int) -> Tensor:
        return dequantised(weight.values[expert], weight.scales[expert], 128, torch.float64)

    attention = [numbers(f"self_attn.{name}") for name in ("q_a_proj", "kv_a_proj_with_mqa")]
    assert torch.equal(of(linears["qkv_a"]), torch.cat(attention))
    for expert in (0, 17, 31):
        both = [numbers(f"mlp.experts.{expert}.{name}") for name in ("gate_proj", "up_proj")]
        assert torch.equal(of(linears["experts_up"], expert), torch.cat(both))
        assert torch.equal(of(linears["experts_down"], expert), numbers(f"mlp.experts.{expert}.down_proj"))


def test_a_quantised_weight_is_within_half_a_step_of_e4m3() -> None:
    weight = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    values, scales = quantised_weight(weight)
    assert scales.shape == (2, 3)
    assert scales[1, 2] == weight[128:, 256:].abs().max() / torch.tensor(448.0)
    for row in range(0, 200, 37):
        for column in range(0, 300, 23):
            scale = float(scales[row // 128, column // 128])
            exact, found = float(weight[row, column]), float(values[row, column].float()) * scale
            step = 2.0 ** (max(-6, math.floor(math.log2(abs(exact) / scale))) - 3) * scale
            assert abs(found - exact) <= step / 2 * (1 + 1e-5)


# --- activations


def test_activations_have_a_scale_for_a_row_and_128_columns() -> None:
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[2, 128:256] = 0
    found = quantise(x)
    assert (found.values.dtype, found.values.shape, found.scales.shape) == (
        torch.float8_e4m3fn,
        (5, 300),
        (5, 3),
    )
    assert found.scales.stride() == (1, 8)
    for row in range(5):
        for block, columns in enumerate((slice(128), slice(128, 256), slice(256, 300))):
            largest = x[row, columns].float().abs().max().clamp_min(2.0**-100)
            assert found.scales[row, block] == largest / torch.tensor(448.0)
    numbers = dequantised(found.values, found.scales, 1, torch.float64)
    assert (numbers - x).abs().max() <= 2.0**-4 * x.abs().max()
    assert (numbers[2, 128:256] == 0).all()


def test_rows_of_activations_keep_their_scales() -> None:
    x = quantise(torch.randn(6, 256, generator=torch.Generator().manual_seed(2)))
    rows = x[torch.tensor([5, 0, 0, 3, 2])]
    assert torch.equal(rows.values.float(), x.values.float()[[5, 0, 0, 3, 2]])
    assert torch.equal(rows.scales, x.scales[[5, 0, 0, 3, 2]])
    assert rows.scales.stride() == (1, 8)


# --- the parts of the layer beside loops


def test_a_token_has_the_best_experts_of_its_best_groups() -> None:
    generator = torch.Generator().manual_seed(3)
    scores, bias = torch.rand(40, 32, generator=generator), torch.randn(32, generator=generator) / 10
    found = chosen(scores, bias, SMALL)
    for token in range(40):
        of = [float(scores[token, expert] + bias[expert]) for expert in range(32)]
        groups = sorted(range(8), key=lambda g: -sum(sorted(of[4 * g : 4 * g + 4])[-2:]))[:4]
        allowed = [expert for expert in range(32) if expert // 4 in groups]
        assert numbers_of(found[token]) == sorted(allowed, key=lambda expert: -of[expert])[:4]
    weight = weights_of(scores, found, SMALL)
    assert torch.allclose(weight.sum(1), torch.tensor(2.5))
    assert torch.allclose(weight[0, 0] / weight[0, 1], scores[0, found[0, 0]] / scores[0, found[0, 1]])


def numbers_of(tensor: Tensor) -> list[int]:
    return [int(number) for number in tensor]


def by_token(x: Tensor, of: Layer, sizes: Sizes, expert: Tensor) -> Tensor:
    """Return the layer's output in fp64 with the numbers of the weights, token by token and head by head."""
    numbers = Numbers(of, sizes)
    qs, ks, vs = numbers.heads(x.double())
    rows: list[Tensor] = []
    for token, row in enumerate(x.double()):
        heads: list[Tensor] = []
        for head in range(sizes.heads):
            score = torch.stack([qs[token][head] @ ks[i][head] for i in range(token + 1)])
            share = torch.softmax(score / math.sqrt(sizes.nope + sizes.rope), 0)
            heads.append(sum((share[i] * vs[i][head] for i in range(token + 1)), torch.zeros(())))
        h = row + numbers.o @ torch.cat(heads)
        a = rms(h, of.norms["post_attention_layernorm"])
        score = 1 / (1 + (-(of.router.double() @ a)).exp())
        weight = score[expert[token]] / score[expert[token]].sum() * 2.5
        d = h + numbers.expert(a, numbers.up, numbers.down)
        for share, number in zip(weight, numbers_of(expert[token]), strict=True):
            up = dequantised(*of_expert(of.linears["experts_up"], number), 128, torch.float64)
            down = dequantised(*of_expert(of.linears["experts_down"], number), 128, torch.float64)
            d = d + share * numbers.expert(a, up, down)
        rows.append(d)
    return torch.stack(rows)


def of_expert(weight: Weight, number: int) -> tuple[Tensor, Tensor]:
    return weight.values[number], weight.scales[number]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean() + 1e-6).sqrt() * weight.double()


def turned(x: Tensor, position: int) -> Tensor:
    """Return the rotary embedding of a vector: neighbours are the parts of complex numbers."""
    angles = [position * 10000.0 ** (-i / len(x)) for i in range(0, len(x), 2)]
    found = [
        complex(float(pair[0]), float(pair[1])) * complex(math.cos(angle), math.sin(angle))
        for pair, angle in zip(x.view(-1, 2), angles, strict=True)
    ]
    return torch.tensor([part for number in found for part in (number.real, number.imag)]).double()


class Numbers:
    """The weights of a layer in fp64, and the vectors of its attention."""

    def __init__(self, of: Layer, sizes: Sizes) -> None:
        def numbers(name: str) -> Tensor:
            weight = of.linears[name]
            return dequantised(weight.values, weight.scales, 128, torch.float64)

        self.layer, self.sizes = of, sizes
        self.qkv_a, self.q_b, self.kv_b, self.o = (numbers(name) for name in ("qkv_a", "q_b", "kv_b", "o"))
        self.up, self.down = numbers("shared_up"), numbers("shared_down")

    def heads(self, x: Tensor) -> tuple[list[list[Tensor]], ...]:
        """Return Q, K and V of each token and each head."""
        sizes, norms = self.sizes, self.layer.norms
        found: tuple[list[list[Tensor]], ...] = ([], [], [])
        for position, row in enumerate(x):
            latent = self.qkv_a @ rms(row, norms["input_layernorm"])
            q_latent, kv_latent = latent[: sizes.q_rank], latent[sizes.q_rank :][: sizes.kv_rank]
            shared = turned(latent[sizes.q_rank + sizes.kv_rank :], position)
            q = (self.q_b @ rms(q_latent, norms["self_attn.q_a_layernorm"])).view(sizes.heads, -1)
            kv = (self.kv_b @ rms(kv_latent, norms["self_attn.kv_a_layernorm"])).view(sizes.heads, -1)
            n = sizes.nope
            found[0].append([torch.cat([head[:n], turned(head[n:], position)]) for head in q])
            found[1].append([torch.cat([head[:n], shared]) for head in kv])
            found[2].append([head[n:] for head in kv])
        return found

    def expert(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """Return the result of an expert for a vector."""
        gate, linear = torch.chunk(up @ x, 2)
        return down @ (gate / (1 + (-gate).exp()) * linear)


def test_the_reference_without_quantisation_is_a_loop_over_tokens(layer: Layer) -> None:
    x = inputs(7)
    found = Decoder(layer, SMALL, Reference(layer.linears, unquantised), unquantised)(x.double())
    expected = by_token(x, layer, SMALL, found.expert)
    # The router's weights of pairs are fp32.
    assert torch.allclose(found.d, expected, rtol=1e-6, atol=1e-6)


def test_a_gated_reference_has_the_rows_of_gate_first(layer: Layer) -> None:
    x = quantise(inputs(3))
    found = Reference(layer.linears)("shared_up", x)
    a = dequantised(x.values, x.scales, 1, torch.float64)
    weight = Numbers(layer, SMALL).up
    gate, up = a @ weight[:256].T, a @ weight[256:].T
    assert torch.allclose(found, gate * torch.sigmoid(gate) * up)


# --- the layer of generated kernels


@pytest.mark.sample(1)
@every_regime
def test_each_linear_and_the_layer_have_the_numbers_of_the_dequantised_reference(
    regime: str, layer: Layer, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linears = simulated_linears(regime, layer, built, monkeypatch)
    found = program.check(layer, SMALL, linears, inputs(TOKENS[regime]))
    assert set(found["linears"]) == {*layer.linears, *(f"scales of {name}" for name in GATED)}
    # Sums are fp32 here, so that almost all of an error is the rounding to bf16, or to e4m3.
    for name, errors in found["linears"].items():
        assert errors["norm"] < (3e-2 if name in GATED else 2e-3)


def test_256_experts_of_which_few_have_rows(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = replace(SMALL, hidden=256, intermediate=128, experts=256, top_k=8)
    layer = read(dict(drawn(sizes, "cpu")), sizes)
    linears = simulated_linears("decode", layer, built, monkeypatch)
    x = inputs(3, sizes)
    assert program.check(layer, sizes, linears, x)
    chosen_once = Decoder(layer, sizes, InBf16(layer.linears))(x).expert
    assert len({*numbers_of(chosen_once.flatten())}) > 12


@every_regime
def test_kernels_read_weights_and_scales_where_they_are(
    regime: str, layer: Layer, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call copies an operand: kernels get the memory of the checkpoint and of the quantised tensors."""
    linears = simulated_linears(regime, layer, built, monkeypatch)
    x = inputs(13)
    recorder = program.Recorder(InBf16(layer.linears))
    Decoder(layer, SMALL, recorder)(x)
    for name, (a, operands) in recorder.calls.items():
        module = sys.modules[f"{name}_{regime}"]
        launched: list[Any] = []
        monkeypatch.setattr(module.__dict__["matmul_kernel"], "launch", keeping(launched))
        linears(name, a, **operands)
        memory = {tensor_of(each).data_ptr() for each in map(on_the_cpu, launched) if has_memory(each)}
        weight = layer.linears[name]
        for each in (a.values, a.scales, weight.values, weight.scales, *operands.values()):
            assert each.data_ptr() in memory


def keeping(launched: list[Any]) -> Callable[[int, list[Any]], None]:
    return lambda _, given: launched.extend(given)


def has_memory(argument: Any) -> bool:
    return isinstance(argument, Tensor) or hasattr(argument, "base")


def tensor_of(argument: Any) -> Tensor:
    base = getattr(argument, "base", argument)
    return base if isinstance(base, Tensor) else base.tensor


@pytest.mark.sample(4)
@every_spec
def test_the_compiler_makes_what_the_plan_of_the_example_says(spec: Path) -> None:
    product = made(spec)
    resources = lower(product.module, product.plan, path=spec.as_posix(), stem=spec.stem).resources
    assert resources.smem_bytes == product.plan.smem_bytes
    assert resources.spilled_bytes == 0
    assert not resources.ptxas_notes


@every_spec
def test_every_kernel_promotes_with_scales_of_blocks(spec: Path) -> None:
    plan = hopper(made(spec).plan)
    problem = made(spec).source.problem
    assert (problem.block_scaled, plan.promote_k) == (True, 128)
    assert problem.gated == (spec.stem.rpartition("_")[0] in GATED)


def test_the_example_imports_torch_and_examples_alone() -> None:
    imported: set[str] = set()
    for path in EXAMPLE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch", "examples"}


# --- what a check finds


class Faulty(InBf16):
    """Exact linears with a fault, as a wrong kernel or a wrong call would have it."""

    fault: str = ""

    def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Tensor:
        if self.fault == "no c":
            operands.pop("c", None)
        if self.fault == "no row_scale":
            operands.pop("row_scale", None)
        if self.fault == "a scale of A" and name == "kv_b":
            x = Quantised(x.values, x.scales.clone())
            x.scales[3] *= 1.5
        if self.fault == "a scale of B" and name == "o":
            wrong = Weight(self.weights[name].values, self.weights[name].scales.roll(1, 1))
            return InBf16({name: wrong})(name, x, **operands)
        if self.fault == "an expert's end" and name == "experts_down":
            offs = operands["offs"]
            operands["offs"] = torch.cat([(offs[:-1] - 1).clamp_min(0), offs[-1:]])
        d = super().__call__(name, x, **operands)
        if self.fault == "gate and up exchanged" and name == "experts_up":
            weight = self.weights[name]
            turned = Weight(weight.values.roll(256, 1), weight.scales.roll(2, 1))
            return InBf16({name: turned})(name, x, **operands)
        if self.fault == "an element" and name == "q_b":
            d[2, 5] += 0.05
        if self.fault == "a NaN" and name == "shared_down":
            d[0, 0] = math.nan
        return d

    def up(self, name: str, x: Quantised, **operands: Tensor) -> Quantised:
        h = super().up(name, x, **operands)
        if self.fault == "a scale of D":
            h.scales[5, 1] *= 1.1
        if self.fault == "larger scales of D":
            numbers = dequantised(h.values, h.scales, 1, torch.float64)
            scales = h.scales * 1.25
            return Quantised(
                (numbers / dequantised(torch.ones_like(numbers), scales, 1, torch.float64)).to(
                    torch.float8_e4m3fn
                ),
                scales,
            )
        return h


def with_fault(fault: str, layer: Layer) -> Faulty:
    linears = Faulty(layer.linears)
    object.__setattr__(linears, "fault", fault)
    return linears


FAULTS = (
    "gate and up exchanged",
    "a scale of D",
    "larger scales of D",
    "no c",
    "no row_scale",
    "a scale of A",
    "a scale of B",
    "an expert's end",
    "an element",
    "a NaN",
)


def test_exact_linears_are_within_the_limits(layer: Layer) -> None:
    for tokens in (1, 2, 30):
        program.check(layer, SMALL, InBf16(layer.linears), inputs(tokens))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_linear_whose_errors_are_too_large(fault: str, layer: Layer) -> None:
    with pytest.raises(SystemExit, match=r"20 tokens: the errors of [\w ]+ are too large"):
        program.check(layer, SMALL, with_fault(fault, layer), inputs(20))


def test_a_linear_that_gives_other_bits_in_a_second_call_is_refused(layer: Layer) -> None:
    calls: list[str] = []

    class Changing(InBf16):
        def __call__(self, name: str, x: Quantised, **operands: Tensor) -> Tensor:
            calls.append(name)
            d = super().__call__(name, x, **operands)
            return d * 1.01 if calls.count(name) == 2 and name == changed else d

    for changed in ("q_b", "experts_up"):
        calls.clear()
        with pytest.raises(SystemExit, match=f"{changed}: a second call gives other bits"):
            program.check(layer, SMALL, Changing(layer.linears), inputs(5))


def test_a_layer_that_is_wired_wrongly_is_refused(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each linear is right for its inputs, and the layer is wrong."""
    whole = Decoder.__call__

    def without_attention(self: Decoder, x: Tensor, expert: Tensor | None = None) -> Any:
        found = whole(self, x, expert)
        return found if expert is not None else replace(found, d=found.d - (found.attended - x))

    monkeypatch.setattr(Decoder, "__call__", without_attention)
    with pytest.raises(SystemExit, match="5 tokens: the errors of the layer are too large"):
        program.check(layer, SMALL, InBf16(layer.linears), inputs(5))


# --- torch's kernels, and the record


def torch_linears(layer: Layer) -> TorchLinears:
    return TorchLinears(
        layer.linears, {name: bf16_weights(layer.linears[name]) for name in ("experts_up", "experts_down")}
    )


def scaled_mm_in_fp64(a: Tensor, b: Tensor, a_scale: Tensor, of_a: Any, b_scale: Tensor, of_b: Any) -> Tensor:
    """Compute torch's scaled_mm, which has no kernel for the CPU, by its documented layouts."""
    assert (of_a.name, of_b.name) == ("BlockWise1x128", "BlockWise128x128")
    if len(a) == 1:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublas`\nand more")
    assert a_scale.stride() == (1, len(a_scale))
    blocks = -(-b_scale.shape[0] // 4) * 4
    assert b_scale.stride() == (1, blocks)
    exact = dequantised(a, a_scale, 1, torch.float64)
    return (exact @ dequantised(b.T, b_scale.T, 128, torch.float64).T).bfloat16()


@pytest.mark.parametrize("tokens", [1, 12])
def test_torchs_linears_compute_the_same(tokens: int, layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", scaled_mm_in_fp64)
    recorder = program.Recorder(InBf16(layer.linears))
    Decoder(layer, SMALL, recorder)(inputs(tokens))
    for name, (x, operands) in recorder.calls.items():
        for call in torch_linears(layer).calls(name):
            d = torch_linears(layer).prepared(name, x, call=call, **operands)()
            # Products, gates and weights of pairs are rounded to bf16 one after the other.
            assert program.distance(d, Reference(layer.linears)(name, x, **operands)) < 6e-3


def test_cublas_gets_whole_rows(layer: Layer) -> None:
    for tokens, rows in ((1, 8), (8, 8), (9, 16)):
        x = quantise(inputs(tokens))
        found = whole_rows(x)
        assert (len(found.values), len(found.scales), found.scales.stride()) == (rows, rows, (1, rows))
        assert torch.equal(found.values[:tokens].float(), x.values.float())
        assert torch.equal(found.scales[:tokens], x.scales)
        assert not found.values[tokens:].float().any()


def in_torch(name: str) -> Callable[..., Any]:
    """Return a `matmul` of a linear that is exact, as the module of its kernel has one."""

    def matmul(a: Tensor, b: Tensor, *, a_scale: Tensor, b_scale: Tensor, **operands: Tensor) -> Any:
        right, x = InBf16({name: Weight(b.mT, b_scale)}), Quantised(a, a_scale)
        if name not in GATED:
            return right(name, x, **operands)
        h = right.up(name, x, **operands)
        return h.values, h.scales

    return matmul


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_point_of_the_record_has_the_times_of_each_linear(
    tokens: int, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def microseconds(calls: Mapping[str, list[Callable[[], Any]]]) -> dict[str, float]:
        timed.extend(calls)
        assert len({len(each) for each in calls.values()}) == 1
        for call in (call for each in calls.values() for call in each[:3]):
            d = call()
            values = d if isinstance(d, Tensor) else d[0].float()
            assert bool(torch.isfinite(values).all())
        return {name: 3.0 if name.endswith("torch") else 2.0 for name in calls}

    monkeypatch.setattr(torch.nn.functional, "scaled_mm", scaled_mm_in_fp64)
    monkeypatch.setattr(program, "microseconds", microseconds)
    drawn_on_cpu = partial(program.inputs, device="cpu")
    monkeypatch.setattr(program, "inputs", drawn_on_cpu)
    ours = Generated(layer.linears, {name: in_torch(name) for name in layer.linears})
    found = json.loads(
        json.dumps(program.point(tokens, layer, SMALL, ours, dict(torch_linears(layer).experts)))
    )
    assert timed == [f"{name} {arm}" for name in layer.linears for arm in ("generated", "torch")]
    assert (found["tokens"], found["kernels"], found["all"]) == (
        tokens,
        "decode",
        {"generated": 16.0, "torch": 24.0},
    )
    assert found["ratios"] == dict.fromkeys([*layer.linears, "all"], 1.5)
    assert all(each["difference"] < 4e-2 for each in found["us"].values())
    assert {(each["call"], *each["refused"]) for each in found["us"].values()} == {
        ("scaled_mm",),
        ("grouped_mm",),
    }


def refusing(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED\nat a line")


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_call_that_torch_refuses_stops_no_other(
    is_captured: bool, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if torch refuses to capture the call in a graph, which `microseconds` does."""
    kinds: list[str] = []

    def microseconds(calls: Mapping[str, list[Callable[[], Any]]]) -> dict[str, float]:
        kinds.append(" ".join(calls))
        if is_captured and kinds.count(kinds[-1]) == 1 and "_up torch" in kinds[-1]:
            raise RuntimeError("operation not permitted when stream is capturing")
        return {name: 3.0 if name.endswith("torch") else 2.0 for name in calls}

    monkeypatch.setattr(program, "microseconds", microseconds)
    monkeypatch.setattr(program, "inputs", partial(program.inputs, device="cpu"))
    monkeypatch.setattr(torch.nn.functional, "scaled_mm", scaled_mm_in_fp64 if is_captured else refusing)
    if not is_captured:
        monkeypatch.setattr(torch.nn.functional, "grouped_mm", refusing)
    ours = Generated(layer.linears, {name: in_torch(name) for name in layer.linears})
    found = program.point(1, layer, SMALL, ours, dict(torch_linears(layer).experts))
    us, captured = found["us"], "RuntimeError: operation not permitted when stream is capturing"
    assert list(us) == list(layer.linears)
    if is_captured:
        assert us["shared_up"]["call"] == "matmul"
        assert us["shared_up"]["refused"] == {"scaled_mm": captured}
        assert us["experts_up"] == {"generated": 2.0, "refused": {"grouped_mm": captured}}
        assert us["o"]["call"] == "scaled_mm"
        assert found["all"] == {"generated": 14.0, "torch": 21.0}  # without the experts' up projection
        assert found["ratios"] == dict.fromkeys([*(name for name in us if name != "experts_up"), "all"], 1.5)
        return
    reason = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED"
    for name, each in us.items():
        assert each["refused"] == {"grouped_mm" if name.startswith("experts") else "scaled_mm": reason}
        assert each.get("call") == (None if name.startswith("experts") else "matmul")
        assert each.get("difference", 0) < 4e-2
    assert found["all"] == {"generated": 12.0, "torch": 18.0}


def test_a_linear_whose_kernel_fails_is_no_refusal_of_torch(
    layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("an illegal memory access")

    recorder = program.Recorder(InBf16(layer.linears))
    Decoder(layer, SMALL, recorder)(inputs(2))
    ours = Generated(layer.linears, dict.fromkeys(layer.linears, failing))
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        program.timed("o", [recorder], ours, dict(torch_linears(layer).experts))


def test_weights_are_copied_until_l2_cannot_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = Weight(torch.zeros(128, 128), torch.zeros(1, 1))
    monkeypatch.setattr(program, "COLD_BYTES", 3 * weight.values.nbytes)
    found = list(program.copies(weight))
    assert found[0] is weight
    assert len({each.values.data_ptr() for each in found}) == len(found) == 4


def test_the_program_without_a_gpu_says_that_it_needs_one(tmp_path: Path) -> None:
    ran = run(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (ran.returncode, ran.stderr) == (1, "needs a Hopper GPU\n")


@pytest.mark.gpu
def test_the_numbers_of_the_example_are_right_on_a_gpu(built: Path) -> None:
    ran = run(built)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count(" tokens  errors: ") == 5


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the example's check with the modules of a folder."""
    command = [sys.executable, "-m", "examples.deepseek.check", str(folder)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
