"""Groups of e4m3 rows with fp32 scales of blocks on Hopper: the numbers, any first row, and the wrapper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from drawn import random_inputs
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from hopper import hopper
from modules import GROUPED_SPECS, made, module_file, spec_file
from simulated import Simulated, simulated
from torch import Tensor

from gemmgen.features.checking import sides_of
from gemmgen.features.groups.divisions import other_divisions
from gemmgen.hardware import SCALE_FORMATS
from gemmgen.module import import_generated
from gemmgen.numerics.case import Case, special_values
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.reference import reference
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.planner import rank
from gemmgen.spec import parse_spec
from gemmgen.verify.launches import Launch
from gemmgen.verify.simulation import simulate_product

STEM, MASKED = "h100_e4m3_blockwise_grouped", "h100_e4m3_blockwise_masked"
STEMS = [path.stem for path in GROUPED_SPECS if "blockwise" in path.stem or "ue8m0" in path.stem]
ROWS = [stem for stem in STEMS if made(spec_file(stem)).plan.access.scales_groups_of_rows]
PLAIN_D = [stem for stem in STEMS if made(spec_file(stem)).source.problem.d_scale is None]
"""The others return scales too: tests/test_quantized_output.py calls them."""
M, N, K, COUNT = 90, 200, 304, 5
FP32, E4M3, INT = torch.float32, torch.float8_e4m3fn, torch.int32
BLOCK = SCALE_FORMATS["fp32_1x128"].vector


# --- the plan


@pytest.mark.parametrize("stem", ROWS)
def test_tma_loads_the_scales_of_a_from_a_multiple_of_16_bytes_on(stem: str) -> None:
    plan = hopper(made(spec_file(stem)).plan)
    (of_a,) = plan.stage.payloads_of("a_scale")
    rows = plan.cta_consumer_tile_m
    assert (of_a.loads, of_a.loaded_bytes) == (of_a.count, of_a.bytes)
    assert plan.resources.load_ready.count == 1
    assert plan.promote_k == BLOCK
    # Groups with an offset begin at any row, so up to 3 scales of other rows come ahead of a tile's.
    scales = rows if plan.problem.groups and plan.problem.groups.apart else rows + 3
    assert of_a.elements == max(32, 1 << (scales - 1).bit_length())


OPEN = """\
title: open
target: h100
operands:
  a: {dtype: e4m3, scale: {format: fp32_1x128}}
  b: {dtype: e4m3, scale: {format: fp32_128x128}}
  d: {dtype: bf16}
groups: {kind: %s, count: 32}
problem: {m: %d, n: %d, k: %d}
"""


@pytest.mark.sample(6)
@pytest.mark.parametrize(("n", "k"), [(4096, 7168), (7168, 2048)])
@pytest.mark.parametrize("rows", [1, 4, 16, 64, 512, 2048])
@pytest.mark.parametrize("kind", ["m_offsets", "m_masked"])
def test_an_open_spec_gets_six_kernels(kind: str, rows: int, n: int, k: int) -> None:
    m = rows if kind == "m_masked" else 32 * rows
    ranking = rank(parse_spec((OPEN % (kind, m, n, k)).encode(), "open"))
    found = [hopper(each.plan) for each in ranking.to_measure(6)]
    assert len(found) == 6
    assert found[0].swap_ab == (rows <= 16)
    assert any(plan.row_slabs > 1 for plan in found) == (rows >= 512)


def test_dram_moves_the_scales_of_the_groups_that_have_rows() -> None:
    problem = made(spec_file(STEM)).source.problem
    m, n, k = 640, 512, 256
    active = sum(map(bool, problem.rows_of_groups(m)))
    assert 0 < active <= 32
    elements = m * k + active * n * k + 2 * m * n
    assert dram_bytes(problem, (m, n, k)) == elements + 4 * (m * 2 + active * 4 * 2)


# --- the numbers


def written_out(inputs: Inputs, first: int, end: int, group: int) -> Tensor:
    """Return the product of a group's rows in float64, element by element of the scales."""
    a, a_scale = inputs.a, inputs.extras["a_scale"]
    if a.dim() == 3:
        a, a_scale = a[group], a_scale[group]
    b, b_scale = inputs.b[group].T.double(), inputs.extras["b_scale"][group].double()
    total = torch.zeros(end - first, len(b), dtype=torch.float64)
    for block in range(-(-a.shape[1] // 128)):
        k = slice(128 * block, 128 * block + 128)
        sums = a[first:end, k].double() @ b[:, k].T
        of_columns = b_scale[torch.arange(len(b)) // 128, block]
        total += sums * a_scale[first:end, block, None].double() * of_columns
    return total


@pytest.mark.parametrize("stem", [STEM, MASKED])
def test_the_reference_scales_each_group_by_its_own_scales(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((M, N, K), problem, torch.Generator().manual_seed(0))
    assert problem.groups is not None
    counts, before = map(int, inputs.extras[problem.groups.counts or ""]), 0
    expected = list[Tensor]()
    for group, count in enumerate(counts):
        first, end = (0, count) if stem == MASKED else (before, count)
        before = end
        expected.append(written_out(inputs, first, end, group))
    assert torch.allclose(reference(inputs, problem), torch.cat(expected), rtol=1e-12, atol=1e-12)


def case_of(stem: str, shape: tuple[int, int, int], seed: int = 1) -> Case:
    product = made(spec_file(stem))
    return Case(
        matmul=Simulated(product, module_file(stem)),
        shape=shape,
        problem=product.source.problem,
        generator=torch.Generator().manual_seed(seed),
        repeats=1,
        promote_k=None,
        sides=sides_of(product.source.problem),
    )


def rows_of(stem: str) -> int:
    return 12 if "masked16" in stem else 90


@pytest.mark.sample(3)
@pytest.mark.parametrize("stem", PLAIN_D)
def test_each_division_is_right_and_nothing_else_is_written(stem: str) -> None:
    n = 256 if made(spec_file(stem)).source.problem.in_blocks else 136
    checks = list(other_divisions(case_of(stem, (rows_of(stem), n, 304))))
    assert len(checks) >= 10
    assert [str(check) for check in checks if not check.passed] == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("stem", [STEM, MASKED])
def test_a_nan_among_the_scales_is_where_it_belongs(stem: str) -> None:
    assert [str(check) for check in special_values(case_of(stem, (90, 136, 304))) if not check.passed] == []


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stem", STEMS)
def test_random_groups_are_right_under_random_schedules(stem: str, seed: int) -> None:
    n = 384 if made(spec_file(stem)).source.problem.in_blocks else 136
    launch = Launch((rows_of(stem), n, 400), 1 + seed, "integers", ("random", "eager"), most_groups=40)
    assert simulate_product(made(spec_file(stem)), (launch,), seed=seed).problems == ()


@pytest.mark.parametrize("first", range(1, 8))
def test_a_group_may_begin_at_any_row(first: int) -> None:
    case = case_of("h100_e4m3_blockwise_groups64", (150, 136, 304))
    inputs = case.inputs()
    ends = [first, first, first + 67] + [first + 67] * 28 + [first + 70]
    inputs.extras["offs"].copy_(torch.tensor(ends, dtype=INT))
    found = inputs.call(case.matmul, torch.full((150, 136), 7.0, dtype=torch.bfloat16))
    assert bool((found[ends[-1] :] == 7).all())
    exact = reference(inputs, case.problem)
    assert torch.allclose(found[: ends[-1]].double(), exact, rtol=2e-2, atol=2e-2)


K_DIVISIONS = {
    "multiples of a block": [0, 128, 128, 384, 512, 512, 640, 656],
    "ends within blocks": [1, 127, 129, 300, 500, 513, 600, 656],
    "all K in one group": [0, 0, 656, 656, 656, 656, 656, 656],
    "all groups are empty": [0] * 8,
    "K after the last end of nobody": [128, 128, 128, 128, 128, 256, 256, 256],
    "ends beyond K, negative ones and falling ones": [-70, 256, 128, 1 << 30, 384, 1 << 30, 512, 1 << 30],
}


@pytest.mark.parametrize("division", K_DIVISIONS)
def test_blocks_of_k_belong_to_the_group_that_their_end_is_of(division: str) -> None:
    case, ends = case_of("h100_e4m3_blockwise_kturns", (72, 136, 656)), K_DIVISIONS[division]
    inputs = case.inputs()
    inputs.extras["offs"].copy_(torch.tensor(ends, dtype=INT))
    found = inputs.call(case.matmul, torch.full((8, 72, 136), 7.0, dtype=torch.bfloat16)).double()
    of_a, of_b = (inputs.extras[name].double() for name in ("a_scale", "b_scale"))
    before = 0
    for group, end in enumerate(ends):
        blocks = -(-min(max(end, 0), 656) // 128)
        expected = torch.zeros(72, 136, dtype=torch.float64)
        for block in range(before, blocks):
            k = slice(128 * block, 128 * block + 128)
            sums = inputs.a[:, k].double() @ inputs.b.T[:, k].double().T
            expected += sums * of_a[:, block, None] * of_b[:, block]
        before = blocks
        assert torch.allclose(found[group], expected, rtol=2e-2, atol=2e-2)


# --- the wrapper


class Wrapper:
    """A module of grouped scaled sums without a GPU: it keeps the arguments of its last launch."""

    def __init__(self, stem: str) -> None:
        self.module = import_generated(module_file(stem))
        self.is_masked = stem == MASKED
        self.launched: list[Any] = []
        launch_into(self.module, lambda _, arguments: self.launched.append(arguments))

    def tensors(self, **changed: Tensor) -> dict[str, Tensor]:
        groups = (COUNT,) * self.is_masked
        tensors = {
            "a": torch.zeros(*groups, M, K, dtype=E4M3),
            "b": torch.zeros(COUNT, N, K, dtype=E4M3).mT,
            "a_scale": torch.ones(*groups, 3, 92)[..., :M].mT,
            "b_scale": torch.ones(COUNT, 2, 4)[..., :3],
            ("rows" if self.is_masked else "offs"): torch.zeros(COUNT, dtype=INT),
        }
        return {name: tensor.as_subclass(Cuda) for name, tensor in (tensors | changed).items()}

    def call(self, **changed: Tensor) -> Tensor:
        tensors = self.tensors(**changed)
        return self.module.matmul(tensors.pop("a"), tensors.pop("b"), **tensors)

    def scales(self) -> tuple[Tensor, Tensor]:
        """Return the scales of A, [M, blocks of K] of all groups, and of B of the last launch."""
        _, _, a_scale, b_scale, *_ = self.launched[-1]
        of_a = a_scale.base.unflatten(0, (COUNT, -1)) if self.is_masked else a_scale.base
        return of_a.mT, b_scale


@pytest.fixture
def wrapper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Wrapper:
    on_a_fake_gpu(monkeypatch)
    return Wrapper(getattr(request, "param", STEM))


both = pytest.mark.parametrize("wrapper", [STEM, MASKED], indirect=True)


@both
def test_scales_that_lie_right_are_passed_as_they_are(wrapper: Wrapper) -> None:
    tensors = wrapper.tensors()
    wrapper.call(a_scale=tensors["a_scale"], b_scale=tensors["b_scale"])
    assert [each.data_ptr() for each in wrapper.scales()] == [
        tensors["a_scale"].data_ptr(),
        tensors["b_scale"].data_ptr(),
    ]


@both
@pytest.mark.parametrize("kind", ["by rows", "odd", "with gaps", "a gap between groups"])
def test_scales_that_lie_otherwise_are_refused_and_arranged(wrapper: Wrapper, kind: str) -> None:
    groups = (COUNT,) * wrapper.is_masked
    a_scale, b_scale = {
        "by rows": (torch.rand(*groups, M, 3), torch.rand(COUNT, 3, 2).mT),
        "odd": (torch.rand(*groups, 3, M).mT, torch.rand(COUNT, 2, 3)),
        "with gaps": (torch.rand(*groups, 3, 2 * M).mT[..., ::2, :], torch.rand(COUNT, 2, 8)[..., :3]),
        "a gap between groups": (
            torch.rand(*groups, 4, 92)[..., :3, 1 : M + 1].mT,
            torch.rand(COUNT, 3, 4)[:, :2, :3],
        ),
    }[kind]
    arrange = wrapper.module.arrange_scales
    arranged = [arrange(name, scales) for name, scales in (("a_scale", a_scale), ("b_scale", b_scale))]
    for name, scales in (("a_scale", a_scale), ("b_scale", b_scale)):
        with pytest.raises(ValueError, match=f'{name} must have strides .* pass arrange_scales\\("{name}'):
            wrapper.call(**{name: scales})
    wrapper.call(a_scale=arranged[0], b_scale=arranged[1])
    of_a, of_b = wrapper.scales()
    assert of_a.mT.stride() == ((276, 92, 1) if groups else (92, 1))
    assert of_b.stride() == (8, 4, 1)
    assert torch.equal(of_a.as_subclass(Tensor), a_scale)
    assert torch.equal(of_b.as_subclass(Tensor), b_scale)
    assert arrange("b_scale", arranged[1]) is arranged[1]


WRONG: dict[str, tuple[dict[str, Tensor], str]] = {
    "blocks of K": ({"a_scale": torch.ones(M, 2)}, r"a_scale must have shape \[90, 3\], found \[90, 2\]"),
    "rows of A": ({"a_scale": torch.ones(M + 1, 3)}, r"a_scale must have shape \[90, 3\], found \[91, 3\]"),
    "a dimension of A": ({"a_scale": torch.ones(1, M, 3)}, "a_scale must have 2 dimensions"),
    "one B": ({"b_scale": torch.ones(2, 3)}, "b_scale must have 3 dimensions"),
    "groups": ({"b_scale": torch.ones(4, 2, 3)}, r"b_scale must have shape \[5, 2, 3\], found \[4, 2, 3\]"),
    "columns": (
        {"b_scale": torch.ones(COUNT, N, 3)},
        r"b_scale must have shape \[5, 2, 3\], found \[5, 200, 3\]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_scales_of_a_wrong_shape_are_refused(wrapper: Wrapper, case: str) -> None:
    changed, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        wrapper.call(**changed)
    assert wrapper.launched == []


def test_scales_of_a_wrong_type_or_device_are_refused(wrapper: Wrapper) -> None:
    with pytest.raises(TypeError, match=r"b_scale must be a tensor of torch\.float32"):
        wrapper.call(b_scale=torch.ones(COUNT, 2, 3, dtype=torch.bfloat16))
    tensors = wrapper.tensors()
    tensors["a_scale"] = torch.ones(M, 3)
    with pytest.raises(ValueError, match="a_scale must be on a's device"):
        wrapper.module.matmul(tensors.pop("a"), tensors.pop("b"), **tensors)


@pytest.mark.parametrize("stem", [STEM, MASKED])
def test_a_call_computes_each_group_whatever_the_strides_of_its_scales(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, problem = simulated(stem, monkeypatch), made(spec_file(stem)).source.problem
    inputs = random_inputs((70, 136, 304), problem, torch.Generator().manual_seed(5))
    exact = reference(inputs, problem)
    plain = module.arrange_scales("a_scale", inputs.extras["a_scale"].contiguous())
    for scales in (inputs.extras["a_scale"], plain):
        extras = {**inputs.extras, "a_scale": scales}
        given = {name: tensor.as_subclass(Cuda) for name, tensor in extras.items()}
        d = module.matmul(inputs.a.as_subclass(Cuda), inputs.b.as_subclass(Cuda), **given)
        found = inputs.computed_rows(d.as_subclass(Tensor))[:].double()
        assert torch.allclose(found, exact, rtol=2e-2, atol=2e-2)
