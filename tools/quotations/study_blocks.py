"""Blocks from records that are no suites: host time, tuning, rows of any length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gemmgen.problem import shape_text
from tools.quotations.markdown import table
from tools.rendered import ROOT

MISALIGNED = ROOT / "benchmarks" / "reading" / "misaligned.json"
HOST = ROOT / "benchmarks" / "reading" / "host.json"
MODELS = ROOT / "benchmarks" / "reading" / "models.json"
MISALIGNED_ARMS = ("", ", B aligned before", ", A and B aligned before", ", into an out of such rows")
RIGHT = "right"
"""The name of what is no speed, in MODELS."""
TUNED = ROOT / "benchmarks" / "reading" / "tune.json"


def misaligned_block() -> str:
    """Return the rows of MISALIGNED: over cuBLAS, by what is copied."""

    def row(found: Mapping[str, Any]) -> tuple[str, ...]:
        ratios: Mapping[str, float] = found["over_cublas"]
        cells = (
            f"{ratios[f'module{arm}']:.3f}" if f"module{arm}" in ratios else "" for arm in MISALIGNED_ARMS
        )
        return shape_text(tuple(found["shape"])), f"{found['seconds']['cublas'] * 1e6:.1f}", *cells

    heads = ["M x N x K", "cuBLAS, us", "module", "B aligned before", "A and B aligned before"]
    heads += ["into such an `out`"]
    return table(heads, map(row, json.loads(MISALIGNED.read_text())), words=1)


def tuned_block() -> str:
    """Return what TUNED says: what tuning took and found, and what is the fastest of the set."""
    record = json.loads(TUNED.read_text(encoding="utf-8"))
    session, tuned, again, kernels = (record[name] for name in ("session", "tuned", "again", "kernels"))
    duels = [f"{duel['ratio']:.3f}" for duel in record["duels"]]
    best = max(kernel["ratio"] for kernel in kernels)
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
    """Return what calls of HOST cost the host, in us and over torch's own call."""
    record = json.loads(HOST.read_text(encoding="utf-8"))
    sources = {"compiled": "compiled by Triton", "packs": "of a pack, without Triton"}

    def cells(costs: Mapping[str, float]) -> Iterator[str]:
        for result in ("out given", "a new D"):
            for place in ("new addresses", "known addresses"):
                ours, torch = (costs.get(f"{whose}, {result}, {place}") for whose in ("ours", "torch"))
                yield f"{ours:.1f} ({ours / torch:.2f})" if ours and torch else ""

    rows = (
        (f"`{name.removeprefix('gemmgen_pack.')}`, {told}", *cells(found["call_us"]))
        for source, told in sources.items()
        for name, found in record[source]["modules"].items()
    )
    heads = ["", "`out=`, new addresses", "known addresses", "new D, new addresses", "known addresses"]
    return table(heads, rows)


def models_block() -> str:
    """Return the speed of the models of MODELS with our kernels over transformers' own, by tokens."""
    models = _models()
    speeds = {(model, how): found for model, _, hows in models for how, found in hows.items() if how != RIGHT}
    tokens = sorted({count for found in speeds.values() for count in found}, key=int)

    def cells(found: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
        for count in tokens:
            figures = found.get(count)
            yield f"{figures['ratio']:.3f} [{figures['least']:.2f}, {figures['most']:.2f}]" if figures else ""

    rows = ((model, how, *cells(found)) for (model, how), found in speeds.items())
    return table(["model", "", *(f"tokens: {count}" for count in tokens)], rows, words=2)


def right_block() -> str:
    """Return the errors of the models of MODELS, and how often they have the same most likely token."""

    def cells(run: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[str]:
        yield run["linear"]
        yield str(run["layers"])
        yield from (f"{100 * right['errors'][whose]:.2f} %" for whose in ("ours", "torch"))
        same = right.get("same_tokens", {})
        yield from (f"{same[whose]} of {same['of']}" if same else "" for whose in ("ours", "torch"))

    heads = ["model", "linear layers", "layers", "error, ours", "error, torch", "same token, ours"]
    rows = ((model, *cells(run, hows[RIGHT])) for model, run, hows in _models())
    return table([*heads, "same token, torch"], rows, words=2)


def _models() -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return the models of MODELS: the name, the run, and what was found of it."""
    runs = json.loads(MODELS.read_text(encoding="utf-8"))
    return [(name, run, found) for run in runs for name, found in run["models"].items()]
