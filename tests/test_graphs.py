"""Kernels that keep memory for sums, in CUDA graphs, and in the warm-up of `mode="reduce-overhead"`.

That warm-up captures nothing: it computes once with all memory from the pool of the graph, and then refuses
memory of the pool that is still alive and no output.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from threading import Barrier, Thread, get_ident
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from fake_gpu import cuda, on_a_fake_gpu
from fake_triton import FakeDriver, on_a_fake_driver
from modules import libraries_folder, module_file
from torch import Tensor, nn

import gemmgen_launch
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
            if get_ident() == self.thread and not made.is_meta:
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


# --- counters of captured calls

COUNTING, ADDING = "h100_bf16_rows16_split2", "h100_bf16_split8_atomic"
"""A module whose counters alone have to be zero, and one whose sums have to be, too."""


class Cleared:
    """The GPU's memory that is cleared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note all memory that `torch.zeros` returns from now on."""
        self.made: list[int] = []
        zeros = torch.zeros

        def noted(*shape: Any, **keywords: Any) -> Tensor:
            made = zeros(*shape, **keywords)
            if not made.is_meta:
                self.made.append(made.data_ptr())
            return made

        monkeypatch.setattr(torch, "zeros", noted)


class Calls:
    """Calls of a module on a driver that is not there, with an M for each call and N of 24."""

    def __init__(self, stem: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Call nothing yet."""
        on_a_fake_gpu(monkeypatch)
        self.module = import_generated(module_file(stem))
        self.driver = on_a_fake_driver(self.module, monkeypatch)
        self.tensors = {m: (cuda(m, 16), cuda(24, 16).T, cuda(m, 24)) for m in (4, 40)}

    def __call__(self, m: int = 4) -> tuple[int, int]:
        """Call, and return the addresses of the sums and of the counters that the kernel got."""
        a, b, out = self.tensors[m]
        by_triton = len(self.driver.jit)
        self.module.matmul(a, b, out=out)
        if len(self.driver.jit) == by_triton:
            return cast("tuple[int, int]", self.driver.direct[-1].parameters[-2:])
        arguments = [each for each in self.driver.jit[-1][-1] if isinstance(each, Tensor)]
        return cast("tuple[int, int]", tuple(each.data_ptr() for each in arguments[-2:]))

    def captured(self, capture: int | None, stream: int = 7, m: int = 4) -> tuple[int, int]:
        """Do so while a graph captures a stream."""
        before, self.driver.stream = self.driver.stream, stream
        self.driver.capturing, self.driver.capture = True, capture
        try:
            return self(m)
        finally:
            self.driver.capturing, self.driver.stream = False, before


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(COUNTING, monkeypatch)


@pytest.fixture
def reserve(calls: Calls) -> Any:
    """The reserve of the first GPU."""
    assert calls
    return gemmgen_launch.reserve_of(0)


@pytest.mark.parametrize("m", [4, 40], ids=["repeated", "checked"])
def test_a_captured_call_after_any_other_clears_nothing(
    calls: Calls, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = calls()
    cleared, waits = Cleared(monkeypatch), len(calls.driver.waits)
    places = [calls.captured(1, m=m) for _ in range(3)]
    assert cleared.made == []
    assert len(calls.driver.waits) == waits == 1
    assert len({counters for _, counters in places}) == 1
    assert eager[1] not in {counters for _, counters in places}


def test_captures_and_streams_have_counters_of_their_own(calls: Calls) -> None:
    calls()
    keys = [(capture, stream, m) for capture in (1, 2) for stream in (7, 8) for m in (4, 40)]
    first = [calls.captured(*key)[1] for key in keys]
    again = [calls.captured(*key)[1] for key in keys]
    assert first == again
    lines = {counters // gemmgen_launch.LINE_BYTES for counters in first}
    assert len(lines) == len(keys)


def test_modules_have_counters_of_their_own_in_one_reserve(
    calls: Calls, reserve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[int] = []
    for module in (calls.module, import_generated(module_file(COUNTING))):
        monkeypatch.setattr(module, "matmul_kernel", calls.driver)
        calls.module = module
        calls()
        places.append(calls.captured(1)[1])
    ((block, _),) = reserve.blocks
    assert len({*places}) == 2
    assert all(0 <= place - block.data_ptr() < block.numel() for place in places)


def test_counters_of_a_graph_are_never_given_again(calls: Calls, reserve: Any) -> None:
    calls()
    places = [calls.captured(capture)[1] for capture in range(100)]
    assert len({*places}) == 100
    assert calls.module.call.workspaces.of_capture.cache_info().currsize == gemmgen_launch.MAX_STREAMS
    assert all(not block.any() for block, _ in reserve.blocks)


def test_sums_that_are_added_to_are_zeros_of_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemmgen_launch, "MAX_PART", 2**18)
    calls = Calls(ADDING, monkeypatch)
    calls()
    cleared = Cleared(monkeypatch)
    sums, counters = calls.captured(1)
    assert (sums, counters) == calls.captured(1)
    assert cleared.made == []
    size = calls.module.make_workspace(4, 24, torch.device("meta"))[0].nbytes
    assert sums + size <= counters or counters + 4 <= sums


def test_many_sums_are_cleared_by_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(ADDING, monkeypatch)
    calls()
    cleared = Cleared(monkeypatch)
    assert {*calls.captured(1)} <= {*cleared.made}


def test_a_kernel_without_counters_reserves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls("h100_bf16_split8_parallel", monkeypatch)
    calls()
    calls.captured(1)
    assert gemmgen_launch.reserve_of(0).blocks == []


def without_a_number(calls: Calls, _: pytest.MonkeyPatch) -> int | None:
    """Let the driver tell no number of a capture."""
    calls()
    return None


def without_a_driver(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Let there be no driver."""
    calls()

    def refuse() -> FakeDriver:
        raise gemmgen_launch.DriverError("libcuda.so.1 cannot be loaded")

    monkeypatch.setattr(gemmgen_launch, "driver", refuse)
    return 1


def without_an_eager_call(*_: object) -> int | None:
    """Capture the first call."""
    return 1


def without_zeros(calls: Calls, _: pytest.MonkeyPatch) -> int | None:
    """Take all zeros that are reserved."""
    calls()
    while gemmgen_launch.reserve_of(0).take(gemmgen_launch.MAX_PART) is not None:
        pass
    return 1


@pytest.mark.parametrize(
    "prepare", [without_a_number, without_a_driver, without_an_eager_call, without_zeros]
)
def test_a_graph_clears_counters_that_are_not_reserved(
    calls: Calls, prepare: Callable[..., int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = prepare(calls, monkeypatch)
    cleared = Cleared(monkeypatch)
    places = [calls.captured(number)[1] for _ in range(2)]
    assert {*places} == {*cleared.made}


def test_a_call_without_a_driver_reserves_nothing(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_driver(calls, monkeypatch)
    found = gemmgen_launch.Reserve(0)
    found.fill()
    assert found.blocks == []


def test_a_gpu_without_room_for_a_reserve_computes(
    calls: Calls, reserve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = torch.zeros

    def limited(*shape: Any, **keywords: Any) -> Tensor:
        if shape == (gemmgen_launch.RESERVED_BYTES,):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(*shape, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "zeros", limited)
        calls()
    assert reserve.blocks == []
    calls(40)  # checked
    assert len(reserve.blocks) == 1


def test_a_reserve_is_filled_when_half_of_it_is_taken(calls: Calls, reserve: Any) -> None:
    calls()
    half = gemmgen_launch.RESERVED_BYTES // gemmgen_launch.MAX_PART // 2
    for _ in range(half):
        reserve.take(gemmgen_launch.MAX_PART)
    calls.module.call.known.forget()
    calls()  # checked again
    assert len(reserve.blocks) == 1
    taken = calls.captured(1)
    calls.module.call.known.forget()
    assert calls.captured(1)[1] == taken[1]
    assert len(reserve.blocks) == 1  # a captured call reserves nothing
    calls.module.call.known.forget()
    calls()  # checked, with memory that is there
    assert len(reserve.blocks) == 2
    while reserve.take(gemmgen_launch.MAX_PART) is not None:
        pass
    calls.driver.stream = 20
    calls()  # repeated, with memory that is not there
    assert len(reserve.blocks) == 3
    assert calls.driver.waits == [77, 77, 20]


def test_a_reserve_is_limited(calls: Calls, reserve: Any) -> None:
    assert calls
    for _ in range(3 * gemmgen_launch.MAX_RESERVED):
        reserve.fill()
        while reserve.take(gemmgen_launch.MAX_PART) is not None:
            pass
    assert len(reserve.blocks) == gemmgen_launch.MAX_RESERVED
    assert reserve.take(1) is None


def test_repeated_calls_do_not_look_at_the_reserve(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    calls()

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(gemmgen_launch, "reserve_of", refuse)
    assert calls() == calls()
    assert len(calls.driver.jit) == 1


def test_threads_fill_a_reserve_once_and_get_different_zeros(calls: Calls, reserve: Any) -> None:
    together, taken = Barrier(8), list[int]()

    def work() -> None:
        together.wait()
        reserve.fill()
        taken.extend(reserve.take(4).data_ptr() for _ in range(100))

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reserve.blocks) == len(calls.driver.waits) == 1
    assert len({*taken}) == 800


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


KERNEL = 0
"""[cuda] The CUgraphNodeType of a kernel; 2 is that of a memset."""


def kinds_of(graph: torch.cuda.CUDAGraph) -> list[int]:
    """Return the kind of each node of a graph."""
    cuda_library, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    assert not cuda_library.cuGraphGetNodes(handle, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    assert not cuda_library.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    kinds: list[int] = []
    for node in nodes:
        kind = ctypes.c_int(-1)
        assert not cuda_library.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kinds.append(kind.value)
    return kinds


@pytest.mark.gpu
@pytest.mark.parametrize(("stem", "kernels"), [(COUNTING, 1), ("h100_bf16_split8_parallel", 2)])
def test_a_captured_call_adds_no_node_but_its_kernels(
    stem: str, kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    module = import_generated(module_file(stem))
    x, weights = signs(16, 4096), [signs(256, 4096) for _ in range(3)]
    wanted = [product(x, weight) for weight in weights]
    for weight in weights:
        module.matmul(x, weight.T)
    torch.cuda.synchronize()
    graphs: list[tuple[torch.cuda.CUDAGraph, list[Tensor]]] = []
    # Otherwise torch drops a graph whose nodes can be asked for.
    monkeypatch.setattr(torch.cuda, "CUDAGraph", partial(torch.cuda.CUDAGraph, keep_graph=True))
    for _ in range(2):
        with captured_graph() as graph:
            found = [module.matmul(x, weight.T) for weight in weights]
        assert kinds_of(graph) == [KERNEL] * (3 * kernels)
        graphs.append((graph, found))
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(50):
        for stream, (graph, found) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                for each in found:
                    each.zero_()
                graph.replay()  # at the same time as the other one
        torch.cuda.synchronize()
        for _, found in graphs:
            assert all(map(torch.equal, found, wanted))


@pytest.mark.gpu
def test_calls_on_two_streams_of_one_capture_run_at_the_same_time() -> None:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    module = import_generated(module_file(COUNTING))
    x, weight = signs(16, 4096), signs(256, 4096)
    wanted, other = product(x, weight), torch.cuda.Stream()
    module.matmul(x, weight.T)
    torch.cuda.synchronize()
    found: list[Tensor] = []
    with captured_graph() as graph:
        other.wait_stream(torch.cuda.current_stream())
        for _ in range(20):
            with torch.cuda.stream(other):
                found.append(module.matmul(x, weight.T))
            found.append(module.matmul(x, weight.T))
        torch.cuda.current_stream().wait_stream(other)
    for _ in range(20):
        for each in found:
            each.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(each, wanted) for each in found)
