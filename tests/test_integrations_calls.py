"""integrations: what a layer computes where torch would cast, shard, trace or compile the call; on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from cpu_kernels import kernel_on_the_cpu
from modules import module_file
from own_process import in_own_process
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gemmgen.integrations import Linear, LinearLeftWarning, replace_linear
from gemmgen.integrations.operator import linear, remember
from gemmgen.module import import_generated

BF16 = torch.bfloat16
META: dict[str, Any] = {"device": "meta", "dtype": BF16}
any_torch: Any = cast(Any, torch)
dynamo: Any = any_torch._dynamo


def rounded(a: Tensor, b: Tensor, *, column_bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return a @ b, and a bias, rounded once: what a generated kernel of bf16 computes."""
    if a.dtype != BF16 or b.dtype != BF16:
        raise TypeError(f"a must be a tensor of {BF16}, found {a.layout} {a.dtype}")
    if a.stride(-1) != 1:
        raise ValueError(f"a must lie in memory as [M, K], found strides {a.stride()}")
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        raise ValueError("a must not require grad (no backward): detach it")
    asked.append(a)
    total = a.float() @ b.float()
    total = total if column_bias is None else total + column_bias.float()
    d = a.new_empty((a.shape[0], -(-b.shape[1] // 8) * 8))[:, : b.shape[1]] if out is None else out
    return d.copy_(total)


asked: list[Tensor] = []
"""The A of each call of a kernel here."""
PLAIN = kernel_on_the_cpu("plain", rounded)
BIASED = kernel_on_the_cpu("biased", rounded, "column_bias")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    asked.clear()
    dynamo.reset()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Committed modules where torch looks for them, by their names: one, and one with its gradients."""
    stems = "h100_bf16", *(f"h100_bf16_backward{end}" for end in ("", "_grad_a", "_grad_b"))
    found = {stem: import_generated(module_file(stem)) for stem in stems}
    for stem, module in found.items():
        monkeypatch.setitem(sys.modules, stem, module)
    return found


def layer_of(kernel: Any, *, bias: bool = False) -> tuple[nn.Linear, Linear]:
    """Return a frozen bf16 layer of torch's, and one of a kernel with its parameters."""
    theirs = nn.Linear(16, 24, bias, dtype=BF16).requires_grad_(False)
    return theirs, Linear.of(theirs, kernel)


# --- torch.compile


INPUTS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.empty(64, 128, **META),
    "transposed": lambda: torch.empty(128, 64, **META).T,
    "one row expanded": lambda: torch.empty(1, 128, **META).expand(64, 128),
    "rows 129 apart": lambda: torch.empty(64, 129, **META)[:, :128],
    "past an address": lambda: torch.empty(64, 136, **META)[:, 1:129],
    "patches of one picture": lambda: torch.empty(1, 128, 14, 14, **META).flatten(2).transpose(1, 2),
    "patches of pictures": lambda: torch.empty(2, 128, 14, 14, **META).flatten(2).transpose(1, 2),
    "no rows": lambda: torch.empty(0, 128, **META),
    "a vector": lambda: torch.empty(128, **META),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("kind", INPUTS)
def test_a_compiled_layer_takes_every_input_that_it_takes_without(
    kind: str, learns: bool, dynamic: bool, modules: dict[str, ModuleType]
) -> None:
    kernel = modules["h100_bf16_backward" if learns else "h100_bf16"]
    layer = Linear(128, 256, bias=False, kernel=kernel, **META).requires_grad_(learns)
    x = INPUTS[kind]()
    wanted = layer(x)
    compiled = any_torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    found = compiled(x)
    assert (found.shape, found.dtype) == (wanted.shape, BF16)
    if learns:
        found.sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.shape == layer.weight.shape


def test_rows_known_only_at_run_time_reach_the_operator_of_the_layer(
    modules: dict[str, ModuleType],
) -> None:
    layer = Linear(128, 256, bias=False, kernel=modules["h100_bf16"], **META).requires_grad_(False)
    exported = any_torch.export.export(
        layer, (torch.empty(64, 128, **META),), dynamic_shapes=({0: any_torch.export.Dim("m")},)
    )
    called = [str(node.target) for node in exported.graph.nodes]
    assert "gemmgen_integrations.linear.default" in called


@pytest.mark.parametrize("columns", [24, 21])
@pytest.mark.parametrize("bias", [False, True])
def test_the_operator_is_the_kernel_and_torch_where_that_refuses(columns: int, bias: bool) -> None:
    kernel = BIASED if bias else PLAIN
    remember(kernel)
    x, weight = torch.randn(6, 16, dtype=BF16), torch.randn(columns, 16, dtype=BF16)
    summand = torch.randn(columns, dtype=BF16) if bias else None
    turned = torch.randn(16, 6, dtype=BF16).T
    for rows, calls in ((x, 1), (turned, 0)):
        asked.clear()
        found = linear(rows, weight, summand, kernel.__name__)
        assert len(asked) == calls
        exact = rows.double() @ weight.double().T + (0 if summand is None else summand.double())
        # One rounding of bf16, and 16 sums of float32 or, of torch on a CPU, a rounding before the bias.
        magnitude = rows.double().abs() @ weight.double().abs().T + (0 if summand is None else summand.abs())
        limit = exact.abs() * 2**-8 + magnitude * (2**-8 if bias and not calls else 16 * 2**-23)
        assert bool(((found.double() - exact).abs() <= limit).all())
        assert found.stride() == (24, 1)  # as torch.compile was told
        checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        any_torch.library.opcheck(linear.default, (rows, weight, summand, kernel.__name__), test_utils=checks)
    with FlopCounterMode(display=False) as counted:
        linear(x, weight, summand, kernel.__name__)
    assert counted.get_total_flops() == 2 * 6 * 16 * columns


def test_another_error_of_the_kernel_reaches_the_caller_of_the_operator() -> None:
    def broken(*_: object, **__: object) -> Tensor:
        raise RuntimeError("CUDA error")

    remember(SimpleNamespace(__name__="broken", matmul=broken))
    with pytest.raises(RuntimeError, match="CUDA error"):
        linear(torch.zeros(2, 16), torch.zeros(8, 16), None, "broken")


# --- tensors with a dispatch of their own


class Quantised(Tensor):
    """A weight that knows torch's operators only, as those of torchao."""

    held: Tensor

    @staticmethod
    def __new__(cls: type[Any], inner: Tensor) -> Any:
        make: Any = Tensor._make_wrapper_subclass
        return make(cls, inner.shape, dtype=inner.dtype, device=inner.device, strides=inner.stride())

    def __init__(self, inner: Tensor) -> None:
        self.held = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten":
            raise NotImplementedError(f"no rule for {func}")
        made = func(*[a.held if isinstance(a, Quantised) else a for a in args], **(kwargs or {}))
        return Quantised(made) if "detach" in str(func) or ".t." in str(func) else made


class ByFunction(Tensor):
    """A weight that rules over torch's functions, not its operators."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            return torch.full((args[0].shape[0], 24), 7.0, dtype=BF16)
        plain: Any = super()
        return plain.__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("kind", [Quantised, ByFunction])
def test_torch_computes_a_weight_of_another_class_and_the_layer_says_so(kind: Any) -> None:
    theirs, ours = layer_of(PLAIN)
    weight = kind(theirs.weight.data) if kind is Quantised else theirs.weight.data.as_subclass(kind)
    theirs.weight = ours.weight = nn.Parameter(weight, requires_grad=False)
    x = torch.randn(4, 16, dtype=BF16)
    assert torch.equal(ours(x), theirs(x))
    assert ours.reason == f"weight is a {kind.__name__}, for which torch's own operators have rules"
    assert not asked
    model = nn.Sequential(theirs)
    with pytest.warns(LinearLeftWarning, match=rf"weight is a \S+\.{kind.__name__}, not a plain parameter"):
        assert replace_linear(model, PLAIN) == 0
    assert model[0] is theirs


@contextmanager
def world() -> Generator[Any]:
    """Yield a mesh over this process alone.

    torch keeps its group in a cache of the thread that used it. A child that is forked from another thread
    destroys the group there and waits for gloo's threads, which the child does not have. A test that makes a
    world therefore runs in a process of its own.
    """
    distributed: Any = any_torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@in_own_process
def test_a_layer_that_is_made_tensor_parallel_is_torchs() -> None:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    theirs = nn.Linear(16, 24, dtype=BF16).requires_grad_(False)
    model: Any = nn.Sequential(Linear.of(theirs, BIASED))
    x = torch.randn(4, 16, dtype=BF16)
    with world() as mesh:
        parallelize_module(model, mesh, {"0": ColwiseParallel()})
        assert isinstance(model[0].weight, DTensor)
        assert torch.equal(model(x), theirs(x))
        assert model[0].reason.endswith("is a DTensor, for which torch's own operators have rules")
        plain = nn.Sequential(nn.Linear(16, 24, dtype=BF16))
        parallelize_module(plain, mesh, {"0": ColwiseParallel()})
        with pytest.warns(LinearLeftWarning):
            assert replace_linear(plain, BIASED) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@in_own_process
def test_a_sharded_layer_with_mixed_precision_computes_what_torchs_does(bias: bool, whole: bool) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with world() as mesh:
        sharded: Any = fully_shard
        policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        theirs = nn.Linear(16, 24, bias)
        ours = Linear.of(nn.Linear(16, 24, bias), BIASED if bias else PLAIN)
        ours.load_state_dict(theirs.state_dict())
        models = [nn.Sequential(theirs), nn.Sequential(ours)]
        for model in models:
            sharded(model if whole else model[0], mesh=mesh, mp_policy=policy)
        x = torch.randn(4, 16)
        # A weight [1, 0, ...] has one product for each element: every sum is exact, and rounded once.
        with torch.no_grad():
            for model in models:
                weight = cast(Any, model[0].weight).to_local()
                weight.zero_()[:, 0] = 1
                if bias:
                    cast(Any, model[0].bias).to_local().fill_(0.5)
            right, found = (model(x) for model in models)
        assert (found.dtype, ours.reason, len(asked)) == (right.dtype, "", 1)
        assert torch.equal(found, right)
        gradients: list[Tensor] = []
        for model in models:
            model(x).float().square().sum().backward()
            gradients.append(cast(Any, model[0].weight).grad.to_local())
        assert ours.reason == "a must not require grad (no backward): detach it"
        assert torch.equal(*gradients)


# --- one rounding


def test_a_bias_is_added_before_the_one_rounding() -> None:
    """257 is no bf16: rounded before -256 is added, it is 256, and the element 0 in place of 1."""
    weight = torch.tensor([[256.0, 1.0] + [0.0] * 6] * 8, dtype=BF16)
    x = torch.tensor([[1.0, 1.0] + [0.0] * 6] * 4, dtype=BF16)
    theirs = nn.Linear(8, 8, dtype=BF16).requires_grad_(False)
    theirs.weight.copy_(weight)
    theirs.bias.fill_(-256)
    ours = Linear.of(theirs, BIASED)
    assert torch.equal(ours(x), torch.ones(4, 8, dtype=BF16))
    assert ours.reason == ""
    assert len(asked) == 1
    plain = Linear.of(theirs, PLAIN)
    assert torch.equal(plain(x), theirs(x))
    assert plain.reason == "plain has no column_bias: its product would be rounded before the bias is added"
    assert len(asked) == 1


def test_layers_with_a_bias_are_left_by_a_kernel_without_one() -> None:
    model = nn.Sequential(nn.Linear(16, 24, dtype=BF16), nn.Linear(24, 8, bias=False, dtype=BF16))
    with pytest.warns(
        LinearLeftWarning, match="\n  0: plain has no column_bias: its product would be rounded"
    ):
        found = replace_linear(model, PLAIN)
    assert (found, found.replaced, list(found.left)) == (1, ("1",), ["0"])
    found = replace_linear(model, BIASED)  # a kernel with one takes them
    assert (found, found.replaced) == (1, ("0",))
    assert found.left == {"1": "plain computes the layer already"}


# --- autocast


@pytest.mark.parametrize("cast_to", [torch.float16, BF16])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("compiling", [False, True])
def test_a_layer_follows_autocast(cast_to: torch.dtype, dtype: torch.dtype, compiling: bool) -> None:
    theirs = nn.Linear(16, 24, bias=False, dtype=dtype).requires_grad_(False)
    ours = Linear.of(theirs, PLAIN)
    call = any_torch.compile(ours, fullgraph=True, backend="eager") if compiling else ours
    x = torch.randn(4, 16, dtype=dtype)
    call(x)
    asked.clear()
    with torch.autocast("cpu", dtype=cast_to):
        found, right = call(x), theirs(x)
    assert found.dtype == right.dtype == cast_to
    if compiling:
        assert torch.equal(found, right)
    elif dtype == cast_to:
        assert (ours.reason, len(asked)) == ("", 1)
    else:
        assert torch.equal(found, right)
        assert ours.reason == f"autocast casts input from {dtype} to {cast_to}"
    assert call(x).dtype == dtype


def test_autocast_leaves_float64_and_other_devices_alone() -> None:
    wide = kernel_on_the_cpu("wide", torch.mm)
    layer = Linear(16, 24, bias=False, kernel=wide, dtype=torch.float64)
    with torch.autocast("cpu", dtype=BF16):
        assert layer(torch.zeros(2, 16, dtype=torch.float64)).dtype == torch.float64
    assert layer.reason == ""


# --- other tracers


class Net(nn.Module):
    """A layer of a kernel inside of others."""

    def __init__(self, kernel: Any) -> None:
        cast(Any, super()).__init__()
        self.block = nn.Sequential(Linear(16, 24, bias=False, kernel=kernel, dtype=BF16), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) * 2


def test_fx_records_a_layer_as_a_whole() -> None:
    net = Net(PLAIN).requires_grad_(False)
    traced: Any = torch.fx.symbolic_trace(net)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["block.0", "block.1"]
    x = torch.randn(2, 3, 16, dtype=BF16)
    assert torch.equal(traced(x), net(x))
    assert len(asked) == 2
    layer = net.block[0]
    root: Any = torch.fx.symbolic_trace(layer)  # of a root there is no call
    assert torch.allclose(root(x).float(), layer(x).float(), rtol=2**-7, atol=2**-10)


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
def test_jit_script_is_refused_with_what_takes_its_place() -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.compile or torch\.export"):
        any_torch.jit.script(Net(PLAIN))


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
def test_jit_trace_records_torchs_linear() -> None:
    net = Net(PLAIN).requires_grad_(False)
    trace = any_torch.jit.trace
    traced = trace(net, torch.randn(4, 16, dtype=BF16), check_trace=False)
    assert net.block[0].reason == "torch.jit.trace records torch's own operators only"
    x = torch.randn(5, 16, dtype=BF16)
    assert torch.allclose(traced(x).float(), net(x).float(), rtol=2**-7, atol=2**-10)


# --- reports


def ignored(*_: object) -> None:
    """A hook that changes nothing."""


def test_a_replacement_says_which_layers_have_the_kernel_and_why_others_have_not() -> None:
    hooked = nn.Linear(8, 8, bias=False)
    hooked.register_forward_hook(ignored)
    model = nn.Sequential(nn.Linear(16, 8, bias=False), hooked)
    with pytest.warns(LinearLeftWarning, match="1: layer has a forward hook"):
        found = replace_linear(model, PLAIN)
    assert (found, found.replaced) == (1, ("0",))
    assert found.left == {"1": "layer has a forward hook: it would not be called"}


def test_a_replacement_of_nothing_says_so() -> None:
    with pytest.warns(
        LinearLeftWarning, match=r"^replace_linear replaced nothing: the model has no torch.nn"
    ):
        assert replace_linear(nn.Sequential(nn.ReLU()), PLAIN) == 0
    with pytest.warns(LinearLeftWarning, match=r"^replace_linear replaced nothing: .*\n  0: `only` does not"):
        found = replace_linear(nn.Sequential(nn.Linear(8, 8)), PLAIN, only=lambda _: False)
    assert found.left == {"0": "`only` does not mean the layer"}
