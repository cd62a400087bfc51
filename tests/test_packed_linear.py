"""integrations: a linear layer whose weight of four or eight bits kernels decode."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import stored_weights
import torch
from modules import module_file
from simulated import on_a_gpu, signs, simulated_file
from stored_weights import EIGHT_BITS, FORMATS, K, Kernels, N, drawn, float_of, in_bytes, weight_in
from torch import Tensor, nn

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.integrations import PackedLinear
from gemmgen.integrations.operator import kernels as remembered
from gemmgen.integrations.operator import remember
from gemmgen.integrations.packed_linear import packed_linear
from gemmgen.integrations.packed_weight import PackedWeight, PackingKernel, pack
from gemmgen.integrations.weights import QuantizedWeight, from_layer
from gemmgen.module import import_generated

any_torch: Any = cast(Any, torch)
BF16 = torch.bfloat16
PLAIN = "bf16_1x128"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels(tmp_path_factory.mktemp("packed_linear"))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    any_torch._dynamo.reset()
    before = dict(remembered)
    yield
    remembered.clear()
    remembered.update(before)


def exact(x: Tensor, weight: QuantizedWeight, bias: Tensor | float = 0.0) -> Tensor:
    """Return the product in float64, rounded once to the type of the activations."""
    return (x.double() @ weight.numbers().T + bias).to(x.dtype)


# --- a call


@pytest.mark.parametrize("shape", [(5, K), (2, 3, K), (K,), (0, K)])
@pytest.mark.parametrize("scale_format", FORMATS)
def test_a_kernel_computes_the_layer(scale_format: str, shape: tuple[int, ...], kernels: Kernels) -> None:
    weight, kernel = weight_in(scale_format), kernels.on_the_cpu(scale_format)
    layer, x = PackedLinear(weight, kernel), signs(*shape).to(float_of(scale_format))
    found = layer(x)
    assert layer.reason == ""
    assert kernel.calls
    assert torch.equal(found, exact(x, weight))


@pytest.mark.parametrize("scale_format", ["bf16_1x128", "fp16_1x128", "nvfp4", *EIGHT_BITS])
def test_a_simulated_kernel_computes_the_layer(
    scale_format: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, file = kernels.build(scale_format, "column_bias")
    kernel = simulated_file(file, product, monkeypatch)
    dtype = float_of(scale_format)
    weight, bias = weight_in(scale_format, 64, 256), signs(64).to(dtype)
    layer, x = PackedLinear(weight, kernel, bias=bias), signs(5, 256).to(dtype)
    for name, buffer in [*layer.named_buffers()]:
        cast(Any, layer)._buffers[name] = on_a_gpu(buffer)
    cast(Any, layer)._parameters["bias"] = on_a_gpu(bias)
    found = layer(on_a_gpu(x))
    assert layer.reason == ""
    assert torch.equal(found.as_subclass(Tensor), exact(x, weight, bias))


def test_kernels_are_chosen_by_the_rows(kernels: Kernels) -> None:
    few, many = (kernels.on_the_cpu(PLAIN, rows=rows) for rows in (16, 32))
    layer = PackedLinear(weight_in(PLAIN), many, few_rows={16: few})
    for shape in (16, K), (17, K), (2, 9, K), (K,):
        layer(signs(*shape))
    assert few.calls == [(16, K), (1, K)]
    assert many.calls == [(17, K), (18, K)]
    assert layer.kernel_name == f"{few.__name__}, {many.__name__}"


def test_a_kernel_that_refuses_hands_the_call_to_the_next(kernels: Kernels) -> None:
    few, many = (kernels.on_the_cpu(PLAIN, rows=rows) for rows in (16, 32))

    def refuse(*_: Any, **__: Any) -> Tensor:
        raise ValueError("not today")

    few.matmul = refuse
    layer = PackedLinear(weight_in(PLAIN), many, few_rows={16: few})
    layer(signs(3, K))
    assert (many.calls, layer.reason) == ([(3, K)], "")
    many.matmul = refuse
    assert torch.equal(layer(signs(3, K).zero_()), torch.zeros(3, N, dtype=BF16))
    assert layer.reason == f"{few.__name__}: not today; {many.__name__}: not today"


def test_a_known_call_is_repeated_with_views_of_the_buffers(kernels: Kernels) -> None:
    kernel, given = kernels.on_the_cpu("nvfp4", "column_bias"), list[tuple[Tensor, ...]]()

    def again(*inputs: Tensor) -> Tensor:
        given.append(inputs)
        return inputs[0]

    kernel.call = SimpleNamespace(again=again)
    bias = signs(N)
    layer, x = PackedLinear(weight_in("nvfp4"), kernel, bias=bias), signs(2, 3, K)
    layer.reason = "an earlier one"
    assert layer(x) is x
    ((a, *others),) = given
    assert (a is x, layer.reason, kernel.calls) == (True, "", [])
    names = [name for name in kernel.COMPUTES["inputs"] if name != "a"]
    held = dict(zip(names, others, strict=True))
    wanted = {"b": layer.packed_weight, "b_scale": layer.packed_scale, "tensor_scale": layer.tensor_scale}
    wanted["column_bias"] = layer.bias
    assert {name: each.data_ptr() for name, each in held.items()} == {
        name: cast(Tensor, each).data_ptr() for name, each in wanted.items()
    }


# --- a bias


def test_the_kernel_adds_a_bias_in_its_own_type(kernels: Kernels) -> None:
    weight, kernel = weight_in("mxfp4"), kernels.on_the_cpu("mxfp4", "column_bias")
    bias = torch.arange(N).half() / 16
    layer, x = PackedLinear(weight, kernel, bias=bias), signs(4, K)
    assert layer.bias is not None
    assert (layer.bias.dtype, layer.bias.requires_grad) == (BF16, False)
    assert torch.equal(layer(x), exact(x, weight, bias.to(BF16)))
    with pytest.raises(ValueError, match=r"bias must be \[128\], found \[64\]"):
        PackedLinear(weight, kernel, bias=bias[:64])


def test_a_bias_needs_a_kernel_that_adds_it_and_such_a_kernel_a_bias(kernels: Kernels) -> None:
    weight, plain, biased = weight_in(PLAIN), kernels.module(PLAIN), kernels.module(PLAIN, "column_bias")
    with pytest.raises(ValueError, match="has no column_bias: its product would be rounded before the bias"):
        PackedLinear(weight, plain, bias=signs(N))
    with pytest.raises(ValueError, match="needs column_bias, and the layer has no bias"):
        PackedLinear(weight, biased)
    with pytest.raises(ValueError, match="have different biases or types of A"):
        PackedLinear(weight, plain, few_rows={16: biased})


# --- what is refused


def test_kernels_that_pack_no_weight_are_refused(kernels: Kernels) -> None:
    weight = weight_in(PLAIN)
    for kernel, message in (
        (import_generated(module_file("h100_bf16")), "h100_bf16 packs no weight: COMPUTES says"),
        (
            import_generated(module_file("h100_e4m3_mxfp4")),
            "in e4m3, to which no layer brings its",
        ),
        ("h100_bf16", "a kernel is an imported module or library"),
        (kernels.module(PLAIN, "relu"), "computes more than a @ b and a bias"),
        (kernels.module(PLAIN, "tensor_scale"), "computes more than a @ b and a bias"),
        (kernels.module("nvfp4", "relu"), "computes more than a @ b and a bias"),
        (kernels.module("mxfp4", "relu"), "b_scale with a weight packed in mxfp4, and that its epilogue"),
    ):
        with pytest.raises(ValueError, match=message):
            PackedLinear(weight, kernel)
    other = kernels.on_the_cpu(PLAIN)
    other.COMPUTES = {**other.COMPUTES, "packs_weight": "int3"}
    with pytest.raises(ValueError, match="packs weights of 'int3', a format that this gemmgen does not know"):
        PackingKernel.of(other)
    wide = kernels.on_the_cpu(PLAIN)
    wide.ARGUMENTS = {**wide.ARGUMENTS, "out": {**wide.ARGUMENTS["out"], "dtype": torch.float32}}
    with pytest.raises(ValueError, match=r"makes torch\.float32 of torch\.bfloat16, as no linear layer does"):
        PackedLinear(weight, wide)


def test_a_weight_of_another_format_is_refused_with_both_names(kernels: Kernels) -> None:
    for own in FORMATS:
        for other in FORMATS:
            (element, scales), vector = FORMATS[own], FORMATS[own].vector
            found, of_found = FORMATS[other].element, FORMATS[other].vector
            if own == other or (found == element != "e2m1" and of_found % vector == 0):
                continue  # a block has several of the kernel's
            wanted = (
                rf"packs {element} with \w+ scales of {vector} elements of K \({scales}\), and the weight is "
                rf"{found} with torch.\w+ scales of {of_found} elements of K"
            )
            with pytest.raises(ValueError, match=wanted):
                pack(kernels.module(own), weight_in(other))


@pytest.mark.parametrize("vector", [256, K])
def test_larger_blocks_and_rows_get_a_scale_for_each_block(vector: int, kernels: Kernels) -> None:
    elements, exponents = drawn(N, K, vector)
    kernel = kernels.on_the_cpu("bf16_zero_1x128")
    zeros = torch.arange(exponents.numel(), dtype=torch.uint8).view(exponents.shape) % 16
    weight = QuantizedWeight("int4", in_bytes(elements), (2.0**exponents).bfloat16(), vector, zeros)
    layer, x = PackedLinear(weight, kernel), signs(3, K)
    assert torch.equal(layer(x), exact(x, weight))
    assert layer.reason == ""


@pytest.mark.parametrize("scale_format", EIGHT_BITS)
@pytest.mark.parametrize("vector", [256, K])
def test_larger_blocks_of_eight_bits_get_a_scale_for_each_block(
    scale_format: str, vector: int, kernels: Kernels
) -> None:
    element, codes = FORMATS[scale_format].element, weight_in(scale_format).codes
    weight = QuantizedWeight(element, codes, (2.0 ** (drawn(N, K, vector)[1] - 4)).float(), vector)
    layer, x = PackedLinear(weight, kernels.on_the_cpu(scale_format)), signs(3, K).to(float_of(scale_format))
    assert torch.equal(layer(x), exact(x, weight))
    assert layer.reason == ""


def test_blocks_that_are_no_whole_blocks_of_a_kernel_are_refused(kernels: Kernels) -> None:
    weight = weight_in("bf16_1x64")
    with pytest.raises(ValueError, match="blocks of 64 elements of K are no whole blocks of 128"):
        weight.with_blocks_of(128)
    with pytest.raises(ValueError, match=r"packs int4 with bf16 scales of 128 .* scales of 64 elements of K"):
        pack(kernels.module(PLAIN), weight)


def test_kernels_of_several_formats_are_refused(kernels: Kernels) -> None:
    few, many = kernels.module("bf16_1x64"), kernels.module(PLAIN)
    with pytest.raises(ValueError) as found:  # noqa: PT011  the message is compared
        PackedLinear(weight_in(PLAIN), many, few_rows={8: few})
    assert str(found.value) == (
        "h100_bf16_1x64_rows16 packs int4 with bf16 scales of 64 elements of K (bf16_1x64) and "
        "h100_bf16_1x128_rows16 packs int4 with bf16 scales of 128 elements of K (bf16_1x128): a layer has "
        "its weight in one format"
    )


def with_zeros(zero: int) -> QuantizedWeight:
    weight = weight_in(PLAIN)
    zeros = torch.full(weight.scales.shape, zero, dtype=torch.uint8)
    return QuantizedWeight("int4", weight.codes, weight.scales, weight.vector, zeros)


def test_zero_points_may_say_what_a_symmetric_weight_has(kernels: Kernels) -> None:
    kernel, x = kernels.on_the_cpu(PLAIN), signs(4, K)
    assert torch.equal(PackedLinear(with_zeros(8), kernel)(x), exact(x, weight_in(PLAIN)))
    with pytest.raises(
        ValueError, match=r"has zero points of its own \(asymmetric\), and h100_.* subtracts 8"
    ):
        PackedLinear(with_zeros(7), kernel)


def test_weights_of_other_extents_are_refused(kernels: Kernels) -> None:
    kernel, weight = kernels.module(PLAIN), weight_in(PLAIN)
    experts = QuantizedWeight("int4", weight.codes[None], weight.scales[None], 128)
    with pytest.raises(ValueError, match=r"a layer has a weight \[N, K\], found \[1, 128, 384\]"):
        PackedLinear(experts, kernel)
    for scale_format in PLAIN, "bf16_int8":
        with pytest.raises(ValueError, match="N and K multiples of 64"):
            PackedLinear(weight_in(scale_format, 96), kernels.module(scale_format))
    large = QuantizedWeight("int8", weight_in("bf16_int8").codes, torch.ones(N, 3), 128)
    with pytest.raises(ValueError, match=r"scales must be finite and below 0\.03125 in magnitude"):
        PackedLinear(large, kernels.module("bf16_int8"))
    mxfp4 = weight_in("mxfp4")
    factored = QuantizedWeight("e2m1", mxfp4.codes, mxfp4.scales, 32, tensor_scale=torch.tensor(2.0))
    with pytest.raises(ValueError, match=r"packs e2m1 .* and the weight has a tensor_scale"):
        PackedLinear(factored, kernels.module("mxfp4"))


def test_a_factor_that_a_weight_of_nvfp4_lacks_is_one(kernels: Kernels) -> None:
    weight, x = weight_in("nvfp4"), signs(4, K)
    plain = QuantizedWeight("e2m1", weight.codes, weight.scales, 16)
    assert torch.equal(PackedLinear(plain, kernels.on_the_cpu("nvfp4"))(x), exact(x, plain))


# --- layers of checkpoints

LAYERS: dict[str, tuple[Callable[[], Any], str]] = {
    "compressed-tensors": (stored_weights.of_compressed_tensors, PLAIN),
    "compressed-tensors without a group size": (lambda: stored_weights.of_compressed_tensors(None), PLAIN),
    "compressed-tensors with an order of K": (
        lambda: stored_weights.of_compressed_tensors(weight_g_idx=torch.arange(K, dtype=torch.int32) // 128),
        PLAIN,
    ),
    "GPTQ": (stored_weights.of_gptq, PLAIN),
    "GPTQ with zero points as they are": (lambda: stored_weights.of_gptq(zero=8), PLAIN),
    "AWQ": (stored_weights.of_awq, PLAIN),
    "compressed-tensors of eight bits": (
        lambda: stored_weights.of_compressed_tensors(bits=8), "bf16_int8"
    ),
    "GPTQ of eight bits": (lambda: stored_weights.of_gptq(bits=8), "bf16_int8"),
    "GPTQ of eight bits with zero points as they are": (
        lambda: stored_weights.of_gptq(bits=8, zero=128), "bf16_int8"
    ),
    "int8": (lambda: stored_weights.of_unpacked("bf16_int8"), "bf16_int8"),
    "int8 with zero points that are 0": (
        lambda: stored_weights.of_unpacked("bf16_int8", weight_zero_point=torch.zeros(N, 3).char()),
        "bf16_int8",
    ),
    "fp8": (lambda: stored_weights.of_unpacked("bf16_e4m3"), "bf16_e4m3"),
    "fp8 with scales by DeepSeek's name": (
        lambda: stored_weights.of_unpacked("bf16_e4m3", "weight_scale_inv"), "bf16_e4m3"
    ),
    "mxfp4": (stored_weights.of_mxfp4, "mxfp4"),
    "nvfp4": (stored_weights.of_nvfp4, "nvfp4"),
    "modelopt": (stored_weights.of_modelopt, "nvfp4"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_checkpoints_are_recognised(name: str, kernels: Kernels) -> None:
    make, scale_format = LAYERS[name]
    given, x = make(), signs(4, K)
    layer = PackedLinear.of(given, kernels.on_the_cpu(scale_format))
    assert (layer.training, layer.in_features, layer.out_features) == (False, K, N)
    assert torch.equal(layer(x), exact(x, weight_in(scale_format)))
    assert layer.reason == ""
    given.bias = torch.arange(N).bfloat16()
    biased = PackedLinear.of(given, kernels.on_the_cpu(scale_format, "column_bias"))
    assert torch.equal(biased(x), exact(x, weight_in(scale_format), given.bias))


def test_a_layer_with_scales_of_blocks_is_recognised(kernels: Kernels) -> None:
    given, x = stored_weights.of_fp8_blocks(), signs(4, K)
    layer = PackedLinear.of(given, kernels.on_the_cpu("bf16_e4m3"))
    weight = given.weight.double() * given.weight_scale_inv.repeat_interleave(128, 0).repeat_interleave(
        128, 1
    )
    assert torch.equal(layer(x), (x.double() @ weight.T).to(BF16))
    assert layer.reason == ""


def of_meta() -> Any:
    return stored_weights.of_gptq().to("meta")


def hooked() -> Any:
    layer = stored_weights.of_awq()
    layer.register_forward_pre_hook(print)
    return layer


def permuted() -> Any:
    layer = stored_weights.of_gptq()
    layer.qweight = layer.qweight.view(K // 16, 2 * N)
    return layer


def without(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        layer = make()
        delattr(layer, name)
        return layer

    return made


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a plain layer": (
        lambda: nn.Linear(4, 4),
        "layer is a Linear without the tensors of a quantised weight: weight_packed (compressed-tensors)",
    ),
    "zero points of compressed-tensors": (
        lambda: stored_weights.of_compressed_tensors(
            weight_zero_point=stored_weights.in_words(torch.full((3, N), 5)).mT.contiguous()
        ),
        "the weight has zero points of its own (asymmetric)",
    ),
    "zero points of GPTQ": (lambda: stored_weights.of_gptq(zero=3), "qzeros has numbers from 3 to 3"),
    "zero points of AWQ": (lambda: stored_weights.of_awq(zero=3), "the weight has zero points of its own"),
    "zero points of mxfp4": (
        lambda: stored_weights.of_mxfp4(weight_zero_point=torch.zeros(N, 12)),
        "layer has zero points of e2m1 (weight_zero_point), which no kernel subtracts",
    ),
    "act-order of GPTQ": (
        lambda: stored_weights.of_gptq(g_idx=torch.arange(K, dtype=torch.int32) % 3),
        "g_idx assigns scales to K in another order than K's own",
    ),
    "act-order of compressed-tensors": (
        lambda: stored_weights.of_compressed_tensors(weight_g_idx=torch.arange(K, dtype=torch.int32) % 3),
        "weight_g_idx assigns scales to K in another order than K's own",
    ),
    "zero points of GPTQ of eight bits": (
        lambda: stored_weights.of_gptq(zero=3, bits=8),
        "qzeros has numbers from 3 to 3; a symmetric layer has 127 everywhere (gptq) or 128 (gptq_v2)",
    ),
    "zero points of int8": (
        lambda: stored_weights.of_unpacked("bf16_int8", weight_zero_point=torch.ones(N, 3).char()),
        "weight_zero_point has numbers from 1 to 1 (asymmetric), and a symmetric layer has 0 everywhere",
    ),
    "int8 without scales": (
        without("weight_scale", lambda: stored_weights.of_unpacked("bf16_int8")), "no tensor weight_scale"
    ),
    "eight bits for a kernel of four": (
        lambda: stored_weights.of_gptq(bits=8),
        "packs int4 with bf16 scales of 128 elements of K (bf16_1x128), and the weight is int8 with",
    ),
    "two bits of GPTQ": (
        lambda: stored_weights.of_gptq(bits=2),
        "layer has weights of 2 bits (bits), and kernels decode 4 and 8",
    ),
    "eight bits of AWQ": (
        lambda: stored_weights.of_awq(bits=8), "layer has weights of 8 bits and AWQ's order of columns"
    ),
    "three bits of AWQ": (lambda: stored_weights.of_awq(bits=3), "layer has weights of 3 bits (w_bit)"),
    "two bits of compressed-tensors": (
        lambda: stored_weights.of_compressed_tensors(bits=2), "layer has weights of 2 bits (num_bits)"
    ),
    "words in the order of another kernel": (
        permuted, "qweight [24, 256] with scales [3, 128] is neither GPTQ's [K / 8, N] nor AWQ's [K, N / 8]"
    ),
    "AWQ without zero points": (
        without("qzeros", stored_weights.of_awq), "a quantised weight and no tensor qzeros"
    ),
    "nvfp4 without its divisor": (
        without("weight_global_scale", stored_weights.of_nvfp4), "no tensor weight_global_scale"
    ),
    "no data": (of_meta, "qweight has no data (its device is meta): load the checkpoint first"),
    "a hook": (hooked, "layer has a forward pre-hook: it would not be called"),
    "another group size": (
        lambda: stored_weights.of_compressed_tensors(256),
        "K = 384 has scales of 3 blocks, and a group_size of 256",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_layers_are_refused_with_the_reason(name: str, kernels: Kernels) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(ValueError) as found:  # noqa: PT011  the message is compared
        PackedLinear.of(make(), kernels.on_the_cpu(PLAIN))
    assert reason in str(found.value)


def test_a_tensor_of_another_class_is_refused() -> None:
    class Sharded(Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    layer = stored_weights.of_awq()
    layer._buffers["qweight"] = layer.qweight.as_subclass(Sharded)
    with pytest.raises(ValueError, match="qweight is a Sharded, not a plain tensor"):
        from_layer(layer)


# --- buffers, copies, casts


@pytest.mark.parametrize("scale_format", FORMATS)
def test_the_state_dict_has_the_packed_weight(scale_format: str, kernels: Kernels) -> None:
    kernel, x = kernels.on_the_cpu(scale_format, "column_bias"), signs(4, K).to(float_of(scale_format))
    weight, bias = weight_in(scale_format), signs(N)
    layer = PackedLinear(weight, kernel, bias=bias)
    names = ["bias", "packed_weight", "packed_scale", *(["tensor_scale"] if scale_format == "nvfp4" else [])]
    assert [*layer.state_dict()] == names
    assert all(each.is_contiguous() for each in layer.state_dict().values())
    assert not next(iter(layer.parameters())).requires_grad
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    empty = QuantizedWeight(
        weight.element, torch.zeros_like(weight.codes), weight.scales, weight.vector,
        tensor_scale=weight.tensor_scale,
    )  # fmt: skip
    for assign in (False, True):
        other = PackedLinear(empty, kernel, bias=torch.zeros(N))
        file.seek(0)
        other.load_state_dict(torch.load(file), assign=assign)
        assert torch.equal(other(x), exact(x, weight, bias))
        assert other.reason == ""


def test_a_state_dict_of_another_format_is_refused(kernels: Kernels) -> None:
    int4, mxfp4 = (PackedLinear(weight_in(each), kernels.module(each)) for each in (PLAIN, "mxfp4"))
    with pytest.raises(RuntimeError, match=r"packed_scale must be torch.bfloat16, as weights of bf16_1x128"):
        nn.Sequential(int4).load_state_dict(nn.Sequential(mxfp4).state_dict())
    words = PackedLinear(weight_in("bf16_1x32"), kernels.module("bf16_1x32"))
    with pytest.raises(RuntimeError, match="tensor_scale"):
        words.load_state_dict(PackedLinear(weight_in("nvfp4"), kernels.module("nvfp4")).state_dict())


@pytest.mark.parametrize("cast_to", [torch.float16, torch.float32, torch.float64])
def test_a_cast_leaves_the_packed_weight(cast_to: torch.dtype, kernels: Kernels) -> None:
    layer = PackedLinear(weight_in("nvfp4"), kernels.module("nvfp4", "column_bias"), bias=signs(N))
    before = copy.deepcopy(dict(layer.named_buffers()))
    model = nn.Sequential(layer).to(cast_to)
    assert layer.bias is not None
    assert layer.bias.dtype == cast_to
    for name, buffer in layer.named_buffers():
        assert buffer.dtype == before[name].dtype
        assert torch.equal(buffer, before[name])
    assert model.to("meta")[0].packed_weight.is_meta


def test_a_layer_can_be_copied_and_pickled(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    module = kernels.module(PLAIN)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    layer, x = PackedLinear(weight_in(PLAIN), module), signs(4, K)
    wanted = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.packed_weight.data_ptr() != layer.packed_weight.data_ptr()
        assert torch.equal(other(x), wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is deprecated
def test_the_layer_says_what_it_has(kernels: Kernels) -> None:
    layer = PackedLinear(weight_in("mxfp4"), kernels.module("mxfp4"))
    assert str(layer) == (
        "PackedLinear(in_features=384, out_features=128, bias=False, kernel=h100_mxfp4_rows16, weight=e2m1, "
        "scales=mxfp4)"
    )
    with pytest.raises(
        NotImplementedError, match=r"torch\.jit\.script compiles no layer of h100_mxfp4_rows16"
    ):
        any_torch.jit.script(layer)


# --- torch in the kernel's place


@pytest.mark.parametrize("scale_format", FORMATS)
def test_torch_computes_the_layer_elsewhere_and_the_reason_is_told(
    scale_format: str, kernels: Kernels
) -> None:
    weight, module = weight_in(scale_format), kernels.module(scale_format, "column_bias")
    dtype = float_of(scale_format)
    layer, x = PackedLinear(weight, module, bias=signs(N)), signs(2, 3, K).to(dtype)
    assert layer.bias is not None
    wide = x.double() @ weight.numbers().T + layer.bias
    assert torch.allclose(layer(x).double(), wide, rtol=2**-8, atol=0)
    assert layer.reason == f"{module.__name__}: a must be on a CUDA device, found cpu"
    assert torch.allclose(layer(x.float()).double(), wide, rtol=1e-5, atol=1e-5)
    assert layer.reason == f"{module.__name__} multiplies {dtype}, and the input is torch.float32"
    x.requires_grad_()
    layer(x).float().sum().backward()
    assert layer.reason == "the input or the bias requires grad, and the kernel has no backward"
    assert x.grad is not None
    assert torch.allclose(x.grad.double(), weight.numbers().sum(0).expand(2, 3, K), rtol=2**-7, atol=0.1)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(signs(4, 320))
    with torch.autocast("cpu", torch.float16):
        layer(signs(4, K))
    assert layer.reason == "autocast casts input from torch.bfloat16 to torch.float16"


def test_torch_fx_records_the_layer_as_a_whole(kernels: Kernels) -> None:
    layer, x = PackedLinear(weight_in(PLAIN), kernels.on_the_cpu(PLAIN)), signs(4, K)
    traced = torch.fx.symbolic_trace(nn.Sequential(layer))
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "output"]
    assert torch.equal(traced(x), layer(x))
    assert torch.equal(torch.fx.symbolic_trace(layer)(x), layer(x))


def compiled(layer: nn.Module) -> tuple[Any, list[torch.fx.GraphModule]]:
    """Return a layer that is compiled as a whole, and its graphs."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    return any_torch.compile(layer, backend=backend, fullgraph=True, dynamic=True), graphs


def operators(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_a_compiled_layer_is_one_graph_with_the_operator(kernels: Kernels) -> None:
    few, many = (kernels.module("nvfp4", "column_bias", rows=rows) for rows in (16, 32))
    layer = PackedLinear(weight_in("nvfp4"), many, few_rows={16: few}, bias=signs(N)).to("meta")
    function, graphs = compiled(layer)
    for m in (5, 40, 1000):
        assert function(torch.empty(2, m, K, dtype=BF16, device="meta")).shape == (2, m, N)
    (graph,) = graphs
    assert [each for each in operators(graph) if "gemmgen" in each] == ["gemmgen_integrations.packed_linear"]


def test_a_compiled_layer_on_a_cpu_is_torchs(kernels: Kernels) -> None:
    layer, x = PackedLinear(weight_in("mxfp4"), kernels.module("mxfp4")), signs(7, K)
    function, graphs = compiled(layer)
    assert torch.equal(function(x), layer(x))
    (graph,) = graphs
    assert not any("gemmgen" in each for each in operators(graph))


def test_an_exported_layer_keeps_the_rows_open(kernels: Kernels) -> None:
    layer = PackedLinear(weight_in(PLAIN), kernels.module(PLAIN)).to("meta")
    rows = any_torch.export.Dim("rows", min=2, max=4096)
    x = torch.empty(30, K, dtype=BF16, device="meta")
    program = any_torch.export.export(layer, (x,), dynamic_shapes=({0: rows},))
    for m in (2, 33, 4096):
        assert program.module()(torch.empty(m, K, dtype=BF16, device="meta")).shape == (m, N)
    assert [*program.state_dict] == ["packed_weight", "packed_scale"]


def test_the_operator_computes_and_falls_back(kernels: Kernels) -> None:
    weight, kernel, bias = weight_in("nvfp4"), kernels.on_the_cpu("nvfp4", "column_bias"), signs(N)
    packed, x = pack(kernel, weight), signs(6, K)
    assert isinstance(packed, PackedWeight)
    remember(kernel)
    rest = (bias, "nvfp4", [kernel.__name__])
    assert torch.equal(packed_linear(x, *packed, *rest, [8]), exact(x, weight, bias))
    assert kernel.calls == [(6, K)]
    by_torch = packed_linear(x, *packed, *rest, [4])
    assert len(kernel.calls) == 1
    assert torch.allclose(by_torch.double(), exact(x, weight, bias).double(), rtol=2**-7, atol=0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("rows", [1, 5, 16, 100])
@pytest.mark.parametrize("scale_format", FORMATS)
def test_a_layer_on_a_gpu_has_the_numbers_of_the_decoded_weight(
    scale_format: str, rows: int, mode: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    few, many = (kernels.module(scale_format, "column_bias", rows=tile) for tile in (16, 64))
    for module in (few, many):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    weight = weight_in(scale_format, 512, 1024)
    draw = torch.Generator().manual_seed(rows)
    dtype = float_of(scale_format)
    x, bias = (torch.randn(*shape, generator=draw).to(dtype) for shape in ((rows, 1024), (512,)))
    layer = PackedLinear(weight, many, few_rows={16: few}, bias=bias).cuda()
    function = any_torch.compile(layer, fullgraph=True) if mode == "compiled" else layer
    wanted = x.double() @ weight.numbers().T + bias.double()
    found = function(x.cuda())
    assert (found.cpu().double() - wanted).abs().max() <= 2.0**-8 * wanted.abs().max()
    for shape in (rows, 1024), (1, rows, 1024), (1, rows, 1024):  # known calls are among them
        assert torch.equal(function(x.cuda().view(shape)).view(found.shape), found)
    assert layer.reason == ""
