"""Groups of rows: one launch multiplies each with a B of its own, and stores the rows of groups alone."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from drawn import bounds_of, integer_inputs, random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver, assert_refused
from hopper import hopper
from modules import COMMITTED, GROUPED_SPECS, assert_verified_on_a_gpu, made, module_file, spec_file
from simulated import Simulated
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gemmgen.features.checking import sides_of
from gemmgen.features.groups.divided_rows import bounds
from gemmgen.features.groups.divisions import divisions, other_divisions
from gemmgen.hardware.gpus import round_up
from gemmgen.lower import Lowered, lower
from gemmgen.module import import_generated
from gemmgen.numerics.case import Case
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Matrix, touched
from gemmgen.numerics.reference import reference
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.planner import plan_spec
from gemmgen.problem import Groups
from gemmgen.problem.groups import GroupKind
from gemmgen.ptx import Code, read_digests
from gemmgen.spec.load import parse_spec
from gemmgen.verify.launches import Launch, all_launches
from gemmgen.verify.simulation import simulate_product
from tools.rendered import PAIRS

pytest_plugins = ["fake_calls"]

STEMS = [path.stem for path in GROUPED_SPECS]
OFFSETS, GATED, MASKED, BATCHED = (
    f"h100_bf16_{name}" for name in ("grouped", "grouped_gated", "masked", "batched")
)
CALLED = OFFSETS
BF16, INT = torch.bfloat16, torch.int32
DIGESTS = (COMMITTED / "ptx.json", PAIRS.digests.with_name("ptx.json"))
every_spec = pytest.mark.parametrize("stem", STEMS)


# --- the problem


@pytest.mark.parametrize("kind", ["m_offsets", "m_masked", "batched"])
@pytest.mark.parametrize(("m", "count"), [(1, 4), (7, 128), (300, 32), (4096, 1)])
def test_rows_are_divided_as_a_kind_says(kind: GroupKind, m: int, count: int) -> None:
    groups = Groups(kind, count)
    rows = groups.rows_of_each(m)
    assert len(rows) == count
    assert min(rows) >= 0
    if kind == "m_offsets":
        assert sum(rows) == m == groups.all_rows(m)
    else:
        assert max(rows) <= m
        assert groups.all_rows(m) == count * m


def test_some_groups_have_several_times_the_mean_and_few_rows_leave_some_without() -> None:
    groups = Groups("m_offsets", 64)
    assert max(groups.rows_of_each(6400)) > 300
    assert groups.rows_of_each(16).count(0) >= 48


def test_bytes_operations_and_tiles_count_each_group() -> None:
    plan = hopper(made(spec_file(OFFSETS)).plan)
    m, n, k = 640, 512, 256
    rows = plan.problem.rows_of_groups(m)
    active = sum(map(bool, rows))
    assert 0 < active <= 32
    assert plan.tiles((m, n, k)) == (sum(-(-each // 128) for each in rows), 2)
    assert dram_bytes(plan.problem, (m, n, k)) == 2 * (m * k + active * n * k + m * n)
    assert plan.problem.flops((m, n, k)) == 2 * m * n * k
    batches = hopper(made(spec_file(BATCHED)).plan).problem
    assert batches.flops((m, n, k)) == 16 * 2 * m * n * k


OPEN = """\
title: open
target: h100
operands: {{a: {{dtype: bf16}}, b: {{dtype: bf16}}, d: {{dtype: bf16}}}}
groups: {{kind: m_offsets, count: 32}}
problem: {{m: {m}, n: 4096, k: 2048}}
"""


@pytest.mark.parametrize(("rows", "swap_ab"), [(1, True), (4, True), (256, False), (1024, False)])
def test_few_rows_a_group_are_planned_with_swap_ab(rows: int, swap_ab: bool) -> None:
    plan = hopper(plan_spec(parse_spec(OPEN.format(m=32 * rows).encode(), "open")))
    assert plan.swap_ab is swap_ab
    assert plan.specialized
    assert (plan.cluster_size, plan.splits, plan.order) == (1, 1, "grouped")


# --- the compiler and the simulator


@lru_cache(maxsize=1)
def lowered_of(stem: str) -> Lowered:
    """Compile a kernel: a difference from the plan is an error of `lower`."""
    product = made(spec_file(stem))
    return lower(product.module, product.plan, path=stem, stem=stem)


@pytest.mark.sample(6)
@every_spec
def test_the_compiler_makes_what_the_plan_says(stem: str) -> None:
    plan, resources = made(spec_file(stem)).plan, lowered_of(stem).resources
    assert resources.smem_bytes == plan.smem_bytes
    assert resources.spilled_bytes == 0
    assert not resources.ptxas_notes
    recorded = {code.module: code for path in DIGESTS for code in read_digests(path).modules}
    assert recorded[stem] == Code.of(stem, lowered_of(stem))


@every_spec
def test_a_group_is_found_without_a_barrier_and_stored_by_boxes(stem: str) -> None:
    ptx, problem = lowered_of(stem).artifacts["ptx"].decode(), made(spec_file(stem)).plan.problem
    access = TensorAccess(problem)
    for rank in (3, 4):
        stored = ("d", *(("saved",) * problem.saves))
        is_stored = access.stores_boxes and rank - 2 in map(access.leading_axes, stored)
        assert (f"cp.async.bulk.tensor.{rank}d.global.shared" in ptx) == is_stored
    assert "cp.async.bulk.tensor.2d.global.shared" not in ptx
    assert ("redux.sync" in ptx) == (made(spec_file(stem)).plan.group_slots > 0)


@pytest.mark.sample(6)
@every_spec
def test_a_module_is_clean_in_the_simulator(stem: str) -> None:
    product = made(spec_file(stem))
    simulation = simulate_product(product, all_launches(product.plan, 2))
    assert simulation.problems == ()


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
@every_spec
def test_random_groups_are_right_in_the_simulator(stem: str, seed: int, programs: int) -> None:
    product = made(spec_file(stem))
    access = TensorAccess(product.source.problem)
    n, k = round_up(136, access.n_multiple), round_up(264, access.k_multiple)
    shape = (40 if product.plan.problem.groups == Groups("m_masked", 128) else 150, n, k)
    if product.source.problem.groups and product.source.problem.groups.apart:
        shape = (min(shape[0], 9 if product.source.problem.groups.count > 32 else 70), *shape[1:])
    launch = Launch(shape, programs, "integers", ("random",))
    assert simulate_product(product, (launch,), seed=seed).problems == ()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "stem", [OFFSETS, GATED, MASKED, "h100_bf16_grouped_rows16", "h100_bf16_grouped_512"]
)
def test_other_divisions_write_nothing_outside_of_groups(stem: str) -> None:
    product = made(spec_file(stem))
    case = Case(
        matmul=Simulated(product, module_file(stem)),
        shape=(90, 136, 200),
        problem=product.source.problem,
        generator=torch.Generator().manual_seed(1),
        repeats=1,
        promote_k=None,
        sides=sides_of(product.source.problem),
    )
    checks = list(other_divisions(case))
    assert len(checks) >= 10
    assert [str(check) for check in checks if not check.passed] == []


def test_negative_ends_and_ends_behind_the_last_row_write_nothing_outside_of_d() -> None:
    simulated = Simulated.of(OFFSETS)
    problem = simulated.product.source.problem
    inputs = integer_inputs((90, 136, 200), problem, torch.Generator().manual_seed(1))
    offs = inputs.extras["offs"]
    offs.copy_(torch.tensor([-5, 20, 20, 60, *[1 << 30] * 28], dtype=INT))
    out = Matrix.poisoned(90, 136, "bf16", torch.device("cpu"), guarded=True)
    simulated(inputs.a, inputs.b, offs=offs, out=out.view)
    assert out.written_outside == 0
    assert touched(out.view) == 90 * 136


# --- the reference


def test_bounds_are_within_the_rows_whatever_the_tensor_holds() -> None:
    offsets, masked = made(spec_file(OFFSETS)).source.problem, made(spec_file(MASKED)).source.problem
    offs = torch.tensor([3, 3, -1, 9, 40], dtype=INT)
    assert list(bounds(offsets, 10, offs, 5)) == [(0, 3), (3, 3), (3, 3), (0, 9), (9, 10)]
    rows = torch.tensor([3, -1, 40], dtype=INT)
    assert list(bounds(masked, 10, rows, 3)) == [(0, 3), (10, 10), (20, 30)]


@pytest.mark.parametrize("stem", [OFFSETS, MASKED, BATCHED])
def test_the_reference_is_a_loop_over_groups(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((40, 24, 64), problem, torch.Generator().manual_seed(3))
    assert inputs.shape == (40, 24, 64)
    a = inputs.a.double().flatten(0, -2)
    expected = [
        a[first:end] @ inputs.b[group].double()
        for group, (first, end) in enumerate(bounds_of(problem, inputs))
    ]
    assert torch.equal(reference(inputs, problem), torch.cat(expected))


def test_rows_of_no_group_are_not_compared() -> None:
    problem = made(spec_file(MASKED)).source.problem
    d = torch.arange(12.0).view(2, 3, 2)
    extras = {"rows": torch.tensor([1, 2], dtype=INT)}
    inputs = Inputs(torch.empty(2, 3, 4), torch.empty(2, 4, 2), extras, sides=sides_of(problem))
    found = inputs.computed_rows(d)[:]
    assert torch.equal(found, torch.tensor([[0.0, 1], [6, 7], [8, 9]]))


@pytest.mark.parametrize("kind", ["m_offsets", "m_masked"])
def test_divisions_have_a_number_for_each_group(kind: GroupKind) -> None:
    found = dict(divisions(Groups(kind, 5), 20))
    assert len(found) >= 4
    assert {len(each) for each in found.values()} == {5}
    assert [0] * 5 in found.values()


# --- the function


def weights(groups: int, n: int, k: int) -> Tensor:
    """Return B as callers have it: the transposed view of the weights of all groups."""
    return cuda(groups, n, k).mT


def test_a_grouped_call_describes_b_as_rows_of_all_groups_and_d_as_boxes(
    module: ModuleType, driver: FakeDriver
) -> None:
    a, b, offs = cuda(300, 64), weights(5, 256, 64), cuda(5, dtype=INT)
    d = module.matmul(a, b, offs=offs)
    assert d.shape == (300, 256)
    ((programs, _, arguments),) = driver.jit
    assert programs == (7, 1, 1)  # 300 // 128 whole tiles of rows, and one more for each group
    described = [arguments[i] for i in (0, 1, 3)]
    assert [([*each.shape], each.block_shape) for each in described] == [
        ([300, 64], [64, 64]),
        ([1280, 64], [256, 64]),
        ([301, 64, 256], [1, 64, 64]),
    ]
    assert arguments[2] is offs
    assert described[-1].strides == [256, 256, 1]
    assert described[-1].base.data_ptr() == d.data_ptr() - 64 * 256 * 2


@pytest.mark.parametrize("module", [BATCHED], indirect=True)
def test_batches_are_one_matrix_of_rows(module: ModuleType, driver: FakeDriver) -> None:
    a, b, out = cuda(3, 200, 64), weights(3, 256, 64), cuda(3, 200, 256)
    assert module.matmul(a, b).shape == (3, 200, 256)
    assert module.matmul(a, b, out=out) is out
    programs, _, arguments = driver.jit[0]
    assert programs == (3 * 2 * 1, 1, 1)
    assert [*arguments[0].shape] == [600, 64]
    assert [*arguments[2].shape] == [601, 64, 256]


@pytest.mark.parametrize("module", ["h100_bf16_batched_tt"], indirect=True)
def test_operands_along_m_and_n_are_described_with_a_dimension_for_groups(
    module: ModuleType, driver: FakeDriver
) -> None:
    a, b, out = cuda(3, 72, 200).mT, cuda(3, 72, 256), cuda(3, 200, 256)
    assert module.matmul(a, b, out=out) is out
    ((_, _, (a_desc, b_desc, _)),) = driver.jit
    assert [*a_desc.shape, *a_desc.block_shape] == [3, 72, 200, 1, 64, 128]
    assert [*b_desc.shape, *b_desc.block_shape] == [3, 72, 256, 1, 64, 256]
    with pytest.raises(ValueError, match=r"a must lie in memory as \[groups, K, M\]"):
        module.matmul(a.contiguous(), b)


@pytest.mark.parametrize("module", [BATCHED], indirect=True)
def test_rows_of_d_are_padded_in_each_group(module: ModuleType, driver: FakeDriver) -> None:
    d = module.matmul(cuda(3, 200, 64), weights(3, 250, 64))
    assert (d.shape, d.stride()) == ((3, 200, 250), (200 * 256, 256, 1))
    assert len(driver.jit) == 1


def offsets_call(**changed: Any) -> dict[str, Any]:
    return {"a": cuda(16, 64), "b": weights(5, 32, 64), "offs": cuda(5, dtype=INT), **changed}


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "offs of int64": (offsets_call(offs=cuda(5, dtype=torch.int64)), "offs", "torch.int64"),
    "offs on the CPU": (offsets_call(offs=torch.zeros(5, dtype=INT)), "offs", "cpu"),
    "offs of other groups": (offsets_call(offs=cuda(4, dtype=INT)), "offs", "[4]"),
    "one B": (offsets_call(b=cuda(32, 64).T), "b", "shape [64, 32]"),
    "more groups than slots": (
        offsets_call(b=weights(33, 32, 64), offs=cuda(33, dtype=INT)),
        "this kernel",
        "33",
    ),
    "no groups": (offsets_call(b=weights(0, 32, 64), offs=cuda(0, dtype=INT)), "this kernel", "0"),
    "another k": (offsets_call(b=weights(5, 32, 72)), "b", "[5, 72, 32]"),
    "a B that is not transposed": (offsets_call(b=weights(5, 32, 64).mT), "b", "[5, 32, 64]"),
    "rows of K": (offsets_call(b=cuda(5, 64, 32)), "b", "strides (2048, 32, 1)"),
    "gaps between groups": (offsets_call(b=cuda(5, 40, 64)[:, :32].mT), "b", "2560"),
    "an odd row": (offsets_call(a=cuda(16, 60), b=weights(5, 32, 60)), "a", "60"),
    "another d": (offsets_call(out=cuda(16, 40)), "out", "[16, 40]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_is_named_before_anything_is_launched(
    case: str, module: ModuleType, driver: FakeDriver
) -> None:
    assert_refused(module, driver, *WRONG[case])


def test_a_view_of_padded_weights_is_taken(module: ModuleType, driver: FakeDriver) -> None:
    b = cuda(5, 32, 80)[:, :, :64].mT
    assert module.matmul(cuda(16, 64), b, offs=cuda(5, dtype=INT)).shape == (16, 32)
    (_, _, arguments) = driver.jit[0]
    assert arguments[1].strides == (80, 1)


def test_ends_may_begin_at_any_element(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(16, 64), weights(5, 32, 64), cuda(6, dtype=INT)[1:]
    module.matmul(a, b, offs=offs)
    ((_, _, arguments),) = driver.jit
    assert arguments[2].data_ptr() == offs.data_ptr()


def test_operations_are_counted_and_d_has_a_shape_without_memory(module: ModuleType) -> None:
    a = torch.empty(40, 64, dtype=BF16, device="meta")
    b = torch.empty(5, 32, 64, dtype=BF16, device="meta").mT
    with FlopCounterMode(display=False) as counter:
        assert module.matmul(a, b, offs=torch.empty(5, dtype=INT, device="meta")).shape == (40, 32)
    assert counter.get_total_flops() == 2 * 40 * 64 * 32


def test_a_model_is_compiled_and_exported_for_any_rows(module: ModuleType) -> None:
    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(5, 32, 64, dtype=BF16), requires_grad=False)

        def forward(self, x: Tensor, offs: Tensor) -> Tensor:
            return module.matmul(x, self.weight.mT, offs=offs)

    with torch.device("meta"):
        model, x, offs = Experts(), torch.empty(100, 64, dtype=BF16), torch.empty(5, dtype=INT)
    dynamo: Any = cast(Any, torch)._dynamo
    dynamo.reset()
    dynamo.mark_dynamic(x, 0)
    compiled = cast(Any, torch).compile(model, fullgraph=True, backend="eager")
    for rows in (100, 3):
        assert compiled(x[:rows], offs).shape == (rows, 32)
    dims = {"x": {0: cast(Any, torch).export.Dim("rows")}, "offs": None}
    exported = cast(Any, torch).export.export(model, (x, offs), dynamic_shapes=dims)
    assert [str(node.target) for node in exported.graph.nodes if node.op == "call_function"][-1] == (
        f"gemmgen.{OFFSETS}.default"
    )


# --- refusals


# --- a GPU


@pytest.mark.gpu
@every_spec
def test_every_check_of_a_module_passes_on_a_gpu(stem: str) -> None:
    access = TensorAccess(made(spec_file(stem)).source.problem)
    assert_verified_on_a_gpu(stem, m=1, n=max(8, access.n_multiple), k=max(8, access.k_multiple))


@pytest.mark.gpu
@pytest.mark.parametrize("stem", [OFFSETS, "h100_bf16_grouped_rows16"])
def test_a_graph_follows_groups_that_change_between_replays(stem: str) -> None:
    module = import_generated(module_file(stem))
    a = torch.randn(300, 256, device="cuda", dtype=BF16)
    b = torch.randn(8, 136, 256, device="cuda", dtype=BF16).mT
    offs = torch.zeros(8, device="cuda", dtype=INT)
    out = torch.zeros(300, 136, device="cuda", dtype=BF16)
    module.matmul(a, b, offs=offs, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(a, b, offs=offs, out=out)
    for ends in ([0, 0, 0, 0, 0, 0, 0, 300], [1, 2, 3, 40, 40, 200, 250, 290], [300] * 8, [0] * 8):
        offs.copy_(torch.tensor(ends, dtype=INT))
        out.fill_(-1.0)
        graph.replay()
        expected, first = torch.full_like(out, -1.0), 0
        for group, end in enumerate(ends):
            expected[first:end] = a[first:end] @ b[group]
            first = end
        assert torch.allclose(out.float(), expected.float(), atol=0.25, rtol=0.02)
        assert bool((out[first:] == -1).all())


@pytest.mark.gpu
def test_the_numbers_are_those_of_torchs_grouped_mm() -> None:
    module = import_generated(module_file(OFFSETS))
    a = torch.randn(512, 256, device="cuda", dtype=BF16)
    b = torch.randn(16, 384, 256, device="cuda", dtype=BF16).mT
    offs = torch.randint(0, 512, (16,), device="cuda").sort().values.to(INT)
    offs[-1] = 512
    theirs = cast(Any, torch)._grouped_mm(a, b, offs=offs, out_dtype=BF16)
    assert torch.allclose(module.matmul(a, b, offs=offs).float(), theirs.float(), atol=0.25, rtol=0.02)
