"""Fill the marked blocks of the pages from what they quote: a generated module, or benchmark records.

A block begins with one of these marks and ends with ``<!-- end -->``:

``<!-- excerpt: FILE FUNCTION… -->``   functions of a generated module
``<!-- speed -->``                   the rows of SHOWN, from the records of single kernels
``<!-- benchmarks -->``              all rows of these records
``<!-- suite: RECORD -->``           the best kernels of all specs by groups of M
``<!-- choices -->``                 what gemmgen stands beside, and its speed over that, from one record
``<!-- inductor -->``                the planner's kernels beside Inductor's Triton templates, over cuBLAS
``<!-- overview -->``                the planner's first choice and its best of N by M, from OVERVIEW
``<!-- misaligned -->``              modules that copy misaligned operands, from MISALIGNED
``<!-- tuned -->``                   what tuning found beside every kernel of a set, from TUNED
``<!-- host -->``                    what an eager call costs the host, from HOST and LIBRARY_HOST
``<!-- not-together -->``            the pairs of capabilities that no Hopper kernel has together
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gemmgen.bench import ResultLog
from tools.quotations.kernel_records import benchmarks_block, speed_block
from tools.quotations.pairs import not_together_block
from tools.quotations.peer_blocks import choices_block
from tools.quotations.study_blocks import (
    host_block,
    misaligned_block,
    models_block,
    right_block,
    tuned_block,
)
from tools.quotations.suite_blocks import (
    inductor_block,
    overview_block,
    suite_block,
)
from tools.rendered import ROOT

STUDIES = ROOT / "benchmarks" / "studies"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "architecture",
            "performance",
            "rules",
            "serving",
            "tuning",
            "tutorials/moe_layer",
            "tutorials/deepseek_layer",
        )
    ),
    *(STUDIES / f"{name}.md" for name in ("kernels_by_shape", "suites")),
)
BLOCKS: Mapping[str, Callable[[], str]] = {
    "speed": speed_block,
    "benchmarks": benchmarks_block,
    "choices": choices_block,
    "inductor": inductor_block,
    "overview": overview_block,
    "misaligned": misaligned_block,
    "tuned": tuned_block,
    "host": host_block,
    "models": models_block,
    "right": right_block,
    "not-together": not_together_block,
}
"""Blocks of a fixed record, by their marks."""


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
        lambda match: f"{match[1]}{suite_block(ResultLog.opened(ROOT / match[2]))}{match[3]}",
        text,
        flags=re.DOTALL,
    )
    return re.sub(
        rf"(<!-- ({'|'.join(BLOCKS)}) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{BLOCKS[match[2]]()}{match[3]}",
        text,
        flags=re.DOTALL,
    )


def _excerpt(path: Path, names: list[str]) -> str:
    """Return functions and classes of a module with their decorators, as a Python block."""
    source = path.read_text()
    body = ast.parse(source).body
    definitions = {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    lines = source.splitlines()
    bodies = (
        "\n".join(lines[_first_line(definitions[name]) - 1 : definitions[name].end_lineno]) for name in names
    )
    return "```python\n" + "\n\n\n".join(bodies) + "\n```\n"


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    """Return the number of the first line of a definition, with its decorators."""
    return min(each.lineno for each in (node, *node.decorator_list))
