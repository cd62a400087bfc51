"""D of 8-bit floats with scales that the kernel computes: numbers beside torch, outputs, and the operator."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal, cast

import pytest
import torch
from drawn import random_inputs
from fake_gpu import Cuda
from fake_triton import refusal
from modules import made, module_file, spec_file
from simulated import simulated
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gemmgen.bench.arms import deviation_of, wrong
from gemmgen.errors import GemmgenError
from gemmgen.library.source_files import refuse_kernel
from gemmgen.module import import_generated
from gemmgen.numerics.quantized import quantized
from gemmgen.numerics.reference import tolerance

PLAIN = "h100_bf16_quantized"
BLOCKS = "h100_e4m3_blockwise_quantized"
GATED = "h100_bf16_gated_quantized"
GROUPED = "h100_e4m3_grouped_quantized"
MASKED = "h100_bf16_masked_quantized"
EXPERT, EXPERTS = "h100_e4m3_blockwise_expert", "h100_e4m3_blockwise_experts"
E4M3, FP32, BF16 = torch.float8_e4m3fn, torch.float32, torch.bfloat16
LEAST, MOST = 2.0**-100, 2.0**127


def cuda(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Cuda)


def plain(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor)


def drawn(*extents: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    return torch.randn(extents, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(*extents: int, seed: int = 0) -> Tensor:
    return torch.randint(-3, 4, extents, generator=torch.Generator().manual_seed(seed)).bfloat16()


def scales_of(values: Tensor) -> Tensor:
    """The scales of rows [M, N] in fp32, written out: the largest magnitude of 128 columns over 448."""
    m, n = values.shape
    largest = values.abs().view(m, n // 128, 128).amax(2).clamp(LEAST, MOST)
    return largest / torch.tensor(448.0)


def repeated(scales: Tensor) -> Tensor:
    return scales.repeat_interleave(128, dim=-1)


def assert_rounded(d: Tensor, scales: Tensor, exact: Tensor, slack: float = 0.0) -> None:
    """Each element is within half a step of e4m3 of the exact number over its scale, in float64."""
    over = exact.double() / repeated(scales).double()
    step = 2.0 ** (over.abs().clamp_min(2.0**-6).log2().floor() - 3)
    error = (d.double() - over).abs()
    assert (error <= step * (0.5 + slack) + slack * over.abs()).all()


# --- numbers


def test_scales_and_elements_have_the_bits_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(75, 96), integers(384, 96, seed=1)
    exact = a.float() @ b.float().T
    exact_scales = scales_of(exact)
    d, scales = map(plain, simulated(PLAIN, monkeypatch).matmul(cuda(a), cuda(b).T))
    assert (d.dtype, d.shape, scales.dtype, scales.shape) == (E4M3, (75, 384), FP32, (75, 3))
    assert torch.equal(scales, exact_scales)
    inverse = torch.tensor(448.0) / (exact_scales * 448).round()
    assert torch.equal(d.float(), (exact * repeated(inverse)).to(E4M3).float())
    by_quotient = (exact / repeated(scales)).to(E4M3).float()
    assert (d.float() != by_quotient).float().mean() < 1e-3
    assert_rounded(d, scales, exact, slack=2.0**-20)


def test_a_block_of_zeros_has_a_scale_above_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(70, 64), integers(256, 64, seed=1)
    a[7], b[:128] = 0, 0
    d, scales = map(plain, simulated(PLAIN, monkeypatch).matmul(cuda(a), cuda(b).T))
    assert (d[:, :128].float() == 0).all()
    assert (d[7].float() == 0).all()
    assert torch.equal(scales[:, 0], torch.full((70,), LEAST) / torch.tensor(448.0))
    assert scales.isfinite().all()
    assert (1 / scales).isfinite().all()


def test_infinities_saturate_and_nan_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.ones(70, 64, dtype=BF16), torch.ones(256, 64, dtype=BF16)
    a[3, 0], b[200, 5] = float("inf"), float("nan")
    d, scales = map(plain, simulated(PLAIN, monkeypatch).matmul(cuda(a), cuda(b).T))
    assert scales.isfinite().all()
    assert (d[3, :128].float() == 448).all()
    assert (d[3, :128].float() * scales[3, 0]).isfinite().all()
    is_nan = d.float().isnan()
    assert is_nan[:, 200].all()
    assert is_nan.sum() == 70
    assert (d[4, 128:200].float() * scales[4, 1] == 64).all()


def test_a_gate_leaves_half_as_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(70, 96), drawn(512, 96, seed=1) / 10
    gate, up = torch.chunk(a.double() @ b.double().T, 2, dim=1)
    exact = torch.nn.functional.silu(gate) * up
    d, scales = map(plain, simulated(GATED, monkeypatch).matmul(cuda(a), cuda(b).T))
    assert (d.shape, scales.shape) == ((70, 256), (70, 2))
    assert torch.allclose(scales, scales_of(exact.float()), rtol=1e-5, atol=0)
    assert_rounded(d, scales, exact, slack=1e-3)


def test_the_output_is_the_a_of_the_next_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """An up projection and a down projection with scales of blocks, as an expert of DeepSeek-V3 has them."""
    module = simulated(BLOCKS, monkeypatch)
    x, up = drawn(40, 256, dtype=E4M3), drawn(384, 256, dtype=E4M3, seed=1)
    down = drawn(128, 384, dtype=E4M3, seed=2)
    x_scale = torch.rand(2, 40).add(0.5).T
    up_scale, down_scale = (
        module.arrange_scales("b_scale", torch.rand(extents) + 0.5) for extents in ((3, 2), (1, 3))
    )
    h, h_scale = module.matmul(cuda(x), cuda(up).T, a_scale=cuda(x_scale), b_scale=cuda(up_scale))
    d, d_scale = module.matmul(h, cuda(down).T, a_scale=h_scale, b_scale=cuda(down_scale))
    h, h_scale, d, d_scale = map(plain, (h, h_scale, d, d_scale))
    of_up = up.double() * repeated(up_scale).double().repeat_interleave(128, 0)
    exact_h = (x.double() * repeated(x_scale).double()) @ of_up.T
    assert torch.allclose(h_scale.double(), scales_of(exact_h.float()).double(), rtol=1e-4)
    assert_rounded(h, h_scale, exact_h, slack=2e-2)
    passed = h.double() * repeated(h_scale).double()
    exact = passed @ (down.double() * repeated(down_scale).double().repeat_interleave(128, 0)).T
    found = d.double() * repeated(d_scale).double()
    assert (found - exact).square().sum() < 0.03**2 * exact.square().sum()


def test_scales_follow_the_rows_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(3, 20, 64), integers(3, 128, 64, seed=1)
    counts = [20, 0, 13]
    rows = torch.tensor(counts, dtype=torch.int32)
    d = torch.zeros(3, 20, 128).to(E4M3)
    scales = torch.full((3, 1, 20), 7.0).mT
    module = simulated(MASKED, monkeypatch)
    returned = module.matmul(cuda(a), cuda(b).mT, rows=cuda(rows), out=cuda(d), out_scale=cuda(scales))
    assert [each.data_ptr() for each in returned] == [d.data_ptr(), scales.data_ptr()]
    for group, count in enumerate(counts):
        exact = a[group].float() @ b[group].float().T
        assert torch.equal(scales[group, :count], scales_of(exact)[:count])
        assert (scales[group, count:] == 7).all()
        assert (d[group, count:].float() == 0).all()
        expected, _ = quantized(exact[:count], 128, E4M3)
        assert torch.equal(d[group, :count].float(), expected.float())


def test_groups_of_experts_leave_ready_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(50, 128, dtype=E4M3), drawn(4, 256, 128, dtype=E4M3, seed=1)
    row_scale, column_scale = torch.rand(50) + 0.5, torch.rand(4, 256) / 10
    ends = [18, 18, 45, 50]
    offs = torch.tensor(ends, dtype=torch.int32)
    d, scales = simulated(GROUPED, monkeypatch).matmul(
        cuda(a), cuda(b).mT, offs=cuda(offs), row_scale=cuda(row_scale), column_scale=cuda(column_scale)
    )
    first = 0
    for group, end in enumerate(ends):
        rows = slice(first, end)
        sums = (a[rows].double() @ b[group].double().T) * row_scale[rows, None] * column_scale[group]
        gate, up = torch.chunk(sums, 2, dim=1)
        exact, first = torch.nn.functional.silu(gate) * up, end
        assert torch.allclose(plain(scales)[rows], scales_of(exact.float()), rtol=2e-3)
        assert_rounded(plain(d)[rows], plain(scales)[rows], exact, slack=1e-2)


def scaled_weight(*extents: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return e4m3 weights [..., N, K], their scales of blocks, and both multiplied in fp64."""
    *groups, n, k = extents
    values, blocks = drawn(*extents, dtype=E4M3, seed=seed), (*groups, -(-n // 128), -(-k // 128))
    scales = torch.rand(blocks, generator=torch.Generator().manual_seed(seed)) + 0.1
    numbers = scales.double().repeat_interleave(128, -2)[..., :n, :].repeat_interleave(128, -1)[..., :k]
    return values, scales, values.double() * numbers


def scaled_rows(m: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return e4m3 rows [M, K], their scales of blocks as a kernel takes them, and both multiplied in fp64."""
    pitch = -(-m // 4) * 4
    values, scales = drawn(m, k, dtype=E4M3), ((torch.rand(-(-k // 128), pitch) + 0.5) / 10)[:, :m].T
    return values, scales, values.double() * repeated(scales).double()[:, :k]


@pytest.mark.parametrize("m", [1, 70, 150])
def test_a_gate_with_scales_of_blocks_leaves_ready_for_the_next(
    m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, a_scale, rows = scaled_rows(m, 400)
    b, b_scale, weight = scaled_weight(768, 400, seed=1)
    gate, up = torch.chunk(rows @ weight.T, 2, dim=1)
    exact = torch.nn.functional.silu(gate) * up
    call = simulated(EXPERT, monkeypatch).matmul
    d, scales = map(plain, call(cuda(a), cuda(b).T, a_scale=cuda(a_scale), b_scale=cuda(b_scale)))
    assert (d.shape, scales.shape) == ((m, 384), (m, 3))
    assert torch.allclose(scales, scales_of(exact.float()), rtol=1e-4, atol=0)
    assert_rounded(d, scales, exact, slack=1e-3)


def test_gates_of_groups_with_scales_of_blocks_leave_ready_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups begin at any row, one has none, and rows of no group stay as they are."""
    a, a_scale, rows = scaled_rows(150, 304)
    b, b_scale, weight = scaled_weight(4, 512, 304, seed=2)
    ends = [67, 67, 70, 141]
    d, scales = torch.zeros(150, 256).to(E4M3), torch.full((2, 152), 7.0)[:, :150].T
    module = simulated(EXPERTS, monkeypatch)
    module.matmul(
        cuda(a),
        cuda(b).mT,
        a_scale=cuda(a_scale),
        b_scale=cuda(module.arrange_scales("b_scale", b_scale)),
        offs=cuda(torch.tensor(ends, dtype=torch.int32)),
        out=cuda(d),
        out_scale=cuda(scales),
    )
    for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        gate, up = torch.chunk(rows[first:end] @ weight[group].T, 2, dim=1)
        exact = torch.nn.functional.silu(gate) * up
        assert torch.allclose(scales[first:end], scales_of(exact.float()), rtol=1e-4, atol=0)
        assert_rounded(d[first:end], scales[first:end], exact, slack=1e-3)
    assert (scales[141:] == 7).all()
    assert (d[141:].float() == 0).all()


def test_the_rule_of_a_kernel_divides_as_ieee_754_has_it() -> None:
    values = torch.arange(1, 129, dtype=FP32)[None] * 3
    d, scales = quantized(values, 128, E4M3)
    assert scales.item() == (torch.tensor(384.0) / torch.tensor(448.0)).item()
    assert d.float().max() == 448


# --- outputs


class Launches:
    """A module whose launches only keep their arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module: ModuleType = simulated(PLAIN, monkeypatch)
        self.launched: list[Any] = []
        self.module.__dict__["matmul_kernel"].launch = self.keep

    def keep(self, _: int, arguments: list[Any]) -> None:
        self.launched.append(arguments)

    def call(self, **outputs: Tensor) -> tuple[Tensor, Tensor]:
        a, b = cuda(drawn(30, 64)), cuda(drawn(256, 64)).T
        return self.module.matmul(a, b, **{name: cuda(each) for name, each in outputs.items()})


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def test_given_outputs_are_written_and_returned(launches: Launches) -> None:
    d, scales = torch.empty(30, 256).to(E4M3), torch.empty(2, 32)[:, :30].T
    found = launches.call(out=d, out_scale=scales)
    assert [each.data_ptr() for each in found] == [d.data_ptr(), scales.data_ptr()]
    assert launches.launched[-1][-1].data_ptr() == scales.data_ptr()


def test_own_scales_lie_as_the_next_kernel_reads_them(launches: Launches) -> None:
    _, scales = launches.call()
    assert (scales.shape, scales.stride()) == ((30, 2), (1, 32))


@pytest.mark.parametrize(
    ("scales", "found"),
    [
        (torch.empty(30, 2), "strides (2, 1)"),
        (torch.empty(2, 30).T, "30"),
        (torch.empty(2, 64)[:, :30].T, "64"),
        (torch.empty(3, 32)[:, :30].T, "[30, 3]"),
        (torch.empty(66)[1:65].view(2, 32)[:, :30].T, "4"),
    ],
)
def test_scales_that_lie_otherwise_are_refused(launches: Launches, scales: Tensor, found: str) -> None:
    with pytest.raises(ValueError, match=refusal("out_scale", found)):
        launches.call(out_scale=scales)


def test_scales_of_another_type_are_refused(launches: Launches) -> None:
    with pytest.raises(TypeError, match=r"out_scale must be a tensor of torch\.float32"):
        launches.call(out_scale=torch.empty(2, 32, dtype=BF16)[:, :30].T)


def test_scales_share_no_memory_with_d(launches: Launches) -> None:
    memory = torch.empty(30 * 256 // 4)
    d, scales = memory.view(E4M3).view(30, 256), memory[:64].view(2, 32)[:, :30].T
    with pytest.raises(ValueError, match=r"^out must share no memory with out_scale\b"):
        launches.call(out=d, out_scale=scales)


def test_n_is_whole_blocks(launches: Launches) -> None:
    a, b = cuda(drawn(30, 64)), cuda(drawn(200, 64)).T
    with pytest.raises(ValueError, match="N must be a multiple of 128, found 200"):
        launches.module.matmul(a, b)


def test_rows_of_several_dimensions_have_scales_of_them(launches: Launches) -> None:
    a, b = cuda(drawn(5, 6, 64)), cuda(drawn(256, 64)).T
    d, scales = launches.module.matmul(a, b)
    assert (d.shape, scales.shape, scales.stride()) == ((5, 6, 256), (5, 6, 2), (6, 1, 32))
    assert launches.launched[-1][-1].data_ptr() == scales.data_ptr()


def test_autograd_learns_of_the_writes(launches: Launches) -> None:
    d, scales = torch.empty(30, 256).to(E4M3), torch.empty(2, 32)[:, :30].T
    given = cuda(scales)
    before = given._version
    launches.module.matmul(cuda(drawn(30, 64)), cuda(drawn(256, 64)).T, out=cuda(d), out_scale=given)
    assert given._version == before + 1


def test_a_benchmark_compares_d_and_its_scales_as_numbers() -> None:
    problem = made(spec_file(PLAIN)).source.problem
    inputs = random_inputs((24, 256, 64), problem, torch.Generator().manual_seed(5))
    d, scales = quantized(inputs.a.double() @ inputs.b.double(), 128, E4M3)
    allowed = tolerance(problem, (24, 256, 64), None)
    assert not [*wrong(allowed, deviation_of((d, scales), inputs, problem))]
    scales[3, 1] *= 2
    assert [*wrong(allowed, deviation_of((d, scales), inputs, problem))]


# --- the operator


def layer(stem: str) -> Any:
    module = import_generated(module_file(stem))

    def both(a: Tensor, b: Tensor) -> Any:
        return module.matmul(a, b.T)

    return both


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("stem", [PLAIN, GATED])
def test_torch_traces_both_outputs(stem: str, mode: Literal["fake", "symbolic"]) -> None:
    """A graph of the call makes the scales, and the operator writes them and returns D."""
    a, b = torch.empty(30, 64, dtype=BF16, device="meta"), torch.empty(256, 64, dtype=BF16, device="meta")
    graph = make_fx(layer(stem), tracing_mode=mode)(a, b)
    (operator,) = (node for node in graph.graph.nodes if str(node.target).startswith("gemmgen."))
    assert str(operator.target) == f"gemmgen.{stem}.default"
    d, scales = (node.meta["val"] for node in graph.graph.find_nodes(op="output")[0].args[0])
    n = 128 if stem == GATED else 256
    assert (d.dtype, [*map(int, d.shape)]) == (E4M3, [30, n])
    assert (scales.dtype, [*map(int, scales.shape)]) == (FP32, [30, n // 128])
    assert [*map(int, scales.stride())] == [1, 32]


def test_meta_tensors_give_both_outputs() -> None:
    a, b = torch.empty(30, 64, dtype=BF16, device="meta"), torch.empty(256, 64, dtype=BF16, device="meta")
    d, scales = layer(PLAIN)(a, b)
    assert (d.is_meta, d.dtype, d.shape) == (True, E4M3, (30, 256))
    assert (scales.is_meta, scales.dtype, scales.shape) == (True, FP32, (30, 2))


def test_the_schema_says_that_scales_are_written() -> None:
    import_generated(module_file(PLAIN))
    operator = cast(Any, torch.ops.gemmgen).h100_bf16_quantized
    assert str(operator.default._schema).endswith("(Tensor a, Tensor b, Tensor(b!) out_scale) -> Tensor")
    written = [each.name for each in operator.out._schema.arguments if each.alias_info]
    assert written == ["out_scale", "out"]


# --- what is beside it


def test_a_library_is_refused() -> None:
    with pytest.raises(GemmgenError, match="it returns the scales of D beside D"):
        refuse_kernel(spec_file(PLAIN), made(spec_file(PLAIN)).plan)
