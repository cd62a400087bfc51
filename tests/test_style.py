"""The style sheet of CONTRIBUTING.md: constructions that a reader has to decode become fewer, never more."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from modules import ROOT

from gemmgen.launcher_file import LAUNCHERS, LIBRARY_FILES

pytestmark = pytest.mark.quick

DECODED = re.compile(
    r"\b(?:those of|that of which|of which|so many|such as are|where there is none|where that is none|"
    r"but for|by turns|asks? for|goes with|go with|lies behind|(?:comes?|stands?|waits?|runs?|is|are) behind|"
    r"for what|of what|in what|has not\b(?! (?:been|yet))|what (?:is|has|does|can|was|were|a|the|it|they)\b)"
    r"|^\s*(?:The same|What|Whose|Of|Whether|Those|That)\b",
    re.IGNORECASE | re.MULTILINE,
)
"""A rough net for the idiom: it also catches good sentences, so the counts below need not reach zero."""

CODE = re.compile(r"^```.*?^```|^\|[^\n]*$", re.DOTALL | re.MULTILINE)
"""Fenced code and table rows of a page."""


def docstrings(path: Path) -> Iterator[str]:
    """Yield each string that stands as a statement: docstrings of modules, classes, functions and values."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


def package(path: Path) -> str:
    """Return the top folder and, in gemmgen, the one below it: the unit that one person rewrites."""
    first, *rest = path.relative_to(ROOT).parts
    return f"gemmgen/{rest[0]}" if first == "gemmgen" and len(rest) > 1 else first


def hits_of_docstrings() -> Counter[str]:
    """Count docstrings with at least one hit, for each package."""
    found: Counter[str] = Counter()
    for root in ("gemmgen", "gluonsim", *LAUNCHERS, *LIBRARY_FILES):
        base = ROOT / root
        for path in sorted(base.rglob("*.py") if base.is_dir() else [base]):
            found[package(path)] += sum(bool(DECODED.search(text)) for text in docstrings(path))
    return found


def hits_of_pages() -> Counter[str]:
    """Count hits in the prose of each page."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages += sorted((ROOT / "benchmarks").glob("*.md"))
    found: Counter[str] = Counter()
    for path in pages:
        name = path.relative_to(ROOT).as_posix()
        found[name] = len(DECODED.findall(CODE.sub("", path.read_text(encoding="utf-8"))))
    return found


DOCSTRINGS = {
    "gemmgen": 0,
    "gemmgen/bench": 7,
    "gemmgen/cli": 0,
    "gemmgen/features": 0,
    "gemmgen/hardware": 1,
    "gemmgen/integrations": 0,
    "gemmgen/library": 2,
    "gemmgen/numerics": 6,
    "gemmgen/pictures": 0,
    "gemmgen/plan": 14,
    "gemmgen/planner": 2,
    "gemmgen/problem": 3,
    "gemmgen/processes": 0,
    "gemmgen/render": 0,
    "gemmgen/report": 0,
    "gemmgen/spec": 0,
    "gemmgen/tune": 0,
    "gemmgen/verify": 0,
    "gemmgen_driver.py": 0,
    "gemmgen_launch.py": 0,
    "gemmgen_library.py": 0,
    "gemmgen_table.py": 0,
    "gemmgen_tuning.py": 0,
    "gluonsim": 161,
}
"""The number of docstrings of each package that `DECODED` catches: a rewrite lowers it."""

PAGES = {
    "CONTRIBUTING.md": 3,
}
"""The number of places in the prose of each page that `DECODED` catches."""


def test_the_idiom_of_docstrings_becomes_rarer() -> None:
    assert dict(hits_of_docstrings()) == DOCSTRINGS, "lower the number, or say it in plain English"


def test_the_idiom_of_pages_becomes_rarer() -> None:
    assert {name: hits for name, hits in hits_of_pages().items() if hits} == PAGES


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("None where there is none.", True),
        ("Raises KeyError for what is no activation.", True),
        ("The same, once the last arguments are these addresses.", True),
        ("Return None if the kernel has no cluster.", False),
        ("Raises KeyError if `op` is not an activation.", False),
    ],
)
def test_the_net_catches_the_idiom_and_not_plain_sentences(text: str, caught: bool) -> None:
    assert bool(DECODED.search(text)) == caught
