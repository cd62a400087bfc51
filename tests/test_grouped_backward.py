"""`backward: true` with groups of rows: the specs of gradients, their numbers, and torch's own checks.

The simulator computes the launches of all three modules, forward and backward, and torch computes the same
call and its gradients on the CPU. The tests of the last section need a GPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from grouped_calls import ENDS, INT, grouped_mm
from modules import made, module_file, spec_file
from ruamel.yaml import YAML
from simulated import on_a_gpu, signs, simulated, simulated_file
from torch import Tensor

from gemmgen.module import import_generated
from gemmgen.product import make, write

STEM = "h100_bf16_grouped_backward"
STEMS = (STEM, f"{STEM}_grad_a", f"{STEM}_grad_b")
BF16 = torch.bfloat16
any_torch: Any = cast(Any, torch)
dynamo: Any = any_torch._dynamo
SPEC = """\
title: groups to differentiate
target: h100
operands:
  a: {{dtype: bf16, major: k}}
  b: {{dtype: bf16, major: {b}}}
  d: {{dtype: bf16}}
groups: {{kind: m_offsets, count: 4}}
backward: true
{rest}"""
EACH_B = pytest.mark.parametrize("b", ["k", "mn"])


def spec_of(tmp_path: Path, b: str, rest: str = "") -> Path:
    path = tmp_path / f"grouped_{b}.yaml"
    path.write_text(SPEC.format(b=b, rest=rest))
    return path


# --- the specs of gradients


@pytest.mark.parametrize(
    ("b", "of_a", "of_b", "problem_of_b"),
    [
        # B lies as [G, N, K]: dA [M, K] = dD [M, N] @ B.mT, and dB.mT [G, N, K] = dD.T [N, M] @ A [M, K].
        ("k", ("k", "mn", "dD @ B.mT"), ("mn", "mn", "transposed: dD.T @ A"), {"m": 128, "n": 512, "k": 900}),
        # B as [G, K, N]: dB [G, K, N] = A.T [K, M] @ dD [M, N].
        ("mn", ("k", "k", "dD @ B.mT"), ("mn", "mn", "A.T @ dD"), {"m": 512, "n": 128, "k": 900}),
    ],
)
def test_the_gradient_of_a_has_the_groups_and_that_of_b_has_groups_of_k(
    tmp_path: Path,
    b: str,
    of_a: tuple[str, str, str],
    of_b: tuple[str, str, str],
    problem_of_b: dict[str, int],
) -> None:
    rest = "problem: {m: 900, n: 128, k: 512}\nepilogue: {alpha: -2}\n"
    product = make(spec_of(tmp_path, b, rest))
    yaml: Any = YAML(typ="safe", pure=True)
    found = [dict(yaml.load(gradient.spec)) for gradient in product.gradients]
    kinds = ("m_offsets", "k_offsets")
    for spec, kind, (left, right, formula) in zip(found, kinds, (of_a, of_b), strict=True):
        assert spec["groups"] == {"kind": kind, "count": 4}
        assert (spec["operands"]["a"]["major"], spec["operands"]["b"]["major"]) == (left, right)
        assert spec["operands"]["d"] == {"dtype": "bf16"}
        assert spec["epilogue"] == {"alpha": -2.0}
        assert f"{formula} of grouped_{b}" in spec["title"]
    assert found[0]["problem"] == {"m": 900, "n": 512, "k": 128}
    assert found[1]["problem"] == problem_of_b


def test_fp16_has_gradients_too(tmp_path: Path) -> None:
    path = tmp_path / "half.yaml"
    path.write_text(SPEC.format(b="k", rest="").replace("bf16", "fp16"))
    for gradient in make(path).gradients:
        problem = gradient.product.plan.problem
        assert {problem.a.dtype.name, problem.b.dtype.name, problem.d.name} == {"fp16"}


# --- numbers


@dataclass(frozen=True)
class Operands:
    """The operands of a grouped matmul with 40 rows, the gradient of its D, and a factor."""

    a: Tensor
    weight: Tensor
    """[G, N, K], or [G, K, N] if the kernel takes it as it is."""
    offs: Tensor
    grad: Tensor
    turned: bool = True
    alpha: float = 1

    @classmethod
    def of(cls, ends: list[int], *, turned: bool = True, k: int = 64, alpha: float = 1) -> Operands:
        weight = signs(len(ends), *((32, k) if turned else (k, 32)))
        return cls(signs(40, k), weight, torch.tensor(ends, dtype=INT), signs(40, 32), turned, alpha)

    def gradients(self, matmul: Callable[..., Tensor], grad: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the gradients of A and of the weight through a function."""
        a, weight = (on_a_gpu(each).detach().requires_grad_() for each in (self.a, self.weight))
        d = matmul(a, weight.mT if self.turned else weight, offs=on_a_gpu(self.offs))
        found = torch.autograd.grad(d, (a, weight), on_a_gpu(self.grad) if grad is None else grad)
        assert [each.shape for each in found] == [a.shape, weight.shape]
        return cast(Any, tuple(each.as_subclass(Tensor) for each in found))

    def torchs(self) -> tuple[Tensor, Tensor]:
        """Return torch's, on the CPU, with zeros in the rows of no group, where torch leaves any values."""
        a, weight = (each.detach().requires_grad_() for each in (self.a, self.weight))
        d = self.alpha * grouped_mm(a, weight.mT if self.turned else weight, offs=self.offs)
        of_a, of_weight = torch.autograd.grad(d, (a, weight), self.grad)
        of_a[int(self.offs[-1]) :] = 0
        return of_a, of_weight

    @property
    def expected(self) -> tuple[Tensor, Tensor]:
        """The gradients, group by group: zeros in rows of no group, and of groups without rows."""
        of_a, of_weight, first = torch.zeros_like(self.a), torch.zeros_like(self.weight), 0
        for group, end in enumerate(map(int, self.offs)):
            rows = slice(first, end)
            a, grad, weight = self.a[rows].float(), self.grad[rows].float(), self.weight[group].float()
            of_a[rows] = self.alpha * (grad @ (weight if self.turned else weight.mT))
            of_weight[group] = self.alpha * (grad.T @ a if self.turned else a.T @ grad)
            first = end
        return of_a, of_weight


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The committed module, whose launches and those of its gradients the simulator computes."""
    any_torch.manual_seed(0)
    return with_gradients([simulated(stem, monkeypatch) for stem in STEMS], monkeypatch)


def with_gradients(modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the first module; the others take tensors of a backward, in which torch makes no `Cuda`."""
    forward, *gradients = modules
    for gradient in gradients:

        def multiply(
            *tensors: Tensor, real: Callable[..., Tensor] = gradient.matmul, **options: Tensor
        ) -> Tensor:
            return real(*map(on_a_gpu, tensors), **{name: on_a_gpu(each) for name, each in options.items()})

        monkeypatch.setattr(gradient, "matmul", multiply)
    return forward


def assert_equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", ENDS)
def test_the_gradients_are_torchs(module: ModuleType, case: str) -> None:
    operands = Operands.of(ENDS[case])
    found = operands.gradients(module.matmul)
    assert_equal(found, operands.torchs())
    assert_equal(found, operands.expected)
    assert all(each.is_contiguous() for each in found)


def test_rows_of_no_group_have_gradients_of_zeros_whatever_they_hold(module: ModuleType) -> None:
    operands = Operands.of([3, 3, 20, 29])
    expected = operands.expected
    operands.a[29:] = operands.grad[29:] = float("nan")
    assert_equal(operands.gradients(module.matmul), expected)


@pytest.mark.parametrize("ends", [[3, 3, 20, 29], [8, 16, 24, 40]])
def test_rows_of_no_whole_16_bytes_have_gradients(module: ModuleType, ends: list[int]) -> None:
    whole = Operands.of(ends)
    a, weight, offs = (on_a_gpu(each) for each in (whole.a, whole.weight, whole.offs))
    a, weight = (each[..., :60].detach().requires_grad_() for each in (a, weight))
    grad = on_a_gpu(whole.grad)
    found = torch.autograd.grad(module.matmul(a, weight.mT, offs=offs), (a, weight), grad)
    parts = Operands(whole.a[:, :60], whole.weight[..., :60], whole.offs, whole.grad)
    assert_equal(tuple(each.as_subclass(Tensor) for each in found), parts.expected)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda grad: grad[:1, :1].expand(grad.shape),
    "columns": lambda grad: grad.T.contiguous().T,
    "a part of longer rows": lambda grad: torch.cat((grad, grad), 1)[:, 32:],
    "past an odd element": lambda grad: torch.cat((grad.flatten()[:1], grad.flatten()))[1:].view(40, 32),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_gradient_of_d_may_lie_in_any_way(module: ModuleType, case: str) -> None:
    operands = Operands.of([3, 3, 20, 29])
    grad = LAYOUTS[case](operands.grad)
    expected = Operands(operands.a, operands.weight, operands.offs, grad.contiguous()).expected
    assert_equal(operands.gradients(module.matmul, on_a_gpu(grad)), expected)


def moved(tensor: Tensor) -> Tensor:
    """Return a copy with gaps between groups, as a hook of saved tensors may return it."""
    if tensor.dim() < 3:
        return tensor
    longer = torch.cat([tensor.mT] * 2, 1)
    return longer[:, : tensor.shape[-1]].mT


def test_a_saved_b_that_hooks_have_moved_is_laid_out_again(module: ModuleType) -> None:
    operands = Operands.of([3, 3, 20, 29])
    with torch.autograd.graph.saved_tensors_hooks(moved, lambda tensor: tensor):
        found = operands.gradients(module.matmul)
    assert_equal(found, operands.expected)


@pytest.mark.sample(1)
@EACH_B
def test_a_factor_and_each_layout_of_b_have_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, b: str
) -> None:
    any_torch.manual_seed(0)
    product = make(spec_of(tmp_path, b, "epilogue: {alpha: -2}\n"))
    write(product, tmp_path)
    files = ((tmp_path / f"{each.source.stem}.py", each) for each in product.each)
    forward = with_gradients([simulated_file(*each, monkeypatch) for each in files], monkeypatch)
    operands = Operands.of([3, 3, 20, 29], turned=b == "k", alpha=-2)
    found = operands.gradients(forward.matmul)
    assert_equal(found, operands.expected)
    assert_equal(found, operands.torchs())


def test_other_ends_than_those_of_the_forward_are_an_error(module: ModuleType) -> None:
    operands = Operands.of([3, 3, 20, 29])
    a, offs = on_a_gpu(operands.a).requires_grad_(), on_a_gpu(operands.offs)
    d = module.matmul(a, on_a_gpu(operands.weight).mT, offs=offs)
    offs += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(d, a, on_a_gpu(operands.grad))


# --- what torch sees


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The committed modules by the names of their files."""
    found = {stem: import_generated(module_file(stem)) for stem in STEMS}
    for stem, module in found.items():
        monkeypatch.setitem(sys.modules, stem, module)
    dynamo.reset()
    return found


def leaf(*shape: int, learning: bool = True) -> Tensor:
    return torch.empty(shape, dtype=BF16, device="meta", requires_grad=learning)


def ends_of(groups: int) -> Tensor:
    return torch.empty(groups, dtype=INT, device="meta")


@pytest.mark.parametrize("learning", [False, True])
def test_torch_s_own_checks_of_the_operator_pass(modules: dict[str, ModuleType], learning: bool) -> None:
    operator = getattr(any_torch.ops.gemmgen, STEM)
    weight = leaf(5, 24, 16, learning=False).mT.requires_grad_(learning)  # a leaf, whose grad is read
    operands = leaf(8, 16, learning=learning), weight, ends_of(5)
    assert {*any_torch.library.opcheck(operator.default, operands).values()} == {"SUCCESS"}


@pytest.mark.parametrize("wanted", ["a", "b", "ab"])
def test_a_gradient_that_nobody_needs_is_not_computed_and_nothing_is_kept_for_it(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    called: list[str] = []
    for name in "ab":
        gradient = modules[f"{STEM}_grad_{name}"]

        def multiply(
            *tensors: Tensor,
            name: str = name,
            real: Callable[..., Tensor] = gradient.matmul,
            **options: Tensor,
        ) -> Tensor:
            called.append(name)
            return real(*tensors, **options)

        monkeypatch.setattr(gradient, "matmul", multiply)
    a, weight = leaf(8, 16, learning="a" in wanted), leaf(5, 24, 16, learning="b" in wanted)
    kept: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        d = modules[STEM].matmul(a, weight.mT, offs=ends_of(5))
    d.sum().backward()
    assert called == [*wanted]
    operands = {"a": (5, 16, 24), "b": (8, 16)}
    assert {*kept} == {(5,), *(operands[name] for name in wanted)}
    assert [a.grad is not None, weight.grad is not None] == ["a" in wanted, "b" in wanted]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_layer_is_compiled_with_the_operators_of_its_gradients(
    modules: dict[str, ModuleType], dynamic: bool
) -> None:
    graphs: list[list[str]] = []

    def keeping(graph: torch.fx.GraphModule, _: object) -> Any:
        # A call that writes into an argument is wrapped: its operator is the first argument.
        called = (str(each) for node in graph.graph.nodes for each in (node.target, *node.args[:1]))
        graphs.append([name for name in called if name.startswith("gemmgen.")])
        return boxed(graph)

    boxed = importlib.import_module("functorch.compile").make_boxed_func
    aot_autograd = importlib.import_module("torch._dynamo.backends.common").aot_autograd

    def layer(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
        return modules[STEM].matmul(x, w.mT, offs=offs)

    call = any_torch.compile(
        layer, fullgraph=True, dynamic=dynamic, backend=aot_autograd(fw_compiler=keeping)
    )
    x, w = leaf(8, 16), leaf(5, 24, 16)
    call(x, w, ends_of(5)).sum().backward()
    assert graphs[0] == [f"gemmgen.{STEM}.default"]
    assert sorted(graphs[1]) == [f"gemmgen.{STEM}_grad_a.out", f"gemmgen.{STEM}_grad_b.default"]
    assert [each.grad is not None and each.grad.stride() for each in (x, w)] == [(16, 1), (384, 16, 1)]
    for rows in (20, 3) if dynamic else ():
        x = leaf(rows, 16)
        call(x, w, ends_of(5)).sum().backward()
        assert (len(graphs), x.grad is not None and x.grad.shape) == (2, (rows, 16))


def test_no_rows_have_gradients_of_zeros(modules: dict[str, ModuleType]) -> None:
    x, w = leaf(0, 16), leaf(5, 24, 16)
    modules[STEM].matmul(x, w.mT, offs=ends_of(5)).sum().backward()
    assert [each.grad is not None and each.grad.shape for each in (x, w)] == [(0, 16), (5, 24, 16)]


def test_more_dimensions_of_a_are_rows(modules: dict[str, ModuleType]) -> None:
    x, w = leaf(2, 4, 16), leaf(5, 24, 16)
    d = modules[STEM].matmul(x, w.mT, offs=ends_of(5))
    d.sum().backward()
    assert (d.shape, x.grad is not None and x.grad.shape) == ((2, 4, 24), (2, 4, 16))


def test_an_out_of_tensors_that_require_grad_is_refused(modules: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match=r"^a must not require grad: out has no backward$"):
        modules[STEM].matmul(
            leaf(8, 16), leaf(5, 24, 16).mT, offs=ends_of(5), out=leaf(8, 24, learning=False)
        )


def test_the_gradients_take_as_many_groups_as_the_forward() -> None:
    slots = {stem: made(spec_file(stem)).plan.group_slots for stem in STEMS}
    assert slots == {STEM: 32, f"{STEM}_grad_a": 32, f"{STEM}_grad_b": 0}


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead"])
@pytest.mark.parametrize(
    "ends", [[40, 40, 200, 333, 512], [0, 1, 2, 3, 512], [100, 100, 300, 300, 461]], ids=str
)
def test_gradients_are_those_of_torchs_grouped_mm_on_a_gpu(
    modules: dict[str, ModuleType], mode: str, ends: list[int]
) -> None:
    matmul = modules[STEM].matmul

    def layer(a: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        return matmul(a, weight.mT, offs=offs)

    call = layer if mode == "eager" else any_torch.compile(layer, fullgraph=True, mode=mode)
    offs = torch.tensor(ends, dtype=INT, device="cuda")
    for seed in range(4):
        any_torch.manual_seed(seed)
        a = torch.randn(512, 256, device="cuda", dtype=BF16, requires_grad=True)
        weight = torch.randn(5, 384, 256, device="cuda", dtype=BF16, requires_grad=True)
        grad = torch.randn(512, 384, device="cuda", dtype=BF16)
        ours = torch.autograd.grad(call(a, weight, offs), (a, weight), grad)
        theirs = torch.autograd.grad(grouped_mm(a, weight.mT, offs=offs), (a, weight), grad)
        for one, other in zip(ours, theirs, strict=True):
            assert one.stride() == other.stride()
        rows = ends[-1]
        assert torch.allclose(ours[0][:rows].float(), theirs[0][:rows].float(), atol=0.25, rtol=0.02)
        assert torch.allclose(ours[1].float(), theirs[1].float(), atol=0.25, rtol=0.02)
        assert not ours[0][rows:].any()


@pytest.mark.gpu
def test_torch_s_own_checks_of_the_operator_pass_on_the_gpu(modules: dict[str, ModuleType]) -> None:
    operator = getattr(any_torch.ops.gemmgen, STEM)
    a, weight = signs(40, 64, device="cuda"), signs(5, 32, 64, device="cuda").mT
    offs = torch.tensor([3, 3, 10, 20, 40], dtype=INT, device="cuda")
    operands = a.requires_grad_(), weight.requires_grad_(), offs
    assert {*any_torch.library.opcheck(operator.default, operands).values()} == {"SUCCESS"}
