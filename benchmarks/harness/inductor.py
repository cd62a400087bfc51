"""Inductor's Triton templates beside cuBLAS: what ``torch.compile`` reaches without gemmgen.

    python benchmarks/harness/inductor.py RECORD.jsonl MxNxK…

times bf16 matmuls on a GPU by the rounds of ``gemmgen bench --suite``, and appends a line for each shape. A
second run leaves out the shapes that the record has. It needs torch with torch's own Triton, and no gemmgen,
whose Triton may be another version.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
import triton  # pyright: ignore[reportMissingTypeStubs]

MODE: Final = "max-autotune-no-cudagraphs"
"""Mode of torch.compile; the measurement captures CUDA graphs itself."""
LARGEST_ERROR: Final = 0.02
"""Largest relative error of a result: bf16 loses less than half of that."""
ROUNDS, GRAPH_SECONDS = 7, 2e-3
WARM_UP_SECONDS, SETTLE_SECONDS = 1.5, 0.25
"""Seconds of work before the first shape, and before each other one."""
L2_MULTIPLE, MOST_INPUT_SETS = 2.5, 1024
Shape = tuple[int, int, int]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A, B and an ``out`` for the baseline."""


def input_sets(shape: Shape) -> list[Inputs]:
    """Return sets of A, B and D, enough of them to exceed the L2 cache together."""
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(0)
    cuda: Any = torch.cuda
    l2_bytes: int = cuda.get_device_properties(cuda.current_device()).L2_cache_size
    count = math.ceil(L2_MULTIPLE * l2_bytes / (2 * (m * k + k * n + m * n)))

    def normal(rows: int, columns: int, size: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(rows, columns, device="cuda", generator=generator)
        return (drawn * size).to(torch.bfloat16)

    return [
        (normal(m, k, k**-0.5), normal(n, k).T, torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
        for _ in range(min(MOST_INPUT_SETS, count))
    ]


def timed(shape: Shape, settle: float) -> dict[str, Any]:
    """Tune a shape, check its numbers, and time it in alternation with cuBLAS.

    Raises ValueError if the result is wrong.
    """
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    sets = input_sets(shape)
    compiler: Any = torch
    compiled = compiler.compile(torch.matmul, mode=MODE, dynamic=False, fullgraph=True)
    begin = time.perf_counter()
    result, kernels = first_call(compiled, sets[0])
    torch.cuda.synchronize()
    tuning_seconds = time.perf_counter() - begin
    a, b, _ = sets[0]
    exact = a.double() @ b.double()
    relative_error = ((result.double() - exact).norm() / exact.norm()).item()
    if not relative_error <= LARGEST_ERROR:
        raise ValueError(f"it is wrong: relative error {relative_error:.3g}")
    results: list[Any] = [None] * len(sets)

    def baseline(passes: int) -> None:
        for _ in range(passes):
            for a, b, d in sets:
                torch.matmul(a, b, out=d)

    def templates(passes: int) -> None:
        for _ in range(passes):
            for index, (a, b, _) in enumerate(sets):
                results[index] = compiled(a, b)

    baseline(1)
    templates(1)
    one_pass = graph_of(baseline, 1)
    seconds_of([one_pass])
    passes = math.ceil(GRAPH_SECONDS / seconds_of([one_pass] * 5)[-1])
    works = [graph_of(baseline, passes), graph_of(templates, passes)]
    end = time.perf_counter() + settle
    while time.perf_counter() < end:
        seconds_of(works)
    samples = [float(f"{each / (passes * len(sets)):.6g}") for each in seconds_of(works * ROUNDS)]
    return {
        "baseline_seconds": samples[0::2],
        "seconds": samples[1::2],
        "kernels": kernels,
        "tuning_seconds": round(tuning_seconds, 1),
        "relative_error": float(f"{relative_error:.6g}"),
    }


def first_call(compiled: Callable[..., Any], inputs: Inputs) -> tuple[Any, list[str]]:
    """Make the first call, which compiles; return its result and the calls of the generated code."""
    utilities: Any = importlib.import_module("torch._inductor.utils")
    result, sources = utilities.run_and_get_code(compiled, *inputs[:2])
    found = re.findall(r"\b(triton_\w+)\.run\(|\b(extern_kernels\.\w+)\(", "\n".join(sources))
    return result, list(dict.fromkeys(name or other for name, other in found))


def graph_of(work: Callable[[int], None], passes: int) -> Callable[[], None]:
    """Return the replay of a CUDA graph of the work."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin()
    try:
        work(passes)
    finally:
        graph.capture_end()
    return graph.replay


def seconds_of(works: Sequence[Callable[[], None]]) -> list[float]:
    """Run pieces of work without a pause, the last one also before the first; return the seconds of each."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(works) + 1)]
    works[-1]()
    events[0].record()
    for work, event in zip(works, events[1:], strict=True):
        work()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)]


def shape_of(text: str) -> Shape:
    """Return M, N and K of ``MxNxK``."""
    m, n, k = map(int, text.split("x"))
    return m, n, k


def main() -> None:
    """Time the shapes that the record does not have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("shapes", type=shape_of, nargs="+", metavar="MxNxK")
    given = parser.parse_args()
    settings: Any = importlib.import_module("torch._inductor.config")
    settings.max_autotune_gemm_backends = "TRITON"
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    machine = {"gpu": torch.cuda.get_device_name(), **versions}
    record: Path = given.record
    known = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    done = {tuple(json.loads(line)["shape"]) for line in known}
    gc.disable()  # unloading during a capture would end it
    with torch.cuda.stream(torch.cuda.Stream()), record.open("a", encoding="utf-8") as file:
        for number, shape in enumerate(shape for shape in given.shapes if shape not in done):
            found = timed(shape, SETTLE_SECONDS if number else WARM_UP_SECONDS)
            file.write(f"{json.dumps({'shape': shape, **machine, **found})}\n")
            file.flush()


if __name__ == "__main__":
    main()
