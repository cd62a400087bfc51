"""pack: numbers, graphs, streams and threads of compiled kernels on a GPU, by the driver, without Triton.

Each module is checked as `gemmgen test` checks it, and then beside torch's own call.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from modules import spec_file
from torch import Tensor

from gemmgen import packing
from gemmgen.device import captured_graph
from gemmgen.packing import PackedModule
from gemmgen.product import load
from gemmgen.verify import verify

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
STEMS = (
    *(
        "h100_bf16",
        "h100_bf16_cluster2x1",
        "h100_bf16_residual",
        "h100_bf16_split8_bias",
        "h100_bf16_rows16_split2",
    ),
    *("h100_bf16_split8_parallel", "h100_bf16_grouped", "h100_e4m3_blockwise", "h100_tf32"),
)
"""Clusters, C and a bias, sums in memory of three kinds, groups, scales of blocks, TMA that rounds."""
SHAPES = ((128, 256, 64), (333, 1000, 520), (7, 8, 16), (1, 512, 4096), (2048, 1536, 1024))


@cache
def members() -> dict[str, PackedModule]:
    """Compile all modules once."""
    return {stem: member for stem in STEMS for member in packing.compiled(spec_file(stem))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of all modules."""
    pack = packing.pack_of("pack_on_gpu", [*members().values()])
    return packing.write(pack, tmp_path_factory.mktemp("pack")).folder


@pytest.fixture(scope="module")
def package(folder: Path) -> Callable[[str], Any]:
    """The function that imports a module of the pack."""
    packing.imported(folder)
    return lambda stem: __import__(f"pack_on_gpu.{stem}", fromlist=["matmul"])


def made(m: int, n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, B as the transposed view of its rows, and the right D in fp32."""
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = (torch.randn(rows, k, device="cuda", dtype=BF16, generator=generator) for rows in (m, n))
    return a, b.T, a.float() @ b.float().T


def is_right(d: Tensor, wanted: Tensor) -> bool:
    norm = cast(Any, torch).linalg.vector_norm
    return bool(norm(d.float() - wanted) <= 5e-3 * norm(wanted))


@pytest.mark.parametrize("stem", STEMS)
def test_numbers_graphs_and_streams_are_right(stem: str, package: Callable[[str], ModuleType]) -> None:
    module, plan = package(stem), members()[stem].product.plan
    found = verify(module, load(spec_file(stem)), deterministic=plan.deterministic, repeats=10)
    assert found.checks
    assert [str(failure) for failure in found.failures] == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_known_calls_at_new_addresses_are_right(
    shape: tuple[int, int, int], package: Callable[[str], Any]
) -> None:
    matmul, kept = package("h100_bf16").matmul, list[Tensor]()
    for seed in range(6):
        a, b, wanted = made(*shape, seed)
        kept += [a, b, d := matmul(a, b)]
        assert is_right(d, wanted), seed
        if shape[1] % 8 == 0:
            out = torch.full_like(d, float("nan"))
            assert matmul(a, b, out=out) is out
            assert is_right(out, wanted), seed


def test_a_graph_replays_with_new_numbers_and_other_offsets(package: Callable[[str], Any]) -> None:
    grouped = package("h100_bf16_grouped").matmul
    a, weight = (torch.randn(*shape, device="cuda", dtype=BF16) for shape in ((512, 256), (4, 384, 256)))
    offs = torch.tensor([100, 100, 300, 512], device="cuda", dtype=torch.int32)
    grouped(a, weight.mT, offs=offs)
    with captured_graph() as graph:
        d = grouped(a, weight.mT, offs=offs)
    for ends in ([0, 128, 256, 512], [512, 512, 512, 512], [1, 2, 3, 512]):
        a.normal_()
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        graph.replay()
        wanted = torch.cat(
            [a[s:e].float() @ w.float().T for s, e, w in zip([0, *ends], ends, weight, strict=False)]
        )
        assert is_right(d, wanted)


@pytest.mark.parametrize("stem", ["h100_bf16_split8_parallel", "h100_bf16_rows16_split2"])
def test_graphs_of_kernels_with_sums_in_memory_run_beside_eager_calls(
    stem: str, package: Callable[[str], Any]
) -> None:
    matmul = package(stem).matmul
    a, b, wanted = made(256, 512, 8192)
    matmul(a, b)
    with captured_graph() as graph:
        d = matmul(a, b)
    eager = torch.cuda.Stream()
    for _ in range(20):
        graph.replay()
        with torch.cuda.stream(eager):
            other = matmul(a, b)
        torch.cuda.synchronize()
        assert is_right(d, wanted)
        assert is_right(other, wanted)


@pytest.mark.parametrize("stem", ["h100_bf16", "h100_bf16_split8_parallel", "h100_bf16_rows16_split2"])
def test_eight_threads_on_streams_of_their_own_and_on_one_are_right(
    stem: str, package: Callable[[str], Any]
) -> None:
    matmul, shapes = package(stem).matmul, ((64, 512), (64, 1024), (300, 264), (640, 1280))
    data = [made(*shape, 1024, seed) for seed, shape in enumerate(shapes)]
    wrong: list[tuple[int, int]] = []
    torch.cuda.synchronize()
    gate = threading.Barrier(8)

    def work(thread: int) -> None:
        stream = torch.cuda.Stream() if thread % 2 else torch.cuda.default_stream()
        gate.wait()
        with torch.cuda.stream(stream):
            for number in range(100):
                a, b, wanted = data[(thread + number) % len(data)]
                d = matmul(a, b)
                stream.synchronize()
                if not is_right(d, wanted):
                    wrong.append((thread, number))

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert wrong == []


def test_the_first_call_of_a_process_may_be_inside_of_a_capture(folder: Path) -> None:
    """No module may be loaded in a captured stream, unless the thread's mode of capture allows it."""
    ran = alone(
        folder,
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            d = h100_bf16.matmul(a, b.T)
        graph.replay()
        torch.cuda.synchronize()
        """,
    )
    assert ran["is_right"]


def test_the_first_call_of_eight_threads_at_once_is_right(folder: Path) -> None:
    ran = alone(
        folder,
        """
        import threading
        found, gate = [], threading.Barrier(8)
        def work():
            gate.wait()
            found.append(h100_bf16.matmul(a, b.T))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        torch.cuda.synchronize()
        assert len(found) == 8 and all(torch.equal(each, found[0]) for each in found)
        d = found[0]
        """,
    )
    assert ran["is_right"]


def test_a_process_with_triton_blocked_computes(folder: Path) -> None:
    assert alone(folder, "        d = h100_bf16.matmul(a, b.T)")["is_right"]


def alone(folder: Path, statements: str) -> dict[str, Any]:
    """Run statements that compute a `d` in a process that cannot import Triton, and return what it tells."""
    lines = "\n".join(line.removeprefix(" " * 8) for line in statements.splitlines())
    program = f"""
import json, sys
sys.modules["triton"] = None
sys.path.insert(0, {str(folder.parent)!r})
import torch
bf16, told = torch.bfloat16, {{}}
from pack_on_gpu import h100_bf16
a, b = (torch.randn(rows, 512, device="cuda", dtype=bf16) for rows in (64, 256))
torch.cuda.synchronize()
{lines}
wanted = a.float() @ b.float().T
told["is_right"] = bool((d.float() - wanted).norm() <= 5e-3 * wanted.norm())
print(json.dumps(told))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("rows", [8, 4096])
def test_a_tensor_map_with_another_address_is_the_one_that_is_encoded_for_it(
    rows: int, package: Callable[[str], Any]
) -> None:
    """Also below 128 KiB, for which the launcher clears a bit of the map."""
    module, ready = package("h100_bf16"), package("h100_bf16").call.known.of_thread.ready
    calls = [made(rows, 512, 64, seed) for seed in range(2)]
    maps: list[Any] = []
    for a, b, _ in calls:
        ready.clear()
        module.matmul(a, b, out=torch.empty(rows, 512, device="cuda", dtype=BF16))
        (found,) = ready.values()
        maps.append(found)
    replace_address = sys.modules["pack_on_gpu.gemmgen_driver"].driver().replace_address
    addresses = [tensor.data_ptr() for tensor in calls[1][:2]]
    for slot, other in zip(maps[0].maps[:2], maps[1].maps[:2], strict=True):
        assert replace_address(slot.place, addresses[slot.tensor]) == 0
        assert words(slot.place) == words(other.place)


def words(place: int) -> list[int]:
    """Return the words of a tensor map."""
    return [*(ctypes.c_uint64 * 16).from_address(place)]


@pytest.mark.filterwarnings("ignore")  # Inductor has its own, which depend on the release
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_a_compiled_layer_gives_the_eager_numbers(mode: str, package: Callable[[str], Any]) -> None:
    matmul = package("h100_bf16_split8_parallel").matmul

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.relu(matmul(x, weight.T)) + 1

    compiled = cast(Any, torch).compile(layer, mode=mode)
    weight = torch.randn(512, 4096, device="cuda", dtype=BF16)
    for _ in range(4):
        x = torch.randn(64, 4096, device="cuda", dtype=BF16)
        torch.compiler.cudagraph_mark_step_begin()
        assert is_right(compiled(x, weight).clone(), layer(x, weight).float())


def test_another_streams_capture_does_not_meet_memory_of_a_pool(package: Callable[[str], Any]) -> None:
    """With expandable segments or not, memory for sums that is kept is of no graph's pool."""
    matmul = package("h100_bf16_rows16_split2").matmul
    a, b, wanted = made(200, 520, 4096)
    graphs: list[tuple[Any, Tensor]] = []
    for _ in range(3):
        with captured_graph() as graph:
            d = matmul(a, b)
        graphs.append((graph, d))
    for graph, d in graphs:
        graph.replay()
        torch.cuda.synchronize()
        assert is_right(d, wanted)
