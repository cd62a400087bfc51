"""Kernels that keep memory for sums, in CUDA graphs, and in the warm-up of `mode="reduce-overhead"`.

That warm-up captures nothing: it computes once with all memory from the pool of the graph, and then refuses
memory of the pool that is still alive and no output.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import get_ident
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from fake_gpu import cuda, on_a_fake_gpu
from fake_triton import FakeDriver, on_a_fake_driver
from modules import libraries_folder, module_file
from torch import Tensor, nn

from gemmgen.device import captured_graph
from gemmgen.module import import_generated

BF16 = torch.bfloat16
STEMS = ("h100_bf16_rows16_split2", "h100_bf16_split8_parallel")
"""Modules whose last program of a tile adds up, and with a second kernel that adds up."""
CALLS = ("matmul", "operator")


class Pool:
    """Memory that tensors of one thread come from while it is in use, as `torch.cuda.use_mem_pool` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let torch's functions allocate in the pool while it is in use."""
        self.made: list[weakref.ref[Tensor]] = []
        self.thread = 0
        for name in ("empty", "zeros"):
            monkeypatch.setattr(torch, name, self._noting(getattr(torch, name)))

    def _noting(self, allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def allocated(*shape: Any, **keywords: Any) -> Tensor:
            made = allocate(*shape, **keywords)
            if get_ident() == self.thread:
                self.made.append(weakref.ref(made))
            return made

        return allocated

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Let this thread allocate in the pool."""
        self.thread = get_ident()
        yield
        self.thread = 0

    def count_live(self) -> int:
        """Return the number of tensors in the pool that are alive."""
        return sum(each() is not None for each in self.made)


@pytest.fixture(params=STEMS)
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that needs memory for sums, on a GPU that is not there."""
    on_a_fake_gpu(monkeypatch)
    return import_generated(module_file(request.param))


@pytest.fixture
def driver(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return on_a_fake_driver(module, monkeypatch)


def prepared(module: ModuleType, call: str) -> Callable[[], None]:
    """Return a call of `matmul`, or of what runs the operator of a module, into a D that is given."""
    a, b, out = cuda(4, 16), cuda(24, 16).T, cuda(4, 24)
    if call == "matmul":
        return lambda: module.matmul(a, b, out=out)
    return lambda: module.call.run_as_operator(a, b, out=out)


@pytest.mark.parametrize("call", CALLS)
def test_no_memory_of_a_pool_in_use_is_kept(
    module: ModuleType, driver: FakeDriver, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pool = prepared(module, call), Pool(monkeypatch)
    with pool.in_use():
        for driver.stream in (7, 8):
            run()
            run()
            driver.jit.clear()  # which holds the tensors
    assert pool.count_live() == 0
    assert module.call.memory.cache_info().currsize == 2


@pytest.mark.parametrize("call", CALLS)
def test_a_captured_call_has_memory_of_the_pool_of_its_graph(
    module: ModuleType, driver: FakeDriver, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pool = prepared(module, call), Pool(monkeypatch)
    driver.stream, driver.capturing = 7, True
    with pool.in_use():
        run()
        assert pool.count_live() == len(pool.made) > 0
        driver.jit.clear()  # which holds the tensors
    assert pool.count_live() == 0
    assert module.call.memory.cache_info().currsize == 0


def test_memory_that_cannot_be_had_is_an_error_of_the_call(
    module: ModuleType, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = prepared(module, "matmul")

    def refuse(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", refuse)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            run()
    run()
    assert len({grid for grid, *_ in driver.jit}) == len(driver.jit) > 0


# --- a GPU


def signs(*shape: int) -> Tensor:
    """Return -1, 0 and 1: with so few summands, every result is exact."""
    return torch.randint(-1, 2, shape, device="cuda").to(BF16)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T from exact sums."""
    return (x.float() @ weight.float().T).to(BF16)


class Linear(nn.Module):
    """A linear layer whose operator calls `matmul`, as the operators of others do."""

    def __init__(self, k: int, n: int, operator: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.operator = nn.Parameter(signs(n, k), requires_grad=False), operator

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(x, self.weight)


def operator_of(name: str, module: ModuleType) -> Callable[[Tensor, Tensor], Tensor]:
    """Return an operator of torch that calls `matmul`, which so does not learn that torch traces."""

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        return module.matmul(x, weight.T)

    def shaped(x: Tensor, weight: Tensor) -> Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])

    custom: Any = cast(Any, torch.library).custom_op(f"test_graphs::{name}", mutates_args=())(multiply)
    custom.register_fake(shaped)
    return custom


@pytest.fixture(params=(*STEMS, "h200_bf16"))
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ModuleType]:
    """A module, or a library among whose kernels are such."""
    name: str = request.param
    if name in STEMS:
        module = import_generated(module_file(name))
        monkeypatch.setitem(sys.modules, name, module)
        return name, module
    monkeypatch.setattr(sys, "path", [str(libraries_folder()), *sys.path])
    return name, __import__(name)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("seen", [False, True], ids=["in another operator", "seen by torch"])
@pytest.mark.parametrize("rows", [16, 300])
def test_layers_are_compiled_with_reduced_overhead(
    kernel: tuple[str, ModuleType], seen: bool, rows: int
) -> None:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    name, module = kernel

    def traced(x: Tensor, weight: Tensor) -> Tensor:
        return module.matmul(x, weight.T)

    operator = traced if seen else operator_of(name, module)
    first, second = Linear(4096, 1024, operator), Linear(1024, 4096, operator)

    def model(x: Tensor) -> Tensor:
        return second(first(x).sign())

    dynamo: Any = cast(Any, torch)._dynamo
    dynamo.reset()
    compiled: Any = cast(Any, torch).compile(model, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(6):
            x = signs(rows, 4096)
            wanted = product(product(x, first.weight).sign(), second.weight)
            assert torch.equal(compiled(x).clone(), wanted)
            assert torch.equal(model(x), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("stem", STEMS)
def test_a_graph_replays_beside_calls_on_other_streams_and_in_a_pool(stem: str) -> None:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    module = import_generated(module_file(stem))
    x, weight = signs(48, 4096), signs(256, 4096)
    wanted = product(x, weight)
    module.matmul(x, weight.T)
    torch.cuda.synchronize()
    with captured_graph() as graph:
        replayed = module.matmul(x, weight.T)
    pool, streams = torch.cuda.MemPool(), [torch.cuda.Stream() for _ in range(2)]
    found: list[Tensor] = []
    for i in range(50):
        graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(module.matmul(x, weight.T))
        if i == 5:
            with torch.cuda.use_mem_pool(pool):
                module.matmul(x[:40], weight.T)
    torch.cuda.synchronize()
    assert all(torch.equal(each, wanted) for each in [*found, replayed])
    live = [
        block["size"]
        for segment in pool.snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert live == []
