"""Groups that divide K: one launch multiplies each group's columns of A and rows of B into a D of its own."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from drawn import integer_inputs, random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, assert_refused
from hopper import hopper
from modules import GROUPED_SPECS, assert_verified_on_a_gpu, made, module_file, spec_file
from simulated import Simulated
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gemmgen.features.checking import sides_of
from gemmgen.features.groups.divided_rows import bounds
from gemmgen.features.groups.divisions import divisions, other_divisions
from gemmgen.module import import_generated
from gemmgen.numerics.case import Case
from gemmgen.numerics.matrices import Matrix
from gemmgen.numerics.reference import reference
from gemmgen.plan.search.estimates import dram_bytes, l2_bytes
from gemmgen.planner import plan_spec
from gemmgen.problem import Groups
from gemmgen.spec.load import parse_spec
from gluonsim import simulate

pytest_plugins = ["fake_calls"]

descriptors: Any = importlib.import_module("kernels.descriptors")
gl: Any = importlib.import_module("triton.experimental.gluon.language")
TensorDescriptor: Any = importlib.import_module("triton.experimental.gluon.nvidia.hopper").TensorDescriptor

OF_K = [path.stem for path in GROUPED_SPECS if "k_offsets" in path.read_text(encoding="utf-8")]
FROM_ANY_ROW = [stem for stem in OF_K if made(spec_file(stem)).plan.access.loads_k_from_any_row]
STEMS = [stem for stem in FROM_ANY_ROW if made(spec_file(stem)).plan.problem.c is None]
"""Modules that compute products alone. Modules that add them to C are in tests/test_accumulated_groups.py.
Modules with scales of blocks are in tests/test_grouped_scales.py.
"""
FP32, PING_PONG = "h100_bf16_wgrad", "h100_bf16_wgrad_ping_pong"
CALLED = FP32
BF16, INT = torch.bfloat16, torch.int32
every_spec = pytest.mark.parametrize("stem", STEMS)


# --- the problem


@pytest.mark.parametrize(("k", "count"), [(1, 4), (7, 128), (300, 32), (4096, 1)])
def test_k_is_divided_as_rows_of_experts_are(k: int, count: int) -> None:
    groups = Groups("k_offsets", count)
    depths = groups.depths_of_each(k)
    assert depths == Groups("m_offsets", count).rows_of_each(k)
    assert sum(depths) == k
    assert groups.rows_of_each(9) == (9,) * count
    assert groups.all_rows(9) == 9 * count
    assert groups.extent_of((9, 8, k)) == k


def test_rows_of_other_kinds_have_all_of_k() -> None:
    for kind in ("m_offsets", "m_masked", "batched"):
        groups = Groups(kind, 5)
        assert groups.depths_of_each(64) == (64,) * 5
        assert groups.extent_of((9, 8, 64)) == 9


def test_bytes_operations_tiles_and_steps_count_each_group() -> None:
    plan = hopper(made(spec_file(FP32)).plan)
    m, n, k = shape = 640, 512, 1024
    depths = plan.problem.depths_of_groups(k)
    steps = [max(1, -(-depth // 64)) for depth in depths]
    assert len({*steps}) > 2
    assert plan.tiles(shape) == (8 * 5, 2)
    assert plan.problem.flops(shape) == 2 * m * n * k
    assert dram_bytes(plan.problem, shape) == 2 * (m * k + k * n) + 4 * 8 * m * n
    assert plan.k_steps(shape) == sum(steps) / 8
    assert l2_bytes(plan, shape, 1.0) == 5 * 2 * sum(steps)


OPEN = """\
title: open
target: h100
operands: {a: {dtype: bf16, major: mn}, b: {dtype: bf16, major: mn}, d: {dtype: fp32}}
groups: {kind: k_offsets, count: 32}
problem: {m: 4096, n: 7168, k: 8192}
"""


def test_an_open_spec_is_planned_with_roles_in_programs_of_one_cta() -> None:
    plan = hopper(plan_spec(parse_spec(OPEN.encode(), "open")))
    assert plan.specialized
    assert (plan.cluster_size, plan.splits, plan.order, plan.group_slots) == (1, 1, "grouped", 0)


# --- the simulator


SHAPE = 136, 200, 400
"""A group has fewer K than a step, or several steps; M and N end within tiles."""
DIVISIONS = {
    "ragged": [1, 64, 65, 129, 200, 263, 327, 400],
    "the first group is empty": [0, 0, 10, 100, 200, 300, 390, 400],
    "the last groups are empty": [70, 128, 256, 300, 333, 400, 400, 400],
    "all groups are empty": [0] * 8,
    "all groups are empty, at the end": [400] * 8,
    "all K in one group": [0, 0, 0, 400, 400, 400, 400, 400],
    "K ahead of the last end of nobody": [64, 128, 192, 256, 258, 259, 260, 261],
    "ends beyond K, and negative ones": [-70, 10, 150, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30],
    "ends that fall": [100, 50, 200, 150, 400, 0, 300, 300],
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("stem", [FP32, PING_PONG])
def test_each_group_has_its_product_and_nothing_else_is_written(stem: str, division: str) -> None:
    simulated, ends = Simulated.of(stem), DIVISIONS[division]
    inputs = integer_inputs(SHAPE, simulated.problem, torch.Generator().manual_seed(1))
    offs = torch.tensor(ends, dtype=INT)
    m, n, k = SHAPE
    d = Matrix.poisoned(8 * m, n, simulated.problem.d.name, torch.device("cpu"), guarded=True)
    out = d.view.view(8, m, n)
    used = torch.zeros(k, dtype=torch.bool)
    expected = torch.zeros(8, m, n)
    for group, (first, end) in enumerate(bounds(simulated.problem, k, offs, 8)):
        used[first:end] = True
        expected[group] = inputs.a[:, first:end].float() @ inputs.b[first:end].float()
    inputs.a[:, ~used] = float("nan")
    inputs.b[~used] = float("nan")
    simulated(inputs.a, inputs.b, offs=offs, out=out)
    assert torch.equal(out, expected.to(out.dtype))
    assert d.written_outside == 0
    empty = [
        group for group, (first, end) in enumerate(bounds(simulated.problem, k, offs, 8)) if first == end
    ]
    assert not torch.signbit(out[empty]).any()


@pytest.mark.sample(6)
@pytest.mark.parametrize("group", [0, 1, 4, 7])
@every_spec
def test_nan_in_all_other_groups_changes_no_element(stem: str, group: int) -> None:
    simulated = Simulated.of(stem)
    inputs = integer_inputs(SHAPE, simulated.problem, torch.Generator().manual_seed(2))
    count = simulated.problem.groups.count if simulated.problem.groups else 0
    ends = [*DIVISIONS["ragged"], *[400] * (count - 8)]
    first, end = ([0, *ends][group], ends[group])
    inputs.a[:, :first] = inputs.a[:, end:] = float("nan")
    inputs.b[:first] = inputs.b[end:] = float("nan")
    d = simulated(inputs.a, inputs.b, offs=torch.tensor(ends, dtype=INT))
    expected = inputs.a[:, first:end].float() @ inputs.b[first:end].float()
    assert torch.equal(d[group], expected.to(d.dtype))
    if group:
        assert d[:group].isnan().all()


@every_spec
def test_other_divisions_are_right_with_nan_in_the_k_of_no_group(stem: str) -> None:
    simulated = Simulated.of(stem)
    generator = torch.Generator().manual_seed(1)
    case = Case(
        simulated,
        (72, 136, 200),
        simulated.problem,
        generator,
        repeats=1,
        promote_k=None,
        sides=sides_of(simulated.problem),
    )
    checks = list(other_divisions(case))
    assert len(checks) == 4 * len(dict(divisions(Groups("k_offsets", 8), 200)))
    assert [str(check) for check in checks if not check.passed] == []


@pytest.mark.parametrize("programs", [1, 2, 5, 16])
def test_any_number_of_programs_passes_the_ring_of_a_ping_pong_kernel(programs: int) -> None:
    simulated = Simulated.of(PING_PONG, programs)
    inputs = integer_inputs(SHAPE, simulated.problem, torch.Generator().manual_seed(3))
    d = simulated(inputs.a, inputs.b, offs=inputs.extras["offs"])
    assert torch.equal(d.flatten(0, 1), reference(inputs, simulated.problem).to(d.dtype))


@pytest.mark.parametrize(
    ("row", "ahead", "first", "end"), [(5, 0, 5, 37), (5, -20, 5, 17), (99, -31, 99, 100), (100, -32, 0, 0)]
)
def test_places_ahead_of_a_box_are_zeros(row: int, ahead: int, first: int, end: int) -> None:
    x, found = torch.arange(6400.0).view(100, 64).half() + 1, torch.full((1, 32, 64), -1.0).half()
    layout = gl.NVMMASharedLayout.get_default_for([1, 32, 64], gl.float16)
    described = [
        TensorDescriptor(x, [100, 32, 64], [64, 64, 1], [1, 32, 64], layout),
        TensorDescriptor(found, [1, 32, 64], [2048, 64, 1], [1, 32, 64], layout),
    ]
    assert not simulate(descriptors.rows_ahead_kernel, "h100")[1](*described, row, ahead).findings
    wanted = torch.zeros(32, 64).half()
    wanted[-ahead : -ahead + end - first] = x[first:end]
    assert torch.equal(found[0], wanted)


# --- the reference


def test_the_reference_is_a_loop_over_groups() -> None:
    problem = made(spec_file(FP32)).source.problem
    inputs = random_inputs((40, 24, 64), problem, torch.Generator().manual_seed(3))
    assert inputs.shape == (40, 24, 64)
    assert (inputs.a.stride(0), inputs.b.stride(1)) == (1, 1)
    ends = bounds(problem, 64, inputs.extras["offs"], 8)
    expected = [inputs.a[:, first:end].double() @ inputs.b[first:end].double() for first, end in ends]
    assert torch.equal(reference(inputs, problem), torch.cat(expected))


# --- the function


def test_a_call_describes_a_b_and_d_as_boxes_of_rows(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(500, 304).T, cuda(500, 640), cuda(5, dtype=INT)
    d = module.matmul(a, b, offs=offs)
    assert (d.shape, d.dtype) == ((5, 304, 640), torch.float32)
    ((programs, _, arguments),) = driver.jit
    assert programs == (5 * 3 * 3, 1, 1)
    described = [arguments[i] for i in (0, 1, 3)]
    assert [([*each.shape], each.block_shape) for each in described] == [
        ([500, 64, 304], [1, 64, 64]),
        ([500, 64, 640], [1, 64, 256]),
        ([5 * 304 + 1, 64, 640], [1, 64, 32]),
    ]
    assert [each.strides for each in described] == [[304, 304, 1], [640, 640, 1], [640, 640, 1]]
    assert [each.base.data_ptr() for each in described[:2]] == [a.data_ptr(), b.data_ptr()]
    assert arguments[2] is offs


def test_out_is_written_and_the_rows_of_a_new_d_are_padded(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(64, 40).T, cuda(64, 56), cuda(3, dtype=INT)
    out = cuda(3, 40, 56, dtype=torch.float32)
    assert module.matmul(a, b, offs=offs, out=out) is out
    b = cuda(64, 56)[:, :50]
    d = module.matmul(a, b, offs=offs)
    assert (d.shape, d.stride()) == ((3, 40, 50), (40 * 52, 52, 1))
    assert len(driver.jit) == 2


def test_a_later_call_with_other_groups_at_the_same_addresses_gets_its_own_d(
    module: ModuleType, driver: FakeDriver
) -> None:
    a, b, offs = cuda(64, 40).T, cuda(64, 56), cuda(8, dtype=INT)
    for count in (3, 3, 8, 5, 8):
        assert module.matmul(a, b, offs=offs[:count]).shape == (count, 40, 56)


def given(**changed: Any) -> dict[str, Any]:
    return {"a": cuda(64, 40).T, "b": cuda(64, 56), "offs": cuda(3, dtype=INT), **changed}


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "offs of int64": (given(offs=cuda(3, dtype=torch.int64)), "offs", "torch.int64"),
    "offs on the CPU": (given(offs=torch.zeros(3, dtype=INT)), "offs", "cpu"),
    "no groups": (given(offs=cuda(0, dtype=INT)), "this kernel", "0"),
    "a B for each group": (given(b=cuda(3, 64, 56)), "b", "shape [3, 64, 56]"),
    "an A of three dimensions": (given(a=cuda(2, 64, 40).mT), "a", "shape [2, 40, 64]"),
    "another k": (given(b=cuda(72, 56)), "b", "[72, 56]"),
    "a K-contiguous A": (given(a=cuda(40, 64)), "a", "strides (64, 1)"),
    "a K-contiguous B": (given(b=cuda(56, 64).T), "b", "strides (1, 64)"),
    "an odd row": (given(a=cuda(64, 42).T), "a", "42"),
    "a D of one group": (given(out=cuda(40, 56, dtype=torch.float32)), "out", "shape [40, 56]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_is_named_before_anything_is_launched(
    case: str, module: ModuleType, driver: FakeDriver
) -> None:
    assert_refused(module, driver, *WRONG[case])


def test_without_k_each_d_is_zero(module: ModuleType, driver: FakeDriver) -> None:
    out = cuda(3, 40, 56, dtype=torch.float32).fill_(7)
    module.matmul(cuda(0, 40).T, cuda(0, 56), offs=cuda(3, dtype=INT), out=out)
    assert not out.any()
    assert driver.jit == []


def test_operations_are_counted_and_d_has_a_shape_without_memory(module: ModuleType) -> None:
    a = torch.empty(64, 40, dtype=BF16, device="meta").T
    b = torch.empty(64, 32, dtype=BF16, device="meta")
    with FlopCounterMode(display=False) as counter:
        d = module.matmul(a, b, offs=torch.empty(5, dtype=INT, device="meta"))
    assert (d.shape, d.dtype) == ((5, 40, 32), torch.float32)
    assert counter.get_total_flops() == 2 * 40 * 64 * 32


def test_gradients_of_weights_are_compiled_and_exported_for_any_k(module: ModuleType) -> None:
    class Gradients(torch.nn.Module):
        def forward(self, dy: Tensor, x: Tensor, offs: Tensor) -> Tensor:
            return module.matmul(dy.T, x, offs=offs)

    with torch.device("meta"):
        dy, x = torch.empty(100, 64, dtype=BF16), torch.empty(100, 32, dtype=BF16)
        offs = torch.empty(5, dtype=INT)
    dynamo: Any = cast(Any, torch)._dynamo
    dynamo.reset()
    for tensor in (dy, x):
        dynamo.mark_dynamic(tensor, 0)
    compiled = cast(Any, torch).compile(Gradients(), fullgraph=True, backend="eager")
    for rows in (100, 3):
        assert compiled(dy[:rows], x[:rows], offs).shape == (5, 64, 32)
    tokens = cast(Any, torch).export.Dim("tokens")
    dims = {"dy": {0: tokens}, "x": {0: tokens}, "offs": None}
    exported = cast(Any, torch).export.export(Gradients(), (dy, x, offs), dynamic_shapes=dims)
    assert [str(node.target) for node in exported.graph.nodes if node.op == "call_function"][-1] == (
        f"gemmgen.{FP32}.default"
    )


# --- a GPU


@pytest.mark.gpu
@every_spec
def test_every_check_of_a_module_passes_on_a_gpu(stem: str) -> None:
    assert_verified_on_a_gpu(stem, k=1)


@pytest.mark.gpu
@pytest.mark.parametrize("stem", [FP32, PING_PONG])
def test_a_graph_follows_groups_that_change_between_replays(stem: str) -> None:
    module = import_generated(module_file(stem))
    a = torch.randn(400, 264, device="cuda", dtype=BF16).T
    b = torch.randn(400, 328, device="cuda", dtype=BF16)
    offs = torch.zeros(8, device="cuda", dtype=INT)
    out = torch.empty(8, 264, 328, device="cuda", dtype=module.ARGUMENTS["out"]["dtype"])
    module.matmul(a, b, offs=offs, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(a, b, offs=offs, out=out)
    problem = made(spec_file(stem)).source.problem
    for ends in DIVISIONS.values():
        offs.copy_(torch.tensor(ends, dtype=INT))
        out.fill_(float("nan"))
        graph.replay()
        for group, (first, end) in enumerate(bounds(problem, 400, offs, 8)):
            expected = a[:, first:end].float() @ b[first:end].float()
            assert torch.allclose(out[group].float(), expected, atol=0.25, rtol=0.02)


@pytest.mark.gpu
@every_spec
def test_nan_in_all_other_groups_changes_no_element_on_a_gpu(stem: str) -> None:
    source = made(spec_file(stem)).source
    module = import_generated(module_file(stem))
    inputs = integer_inputs(SHAPE, source.problem, torch.Generator("cuda").manual_seed(2))
    ends = DIVISIONS["ragged"]
    offs = torch.tensor(ends, device="cuda", dtype=INT)
    for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        a, b = inputs.a.mT.clone().mT, inputs.b.clone()
        a[:, :first] = a[:, end:] = float("nan")
        b[:first] = b[end:] = float("nan")
        d = module.matmul(a, b, offs=offs)
        expected = inputs.a[:, first:end].float() @ inputs.b[first:end].float()
        assert torch.equal(d[group], expected.to(d.dtype))


@pytest.mark.gpu
def test_the_numbers_are_those_of_torchs_grouped_mm() -> None:
    module = import_generated(module_file(PING_PONG))
    a = torch.randn(512, 256, device="cuda", dtype=BF16).T
    b = torch.randn(512, 384, device="cuda", dtype=BF16)
    offs = torch.randint(0, 512, (16,), device="cuda").sort().values.to(INT)
    offs[-1] = 512
    theirs = cast(Any, torch)._grouped_mm(a, b, offs=offs, out_dtype=BF16)
    assert torch.allclose(module.matmul(a, b, offs=offs).float(), theirs.float(), atol=0.25, rtol=0.02)
