"""Blocks from the records of single studies: host time, tuning, a chain of layers, ragged rows and others."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gemmgen.problem import shape_text
from tools.quotations.markdown import table
from tools.rendered import ROOT

READING = ROOT / "benchmarks" / "reading" / "h200.json"
GEMV = ROOT / "benchmarks" / "reading" / "gemv.json"
MISALIGNED = ROOT / "benchmarks" / "reading" / "misaligned.json"
RAGGED = ROOT / "benchmarks" / "reading" / "ragged.json"
HOST = ROOT / "benchmarks" / "reading" / "host.json"
LIBRARY_HOST = ROOT / "benchmarks" / "reading" / "library_host.json"
CHAIN = ROOT / "benchmarks" / "chain" / "h200.json"
MISALIGNED_ARMS = ("", ", B aligned before", ", A and B aligned before", ", into an out of such rows")
TUNED = ROOT / "benchmarks" / "tune" / "h200.jsonl"


def reading_block() -> str:
    """Return the rows of READING: a module's time, and that of the fastest kernel that only reads."""
    rows = (
        (
            found["module"],
            shape_text(tuple(found["shape"])),
            f"{found['seconds'][found['module']] * 1e6:.2f}",
            f"{found['seconds'][found['best_reader']] * 1e6:.2f}",
            f"{found['over_best_reader']:.3f}",
        )
        for found in json.loads(READING.read_text())
    )
    return table(["module", "M x N x K", "us", "reader's us", "over the reader"], rows, words=2)


def gemv_block() -> str:
    """Return the rows of GEMV: over cuBLAS, the best of the committed modules and of the GEMV's variants."""

    def row(found: Mapping[str, Any]) -> tuple[str, ...]:
        ratios: Mapping[str, float] = found["over_cublas"]
        without = max((name for name in ratios if name.startswith("gemv")), key=lambda name: ratios[name])
        module = max((name for name in ratios if name.startswith("h100")), key=lambda name: ratios[name])
        return (
            shape_text(tuple(found["shape"])),
            f"{ratios[module]:.3f} {module}",
            f"{ratios[without]:.3f} {without.removeprefix('gemv, ')}",
            f"{ratios[without] / ratios[module]:.3f}",
        )

    heads = ["M x N x K", "best of three modules", "best without tensor cores", "over the module"]
    return table(heads, map(row, json.loads(GEMV.read_text())), words=3)


def misaligned_block() -> str:
    """Return the rows of MISALIGNED: over cuBLAS, by what is copied and how."""

    def row(found: Mapping[str, Any]) -> tuple[str, ...]:
        ratios: Mapping[str, float] = found["over_cublas"]

        def best(*names: str) -> str:
            ours = [ratios[name] for name in names if name in ratios]
            return f"{max(ours):.3f}" if ours else ""

        return (
            shape_text(tuple(found["shape"])),
            f"{found['seconds']['cublas'] * 1e6:.1f}",
            *(best(f"module{arm}") for arm in MISALIGNED_ARMS),
            best(*(name for name in ratios if name.startswith("copies by torch"))),
            best(*(name for name in ratios if name.startswith("no TMA"))),
        )

    heads = ["M x N x K", "cuBLAS, us", "module", "B aligned before", "A and B aligned before"]
    heads += ["into such an `out`", "copied by torch", "without TMA"]
    return table(heads, map(row, json.loads(MISALIGNED.read_text())), words=1)


def ragged_block() -> str:
    """Return the rows of RAGGED: each kind of cluster over cuBLAS, by what rows are a multiple of."""

    def row(found: Mapping[str, Any]) -> tuple[str, ...]:
        ratios = {name: kernel["over_baseline"] for name, kernel in found["kernels"].items()}

        def best(cluster: str) -> str:
            alone = not cluster
            those = [v for name, v in ratios.items() if (alone or cluster in name) and alone != ("," in name)]
            return f"{max(those):.3f}"

        return (
            shape_text(tuple(found["shape"])),
            f"{math.gcd(found['row_bytes'], 128)}",
            f"{found['baseline_seconds'] * 1e6:.1f}",
            f"{cublas_tile(found['baseline_kernel'])}",
            *(best(cluster) for cluster in ("", "cluster 2x1", "cluster 1x2")),
        )

    def cublas_tile(kernel: str) -> str:
        found = re.search(r"tst_(\d+x\d+)_\S+?_(\dx\d)_", kernel)
        assert found
        return f"{found[1]}, {found[2]}"

    heads = ["M x N x K", "bytes", "cuBLAS, us", "its tile, cluster", "no cluster", "2 x 1", "1 x 2"]
    rows = sorted(json.loads(RAGGED.read_text())["rows"], key=lambda each: -math.gcd(each["row_bytes"], 128))
    return table(heads, map(row, rows), words=1)


def tuned_block() -> str:
    """Return what TUNED says: what tuning took and found, and what is the fastest of the set."""
    lines = [json.loads(line) for line in TUNED.read_text().splitlines()]
    (session,), (tuned,), (again,) = (
        [line for line in lines if line["line"] == kind] for kind in ("session", "tuned", "again")
    )
    duels = [f"{line['ratio']:.3f}" for line in lines if line["line"] == "duel"]
    kernels = [line for line in lines if line["line"] == "kernel"]
    best = max(line.get("ratio", 0.0) for line in kernels)
    machine, failed = session["environment"], sum(tuned["failures"].values())
    seconds = f"{tuned['gpu_seconds']:.1f} seconds of GPU\n  time, and {tuned['seconds']:.0f} seconds in all"
    ratio, over_first = tuned["ratio_to_baseline"], tuned["ratio_to_first"]
    lower, upper = tuned["ratio_to_baseline_quartiles"]
    return (
        f"On {machine['gpu']} with torch {machine['torch']}, Triton {machine['triton']}, bf16 at "
        f"{shape_text(tuple(session['shape']))}, all left open:\n\n"
        f"* {tuned['measured']} trials of {tuned['tried']} kernels took {seconds}; {failed} failed.\n"
        f"* The winner, {tuned['winner']},\n"
        f"  is {over_first:.3f} times as fast as the planner's first choice, and "
        f"{ratio:.3f} [{lower:.3f}, {upper:.3f}] times as fast as cuBLAS.\n"
        f"* A second run from the store measured {again['measured']}, in {again['seconds']:.0f} seconds.\n"
        f"* Each of {len(kernels)} kernels of a committed set was measured too, in rounds with the\n"
        f"  planner's first choice: the fastest is {best:.3f} times as fast as that. {len(duels)} that\n"
        f"  looked the fastest met the winner in 60 rounds, and took {', '.join(duels)} of its time.\n"
    )


def host_block() -> str:
    """Return what calls cost the host, in us and over torch.matmul's: modules from HOST, a library behind."""

    def row(name: str, costs: Mapping[str, float], keys: Sequence[str]) -> tuple[str, ...]:
        torch, torch_out = (costs[key] for key in keys[:2])
        ratios = (
            f"{costs[key]:.1f} ({costs[key] / (torch_out if number % 2 else torch):.2f})"
            if key in costs
            else ""
            for number, key in enumerate(keys[2:])
        )
        return name, f"{torch:.1f}", f"{torch_out:.1f}", *ratios

    own = ("torch.matmul", "torch.matmul out=", "module", "module out=", "operator", "operator out=")
    modules: Mapping[str, Mapping[str, list[float]]] = json.loads(HOST.read_text())["microseconds"]
    rows = [
        row(f"`{name}`", {key: statistics.median(each) for key, each in costs.items()}, own)
        for name, costs in modules.items()
    ]
    library = ("torch", "torch out", "library", "library out", "operator", "operator out")
    calls: Mapping[str, Mapping[str, float]] = json.loads(LIBRARY_HOST.read_text())["microseconds"]
    rows += [row(f"`h200_bf16` at {shape}", costs, library) for shape, costs in calls.items()]
    heads = ["", "torch.matmul, us", "with `out=`", "matmul", "with `out=`", "operator", "with `out=`"]
    return table(heads, iter(rows))


def chain_block() -> str:
    """Return the rows of CHAIN: a layer's time, and torch's over it."""

    def over(found: Mapping[str, Any], arm: str) -> str:
        low, middle, high = found["over_torch_quartiles"][arm]
        return f"{middle:.3f} [{low:.3f}, {high:.3f}]"

    def row(found: Mapping[str, Any]) -> tuple[str, ...]:
        times = found["seconds_per_layer"]
        us = (f"{times[arm] * 1e6:.1f}" for arm in ("torch", "plain", "dependent"))
        return f"{found['rows']}", *us, over(found, "plain"), over(found, "dependent")

    heads = ["M", "torch, us a layer", "gemmgen, us", "with dependent launch, us", "over torch", "with it"]
    return table(heads, map(row, json.loads(CHAIN.read_text())["rows"]))
