"""Time kernels whose D leaves as e4m3 with computed scales beside the same kernels with a D of bf16.

``python -m benchmarks.blockscale.quantised FOLDER RECORD.json`` renders kernels of each kind into the
folder, unless it has them, and times them on a Hopper GPU: gates and gates of experts, both with and
without scales of blocks, and a matmul with scales of blocks, at the sizes of DeepSeek-V3. They are the
planner's first kernels, and for gates also tiles of 128 x 256. Without a record nothing is timed. The arms
of a shape are timed in turn, each in a CUDA graph:

* ``bf16``: the kernels that store a D of bf16;
* ``quantised``: the kernels that store e4m3 and its scales;
* ``torch``: the quantisation of a D of bf16 by torch alone, which a caller of ``bf16`` runs after it.
"""
# pyright: basic

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import torch
import triton
from torch import Tensor

from benchmarks.grouped.compiling import PROCESSES, imported
from benchmarks.grouped.prepare import Modules, emptied
from benchmarks.grouped.timing import times_us
from gemmgen.plan.planner import rank
from gemmgen.spec import SpecFile
from gemmgen.spec.model import spec_of

FIRST: Final = 2
"""Kernels of each arm, the planner's first ones."""
INDEX: Final = "index.json"
"""The file beside the modules that has the modules of each arm."""
BLOCK: Final = 128
"""Columns of D, and elements of K, that share a scale."""
MOST_COST: Final = 0.03
"""Largest time of a quantised gate beside the gate alone, less 1."""
E4M3 = torch.float8_e4m3fn
GATE: Final = {"accumulators": ["gate", "up"], "d": "silu(gate) * up"}
SCALED_GATE: Final = {
    "accumulators": ["gate", "up"],
    "d": "silu(gate * row_scale * column_scale) * (up * row_scale * column_scale)",
}
WIDE: Final = {"kind": "cooperative", "consumers": 2}
BLOCKS: Final = {"format": "fp32_1x128"}
D_OF_ARM: Final[dict[str, dict[str, object]]] = {
    "bf16": {"dtype": "bf16"},
    "quantised": {"dtype": "e4m3", "scale": BLOCKS},
}


@dataclass(frozen=True)
class Kind:
    """Kernels of one kind, and the shapes at which they are timed."""

    a: Mapping[str, object]
    b: Mapping[str, object]
    m: tuple[int, ...]
    n: int
    """Columns of D."""
    k: int
    epilogue: Mapping[str, object]
    groups: int = 0

    def sources(self, arm: str, target: str) -> Iterator[tuple[SpecFile, int]]:
        """Yield specs of an arm, open ones and wide ones, each with the number of kernels that are timed."""
        yield self.source(arm, target, {}), FIRST
        if self.epilogue:
            k = 64 if self.a["dtype"] == "bf16" else 128
            wide = {"tile": {"m": 128, "n": 256, "k": k}, "warp_specialization": WIDE}
            for cluster in (1, 2):
                yield self.source(arm, target, {**wide, "cluster": {"m": cluster, "n": 1}}), 1

    def source(self, arm: str, target: str, decided: dict[str, object]) -> SpecFile:
        """Return the spec of an arm for the shape in the middle, with every other decision open."""
        m = self.m[len(self.m) // 2]
        sections: dict[str, object] = {**decided, "problem": {"m": m, "n": self.n, "k": self.k}}
        if self.groups:
            sections["groups"] = {"kind": "m_offsets", "count": self.groups}
        if self.epilogue:
            sections["epilogue"] = self.epilogue
        operands = {"a": self.a, "b": self.b, "d": D_OF_ARM[arm]}
        spec = spec_of({"title": f"{arm} matmul", "target": target, "operands": operands, **sections})
        if spec is None:
            raise ValueError(f"no spec has {sections}")
        return SpecFile.of(spec)


BF16, FP8 = {"dtype": "bf16"}, {"dtype": "e4m3"}
SCALED_A, SCALED_B = {**FP8, "scale": BLOCKS}, {**FP8, "scale": {"format": "fp32_128x128"}}
KINDS: Final = {
    "gate_bf16": Kind(BF16, BF16, (4096, 8192, 16384), 2048, 7168, GATE),
    "gate_e4m3": Kind(FP8, FP8, (4096, 8192, 16384), 2048, 7168, SCALED_GATE),
    "experts_e4m3": Kind(FP8, FP8, (4096, 16384), 2048, 7168, SCALED_GATE, groups=8),
    "blocks_e4m3": Kind(SCALED_A, SCALED_B, (4096, 16384), 7168, 2048, {}),
    "gate_blocks": Kind(SCALED_A, SCALED_B, (4096, 8192, 16384), 2048, 7168, GATE),
    "experts_blocks": Kind(SCALED_A, SCALED_B, (512, 4096, 16384), 2048, 7168, GATE, groups=8),
}


def prepared(folder: Path, name: str, arm: str, target: str) -> tuple[str, str, dict[str, str]]:
    """Write the planner's first modules of an arm, and return the kind, the arm, and labels by stems."""
    modules = Modules(folder)
    for source, count in KINDS[name].sources(arm, target):
        for candidate in rank(source).legal[:count]:
            modules.stem_of(candidate.plan)
    return name, arm, modules.labels


def prepare(folder: Path, target: str, processes: int) -> None:
    """Write the folder: modules, launcher and index."""
    emptied(folder)
    arms = [(name, arm) for name in KINDS for arm in D_OF_ARM]
    names, of_arms = zip(*arms, strict=True)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(prepared, repeat(folder), names, of_arms, repeat(target)))
    index = [{"kind": name, "arm": arm, "modules": labels} for name, arm, labels in found]
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def inputs_of(kind: Kind, m: int) -> dict[str, Tensor]:
    """Return random arguments of a kernel of a kind, by their names."""
    columns, device = kind.n * (2 if kind.epilogue else 1), "cuda"
    dtype = E4M3 if kind.a["dtype"] == "e4m3" else torch.bfloat16
    rows = (kind.groups, columns) if kind.groups else (columns,)
    found = {
        "a": torch.randn(m, kind.k, device=device).to(dtype),
        "b": torch.randn(*rows, kind.k, device=device, dtype=torch.bfloat16).to(dtype).mT,
    }
    if kind.groups:
        ends = [m * (group + 1) // kind.groups for group in range(kind.groups)]
        found["offs"] = torch.tensor(ends, device=device, dtype=torch.int32)
    if kind.epilogue is SCALED_GATE:
        found["row_scale"] = torch.rand(m, device=device) + 0.5
        found["column_scale"] = (torch.rand(*rows, device=device) + 0.5) / kind.k**0.5
    if "scale" in kind.a:
        blocks = kind.k // BLOCK
        found["a_scale"] = torch.rand(blocks, -(-m // 4) * 4, device=device).add_(0.5)[:, :m].T
        of_b = (*rows[:-1], columns // BLOCK, -(-blocks // 4) * 4)
        found["b_scale"] = torch.rand(of_b, device=device)[..., :blocks]
    return found


def quantised_by_torch(d: Tensor) -> tuple[Tensor, Tensor]:
    """Return a D of bf16 as e4m3 with scales of 1 x 128, by torch's own kernels."""
    blocks = d.view(d.shape[0], -1, BLOCK).float()
    scales = blocks.abs().amax(2).clamp(2.0**-100, 2.0**127) / 448
    return (blocks / scales[..., None]).to(E4M3).view_as(d), scales


def compiled(folder: Path, name: str, stem: str) -> str:
    """Call a module once on a small problem, and return the reason if it fails."""
    try:
        given = inputs_of(KINDS[name], 256)
        imported(folder, stem).matmul(given.pop("a"), given.pop("b"), **given)
        torch.cuda.synchronize()
    except Exception as error:  # whatever the compiler or the driver raises is recorded
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""


def compile_all(folder: Path, index: list[dict[str, Any]], processes: int) -> dict[str, str]:
    """Compile all modules, and return the reasons of those that fail by their names."""
    stems = {stem: each["kind"] for each in index for stem in each["modules"]}
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {stem: pool.submit(compiled, folder, name, stem) for stem, name in stems.items()}
        return {stem: reason for stem, each in waiting.items() if (reason := each.result())}


def difference(found: tuple[Tensor, Tensor], exact: Tensor) -> float:
    """Return the norm of the difference of a quantised D from a D of bf16, over the norm of that."""
    d, scales = found
    numbers = d.float() * scales.repeat_interleave(BLOCK, 1)
    return ((numbers - exact.float()).norm() / exact.float().norm()).item()


def measured(
    folder: Path, name: str, m: int, arms: dict[str, list[str]], failed: dict[str, str]
) -> dict[str, Any]:
    """Return the times of all arms at one number of rows, in microseconds, and the quantised D's error."""
    given = inputs_of(KINDS[name], m)
    a, b = given.pop("a"), given.pop("b")
    calls: dict[str, list[Callable[[], Any]]] = {}
    d = torch.empty(m, KINDS[name].n, device="cuda", dtype=torch.bfloat16)
    for arm, stems in arms.items():
        for stem in stems:
            if stem not in failed:
                matmul = imported(folder, stem).matmul
                outputs: dict[str, Tensor] = {"out": d}
                if arm == "quantised":
                    made = matmul(a, b, **given)
                    outputs = {"out": made[0], "out_scale": made[1]}
                calls[f"{arm} {stem}"] = [partial(matmul, a, b, **given, **outputs)]
    first = {arm: next(each[0] for key, each in calls.items() if key.startswith(arm)) for arm in arms}
    first["bf16"]()
    error = difference(first["quantised"](), d)
    calls["torch"] = [partial(quantised_by_torch, d)]
    us = {key: round(value, 2) for key, value in times_us(calls).items()}
    best = {arm: min(value for key, value in us.items() if key.startswith(arm)) for arm in arms}
    cost = round(best["quantised"] / best["bf16"] - 1, 4)
    shape = {"kind": name, "shape": [m, KINDS[name].n, KINDS[name].k], "groups": KINDS[name].groups}
    return {
        **shape,
        "us": us,
        "cost": cost,
        "torch_cost": round(us["torch"] / best["bf16"], 4),
        "error": error,
    }


def lines(folder: Path, index: list[dict[str, Any]], failed: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the line of each shape."""
    for name, kind in KINDS.items():
        arms = {each["arm"]: list(each["modules"]) for each in index if each["kind"] == name}
        for m in kind.m:
            yield measured(folder, name, m, arms, failed)
            torch.cuda.empty_cache()


def main() -> None:
    """Write the folder if it has no index; time the kernels if there is a GPU, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("record", type=Path, nargs="?", help="file of the times; none without a GPU")
    parser.add_argument("--target", default="h100", help="GPU that the kernels are planned for (h100)")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that plan and compile")
    given = parser.parse_args()
    begin, folder = time.monotonic(), given.folder.resolve()
    if not (folder / INDEX).exists():
        prepare(folder, given.target, given.processes)
    if given.record is None:
        return
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    failed = compile_all(folder, index, given.processes)
    found = []
    for line in lines(folder, index, failed):
        found.append(line)
        verdict = "as wanted" if line["cost"] <= MOST_COST else "too slow"
        m, n, k = line["shape"]
        sys.stdout.write(f"{line['kind']} {m}x{n}x{k} cost {line['cost']:.1%}, {verdict}\n")
    head = {
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "seconds": round(time.monotonic() - begin, 1),
        "failed": failed,
        "labels": {stem: label for each in index for stem, label in each["modules"].items()},
    }
    given.record.write_text(json.dumps({**head, "lines": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
