"""One fact, one class, one name: classes of gemmgen that share a name are listed here with the reason."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from modules import ROOT

pytestmark = pytest.mark.quick

SECTIONS_OF_A_SPEC = frozenset({"BlockScale", "Epilogue", "Groups", "Mma", "Output", "Ranges", "Runs"})
"""The class in `spec/model.py` is a section of a YAML document; the other one is the value made from it."""
TWO_FACTS = frozenset(
    {"Derived", "Finding", "Parameter", "Part", "Product", "Run", "Stage", "Statement", "Table"}
)
"""Different facts that share a name: renaming one of the two shortens this list, and no name joins it."""
OF_OTHERS = frozenset({"Config"})
"""Names that other programs give: torchtitan builds a class by its inner class of this name."""


def class_names(source: str) -> list[str]:
    """Return the names of the classes that a module defines, nested ones included."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def shared(sources: list[str]) -> set[str]:
    """Return the class names that occur more than once in modules."""
    counts = Counter(name for source in sources for name in class_names(source))
    return {name for name, count in counts.items() if count > 1}


def test_a_class_name_of_gemmgen_is_that_of_one_class() -> None:
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "gemmgen").rglob("*.py"))]
    assert shared(sources) == SECTIONS_OF_A_SPEC | TWO_FACTS | OF_OTHERS


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        (["class Row: ...", "class Row(Base): ..."], {"Row"}),
        (["class Row:\n    class Row: ..."], {"Row"}),
        (["class Row: ...", "Row = 1"], set[str]()),
    ],
)
def test_a_name_is_shared_by_classes_alone(sources: list[str], found: set[str]) -> None:
    assert shared(sources) == found


def test_a_ratio_of_times_is_a_property_of_one_class() -> None:
    found = [
        f"{path.name}:{node.name}"
        for path in sorted((ROOT / "gemmgen").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, ast.FunctionDef) and member.name == "ratio"
    ]
    assert found == ["observation.py:Observation"]
