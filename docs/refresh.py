"""Fill the marked blocks of the pages from what they quote: a generated module, and the benchmark records.

``python docs/refresh.py`` rewrites README.md, docs/benchmarks.md, docs/speed.svg, the pictures of suites and
docs/pipeline.svg, which is drawn from a simulation; tests fail while one is not what this would write. A
block begins with ``<!-- excerpt: FILE FUNCTION… -->``, with ``<!-- speed -->`` for the rows of SHOWN, with
``<!-- benchmarks -->`` for all, or with ``<!-- suite: RECORD -->`` for the figures of a suite; it ends with
``<!-- end -->``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

from gemmgen.bench import (
    Book,
    Record,
    markdown_table,
    plot,
    ratio_picture,
    read_record,
    roofline_picture,
    suite_markdown,
)
from gemmgen.bench.record import Environment
from gemmgen.problem import Shape, shape_text
from gemmgen.product import make

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
PICTURE = ROOT / "docs" / "speed.svg"
PIPELINE = ROOT / "docs" / "pipeline.svg"
PIPELINE_SPEC = ROOT / "specs" / "h100_bf16.yaml"
PIPELINE_SHAPE: Shape = (256, 512, 384)
"""Tiles of six K steps: two laps of the four stages show the end of a tile, and the beginning of the next."""
SHOWN: tuple[tuple[str, Shape], ...] = (
    ("h100_bf16", (8192, 8192, 8192)),
    ("h100_bf16", (4096, 4096, 4096)),
    ("h100_bf16_128x128", (2048, 2048, 2048)),
    ("h100_bf16_128x128", (8192, 8192, 1024)),
    ("h100_bf16_ping_pong", (8192, 8192, 8192)),
    ("h100_bf16_bias_gelu", (8192, 8192, 8192)),
    ("h100_bf16_residual", (4096, 4096, 4096)),
    ("h100_tf32", (8192, 8192, 8192)),
    ("h100_e4m3", (8192, 8192, 8192)),
    ("h100_int8", (8192, 8192, 8192)),
)
"""The rows of the README and of its picture: each kind of operands, of epilogue, and one that we lose."""


def refreshed(text: str) -> str:
    """Return a page's text with every block filled anew."""
    text = re.sub(
        r"(<!-- excerpt: (\S+) ([^>]*?) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_excerpt(ROOT / match[2], match[3].split())}{match[4]}",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(
        r"(<!-- suite: (\S+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_suite(ROOT / match[2])}{match[3]}",
        text,
        flags=re.DOTALL,
    )
    return re.sub(
        r"(<!-- (speed|benchmarks) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_speed() if match[2] == 'speed' else _benchmarks()}{match[3]}",
        text,
        flags=re.DOTALL,
    )


def pipeline() -> str:
    """Return the picture of a module's pipeline, as the simulator ran it."""
    from gemmgen.verify.simulation import Launch, simulate_product  # torch, which the pages do not need

    launch = Launch(PIPELINE_SHAPE, programs=1, inputs="integers", schedules=("lazy",))
    return simulate_product(make(PIPELINE_SPEC), [launch]).svg()


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
    return f"{_where(shown())}\n\n{markdown_table(shown())}\n{_range(records())}\n"


def _benchmarks() -> str:
    return f"{_where(records())}\n\n{markdown_table(records())}"


def _suite(path: Path) -> str:
    book = Book.opened(path)
    return f"{_on([session.environment for session in book.sessions])}\n\n{suite_markdown(book)}"


def suite_records() -> dict[Path, tuple[Path, Path]]:
    """Return the committed records of suites, each with its pictures: of the ratios, and of the roofline."""
    return {
        path: (ROOT / "docs" / f"{path.stem}_ratio.svg", ROOT / "docs" / f"{path.stem}_roofline.svg")
        for path in sorted((ROOT / "benchmarks" / "suites").glob("*.jsonl"))
    }


def _where(found: list[Record]) -> str:
    return _on([record.environment for record in found])


def _on(found: list[Environment]) -> str:
    gpus = sorted({environment.gpu for environment in found})
    versions = sorted({f"torch {environment.torch}, Triton {environment.triton}" for environment in found})
    return f"On {', '.join(gpus)} with {'; '.join(versions)}:"


def _range(found: list[Record]) -> str:
    """Say how the rows that are not shown compare, the worst of all and the best."""
    ratios = sorted(
        (measurement.ratio.median, record.subject.name, shape_text(measurement.shape))
        for record in found
        for measurement in record.measurements
    )
    below = sum(ratio < 1 for ratio, _, _ in ratios)
    ends = " to ".join(f"{ratio:.3f} (`{name}`, {shape})" for ratio, name, shape in (ratios[0], ratios[-1]))
    return f"All {len(ratios)} rows, {below} of them below 1, go from {ends}."


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refreshed(page.read_text()))
    plot(shown(), PICTURE)
    for record, (ratio, roofline) in suite_records().items():
        ratio_picture(Book.opened(record), ratio)
        roofline_picture(Book.opened(record), roofline)
    PIPELINE.write_text(pipeline(), encoding="utf-8")
