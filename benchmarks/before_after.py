"""The effect of a change of gemmgen on the times of generated kernels: modules of two folders in one process.

    python benchmarks/before_after.py FOLDER_BEFORE FOLDER_AFTER OUT.json

Needs a Hopper GPU and no gemmgen. Each round times a CUDA graph of the module before and one of the module
after, in alternating order, so that a drift of the clock affects both. A ratio above 1 is faster after.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingTypeStubs]

SHAPES = {
    "h100_bf16": (4096, 4096, 4096),
    "h100_bf16_ping_pong": (4096, 4096, 4096),
    "h100_bf16_cluster2x2": (8192, 8192, 8192),
    "h100_bf16_rows8": (8, 8192, 8192),
    "h100_bf16_streamk": (2048, 2304, 7168),
    "h100_bf16_bias_gelu": (4096, 4096, 4096),
    "h100_e4m3": (4096, 4096, 8192),
    "h100_e4m3_promoted": (4096, 4096, 8192),
}
"""M, N and K for each module: the specs that README and docs name first."""
ROUNDS = 40
GRAPH_SECONDS = 0.02
"""Device time of one graph: long enough that its start does not count."""
INPUTS = 3
"""Sets of matrices that a graph takes in turn."""


def module(folder: Path, stem: str, alias: str) -> Any:
    """Return a module of a folder, imported by its path, with the launcher beside it."""
    sys.path.insert(0, str(folder))
    sys.modules.pop("gemmgen_launch", None)
    spec = importlib.util.spec_from_file_location(f"{alias}_{stem}", folder / f"{stem}.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    sys.path.remove(str(folder))
    return made


def inputs(made: Any, shape: tuple[int, int, int]) -> dict[str, torch.Tensor]:
    """Return random matrices for a module, B as the transposed view of rows in memory."""
    extents = dict(zip("MNK1", (*shape, 1), strict=True))
    given: dict[str, torch.Tensor] = {}
    for name, (dtype, axes, *_) in made.ARGUMENTS.items():
        sizes = [extents[axis] for axis in (axes[::-1] if name == "b" else axes)]
        tensor = torch.randn(sizes, device="cuda").to(dtype)
        given[name] = tensor.T if name == "b" else tensor
    return given


def captured(made: Any, sets: list[dict[str, torch.Tensor]], calls: int) -> torch.cuda.CUDAGraph:
    """Return a graph of a number of calls, over the sets of inputs in turn."""
    for given in sets:
        made.matmul(**given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(calls):
            made.matmul(**sets[call % len(sets)])
    return graph


def seconds(graph: torch.cuda.CUDAGraph) -> float:
    """Return the seconds of one replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def compare(stem: str, before: Path, after: Path) -> dict[str, Any]:
    """Return the ratio of the times of one kernel before and after, and each round's."""
    made = [module(before, stem, "before"), module(after, stem, "after")]
    sets = [inputs(made[1], SHAPES[stem]) for _ in range(INPUTS)]
    results = []
    for each in made:
        each.matmul(**sets[0])
        results.append(sets[0]["out"].clone())
    one = captured(made[0], sets, INPUTS)
    seconds(one)
    calls = max(1, round(GRAPH_SECONDS / (seconds(one) / INPUTS)))
    graphs = [captured(each, sets, calls) for each in made]
    ratios: list[float] = []
    microseconds: list[float] = []
    for turn in range(ROUNDS):
        first = turn % 2
        times = [0.0, 0.0]
        for which in (first, 1 - first):
            times[which] = seconds(graphs[which])
        ratios.append(times[0] / times[1])
        microseconds.append(times[1] / calls * 1e6)
    return {
        "shape": SHAPES[stem],
        "ratio": round(statistics.median(ratios), 4),
        "microseconds_after": round(statistics.median(microseconds), 2),
        "same_bits": all(
            torch.equal(results[0].view(torch.uint8), each.view(torch.uint8)) for each in results
        ),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def main() -> None:
    """Compare all, print a line for each, and write the record."""
    before, after, out = map(Path, sys.argv[1:])
    found = {}
    for stem in SHAPES:
        found[stem] = compare(stem, before, after)
        summary = {name: value for name, value in found[stem].items() if name != "ratios"}
        sys.stdout.write(f"{stem} {summary}\n")
    record = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "kernels": found,
    }
    out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
