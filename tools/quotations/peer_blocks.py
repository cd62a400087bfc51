"""The block of README.md that says what gemmgen stands beside, with figures from one record."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from tools.quotations.markdown import table
from tools.rendered import ROOT

RECORD = ROOT / "benchmarks" / "peers" / "h200.json"
FIRST_CHOICE = "first choice"
"""The kernel of gemmgen that a row has unless it names another: nothing was timed to choose it."""


class Choice(NamedTuple):
    """What somebody would use otherwise, and why they might, or might not."""

    name: str
    peers: tuple[str, ...]
    """Its names in RECORD, none if it was not measured."""
    gained: str
    given_up: str


CHOICES = (
    Choice(
        "torch: cuBLAS, and torch's grouped call",
        ("cuBLAS", "torch._grouped_mm"),
        "source that you can read and change; gates, scales and groups inside the kernel",
        "every GPU and type; no build step",
    ),
    Choice(
        "DeepGEMM",
        ("DeepGEMM",),
        "an epilogue of your own, also for training; Python instead of CUDA C++; a check without a GPU",
        "its lead with fp8 at many rows; kernels that ran on Blackwell",
    ),
    Choice(
        "Triton with autotune (Inductor's templates)",
        ("Inductor's Triton templates",),
        "producers, consumers and TMA in the source; a first choice without a GPU; the same bytes everywhere",
        "any kernel that you can write in Triton, on many GPUs",
    ),
    Choice(
        "quack",
        (),
        "a standalone module to own; errors and races that are found without a GPU",
        "int4 weights beside fp8 activations; kernels other than matmuls",
    ),
)


def choices_block() -> str:
    """Return the rows of CHOICES with gemmgen's speed over each, and a sentence on how it was measured."""
    contests: list[Mapping[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = [
        (choice.name, choice.gained, choice.given_up, "<br>".join(_figures(contests, choice.peers)))
        for choice in CHOICES
    ]
    header = ["instead of", "gemmgen gives you", "you give up", "speed over it"]
    gpus = sorted({contest["gpu"] for contest in contests})
    days = sorted({contest["date"] for contest in contests})
    how = f"Mean [lowest, highest] of (number of problems), on {', '.join(gpus)}, {days[0]} to {days[-1]}"
    of = "gemmgen's kernel is the planner's first choice, unless the row says otherwise."
    return f"{table(header, rows, words=4)}\n{how}; above 1, gemmgen is faster. {of}\n"


def _figures(contests: list[Mapping[str, Any]], peers: tuple[str, ...]) -> list[str]:
    """Return a line, which is not to be broken, for each work that was measured beside a peer."""
    found: list[str] = []
    for contest in contests:
        if contest["peer"] in peers:
            ratios = [speed(row) for row in contest["rows"]]
            mean = statistics.geometric_mean(ratios)
            ends = f"[{min(ratios):.2f}, {max(ratios):.2f}] ({len(ratios)})"
            tuned = "" if contest["gemmgen"] == FIRST_CHOICE else f", gemmgen's {contest['gemmgen']}"
            found.append(f"{contest['work']}{tuned}: {mean:.2f} {ends}".replace(" ", "&nbsp;"))
    return found or ["not measured"]


def speed(row: Mapping[str, Any]) -> float:
    """Return gemmgen's speed over the peer's in a row: of times, or of two speeds over cuBLAS."""
    if "us" in row:
        return row["us"]["peer"] / row["us"]["gemmgen"]
    return row["over_cublas"]["gemmgen"] / row["over_cublas"]["peer"]
