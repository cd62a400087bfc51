"""integrations: torch's grouped_mm computed by generated modules, which the simulator or a GPU executes."""

from __future__ import annotations

import importlib
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from cpu_kernels import kernel_on_the_cpu
from fake_triton import refusal
from grouped_calls import ENDS, REFUSED, TORCHS, Call, changed, grouped_mm
from modules import module_file
from simulated import on_a_gpu, signs, simulated
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from gemmgen.device import captured_graph
from gemmgen.integrations import GroupedMM, replace_grouped_mm
from gemmgen.integrations.grouped_operator import grouped_mm as operator
from gemmgen.integrations.operator import ANY_ROWS, remember
from gemmgen.module import import_generated

any_torch: Any = cast(Any, torch)
aot_autograd: Any = importlib.import_module("torch._dynamo.backends.common").aot_autograd
make_boxed_func: Any = importlib.import_module("functorch.compile").make_boxed_func
dynamo: Any = any_torch._dynamo
BF16, INT = torch.bfloat16, torch.int32
OFFSETS, BATCHED = "h100_bf16_grouped", "h100_bf16_batched"
FEW = {8: "h100_bf16_grouped_rows8", 64: "h100_bf16_grouped_rows64"}
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
"""Warning of torch 2.11 about itself, when it loads a program."""
META: dict[str, Any] = {"device": "meta", "dtype": BF16}


def in_order(a: Tensor, b: Tensor, *, offs: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return the products of groups on this CPU, with rows of whole 16-byte units as a module has."""
    if a.dtype != BF16:
        raise TypeError(f"a must be a tensor of torch.bfloat16, found {a.dtype}")
    if b.stride(-2) != 1:
        raise ValueError("b must lie in memory as [groups, N, K]")
    asked.append(a)
    d = a.new_zeros((*a.shape[:-1], -(-b.shape[-1] // 8) * 8))[..., : b.shape[-1]]
    if offs is None:
        return d.copy_(a.float() @ b.float())
    first = 0
    for group, end in enumerate(map(int, offs)):
        d[first:end] = a[first:end].float() @ b[group].float()
        first = end
    return d


asked: list[Tensor] = []
"""The A of each call of a kernel of this CPU."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    asked.clear()
    dynamo.reset()
    yield
    dynamo.reset()


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> GroupedMM:
    """A function of modules in the simulator."""
    return GroupedMM(simulated(OFFSETS, monkeypatch), simulated(BATCHED, monkeypatch))


def called(function: Callable[..., Tensor], call: Call, **options: Any) -> Tensor:
    """Return the D of a function for the tensors of a call on a GPU that does not exist."""
    extras = {} if call.offs is None else {"offs": on_a_gpu(call.offs)}
    return function(on_a_gpu(call.a), on_a_gpu(call.b), **extras, **options)


def assert_equal(d: Tensor, call: Call) -> None:
    """Compare the rows of groups with torch's."""
    theirs = call.torchs()
    assert (d.shape, d.dtype) == (theirs.shape, theirs.dtype)
    assert torch.equal(d.as_subclass(Tensor)[..., : call.rows, :], theirs[..., : call.rows, :])


# --- the function


@pytest.mark.parametrize("name", ENDS)
def test_a_module_computes_groups_with_ends(name: str, ours: GroupedMM) -> None:
    call = Call.of(ENDS[name])
    assert_equal(called(ours, call), call)
    assert ours.reason == ""


@pytest.mark.parametrize(("groups", "m", "n"), [(5, 8, 32), (3, 1, 264), (16, 3, 30)])
def test_a_module_computes_groups_of_a_3d_a(groups: int, m: int, n: int, ours: GroupedMM) -> None:
    call = Call.of(groups, m=m, n=n)
    assert_equal(called(ours, call), call)
    assert ours.reason == ""


@pytest.mark.parametrize("name", TORCHS)
def test_torch_computes_a_call_that_the_modules_refuse_and_the_reason_is_told(
    name: str, ours: GroupedMM
) -> None:
    call, argument, wrong = TORCHS[name]
    found = called(ours, call)
    theirs = call.torchs()
    assert (found.shape, found.dtype, found.requires_grad) == (
        theirs.shape,
        theirs.dtype,
        theirs.requires_grad,
    )
    rows = found.detach().as_subclass(Tensor)
    if call.a.dim() == 2 and call.b.dim() == 3:
        assert torch.equal(rows[: call.rows], theirs[: call.rows])
        module, _, reason = ours.reason.partition(": ")
        assert module == OFFSETS
        assert re.search(refusal(argument, wrong), reason)
    else:
        columns = 30 if call.b.dim() == 2 and call.a.dim() == 3 else None  # offs divide the columns
        assert torch.equal(rows[..., :columns], theirs[..., :columns])
        dims = f"found {call.a.dim()} and {call.b.dim()}"
        assert ours.reason == f"kernels take 2 dimensions of mat_a and 3 of mat_b with offs, {dims}"
    call = Call.of([3, 3, 10, 20, 30])
    called(ours, call)
    assert ours.reason == ""


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_both_refuse_has_the_error_of_torch(name: str, ours: GroupedMM) -> None:
    call, text, *_ = REFUSED[name]
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}"):
        called(ours, call)


def test_operands_that_torch_does_not_support_have_the_error_of_torch(ours: GroupedMM) -> None:
    call = Call.of([3, 3, 10, 20, 30])
    with pytest.raises(RuntimeError, match=r"^Bias not supported yet"):
        called(ours, call, bias=torch.zeros(32, dtype=BF16))
    assert ours.reason == "kernels add no bias to groups"
    with pytest.raises(RuntimeError, match=r"^Grouped gemm output dtype must match"):
        called(ours, call, out_dtype=torch.float32)
    assert ours.reason == "out_dtype is torch.float32, and mat_a torch.bfloat16"
    assert_equal(called(ours, call, out_dtype=BF16), call)
    assert ours.reason == ""
    with pytest.raises(RuntimeError, match=r"^Have to provide offsets"):
        called(ours, Call(call.a, call.b))
    with pytest.raises(RuntimeError, match=r"^Have to provide offsets"):
        called(ours, Call(call.a.view(5, 8, 64), call.b, call.offs))


@pytest.mark.parametrize("learns", ["a", "b", "both"])
def test_gradients_are_the_ones_of_torch(learns: str, ours: GroupedMM) -> None:
    call = Call.of([3, 3, 10, 20, 40])
    weight = call.b.mT
    leaves: list[list[Tensor]] = []
    for function in (ours, grouped_mm):
        a, w = call.a.clone(), weight.clone()
        a.requires_grad_(learns != "b")
        w.requires_grad_(learns != "a")
        d = called(function, Call(a, w.mT, call.offs))
        cast(Any, d).backward(torch.ones_like(d, memory_format=torch.contiguous_format))
        leaves.append([each.grad for each in (a, w) if each.grad is not None])
    assert len(leaves[0]) == len(leaves[1]) == (2 if learns == "both" else 1)
    assert all(torch.equal(*each) for each in zip(*leaves, strict=True))
    refused = "b" if learns == "b" else "a"
    assert ours.reason == f"{OFFSETS}: {refused} must not require grad (no backward): detach it"
    with torch.no_grad():
        assert_equal(called(ours, Call(call.a.requires_grad_(), call.b, call.offs)), call)
    assert ours.reason == ""


def test_the_kernel_for_the_mean_rows_of_a_group_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {most: simulated(stem, monkeypatch) for most, stem in FEW.items()}
    all_rows = simulated(OFFSETS, monkeypatch)
    ours, asked_for = GroupedMM(all_rows, few_rows=names), list[str]()
    for module in (*names.values(), all_rows):
        monkeypatch.setattr(module, "matmul", noting(module, asked_for))
        remember(module)
    for rows in (1, 8, 9, 64, 65):
        call = Call.of([0, 2 * rows], m=2 * rows)
        assert_equal(called(ours, call), call)
    assert asked_for == [FEW[8], FEW[8], FEW[64], FEW[64], OFFSETS]
    assert_equal(called(GroupedMM(few_rows=names), call), call)  # of more rows than any kernel is for
    only = GroupedMM(few_rows={8: names[8]})
    called(only, call)
    assert only.reason == f"{FEW[8]} is for groups of up to 8 rows"


def noting(module: ModuleType, names: list[str]) -> Callable[..., Tensor]:
    """Return the function of a module, which notes the module's name."""
    matmul = module.matmul

    def noted(*tensors: Tensor, **extras: Tensor) -> Tensor:
        names.append(module.__name__)
        return matmul(*tensors, **extras)

    return noted


def test_the_next_kernel_is_asked_if_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = GroupedMM(simulated(OFFSETS, monkeypatch), simulated(f"{OFFSETS}_512", monkeypatch))
    call = Call.of([*range(1, 33), 40])
    assert_equal(called(ours, call), call)
    assert ours.reason == ""
    called(ours, changed(b=signs(5, 64, 32)))
    assert ours.reason.count("b must lie in memory as [groups, N, K]") == 2


def test_calls_of_the_other_kind_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = GroupedMM(simulated(OFFSETS, monkeypatch))
    called(offsets, Call.of(5))
    assert offsets.reason == "no kernel takes a call without offs"
    batched = GroupedMM(simulated(BATCHED, monkeypatch))
    called(batched, Call.of([40]))
    assert batched.reason == "no kernel takes a call with offs"


@pytest.mark.parametrize(
    ("stem", "text"),
    [
        ("h100_bf16", "h100_bf16 computes no groups of a @ b"),
        ("h100_bf16_grouped_gated", "h100_bf16_grouped_gated computes no groups of a @ b"),
        ("h100_bf16_masked", "h100_bf16_masked computes no groups of a @ b"),
        ("h100_bf16_batched_fp32_out", "makes torch.float32 of torch.bfloat16"),
        ("h100_e4m3_grouped", "h100_e4m3_grouped computes no groups of a @ b"),
    ],
)
def test_a_kernel_of_something_else_is_refused(stem: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        GroupedMM(import_generated(module_file(stem)))


def test_a_function_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^GroupedMM needs a kernel$"):
        GroupedMM()


# --- where torch records, casts or shards


class Sharded(Tensor):
    """A tensor with a function of its own, which computes as a plain one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cast(Any, super()).__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_with_rules_of_its_own_is_of_torch(ours: GroupedMM) -> None:
    call = Call.of([3, 3, 10, 20, 40])
    found = ours(call.a, call.b.as_subclass(Sharded), offs=call.offs)
    assert torch.equal(found, call.torchs())
    assert ours.reason == "mat_b is a Sharded, for which torch's own operators have rules"


def test_autocast_to_another_type_leaves_a_call_to_torch() -> None:
    call, ours = Call.of([3, 3, 10, 20, 40]), GroupedMM(kernel_on_the_cpu("offsets_of_cpu", in_order, "offs"))
    for wanted, count in ((torch.float16, 0), (BF16, 1)):
        with torch.autocast("cpu", dtype=wanted):
            found, theirs = ours(call.a, call.b, offs=call.offs), call.torchs()
        assert (found.dtype, len(asked)) == (theirs.dtype, count)
        text = "autocast is on: mat_a is torch.bfloat16, and it casts to torch.float16"
        assert ours.reason == ("" if count else text)


def test_a_trace_and_torch_fx_record_the_operator_of_torch(ours: GroupedMM) -> None:
    call = Call.of([3, 3, 10, 20, 40])

    def experts(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        return ours(a, b, offs=offs)

    graph = torch.fx.symbolic_trace(experts).graph
    assert "_grouped_mm" in [getattr(node.target, "__name__", "") for node in graph.nodes]
    with warnings.catch_warnings(action="ignore"):  # torch.jit.trace is deprecated in some releases
        traced = any_torch.jit.trace(experts, (call.a, call.b, call.offs), check_trace=False)
    assert "aten::_grouped_mm" in str(traced.graph)
    assert ours.reason == "torch.jit.trace records torch's own operators only"


# --- calls of a model


class Experts(nn.Module):
    """Experts as a model of torch has them: torch's function, by one of its names."""

    def __init__(self, weight: Tensor, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(weight, requires_grad=False), function

    def forward(self, x: Tensor, offs: Tensor) -> Tensor:
        """Return the product of each expert's rows."""
        return self.function(x, self.weight.transpose(-2, -1), offs=offs)


def by_functional(*tensors: Tensor, **options: Any) -> Tensor:
    return any_torch.nn.functional.grouped_mm(*tensors, **options)


def by_torch(*tensors: Tensor, **options: Any) -> Tensor:
    return any_torch._grouped_mm(*tensors, **options)


def by_place(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return any_torch._grouped_mm(a, b, offs)


NAMES = [by_torch, by_place, *([by_functional] if hasattr(functional, "grouped_mm") else [])]


@pytest.mark.parametrize("function", NAMES)
def test_calls_of_a_model_reach_the_kernels_in_the_context_alone(function: Callable[..., Tensor]) -> None:
    call = Call.of([3, 3, 10, 20, 40])
    model = Experts(call.b.mT, function)
    theirs = model(call.a, call.offs)
    with replace_grouped_mm(kernel_on_the_cpu("offsets_of_cpu", in_order, "offs")) as ours:
        assert torch.equal(model(call.a, call.offs), theirs)
        assert (len(asked), ours.reason) == (1, "")
        with replace_grouped_mm(kernel_on_the_cpu("batches_of_cpu", in_order)) as inner:
            model(call.a, call.offs)
        assert (len(asked), inner.reason) == (1, "no kernel takes a call with offs")
        model(call.a, call.offs)
        assert len(asked) == 2
    model(call.a, call.offs)
    assert len(asked) == 2


def test_an_error_in_the_context_gives_torch_its_functions_back() -> None:
    before = any_torch._grouped_mm
    with pytest.raises(KeyError), replace_grouped_mm(kernel_on_the_cpu("offsets_of_cpu", in_order, "offs")):
        raise KeyError
    assert any_torch._grouped_mm is before


def test_a_kernel_is_refused_before_the_context() -> None:
    kernel = kernel_on_the_cpu("c", in_order, "c")
    with pytest.raises(ValueError, match="computes no groups"), replace_grouped_mm(kernel):
        pass


# --- torch.compile and torch.export


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """Modules of both kinds, where torch looks for them."""
    found = [import_generated(module_file(stem)) for stem in (OFFSETS, BATCHED)]
    for module in found:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def keeping(graphs: list[list[str]]) -> Callable[..., Any]:
    """Return a compiler of torch.compile that notes the grouped matmuls of each graph after autograd."""

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets = [str(node.target) for node in graph.graph.nodes]
        graphs.append([target for target in targets if "grouped_mm" in target])
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=note, bw_compiler=note)


def test_a_program_that_is_trained_has_the_operators_of_a_module_with_a_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stem = "h100_bf16_grouped_backward"
    grouped_mm = GroupedMM(simulated(OFFSETS, monkeypatch), simulated(stem, monkeypatch))
    targets: list[str] = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes if "h100" in str(node.target))
        return make_boxed_func(graph.forward)

    def loss(a: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
        return grouped_mm(a, weight.mT, offs=offs).sum()

    for end in ("_grad_a", "_grad_b"):  # the backward imports them
        monkeypatch.setitem(sys.modules, f"{stem}{end}", import_generated(module_file(f"{stem}{end}")))
    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    program = any_torch.compile(loss, backend=backend, fullgraph=True)
    weight = torch.empty(5, 32, 64, **META).requires_grad_()
    program(torch.empty(40, 64, **META), weight, ends_on_meta()).backward()
    assert f"gemmgen.{stem}.default" in targets
    assert [target for target in targets if "grouped_mm" in target] == []
    assert cast(Tensor, weight.grad).shape == weight.shape


OURS, THEIRS = "gemmgen_integrations.grouped_mm.default", "aten._grouped_mm.default"
TRACED: dict[str, tuple[Callable[[], tuple[Tensor, Tensor, Tensor | None]], str]] = {
    "weights by rows of K": (
        lambda: (torch.empty(40, 64, **META), torch.empty(5, 32, 64, **META).mT, ends_on_meta()),
        OURS,
    ),
    "gaps between weights, which are found when it runs": (
        lambda: (torch.empty(40, 64, **META), torch.empty(5, 40, 64, **META)[:, :32].mT, ends_on_meta()),
        OURS,
    ),
    "groups of a 3-D A": (
        lambda: (torch.empty(5, 8, 64, **META), torch.empty(5, 32, 64, **META).mT, None),
        OURS,
    ),
    "weights by rows of N": (
        lambda: (torch.empty(40, 64, **META), torch.empty(5, 64, 32, **META), ends_on_meta()),
        THEIRS,
    ),
    "a transposed A": (
        lambda: (torch.empty(64, 40, **META).T, torch.empty(5, 32, 64, **META).mT, ends_on_meta()),
        THEIRS,
    ),
    "a 2-D B": (
        lambda: (torch.empty(5, 8, 64, **META), torch.empty(40, 64, **META).T, ends_on_meta()),
        THEIRS,
    ),
    "an A that requires grad": (
        lambda: (
            torch.empty(40, 64, **META).requires_grad_(),
            torch.empty(5, 32, 64, **META).mT,
            ends_on_meta(),
        ),
        THEIRS,
    ),
}


def ends_on_meta() -> Tensor:
    return torch.empty(5, dtype=INT, device="meta")


@pytest.mark.parametrize("function", [None, *NAMES])
@pytest.mark.parametrize("name", TRACED)
def test_a_graph_has_the_operator_of_the_kernels_or_of_torch(
    name: str, function: Callable[..., Tensor] | None, modules: list[ModuleType]
) -> None:
    make, wanted = TRACED[name]
    a, b, offs = make()
    graphs: list[list[str]] = []

    with replace_grouped_mm(*modules) as ours:
        compiled = any_torch.compile(function or ours, fullgraph=True, backend=keeping(graphs))
        d = compiled(a, b, offs=offs)
    assert graphs == [[wanted]]
    expected = grouped_mm(a, b, offs=offs)
    assert (d.shape, d.dtype) == (expected.shape, expected.dtype)


def test_a_model_that_is_compiled_is_compiled_again_after_the_context(modules: list[ModuleType]) -> None:
    make, _ = TRACED["weights by rows of K"]
    graphs: list[list[str]] = []
    compiled = any_torch.compile(by_torch, fullgraph=True, backend=keeping(graphs))
    a, b, offs = make()
    compiled(a, b, offs=offs)
    with replace_grouped_mm(*modules):
        compiled(a, b, offs=offs)
    compiled(a, b, offs=offs)
    assert graphs == [[THEIRS], [OURS]]


def test_a_compiled_model_is_one_graph_for_any_rows(modules: list[ModuleType]) -> None:
    graphs: list[list[str]] = []
    model, x = Experts(torch.empty(5, 32, 64, **META), by_torch), torch.empty(40, 64, **META)
    dynamo.mark_dynamic(x, 0)
    compiled = any_torch.compile(model, fullgraph=True, backend=keeping(graphs))
    with replace_grouped_mm(modules[0]):
        for rows in (40, 17, 3):
            assert compiled(x[:rows] if rows < 40 else x, ends_on_meta()).shape == (rows, 32)
    assert graphs == [[OURS]]


def test_gradients_of_a_compiled_model_are_of_torch(modules: list[ModuleType]) -> None:
    graphs: list[list[str]] = []
    model = Experts(torch.empty(5, 32, 64, **META), by_torch).requires_grad_(requires_grad=True)
    with replace_grouped_mm(*modules):
        d = any_torch.compile(model, fullgraph=True, backend=keeping(graphs))(
            torch.empty(40, 64, **META), ends_on_meta()
        )
    d.backward(torch.empty_like(d, memory_format=torch.contiguous_format))
    assert model.weight.grad is not None
    assert model.weight.grad.shape == (5, 32, 64)
    assert {target for graph in graphs for target in graph} == {THEIRS}


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_is_saved_and_loaded(strict: bool, modules: list[ModuleType]) -> None:
    model, x = Experts(torch.empty(5, 32, 64, **META), by_torch), torch.empty(40, 64, **META)
    shapes = ({0: any_torch.export.Dim("rows", min=2)}, None)
    with replace_grouped_mm(*modules):
        program = any_torch.export.export(model, (x, ends_on_meta()), dynamic_shapes=shapes, strict=strict)
    stored = io.BytesIO()
    any_torch.export.save(program, stored)
    stored.seek(0)
    loaded = any_torch.export.load(stored)
    assert OURS in [str(node.target) for node in loaded.graph.nodes]
    assert loaded.module()(x[:7], ends_on_meta()).shape == (7, 32)


@pytest.mark.parametrize("n", [32, 30])
@pytest.mark.parametrize("with_offs", [False, True])
def test_the_operator_is_a_kernel_and_torch_if_all_refuse(with_offs: bool, n: int) -> None:
    name = "offsets_of_cpu" if with_offs else "batches_of_cpu"
    kernel = kernel_on_the_cpu(name, in_order, *(["offs"] * with_offs))
    remember(kernel)
    call = Call.of([3, 3, 10, 20, 40] if with_offs else 5, n=n)
    by_columns = Call(call.a, torch.cat([call.b.contiguous()] * 8, 2)[..., :n], call.offs)
    for each, most_rows, count in ((call, ANY_ROWS, 1), (call, 1, 0), (by_columns, ANY_ROWS, 0)):
        asked.clear()
        given = (each.a, each.b, each.offs, [kernel.__name__], [most_rows])
        d = operator(*given)
        assert len(asked) == count
        assert_equal(d, call)
        assert d.stride()[-2:] == (32, 1)
        if n % 8:
            continue  # opcheck copies matrices to rows of 30 elements, which torch refuses
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        found = any_torch.library.opcheck(operator.default, given, test_utils=checks)
        assert found == dict.fromkeys(checks, "SUCCESS")
    with FlopCounterMode(display=False) as counted:
        operator(call.a, call.b, call.offs, [kernel.__name__], [ANY_ROWS])
    assert counted.get_total_flops() == 2 * call.a.numel() * n


# --- on a GPU

gpu = pytest.mark.gpu
compiles = pytest.mark.filterwarnings("ignore")
"""Inductor's warnings depend on the release of torch."""


@gpu
@pytest.mark.parametrize("name", ENDS)
def test_kernels_compute_calls_of_a_model_on_a_gpu(
    name: str, modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, names = Call.of(ENDS[name], device="cuda"), list[str]()
    theirs = call.torchs()
    monkeypatch.setattr(modules[0], "matmul", noting(modules[0], names))
    with replace_grouped_mm(*modules) as ours:
        found = by_torch(call.a, call.b, offs=call.offs)
    assert (names, ours.reason) == ([OFFSETS], "")
    assert torch.equal(found[: call.rows], theirs[: call.rows])


LAYOUTS_OF_B: dict[str, Callable[[Tensor], Tensor]] = {
    "rows of K": lambda b: b,
    "rows of N": lambda b: b.contiguous(),
    "gaps between groups": lambda b: torch.cat([b.mT] * 2, 1)[:, : b.shape[-1]].mT,
}


@gpu
@compiles
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("layout", LAYOUTS_OF_B)
def test_a_compiled_model_gives_the_numbers_of_torch(
    layout: str, mode: str, modules: list[ModuleType]
) -> None:
    call = Call.of([3, 3, 10, 20, 30], device="cuda")
    offs = cast(Tensor, call.offs)
    call = Call(call.a, LAYOUTS_OF_B[layout](call.b), offs)

    def product(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        return by_torch(a, b, offs=offs)

    divisions = [torch.tensor(ends, dtype=INT) for ends in ([3, 3, 10, 20, 30], [40] * 5, [0, 8, 8, 9, 25])]
    expected: list[Tensor] = []
    for ends in divisions:
        offs.copy_(ends)
        expected.append(call.torchs())
    with replace_grouped_mm(*modules):
        compiled = any_torch.compile(product, fullgraph=True, mode=mode)
        for ends, theirs in zip(divisions, expected, strict=True):
            offs.copy_(ends)
            for _ in range(4):  # the second mode replays a CUDA graph from its third call on
                found = compiled(call.a, call.b, offs)
                assert found.stride() == theirs.stride()
                assert torch.equal(found[: call.rows], theirs[: call.rows])


@gpu
@compiles
@pytest.mark.parametrize("compiling", [False, True])
def test_gradients_are_the_ones_of_torch_on_a_gpu(compiling: bool, modules: list[ModuleType]) -> None:
    call = Call.of([8, 8, 16, 24, 40], device="cuda")
    gradients: list[tuple[Tensor, Tensor]] = []
    for is_ours in (True, False):
        model = Experts(call.b.mT.clone(), by_torch).requires_grad_(requires_grad=True)
        x, run = call.a.clone().requires_grad_(), model
        if is_ours:
            run = any_torch.compile(model, fullgraph=True) if compiling else model
            with replace_grouped_mm(*modules):
                d = run(x, call.offs)
        else:
            d = run(x, call.offs)
        d.backward(torch.ones(40, 32, device="cuda", dtype=BF16))
        gradients.append((cast(Tensor, x.grad), cast(Tensor, model.weight.grad)))
    assert all(torch.equal(*each) for each in zip(*gradients, strict=True))


@gpu
def test_a_graph_of_a_model_follows_groups_that_change_between_replays(
    modules: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, names = Call.of([3, 3, 10, 20, 30], device="cuda"), list[str]()
    offs = cast(Tensor, call.offs)
    monkeypatch.setattr(modules[0], "matmul", noting(modules[0], names))
    with replace_grouped_mm(*modules) as grouped:
        by_torch(call.a, call.b, offs=offs)
        torch.cuda.synchronize()
        with captured_graph() as graph:
            d = by_torch(call.a, call.b, offs=offs)
    assert (names, grouped.reason) == ([OFFSETS], "")  # the second call is a known one
    for ends in ([40] * 5, [0, 8, 8, 9, 25], [0, 0, 0, 0, 40]):
        offs.copy_(torch.tensor(ends, dtype=INT))
        theirs = call.torchs()
        d.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(d[: call.rows], theirs[: call.rows])
        assert bool((d[call.rows :] == 7).all())


@gpu
def test_a_loaded_program_gives_the_numbers_of_torch(modules: list[ModuleType]) -> None:
    call = Call.of([3, 3, 10, 20, 40], device="cuda")
    model = Experts(call.b.mT.clone(), by_torch)
    with replace_grouped_mm(*modules):
        program = any_torch.export.export(model, (call.a, call.offs))
    assert OURS in [str(node.target) for node in program.graph.nodes]
    stored = io.BytesIO()
    any_torch.export.save(program, stored)
    stored.seek(0)
    assert torch.equal(any_torch.export.load(stored).module()(call.a, call.offs), call.torchs())


@pytest.mark.parametrize("key", ["8", -8, 0, True, 2.5])
def test_a_key_of_few_rows_is_a_number_of_rows(key: Any) -> None:
    kernel = import_generated(module_file("h100_bf16_grouped"))
    with pytest.raises(ValueError, match="a key of few_rows must be a number of rows from 1 on"):
        GroupedMM(kernel, few_rows={key: kernel})
