"""The times of kernels that gather or scatter rows by an index, beside a kernel without and a copy of torch.

    python benchmarks/grouped/indices.py FOLDER OUT.json

Needs a Hopper GPU and no gemmgen. FOLDER has the committed modules that are named here, and gemmgen_launch.py
beside them. Each pair of modules has one tile. A point is timed if both ways give the same bits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import microseconds, module, offsets
from torch import Tensor

MEANS, CALLS, TOP_K = (1, 4, 16, 64, 256, 1024), 10, 8
"""Rows of a group on average; calls of a graph; experts of a token."""
Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Pair:
    """A layer of experts, and two modules: one with an index of rows, and one without."""

    layer: str
    groups: int
    n: int
    k: int
    plain: str
    indexed: str
    blocks: int = 1
    """Columns of B for each column of D: two with a gate."""

    @property
    def gathers(self) -> bool:
        """True if the index is of rows of A, false if it is of rows of D."""
        return "gather" in self.indexed


PAIRS = (
    Pair("qwen3 up", 128, 768, 2048, "h100_bf16_grouped_gated", "h100_bf16_gather_gated", blocks=2),
    Pair("gptoss up", 32, 5760, 2880, "h100_bf16_grouped", "h100_bf16_gather"),
    Pair("gptoss up", 32, 5760, 2880, "h100_bf16_grouped_rows16", "h100_bf16_gather_rows16"),
    Pair("gptoss down", 32, 2880, 2880, "h100_bf16_grouped", "h100_bf16_scatter"),
    Pair("gptoss down", 32, 2880, 2880, "h100_bf16_grouped_rows16", "h100_bf16_scatter_rows16"),
)


def arms(pair: Pair, plain: Any, indexed: Any, rows: int, device: torch.device) -> dict[str, Call]:
    """Return the calls to time: the product of the rows in order, with a copy by torch, and with the index.

    The last two return the same D, whose rows are all of a group.
    """
    tokens = -(-rows // TOP_K)
    shape = (pair.groups, pair.blocks * pair.n, pair.k)
    weight = torch.empty(shape, device=device, dtype=torch.bfloat16).normal_(std=pair.k**-0.5)
    offs = offsets(pair.groups, rows, seed=rows).to(device)
    order = torch.randperm(rows, device=device)
    a = torch.randn(tokens if pair.gathers else rows, pair.k, device=device).bfloat16()
    sorted_rows = a.new_empty(rows, pair.k) if pair.gathers else a
    d, out, copied = (a.new_empty(rows, pair.n) for _ in range(3))
    of_a = order // TOP_K
    index = (of_a if pair.gathers else order).to(torch.int32)

    def product() -> Tensor:
        return plain.matmul(sorted_rows, weight.mT, offs=offs, out=d)

    def gathered_by_torch() -> Tensor:
        torch.index_select(a, 0, of_a, out=sorted_rows)
        return product()

    def scattered_by_torch() -> Tensor:
        return copied.index_copy_(0, order, product())

    def by_index() -> Tensor:
        named = {"a_rows" if pair.gathers else "d_rows": index}
        return indexed.matmul(a, weight.mT, offs=offs, **named, out=out)

    by_torch = gathered_by_torch if pair.gathers else scattered_by_torch
    by_torch()  # `product` alone reads rows that it has written
    return {"product": product, "product and copy": by_torch, "index": by_index}


def main() -> None:
    """Time all pairs of modules, and write the record.

    Raises:
        SystemExit: The two ways give different bits.
    """
    folder, record = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(folder))
    points: list[dict[str, object]] = []
    for pair in PAIRS:
        plain, indexed = (module(folder / f"{stem}.py") for stem in (pair.plain, pair.indexed))
        for mean in MEANS:
            calls = arms(pair, plain, indexed, mean * pair.groups, torch.device("cuda"))
            if not torch.equal(calls["product and copy"](), calls["index"]()):
                raise SystemExit(f"{pair.indexed}, {mean} rows a group: other bits than with a copy")
            us = {name: round(microseconds(call, CALLS), 2) for name, call in calls.items()}
            sys.stdout.write(f"{pair.layer}, {pair.indexed}, {mean} rows a group: {us}\n")
            modules = {"plain": pair.plain, "indexed": pair.indexed}
            points.append({"layer": pair.layer, **modules, "rows": mean, "us": us})
            data = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "points": points}
            record.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
