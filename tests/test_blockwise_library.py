"""Libraries of kernels with scales of blocks, dense and in groups, which are called as their modules are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from drawn import random_inputs
from fake_gpu import Cuda, always
from hopper import hopper
from made_library import OnTheCpu, library_of, made_library, noting
from modules import ROOT, spec_file
from simulated import simulated_file
from told import refusal
from torch import Tensor

from gemmgen.integrations import BlockScaledLinear, ScaledMM, quantize_rows
from gemmgen.library import exchange
from gemmgen.library.sources import read
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import reference
from gemmgen.planner import family_for
from gemmgen.product import make

SPECS = ROOT / "specs"
CARD = "NVIDIA H200"
DENSE = tuple(
    spec_file(f"h100_e4m3_blockwise{name}")
    for name in ("", "_rows16", "_rows32", "_split4", "_parallel", "_ping_pong", "_cluster2x1")
)
EXPERTS = ("grouped", "groups16", "groups32", "groups64")
"""The last parts of the names of specs of groups: of many rows, and of few."""
E4M3, BF16, FP32, INT = torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.int32
any_torch: Any = torch


def specs_of_experts(folder: Path, count: int = 32) -> list[Path]:
    """Return specs of groups with one number of groups, written into a folder."""
    found: list[Path] = []
    for kind in EXPERTS:
        text = spec_file(f"h100_e4m3_blockwise_{kind}").read_text(encoding="utf-8")
        found.append(folder / f"experts_{kind}.yaml")
        found[-1].write_text(text.replace("count: 256", "count: 32").replace("count: 32", f"count: {count}"))
    return found


@pytest.fixture
def dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library of all dense kernels with one epilogue."""
    return made_library("blockwise", DENSE, tmp_path, monkeypatch)


@pytest.fixture
def experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library of kernels of 32 groups."""
    return made_library("blockwise_experts", specs_of_experts(tmp_path), tmp_path, monkeypatch)


def plan_of(module: ModuleType, name: str) -> Any:
    """Return the plan of a kernel of a library."""
    return hopper(make(Path(str(module.__file__)).parent / "specs" / f"{name}.yaml").plan)


# --- the choice


@pytest.mark.parametrize(("n", "k"), [(7168, 2048), (4096, 7168), (24576, 1536)])
def test_few_rows_get_swap_ab_and_many_rows_tall_tiles(dense: ModuleType, n: int, k: int) -> None:
    few, many = (plan_of(dense, dense.choose(m, n, k).kernel) for m in (8, 8192))
    assert (few.swap_ab, many.swap_ab) == (True, False)
    assert few.cta_tile_m <= 32 < 128 <= many.cta_tile_m


def test_the_rows_of_a_group_in_the_mean_choose_its_kernel(experts: ModuleType) -> None:
    found = [experts.choose(32 * mean, 4096, 7168).kernel for mean in (1, 16, 64, 1024)]
    assert found == ["experts_groups16", "experts_groups32", "experts_groups64", "experts_grouped"]
    assert [experts.choose(8 * mean, 4096, 7168, 8).kernel for mean in (1, 16, 64, 1024)] == found


@pytest.mark.parametrize("shape", [(1, 7168, 2048), (100, 4096, 7168), (4096, 7168, 2048)])
def test_a_library_predicts_the_times_of_the_planner_with_their_scaling(
    shape: tuple[int, int, int], dense: ModuleType, experts: ModuleType
) -> None:
    for module in (dense, experts):
        forecast = module.library.table.forecast(is_measured=False)
        for name in module.KERNELS:
            plan = plan_of(module, name)
            estimate = family_for(plan).estimate(plan, shape)
            expected = max(estimate.cycles / estimate.hz, estimate.dram_seconds)
            # The bytes of scales, one for each 128 elements or fewer, are in the planner's estimate alone.
            assert forecast.predicted(name, shape) == pytest.approx(expected, rel=2e-3)


def test_the_formula_of_a_library_has_the_scales(dense: ModuleType, experts: ModuleType) -> None:
    words = "A e4m3 with fp32 scales of blocks of 1 x 128, B e4m3 with fp32 scales of blocks of 128 x 128"
    for module, b in ((dense, "B[K, N]"), (experts, "B[G, K, N]")):
        told = " ".join(str(module.__doc__).split())
        assert f"D[M, N] = (A[M, K] * a_scale) @ ({b} * b_scale): {words}, D bf16." in told


# --- calls


def drawn(module: ModuleType, name: str, shape: tuple[int, int, int]) -> tuple[Inputs, Any]:
    """Return inputs of a shape for a kernel of a library, and its problem."""
    source = make(Path(str(module.__file__)).parent / "specs" / f"{name}.yaml").source
    return random_inputs(shape, source.problem, torch.Generator().manual_seed(3)), source.problem


def simulate(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let the simulator execute the launches of a library; return the hosts that it has called by name."""
    hosts: dict[str, Any] = {}
    folder = Path(str(module.__file__)).parent

    def host_of(name: str) -> Any:
        if name not in hosts:
            product = make(folder / "specs" / f"{name}.yaml")
            hosts[name] = simulated_file(folder / f"{name}.py", product, monkeypatch).call
        return hosts[name]

    monkeypatch.setattr(module.library, "host_of", host_of)
    monkeypatch.setattr(torch.cuda, "get_device_name", always(CARD))
    return hosts


def cuda(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Cuda)


@pytest.mark.parametrize("m", [5, 150])
@pytest.mark.parametrize("turned", [False, True], ids=["as the kernel reads", "by rows"])
def test_a_dense_library_computes_what_the_definition_says(
    m: int, turned: bool, dense: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With scales that a caller arranges, in the kernel that `choose` names."""
    hosts, shape = simulate(dense, monkeypatch), (m, 144, 272)
    inputs, problem = drawn(dense, dense.KERNELS[0], shape)
    scales = {
        name: cuda(dense.arrange_scales(name, each.contiguous()) if turned else each.as_subclass(Tensor))
        for name, each in inputs.extras.items()
    }
    d = dense.matmul(cuda(inputs.a), cuda(inputs.b), **scales)
    assert [*hosts] == [dense.choose(*shape).kernel]
    exact = reference(inputs, problem)
    assert torch.allclose(d.as_subclass(Tensor).double(), exact, rtol=2e-2, atol=2e-2)
    out = cuda(torch.full((m, 144), float("nan"), dtype=BF16))
    assert dense.matmul(cuda(inputs.a), cuda(inputs.b), **scales, out=out) is out
    assert torch.equal(out.as_subclass(Tensor), d.as_subclass(Tensor))


@pytest.mark.parametrize("m", [40, 900])
def test_a_library_of_experts_computes_what_the_definition_says(
    m: int, experts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, shape = simulate(experts, monkeypatch), (m, 136, 144)
    inputs, problem = drawn(experts, experts.KERNELS[0], shape)
    given = {name: cuda(each) for name, each in inputs.extras.items()}
    d = experts.matmul(cuda(inputs.a), cuda(inputs.b), **given)
    assert [*hosts] == [experts.choose(*shape).kernel]
    found = inputs.computed_rows(d.as_subclass(Tensor))[:].double()
    assert torch.allclose(found, reference(inputs, problem), rtol=2e-2, atol=2e-2)


def test_the_rows_of_more_dimensions_have_scales_of_them(
    dense: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(dense, monkeypatch)
    inputs, problem = drawn(dense, dense.KERNELS[0], (6, 64, 144))
    scales = {name: cuda(each) for name, each in inputs.extras.items()}
    of_rows = inputs.extras["a_scale"].contiguous().view(2, 3, 2)
    scales["a_scale"] = cuda(dense.arrange_scales("a_scale", of_rows))
    d = dense.matmul(cuda(inputs.a.view(2, 3, 144)), cuda(inputs.b), **scales)
    assert d.shape == (2, 3, 64)
    exact = reference(inputs, problem)
    assert torch.allclose(d.as_subclass(Tensor).view(6, 64).double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a_scale": torch.ones(8, 2)}, r"a_scale must have shape \[8, 3\], found \[8, 2\]"),
        ({"b_scale": torch.ones(64, 3)}, r"b_scale must have shape \[1, 3\], found \[64, 3\]"),
        ({"a": torch.zeros(8, 0, dtype=E4M3)}, "a and b must have|b must have shape|have a K"),
    ],
)
def test_scales_that_a_kernel_refuses_a_library_refuses_with_its_words(
    changed: dict[str, Tensor], message: str, dense: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(dense, monkeypatch)
    given = {
        "a": torch.zeros(8, 272, dtype=E4M3),
        "b": torch.zeros(64, 272, dtype=E4M3).T,
        "a_scale": dense.arrange_scales("a_scale", torch.ones(8, 3)),
        "b_scale": dense.arrange_scales("b_scale", torch.ones(1, 3)),
    }
    tensors = {name: cuda(each) for name, each in (given | changed).items()}
    with pytest.raises(ValueError, match=message):
        dense.matmul(tensors.pop("a"), tensors.pop("b"), **tensors)
    with pytest.raises(TypeError, match=r"a_scale must be a tensor of torch\.float32, found torch\.bf"):
        dense.matmul(
            cuda(given["a"]),
            cuda(given["b"]),
            a_scale=cuda(torch.ones(8, 3, dtype=BF16)),
            b_scale=cuda(given["b_scale"]),
        )


def test_a_warmup_has_scales_of_each_shape(dense: ModuleType, experts: ModuleType) -> None:
    shapes = [(8, 520, 272), (300, 1024, 1024)]
    dense.warmup(shapes, device="meta")  # checks the tensors, launches nothing
    experts.warmup(shapes, device="meta")
    experts.warmup(shapes, groups=5, device="meta")


def test_what_a_library_can_do_is_told_by_shapes_of_a_and_b(dense: ModuleType, experts: ModuleType) -> None:
    assert dense.can_implement((4, 256), (256, 512)) == (True, dense.explain(4, 512, 256))
    able, why = dense.can_implement((4, 200), (200, 512))
    assert (able, why.split(",")[0]) == (False, "K must be a multiple of 16")
    assert experts.can_implement((4, 256), (33, 256, 512)) == (
        False,
        "there must be up to 32 groups, found 33",
    )


def test_a_library_of_gates_has_scales_of_both_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = made_library("gated", [SPECS / "h100_e4m3_blockwise_gated.yaml"], tmp_path, monkeypatch)
    gated.warmup([(300, 256, 272)], device="meta")
    assert gated.can_implement((300, 256), (256, 512))[0]
    assert gated.can_implement((300, 256), (256, 400)) == (False, "N must be a multiple of 128, found 200")
    simulate(gated, monkeypatch)
    inputs, problem = drawn(gated, gated.KERNELS[0], (70, 128, 272))
    d = gated.matmul(
        cuda(inputs.a), cuda(inputs.b), **{name: cuda(each) for name, each in inputs.extras.items()}
    )
    found = d.as_subclass(Tensor).double()
    assert torch.allclose(found, reference(inputs, problem), rtol=3e-2, atol=3e-2)


# --- one operator


def dequantised(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, offs: Tensor | None = None) -> Tensor:
    """Return the product of scaled operands, of all rows or of groups of rows, on this CPU."""
    k, n = b.shape[-2:]
    wide_a = a.float() * a_scale.repeat_interleave(128, 1)[:, :k]
    of_b = b_scale.repeat_interleave(128, -2).repeat_interleave(128, -1)[..., :n, :k]
    wide_b = b.float() * of_b.mT
    if offs is None:
        return (wide_a @ wide_b).bfloat16()
    ends = [0, *map(int, offs)]
    parts = [wide_a[ends[group] : ends[group + 1]] @ wide_b[group] for group in range(len(offs))]
    return torch.cat(parts).bfloat16()


class Dequantising(OnTheCpu):
    """A kernel with scales of blocks."""

    def computed(self, *inputs: Tensor) -> Tensor:
        return dequantised(*inputs)


@pytest.fixture
def called() -> Iterator[list[str]]:
    """The kernels that this CPU was asked for."""
    with noting() as found:
        yield found


def operands(m: int, n: int, k: int, groups: int = 0) -> tuple[Tensor, ...]:
    """Return operands with scales; if there are groups, the second one is empty."""
    generator = torch.Generator().manual_seed(m)

    def scales(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator) + 0.5

    of = (groups,) * bool(groups)
    a = torch.randn(m, k, generator=generator).to(E4M3)
    b = torch.randn(*of, n, k, generator=generator).to(E4M3).mT
    found = (a, b, scales(-(-k // 128), m).T, scales(*of, -(-n // 128), -(-k // 128)))
    if not groups:
        return found
    ends = torch.tensor([m // 4, m // 4, *[m] * (groups - 2)], dtype=INT)
    return (*found, ends)


@pytest.mark.parametrize("groups", [0, 4])
def test_torch_compile_sees_one_operator_for_every_number_of_rows(
    groups: int, dense: ModuleType, experts: ModuleType, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = experts if groups else dense
    monkeypatch.setattr(module.library, "host_of", Dequantising)
    names = module.COMPUTES["inputs"][2:]
    graphs: list[torch.fx.GraphModule] = []

    def multiply(a: Tensor, b: Tensor, *extras: Tensor) -> Tensor:
        return module.matmul(a, b, **dict(zip(names, extras, strict=True))) * 2

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    layer = any_torch.compile(multiply, backend=backend, fullgraph=True, dynamic=True)
    n, k = 256, 384
    for m in (8, 4096):
        given = operands(m, n, k, groups)
        assert torch.equal(layer(*given), dequantised(*given) * 2)
    (graph,) = graphs
    assert [node.target for node in graph.graph.nodes if "gemmgen" in str(node.target)] == [module.OPERATOR]
    assert called == [module.choose(m, n, k, *[groups] * bool(groups)).kernel for m in (8, 4096)]
    opcheck: Any = vars(torch.library)["opcheck"]
    given = operands(8, n, k, groups)
    opcheck(module.OPERATOR.default, given, test_utils=("test_faketensor",))


@pytest.mark.parametrize("groups", [0, 4])
def test_torch_export_keeps_the_number_of_rows_open(
    groups: int, dense: ModuleType, experts: ModuleType, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = experts if groups else dense
    monkeypatch.setattr(module.library, "host_of", Dequantising)
    names = module.COMPUTES["inputs"][2:]

    class Layer(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor, *extras: Tensor) -> Tensor:
            return module.matmul(a, b, **dict(zip(names, extras, strict=True)))

    rows = any_torch.export.Dim("rows", min=2, max=2**20)
    given = operands(40, 256, 384, groups)
    shapes = ({0: rows}, None, ({0: rows}, *[None] * (len(given) - 3)))
    program = any_torch.export.export(Layer(), given, dynamic_shapes=shapes)
    assert called == []
    for m in (4, 1000):
        given = operands(m, 256, 384, groups)
        assert torch.equal(program.module()(*given), dequantised(*given))
    assert len(called) == 2


def test_the_operator_refuses_what_no_run_would_take(dense: ModuleType) -> None:
    a, b, a_scale, b_scale = (each.to("meta") for each in operands(8, 256, 384))
    assert dense.OPERATOR(a, b, a_scale, b_scale).shape == (8, 256)
    with pytest.raises(TypeError, match=r"b must be torch\.float8_e4m3fn, found torch\.bfloat16"):
        dense.OPERATOR(a, b.to(BF16), a_scale, b_scale)
    with pytest.raises(ValueError, match="b must have 384 rows, as many as a has columns, found 256"):
        dense.OPERATOR(a, b[:256], a_scale, b_scale)


# --- in torch


def test_a_library_computes_torchs_scaled_mm_and_linear_layers(
    dense: ModuleType, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense.library, "host_of", Dequantising)
    monkeypatch.setattr(torch.cuda, "get_device_name", always(CARD))
    scaled = ScaledMM(dense)
    n, k = 256, 512
    for m in (4, 4096):
        a, b, a_scale, b_scale = operands(m, n, k)
        given = (cuda(a), cuda(b), cuda(a_scale), cuda(b_scale.T))
        d = scaled.inferred(*given, out_dtype=BF16).as_subclass(Tensor)
        assert torch.equal(d, dequantised(a, b, a_scale, b_scale))
    assert (called, scaled.reason) == ([dense.choose(m, n, k).kernel for m in (4, 4096)], "")
    layer = BlockScaledLinear(k, n, kernel=dense)
    layer.load_state_dict({"weight": b.T, "weight_scale_inv": b_scale})
    x = torch.randn(3, k).bfloat16()
    found, quantised = layer(x), quantize_rows(x)
    assert (len(called), layer.reason) == (3, "")
    assert torch.equal(found, dequantised(quantised[0], b, quantised[1], b_scale))


# --- what is wrong


def test_kernels_of_other_scales_are_another_problem() -> None:
    names = ("h100_e4m3_blockwise", "h100_e4m3_blockwise_wgrad")
    assert refusal(lambda: read([spec_file(name) for name in names])).code == "mixed-problems"


def test_scales_that_are_packed_for_one_kernel_are_refused() -> None:
    assert refusal(lambda: read([SPECS / "b200_mxfp8.yaml"])).code == "library-kernel"


def test_tables_for_vllm_have_the_block_in_their_name(tmp_path: Path) -> None:
    found = library_of("own", DENSE[:1])
    (stem,) = (member.stem for member in found.members)
    measured = {stem: ((16, 7168, 2048, 9.0, 10.0), (4096, 7168, 2048, 99.0, 100.0))}
    tuned = replace(found, gpu=CARD, measured=measured)
    assert exchange.write_configs(tuned, tmp_path).startswith("1 tables of 2 ")
    (file,) = tmp_path.iterdir()
    assert file.name == ("N=7168,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json")


@pytest.mark.gpu
def test_a_graph_of_a_library_can_be_captured_after_a_warmup(dense: ModuleType) -> None:
    given = [each.cuda() for each in operands(64, 512, 1024)]
    dense.warmup([(64, 512, 1024)])
    names = dense.COMPUTES["inputs"][2:]
    torch.cuda.synchronize()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        d = dense.matmul(*given[:2], **dict(zip(names, given[2:], strict=True)))
    graph.replay()
    torch.testing.assert_close(d, dequantised(*given), rtol=2e-2, atol=0.1)
