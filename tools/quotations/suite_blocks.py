"""Blocks from the record of a suite: which kernel of a spec is the fastest, by M or by shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gemmgen.bench import ResultLog, suite_markdown
from gemmgen.bench.record import Environment
from gemmgen.bench.result_log import ratios
from gemmgen.bench.suite_figures import BEST, RatioFigures, SuiteObservation, points_of, winners_of
from gemmgen.problem import shape_text
from gemmgen.problem.contest import Contest
from tools.quotations.markdown import measured_on, table
from tools.quotations.suite_choices import brief_label, chosen_kernels, shapes_of_all_k, shapes_of_layers
from tools.rendered import ROOT

SUITES = ROOT / "benchmarks" / "suites"
INDUCTOR = ROOT / "benchmarks" / "inductor.jsonl"
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
GROUPS: tuple[tuple[str, range], ...] = (
    ("1", range(1, 2)),
    ("8", range(8, 9)),
    ("16", range(16, 17)),
    ("32", range(32, 33)),
    ("64", range(64, 65)),
    ("1 to 16", range(1, 17)),
    ("1 to 32", range(1, 33)),
    ("1 to 64", range(1, 65)),
    ("128", range(65, 129)),
    ("256", range(129, 257)),
    ("512", range(257, 513)),
    ("1024", range(513, 1025)),
    ("2048", range(1025, 2049)),
    ("4096 and more", range(2049, 1 << 31)),
    ("128 to 512", range(65, 513)),
    ("128 and more", range(65, 1 << 31)),
)
"""Groups of M in tables by spec: empty groups are left out, and other M count as the next power of two."""


def suite_records() -> list[Path]:
    """Return the committed records of suites."""
    return sorted(SUITES.glob("*.jsonl"))


def suite_block(log: ResultLog, _: str) -> str:
    """Return the machine, and the best kernels of all specs by groups of M."""
    return f"{measured_on(session.environment for session in log.sessions)}:\n\n{suite_markdown(log)}"


def specs_block(log: ResultLog, _: str) -> str:
    """Return a table for each contest: its specs side by side, by M."""
    return "\n".join(_specs_of(log, contest) for contest in log.contests)


def _specs_of(log: ResultLog, contest: Contest) -> str:
    """Return a contest's table: by M, the figures of each spec's best kernels and of its first choices."""
    chosen, apart = chosen_kernels(log, contest), shapes_of_all_k(log)
    header = ["M", "shapes"]
    header += [f"{spec}: {what}" for spec in chosen for what in ("best [minimum]", "first [minimum]")]

    def rows() -> Iterator[Sequence[str]]:
        for name, extents in GROUPS:
            cells = ["0"]
            for by_shape in chosen.values():
                arms = [
                    pair for shape, pair in by_shape.items() if shape[0] in extents and shape not in apart
                ]
                cells[0] = str(len(arms))
                cells += [_figures([pair[which] for pair in arms]) for which in (0, 1)]
            if cells[0] != "0":
                yield name, *cells

    facts = log.contests[contest]
    return f"{facts.description}, over {facts.baseline}:\n\n{table(header, rows())}\n{_luck(log, contest)}\n"


def _figures(points: Sequence[SuiteObservation]) -> str:
    found = RatioFigures.of(points)
    return f"{found.geomean:.3f} [{found.minimum:.3f}]" if found else "-"


def _luck(log: ResultLog, contest: Contest) -> str:
    """Return a sentence with the mean of the best kernels in the rounds, and when timed once more."""
    points, winners = points_of(log), winners_of(log)
    own = {(p.contest, p.shape, p.kernel): p for p in points}
    again = [p for p in points if p.kernel == BEST and p.contest == contest]
    rounds = [own[contest, p.shape, winners[contest, p.shape]] for p in again]
    first, second = RatioFigures.of(rounds), RatioFigures.of(again)
    assert first
    assert second
    return (
        f"The best kernels of all {first.count} shapes have {first.geomean:.3f} in the rounds, which these "
        f"figures are from, and {second.geomean:.3f} when they are timed once more."
    )


def winners_block(log: ResultLog, spec: str) -> str:
    """Return by N x K, small weights first, and M the fastest kernel of a spec and its ratio.

    These are the layers of the suite: what is timed at every M of its own.
    """
    by_shape = next(found[spec] for name in log.contests if spec in (found := chosen_kernels(log, name)))
    layers = shapes_of_layers(log)
    extents = sorted({shape[0] for shape in by_shape if shape in layers})
    weights = sorted({shape[1:] for shape in by_shape if shape in layers}, key=lambda nk: (nk[0] * nk[1], nk))

    def rows() -> Iterator[Sequence[str]]:
        for n, k in weights:
            best = (by_shape[m, n, k][0] for m in extents)
            yield f"{n}x{k}", str(-(-n // 64)), *(f"{p.ratio:.3f} {brief_label(p.kernel)}" for p in best)

    return table(["N x K", "tiles of 64", *(f"M = {m}" for m in extents)], rows())


def shapes_block(log: ResultLog, _: str) -> str:
    """Return each shape's times, with the fastest kernel of each spec and the first choice."""
    chosen = next(found for name in log.contests if (found := chosen_kernels(log, name)))
    header = ["M x N x K", "cuBLAS us"]
    header += [f"{spec}: {what}" for spec in chosen for what in ("best, us", "first")]

    def rows() -> Iterator[Sequence[str]]:
        for shape in sorted(next(iter(chosen.values()))):
            pairs = [by_shape[shape] for by_shape in chosen.values()]
            cells = (
                cell
                for best, first in pairs
                for cell in (
                    f"{best.ratio:.3f} {brief_label(best.kernel)}, {best.seconds * 1e6:.1f}",
                    f"{first.ratio:.3f} {brief_label(first.kernel)}",
                )
            )
            yield shape_text(shape), f"{pairs[0][0].baseline_seconds * 1e6:.1f}", *cells

    return table(header, rows())


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
