"""The operator of a generated module: what torch's compilers, tracers and transforms find in its place.

All but the launch is tested without a GPU, on fake tensors; the tests of the last section need one.
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import math
import os
import pickle
import subprocess
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from drawn import random_inputs
from fake_gpu import Cuda, on_a_fake_gpu
from fake_triton import FakeDriver, on_a_fake_driver
from modules import SPECS, libraries_folder, made, module_file, spec_file
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import gemmgen_launch
from gemmgen.device import captured_graph
from gemmgen.module import import_generated, matmul_of
from gemmgen.plan.access import TensorAccess
from gemmgen.verify.shapes import single_tile

ROOT = Path(__file__).parent.parent
STEM = "h100_bf16"
BF16 = torch.bfloat16
dynamo: Any = cast(Any, torch)._dynamo
compiled: Any = cast(Any, torch).compile
export: Any = cast(Any, torch).export.export
opcheck: Any = cast(Any, torch).library.opcheck
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
"""What torch checks of an operator."""


KINDS = (
    "h100_bf16_bias_gelu",
    "h100_e4m3_scaled",
    "h100_bf16_residual",
    "h100_bf16_split8_bias",
    "h100_bf16_split8_atomic",
    "b200_mxfp8",
    "b200_nvfp4_residual",
    "h100_bf16_misaligned",
    "h100_bf16_single_tile",
    "h100_bf16_backward",
    "h100_e4m3_gated_scaled",
)
"""A module of each kind that takes more than A, B and D, divides K, copies, takes one tile, or learns."""


@dataclass(frozen=True)
class Call:
    """A module, imported as its name, and arguments of `matmul` by name, in the order of its operator."""

    stem: str
    module: ModuleType
    arguments: dict[str, Tensor]
    d: torch.dtype

    @classmethod
    def of(cls, stem: str, m: int = 4, n: int = 32, device: str = "meta") -> Call:
        """Return a call with random tensors; those without memory have the strides of such."""
        spec, module = made(spec_file(stem)).source, import_generated(module_file(stem))
        k = min(128, (single_tile(spec) or (0, 0, 128))[2])
        generator = torch.Generator("cpu" if device == "meta" else device).manual_seed(1)
        inputs = random_inputs((m, n, k), spec.problem, generator)
        arguments = {"a": inputs.a, "b": inputs.b, **inputs.extras}
        if device == "meta":
            arguments = {name: on_meta(tensor) for name, tensor in arguments.items()}
        names = [name for name in arguments if name in ("a", "b")]
        names += [name for name in module.ARGUMENTS if name in inputs.extras]
        return cls(stem, module, {name: arguments[name] for name in names}, module.ARGUMENTS["out"]["dtype"])

    def __call__(self, *tensors: Tensor, **options: Any) -> Tensor:
        """Return D of `matmul`, with other tensors if they are given in the order of the operator."""
        given = dict(zip(self.arguments, tensors or self.arguments.values(), strict=True))
        a, b = given.pop("a"), given.pop("b")
        found: Any = self.module.matmul(a, b, **given, **options)
        return found if isinstance(found, Tensor) else found[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arguments in the order of the operator."""
        return tuple(self.arguments.values())


def on_meta(tensor: Tensor) -> Tensor:
    """A tensor without memory that lies as this one does."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A call of a module of each kind, without memory."""
    call = Call.of(request.param)
    monkeypatch.setitem(sys.modules, call.stem, call.module)
    return call


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that is registered as one that is imported: torch.compile looks it up."""
    module = import_generated(module_file(STEM))
    monkeypatch.setitem(sys.modules, STEM, module)
    return module


def operator_of(stem: str) -> Any:
    return getattr(cast(Any, torch).ops.gemmgen, stem)


def on_a_gpu(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """A fake tensor; only while its mode is active."""
    return torch.empty(shape, dtype=dtype, device="cuda:0")


# --- what it is


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_module_is_an_operator_that_takes_what_matmul_does(path: Path) -> None:
    module = import_generated(module_file(path.stem))
    results = ("out", "saved")
    taken = [
        name for name in inspect.signature(module.matmul).parameters if name not in ("workspace", *results)
    ]
    operator = operator_of(path.stem)
    assert operator.overloads() == ["default", "out"]
    for schema in (operator.default._schema, operator.out._schema):
        assert [argument.name for argument in schema.arguments if argument.name not in results] == taken
    assert ("workspace" in inspect.signature(module.matmul).parameters) == hasattr(module, "make_workspace")


def test_its_schema_and_tags_say_what_it_reads_and_writes(module: ModuleType) -> None:
    operator = operator_of(STEM)
    assert operator.overloads() == ["default", "out"]
    assert str(operator.default._schema) == "gemmgen::h100_bf16(Tensor a, Tensor b) -> Tensor"
    out = "gemmgen::h100_bf16.out(Tensor a, Tensor b, *, Tensor(a!) out) -> ()"
    assert str(operator.out._schema) == out
    tags = {torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides}
    assert {*operator.default.tags} == {*operator.out.tags} == tags


def test_handles_of_an_operator_call_the_module_that_was_executed_last(module: ModuleType) -> None:
    operator = operator_of(STEM)
    handle = operator.default
    with FakeTensorMode():
        assert handle(on_a_gpu(4, 16), on_a_gpu(24, 16).T).shape == (4, 24)
        second = import_generated(module_file(STEM))
        for matmul in (matmul_of(module), matmul_of(second), operator_of(STEM), handle):
            assert matmul(on_a_gpu(4, 16), on_a_gpu(24, 16).T).shape == (4, 24)
    called: list[Tensor] = []

    def call(a: Tensor, *_: object, **__: object) -> None:
        called.append(a)

    second.call.run = call
    operator.out(torch.empty(4, 16), torch.empty(16, 24), out=torch.empty(4, 24))
    assert len(called) == 1


def test_a_module_of_a_known_name_with_other_arguments_has_another_operator(tmp_path: Path) -> None:
    paths = [tmp_path / "first" / "same.py", tmp_path / "second" / "same.py"]
    for path, stem in zip(paths, (STEM, "h100_bf16_bias_gelu"), strict=True):
        path.parent.mkdir()
        path.write_bytes(module_file(stem).read_bytes())
    for path, vectors in [(paths[0], 0), (paths[1], 1), (paths[0], 0)]:
        import_generated(path)
        with FakeTensorMode():
            extras = [on_a_gpu(24)] * vectors
            assert operator_of("same")(on_a_gpu(4, 16), on_a_gpu(24, 16).T, *extras).shape == (4, 24)


def test_a_library_and_a_module_of_its_name_become_the_operator_by_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h200_bf16.py"
    path.write_bytes(module_file(STEM).read_bytes())
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    library = import_module("h200_bf16")
    for execute in [lambda: import_generated(path), lambda: reload(library)] * 2:
        execute()
        with FakeTensorMode():
            assert operator_of("h200_bf16")(on_a_gpu(4, 16), on_a_gpu(24, 16).T).shape == (4, 24)


def test_importing_takes_no_gpu_and_imports_nothing_beside_torch_and_triton() -> None:
    program = (
        "import sys, torch, triton, triton.experimental.gluon.language\n"
        "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor\n"
        "sys.path.insert(0, 'generated')\n"
        "before = {*sys.modules}\n"
        "import h100_bf16\n"
        "print(torch.cuda.is_initialized(), *sorted({*sys.modules} - before))\n"
    )
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    initialized, *imported = found.stdout.split()
    assert initialized == "False"
    others = {name for name in imported if name.partition(".")[0] not in {"torch", *sys.stdlib_module_names}}
    assert others == {"gemmgen_driver", "gemmgen_launch", "gemmgen_operators", "h100_bf16"}


# --- what it gives without a launch


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_fake_result_has_the_strides_of_a_real_one(path: Path) -> None:
    multiple = TensorAccess(made(path).source.problem).n_multiple
    for n in (max(32, multiple), 9 * multiple):
        call = Call.of(path.stem, n=n)
        unit = 16 // call.d.itemsize
        d = call()
        d = d[0] if isinstance(d, tuple) else d  # without saved sums
        columns = made(path).source.problem.d_blocks * n
        assert (d.shape, d.dtype, d.stride()) == ((4, columns), call.d, (-(-columns // unit) * unit, 1))
        assert d.device.type == "meta"
    width = max(32, multiple)
    out = torch.empty(4, width * made(path).source.problem.d_blocks, dtype=call.d, device="meta")
    result = Call.of(path.stem, n=width)(out=out)
    assert (result[0] if isinstance(result, tuple) else result) is out


def test_a_fake_result_is_on_the_device_of_its_operands(module: ModuleType) -> None:
    with FakeTensorMode():
        d = matmul_of(module)(on_a_gpu(4, 16), on_a_gpu(9, 16).T)
        assert (d.shape, d.stride(), d.device) == ((4, 9), (16, 1), torch.device("cuda", 0))


def test_meta_tensors_give_a_meta_tensor(module: ModuleType) -> None:
    a, b = torch.empty(4, 16, dtype=BF16, device="meta"), torch.empty(9, 16, dtype=BF16, device="meta").T
    result = matmul_of(module)(a, b)
    assert (result.shape, result.stride(), result.device.type) == ((4, 9), (16, 1), "meta")
    out = torch.empty(4, 24, dtype=BF16, device="meta")
    assert matmul_of(module)(a, b[:, :8], out=out[:, :8]).shape == (4, 8)
    with pytest.raises(ValueError, match=r"^b must have shape \[16, 9\], found \[8, 9\]$"):
        matmul_of(module)(a, b[:8])


def mlp_of(module: ModuleType) -> torch.nn.Module:
    """Two layers, with their weights on the device that is the default."""
    matmul = matmul_of(module)

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Parameter(torch.empty(256, 64, dtype=BF16))
            self.down = torch.nn.Parameter(torch.empty(72, 256, dtype=BF16))

        def forward(self, x: Tensor) -> Tensor:
            return matmul(torch.relu(matmul(x, self.up.T)), self.down.T)

    return Mlp().requires_grad_(requires_grad=False)


def operators_in(graph: torch.fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if "gemmgen" in str(node.target)]


TWO_LAYERS = [f"gemmgen.{STEM}.default"] * 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_is_exported_with_its_operators(module: ModuleType, strict: bool) -> None:
    with torch.device("meta"):
        model, x = mlp_of(module), torch.empty(128, 64, dtype=BF16)
    rows = cast(Any, torch).export.Dim("rows", min=2, max=4096)
    program = export(model, (x,), dynamic_shapes=({0: rows},), strict=strict)
    assert operators_in(program.graph) == TWO_LAYERS
    (result,) = (node for node in program.graph.nodes if node.op == "output")
    assert str(result.args[0][0].meta["val"].shape[1]) == "72"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_model_is_compiled_as_one_graph_for_any_rows(module: ModuleType, backend: str) -> None:
    graphs: list[list[str]] = []

    def keeping(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if "gemmgen" in str(node.target)])
        return dynamo.lookup_backend(backend)(graph, inputs)

    with torch.device("meta"):
        model, x = mlp_of(module), torch.empty(128, 64, dtype=BF16)
    dynamo.reset()
    dynamo.mark_dynamic(x, 0)
    call = compiled(model, fullgraph=True, backend=keeping)
    for rows in (128, 100, 3):
        result = call(x[:rows] if rows < 128 else x)
        assert (result.shape, result.stride()) == ((rows, 72), (72, 1))
    assert graphs == [[f"gemmgen.{STEM}"] * 2]


def test_tracing_records_the_operator(module: ModuleType) -> None:
    def layer(a: Tensor, b: Tensor) -> Tensor:
        return matmul_of(module)(a, b.T)

    with FakeTensorMode():
        fake = on_a_gpu(4, 16), on_a_gpu(24, 16)
        graphs = [make_fx(layer)(*fake)]
    real = torch.empty(4, 16, dtype=BF16, device="meta"), torch.empty(24, 16, dtype=BF16, device="meta")
    graphs += [make_fx(layer, tracing_mode=mode)(*real) for mode in ("fake", "symbolic")]
    assert [operators_in(graph.graph) for graph in graphs] == [[f"gemmgen.{STEM}.default"]] * 3


def test_an_output_that_is_given_is_mutated_in_a_graph(module: ModuleType) -> None:
    def layer(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        return matmul_of(module)(a, b, out=out)

    with torch.device("meta"):
        arguments = (
            torch.empty(4, 16, dtype=BF16),
            torch.empty(24, 16, dtype=BF16).T,
            torch.empty(4, 24, dtype=BF16),
        )
    dynamo.reset()
    result = compiled(layer, fullgraph=True, backend="aot_eager")(*arguments)
    assert result.shape == (4, 24)
    assert result._base is None or result._base is arguments[2]


FAKE_CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic", "test_autograd_registration")


@pytest.mark.parametrize("n", [24, 9])
def test_torch_s_own_checks_of_operators_pass(module: ModuleType, n: int) -> None:
    a, b = torch.empty(4, 16, dtype=BF16, device="meta"), torch.empty(n, 16, dtype=BF16, device="meta").T
    assert {*opcheck(operator_of(STEM).default, (a, b), test_utils=FAKE_CHECKS).values()} == {"SUCCESS"}
    out = {"out": torch.empty(4, 24, dtype=BF16, device="meta")}
    if n == 24:
        assert {*opcheck(operator_of(STEM).out, (a, b), out, test_utils=FAKE_CHECKS).values()} == {"SUCCESS"}


def test_each_kind_is_compiled_as_one_graph(kind: Call) -> None:
    graphs: list[list[str]] = []

    def keeping(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if "gemmgen" in str(node.target)])
        return dynamo.lookup_backend("aot_eager")(graph, inputs)

    dynamo.reset()
    result = compiled(kind.__call__, fullgraph=True, backend=keeping)(*kind.tensors)
    assert (result.shape, result.dtype) == ((4, 32), kind.d)
    assert graphs == [[f"gemmgen.{kind.stem}"]]


def test_each_kind_is_exported(kind: Call) -> None:
    class Layer(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return kind(*tensors)

    program = export(Layer(), kind.tensors, strict=False)
    assert operators_in(program.graph) == [f"gemmgen.{kind.stem}.default"]


def test_each_kind_passes_torch_s_own_checks(kind: Call) -> None:
    operator, out = operator_of(kind.stem), torch.empty(4, 32, dtype=kind.d, device="meta")
    for found in (
        opcheck(operator.default, kind.tensors, test_utils=FAKE_CHECKS),
        opcheck(operator.out, kind.tensors, {"out": out}, test_utils=FAKE_CHECKS),
    ):
        assert {*found.values()} == {"SUCCESS"}


def test_a_workspace_that_is_given_does_not_keep_a_graph_from_being_traced() -> None:
    call = Call.of("h100_bf16_split8_bias")
    workspace = call.module.make_workspace(4, 32, "meta")
    program = make_fx(lambda *tensors: call(*tensors, workspace=workspace))(*call.tensors)
    assert operators_in(program.graph) == [f"gemmgen.{call.stem}.default"]


# --- what it refuses


def test_a_transform_of_each_kind_is_refused(kind: Call) -> None:
    def layer(a: Tensor) -> Tensor:
        return kind(a, *kind.tensors[1:])

    with pytest.raises(
        ValueError, match=r"^a must be outside of vmap, grad and jvp: there is no rule for them$"
    ):
        torch.func.vmap(layer)(kind.tensors[0][None])


def test_the_operator_refuses_what_the_function_refuses(module: ModuleType) -> None:
    a, b = torch.zeros(4, 16, dtype=BF16), torch.zeros(24, 16, dtype=BF16).T
    with pytest.raises(ValueError, match=r"^a must be on a CUDA device, found cpu$"):
        operator_of(STEM)(a, b)
    with pytest.raises(TypeError, match=r"^b must be a tensor of torch.bfloat16, found torch.int8$"):
        operator_of(STEM)(a.as_subclass(Cuda), b.char().as_subclass(Cuda))


def test_a_compiled_call_with_a_gradient_says_that_there_is_no_backward(module: ModuleType) -> None:
    dynamo.reset()
    a = torch.empty(4, 16, dtype=BF16, device="meta", requires_grad=True)
    b = torch.empty(24, 16, dtype=BF16, device="meta").T
    text = r"a must not require grad \(no backward\): detach it"
    with pytest.raises(Exception, match=text):
        compiled(matmul_of(module), fullgraph=True, backend="aot_eager")(a, b)
    with torch.no_grad():
        assert matmul_of(module)(a, b).shape == (4, 24)


def summed(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x).sum()


Transform = Callable[[Callable[[Tensor], Tensor], Tensor], object]
TRANSFORMS: dict[str, Transform] = {
    "vmap": lambda f, x: torch.func.vmap(f)(x[None]),
    "grad": lambda f, x: torch.func.grad(summed(f))(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_transforms_are_refused(module: ModuleType, name: str) -> None:
    a = torch.zeros(4, 16, dtype=BF16, device="meta")
    b = torch.empty(24, 16, dtype=BF16, device="meta").T
    text = "be outside of vmap, grad and jvp|not require grad|be no forward-AD dual"
    with pytest.raises(ValueError, match=f"^a must ({text})"):
        TRANSFORMS[name](lambda x: matmul_of(module)(x, b), a)


class Asked(Tensor):
    """A tensor with a dispatch of its own, which keeps what it was asked for."""

    asked: list[str]

    @staticmethod
    def __new__(cls: type[Asked], inner: Tensor) -> Asked:
        make: Any = Tensor._make_wrapper_subclass  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportPrivateUsage]
        return make(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device="cuda:0")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.asked.append(str(func))
        return "its own answer"


def test_a_tensor_with_a_dispatch_of_its_own_is_asked(module: ModuleType) -> None:
    Asked.asked = []
    b = torch.zeros(24, 16, dtype=BF16).T
    matmul: Any = matmul_of(module)
    with pytest.raises(RuntimeError, match="Unable to cast"):
        matmul(Asked(torch.zeros(4, 16, dtype=BF16)), b)
    assert Asked.asked == [f"gemmgen.{STEM}.default"]


def test_a_dtensor_is_refused_by_torch() -> None:
    program = (
        "import sys, torch, torch.distributed\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "from torch.distributed.tensor import DTensor, Replicate, init_device_mesh\n"
        "sys.path.insert(0, 'generated')\n"
        "import h100_bf16\n"
        "torch.distributed.init_process_group('fake', store=FakeStore(), rank=0, world_size=2)\n"
        "mesh = init_device_mesh('cpu', (2,))\n"
        "a, b = (torch.zeros(n, 16, dtype=torch.bfloat16) for n in (4, 24))\n"
        "a, b = (DTensor.from_local(tensor, mesh, [Replicate()]) for tensor in (a, b))\n"
        "h100_bf16.matmul(a, b.T)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert f"gemmgen.{STEM}.default does not have a sharding strategy" in found.stderr


# --- what a launch past Triton depends on


@pytest.fixture
def driver(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return on_a_fake_driver(module, monkeypatch)


def matrices(n: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and D on a GPU that is not there."""
    a, b, d = (torch.zeros(rows, columns, dtype=BF16) for rows, columns in ((4, 16), (n, 16), (4, n)))
    return a.as_subclass(Cuda), b.as_subclass(Cuda).T, d.as_subclass(Cuda)


def test_another_layout_type_or_place_is_checked_again(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    for _ in range(2):
        matmul(a, b, out=out)
    assert (len(driver.jit), len(driver.direct)) == (1, 1)
    for other in (a.clone(), a[:3], a[:2]):
        matmul(other, b, out=out[: len(other)])
    assert (len(driver.jit), len(driver.direct)) == (3, 2)
    with pytest.raises(TypeError, match=r"found torch\.float16"):
        matmul(a.view(torch.float16), b, out=out)
    with pytest.raises(ValueError, match="not require grad"):
        matmul(a.requires_grad_(), b, out=out)
    with torch.no_grad():
        for _ in range(3):
            matmul(a, b, out=out)
    assert (len(driver.jit), len(driver.direct)) == (4, 4)  # a parameter where there are no gradients


def test_another_layout_at_the_same_place_is_checked_once(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (_, b, out) = matmul_of(module), matrices()
    memory = torch.zeros(4, 32, dtype=BF16)
    dense, apart = (memory.as_strided((4, 16), (stride, 1)).as_subclass(Cuda) for stride in (16, 32))
    for a in (dense, apart, dense):  # of the same address and shape
        for _ in range(3):
            matmul(a, b, out=out)
    assert (len(driver.jit), len(driver.direct)) == (2, 7)
    strides = [launch.parameters[0].strides for launch in driver.direct]
    assert strides == [(32,)] * 2 + [(64,)] * 2 + [(32,)] * 3  # in bytes


@pytest.mark.parametrize("stem", [STEM, "h100_bf16_split8_bias"])
def test_a_call_for_a_shape_alone_asks_cuda_nothing(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has used CUDA cannot be forked by one that will."""
    asked: list[tuple[Any, ...]] = []

    def ask(*given: Any) -> None:
        asked.append(given)

    monkeypatch.setattr(torch.cuda, "current_device", ask)
    monkeypatch.setattr(gemmgen_launch, "current_stream", ask)
    call = Call.of(stem, m=48, n=64, device="meta")
    assert operator_of(stem)(*call.tensors).shape == (48, 64)
    assert asked == []


def test_rows_of_one_buffer_are_each_prepared_once(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    for _ in range(3):
        for rows in (1, 2, 3, 4):
            matmul(a[:rows], b, out=out[:rows])
    assert (len(driver.jit), len(driver.direct)) == (4, 8)


def test_a_tensor_of_another_type_is_checked_again(module: ModuleType, driver: FakeDriver) -> None:
    class Other(Cuda):
        """As Cuda, and not the same."""

    matmul, (a, b, out) = matmul_of(module), matrices()
    for _ in range(2):
        matmul(a, b, out=out)
    matmul(a.as_subclass(Other), b, out=out)
    assert (len(driver.jit), len(driver.direct)) == (2, 1)


def test_a_matrix_that_is_both_operands_has_parameters_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two matrices of the same shape are no such call: each has its address."""
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file("h100_bf16_nn"))
    driver = on_a_fake_driver(module, monkeypatch)
    square, out = (torch.zeros(16, 16, dtype=BF16).as_subclass(Cuda) for _ in range(2))
    for _ in range(3):
        assert matmul_of(module)(square, square, out=out) is out
    assert (len(driver.jit), len(driver.direct)) == (1, 2)
    other = square.clone()
    for _ in range(3):
        matmul_of(module)(square, other, out=out)
    assert (len(driver.jit), len(driver.direct)) == (2, 4)
    addresses = [[launch.parameters[place].address for place in (0, 5)] for launch in driver.direct[1:3]]
    assert addresses == [[square.data_ptr()] * 2, [square.data_ptr(), other.data_ptr()]]


def test_a_result_of_its_own_is_allocated_and_described(
    module: ModuleType, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    matmul, (a, b, _) = matmul_of(module), matrices(9)
    blocks = [torch.zeros(64, dtype=BF16)]

    def allocated(extents: tuple[int, int]) -> Tensor:
        rows, columns = extents
        return blocks[-1][: rows * columns].view(rows, columns).as_subclass(Cuda)

    def new_empty(_: Tensor, extents: tuple[int, int], dtype: torch.dtype) -> Tensor:
        assert dtype == BF16
        return allocated(extents)

    def empty_strided(extents: tuple[int, int], strides: tuple[int, int], **options: Any) -> Tensor:
        assert (strides, options["dtype"], str(options["device"])) == ((extents[1], 1), BF16, "cuda:0")
        return allocated(extents)

    monkeypatch.setattr(Cuda, "new_empty", new_empty)
    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    results = [matmul(a, b) for _ in range(4)]  # an allocator hands the same block out again
    assert {(*result.shape, *result.stride()) for result in results} == {(4, 9, 16, 1)}
    assert (len(driver.jit), len(driver.direct)) == (1, 3)
    blocks.append(torch.zeros(64, dtype=BF16))
    for _ in range(2):
        matmul(a, b)
    assert (len(driver.jit), len(driver.direct)) == (1, 5)
    assert driver.direct[-1].parameters[10].address == blocks[-1].data_ptr()


def test_rows_of_more_dimensions_are_launched_again(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    rows, into = a.view(2, 2, -1), out.view(2, 2, -1)
    for _ in range(3):
        assert matmul(rows, b, out=into) is into
    assert (len(driver.jit), len(driver.direct)) == (1, 2)
    for _ in range(2):
        matmul(a, b, out=out)  # the matrix of the same rows was launched, too
    assert (len(driver.jit), len(driver.direct)) == (1, 4)
    for _ in range(2):  # rows that are copied to lie in one matrix
        matmul(rows.transpose(0, 1), b, out=into)
    assert [launch.parameters[10].address for launch in driver.direct] == [out.data_ptr()] * len(
        driver.direct
    )
    assert len(module.call.known.of_thread.ready) == 2


def test_a_known_call_is_repeated_and_no_other(
    module: ModuleType, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty_strided(extents: tuple[int, ...], *_: object, **__: object) -> Tensor:
        return torch.zeros(extents, dtype=BF16).as_subclass(Cuda)

    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    matmul, (a, b, _), again = matmul_of(module), matrices(), module.call.again
    assert again(a, b) is None
    assert (len(driver.jit), len(driver.direct)) == (0, 0)
    matmul(a.view(2, 2, -1), b)
    found = again(a.view(2, 2, -1), b)
    assert found is not None
    assert (found.shape, len(driver.direct)) == ((2, 2, 24), 1)
    assert again(a[:3], b) is None
    assert again(a, b.contiguous()) is None
    with torch.inference_mode():
        assert again(a, b) is None


def test_a_host_side_is_copied_and_pickled_as_its_module_s(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module.__name__, module)
    host = module.call
    assert copy.deepcopy(host) is host
    assert copy.deepcopy(host.again) == host.again
    assert pickle.loads(pickle.dumps(host.again)) == host.again


def test_each_launch_is_on_the_current_stream(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    for driver.stream in (1, 2, 3):
        matmul(a, b, out=out)
    assert [launch.stream for launch in driver.direct] == [2, 3]


def test_on_another_current_device_a_call_goes_through_triton(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    matmul(a, b, out=out)
    driver.device = 1
    for _ in range(2):
        matmul(a, b, out=out)
    assert driver.direct == []
    assert [device for _, device, *_ in driver.jit] == [0, 0, 0]  # a's
    driver.device = 0
    matmul(a, b, out=out)
    assert len(driver.direct) == 1


@pytest.mark.parametrize("name", ["launch_enter_hook", "launch_exit_hook"])
def test_a_hook_sees_every_launch(module: ModuleType, driver: FakeDriver, name: str) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    hooks = getattr(cast(Any, triton).knobs.runtime, name)

    def hook(_: object) -> None:
        """Triton calls it."""

    for _ in range(2):
        matmul(a, b, out=out)
    hooks.add(hook)
    try:
        for _ in range(2):
            matmul(a, b, out=out)
    finally:
        hooks.remove(hook)
    assert (len(driver.jit), len(driver.direct)) == (3, 1)
    matmul(a, b, out=out)
    assert len(driver.direct) == 2


def test_a_kernel_that_asks_for_memory_is_launched_by_triton(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    driver.scratch = 128
    for _ in range(3):
        matmul(a, b, out=out)
    assert (len(driver.jit), driver.direct, module.call.known.of_thread.ready) == (3, [], {})


def test_what_is_kept_is_bounded(module: ModuleType, driver: FakeDriver) -> None:
    matmul, (a, b, out) = matmul_of(module), matrices()
    matmul(a, b, out=out)
    module.call.known.of_thread.ready.update((number, None) for number in range(20_000))
    matmul(a[:3], b, out=out[:3])
    assert len(driver.jit) == 2
    assert len(module.call.known.of_thread.ready) == 1


def test_each_thread_has_parameters_of_its_own(module: ModuleType, driver: FakeDriver) -> None:
    matmul, calls = matmul_of(module), [matrices() for _ in range(4)]

    def work() -> None:
        for _ in range(50):
            for a, b, out in calls:
                assert matmul(a, b, out=out) is out

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.jit) + len(driver.direct) == 4 * 50 * 4
    outputs = {out.data_ptr() for *_, out in calls}
    assert {launch.parameters[10].address for launch in driver.direct} == outputs


@dataclass
class Split:
    """A module that divides K, on a driver that is not there, and its arguments."""

    module: ModuleType
    driver: FakeDriver
    out: Tensor
    tensors: tuple[Tensor, ...]

    def __call__(self, **options: Any) -> None:
        a, b, bias = self.tensors
        assert self.module.matmul(a, b, column_bias=bias, out=self.out, **options) is self.out

    def workspace(self) -> tuple[int, ...]:
        """The addresses that the kernel was launched with last, past Triton."""
        return self.driver.direct[-1].parameters[-2:]


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Split:
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file("h100_bf16_split8_bias"))
    a, b, out = matrices()
    return Split(
        module,
        on_a_fake_driver(module, monkeypatch),
        out,
        (a, b, torch.zeros(24, dtype=BF16).as_subclass(Cuda)),
    )


def test_each_stream_has_a_workspace_and_launches_of_its_own(split: Split) -> None:
    found: dict[int, set[tuple[int, ...]]] = {1: set(), 2: set()}
    for _ in range(3):
        for split.driver.stream in found:
            split()
    assert (len(split.driver.jit), len(split.driver.direct)) == (1, 5)
    for split.driver.stream, places in found.items():
        for _ in range(2):
            split()
            places.add(split.workspace())
    assert [len(places) for places in found.values()] == [1, 1]
    assert not found[1] & found[2]


def test_a_captured_call_has_a_workspace_that_no_stream_gets(split: Split) -> None:
    for _ in range(2):
        split()
    kept = split.workspace()
    split.driver.capturing = True
    for _ in range(2):
        split()
    assert len(split.driver.direct) == 3  # into the graph
    assert all({*launch.parameters[-2:]}.isdisjoint(kept) for launch in split.driver.direct[1:])
    split.driver.capturing = False
    split()
    assert split.workspace() == kept


def test_an_operator_uses_the_workspace_of_the_stream(split: Split) -> None:
    a, b, bias = split.tensors
    run, kept = split.module.call.run_as_operator, split.module.call.memory.cache_info
    for _ in range(3):
        run(a, b, bias, out=split.out)
    assert (len(split.driver.jit), len(split.driver.direct), kept().currsize) == (1, 2, 1)
    split()
    assert len(split.driver.direct) == 3  # the module's function finds what the operator left
    split.driver.capturing = True
    for k in (16, 0):  # of a K of 0 too, whose product is one of zeros
        run(a[:, :k], b[:k], bias, out=split.out)
    assert (len(split.driver.jit), len(split.driver.direct), kept().currsize) == (1, 5, 1)
    kept_memory = split.driver.direct[0].parameters[-2:]
    assert all(launch.parameters[-2:] != kept_memory for launch in split.driver.direct[3:])


def test_an_evicted_workspace_is_never_launched_with(split: Split) -> None:
    for _ in range(2):
        split()
    for split.driver.stream in range(100, 120):  # more than are kept
        split()
    assert split.module.call.memory.cache_info().currsize == 16
    split.driver.stream = 77
    for _ in range(2):
        split()
    held, _ = split.module.call.memory(77, 0, (4, 24), 0)
    assert split.workspace() == tuple(t.data_ptr() for t in held)


@pytest.mark.parametrize("stem", ["h100_bf16_split8_bias", "h100_bf16_split8_parallel"])
def test_memory_of_a_stream_lives_until_its_launch(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's calls may evict it meanwhile: then it is free for others when the launch is queued."""
    on_a_fake_gpu(monkeypatch)
    held: list[weakref.ref[Tensor]] = []
    alive: list[bool] = []

    def launch(driver: FakeDriver, *arguments: Any) -> None:
        driver.direct.append(cast(Any, arguments))
        module.call.memory.cache_clear()
        alive.append(held[0]() is not None)

    monkeypatch.setattr(FakeDriver, "launch", launch)
    module = import_generated(module_file(stem))
    driver, (a, b, out) = on_a_fake_driver(module, monkeypatch), matrices()
    extras = {"column_bias": torch.zeros(24, dtype=BF16).as_subclass(Cuda)} if "bias" in stem else {}
    empty = torch.empty

    def noted(*shape: Any, **keywords: Any) -> Tensor:
        made = empty(*shape, **keywords)
        held.append(weakref.ref(made))
        return made

    monkeypatch.setattr(torch, "empty", noted)
    for _ in range(2):
        module.matmul(a, b, **extras, out=out)
        driver.jit.clear()  # which holds the tensors
    assert len(held) == 1
    assert alive == [True] * len(driver.direct)
    assert held[0]() is None


def test_a_workspace_that_is_given_is_replayed_by_its_addresses(split: Split) -> None:
    for _ in range(2):
        first, second = (split.module.make_workspace(4, 24, torch.device("cuda", 0)) for _ in range(2))
        for workspace in (first, second, first):
            split(workspace=workspace)
            split(workspace=workspace)
            assert split.workspace() == tuple(t.data_ptr() for t in workspace)


@dataclass
class Allocator:
    """Memory that is handed out again, the block that was freed last first, as torch's allocator does."""

    free: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])

    def __call__(self, shape: Sequence[int] | int, *, dtype: torch.dtype) -> Tensor:
        """Return memory of a shape, which comes back when the last view of it is gone."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = math.prod(shape) * dtype.itemsize
        blocks = self.free.setdefault(size, [])
        block = blocks.pop() if blocks else torch.empty(size, dtype=torch.uint8)
        lent = (ctypes.c_uint8 * size).from_address(block.data_ptr())
        weakref.finalize(lent, blocks.append, block)
        return torch.frombuffer(lent, dtype=torch.uint8).view(dtype).view(shape).as_subclass(Cuda)


@pytest.mark.parametrize("held", [1, 2, 3])
def test_a_call_of_two_kernels_is_replayed_wherever_d_lies(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file("h100_bf16_split8_parallel"))
    driver, allocate = on_a_fake_driver(module, monkeypatch), Allocator()

    def empty_strided(shape: Sequence[int], strides: Sequence[int], **options: Any) -> Tensor:
        return allocate(shape, dtype=options["dtype"])

    def new_empty(_: Tensor, shape: Sequence[int] | int, dtype: torch.dtype = BF16) -> Tensor:
        return allocate(shape, dtype=dtype)

    monkeypatch.setattr(torch, "empty_strided", empty_strided)
    monkeypatch.setattr(Cuda, "new_empty", new_empty)
    a, b, _ = matrices()
    results: deque[Tensor] = deque(maxlen=held)  # of the last calls, which are held meanwhile
    through_triton = 0
    for _ in range(4 * (held + 1)):
        results.append(module.matmul(a, b))
        through_triton += len(driver.jit)
        driver.jit.clear()  # which holds the tensors
    # Both kernels are launched through Triton once, and all other calls past it.
    assert (through_triton, len(driver.direct)) == (2, 2 * (4 * (held + 1) - 1))
    assert driver.direct[-1].parameters[1] == results[-1].data_ptr()


def test_sums_for_a_second_kernel_are_each_streams_own(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_fake_gpu(monkeypatch)
    module = import_generated(module_file("h100_bf16_split8_parallel"))
    driver, (a, b, out) = on_a_fake_driver(module, monkeypatch), matrices()
    found: dict[int, set[int]] = {0: set(), 7: set()}
    for _ in range(3):
        for driver.stream, places in found.items():
            assert module.matmul(a, b, out=out) is out
            if driver.direct:
                written, read = driver.direct[-2].parameters[-1], driver.direct[-1].parameters[0]
                assert written == read
                places.add(read)
    assert (len(driver.jit), len(driver.direct)) == (2, 10)
    assert [len(places) for places in found.values()] == [1, 1]
    assert found[0] != found[7]
    # A call that a graph captures has memory that is not kept, as an operator too.
    kept = module.call.memory.cache_info
    driver.capturing = True
    for run in (module.matmul, module.call.run_as_operator):
        run(a, b, out=out)
        assert driver.direct[-1].parameters[0] not in found[0] | found[7]
    driver.capturing = False
    assert (len(driver.jit), len(driver.direct), kept().currsize) == (2, 14, 2)
    for driver.stream in found:
        module.call.run_as_operator(a, b, out=out)
    assert (len(driver.jit), len(driver.direct), kept().currsize) == (2, 18, 2)


def test_a_thread_that_calls_between_two_launches_has_sums_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_a_fake_gpu(monkeypatch)
    between: list[Callable[[], object]] = []
    launched = FakeDriver.launch

    def launch(driver: FakeDriver, *arguments: Any) -> int:
        result = launched(driver, *arguments)
        if between:
            thread = threading.Thread(target=between.pop())
            thread.start()
            thread.join()
        return result

    monkeypatch.setattr(FakeDriver, "launch", launch)
    module = import_generated(module_file("h100_bf16_split8_parallel"))
    driver, (a, b, out) = on_a_fake_driver(module, monkeypatch), matrices()
    for _ in range(2):
        module.matmul(a, b, out=out)
    between.append(lambda: module.matmul(a, b, out=out))
    module.matmul(a, b, out=out)
    assert (len(driver.jit), len(driver.direct), between) == (4, 4, [])  # the thread's, through Triton
    written, read = driver.direct[-2].parameters[-1], driver.direct[-1].parameters[0]
    assert written == read != driver.jit[-1][-1][0].data_ptr()


def test_a_scalar_is_read_where_the_call_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_generated(module_file("h100_e5m2_e4m3"))
    driver = on_a_fake_driver(module, monkeypatch)
    a = torch.zeros(4, 16, dtype=torch.float8_e5m2).as_subclass(Cuda)
    b = torch.zeros(32, 16, dtype=torch.float8_e4m3fn).as_subclass(Cuda).T
    out = torch.zeros(4, 32, dtype=module.ARGUMENTS["out"]["dtype"]).as_subclass(Cuda)
    scales = torch.ones(2).as_subclass(Cuda)
    for scale in (scales[:1], scales[1], scales[:1], scales[1]):
        module.matmul(a, b, tensor_scale=scale, out=out)
    assert (len(driver.jit), len(driver.direct)) == (2, 2)
    addresses = {each for launch in driver.direct for each in launch.parameters if type(each) is int}
    assert {scales.data_ptr(), scales.data_ptr() + 4} <= addresses


# --- on a GPU

gpu = pytest.mark.gpu


def signs(*shape: int) -> Tensor:
    """-1, 0 and 1: with so few summands, every result is exact."""
    return torch.randint(-1, 2, shape, device="cuda").to(BF16)


@pytest.fixture
def model(module: ModuleType) -> torch.nn.Module:
    with torch.device("cuda"):
        model = mlp_of(module)
    for weight in model.parameters():
        weight.copy_(signs(*weight.shape))
    return model


@pytest.fixture
def x() -> Tensor:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    return signs(200, 64)


@gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_gives_the_eager_numbers(model: torch.nn.Module, x: Tensor, mode: str) -> None:
    expected = model(x)
    dynamo.reset()
    call = compiled(model, fullgraph=True, mode=mode)
    for _ in range(3):
        assert torch.equal(call(x).clone(), expected)


@gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
def test_a_model_compiled_for_any_rows_gives_the_eager_numbers(model: torch.nn.Module, x: Tensor) -> None:
    expected = model(x)
    dynamo.reset()
    call = compiled(model, fullgraph=True, dynamic=True)
    for rows in (200, 130, 65):
        assert torch.equal(call(x[:rows]), expected[:rows])


@gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
def test_an_exported_model_gives_the_eager_numbers(model: torch.nn.Module, x: Tensor) -> None:
    expected, program = model(x), export(model, (x,))
    assert torch.equal(program.module()(x), expected)


def said_by(program: str) -> str:
    """Return the last line that a program prints in a process of its own; its errors, if it prints none."""
    folders = os.pathsep.join([str(ROOT / "tests"), str(ROOT), *filter(None, sys.path)])
    command, environment = [sys.executable, "-c", program], os.environ | {"PYTHONPATH": folders}
    # Inductor's own choice of a compiler: where that of CXX links libstdc++ statically, as on the H200s of
    # our records, every package ends the process that loads it, one of a lone `x @ w` on the CPU too.
    environment.pop("CXX", None)
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return (found.stdout.splitlines() or [f"ended with {found.returncode}: {found.stderr}"])[-1]


def imported(kind: str) -> ModuleType:
    """Import a module or a library, with its operator."""
    if kind == "module":
        return import_generated(module_file(STEM))
    sys.path.insert(0, str(libraries_folder()))
    return import_module("h200_bf16")


def compile_ahead_of_time(kind: str, package: str) -> None:
    """Compile a model into a package; leave an input and what the model computes of it beside that."""
    with torch.device("cuda"):
        model = mlp_of(imported(kind))
    for weight in model.parameters():
        weight.copy_(signs(*weight.shape))
    x = signs(200, 64)
    torch.save((x, model(x)), f"{package}.tensors")
    cast(Any, torch)._inductor.aoti_compile_and_package(export(model, (x,)), package_path=package)
    sys.stdout.write("compiled\n")


def run_compiled(kind: str, package: str) -> None:
    """Load a package, and say whether it computes what the model did."""
    imported(kind)
    x, expected = torch.load(f"{package}.tensors")
    right = torch.equal(cast(Any, torch)._inductor.aoti_load_package(package)(x), expected)
    sys.stdout.write("right\n" if right else "wrong\n")


@gpu
@pytest.mark.parametrize("kind", ["module", "library"])
def test_a_model_compiled_ahead_of_time_gives_the_eager_numbers_in_another_process(
    kind: str, tmp_path: Path
) -> None:
    arguments = kind, str(tmp_path / "model.pt2")
    assert said_by(f"import test_operator\ntest_operator.compile_ahead_of_time{arguments}\n") == "compiled"
    assert said_by(f"import test_operator\ntest_operator.run_compiled{arguments}\n") == "right"


HOPPER_KINDS = [stem for stem in KINDS if stem.startswith("h100")]


@pytest.fixture(params=HOPPER_KINDS)
def real(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A call of a Hopper module of each kind."""
    call = Call.of(request.param, m=48, n=64, device="cuda")
    monkeypatch.setitem(sys.modules, call.stem, call.module)
    return call


def same(call: Call, found: Tensor, expected: Tensor) -> None:
    """Check two results of a module: the same bits, unless programs add up as they come."""
    if call.stem.endswith("atomic"):
        torch.testing.assert_close(found, expected)
    else:
        assert torch.equal(found, expected)


@gpu
def test_each_kind_replays_its_launch_with_new_data(real: Call) -> None:
    out = torch.empty(48, 64, dtype=real.d, device="cuda")
    real()
    real(out=out)
    ready = real.module.call.known.of_thread.ready
    kept = dict(ready)
    assert len(kept) == 2  # without `out` and with it
    for seed in range(3):
        spec = made(spec_file(real.stem)).source
        k = real.arguments["a"].shape[1]
        inputs = random_inputs((48, 64, k), spec.problem, torch.Generator("cuda").manual_seed(seed))
        for name, tensor in {"a": inputs.a, "b": inputs.b, **inputs.extras}.items():
            real.arguments[name].copy_(tensor)
        other = Call(real.stem, import_generated(module_file(real.stem)), real.arguments, real.d)
        expected = other()
        for _ in range(2):
            same(real, real(), expected)
            same(real, real(out=out.fill_(1)), expected)
    assert ready == kept


@gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_each_kind_is_compiled_and_gives_the_eager_numbers(real: Call, mode: str) -> None:
    expected = real()
    dynamo.reset()
    call = compiled(real.__call__, fullgraph=True, mode=mode)
    for _ in range(4):
        same(real, call(*real.tensors).clone(), expected)


@gpu
def test_each_kind_passes_torch_s_own_checks_on_the_gpu(real: Call) -> None:
    # The check of the schema multiplies a copy of each argument, which torch cannot do for fp8 on a GPU.
    checks = [name for name in CHECKS if not (name == "test_schema" and "e4m3" in real.stem)]
    if not real.stem.endswith("atomic"):
        found = opcheck(operator_of(real.stem).default, real.tensors, test_utils=checks)
        assert found == dict.fromkeys(checks, "SUCCESS")


@gpu
def test_a_graph_and_two_streams_have_workspaces_of_their_own() -> None:
    call = Call.of("h100_bf16_split8_bias", m=48, n=64, device="cuda")
    expected = call()
    held = [call.module.call.memory.cache_info().currsize]
    torch.cuda.synchronize()
    with captured_graph() as graph:
        result = call()
    held.append(call.module.call.memory.cache_info().currsize)
    streams = [torch.cuda.Stream() for _ in range(2)]
    found: list[Tensor] = []
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(call())
                if stream is streams[0]:
                    graph.replay()
    torch.cuda.synchronize()
    held.append(call.module.call.memory.cache_info().currsize)
    assert held == [1, 1, 3]
    assert all(torch.equal(each, expected) for each in [*found, result])


@gpu
def test_rows_that_are_copied_are_right_with_and_without_an_operator() -> None:
    module = import_generated(module_file("h100_bf16_misaligned"))
    a, b = signs(50, 65), signs(43, 65).T
    for _ in range(2):
        assert torch.equal(module.matmul(a, b), a @ b)
        assert torch.equal(operator_of("h100_bf16_misaligned")(a, b), a @ b)
        out = signs(50, 43)
        assert module.matmul(a, b, out=out) is out
        assert torch.equal(out, a @ b)
    assert not module.call.known.of_thread.ready


@gpu
@pytest.mark.parametrize("n", [256, 9])
def test_torch_s_own_checks_of_operators_pass_on_the_gpu(module: ModuleType, x: Tensor, n: int) -> None:
    weight = signs(n, 64)
    assert {*opcheck(operator_of(STEM).default, (x, weight.T)).values()} == {"SUCCESS"}
    if n == 256:
        out = {"out": signs(200, n)}
        assert {*opcheck(operator_of(STEM).out, (x, weight.T), out).values()} == {"SUCCESS"}


@gpu
@pytest.mark.parametrize("first", [False, True], ids=["prepared", "first call"])
def test_a_launch_past_triton_is_captured_into_a_graph(module: ModuleType, x: Tensor, first: bool) -> None:
    matmul, weight, out = matmul_of(module), signs(256, 64), signs(200, 256)
    matmul(x, weight.T)  # compiled
    if not first:
        matmul(x, weight.T, out=out)
    torch.cuda.synchronize()
    with captured_graph() as graph:
        matmul(x, weight.T, out=out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x @ weight.T)


@gpu
def test_threads_and_streams_share_what_is_kept_on_the_gpu(model: torch.nn.Module, x: Tensor) -> None:
    expected, different = model(x), list[int]()
    torch.cuda.synchronize()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            different.extend(i for i in range(300) if not torch.equal(model(x), expected))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert different == []


@gpu
def test_a_later_call_launches_past_triton(module: ModuleType, x: Tensor) -> None:
    matmul, weight = matmul_of(module), signs(256, 64)
    matmul(x, weight.T)
    assert len(module.call.known.of_thread.ready) == 1
    for _ in range(3):
        matmul(x, weight.T, out=signs(200, 256))
    assert len(module.call.known.of_thread.ready) == 2  # whatever the addresses


def first_use_of_cuda(answers: Any) -> None:
    """Use a module, and CUDA, for the first time in this process."""
    try:
        matmul = matmul_of(import_generated(module_file(STEM)))
        a, b = signs(200, 64), signs(256, 64).T
        right = all(torch.equal(matmul(a, b), a @ b) for _ in range(3))
        answers.put("right" if right else "wrong")
    except BaseException:  # pytest is not there to see it
        answers.put(traceback.format_exc())


@gpu
def test_a_forked_child_that_is_the_first_to_use_cuda_computes() -> None:
    program = (
        "import multiprocessing, test_operator\n"
        "fork = multiprocessing.get_context('fork')\n"
        "answers = fork.Queue()\n"
        "child = fork.Process(target=test_operator.first_use_of_cuda, args=(answers,))\n"
        "child.start()\n"
        "print(answers.get(timeout=300))\n"
        "child.join()\n"
    )
    assert said_by(program) == "right"
