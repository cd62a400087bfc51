"""The times of kernels of groups with row and column operands, beside the same kernels without and torch.

    python benchmarks/grouped/vectors.py FOLDER OUT.json

Needs a Hopper GPU and no gemmgen. FOLDER has the committed modules that are named here, and gemmgen_launch.py
beside them. All groups have equally many rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import microseconds, module
from torch import Tensor

GROUPS, ROWS, CALLS = 32, (16, 128, 512, 1024), 10
BF16_LAYER, FP8_LAYER = (2880, 2880), (4096, 7168)
"""N and K: the down projection of gpt-oss, and the up projection of DeepSeek-V3."""
any_torch: Any = torch


def random_weights(n: int, k: int) -> Tensor:
    """Return weights [G, N, K] with a variance of one over K."""
    return torch.empty(GROUPS, n, k, device="cuda", dtype=torch.bfloat16).normal_(std=k**-0.5)


def calls_of(modules: dict[str, Any], rows: int) -> dict[str, Callable[[], object]]:
    """Return the calls for this number of rows of a group."""
    (n, k), total = BF16_LAYER, GROUPS * rows
    a, weight, wide = (
        torch.randn(total, k, device="cuda").bfloat16(),
        random_weights(n, k),
        random_weights(2 * n, k),
    )
    offs = torch.arange(rows, total + 1, rows, device="cuda", dtype=torch.int32)
    bias, wide_bias = (torch.randn(GROUPS, each, device="cuda").bfloat16() for each in (n, 2 * n))
    factors, out = (
        torch.rand(total, device="cuda"),
        torch.empty(total, n, device="cuda", dtype=torch.bfloat16),
    )
    n8, k8 = FP8_LAYER
    a8 = torch.randn(total, k8, device="cuda").to(torch.float8_e4m3fn)
    weight8 = (random_weights(n8, k8) * k8**0.5).to(torch.float8_e4m3fn)
    of_columns, out8 = torch.rand(GROUPS, n8, device="cuda"), torch.empty(total, n8, device="cuda").bfloat16()

    def matmul(stem: str, *tensors: Tensor, **options: Tensor) -> Callable[[], object]:
        return lambda: modules[stem].matmul(*tensors, offs=offs, **options)

    def of_torch(name: str, *tensors: Tensor, **options: object) -> Callable[[], object]:
        return lambda: getattr(any_torch, name)(*tensors, offs=offs, out_dtype=torch.bfloat16, **options)

    vectors = {"column_bias": bias, "row_scale": factors}
    scales = {"row_scale": factors, "column_scale": of_columns}
    fast = {"use_fast_accum": True}
    return {
        "plain": matmul("h100_bf16_grouped", a, weight.mT, out=out),
        "bias and factors": matmul("h100_bf16_grouped_bias", a, weight.mT, **vectors, out=out),
        "torch plain": of_torch("_grouped_mm", a, weight.mT),
        "gate with bias": matmul("h100_bf16_grouped_gptoss", a, wide.mT, column_bias=wide_bias, out=out),
        "torch gate and up": of_torch("_grouped_mm", a, wide.mT),
        "fp8 with scales": matmul("h100_e4m3_grouped_scaled", a8, weight8.mT, **scales, out=out8),
        "torch fp8": of_torch("_scaled_grouped_mm", a8, weight8.mT, factors, of_columns, **fast),
    }


def main() -> None:
    """Time all calls, and write the record."""
    folder, record = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(folder))
    modules = {path.stem: module(path) for path in sorted(folder.glob("h100_*.py"))}
    points: list[dict[str, object]] = []
    for rows in ROWS:
        us = {name: round(microseconds(call, CALLS), 1) for name, call in calls_of(modules, rows).items()}
        sys.stdout.write(f"{rows} rows a group: {us}\n")
        points.append({"rows": rows, "us": us})
        data = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "points": points}
        record.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
