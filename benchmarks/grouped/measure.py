"""Time generated kernels that multiply groups of rows, and torch._grouped_mm beside them.

    python benchmarks/grouped/measure.py FOLDER OUT.json

Needs a Hopper GPU and no gemmgen. FOLDER has modules of ``groups: {kind: m_offsets}`` without a gate, and
gemmgen_launch.py beside them. Each layer is timed with each of `MEANS` rows a group on average; a softmax of
normal numbers draws the group of each row. A kernel is timed if its result agrees with torch's to within
`LARGEST_ERROR`, and if it does not write the rows of D after the last group.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LAYERS = {
    "gptoss_w13": (32, 5760, 2880),
    "gptoss_w2": (32, 2880, 2880),
    "qwen3_w13": (128, 1536, 2048),
    "qwen3_w2": (128, 2048, 768),
    "dsv3_ep_w13": (32, 4096, 7168),
    "dsv3_ep_w2": (32, 7168, 2048),
}
"""Groups, N and K: experts of gpt-oss-20b, Qwen3-30B-A3B, and of one rank of eight of DeepSeek-V3."""
MEANS = (1, 4, 16, 64, 256, 1024)
"""Rows of a group on average."""
BEHIND = 3
"""Rows of D after the last group."""
LARGEST_ERROR = 4e-3
"""Largest norm of the difference from torch's result, over the norm of that result: both are bf16."""
GRAPH_US, MOST_CALLS = 4000.0, 20
"""Device time of a graph of calls, and the most calls in one."""
Call = Callable[[], object]


def module(path: Path) -> Any:
    """Return a generated module, imported by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def offsets(groups: int, rows: int, seed: int) -> Tensor:
    """Return the row behind the last one of each group, int32 [groups]."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.softmax(torch.randn(groups, generator=generator), 0)
    drawn = torch.multinomial(shares, rows, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=groups).cumsum(0).to(torch.int32)


def microseconds(call: Call, calls: int) -> float:
    """Return the least time of a call in three replays of a graph."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    found: list[float] = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / calls)
    return min(found)


def is_right(made: Any, inputs: tuple[Tensor, Tensor, Tensor], expected: Tensor) -> bool:
    """Return True if a module's result agrees with torch's, and rows of D without a group are not written."""
    a, b, offs = inputs
    d = torch.full((len(a) + BEHIND, b.shape[2]), math.nan, device="cuda", dtype=a.dtype)
    made.matmul(a, b, offs=offs, out=d[: len(a)])
    difference, size = (d[: len(a)] - expected).float().square().sum(), expected.float().square().sum()
    return bool(difference <= LARGEST_ERROR**2 * size) and bool(d[len(a) :].isnan().all())


def point(layer: str, mean: int, weight: Tensor, modules: dict[str, Any]) -> dict[str, Any]:
    """Return the times of one layer with `mean` rows a group on average."""
    groups, n, k = weight.shape
    rows, b = mean * groups, weight.mT
    offs = offsets(groups, rows, mean * 1000 + groups).cuda()
    a = torch.empty(rows, k, device="cuda", dtype=torch.bfloat16).normal_(std=k**-0.5)
    any_torch: Any = torch

    def baseline() -> Tensor:
        return any_torch._grouped_mm(a, b, offs=offs, out_dtype=torch.bfloat16)

    calls = max(2, min(MOST_CALLS, int(GRAPH_US / microseconds(baseline, 4))))
    expected, out = baseline(), torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
    found: dict[str, float] = {}
    for stem, made in modules.items():
        if made.COMPUTES["max_groups"] >= groups and is_right(made, (a, b, offs), expected):
            call = functools.partial(made.matmul, a, b, offs=offs, out=out)
            found[stem] = round(microseconds(call, calls), 1)
    return {
        "layer": layer,
        "groups": groups,
        "n": n,
        "k": k,
        "mean_rows": mean,
        "torch_us": round(microseconds(baseline, calls), 1),
        "us": found,
    }


def main() -> None:
    """Time all modules of the folder on all layers, and write the record."""
    folder, record = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(folder))
    modules = {
        path.stem: module(path) for path in sorted(folder.glob("*.py")) if path.stem != "gemmgen_launch"
    }
    points: list[dict[str, Any]] = []
    for layer, (groups, n, k) in LAYERS.items():
        weight = torch.empty(groups, n, k, device="cuda", dtype=torch.bfloat16).normal_()
        for mean in MEANS:
            points.append(found := point(layer, mean, weight, modules))
            best = min(found["us"], key=found["us"].get)
            sys.stdout.write(f"{layer} {mean} {best} {found['torch_us'] / found['us'][best]:.3f}\n")
            data = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "points": points}
            record.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
