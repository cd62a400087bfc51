"""The times of generated kernels of weight gradients of groups, beside torch._grouped_mm.

    python benchmarks/grouped/weight_gradients.py FOLDER OUT.json

Needs a Hopper GPU and no gemmgen. FOLDER has modules of ``groups: {kind: k_offsets}`` with bf16 operands, and
gemmgen_launch.py beside them. K are tokens, which are divided among experts by the softmax of normal
numbers. A kernel counts if the D of each group is the product that torch computes of the group alone,
although NaN lies after the last token. torch._grouped_mm writes bf16, also beside a kernel that writes fp32.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from measure import GRAPH_US, LARGEST_ERROR, MOST_CALLS, microseconds, module, offsets
from torch import Tensor

LAYERS = {
    "dense_8": (8, 28672, 4096),
    "dsv3_ep_w13": (32, 4096, 7168),
    "qwen3_w13": (128, 1536, 2048),
    "qwen3_w2": (128, 2048, 768),
}
"""Groups, M and N: rows and columns of an expert's weight. The last three are layers of ``measure.py``."""
MEANS = (64, 256, 1024)
"""Tokens of a group in the mean."""
AFTER = 3
"""Tokens after the last group, which hold NaN."""


def is_right(made: Any, a: Tensor, b: Tensor, offs: Tensor, out: Tensor) -> bool:
    """Return True if each group's D in `out` is the product of its columns of A and its rows of B."""
    out.fill_(math.nan)
    made.matmul(a, b, offs=offs, out=out)
    first = 0
    for found, end in zip(out, map(int, offs), strict=True):
        expected = (a[:, first:end] @ b[first:end]).float()
        difference = (found.float() - expected).square().sum()
        if not bool(difference <= LARGEST_ERROR**2 * expected.square().sum()):
            return False
        first = end
    return True


def point(layer: str, mean: int, modules: dict[str, Any]) -> dict[str, Any]:
    """Return the times of one layer with these tokens of a group in the mean."""
    groups, m, n = LAYERS[layer]
    tokens = mean * groups
    offs = offsets(groups, tokens, mean * 1000 + groups).cuda()
    a, b = (
        torch.empty(tokens + AFTER, columns, device="cuda", dtype=torch.bfloat16).normal_(std=std)
        for columns, std in ((m, mean**-0.5), (n, 1.0))
    )
    a[tokens:] = b[tokens:] = math.nan
    any_torch: Any = torch

    def baseline() -> Tensor:
        return any_torch._grouped_mm(a[:tokens].T, b[:tokens], offs=offs, out_dtype=torch.bfloat16)

    calls = max(2, min(MOST_CALLS, int(GRAPH_US / microseconds(baseline, 4))))
    found: dict[str, float] = {}
    wrong: list[str] = []
    for stem, made in modules.items():
        out = torch.empty(groups, m, n, device="cuda", dtype=made.ARGUMENTS["out"][0])
        if not is_right(made, a.T, b, offs, out):
            wrong.append(stem)
            continue
        call = functools.partial(made.matmul, a.T, b, offs=offs, out=out)
        found[stem] = round(microseconds(call, calls), 1)
    return {
        "layer": layer,
        "groups": groups,
        "m": m,
        "n": n,
        "mean_tokens": mean,
        "torch_us": round(microseconds(baseline, calls), 1),
        "us": found,
        "wrong": wrong,
    }


def main() -> None:
    """Time all modules of the folder on all layers, and write the record."""
    folder, record = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(folder))
    paths = sorted(path for path in folder.glob("*.py") if path.stem != "gemmgen_launch")
    made = {path.stem: module(path) for path in paths}
    modules = {stem: each for stem, each in made.items() if each.ARGUMENTS["a"][0] == torch.bfloat16}
    points: list[dict[str, Any]] = []
    for layer in LAYERS:
        for mean in MEANS:
            points.append(found := point(layer, mean, modules))
            times, torch_us = found["us"], found["torch_us"]
            ratios = ", ".join(f"{stem} {torch_us / us:.3f}" for stem, us in times.items())
            sys.stdout.write(f"{layer} {mean}: torch {torch_us} us; {ratios}; wrong: {found['wrong']}\n")
            data = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "points": points}
            record.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
