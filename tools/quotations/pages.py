"""Fill the marked blocks of the pages from what they quote: a generated module, or benchmark records.

A block begins with one of these marks and ends with ``<!-- end -->``:

``<!-- excerpt: FILE FUNCTION… -->``   functions of a generated module
``<!-- speed -->``                   the rows of SHOWN, from the records of single kernels
``<!-- benchmarks -->``              all rows of these records
``<!-- suite: RECORD -->``           the best kernels of all specs by groups of M
``<!-- specs: RECORD -->``           each spec's best kernel and first choice by M, side by side
``<!-- winners: RECORD SPEC -->``    which kernel of a spec is the fastest, by N x K and M
``<!-- shapes: RECORD -->``          each spec's best kernel and first choice, shape by shape
``<!-- last wave: RECORD TILE… SPEC -->``  tiles whole and with a divided last wave, and a spec's best kernel
``<!-- change: RECORD SPEC SPEC -->``  what the second spec changes in kernels that both have
``<!-- gains: RECORD SPEC SPEC… -->``  by shape, the first spec's fastest kernel and its gain in the others
``<!-- inductor -->``                the planner's kernels beside Inductor's Triton templates, over cuBLAS
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
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gemmgen.bench import ResultLog
from tools.quotations.changes import change_block, gains_block, last_wave_block
from tools.quotations.kernel_records import benchmarks_block, speed_block
from tools.quotations.peer_blocks import choices_block
from tools.quotations.study_blocks import (
    chain_block,
    gemv_block,
    host_block,
    misaligned_block,
    ragged_block,
    reading_block,
    tuned_block,
)
from tools.quotations.suite_blocks import (
    inductor_block,
    overview_block,
    shapes_block,
    specs_block,
    suite_block,
    winners_block,
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
            "tuning",
            "tutorials/moe_layer",
            "tutorials/deepseek_layer",
        )
    ),
    *(STUDIES / f"{name}.md" for name in ("kernels_by_shape", "suites")),
)
BLOCKS: Mapping[str, Callable[[ResultLog, str], str]] = {
    "suite": suite_block,
    "specs": specs_block,
    "winners": winners_block,
    "last wave": last_wave_block,
    "shapes": shapes_block,
    "change": change_block,
    "gains": gains_block,
}
"""Blocks of a suite's record, by the first word of their marks."""
PLAIN_BLOCKS: Mapping[str, Callable[[], str]] = {
    "speed": speed_block,
    "benchmarks": benchmarks_block,
    "inductor": inductor_block,
    "overview": overview_block,
    "reading": reading_block,
    "gemv": gemv_block,
    "misaligned": misaligned_block,
    "tuned": tuned_block,
    "ragged": ragged_block,
    "host": host_block,
    "chain": chain_block,
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


def _quoted(block: Callable[[ResultLog, str], str], record: str, words: str | None) -> str:
    """Return a block of a suite's record; `words` are what its mark has after the record."""
    return block(ResultLog.opened(ROOT / record), (words or "").strip())
