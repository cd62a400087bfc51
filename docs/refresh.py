"""Fill the marked blocks of README.md from what they quote: a generated module, and the benchmark records.

``python docs/refresh.py`` rewrites README.md and docs/speed.svg; a test fails while README.md is not what
this would write. A block lies between ``<!-- excerpt: FILE FUNCTION… -->`` or ``<!-- benchmarks -->`` and
``<!-- end -->``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from gemmgen.bench import Record, markdown_table, plot
from gemmgen.bench.session import read_record

ROOT = Path(__file__).resolve().parent.parent


def refreshed(text: str) -> str:
    """Return the README's text with every block filled anew."""
    text = re.sub(
        r"(<!-- excerpt: (\S+) ([^>]*?) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_excerpt(ROOT / match[2], match[3].split())}{match[4]}",
        text,
        flags=re.DOTALL,
    )
    return re.sub(
        r"(<!-- benchmarks -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{_benchmarks()}{match[2]}",
        text,
        flags=re.DOTALL,
    )


def records() -> list[Record]:
    """Return the committed records, in the order of their names."""
    return [read_record(path) for path in sorted((ROOT / "benchmarks").glob("*.json"))]


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


def _benchmarks() -> str:
    found = records()
    gpus = sorted({record.environment.gpu for record in found})
    versions = sorted(
        {f"torch {record.environment.torch}, Triton {record.environment.triton}" for record in found}
    )
    where = f"On {', '.join(gpus)} with {'; '.join(versions)}:"
    return f"{where}\n\n{markdown_table(found)}\n![speed](docs/speed.svg)\n"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(refreshed(readme.read_text()))
    plot(records(), ROOT / "docs" / "speed.svg")
