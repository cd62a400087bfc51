"""Gates of groups that save their sums, and their backward: the MLP of experts beside torch.autograd."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from drawn import random_inputs
from fake_gpu import cuda
from fake_triton import FakeDriver
from hopper import hopper
from modules import made, module_file, spec_file
from simulated import Simulated
from torch import Tensor

from gemmgen.build import lowered_of
from gemmgen.features.checking import sides_of
from gemmgen.features.groups.divisions import other_divisions
from gemmgen.numerics.case import Case
from gemmgen.numerics.matrices import Matrix, touched
from gemmgen.numerics.reference import references_of_saved, saved_deviation
from gemmgen.plan.search.estimates import dram_bytes
from gemmgen.product import make

pytest_plugins = ["fake_calls"]

SAVED, DGATED = "h100_bf16_grouped_saved", "h100_bf16_grouped_dgated"
MASKED, BATCHED = "h100_bf16_masked_saved", "h100_bf16_batched_dgated"
STEMS = (SAVED, DGATED, MASKED, BATCHED)
BF16, INT = torch.bfloat16, torch.int32
any_torch: Any = torch  # whose functions are partly untyped


# --- the plan


@pytest.mark.sample(2)
@pytest.mark.parametrize("stem", STEMS)
def test_the_compiler_makes_what_the_plan_says(stem: str) -> None:
    product = made(spec_file(stem))
    plan, resources = hopper(product.plan), lowered_of(product).resources
    assert resources.smem_bytes == plan.smem_bytes
    assert resources.spilled_bytes == 0


def test_bytes_count_the_sums_of_rows_and_the_weights_of_groups_with_rows() -> None:
    m, n, k = 128, 64, 32
    forward, backward = (made(spec_file(stem)).source.problem for stem in (SAVED, DGATED))
    active = sum(map(bool, forward.rows_of_groups(m)))
    assert dram_bytes(forward, (m, n, k)) == 2 * (m * k + active * 2 * n * k + (1 + 2) * m * n)
    of_rows = 4 * m  # a factor of fp32 for each
    assert dram_bytes(backward, (m, n, k)) == 2 * (m * k + active * n * k + 2 * 2 * m * n) + of_rows


# --- the numbers of a training step

ROLES = "warp_specialization: {kind: cooperative, consumers: 1}"
HEAD = """title: a small kernel of experts
target: h100
operands: {{a: {{dtype: bf16, major: {a}}}, b: {{dtype: bf16, major: {b}}}, {c}d: {{dtype: bf16}}}}
tile: {{m: 64, n: 64, k: 32}}
warp_specialization: {{kind: cooperative, consumers: 1}}
groups: {{kind: {kind}, count: 8{index}}}
"""
FACTORS = "acc * row_scale * "


def forward_spec(columns: str, act: str, kind: str, index: str = "") -> str:
    gate = f"accumulators: [gate, up], columns: {columns}, d: {act}(gate) * up, save: [gate, up]"
    return HEAD.format(a="k", b="k", c="", kind=kind, index=index) + f"epilogue: {{{gate}}}\n"


def backward_spec(columns: str, act: str, kind: str, index: str = "", factors: str = FACTORS) -> str:
    d = f"[{factors}up * {act}_grad(gate), {factors}{act}(gate)]"
    epilogue = f"epilogue: {{c: [gate, up], columns: {columns}, d: {d}}}\n"
    return HEAD.format(a="k", b="mn", c="c: {dtype: bf16}, ", kind=kind, index=index) + epilogue


DOWN = HEAD.format(a="k", b="k", c="", kind="m_offsets", index="") + "epilogue: {d: acc * row_scale}\n"
DGRAD = HEAD.format(a="k", b="mn", c="", kind="m_offsets", index="")
WGRAD = HEAD.format(a="mn", b="mn", c="", kind="k_offsets", index="")


def kernel(folder: Path, name: str, text: str) -> Simulated:
    file = folder / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    product = make(file)
    (folder / f"{name}.py").write_text(product.module, encoding="utf-8")
    return Simulated(product, folder / f"{name}.py")


def poison(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"), dtype=BF16)


def parted(sums: Tensor, columns: str) -> tuple[Tensor, Tensor]:
    if columns == "interleaved":
        return sums[..., ::2], sums[..., 1::2]
    gate, up = sums.chunk(2, -1)
    return gate, up


def activated(gate: Tensor, act: str) -> Tensor:
    if act == "silu":
        return torch.nn.functional.silu(gate)
    return torch.nn.functional.gelu(gate, approximate="tanh")


def assert_near(found: Tensor, exact: Tensor | None) -> None:
    """Check values of a few roundings to bf16 beside the exact ones, as a whole and one by one."""
    assert exact is not None
    wanted = exact.detach()
    assert found.shape == wanted.shape
    size = wanted.square().mean().sqrt()
    assert (found.double() - wanted).square().mean().sqrt() < 8e-3 * size
    assert ((found.double() - wanted).abs() <= 2**-5 * wanted.abs() + 0.03 * size).all()


@dataclass(frozen=True)
class Experts:
    """The tensors of a layer with an MLP y = w (act(x W1) * (x W2)) W3 for each expert, rows sorted by it."""

    x: Tensor
    up: Tensor
    down: Tensor
    weights: Tensor
    grad_y: Tensor

    @classmethod
    def drawn(cls, rows: int, width: int, hidden: int, count: int = 8) -> Experts:
        draw = torch.Generator().manual_seed(5)
        up, down = (
            torch.randn(count, *each, generator=draw) for each in ((2 * hidden, width), (width, hidden))
        )
        x, grad_y = (torch.randn(rows, width, generator=draw) for _ in range(2))
        weights = torch.rand(rows, generator=draw) + 0.5
        return cls(
            x.to(BF16), (up * width**-0.5).to(BF16), (down * hidden**-0.5).to(BF16), weights, grad_y.to(BF16)
        )


@pytest.mark.parametrize(
    ("columns", "act"), [("blocks", "silu"), ("interleaved", "silu"), ("blocks", "gelu_tanh")]
)
def test_a_training_step_of_experts_is_that_of_autograd(columns: str, act: str, tmp_path: Path) -> None:
    """Six kernels compute the forward and all gradients of the matrices; torch computes them in fp64.

    The gradient of a router's weight is a sum over a row of y, which torch computes.
    """
    rows, width, hidden = 104, 72, 40  # edges along every dimension
    ends = [0, 37, 37, 38, 90, 90, 96, 96]  # empty groups, a group of one row, and rows of no group
    layer, offs, used = Experts.drawn(rows, width, hidden), torch.tensor(ends, dtype=INT), ends[-1]
    texts = (
        forward_spec(columns, act, "m_offsets"),
        DOWN,
        backward_spec(columns, act, "m_offsets"),
        DGRAD,
        WGRAD,
    )
    up, down, dgated, dgrad, wgrad = (kernel(tmp_path, f"step_{i}", text) for i, text in enumerate(texts))

    saved = poison(rows, 2 * hidden)
    h = up(layer.x, layer.up.mT, offs=offs, saved=saved)
    y = down(h, layer.down.mT, row_scale=layer.weights, offs=offs)
    grad_sums = poison(rows, 2 * hidden)
    dgated(layer.grad_y, layer.down, c=saved, row_scale=layer.weights, offs=offs, out=grad_sums)
    grad_x = dgrad(grad_sums, layer.up, offs=offs)
    grad_up, grad_down = poison(8, 2 * hidden, width), poison(8, width, hidden)
    wgrad(grad_sums.T, layer.x, offs=offs, out=grad_up)
    weighted = (layer.grad_y * layer.weights[:, None]).to(BF16)
    wgrad(weighted.T, h, offs=offs, out=grad_down)
    for written in (h, saved, y, grad_sums, grad_x):
        assert written[used:].isnan().all()
        assert not written[:used].isnan().any()

    exact = [each.double().requires_grad_() for each in (layer.x, layer.up, layer.down, layer.weights)]
    x, w_up, w_down, weights = exact
    parts: list[Tensor] = []
    sums: list[Tensor] = []
    hiddens: list[Tensor] = []
    for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        sums.append(x[first:end] @ w_up[group].T)
        sums[-1].retain_grad()
        gate, value = parted(sums[-1], columns)
        hiddens.append(activated(gate, act) * value)
        parts.append(weights[first:end, None] * (hiddens[-1] @ w_down[group].T))
    any_torch.autograd.backward(torch.cat(parts), layer.grad_y[:used].double())
    assert_near(saved[:used], torch.cat(sums))
    assert_near(h[:used], torch.cat(hiddens))
    assert_near(y[:used], torch.cat(parts))
    gradients: list[Tensor] = [each.grad for each in sums if each.grad is not None]
    assert_near(grad_sums[:used], torch.cat(gradients))
    assert x.grad is not None
    assert_near(grad_x[:used], x.grad[:used])
    assert_near(grad_up, w_up.grad)
    assert_near(grad_down, w_down.grad)
    assert weights.grad is not None
    of_router = (layer.grad_y.double() * y.double()).sum(1) / layer.weights.double()
    assert_near(of_router[:used], weights.grad[:used])


@pytest.mark.parametrize("columns", ["blocks", "interleaved"])
def test_rows_by_an_index_are_those_of_sorted_rows(columns: str, tmp_path: Path) -> None:
    """Both kernels gather the rows of A, so that neither x nor the gradient of y is sorted by expert."""
    rows, width, hidden = 90, 72, 40
    layer, offs = Experts.drawn(rows, width, hidden), torch.tensor([0, 20, 20, 64, 64, 80, 85, 85], dtype=INT)
    index = torch.randint(rows, (rows,), generator=torch.Generator().manual_seed(1)).to(INT)
    given = {"offs": offs, "a_rows": index}
    made_with = [
        [kernel(tmp_path, f"{name}_{i}", text) for i, text in enumerate(texts)]
        for name, texts in {
            "sorted": (
                forward_spec(columns, "silu", "m_offsets"),
                backward_spec(columns, "silu", "m_offsets"),
            ),
            "gathered": (
                forward_spec(columns, "silu", "m_offsets", ", a_rows: true"),
                backward_spec(columns, "silu", "m_offsets", ", a_rows: true"),
            ),
        }.items()
    ]
    found: list[tuple[Tensor, ...]] = []
    for (forward, backward), gathers in zip(made_with, (False, True), strict=True):
        x, grad_y = (each if gathers else each[index.long()] for each in (layer.x, layer.grad_y))
        extras = given if gathers else {"offs": offs}
        saved, grad = poison(rows, 2 * hidden), poison(rows, 2 * hidden)
        h = forward(x, layer.up.mT, saved=saved, **extras)
        backward(grad_y, layer.down, c=saved, row_scale=layer.weights, out=grad, **extras)
        found.append((h, saved, grad))
    for plain, gathered in zip(*found, strict=True):
        assert torch.equal(plain[:85], gathered[:85])
        assert plain[85:].isnan().all()
        assert gathered[85:].isnan().all()


@pytest.mark.parametrize("columns", ["blocks", "interleaved"])
@pytest.mark.parametrize("kind", ["batched", "m_masked"])
def test_groups_that_lie_apart_save_and_differentiate(kind: str, columns: str, tmp_path: Path) -> None:
    m, width, hidden, count = 72, 64, 24, 3
    layer = Experts.drawn(count * m, width, hidden, count)
    x, grad_y = (each.view(count, m, width) for each in (layer.x, layer.grad_y))
    weights, rows = layer.weights.view(count, m), [70, 0, 3] if kind == "m_masked" else [m] * count
    extras = {"rows": torch.tensor(rows, dtype=INT)} if kind == "m_masked" else {}
    forward, backward = (
        kernel(tmp_path, f"apart_{i}", text)
        for i, text in enumerate((forward_spec(columns, "silu", kind), backward_spec(columns, "silu", kind)))
    )
    saved, grad = poison(count, m, 2 * hidden), poison(count, m, 2 * hidden)
    h = forward(x, layer.up.mT, saved=saved, **extras)
    backward(grad_y, layer.down, c=saved, row_scale=weights, out=grad, **extras)
    for group, used in enumerate(rows):
        exact = (x[group, :used].double() @ layer.up[group].double().T).requires_grad_()
        gate, value = parted(exact, columns)
        hiddens = activated(gate, "silu") * value
        y = weights[group, :used, None].double() * (hiddens @ layer.down[group].double().T)
        any_torch.autograd.backward(y, grad_y[group, :used].double())
        for written, wanted in ((h, hiddens), (saved, exact), (grad, exact.grad)):
            assert written[group, used:].isnan().all()
            if used:
                assert_near(written[group, :used], wanted)


def case_of(stem: str) -> Case:
    product = made(spec_file(stem))
    return Case(
        matmul=Simulated(product, module_file(stem)),
        shape=(90, 136, 200),
        problem=product.source.problem,
        generator=torch.Generator().manual_seed(1),
        repeats=1,
        promote_k=None,
        sides=sides_of(product.source.problem),
    )


@pytest.mark.parametrize("stem", [SAVED, DGATED, MASKED])
def test_other_divisions_write_nothing_outside_of_groups(stem: str) -> None:
    checks = list(other_divisions(case_of(stem)))
    outside = [check for check in checks if "of no group written" in check.what]
    assert len(outside) == (1 + (stem != DGATED)) * (4 if stem == MASKED else 5)
    assert [str(check) for check in checks if not check.passed] == []


def test_ends_ahead_of_the_first_row_and_after_the_last_one_write_nothing_outside() -> None:
    case = case_of(SAVED)
    inputs = random_inputs(case.shape, case.problem, case.generator, guarded=True)
    ends = [-5, 20, 20, 60, *[1 << 30] * 28]
    inputs.extras["offs"].copy_(torch.tensor(ends, dtype=INT))
    out = Matrix.poisoned(90, 136, "bf16", torch.device("cpu"), guarded=True)
    inputs.call(case.matmul, out.view)
    saved = inputs.extras["saved"]
    assert out.written_outside == 0
    assert touched(out.view) == 90 * 136
    assert touched(saved) == 90 * 272
    whole = saved.as_strided((saved.untyped_storage().nbytes() // 2,), (1,), 0)
    assert touched(whole) == touched(saved)


# --- the reference


@pytest.mark.parametrize("stem", [SAVED, MASKED])
def test_saved_sums_are_compared_group_by_group(stem: str) -> None:
    problem = made(spec_file(stem)).source.problem
    inputs = random_inputs((40, 24, 64), problem, torch.Generator().manual_seed(3))
    saved, a = inputs.extras["saved"], inputs.a.double()
    count = len(inputs.b)
    if stem == MASKED:
        saved.copy_(a @ inputs.b.double())
    else:
        ends = [int(end) for end in inputs.extras["offs"]]
        for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
            saved[first:end] = (a[first:end] @ inputs.b[group].double()).to(BF16)
    assert saved_deviation(inputs, problem).relative < 2e-3
    used = inputs.computed_rows(saved)[:]
    ((_, d),) = references_of_saved(saved, inputs, problem)
    gate, up = parted(used.double(), "interleaved" if stem == MASKED else "blocks")
    assert torch.allclose(d, torch.nn.functional.silu(gate) * up, rtol=1e-9)
    saved.copy_(saved.roll(1, -1))
    assert saved_deviation(inputs, problem).relative > 1
    assert count in (16, 32)


# --- the function


@pytest.mark.parametrize("module", [SAVED], indirect=True)
def test_a_forward_call_describes_d_and_sums_as_boxes(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(300, 64), cuda(5, 592, 64).mT, cuda(5, dtype=INT)
    d, sums = module.matmul(a, b, offs=offs)
    assert (d.shape, sums.shape) == ((300, 296), (300, 592))
    saved = cuda(300, 592)
    assert module.matmul(a, b, offs=offs, saved=saved)[1] is saved
    programs, _, arguments = driver.jit[0]
    assert programs == (7 * 3, 1, 1)
    assert [[*each.shape] for each in arguments[3:]] == [[301, 64, 296], [2, 301, 64, 296]]
    assert [*arguments[4].strides] == [296, 592, 592, 1]
    assert arguments[4].base.data_ptr() == sums.data_ptr() - 64 * 592 * 2


@pytest.mark.parametrize("module", [DGATED], indirect=True)
def test_a_backward_call_reads_c_as_rows_and_stores_boxes(module: ModuleType, driver: FakeDriver) -> None:
    a, b, c = cuda(300, 64), cuda(5, 64, 296), cuda(300, 592)
    extras = {"c": c, "row_scale": cuda(300, dtype=torch.float32), "offs": cuda(5, dtype=INT)}
    assert module.matmul(a, b, **extras).shape == (300, 592)
    out = cuda(300, 592)
    assert module.matmul(a, b, **extras, out=out) is out
    programs, _, arguments = driver.jit[0]
    assert programs == (7 * 3, 1, 1)
    shapes = [[*each.shape] for each in (arguments[2], arguments[5])]
    assert shapes == [[2, 300, 296], [2, 301, 64, 296]]


@pytest.mark.parametrize("module", [DGATED], indirect=True)
def test_a_gradient_over_the_saved_sums_is_refused(module: ModuleType, driver: FakeDriver) -> None:
    """A tile reads rows of C of the next group, whose gradients another program may have stored already."""
    a, b, c = cuda(16, 64), cuda(5, 64, 72), cuda(16, 144)
    extras = {"c": c, "row_scale": cuda(16, dtype=torch.float32), "offs": cuda(5, dtype=INT)}
    with pytest.raises(
        ValueError, match="out must share no memory with c, which is read while out is written"
    ):
        module.matmul(a, b, **extras, out=c)
    assert driver.jit == []


@pytest.mark.parametrize("module", [BATCHED], indirect=True)
def test_batches_of_c_are_one_matrix_of_rows(module: ModuleType, driver: FakeDriver) -> None:
    a, b, c, out = cuda(3, 200, 64), cuda(3, 64, 256), cuda(3, 200, 512), cuda(3, 200, 512)
    assert module.matmul(a, b, c=c, out=out) is out
    ((programs, _, arguments),) = driver.jit
    assert programs == (3 * 2 * 2, 1, 1)
    assert [[*each.shape] for each in arguments[2:]] == [[600, 512], [601, 64, 512]]


@pytest.mark.parametrize("module", [MASKED], indirect=True)
def test_sums_of_groups_that_lie_apart_have_their_dimension(module: ModuleType, driver: FakeDriver) -> None:
    a, b, rows = cuda(3, 40, 64), cuda(3, 512, 64).mT, cuda(3, dtype=INT)
    d, sums = module.matmul(a, b, rows=rows)
    assert (d.shape, sums.shape) == ((3, 40, 256), (3, 40, 512))
    assert [[*each.shape] for each in driver.jit[0][2][3:]] == [[121, 64, 256], [121, 64, 512]]
    with pytest.raises(ValueError, match=r"saved must have 3 dimensions, found shape \[120, 512\]"):
        module.matmul(a, b, rows=rows, saved=cuda(120, 512))


@pytest.mark.parametrize("module", [SAVED], indirect=True)
def test_n_is_a_multiple_of_eight(module: ModuleType, driver: FakeDriver) -> None:
    a, b, offs = cuda(16, 64), cuda(5, 136, 64).mT, cuda(5, dtype=INT)
    with pytest.raises(ValueError, match="N must be a multiple of 8, found 68"):
        module.matmul(a, b, offs=offs)
    assert driver.jit == []


@pytest.mark.parametrize("module", [SAVED], indirect=True)
def test_torch_traces_an_operator_that_writes_the_sums_of_groups(module: ModuleType) -> None:
    a, b = torch.empty(16, 64, dtype=BF16, device="meta"), torch.empty(5, 144, 64, dtype=BF16, device="meta")
    offs = torch.empty(5, dtype=INT, device="meta")
    d, sums = module.matmul(a, b.mT, offs=offs)
    assert (d.shape, sums.shape) == ((16, 72), (16, 144))
    schema = str(getattr(torch.ops.gemmgen, module.__name__).default._schema)
    assert (
        schema == f"gemmgen::{module.__name__}(Tensor a, Tensor b, Tensor offs, Tensor(b!) saved) -> Tensor"
    )


@pytest.mark.parametrize("module", [SAVED, MASKED], indirect=True)
def test_torch_compile_traces_both_results_of_groups(module: ModuleType) -> None:
    is_apart = "masked" in module.__name__
    a = torch.empty(*((5,) * is_apart), 16, 64, dtype=BF16, device="meta")
    weight = torch.empty(5, 144, 64, dtype=BF16, device="meta")
    counts = torch.empty(5, dtype=INT, device="meta")

    def layer(x: Tensor, w: Tensor) -> Tensor:
        d, sums = module.matmul(x, w.mT, **{"rows" if is_apart else "offs": counts})
        return d.sum() + sums.sum()

    compiled = any_torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert compiled(a, weight).shape == ()
    sums = torch.empty(*((5,) * is_apart), 16, 144, dtype=BF16, device="meta")
    checks = ("test_schema", "test_faketensor")
    operator = getattr(torch.ops.gemmgen, module.__name__).default
    any_torch.library.opcheck(operator, (a, weight.mT, counts, sums), test_utils=checks)
