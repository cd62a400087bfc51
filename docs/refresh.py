"""Fill the marked blocks of the pages from what they quote: a generated module, and the benchmark records.

``python docs/refresh.py`` rewrites PAGES, docs/speed.svg, the pictures of plans in DRAWN, and
docs/pipeline.svg, which it draws from a simulation. A test fails while one of them is out of date.
A block begins with ``<!-- excerpt: FILE FUNCTION… -->``, with
``<!-- speed -->`` for the rows of SHOWN, with ``<!-- benchmarks -->`` for all, or with one of these, and ends
with ``<!-- end -->``:

``<!-- suite: RECORD -->``           the best kernels of all specs by groups of M
``<!-- specs: RECORD -->``           each spec's best kernel and first choice by M, side by side
``<!-- winners: RECORD SPEC -->``    which kernel of a spec is the fastest, by N x K and M
``<!-- shapes: RECORD -->``          each spec's best kernel and first choice, shape by shape
``<!-- last wave: RECORD TILE… SPEC -->``  tiles whole and with a divided last wave, and a spec's best kernel
``<!-- change: RECORD SPEC SPEC -->``  what the second spec changes in kernels that both have
``<!-- peers: RECORD -->``           each spec's best kernel beside Inductor's Triton templates
``<!-- overview -->``                the planner's first choice and its best of N by M, from OVERVIEW
``<!-- reading -->``                 modules beside kernels that only read, from READING
``<!-- gemv -->``                    modules beside a kernel without tensor cores, from GEMV
``<!-- misaligned -->``              copies of misaligned operands beside loads without TMA, from MISALIGNED
``<!-- tuned -->``                   what tuning found beside every kernel of a set, from TUNED
``<!-- host -->``                    what an eager call costs the host, from HOST and LIBRARY_HOST
``<!-- chain -->``                   the matmuls of a transformer's layers in a graph, from CHAIN
``<!-- ragged -->``                  rows that end within a line of memory, from RAGGED
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gemmgen import pictures
from gemmgen.bench import (
    Record,
    ResultLog,
    markdown_table,
    plot,
    read_record,
    suite_markdown,
)
from gemmgen.bench.record import Environment
from gemmgen.bench.result_log import Peer, Result, ratios
from gemmgen.bench.suite_figures import BEST, RatioFigures, SuiteObservation, points_of, winners_of
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.contest import Contest
from gemmgen.product import make

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "benchmarks" / "studies"
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("architecture", "library", "performance", "tuning")),
    *(STUDIES / f"{name}.md" for name in ("kernels_by_shape", "suites")),
)
PICTURE = ROOT / "docs" / "speed.svg"
PIPELINE = ROOT / "docs" / "pipeline.svg"
PIPELINE_SPEC = ROOT / "specs" / "h100_bf16.yaml"
PIPELINE_SHAPE: Shape = (256, 512, 384)
"""Tiles of six K steps: two laps of the four stages show the end of a tile, and the beginning of the next."""
DRAWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "plan_memory": ("h100_bf16", ("shared_memory", "registers")),
    "plan_order": ("h100_bf16", ("ring", "tile_order")),
    "layout_k_major": ("h100_bf16", ("a_smem_0",)),
    "layout_mn_major": ("h100_bf16_nn", ("b_smem",)),
    "layout_accumulator": ("h100_bf16_nn", ("accumulator",)),
    "layout_tensor_memory": ("b200_mxfp8", ("tensor_memory", "a_scale_tmem", "b_scale_tmem")),
}
"""The pictures of docs/layouts.md: of which spec, and which of its drawings."""
SHOWN: tuple[tuple[str, Shape], ...] = (
    ("h100_bf16", (8192, 8192, 8192)),
    ("h100_bf16", (4096, 4096, 4096)),
    ("h100_bf16_128x144", (1024, 2112, 7168)),
    ("h100_bf16_128x128", (8192, 8192, 1024)),
    ("h100_bf16_ping_pong", (8192, 8192, 8192)),
    ("h100_bf16_bias_gelu", (8192, 8192, 8192)),
    ("h100_bf16_residual", (4096, 4096, 4096)),
    ("h100_tf32", (8192, 8192, 8192)),
    ("h100_e4m3", (8192, 8192, 8192)),
    ("h100_int8", (8192, 8192, 8192)),
)
"""The rows of the README and of its picture: each kind of operands, of epilogue, and one that we lose."""
SUITES = ROOT / "benchmarks" / "suites"
READING = ROOT / "benchmarks" / "reading" / "h200.json"
GEMV = ROOT / "benchmarks" / "reading" / "gemv.json"
MISALIGNED = ROOT / "benchmarks" / "reading" / "misaligned.json"
RAGGED = ROOT / "benchmarks" / "reading" / "ragged.json"
HOST = ROOT / "benchmarks" / "reading" / "host.json"
LIBRARY_HOST = ROOT / "benchmarks" / "reading" / "library_host.json"
CHAIN = ROOT / "benchmarks" / "chain" / "h200.json"
MISALIGNED_ARMS = ("", ", B aligned before", ", A and B aligned before", ", into an out of such rows")
TUNED = ROOT / "benchmarks" / "tune" / "h200.jsonl"
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
SPLIT_FAMILY = "split_k"
"""The shapes of a suite that are all K: they count in no group of M."""
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
"""Of M, in the tables by spec: those that a record has. Shapes that are no powers of two go with the next."""
FILLS = (0.49, 0.65, 0.8, 1.0, 2.0)
"""Programs over those that run at a time, in the table of what dependent launch changes."""


def refreshed(text: str) -> str:
    """Return a page's text with every block filled anew."""
    text = re.sub(
        r"(<!-- excerpt: (\S+) ([^>]*?) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_excerpt(ROOT / match[2], match[3].split())}{match[4]}",
        text,
        flags=re.DOTALL,
    )
    for kind, block in BLOCKS.items():
        text = re.sub(
            rf"(<!-- {kind}: (\S+)( [^>]+?)? -->\n).*?(<!-- end -->)",
            lambda match, block=block: f"{match[1]}{_quoted(block, match[2], match[3])}{match[4]}",
            text,
            flags=re.DOTALL,
        )
    return re.sub(
        rf"(<!-- ({'|'.join(PLAIN_BLOCKS)}) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{PLAIN_BLOCKS[match[2]]()}{match[3]}",
        text,
        flags=re.DOTALL,
    )


def pipeline() -> str:
    """Return the picture of a module's pipeline, as the simulator ran it."""
    from gemmgen.verify.launches import Launch
    from gemmgen.verify.simulation import simulate_product  # torch, which the pages do not need

    launch = Launch(PIPELINE_SHAPE, programs=1, inputs="integers", schedules=("lazy",))
    return simulate_product(make(PIPELINE_SPEC), [launch]).svg()


def drawn() -> dict[Path, str]:
    """Return the pictures of plans by their files."""
    return {
        ROOT / "docs" / f"{name}.svg": pictures.svg(make(ROOT / "specs" / f"{stem}.yaml"), names)
        for name, (stem, names) in DRAWN.items()
    }


def records() -> list[Record]:
    """Return the committed records, in the order of their names."""
    return [read_record(path) for path in sorted((ROOT / "benchmarks").glob("*.json"))]


def shown() -> list[Record]:
    """Return the records of SHOWN, in its order and each with that measurement alone."""
    by_name = {record.subject.name: record for record in records()}
    return [_of_shape(by_name[name], shape) for name, shape in SHOWN]


def _of_shape(record: Record, shape: Shape) -> Record:
    measurements = tuple(found for found in record.measurements if found.shape == shape)
    if not measurements:
        raise ValueError(f"{record.subject.name} has no measurement of {shape_text(shape)}")
    return replace(record, measurements=measurements)


def _excerpt(path: Path, functions: list[str]) -> str:
    """Return functions of a module with their decorators, as a Python block."""
    source = path.read_text()
    definitions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    lines = source.splitlines()
    bodies = (
        "\n".join(lines[definitions[name].decorator_list[0].lineno - 1 : definitions[name].end_lineno])
        for name in functions
    )
    return "```python\n" + "\n\n\n".join(bodies) + "\n```\n"


def _speed() -> str:
    return f"{markdown_table(shown())}\n{_where(shown()).removesuffix(':')}. {_range(records())}\n"


def _benchmarks() -> str:
    return f"{_where(records())}\n\n{markdown_table(records())}{_of_earlier_modules(records())}"


def _of_earlier_modules(found: list[Record]) -> str:
    """Say which records are not of the module that is committed, by its hash."""
    earlier = [
        f"`{record.subject.name}`"
        for record in found
        if record.subject.module_sha256 != hashlib.sha256(_module_of(record).read_bytes()).hexdigest()
    ]
    if earlier and len(earlier) == len(found):
        return "\nAll are of earlier modules than the committed ones.\n"
    return f"\nOf an earlier module than the committed one are {', '.join(earlier)}.\n" if earlier else ""


def _module_of(record: Record) -> Path:
    return ROOT / "generated" / f"{record.subject.name}.py"


def _quoted(block: Callable[[ResultLog, str], str], record: str, word: str | None) -> str:
    """Return a block of a suite's record; the word behind the record is the block's own."""
    return block(ResultLog.opened(ROOT / record), (word or "").strip())


def _suite(log: ResultLog, _: str) -> str:
    return f"{_on([session.environment for session in log.sessions])}\n\n{suite_markdown(log)}"


def _table(header: Sequence[str], rows: Iterator[Sequence[str]], words: int = 1) -> str:
    """Return a Markdown table whose first columns are words, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def _chosen(
    log: ResultLog, contest: Contest
) -> dict[str, dict[Shape, tuple[SuiteObservation, SuiteObservation]]]:
    """Return by spec and shape the kernel that was the fastest in the rounds, and the first choice."""
    points = {(p.contest, p.shape, p.kernel): p for p in points_of(log)}
    found: dict[str, dict[Shape, tuple[SuiteObservation, SuiteObservation]]] = {}
    for (where, shape, spec), choice in sorted(log.choices.items()):
        timed = [points[key] for kernel in choice.kernels if (key := (where, shape, kernel)) in points]
        if where == contest and timed:
            best = max(timed, key=lambda point: point.ratio)
            found.setdefault(spec, {})[shape] = best, points[where, shape, choice.kernels[0]]
    return found


def _all_k(log: ResultLog) -> set[Shape]:
    """Return the shapes of SPLIT_FAMILY."""
    return {
        line.shape for line in log.current() if isinstance(line, Result) and SPLIT_FAMILY in line.families
    }


def _layers(log: ResultLog) -> set[Shape]:
    """Return the shapes of weights: N and K that are timed at the most M, without those of SPLIT_FAMILY."""
    rows: dict[tuple[int, int], set[int]] = {}
    apart = _all_k(log)
    for line in log.current():
        if isinstance(line, Result) and line.shape not in apart:
            rows.setdefault(line.shape[1:], set()).add(line.shape[0])
    most = max(map(len, rows.values()))
    return {(m, *pair) for pair, extents in rows.items() if len(extents) == most for m in extents}


def _specs(log: ResultLog, _: str) -> str:
    return "\n".join(_specs_of(log, contest) for contest in log.contests)


def _specs_of(log: ResultLog, contest: Contest) -> str:
    """Return what each spec reaches by M: of its best kernels, and of the first choice alone."""
    chosen, apart = _chosen(log, contest), _all_k(log)
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
    return f"{facts.description}, over {facts.baseline}:\n\n{_table(header, rows())}\n{_luck(log, contest)}\n"


def _figures(points: Sequence[SuiteObservation]) -> str:
    found = RatioFigures.of(points)
    return f"{found.geomean:.3f} [{found.minimum:.3f}]" if found else "-"


def _luck(log: ResultLog, contest: Contest) -> str:
    """Say what the best kernels of all specs had in the rounds, and when they were timed once more."""
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


def _short(kernel: str) -> str:
    """Return a kernel's tile, its CTAs on an SM and its splits: ``16x64x128 ·2 /4``.

    An ``s`` says that it is staggered. Of one with roles ``pp`` says ping-pong, and ``(2x1)`` its cluster.
    """
    label = kernel.partition(": ")[2]
    tile = re.search(r"(\d+) x (\d+) x (\d+)", label)
    assert tile
    ctas, splits = re.search(r"occupancy (\d+)", label), re.search(r"K split by (\d+)", label)
    cluster = re.search(r"cluster (\d) x (\d)", label)
    return "".join(
        (
            "x".join(tile.groups()),
            "s" if "staggered" in label else "",
            " pp" if label.startswith("ping-pong") else "",
            f" ({cluster[1]}x{cluster[2]})" if cluster else "",
            f" ·{ctas[1]}" if ctas else "",
            f" /{splits[1]}" if splits else "",
        )
    )


def _winners(log: ResultLog, spec: str) -> str:
    """Return by N x K, small weights first, and M the fastest kernel of a spec and its ratio.

    These are the layers of the suite: what is timed at every M of its own.
    """
    by_shape = next(found[spec] for name in log.contests if spec in (found := _chosen(log, name)))
    layers = _layers(log)
    extents = sorted({shape[0] for shape in by_shape if shape in layers})
    weights = sorted({shape[1:] for shape in by_shape if shape in layers}, key=lambda nk: (nk[0] * nk[1], nk))

    def rows() -> Iterator[Sequence[str]]:
        for n, k in weights:
            best = (by_shape[m, n, k][0] for m in extents)
            yield f"{n}x{k}", str(-(-n // 64)), *(f"{p.ratio:.3f} {_short(p.kernel)}" for p in best)

    return _table(["N x K", "tiles of 64", *(f"M = {m}" for m in extents)], rows())


def _shapes(log: ResultLog, _: str) -> str:
    """Return each shape's times, with the fastest kernel of each spec and the first choice."""
    chosen = next(found for name in log.contests if (found := _chosen(log, name)))
    header = ["M x N x K", "cuBLAS us"]
    header += [f"{spec}: {what}" for spec in chosen for what in ("best, us", "first")]

    def rows() -> Iterator[Sequence[str]]:
        for shape in sorted(next(iter(chosen.values()))):
            pairs = [by_shape[shape] for by_shape in chosen.values()]
            cells = (
                cell
                for best, first in pairs
                for cell in (
                    f"{best.ratio:.3f} {_short(best.kernel)}, {best.seconds * 1e6:.1f}",
                    f"{first.ratio:.3f} {_short(first.kernel)}",
                )
            )
            yield shape_text(shape), f"{pairs[0][0].baseline_seconds * 1e6:.1f}", *cells

    return _table(header, rows())


def _last_wave(log: ResultLog, words: str) -> str:
    """Return by shape the times of tiles, by pairs of specs: taken whole, and their last wave divided."""
    sides, other = words.split()[:-1], words.split()[-1]
    by_spec = next(found for name in log.contests if (found := _chosen(log, name)))
    sm_count = log.sessions[0].environment.sm_count
    header = ["M x N x K", "cuBLAS us"]
    for side in sides:
        header += [f"waves of {side}", "whole, us", "divided, us", "whole / divided"]

    def rows() -> Iterator[Sequence[str]]:
        for shape in sorted(by_spec[other]):
            best = by_spec[other][shape][0]
            cells = [shape_text(shape), f"{best.baseline_seconds * 1e6:.1f}"]
            for side in sides:
                m, n = map(int, side.split("x"))
                whole, divided = (by_spec[f"{kind}_{side}"][shape][0] for kind in ("cooperative", "stream_k"))
                waves = -(-shape[0] // m) * -(-shape[1] // n) / sm_count
                cells += [f"{waves:.2f}", f"{whole.seconds * 1e6:.1f}", f"{divided.seconds * 1e6:.1f}"]
                cells.append(f"{whole.seconds / divided.seconds:.2f}")
            yield *cells, f"{best.seconds * 1e6:.1f}"

    return _table([*header, f"{other}, us"], rows())


def _change(log: ResultLog, words: str) -> str:
    """Return by how much of the GPU a kernel's programs fill: its time in one spec over that in the other."""
    before, after = words.split()
    points = {(p.shape, p.kernel): p for p in points_of(log)}
    labelled: dict[str, dict[tuple[Shape, str], SuiteObservation]] = {before: {}, after: {}}
    for (_, shape, spec), choice in log.choices.items():
        for kernel in choice.kernels:
            if spec in labelled and (shape, kernel) in points:
                labelled[spec][shape, _short(kernel)] = points[shape, kernel]
    sm_count = log.sessions[0].environment.sm_count
    found = [
        (_fill(shape, label, sm_count), point.seconds / labelled[after][shape, label].seconds)
        for (shape, label), point in labelled[before].items()
        if (shape, label) in labelled[after]
    ]

    def rows() -> Iterator[Sequence[str]]:
        for lower, upper in zip((0.0, *FILLS), (*FILLS, math.inf), strict=True):
            gains = [gain for fill, gain in found if lower < fill <= upper]
            name = f"{lower:.0%} to {upper:.0%}" if upper < math.inf else f"more than {lower:.0%}"
            if not gains:
                yield name, "0", *"----"
                continue
            share = sum(gain < 1 for gain in gains) / len(gains)
            ends = f"{min(gains):.3f}", f"{max(gains):.3f}", f"{share:.0%}"
            yield name, str(len(gains)), f"{statistics.geometric_mean(gains):.3f}", *ends

    header = ["programs over places", "kernels and shapes", "geomean", "least", "most", "slower"]
    return _table(header, rows())


def _gains(log: ResultLog, words: str) -> str:
    """Return by shape the fastest kernel of the first spec, and its time there over that in each other spec.

    The range is of all kernels of the shape that all specs have.
    """
    specs = words.split()
    points = {(p.shape, p.kernel): p for p in points_of(log)}
    labelled: dict[Shape, dict[str, dict[str, SuiteObservation]]] = {}
    for (_, shape, spec), choice in sorted(log.choices.items()):
        for kernel in choice.kernels:
            if (shape, kernel) in points:
                of_shape = labelled.setdefault(shape, {})
                of_shape.setdefault(_label(kernel), {})[spec] = points[shape, kernel]

    def gain(found: Mapping[str, SuiteObservation], spec: str) -> float:
        return found[specs[0]].seconds / found[spec].seconds

    def rows() -> Iterator[Sequence[str]]:
        for shape, kernels in sorted(labelled.items()):
            common = {label: found for label, found in kernels.items() if set(specs) <= set(found)}
            if not common:
                continue
            label = min(common, key=lambda label: common[label][specs[0]].seconds)
            plain = common[label][specs[0]]
            cells: list[str] = []
            for spec in specs[1:]:
                gains = [gain(found, spec) for found in common.values()]
                cells.append(f"{gain(common[label], spec):.3f} [{min(gains):.3f}, {max(gains):.3f}]")
            times = f"{plain.baseline_seconds * 1e6:.1f}", label, f"{plain.seconds * 1e6:.1f}"
            yield shape_text(shape), *times, *cells

    header = ["M x N x K", "cuBLAS us", "fastest without", "us"]
    return _table(header + [f"{spec}: gain [all kernels]" for spec in specs[1:]], rows())


def _label(kernel: str) -> str:
    """Return a kernel's tile as `_short` does, with its consumers if they share it."""
    consumers = re.search(r", \d consumers?", kernel)
    return f"{_short(kernel)}{consumers[0] if consumers else ''}"


def _fill(shape: Shape, label: str, sm_count: int) -> float:
    """Return a tiled kernel's programs over those that the GPU runs at a time."""
    tile, *more = label.split()
    tile_m, tile_n, _ = map(int, tile.split("x"))
    numbers = {word[0]: int(word[1:]) for word in more}
    programs = math.ceil(shape[0] / tile_m) * math.ceil(shape[1] / tile_n) * numbers.get("/", 1)
    return programs / (sm_count * numbers.get("·", 1))


def _peers(log: ResultLog, _: str) -> str:
    """Return what the templates reach over cuBLAS, and each spec's best kernel over cuBLAS and over them."""
    lines = [line for line in log.lines if isinstance(line, Peer) and line.seconds]
    chosen = _chosen(log, lines[0].contest)

    def rows() -> Iterator[Sequence[str]]:
        for line in sorted(lines, key=lambda line: line.shape):
            theirs = ratios(line.baseline_seconds, line.seconds).median
            ours = [by_shape[line.shape][0].ratio for by_shape in chosen.values()]
            yield shape_text(line.shape), f"{theirs:.3f}", *(f"{r:.3f} ({r / theirs:.3f})" for r in ours)

    header = ["M x N x K", "templates", *(f"{spec} (over them)" for spec in chosen)]
    return f"{lines[0].name}:\n\n{_table(header, rows())}"


def _overview() -> str:
    """Return the rows of OVERVIEW: geometric means and minima over cuBLAS."""
    environments: list[Environment] = []

    def row(reached: Reached) -> tuple[str, ...]:
        log = ResultLog.opened(SUITES / f"{reached.record}.jsonl")
        environments.extend(session.environment for session in log.sessions)
        (by_shape,) = (
            c[reached.spec] for where in log.contests if reached.spec in (c := _chosen(log, where))
        )
        least, most = reached.rows
        apart = _all_k(log)
        pairs = [pair for shape, pair in by_shape.items() if least <= shape[0] <= most and shape not in apart]
        tried = max(
            len(choice.kernels) for (_, _, spec), choice in log.choices.items() if spec == reached.spec
        )
        extents = f"{least} to {most}" if most < LARGEST else f"{least} and more"
        first, best = (_figures([pair[which] for pair in pairs]) for which in (1, 0))
        return reached.operands, extents, str(len(pairs)), first, best, str(tried)

    heads = ["operands", "M", "shapes", "planner's first choice", "best of N candidates", "N"]
    table = _table(heads, map(row, OVERVIEW), words=2)
    return f"{table}\n{_on(environments).removesuffix(':')}.\n"


def _reading() -> str:
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
    return _table(["module", "M x N x K", "us", "reader's us", "over the reader"], rows, words=2)


def _gemv() -> str:
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
    return _table(heads, map(row, json.loads(GEMV.read_text())), words=3)


def _misaligned() -> str:
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
    return _table(heads, map(row, json.loads(MISALIGNED.read_text())), words=1)


def _ragged() -> str:
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
    return _table(heads, map(row, rows), words=1)


def _tuned() -> str:
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


def _host() -> str:
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
    return _table(heads, iter(rows))


def _chain() -> str:
    """Return the rows of CHAIN: a layer's time, and torch's over it."""

    def over(found: Mapping[str, Any], arm: str) -> str:
        low, middle, high = found["over_torch_quartiles"][arm]
        return f"{middle:.3f} [{low:.3f}, {high:.3f}]"

    def row(found: Mapping[str, Any]) -> tuple[str, ...]:
        times = found["seconds_per_layer"]
        us = (f"{times[arm] * 1e6:.1f}" for arm in ("torch", "plain", "dependent"))
        return f"{found['rows']}", *us, over(found, "plain"), over(found, "dependent")

    heads = ["M", "torch, us a layer", "gemmgen, us", "with dependent launch, us", "over torch", "with it"]
    return _table(heads, map(row, json.loads(CHAIN.read_text())["rows"]))


BLOCKS: Mapping[str, Callable[[ResultLog, str], str]] = {
    "suite": _suite,
    "specs": _specs,
    "winners": _winners,
    "last wave": _last_wave,
    "shapes": _shapes,
    "change": _change,
    "gains": _gains,
    "peers": _peers,
}
"""Of a record of a suite, by the word that their marks begin with."""
PLAIN_BLOCKS: Mapping[str, Callable[[], str]] = {
    "speed": _speed,
    "benchmarks": _benchmarks,
    "overview": _overview,
    "reading": _reading,
    "gemv": _gemv,
    "misaligned": _misaligned,
    "tuned": _tuned,
    "ragged": _ragged,
    "host": _host,
    "chain": _chain,
}


def suite_records() -> list[Path]:
    """Return the committed records of suites."""
    return sorted(SUITES.glob("*.jsonl"))


def _where(found: list[Record]) -> str:
    return _on([record.environment for record in found])


def _on(found: list[Environment]) -> str:
    gpus = sorted({environment.gpu for environment in found})
    versions = sorted({f"torch {environment.torch}, Triton {environment.triton}" for environment in found})
    return f"On {', '.join(gpus)} with {'; '.join(versions)}:"


def _range(found: list[Record]) -> str:
    """Say how the rows that are not shown compare, the worst of all and the best."""
    ratios = sorted(
        (measurement.observed().ratio, record.subject.name, shape_text(measurement.shape))
        for record in found
        for measurement in record.measurements
    )
    below = sum(ratio < 1 for ratio, _, _ in ratios)
    ends = " to ".join(f"{ratio:.3f} (`{name}`, {shape})" for ratio, name, shape in (ratios[0], ratios[-1]))
    return f"The {len(ratios)} rows on record, {below} of them below 1, range from {ends}."


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refreshed(page.read_text()))
    plot(shown(), PICTURE)
    for picture, text in drawn().items():
        picture.write_text(text, encoding="utf-8")
    PIPELINE.write_text(pipeline(), encoding="utf-8")
