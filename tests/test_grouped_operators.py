"""Operators of modules with groups of rows: torch's checks, compilers, export, and CUDA graphs of each kind.

Tests without a GPU use tensors without memory; the tests of the last section compute.
"""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from drawn import random_inputs
from modules import GROUPED_SPECS, made, module_file, spec_file
from torch import Tensor

from gemmgen.device import captured_graph
from gemmgen.features.checking import sides_of
from gemmgen.module import import_generated
from gemmgen.numerics.inputs import Inputs
from gemmgen.plan.access import TensorAccess
from gemmgen.problem import Matmul
from gemmgen.problem.operations import ROW_VECTORS

any_torch: Any = cast(Any, torch)
dynamo: Any = any_torch._dynamo
opcheck: Any = any_torch.library.opcheck
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
STEMS = [
    path.stem
    for path in GROUPED_SPECS
    if not (made(path).source.problem.d_scale or made(path).source.problem.saves)
]
"""Modules that return D alone; test_quantized_output.py and test_expert_backward.py have the others."""
OFFSETS, GATED, MASKED, BATCHED = (
    f"h100_bf16_{name}" for name in ("grouped", "grouped_gated", "masked", "batched")
)
N = 32
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
"""Warning of torch 2.11 about itself, when it loads a program."""


@dataclass(frozen=True)
class Call:
    """A module, and the tensors of one call by the names of its operator."""

    stem: str
    module: ModuleType
    problem: Matmul
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, stem: str, device: str = "meta", *, m: int | None = None, n: int = N, k: int = 128) -> Call:
        """Return a call in which every row is of a group: the whole D is computed. N is `n` or more."""
        problem, module = made(spec_file(stem)).source.problem, import_generated(module_file(stem))
        m = m or rows_of_call(problem)
        tensors = tensors_of(problem, device, m, n, k)
        return cls(stem, module, problem, {name: tensors[name] for name in module.COMPUTES["inputs"]})

    def of_rows(self, m: int) -> dict[str, Tensor]:
        """Return the tensors of a call with M rows, without memory."""
        return tensors_of(self.problem, "meta", m, N)

    @property
    def axes_of_rows(self) -> dict[str, int]:
        """The dimension of each tensor that is M."""
        vectors = (*ROW_VECTORS, "a_rows", "d_rows")
        operands = {"a": "MK", **{name: "M" for name in self.tensors if name in vectors}}
        operands |= {"c": "MN"} if "c" in self.tensors else {}
        operands |= {"a_scale": "MB"} if "a_scale" in self.tensors else {}
        return {name: self.tensors[name].dim() - len(axes) for name, axes in operands.items()}

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Some M. A tensor that is contiguous along M has rows of whole 16 bytes, and other strides else."""
        if scale := self.problem.a.scale:
            return (rows_of_call(self.problem), 2 * scale.unit, scale.unit)
        return (24, 16, 8) if self.tensors["a"].stride(-1) != 1 else (24, 20, 3)

    def __call__(self, *tensors: Tensor, **options: Any) -> Tensor:
        """Call `matmul`, with other tensors if they are given in the order of the operator."""
        given = dict(zip(self.tensors, tensors or self.tensors.values(), strict=True))
        a, b = given.pop("a"), given.pop("b")
        return self.module.matmul(a, b, **given, **options)

    def new_out(self, m: int | None = None) -> Tensor:
        """Return memory for D, full of 7."""
        device = self.tensors["a"].device
        return torch.full(self.d_shape(m), 7.0, dtype=self.module.ARGUMENTS["out"]["dtype"], device=device)

    def d_shape(self, m: int | None = None, n: int = N) -> tuple[int, ...]:
        """Return the extents of D."""
        m = m or rows_of_call(self.problem)
        multiple = TensorAccess(self.problem).n_multiple
        return self.problem.extents_of_d(m, -(-n // multiple) * multiple)

    def rows_of_groups(self, d: Tensor) -> Tensor:
        """Return the rows of a D that are of a group."""
        extras = {name: each for name, each in self.tensors.items() if name not in "ab"}
        problem = self.problem
        a, b, sides = self.tensors["a"], self.tensors["b"], sides_of(problem)
        return Inputs(a, b, extras, problem.b_blocks, sides=sides).computed_rows(d)[:]

    @property
    def operator(self) -> Any:
        """The operator of the module, with its overloads."""
        return getattr(any_torch.ops.gemmgen, self.stem)


def rows_of_call(problem: Matmul) -> int:
    """Return M: 24, or three times the scales of A in 16 bytes if these are more."""
    return max(24, 3 * problem.a.scale.unit) if problem.a.scale else 24


def tensors_of(problem: Matmul, device: str, m: int, n: int, k: int = 128) -> dict[str, Tensor]:
    """Return the tensors of a call by name."""
    multiple = TensorAccess(problem).n_multiple
    n = -(-n // multiple) * multiple
    generator = torch.Generator("cpu" if device == "meta" else device).manual_seed(1)
    inputs = random_inputs((m, n, k), problem, generator)
    extras = {name: tensor.fill_(m) if name == "rows" else tensor for name, tensor in inputs.extras.items()}
    tensors = {"a": inputs.a, "b": inputs.b, **extras}
    return {name: without_memory(each) for name, each in tensors.items()} if device == "meta" else tensors


def without_memory(tensor: Tensor) -> Tensor:
    """Return a tensor of the device meta that has the strides of this one."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@pytest.fixture(params=STEMS)
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A call without memory, of each module."""
    found = Call.of(request.param)
    monkeypatch.setitem(sys.modules, found.stem, found.module)
    dynamo.reset()
    return found


class Layer(torch.nn.Module):
    """A layer that holds the B of a call, and takes its other tensors."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        b = call.tensors["b"]
        self.is_turned = b.stride(-1) != 1
        self.weight = torch.nn.Parameter(b.mT if self.is_turned else b, requires_grad=False)

    def forward(self, a: Tensor, *extras: Tensor) -> Tensor:
        """Return the D of the call with other rows."""
        return self.call(a, self.weight.mT if self.is_turned else self.weight, *extras)


def rows_of(call: Call) -> tuple[Tensor, ...]:
    """Return the tensors of a call that a layer does not hold."""
    return tuple(tensor for name, tensor in call.tensors.items() if name != "b")


def operators_in(graph: torch.fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if "gemmgen" in str(node.target)]


# --- without a GPU


def test_an_operator_takes_the_tensors_of_matmul(call: Call) -> None:
    names = [name for name in inspect.signature(call.module.matmul).parameters if name != "out"]
    assert [*call.tensors] == names
    assert call.operator.overloads() == ["default", "out"]
    for schema in (call.operator.default._schema, call.operator.out._schema):
        assert [argument.name for argument in schema.arguments if argument.name != "out"] == names


def test_an_operator_passes_the_checks_of_torch(call: Call) -> None:
    tensors = tuple(call.tensors.values())
    for found in (
        opcheck(call.operator.default, tensors, test_utils=CHECKS),
        opcheck(call.operator.out, tensors, {"out": call.new_out()}, test_utils=CHECKS),
    ):
        assert found == dict.fromkeys(CHECKS, "SUCCESS")


@pytest.mark.parametrize("n", [32, 8])
@pytest.mark.parametrize("stem", STEMS)
def test_a_d_without_memory_has_the_strides_of_a_real_one(stem: str, n: int) -> None:
    call = Call.of(stem, n=n)
    shape = call.d_shape(n=n)
    columns = -(-shape[-1] // 8) * 8 if call.module.ARGUMENTS["out"]["dtype"].itemsize == 2 else shape[-1]
    d = call()
    assert d.shape == shape
    assert d.stride() == (rows_of_call(call.problem) * columns, columns, 1)[-d.dim() :]


@pytest.mark.sample(6)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_layer_is_compiled_as_one_graph_for_any_rows(call: Call, backend: str) -> None:
    graphs: list[list[str]] = []

    def keeping(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(operators_in(graph.graph))
        return dynamo.lookup_backend(backend)(graph, inputs)

    compiled = any_torch.compile(Layer(call), fullgraph=True, backend=keeping)
    for m in call.row_counts:
        given = {name: call.of_rows(m)[name] for name in call.tensors}
        for name, axis in call.axes_of_rows.items():
            dynamo.mark_dynamic(given[name], axis)
        d = compiled(*(tensor for name, tensor in given.items() if name != "b"))
        assert (d.shape, d.stride()) == (call.d_shape(m), call(*given.values()).stride())
    assert graphs == [[f"gemmgen.{call.stem}"]]


@pytest.mark.sample(6)
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_layer_is_saved_and_loaded(call: Call, strict: bool) -> None:
    (a, *extras), axes = rows_of(call), call.axes_of_rows
    rows: Any = any_torch.export.Dim("rows", min=2, max=4096)
    of_each = {name: {axes[name]: rows} if name in axes else None for name in call.tensors if name != "b"}
    dynamic_a, *others = of_each.values()
    shapes = {"a": dynamic_a} | ({"extras": tuple(others)} if extras else {})
    program = any_torch.export.export(Layer(call), (a, *extras), dynamic_shapes=shapes, strict=strict)
    stored = io.BytesIO()
    any_torch.export.save(program, stored)
    stored.seek(0)
    loaded = any_torch.export.load(stored)
    assert operators_in(loaded.graph) == operators_in(program.graph) == [f"gemmgen.{call.stem}.default"]
    fewer = call.row_counts[-1]
    given = [call.of_rows(fewer)[name] for name in call.tensors if name != "b"]
    assert loaded.module()(*given).shape == call.d_shape(fewer)


@pytest.mark.sample(4)
def test_an_output_that_is_given_is_the_one_that_a_graph_writes(call: Call) -> None:
    def write(out: Tensor) -> Tensor:
        return call(out=out)

    out = call.new_out()
    before = out._version
    d = any_torch.compile(write, fullgraph=True, backend="aot_eager")(out)
    assert d is out or d._base is out
    assert out._version > before


# --- on a GPU

gpu = pytest.mark.gpu
compiles = pytest.mark.filterwarnings("ignore")
"""Inductor's warnings depend on the release of torch."""


@gpu
@pytest.mark.parametrize("stem", STEMS)
def test_an_operator_passes_the_checks_of_torch_on_the_gpu(stem: str) -> None:
    # A check copies the tensors without gaps in memory. Scales of 32 rows and 16 blocks of K have none.
    scales_sums = made(spec_file(stem)).source.problem.scales_sums
    m, k = (32, 2048) if scales_sums else (24, 128)
    call = Call.of(stem, "cuda", m=m, k=k)
    # The check of the schema multiplies a copy of each argument, which torch cannot do for fp8 on a GPU.
    checks = [name for name in CHECKS if not (name == "test_schema" and "e4m3" in stem)]
    for found in (
        opcheck(call.operator.default, tuple(call.tensors.values()), test_utils=checks),
        opcheck(call.operator.out, tuple(call.tensors.values()), {"out": call.new_out(m)}, test_utils=checks),
    ):
        assert found == dict.fromkeys(checks, "SUCCESS")


@gpu
@compiles
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("stem", [OFFSETS, GATED, MASKED, BATCHED])
def test_a_compiled_layer_gives_the_numbers_of_matmul(
    stem: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Call.of(stem, "cuda", m=96)
    monkeypatch.setitem(sys.modules, call.stem, call.module)
    dynamo.reset()
    compiled = any_torch.compile(Layer(call), fullgraph=True, mode=mode)
    for division in DIVISIONS:
        divide(call, division)
        expected = call.rows_of_groups(call()).clone()
        # The second mode replays a CUDA graph from its third call on.
        for _ in range(4):
            assert torch.equal(call.rows_of_groups(compiled(*rows_of(call))), expected)


DIVISIONS: list[Callable[[int, int], list[int]]] = [
    lambda count, m: [m * (i + 1) // count for i in range(count)],
    lambda count, m: [m // 2] * count,
    lambda count, m: [0] * (count - 1) + [m],
    lambda count, _: [0] * count,
]
"""Ends or rows of a number of groups, by M, which rise as ends have to."""


def divide(call: Call, division: Callable[[int, int], list[int]]) -> None:
    """Write ends or rows of groups into the tensor of a call; a call of batches has none."""
    for name in ("offs", "rows"):
        if name in call.tensors:
            numbers = division(len(call.tensors[name]), call.tensors["a"].shape[-2])
            call.tensors[name].copy_(torch.tensor(numbers, dtype=torch.int32))


@gpu
@pytest.mark.parametrize("stem", [OFFSETS, GATED, MASKED, "h100_bf16_grouped_rows8", "h100_e4m3_grouped"])
@pytest.mark.parametrize("through", ["matmul", "operator"])
def test_a_graph_follows_groups_that_change_between_replays_into_its_own_d(stem: str, through: str) -> None:
    call = Call.of(stem, "cuda", m=96)
    work = call if through == "matmul" else lambda: call.operator(*call.tensors.values())
    work()
    torch.cuda.synchronize()
    with captured_graph() as graph:
        d = work()
    for division in DIVISIONS:
        divide(call, division)
        expected = call.rows_of_groups(call())
        d.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(call.rows_of_groups(d), expected)
        assert int((d != 7).any(-1).sum()) <= len(expected)


@gpu
@pytest.mark.parametrize("stem", [OFFSETS, GATED, MASKED, BATCHED])
def test_a_loaded_program_gives_the_numbers_of_matmul(stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call.of(stem, "cuda", m=96)
    monkeypatch.setitem(sys.modules, call.stem, call.module)
    stored = io.BytesIO()
    any_torch.export.save(any_torch.export.export(Layer(call), rows_of(call)), stored)
    stored.seek(0)
    found = any_torch.export.load(stored).module()(*rows_of(call))
    assert torch.equal(call.rows_of_groups(found), call.rows_of_groups(call()))
