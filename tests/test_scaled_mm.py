"""integrations: torch's scaled_mm for scales of blocks, computed by modules, which the simulator executes."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from cpu_kernels import kernel_on_the_cpu
from modules import module_file
from simulated import on_a_gpu, simulated
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from gemmgen.integrations import ScaledMM, replace_scaled_mm
from gemmgen.integrations import scaled as scaled_module
from gemmgen.integrations.operator import remember
from gemmgen.integrations.scaled_operator import ROWS, TILES
from gemmgen.integrations.scaled_operator import scaled_mm as operator
from gemmgen.module import import_generated

any_torch: Any = cast(Any, torch)
F: Any = functional
dynamo: Any = any_torch._dynamo
E4M3, FP32, BF16 = torch.float8_e4m3fn, torch.float32, torch.bfloat16
OF_TILES, OF_COLUMNS, WITH_BIAS = (
    "h100_e4m3_blockwise",
    "h100_e4m3_blockwise_wgrad",
    "h100_e4m3_blockwise_overlapped",
)
FEW = {16: "h100_e4m3_blockwise_rows16"}
pytestmark = [
    pytest.mark.skipif(not hasattr(functional, "scaled_mm"), reason="torch has no scaled_mm"),
    pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    dynamo.reset()
    yield
    dynamo.reset()


def recipes(recipe_b: str = "BlockWise128x128") -> tuple[Any, Any]:
    """Return torch's recipes of A and of B."""
    return F.ScalingType.BlockWise1x128, getattr(F.ScalingType, recipe_b)


class Call:
    """Operands of a scaled matmul with scales in the layouts of torch's two functions."""

    def __init__(self, m: int = 40, n: int = 144, k: int = 272, *, tiles: bool = True, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        blocks, self.tiles = -(-k // 128), tiles
        of_b = -(-n // 128) if tiles else n
        self.a = torch.randn(m, k, generator=generator).to(E4M3)
        self.b = torch.randn(n, k, generator=generator).to(E4M3).T
        self.a_scale = (torch.rand(blocks, m, generator=generator) + 0.5).T
        rows = torch.rand(of_b, blocks, generator=generator) + 0.5  # as kernels have them
        self.b_scale = rows
        pitch = -(-blocks // 4) * 4
        padded = torch.full((of_b, pitch), float("nan"))
        padded[:, :blocks] = rows
        self.scale_b = padded.T if tiles else rows.T.contiguous().T
        """For scaled_mm: [4 ceil(K / 512), ceil(N / 128)], or [N, ceil(K / 128)] with stride (1, N)."""
        self.turned = rows.T
        """For torch's older function: [ceil(K / 128), ceil(N / 128)], or [ceil(K / 128), N]."""

    def exact(self) -> Tensor:
        """Return the product in float64, a block of K after the other."""
        (m, k), n = self.a.shape, self.b.shape[1]
        total = torch.zeros(m, n, dtype=torch.float64)
        for block in range(self.a_scale.shape[1]):
            along = slice(128 * block, min(128 * block + 128, k))
            sums = self.a[:, along].double() @ self.b[along].double()
            of_columns = self.b_scale[torch.arange(n) // 128 if self.tiles else torch.arange(n), block]
            total += sums * self.a_scale[:, block, None].double() * of_columns.double()
        return total

    def arguments(self, on: Callable[[Tensor], Tensor] = on_a_gpu) -> tuple[Any, ...]:
        """Return the first arguments of scaled_mm."""
        of_a, of_b = recipes("BlockWise128x128" if self.tiles else "BlockWise1x128")
        return on(self.a), on(self.b), on(self.a_scale), of_a, on(self.scale_b), of_b

    def inferred(self, on: Callable[[Tensor], Tensor] = on_a_gpu) -> tuple[Tensor, ...]:
        """Return the first arguments of torch's older function."""
        return on(self.a), on(self.b), on(self.a_scale), on(self.turned)


def assert_close(d: Tensor, exact: Tensor) -> None:
    assert (d.dtype, d.shape) == (BF16, exact.shape)
    assert torch.allclose(d.as_subclass(Tensor).double(), exact, rtol=2e-2, atol=2e-2)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> ScaledMM:
    """A function of modules in the simulator: for scales of tiles and of columns, few rows, and a bias."""
    stems = (OF_TILES, OF_COLUMNS, WITH_BIAS)
    few = {most: simulated(stem, monkeypatch) for most, stem in FEW.items()}
    return ScaledMM(*(simulated(stem, monkeypatch) for stem in stems), few_rows=few)


# --- the function


@pytest.mark.parametrize("shape", [(40, 144, 272), (5, 128, 128), (1, 256, 512), (130, 16, 144)])
@pytest.mark.parametrize("tiles", [True, False], ids=["tiles", "columns"])
def test_a_module_computes_scales_of_torchs_layout(
    tiles: bool, shape: tuple[int, int, int], ours: ScaledMM
) -> None:
    call = Call(*shape, tiles=tiles)
    assert_close(ours(*call.arguments()), call.exact())
    assert ours.reason == ""
    assert_close(ours.inferred(*call.inferred(), out_dtype=BF16), call.exact())
    assert ours.reason == ""


def test_scales_and_recipes_may_be_lists_and_options_may_be_named(ours: ScaledMM) -> None:
    call = Call()
    a, b, scale_a, of_a, scale_b, of_b = call.arguments()
    lists: dict[str, Any] = {
        "scale_a": [scale_a],
        "scale_recipe_a": [of_a],
        "scale_b": [scale_b],
        "scale_recipe_b": [of_b],
    }
    plain = F.SwizzleType.NO_SWIZZLE
    options: dict[str, Any] = {
        "swizzle_a": plain,
        "swizzle_b": [plain],
        "output_dtype": BF16,
        "use_fast_accum": True,
    }
    assert_close(ours(a, b, **lists, **options), call.exact())
    assert ours.reason == ""


def test_a_module_with_a_bias_takes_the_calls_with_a_bias(ours: ScaledMM) -> None:
    call = Call()
    bias = torch.randn(144).bfloat16()
    found = ours(*call.arguments(), bias=on_a_gpu(bias))
    assert ours.reason == ""
    assert_close(found, call.exact() + bias.double())


def test_few_rows_have_a_kernel_of_their_own() -> None:
    calls: list[str] = []

    def kernel(name: str) -> Any:
        def matmul(a: Tensor, b: Tensor, **_: Tensor) -> Tensor:
            calls.append(name)
            return torch.zeros(a.shape[0], b.shape[1], dtype=BF16)

        blocks = {"scale_vector": 128, "scale_columns": 128, "out_dtype": BF16}
        return kernel_on_the_cpu(name, matmul, "a_scale", "b_scale", **blocks)

    few = ScaledMM(kernel("many"), few_rows={16: kernel("sixteen"), 4: kernel("four")})
    for m in (3, 4, 5, 16, 17):
        few(*Call(m).arguments(lambda tensor: tensor))
    assert calls == ["four", "four", "sixteen", "sixteen", "many"]


# --- what torch computes


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Note the calls of torch's functions, which compute no scales of blocks on a CPU."""
    called: list[tuple[Any, ...]] = []

    def note(*arguments: Any, **keywords: Any) -> Tensor:
        called.append((*arguments, *keywords.values()))
        return torch.zeros(arguments[0].shape[0], arguments[1].shape[1], dtype=BF16)

    monkeypatch.setattr(scaled_module, "TORCHS", note)
    monkeypatch.setattr(scaled_module, "TORCHS_INFERRING", note)
    return called


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "contraction": ({"contraction_dim": [1, 0]}, "kernels take no contraction_dim"),
    "type": (
        {"output_dtype": FP32},
        "no kernel takes these scales of b with no bias and a D of torch.float32",
    ),
    "no type": ({"output_dtype": None}, "output_dtype is None, and kernels have a D of one type"),
}


@pytest.mark.parametrize("name", OTHER)
def test_torch_computes_other_calls_with_the_same_arguments(
    name: str, ours: ScaledMM, torchs: list[tuple[Any, ...]]
) -> None:
    options, reason = OTHER[name]
    given = Call().arguments()
    ours(*given, **options)
    assert ours.reason == reason
    (passed,) = torchs
    assert all(one is other for one, other in zip(passed[:6], given, strict=True))
    for value in options.values():
        assert any(each is value for each in passed)


def test_torch_computes_other_recipes_and_swizzles(ours: ScaledMM, torchs: list[tuple[Any, ...]]) -> None:
    a, b, scale_a, of_a, scale_b, of_b = Call().arguments()
    ours(a, b, scale_a, of_b, scale_b, of_a)
    words = "kernels take BlockWise1x128 of a, and BlockWise128x128 or BlockWise1x128 of b, found "
    assert ours.reason == f"{words}BlockWise128x128 and BlockWise1x128"
    ours(a, b, scale_a, F.ScalingType.TensorWise, scale_b, F.ScalingType.TensorWise)
    assert ours.reason == f"{words}TensorWise and TensorWise"
    ours(a, b, [scale_a, scale_a], of_a, scale_b, of_b)
    assert ours.reason == "kernels take one tensor of scales for each operand"
    ours(a, b, scale_a, of_a, scale_b, of_b, F.SwizzleType.SWIZZLE_32_4_4)
    assert ours.reason == "kernels take scales without a swizzle"
    assert len(torchs) == 4


def test_torch_computes_what_modules_refuse(ours: ScaledMM, torchs: list[tuple[Any, ...]]) -> None:
    call = Call()
    ours(*call.arguments(lambda tensor: tensor))  # of a CPU
    assert ours.reason == (
        f"{FEW[16]} is for up to 16 rows; {OF_TILES}: a must be on a CUDA device, found cpu"
    )
    a, b, scale_a, *rest = call.arguments()
    ours(a, b, scale_a[:, :2], *rest)
    assert f"{OF_TILES}: a_scale must have shape [40, 3], found [40, 2]" in ours.reason
    ours(a.to(torch.float8_e5m2), b, scale_a, *rest)
    assert f"{OF_TILES}: a must be a tensor of torch.float8_e4m3fn, found torch.float8_e5m2" in ours.reason
    ours(*call.arguments(), bias=on_a_gpu(torch.zeros(8, dtype=BF16)))
    assert ours.reason == f"{WITH_BIAS}: column_bias must have shape [144], found [8]"
    assert len(torchs) == 4
    ours(*call.arguments())
    assert ours.reason == ""


def test_the_older_function_has_calls_without_scales_of_blocks(
    ours: ScaledMM, torchs: list[tuple[Any, ...]]
) -> None:
    call = Call()
    a, b, scale_a, scale_b = call.inferred()
    one = on_a_gpu(torch.ones(()))
    out = on_a_gpu(torch.empty(40, 144, dtype=BF16))
    calls: tuple[tuple[tuple[Tensor, ...], dict[str, Any]], ...] = (
        ((a, b, one, one), {"out_dtype": BF16}),
        ((a, b, scale_a, scale_b.T), {"out_dtype": BF16}),
        ((a, b, scale_a, scale_b), {"out_dtype": BF16, "out": out}),
        ((a, b, scale_a, scale_b), {"out_dtype": BF16, "scale_result": one}),
        ((a, b, scale_a, scale_b), {}),
    )
    for arguments, options in calls:
        ours.inferred(*arguments, **options)
        assert ours.reason
    assert len(torchs) == 5
    assert torchs[2][-1] is out


def test_torchs_own_computation_is_the_result_of_other_calls(ours: ScaledMM) -> None:
    a, b = torch.randn(16, 32).to(E4M3), torch.randn(48, 32).to(E4M3).T
    scale = torch.tensor(0.5)
    wanted = any_torch._scaled_mm(a, b, scale, scale, out_dtype=BF16)
    assert torch.equal(ours.inferred(a, b, scale, scale, out_dtype=BF16), wanted)
    assert ours.reason == "the scales are of no blocks that kernels take"


@pytest.mark.parametrize("stem", ["h100_e4m3", "h100_e4m3_scaled", "h100_e4m3_blockwise_gated", "h100_bf16"])
def test_a_kernel_that_computes_something_else_is_refused(stem: str) -> None:
    with pytest.raises(
        ValueError, match=f"^{stem} computes no a @ b of e4m3 with fp32 scales of 1 x 128 of a"
    ):
        ScaledMM(import_generated(module_file(stem)))


def test_a_refusal_names_the_tensor_of_another_type() -> None:
    with pytest.raises(
        ValueError, match=r": a_scale is torch\.float8_e8m0fnu, b_scale is torch\.float8_e8m0fnu$"
    ):
        ScaledMM(import_generated(module_file("h100_e4m3_ue8m0")))


def test_a_module_of_an_earlier_version_is_to_be_built_again() -> None:
    module = import_generated(module_file("h100_e4m3_blockwise"))
    earlier = SimpleNamespace(__name__="old", COMPUTES=module.COMPUTES, ARGUMENTS=module.ARGUMENTS)
    with pytest.raises(ValueError, match="old has no arrange_scales: generate it again"):
        ScaledMM(earlier)


def test_groups_and_no_kernel_are_refused() -> None:
    with pytest.raises(ValueError, match="computes no a @ b of e4m3"):
        ScaledMM(import_generated(module_file("h100_e4m3_blockwise_grouped")))
    with pytest.raises(ValueError, match="ScaledMM needs a kernel"):
        ScaledMM()


# --- calls of a model


def test_the_calls_of_a_model_are_computed_in_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    module, call = simulated(OF_TILES, monkeypatch), Call()
    before = F.scaled_mm, any_torch._scaled_mm
    with replace_scaled_mm(module) as ours:
        assert_close(F.scaled_mm(*call.arguments()), call.exact())
        assert_close(any_torch._scaled_mm(*call.inferred(), out_dtype=BF16), call.exact())
        assert ours.reason == ""
    assert (F.scaled_mm, any_torch._scaled_mm) == before
    with pytest.raises(ValueError, match="ScaledMM needs a kernel"), replace_scaled_mm():
        pass
    with pytest.raises(KeyError), replace_scaled_mm(module):
        raise KeyError
    assert (F.scaled_mm, any_torch._scaled_mm) == before


# --- under torch's compiler


def on_the_meta_device(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def graph_of(function: Callable[..., Tensor], *arguments: Any) -> list[str]:
    """Return the operators of the one graph of a call."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    d = any_torch.compile(function, backend=backend, fullgraph=True)(*arguments)
    assert d.shape == (arguments[0].shape[0], arguments[1].shape[1])
    (graph,) = graphs
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def tensors_of(call: Call) -> tuple[Tensor, ...]:
    return tuple(
        on_the_meta_device(each) for each in (call.a, call.b, call.a_scale, call.scale_b, call.turned)
    )


@pytest.mark.parametrize("tiles", [True, False], ids=["tiles", "columns"])
def test_torch_compile_sees_one_operator(tiles: bool, ours: ScaledMM) -> None:
    call = Call(tiles=tiles)
    *_, of_a, _, of_b = call.arguments()

    def multiply(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, _: Tensor) -> Tensor:
        return ours(a, b, scale_a, of_a, scale_b, of_b)

    def multiply_inferred(a: Tensor, b: Tensor, scale_a: Tensor, _: Tensor, scale_b: Tensor) -> Tensor:
        return ours.inferred(a, b, scale_a, scale_b, out_dtype=BF16)

    for function in (multiply, multiply_inferred):
        found = graph_of(function, *tensors_of(call))
        assert "gemmgen_integrations.scaled_mm" in found or "gemmgen_integrations.scaled_mm.default" in found


def test_a_program_has_torchs_operator_where_types_exclude_the_modules(ours: ScaledMM) -> None:
    of_a, of_b = recipes()

    def multiply(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, _: Tensor) -> Tensor:
        return ours(a, b, scale_a, of_a, scale_b, of_b, output_dtype=FP32)

    found = graph_of(multiply, *tensors_of(Call(128, 256, 512)))
    assert not any("gemmgen" in each for each in found)


def test_the_operator_computes_and_falls_back() -> None:
    call = Call()
    asked: list[tuple[int, ...]] = []

    def matmul(a: Tensor, b: Tensor, *, a_scale: Tensor, b_scale: Tensor) -> Tensor:
        asked.append(tuple(b_scale.shape))
        assert torch.equal(b_scale, call.b_scale)
        assert all(given is own for given, own in ((a, call.a), (b, call.b), (a_scale, call.a_scale)))
        return call.exact().bfloat16()

    def refuse(*_: Tensor, **__: Tensor) -> Tensor:
        raise ValueError("a must be something else")

    for name, function in (("on_this_cpu", matmul), ("refuses", refuse)):
        remember(kernel_on_the_cpu(name, function))
    names = ["refuses", "on_this_cpu"], [2**31 - 1, 2**31 - 1]
    given = (call.a, call.b, call.a_scale)
    assert_close(operator(*given, call.scale_b, None, TILES, False, BF16, False, *names), call.exact())
    assert_close(operator(*given, call.turned, None, TILES, True, BF16, False, *names), call.exact())
    assert asked == [(2, 3), (2, 3)]
    # All kernels refuse, and torch says that a CPU has no scales of blocks.
    for scales, inferred in ((call.scale_b, False), (call.turned, True)):
        with pytest.raises((RuntimeError, ValueError), match=r"[Ss]cal"):
            operator(*given, scales, None, TILES, inferred, BF16, False, ["refuses", "on_this_cpu"], [64, 4])
    with FlopCounterMode(display=False) as counter:
        meta = [on_the_meta_device(each) for each in (*given, call.scale_b)]
        assert operator(*meta, None, TILES, False, BF16, False, ["refuses"], [4]).shape == (40, 144)
    assert counter.get_total_flops() == 2 * 40 * 144 * 272


def test_an_exported_program_keeps_the_rows_open_and_can_be_saved(ours: ScaledMM) -> None:
    of_a, of_b = recipes()

    class Layer(nn.Module):
        def forward(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
            return ours(a, b, scale_a, of_a, scale_b, of_b)

    rows = any_torch.export.Dim("rows", min=2, max=4096)
    given = tensors_of(Call())[:4]
    program = any_torch.export.export(Layer(), given, dynamic_shapes=({0: rows}, None, {0: rows}, None))
    file = io.BytesIO()
    any_torch.export.save(program, file)
    file.seek(0)
    loaded = any_torch.export.load(file)
    for m in (3, 1000):
        assert loaded.module()(*tensors_of(Call(m))[:4]).shape == (m, 144)


def test_the_recipes_are_torchs() -> None:
    numbers = [recipe.value for recipe in recipes()]
    assert numbers == [ROWS, TILES]


def test_the_first_import_of_inductor_fails_no_test() -> None:
    """A file that it imports warns that torch.jit is deprecated; `torch._dynamo.reset` of 2.11 imports it."""
    spec = importlib.util.find_spec("torch.utils.mkldnn")
    assert spec
    assert spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))  # anew, whoever has imported it before


@pytest.mark.gpu
@pytest.mark.parametrize("m", [7, 128, 1000])
def test_modules_and_cublas_agree_on_a_gpu(m: int) -> None:
    ours = ScaledMM(import_generated(module_file(OF_TILES)), import_generated(module_file(OF_COLUMNS)))
    for tiles in (True, False):
        call = Call(m, 256, 1024, tiles=tiles)
        given = call.arguments(lambda tensor: tensor.cuda())
        found = ours(*given)
        assert ours.reason == ""
        torch.testing.assert_close(found.cpu().double(), call.exact(), rtol=2e-2, atol=0.1)
        if (
            m % 8 == 0
        ):  # cuBLAS takes 8 rows and refuses a single one (h200_blocks.jsonl); between, nobody knows
            torch.testing.assert_close(found, F.scaled_mm(*given), rtol=2e-2, atol=0.1)
