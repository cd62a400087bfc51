"""How near a kernel of few rows comes to reading its weights and nothing else, both in chains of launches.

``python benchmarks/reading/read_only.py RECORD MODULE MxNxK…`` times a kernel that only reads as many bytes
as the weights have, by several numbers of programs and warps, and a module's matmul, by turns, each as one
CUDA graph over inputs beyond L2. It writes RECORD: medians in seconds, and the module's time over that of the
best reader, the median of the pairs.
"""
# pyright: basic

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from gemmgen.bench.module_arm import bound
from gemmgen.device import captured_graph
from gemmgen.module import import_generated, matmul_of
from gemmgen.numerics.inputs import Inputs

ROUNDS = 15
GRAPH_SECONDS = 2e-3
BYTES = 200_000_000
"""Of the inputs that a graph goes through: more than three times an H200's L2."""
SM_COUNT = 132
PROGRAMS_PER_SM = (4, 8, 16)
WARPS = (4, 8)
BLOCK = 8192


@triton.jit
def read_kernel(source, result, count, block: tl.constexpr):
    """Read all words; store nothing, unless they add up to what they never do."""
    total = tl.zeros((block,), tl.int32)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        offsets = start + tl.arange(0, block)
        total += tl.load(source + offsets, mask=offsets < count, other=0, eviction_policy="evict_first")
    if tl.sum(total) == 0x5EC2E7:
        tl.store(result, 1)


def chain(calls: list[Callable[[], object]], passes: int) -> torch.cuda.CUDAGraph:
    """Capture the calls, one after the other, so many times."""
    for call in calls:
        call()
    with captured_graph() as graph:
        for _ in range(passes):
            for call in calls:
                call()
    return graph


def seconds(graph: torch.cuda.CUDAGraph, calls: int) -> float:
    """Return what one call of a graph takes."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / calls


def measure(module: Path, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Time the module and every reader on a shape, by turns."""
    m, n, k = shape
    weights_bytes = n * k * 2
    count = max(2, BYTES // weights_bytes + 1)
    a = [torch.randn(m, k, device="cuda").mul_(k**-0.5).bfloat16() for _ in range(count)]
    b = [torch.randn(n, k, device="cuda").bfloat16().T for _ in range(count)]
    d = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    matmul = matmul_of(import_generated(module))
    arms: dict[str, list[Callable[[], object]]] = {
        module.stem: [bound(matmul, Inputs(x, y, {}), z) for x, y, z in zip(a, b, d, strict=True)]
    }
    result = torch.zeros(1, device="cuda", dtype=torch.int32)
    for per_sm in PROGRAMS_PER_SM:
        for warps in WARPS:
            words = [y.T.view(torch.int32).view(-1) for y in b]

            def reader(
                source: torch.Tensor, per_sm: int = per_sm, warps: int = warps
            ) -> Callable[[], object]:
                launch: Any = read_kernel[(SM_COUNT * per_sm,)]
                return lambda: launch(source, result, source.numel(), BLOCK, num_warps=warps)

            arms[f"reader, {per_sm} programs of {warps} warps per SM"] = [reader(each) for each in words]
    passes = max(1, round(GRAPH_SECONDS / (count * (weights_bytes / 4.5e12 + 2.5e-6))))
    graphs = {name: chain(calls, passes) for name, calls in arms.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            samples[name].append(seconds(graph, passes * count))
    medians = {name: statistics.median(times) for name, times in samples.items()}
    best = min((name for name in medians if name != module.stem), key=lambda name: medians[name])
    pairs = zip(samples[module.stem], samples[best], strict=True)
    return {
        "shape": list(shape),
        "module": module.stem,
        "gpu": torch.cuda.get_device_name(),
        "best_reader": best,
        "over_best_reader": statistics.median(ours / theirs for ours, theirs in pairs),
        "seconds": medians,
    }


def main(record: str, *modules_and_shapes: str) -> None:
    """Measure each module on the shape behind it, and write the record."""
    rows = [
        measure(Path(module), tuple(map(int, shape.split("x"))))
        for module, shape in zip(modules_and_shapes[::2], modules_and_shapes[1::2], strict=True)
    ]
    Path(record).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
