"""`backward: true`: the specs of gradients, the files of a build, the formula of the derivative.

All but the launches is tested without a GPU, on tensors without memory and on a CPU that multiplies in the
place of kernels; the tests of the last section need one.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from fake_gpu import Cuda
from fake_triton import on_a_fake_driver
from modules import ROOT, made, module_file, spec_file
from ruamel.yaml import YAML
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gemmgen.build import build
from gemmgen.errors import GemmgenError
from gemmgen.integrations import Linear, can_implement
from gemmgen.module import import_generated
from gemmgen.problem import gradients_of
from gemmgen.product import check, make, write

STEM = "h100_bf16_backward"
BF16 = torch.bfloat16
dynamo: Any = cast(Any, torch)._dynamo
compiled: Any = cast(Any, torch).compile
gradcheck: Any = cast(Any, torch).autograd.gradcheck
opcheck: Any = cast(Any, torch).library.opcheck

SPEC = """\
title: a matmul to differentiate
target: {target}
operands:
  a: {{dtype: fp16, major: {a}}}
  b: {{dtype: fp16, major: {b}}}
{c}  d: {{dtype: fp16}}
backward: true
{rest}"""
MAJORS = [("k", "k"), ("k", "mn"), ("mn", "k"), ("mn", "mn")]
every_major = pytest.mark.parametrize(("a", "b"), MAJORS, ids="-".join)


def spec_text(a: str = "k", b: str = "k", rest: str = "", c: str = "", target: str = "h100") -> str:
    return SPEC.format(a=a, b=b, rest=rest, c=c, target=target)


def derived(tmp_path: Path, text: str) -> dict[str, dict[str, Any]]:
    """The specs of both gradients of a spec, as plain data by operand."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    yaml: Any = YAML(typ="safe", pure=True)
    texts = (each.spec for each in make(path).gradients)
    return {operand: dict(yaml.load(found)) for operand, found in zip("ab", texts, strict=True)}


# --- the specs of gradients


@pytest.mark.parametrize(
    ("majors", "of_a", "of_b"),
    [
        # A lies as [M, K], B as [N, K]: dA [M, K] = dD [M, N] @ B.T, and dB.T [N, K] = dD.T [N, M] @ A.
        # Of dD and A rows are contiguous, which are K of dD @ B.T's first factor, and N of all others.
        (("k", "k"), ("k", "mn", "dD @ B.T"), ("mn", "mn", "dD.T @ A")),
        # B as [K, N]: dB [K, N] = A.T @ dD. The rows of B are K of dD @ B.T.
        (("k", "mn"), ("k", "k", "dD @ B.T"), ("mn", "mn", "A.T @ dD")),
        # A as [K, M]: dA.T [K, M] = B [K, N] @ dD.T [N, M]. The rows of A are M, which dB adds up.
        (("mn", "k"), ("mn", "k", "B @ dD.T"), ("mn", "k", "dD.T @ A")),
        (("mn", "mn"), ("k", "k", "B @ dD.T"), ("k", "mn", "A.T @ dD")),
    ],
    ids=lambda value: "-".join(value[:2]),
)
def test_gradients_lie_as_their_operands_and_read_views(
    tmp_path: Path, majors: tuple[str, str], of_a: tuple[str, str, str], of_b: tuple[str, str, str]
) -> None:
    found = derived(tmp_path, spec_text(*majors))
    for spec, (a, b, formula) in ((found["a"], of_a), (found["b"], of_b)):
        assert spec["operands"] == {
            "a": {"dtype": "fp16", "major": a},
            "b": {"dtype": "fp16", "major": b},
            "d": {"dtype": "fp16"},
        }
        assert f": {formula} of x" in spec["title"]


def test_gradients_are_planned_and_checked_for_the_problems_of_their_spec(tmp_path: Path) -> None:
    rest = "problem: {m: [64, 100], n: 44, k: 512}\n"
    rest += "check: {shapes: [[7, 12, 24]]}\nbench: {shapes: [[8, 16, 32]]}\n"
    found = derived(tmp_path, spec_text(rest=rest))
    # dA is [M, K] with N added up, dB.T is [N, K] with M added up; rows of dD are padded to 8 elements.
    assert found["a"]["problem"] == {"m": [64, 100], "n": 512, "k": 48}
    assert found["b"]["problem"] == {"m": 48, "n": 512, "k": [64, 100]}
    assert (found["a"]["check"], found["b"]["check"]) == (
        {"shapes": [[7, 24, 16]]},
        {"shapes": [[16, 24, 7]]},
    )
    assert (found["a"]["bench"], found["b"]["bench"]) == (
        {"shapes": [[8, 32, 16]]},
        {"shapes": [[16, 32, 8]]},
    )


def test_of_what_a_spec_decides_gradients_have_what_concerns_numbers_and_tensors(tmp_path: Path) -> None:
    rest = (
        "tile: {m: 128, n: 64}\nbatch_invariant: true\ndeterministic: true\n"
        "epilogue: {alpha: -2, beta: 0.5, ops: [column_bias]}\n"
    )
    c = "  c: {dtype: fp16}\n"
    for spec in derived(tmp_path, spec_text(rest=rest, c=c)).values():
        assert spec.keys() == {"title", "target", "operands", "epilogue", "deterministic"}
        assert spec["epilogue"] == {"alpha": -2.0}
    copying = derived(tmp_path, spec_text(c="  misaligned: copy\n", rest="check: {shapes: [[7, 11, 13]]}\n"))
    assert copying["a"]["operands"]["misaligned"] == "copy"
    assert copying["a"]["check"] == {"shapes": [[7, 13, 11]]}  # rows of any length


@every_major
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_gradients_of_every_layout_have_a_plan(tmp_path: Path, a: str, b: str, target: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(spec_text(a, b, target=target))
    product = make(path)
    for gradient, spec in zip(gradients_of(product.plan.problem), product.gradients, strict=True):
        operands = spec.product.plan.problem.a, spec.product.plan.problem.b
        assert tuple(operand.major for operand in operands) == gradient.majors
        assert spec.product.source.stem == f"x_grad_{gradient.operand}"


def test_a_spec_without_a_backward_has_no_gradients() -> None:
    assert made(spec_file("h100_bf16")).gradients == ()


# --- the files of a build


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec named `one.yaml` in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = Path("one.yaml")
    path.write_text(spec_text())
    return path


def names(directory: str = "out") -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir())


def states(*specs: Path) -> dict[str, str]:
    found = check([make(path) for path in specs], Path("out"), exhaustive=True)
    return {Path(each.diagnostic.path).name: each.diagnostic.code for each in found}


def test_a_build_writes_the_modules_of_gradients_and_their_specs(spec: Path) -> None:
    built = build(spec, Path("out"), lowering=False)
    gradients = [f"one_grad_{operand}.{suffix}" for operand in "ab" for suffix in ("json", "py", "yaml")]
    assert names() == ["gemmgen_driver.py", "gemmgen_launch.py", "one.json", "one.py", *gradients]
    assert [each.module.name for each in (built, *built.gradients)] == [
        "one.py",
        "one_grad_a.py",
        "one_grad_b.py",
    ]
    assert [each["spec"] for each in cast(Any, built.as_dict())["gradients"]] == [
        "one_grad_a.yaml",
        "one_grad_b.yaml",
    ]
    assert states(spec) == {}
    # A gradient's module is what its spec generates, as of any other spec.
    assert make(Path("out/one_grad_b.yaml")).module == Path("out/one_grad_b.py").read_text()


def test_a_build_compiles_each_gradient_and_writes_nothing_if_one_fails(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gemmgen import build as module

    compiled: list[str] = []
    failing = ["one_grad_b"]

    def prove(product: Any, *, simulation: bool) -> Any:
        compiled.append(product.source.stem)
        if product.source.stem in failing:
            raise GemmgenError([])
        return Lowered(), None

    class Lowered:
        resources, artifacts = None, {"ptx": b"ptx"}

    monkeypatch.setattr(module, "_prove", prove)
    with pytest.raises(GemmgenError):
        build(spec, Path("out"))
    assert compiled == ["one", "one_grad_a", "one_grad_b"]
    assert not Path("out").exists()
    failing.clear()
    built = build(spec, Path("out"), emit=["ptx"])
    assert [path.name for path in built.gradients[0].artifacts] == ["one_grad_a.ptx"]
    assert {"one.ptx", "one_grad_a.ptx", "one_grad_b.ptx"} <= {*names()}


def test_check_has_an_opinion_on_every_file_of_a_gradient(spec: Path) -> None:
    write(make(spec), Path("out"))
    for name in names():
        path = Path("out", name)
        text = path.read_text()
        path.write_text(text + " ")
        assert states(spec) == {
            name: "hand-edited" if name.startswith("one") and name.endswith(".py") else "stale"
        }
        path.unlink()
        assert states(spec) == {name: "missing"}
        path.write_text(text)
    spec.write_text(spec_text().replace("backward: true\n", ""))
    orphans = {name: "orphaned" for name in names() if "_grad_" in name}
    assert states(spec) == {"one.json": "stale", "one.py": "stale", **orphans}


def test_a_spec_of_somebody_else_is_not_overwritten(spec: Path) -> None:
    Path("out").mkdir()
    Path("out/one_grad_a.yaml").write_text("title: mine\n")
    with pytest.raises(GemmgenError, match="foreign-file"):
        write(make(spec), Path("out"))
    assert names() == ["one_grad_a.yaml"]


# --- modules, and a CPU in the place of their kernels


@dataclass(frozen=True)
class Modules:
    """A module, and those of its gradients, imported as a user imports them."""

    forward: ModuleType
    of: dict[str, ModuleType]

    @property
    def operator(self) -> Any:
        return getattr(cast(Any, torch).ops.gemmgen, self.forward.__name__)


Import = Callable[..., Modules]


@pytest.fixture
def generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Makes modules of a spec's text, which is put beside them, and imports them."""
    cast(Any, monkeypatch).syspath_prepend(tmp_path)
    known = {*sys.modules}

    def imported(name: str, text: str) -> Modules:
        (tmp_path / f"{name}.yaml").write_text(text)
        write(make(tmp_path / f"{name}.yaml"), tmp_path)
        importlib.invalidate_caches()
        stems = (name, f"{name}_grad_a", f"{name}_grad_b")
        forward, a, b = (importlib.import_module(stem) for stem in stems)
        return Modules(forward, {"a": a, "b": b})

    yield imported
    for name in {*sys.modules} - known:
        if hasattr(sys.modules[name], "COMPUTES"):
            del sys.modules[name]


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """The committed modules, found where they are."""
    cast(Any, monkeypatch).syspath_prepend(module_file(STEM).parent)
    stems = (STEM, f"{STEM}_grad_a", f"{STEM}_grad_b")
    forward, a, b = (importlib.import_module(stem) for stem in stems)
    yield Modules(forward, {"a": a, "b": b})
    for stem in stems:
        sys.modules.pop(stem, None)


def on_the_cpu(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, forward: Callable[..., Tensor]
) -> list[str]:
    """Let the CPU compute what operators launch; return the operands of the gradients that it will.

    Each factor must lie as the plan of its kernel has it.
    """
    called: list[str] = []

    def run(*tensors: Tensor, **_: object) -> Tensor:
        return forward(*tensors)

    def product(operand: str, alpha: float) -> Callable[[Tensor, Tensor], Tensor]:
        plan = make(Path(modules.of[operand].__file__ or "").with_suffix(".yaml")).plan

        def multiply(a: Tensor, b: Tensor) -> Tensor:
            called.append(operand)
            for tensor, contiguous, major in ((a, 1, plan.problem.a.major), (b, 0, plan.problem.b.major)):
                assert tensor.stride(contiguous if major == "k" else 1 - contiguous) == 1
                assert tensor.storage_offset() % 8 == 0
            return alpha * (a @ b)

        return multiply

    for operand, module in modules.of.items():
        alpha = make(Path(module.__file__ or "").with_suffix(".yaml")).plan.problem.epilogue.alpha
        monkeypatch.setattr(module, "matmul", product(operand, alpha))
    modules.forward.call.run = run
    return called


def doubles(*shape: int, turned: bool = False) -> Tensor:
    """Random numbers that require grad, as a transposed view if they are turned."""
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.randn(*(reversed(shape) if turned else shape), generator=generator, dtype=torch.float64)
    return (made.T if turned else made).requires_grad_()


@every_major
def test_the_formula_is_the_derivative(
    generate: Import, monkeypatch: pytest.MonkeyPatch, a: str, b: str
) -> None:
    rest = "epilogue: {alpha: -2, beta: 0.5, ops: [row_bias, column_bias]}\n"
    modules = generate(f"all_{a}_{b}", spec_text(a, b, rest, c="  c: {dtype: fp16}\n"))

    def forward(a: Tensor, b: Tensor, c: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return -2 * (a @ b) + 0.5 * c + row[:, None] + column

    called = on_the_cpu(modules, monkeypatch, forward)
    given = doubles(8, 16, turned=a == "mn"), doubles(16, 24, turned=b == "k")
    assert gradcheck(modules.operator, (*given, doubles(8, 24), doubles(8), doubles(24)))
    assert {*called} == {"a", "b"}


def test_the_gradient_of_a_residual_is_that_of_d(generate: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = "epilogue: {ops: [column_bias, residual]}\n"
    modules = generate("with_residual", spec_text(rest=rest, c="  c: {dtype: fp16}\n"))

    def forward(a: Tensor, b: Tensor, c: Tensor, bias: Tensor) -> Tensor:
        return a @ b + bias + c

    on_the_cpu(modules, monkeypatch, forward)
    given = doubles(8, 16), doubles(16, 24, turned=True), doubles(8, 24), doubles(24)
    assert gradcheck(modules.operator, given)


def biased(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return a @ b + bias


@pytest.mark.parametrize("wanted", [("a",), ("b",), ("a", "b"), ("bias",)], ids="-".join)
def test_what_needs_no_gradient_is_not_computed_and_nothing_is_kept_for_it(
    generate: Import, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, ...]
) -> None:
    modules = generate("some", spec_text(rest="epilogue: {ops: [column_bias]}\n"))
    called = on_the_cpu(modules, monkeypatch, biased)
    given = {"a": doubles(8, 16), "b": doubles(16, 24, turned=True), "bias": doubles(24)}
    given = {name: tensor.detach().requires_grad_(name in wanted) for name, tensor in given.items()}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        d = modules.operator(*given.values())
    d.sum().backward()
    assert called == [name for name in wanted if name != "bias"]
    assert {tensor.shape for tensor in kept} == {given[{"a": "b", "b": "a"}[name]].shape for name in called}
    assert {name for name, tensor in given.items() if tensor.grad is not None} == {*wanted}


GRADIENTS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "rows": (lambda dense: dense, False),
    "expanded": (lambda dense: dense[:1, :1].expand(dense.shape), True),
    "columns": (lambda dense: dense.T.contiguous().T, True),
    "a part of longer rows": (lambda dense: torch.cat((dense, dense), 1)[:, 24:], False),
    "past an odd element": (
        lambda dense: torch.cat((dense.flatten()[:1], dense.flatten()))[1:].view(8, 24),
        True,
    ),
}
"""How a gradient of D may lie, and whether it is copied."""


@pytest.mark.parametrize("case", GRADIENTS)
def test_a_gradient_of_d_that_tma_cannot_stride_over_is_copied_and_no_other(
    generate: Import, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    modules = generate("laid_out", spec_text())
    on_the_cpu(modules, monkeypatch, torch.mm)
    read: list[Tensor] = []
    multiply = modules.of["a"].matmul

    def reading(a: Tensor, b: Tensor) -> Tensor:
        read.append(a)
        return multiply(a, b)

    monkeypatch.setattr(modules.of["a"], "matmul", reading)
    a, b = doubles(8, 16), doubles(16, 24, turned=True)
    lay, copied = GRADIENTS[case]
    grad = lay(doubles(8, 24).detach())
    modules.operator(a, b).backward(grad)
    assert (read[0].data_ptr() != grad.data_ptr()) == copied
    assert read[0].stride() == ((24, 1) if copied else grad.stride())
    torch.testing.assert_close((a.grad, b.grad), (grad @ b.T, a.T @ grad))


# --- what torch sees


def leaf(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


@every_major
@pytest.mark.parametrize("n", [24, 9])
def test_the_kernels_take_what_a_backward_passes_them(generate: Import, a: str, b: str, n: int) -> None:
    modules = generate(f"passed_{a}_{b}", spec_text(a, b))
    x = leaf(8, 16) if a == "k" else leaf(16, 8)
    w = leaf(n, 16) if b == "k" else leaf(16, -(-n // 8) * 8)[:, :n].detach().requires_grad_()
    d = modules.forward.matmul(x if a == "k" else x.T, w.T if b == "k" else w)
    assert (d.shape, d.stride(0)) == ((8, n), -(-n // 8) * 8)
    for tensor, gradient in zip((x, w), torch.autograd.grad(d.sum(), (x, w)), strict=True):
        assert (gradient.shape, gradient.stride()) == (tensor.shape, tensor.stride())


def test_rows_of_any_length_have_gradients_where_they_are_copied(generate: Import) -> None:
    modules = generate("copying", spec_text(c="  misaligned: copy\n"))
    x, w = leaf(7, 13), leaf(11, 13)
    modules.forward.matmul(x, w.T).sum().backward()
    assert [tensor.grad is not None and tensor.grad.shape for tensor in (x, w)] == [(7, 13), (11, 13)]


def test_no_rows_have_gradients_of_zeros(linear: Modules) -> None:
    x, w = leaf(0, 16, dtype=BF16), leaf(24, 16, dtype=BF16)
    linear.forward.matmul(x, w.T).sum().backward()
    assert [tensor.grad is not None and tensor.grad.shape for tensor in (x, w)] == [(0, 16), (24, 16)]


@pytest.mark.parametrize("n", [24, 9])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_is_compiled_with_the_operators_of_its_gradients(
    linear: Modules, n: int, dynamic: bool
) -> None:
    graphs: list[list[str]] = []

    def keeping(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if "gemmgen" in str(node.target)])
        return boxed(graph)

    boxed = importlib.import_module("functorch.compile").make_boxed_func
    aot_autograd = importlib.import_module("torch._dynamo.backends.common").aot_autograd
    dynamo.reset()

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return linear.forward.matmul(x, w.T)

    call = compiled(layer, fullgraph=True, dynamic=dynamic, backend=aot_autograd(fw_compiler=keeping))
    x, w = leaf(8, 16, dtype=BF16), leaf(n, 16, dtype=BF16)
    call(x, w).sum().backward()
    gradients = [f"gemmgen.{STEM}_grad_{operand}.default" for operand in "ab"]
    assert [graphs[0], sorted(graphs[1])] == [[f"gemmgen.{STEM}.default"], gradients]
    assert x.grad is not None
    assert w.grad is not None
    assert (x.grad.shape, w.grad.stride()) == ((8, 16), (16, 1))
    graphs.clear()
    call(x.detach(), w).sum().backward()
    assert graphs == [[f"gemmgen.{STEM}.default"], gradients[1:]]


def test_a_backward_that_is_compiled_first_finds_its_operators() -> None:
    program = (
        "import sys, torch\n"
        "sys.path.insert(0, 'generated')\n"
        f"import {STEM}\n"
        "of = {'dtype': torch.bfloat16, 'device': 'meta', 'requires_grad': True}\n"
        "x, w = torch.empty(8, 16, **of), torch.empty(24, 16, **of)\n"
        f"matmul = torch.compile({STEM}.matmul, fullgraph=True, backend='aot_eager')\n"
        "matmul(x, w.T).sum().backward()\n"
        "print(w.grad.shape)\n"
    )
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.stdout == "torch.Size([24, 16])\n", found.stderr


@pytest.mark.parametrize("learning", [False, True])
def test_torch_s_own_checks_of_the_operator_pass(linear: Modules, learning: bool) -> None:
    x, w = (leaf(n, 16, dtype=BF16).detach() for n in (8, 24))
    operands = tuple(operand.requires_grad_(learning) for operand in (x, w.T))  # leaves, whose grad is read
    assert {*opcheck(linear.operator.default, operands).values()} == {"SUCCESS"}


def test_without_gradients_a_call_is_replayed_past_torch(
    linear: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = on_a_fake_driver(linear.forward, monkeypatch)
    a, b, out = (
        torch.zeros(rows, columns, dtype=BF16).as_subclass(Cuda)
        for rows, columns in ((4, 16), (24, 16), (4, 24))
    )
    for _ in range(3):
        linear.forward.matmul(a, b.T, out=out)
    a.requires_grad_()
    with torch.no_grad():
        for _ in range(3):
            linear.forward.matmul(a, b.T, out=out)
    assert (len(driver.jit), len(driver.direct)) == (2, 4)  # each kind of tensor is prepared once


# --- what is refused


def summed(modules: Modules, w: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function of A alone, with a number for its result."""

    def f(x: Tensor) -> Tensor:
        return modules.forward.matmul(x, w.detach().T).sum()

    return f


REFUSED: dict[str, tuple[Callable[[Modules, Tensor, Tensor], object], type[Exception], str]] = {
    "out": (
        lambda modules, x, w: modules.forward.matmul(x, w.T, out=leaf(8, 24, dtype=BF16).detach()),
        ValueError,
        "^a must not require grad: out has no backward$",
    ),
    "a second derivative": (
        lambda modules, x, w: torch.autograd.grad(modules.forward.matmul(x, w.T).sum(), x, create_graph=True),
        RuntimeError,
        "^there is no second derivative: call backward without create_graph$",
    ),
    "grad": (
        lambda modules, x, w: torch.func.grad(summed(modules, w))(x.detach()),
        ValueError,
        "^a must be outside of vmap, grad and jvp: there is no rule for them$",
    ),
    "jvp": (
        lambda modules, x, w: torch.func.jvp(summed(modules, w), (x.detach(),), (x.detach(),)),
        ValueError,
        "^a must be no forward-AD dual: there is no derivative$",
    ),
    "a CPU": (
        lambda modules, x, w: modules.forward.matmul(torch.zeros_like(x, device="cpu").requires_grad_(), w.T),
        ValueError,
        "^a must be on a CUDA device, found cpu$",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_what_has_no_backward_is_refused_in_words(linear: Modules, case: str) -> None:
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        call(linear, leaf(8, 16, dtype=BF16), leaf(24, 16, dtype=BF16))


def test_a_module_whose_gradients_are_not_beside_it_multiplies_and_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "alone.py"
    text = module_file(STEM).read_text()
    path.write_text(
        text.replace(f'"{STEM}", ARGUMENTS', '"alone", ARGUMENTS').replace(
            f"gemmgen.{STEM} ", "gemmgen.alone "
        )
    )
    alone = import_generated(path)
    x, w = leaf(8, 16, dtype=BF16), leaf(24, 16, dtype=BF16)
    assert alone.matmul(x.detach(), w.detach().T).shape == (8, 24)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'alone_grad_a'$"):
        alone.matmul(x, w.T)


def test_a_module_of_a_package_finds_its_gradients_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kernels_of_a_package"
    write(made(spec_file(STEM)), package)
    (package / "__init__.py").touch()
    cast(Any, monkeypatch).syspath_prepend(tmp_path)
    module = importlib.import_module(f"{package.name}.{STEM}")
    w = leaf(24, 16, dtype=BF16)
    module.matmul(leaf(8, 16, dtype=BF16), w.T).sum().backward()
    assert w.grad is not None
    assert f"{package.name}.{STEM}_grad_b" in sys.modules


def test_modules_of_one_name_with_and_without_a_backward_take_turns(tmp_path: Path) -> None:
    paths = [tmp_path / "without" / "turns.py", tmp_path / "with" / "turns.py"]
    for path, stem in zip(paths, ("h100_bf16", STEM), strict=True):
        path.parent.mkdir()
        path.write_bytes(module_file(stem).read_bytes())
    x, w = leaf(8, 16, dtype=BF16), leaf(24, 16, dtype=BF16)
    for path in [*paths, *paths]:
        import_generated(path)
        operator = cast(Any, torch).ops.gemmgen.turns
        assert operator(x.detach(), w.detach().T).shape == (8, 24)
        with pytest.raises((ValueError, ModuleNotFoundError)) as caught:
            operator(x, w.T)
        lacking = "No module named 'turns_grad_a'" if path.parent.name == "with" else "no backward"
        assert lacking in str(caught.value)


# --- a layer


class Asked(TorchDispatchMode):
    """Notes which operators are called."""

    def __init__(self) -> None:
        cast(Any, super()).__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_module_with_a_backward_says_that_it_takes_what_requires_grad_without_an_out(
    linear: Modules,
) -> None:
    x, w, out = leaf(8, 16, dtype=BF16), leaf(24, 16, dtype=BF16), leaf(8, 24, dtype=BF16).detach()
    assert can_implement(linear.forward, x, w.T) == (True, "")
    assert can_implement(linear.forward, x, w.T, out=out)[1] == "a must not require grad: out has no backward"
    with torch.no_grad():
        assert can_implement(linear.forward, x, w.T, out=out) == (True, "")


@pytest.mark.parametrize("compiling", [False, True])
def test_a_layer_of_a_module_with_a_backward_is_trained_by_kernels(linear: Modules, compiling: bool) -> None:
    layer = Linear(16, 24, bias=False, kernel=linear.forward, device="meta", dtype=BF16)
    x = leaf(2, 3, 16, dtype=BF16)
    dynamo.reset()
    y = (compiled(layer, fullgraph=True, backend="aot_eager") if compiling else layer)(x)
    assert layer.reason == ""
    with Asked() as asked:
        y.sum().backward()
    assert {f"gemmgen.{STEM}_grad_{operand}.default" for operand in "ab"} <= {*asked.names}
    assert layer.weight.grad is not None
    assert (x.grad is not None and x.grad.shape, layer.weight.grad.stride()) == ((2, 3, 16), (16, 1))


# --- on a GPU

gpu = pytest.mark.gpu


def seeded(seed: int) -> None:
    cast(Any, torch).manual_seed(seed)


def signs(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """-1, 0 and 1: with so few summands, every result is exact."""
    return torch.randint(-1, 2, shape, device="cuda").to(dtype)


def learning(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


@gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead"])
@pytest.mark.parametrize("n", [256, 43])
def test_gradients_are_those_of_torch_on_a_gpu(linear: Modules, mode: str, n: int) -> None:
    dynamo.reset()
    matmul = linear.forward.matmul

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return matmul(x, w.T)

    call = layer if mode == "eager" else compiled(layer, fullgraph=True, mode=mode)
    for seed in range(4):
        seeded(seed)
        x, w = learning(signs(120, 64)), learning(signs(n, 64))
        grad = signs(1 + 120 * n)[seed % 2 :][: 120 * n].view(120, n)  # at an odd element, every other time
        d = call(x, w)
        assert torch.equal(d, x @ w.T)
        cast(Any, d).backward(grad)
        assert x.grad is not None
        assert w.grad is not None
        assert torch.equal(x.grad, grad @ w)
        assert torch.equal(w.grad, grad.T @ x)
        assert w.grad.is_contiguous()


@gpu
@every_major
def test_gradients_of_every_layout_are_those_of_torch_on_a_gpu(generate: Import, a: str, b: str) -> None:
    rest = "epilogue: {alpha: -2, beta: 0.5, ops: [row_bias, column_bias]}\n"
    modules = generate(f"gpu_{a}_{b}", spec_text(a, b, rest, c="  c: {dtype: fp16}\n"))
    half = torch.float16
    x = signs(64, 48, dtype=half) if a == "k" else signs(48, 64, dtype=half).T
    w = signs(48, 80, dtype=half) if b == "mn" else signs(80, 48, dtype=half).T
    given = [learning(t) for t in (x, w, *(signs(*shape, dtype=half) for shape in ((64, 80), (64,), (80,))))]
    copies = [learning(tensor) for tensor in given]
    x, w, c, row, column = given
    d = modules.forward.matmul(x, w, c=c, row_bias=row, column_bias=column)
    x, w, c, row, column = copies
    expected = -2 * (x @ w) + 0.5 * c + row[:, None] + column
    assert torch.equal(d, expected)
    dense = signs(64, 80, dtype=half)
    for grad in (dense, dense[:1, :1].expand(dense.shape), dense.T.contiguous().T):
        found = torch.autograd.grad(d, given, grad, retain_graph=True)
        right = torch.autograd.grad(expected, copies, grad, retain_graph=True)
        assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))
        assert [one.stride() for one in found[:2]] == [tensor.stride() for tensor in given[:2]]


@gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("compiling", [False, True])
def test_a_model_learns_as_torch_s_does_on_a_gpu(linear: Modules, compiling: bool) -> None:
    seeded(0)
    theirs = torch.nn.Linear(256, 128, bias=False, device="cuda", dtype=BF16)
    ours = Linear.of(torch.nn.Linear(256, 128, bias=False, device="cuda", dtype=BF16), linear.forward)
    ours.load_state_dict(theirs.state_dict())
    dynamo.reset()
    call: Any = compiled(ours, fullgraph=True) if compiling else ours
    models: list[tuple[Any, torch.nn.Module]] = [(theirs, theirs), (call, ours)]
    losses: list[list[float]] = []
    x, wanted = (
        torch.randn(4, 100, 256, device="cuda", dtype=BF16),
        torch.randn(4, 100, 128, device="cuda", dtype=BF16),
    )
    for model, layer in models:
        optimizer: Any = cast(Any, torch).optim.SGD(layer.parameters(), lr=1e-1)
        losses.append([])
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(x) - wanted).float().square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss))
    assert ours.reason == ""
    assert losses[1][-1] < losses[1][0]
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-2, atol=1e-3)


@gpu
def test_backward_kernels_are_replayed_past_triton_on_a_gpu(linear: Modules) -> None:
    x, w, grad = learning(signs(120, 64)), learning(signs(256, 64)), signs(120, 256)
    kept: list[bool] = []

    def look(_: Tensor) -> None:
        """Look in the thread of the backward, which has parameters of its own."""
        kept.append(any(module.call.known.of_thread.ready for module in linear.of.values()))

    cast(Any, x).register_hook(look)
    for _ in range(5):
        found = torch.autograd.grad(linear.forward.matmul(x, w.T), (x, w), grad)
        assert torch.equal(found[0], grad @ w)
        del found
    assert kept == [True] * 5
    assert linear.forward.call.known.of_thread.ready


@gpu
def test_torch_s_own_checks_of_the_operator_pass_on_the_gpu(linear: Modules) -> None:
    operands = learning(signs(120, 64)), learning(signs(256, 64).T)  # leaves, whose grad is read
    assert {*opcheck(linear.operator.default, operands).values()} == {"SUCCESS"}
