"""Blocks from the records of suites: the best kernels and the first choices of specs, by M or by shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gemmgen.bench import ResultLog, suite_markdown
from gemmgen.bench.record import Environment
from gemmgen.bench.result_log import ratios
from gemmgen.bench.suite_figures import RatioFigures, SuiteObservation
from gemmgen.problem import shape_text
from tools.quotations.markdown import measured_on, table
from tools.quotations.suite_choices import chosen_kernels, shapes_of_all_k
from tools.rendered import ROOT

SUITES = ROOT / "benchmarks" / "suites"
INDUCTOR = ROOT / "benchmarks" / "reading" / "inductor.jsonl"
"""What Inductor's Triton templates reach; ``benchmarks/harness/inductor.py`` writes it."""
LARGEST = 1 << 31
"""More rows than any record has."""


class Reached(NamedTuple):
    """A row of docs/performance.md: an open spec, the record of its kernels, and a range of M."""

    operands: str
    record: str
    spec: str
    rows: tuple[int, int]
    """The least and the most M."""


OVERVIEW = (
    Reached("bf16", "h200_few_rows", "h200_bf16_few_rows", (1, 16)),
    Reached("bf16", "h200_few_rows", "h200_bf16_few_rows", (32, 64)),
    Reached("bf16, PDL", "h200_few_rows", "h200_bf16_few_rows_dependent", (1, 16)),
    Reached("bf16, PDL", "h200_few_rows", "h200_bf16_few_rows_dependent", (32, 64)),
    Reached("bf16", "h200_many_rows", "h200_bf16", (128, 512)),
    Reached("bf16", "h200_many_rows", "h200_bf16", (513, LARGEST)),
    Reached("e4m3, one scale", "h200_few_rows_e4m3", "h200_e4m3_few_rows", (1, 64)),
    Reached("e4m3, one scale", "h200_many_rows_e4m3", "h200_e4m3", (128, LARGEST)),
    Reached("e4m3, row and column scales", "h200_few_rows_e4m3", "h200_e4m3_few_rows_scaled", (1, 64)),
    Reached("e4m3, row and column scales", "h200_many_rows_e4m3", "h200_e4m3_scaled", (128, LARGEST)),
)


def suite_records() -> list[Path]:
    """Return the committed records of suites."""
    return sorted(SUITES.glob("*.jsonl"))


def suite_block(log: ResultLog) -> str:
    """Return the machine, and the best kernels of all specs by groups of M."""
    return f"{measured_on(session.environment for session in log.sessions)}:\n\n{suite_markdown(log)}"


def _figures(points: Sequence[SuiteObservation]) -> str:
    found = RatioFigures.of(points)
    return f"{found.geomean:.3f} [{found.minimum:.3f}]" if found else "-"


def inductor_block() -> str:
    """Return by shape what Inductor's Triton templates and the planner's best kernel reach over cuBLAS."""
    log = ResultLog.opened(SUITES / "h200_inductor.jsonl")
    (ours,) = (found for where in log.contests for found in chosen_kernels(log, where).values())
    theirs = [json.loads(line) for line in INDUCTOR.read_text(encoding="utf-8").splitlines()]

    def rows() -> Iterator[Sequence[str]]:
        for line in sorted(theirs, key=lambda line: line["shape"]):
            shape = tuple(line["shape"])
            templates = ratios(line["baseline_seconds"], line["seconds"]).median
            best, first = (point.ratio for point in ours[shape])
            yield (
                shape_text(shape),
                *(f"{ratio:.3f}" for ratio in (templates, first, best, best / templates)),
            )

    header = ["M x N x K", "templates", "planner's first choice", "best of 8", "best over the templates"]
    (versions,) = {(line["gpu"], line["torch"], line["triton"]) for line in theirs}
    gpu, torch, triton = versions
    return f"{table(header, rows())}\nThe templates: {gpu}, torch {torch}, Triton {triton}.\n"


def overview_block() -> str:
    """Return the rows of OVERVIEW: geometric means and minima over cuBLAS."""
    environments: list[Environment] = []

    def row(reached: Reached) -> tuple[str, ...]:
        log = ResultLog.opened(SUITES / f"{reached.record}.jsonl")
        environments.extend(session.environment for session in log.sessions)
        (by_shape,) = (
            c[reached.spec] for where in log.contests if reached.spec in (c := chosen_kernels(log, where))
        )
        least, most = reached.rows
        apart = shapes_of_all_k(log)
        pairs = [pair for shape, pair in by_shape.items() if least <= shape[0] <= most and shape not in apart]
        tried = max(
            len(choice.kernels) for (_, _, spec), choice in log.choices.items() if spec == reached.spec
        )
        extents = f"{least} to {most}" if most < LARGEST else f"{least} and more"
        first, best = (_figures([pair[which] for pair in pairs]) for which in (1, 0))
        return reached.operands, extents, str(len(pairs)), first, best, str(tried)

    heads = ["operands", "M", "shapes", "planner's first choice", "best of N candidates", "N"]
    rows = table(heads, map(row, OVERVIEW), words=2)
    return f"{rows}\n{measured_on(environments)}.\n"
