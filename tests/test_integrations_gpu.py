"""integrations: layers on a Hopper GPU, where torch compiles, shards and casts them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from modules import ROOT, module_file
from torch import Tensor, nn

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.integrations import Linear, LinearLeftWarning, replace_linear
from gemmgen.launcher_file import launcher_texts
from gemmgen.module import import_generated
from gemmgen.product import make

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # Inductor's depend on the release
BF16 = torch.bfloat16
K, N = 512, 384
any_torch: Any = cast(Any, torch)
BIASED = "h100_bf16_with_bias"
"""A module whose epilogue adds a bias for each column, and does nothing else; no such one is committed."""
STEMS = (
    "h100_bf16",
    *(f"h100_bf16_backward{end}" for end in ("", "_grad_a", "_grad_b")),
)


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a module with a bias."""
    folder = tmp_path_factory.mktemp("biased")
    spec = folder / f"{BIASED}.yaml"
    text = (ROOT / "specs" / "h100_bf16.yaml").read_text()
    spec.write_text(
        text.replace("epilogue: {subtile_n: 128}", "epilogue: {subtile_n: 128, ops: [column_bias]}")
    )
    made = make(spec)
    for name, each in made.files().items():
        (folder / name).write_text(each)
    for name, text in launcher_texts().items():
        (folder / name).write_text(text)
    return folder / f"{BIASED}.py"


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, biased: Path) -> Iterator[dict[str, ModuleType]]:
    """Committed modules where torch looks for them; torch adds up in float32, as they do."""
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))
    matmul = any_torch.backends.cuda.matmul  # of whose names pytest can take none back
    allowed = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    any_torch.manual_seed(0)
    any_torch._dynamo.reset()
    found = {stem: import_generated(module_file(stem)) for stem in STEMS}
    found[BIASED] = import_generated(biased)
    for stem, module in found.items():
        monkeypatch.setitem(sys.modules, stem, module)
    yield found
    matmul.allow_bf16_reduced_precision_reduction = allowed


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A world of this process and its GPU."""
    distributed: Any = any_torch.distributed
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cuda", (1,))
    distributed.destroy_process_group()


def torchs(*, bias: bool = False, dtype: torch.dtype = BF16) -> nn.Linear:
    """A frozen layer of torch's."""
    return nn.Linear(K, N, bias, device="cuda", dtype=dtype).requires_grad_(False)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


def assert_rounded_once(found: Tensor, x: Tensor, layer: nn.Linear) -> None:
    """Each element is within one rounding of bf16 (2**-8), and the roundings of K sums of float32."""
    bias = cast("Tensor | None", layer.bias)
    summand = torch.zeros(N, device="cuda", dtype=torch.float64) if bias is None else bias.double()
    exact = x.double() @ layer.weight.double().T + summand
    magnitude = x.double().abs() @ layer.weight.double().abs().T + summand.abs()
    assert found.dtype == BF16
    assert bool(((found.double() - exact).abs() <= exact.abs() * 2**-8 + magnitude * K * 2**-24).all())


def signs(*shape: int) -> Tensor:
    """-1, 0 and 1: with so few summands, every sum is exact, in any order."""
    return torch.randint(-1, 2, shape, device="cuda").to(BF16)


INPUTS: dict[str, Callable[[Callable[..., Tensor]], Tensor]] = {
    "rows": lambda make: make(64, K),
    "transposed": lambda make: make(K, 64).T,
    "one row expanded": lambda make: make(1, K).expand(64, K),
    "rows 513 apart": lambda make: make(64, K + 1)[:, :K],
    "past an address": lambda make: make(64, K + 8)[:, 1 : K + 1],
    "patches of one picture": lambda make: make(1, K, 14, 14).flatten(2).transpose(1, 2),
    "no rows": lambda make: make(0, K),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", INPUTS)
def test_a_compiled_layer_gives_the_numbers_of_every_input(
    kind: str, bias: bool, dynamic: bool, modules: dict[str, ModuleType]
) -> None:
    theirs = torchs(bias=bias)
    ours = Linear.of(theirs, modules[BIASED if bias else "h100_bf16"])
    compiled = any_torch.compile(ours, fullgraph=True, dynamic=dynamic)
    x = INPUTS[kind](noise)
    eager, right = ours(x), theirs(x)
    if ours.reason:  # torch computed it, and rounds the product of some inputs before it adds the bias
        assert torch.equal(eager, right)
    else:
        assert_rounded_once(eager, x, theirs)
    found = compiled(x)
    if not torch.equal(found, right):
        assert_rounded_once(found, x, theirs)


def test_an_address_that_does_not_fit_is_found_after_one_that_did(modules: dict[str, ModuleType]) -> None:
    theirs = torchs()
    compiled = any_torch.compile(Linear.of(theirs, modules["h100_bf16"]), fullgraph=True)
    wide = noise(64, K + 8)
    for first in (0, 1, 8, 3):
        x = wide[:, first : first + K]  # torch guards their strides, which are the same
        assert_rounded_once(compiled(x), x, theirs)


@pytest.mark.parametrize("kind", INPUTS)
def test_a_compiled_layer_learns_from_every_input(kind: str, modules: dict[str, ModuleType]) -> None:
    theirs = torchs().requires_grad_(True)
    ours = Linear.of(torchs().requires_grad_(True), modules["h100_bf16_backward"])
    ours.load_state_dict(theirs.state_dict())
    compiled = any_torch.compile(ours, fullgraph=True)
    x = INPUTS[kind](signs)
    for call in (theirs, compiled):
        call(x).backward(torch.ones(*x.shape[:-1], N, device="cuda", dtype=BF16))
    assert torch.equal(cast(Tensor, ours.weight.grad), cast(Tensor, theirs.weight.grad))


@pytest.mark.parametrize("bias", [False, True])
def test_a_known_call_of_a_layer_makes_no_check_again(
    bias: bool, modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = torchs(bias=bias)
    layer = Linear.of(plain, modules[BIASED if bias else "h100_bf16"])
    inputs = [signs(*rows, K) for rows in ((7,), (2, 5), (2, 1, 3))]
    for x in inputs:
        layer(x)
    monkeypatch.setattr(layer, "_why_torch", None)
    for x in inputs:
        found = layer(signs(*x.shape))
        assert found.shape == (*x.shape[:-1], N)
        assert_rounded_once(layer(x), x, plain)
    monkeypatch.undo()
    with torch.autocast("cuda", torch.float16):
        assert layer(inputs[0]).dtype == torch.float16
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(inputs[0][:, :-8])
    for parameter in layer.parameters():
        parameter.data = parameter.data[:-16].clone()  # rows that leave
    assert layer(inputs[0]).shape[-1] == N - 16


def test_a_bias_is_rounded_with_the_sum(modules: dict[str, ModuleType]) -> None:
    theirs = torchs(bias=True)
    x = noise(256, K)
    with torch.no_grad():  # which cancels most of the sums of a row
        theirs.bias.copy_(-(x[:1] @ theirs.weight.T)[0])
    fused, plain = (Linear.of(theirs, modules[stem]) for stem in (BIASED, "h100_bf16"))
    assert_rounded_once(fused(x), x, theirs)
    assert fused.reason == ""
    assert torch.equal(plain(x), theirs(x))
    assert plain.reason.startswith("h100_bf16 has no column_bias")


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("cast_to", [torch.float16, BF16])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_a_layer_follows_autocast_on_a_gpu(
    dtype: torch.dtype,
    cast_to: torch.dtype,
    compiling: bool,
    modules: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # The cache of torch 2.11 finds a graph compiled for autocast to another type, also for torch's own layer.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    theirs = torchs(dtype=dtype)
    ours = Linear.of(theirs, modules["h100_bf16"])
    call = any_torch.compile(ours, fullgraph=True) if compiling else ours
    x = noise(64, K).to(dtype)
    call(x)
    with torch.autocast("cuda", dtype=cast_to):
        found, right = call(x), theirs(x)
    assert found.dtype == right.dtype == cast_to
    if dtype == cast_to:
        assert_rounded_once(found, x, theirs)
    else:
        assert torch.equal(found, right)
    assert call(x).dtype == dtype


def test_a_tensor_parallel_layer_is_torchs_on_a_gpu(mesh: Any, modules: dict[str, ModuleType]) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    theirs = torchs()
    model: Any = nn.Sequential(Linear.of(theirs, modules["h100_bf16"]))
    parallelize_module(model, mesh, {"0": ColwiseParallel()})
    x = noise(64, K)
    assert torch.equal(model(x), theirs(x))
    assert "is a DTensor" in model[0].reason
    parallel = nn.Sequential(torchs())
    parallelize_module(parallel, mesh, {"0": ColwiseParallel()})
    with pytest.warns(LinearLeftWarning, match="DTensor|forward pre-hook"):
        assert replace_linear(parallel, modules["h100_bf16"]) == 0


@pytest.mark.parametrize("bias", [False, True])
def test_a_sharded_layer_with_mixed_precision_is_as_torchs_on_a_gpu(
    mesh: Any, bias: bool, modules: dict[str, ModuleType]
) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    sharded: Any = fully_shard
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
    theirs = torchs(bias=bias, dtype=torch.float32).requires_grad_(True)
    kernel = modules[BIASED if bias else "h100_bf16_backward"]
    ours = Linear.of(torchs(bias=bias, dtype=torch.float32).requires_grad_(True), kernel)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(signs(*parameter.shape))
    ours.load_state_dict(theirs.state_dict())
    for layer in (theirs, ours):
        sharded(layer, mesh=mesh, mp_policy=policy)
    x = signs(64, K).float()
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
    assert ours.reason == ""
    gradients: list[Tensor] = []
    for layer in (theirs, ours):
        layer(x).backward(torch.ones(64, N, device="cuda", dtype=BF16))
        gradients.append(cast(Any, layer.weight.grad).to_local())
    assert torch.equal(*gradients)
