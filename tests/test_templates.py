"""Device templates: a variant is an implementation of an interface, and no copy of its sibling."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "templates"
DEVICE = ("shared", "walks", "wgmma", "tcgen05")
"""The folders of templates for code on the GPU."""
MOST_SHARED = 0.6


def lines_of(template: Path) -> Counter[str]:
    """Return the lines of a template without their indentation, and how often each is there."""
    return Counter(line.strip() for line in template.read_text().splitlines() if line.strip())


def shared(a: Counter[str], b: Counter[str]) -> float:
    """Return the lines that two templates share, as a fraction of their mean length."""
    return 2 * (a & b).total() / (a.total() + b.total())


def test_the_fraction_of_shared_lines_counts_each_line_as_often_as_both_have_it() -> None:
    assert shared(Counter("aab"), Counter("aabb")) == 6 / 7
    assert shared(Counter("ab"), Counter("cd")) == 0


def test_no_two_device_templates_share_most_of_their_lines() -> None:
    lines = {
        path.relative_to(TEMPLATES).as_posix().removesuffix(".py.j2"): lines_of(path)
        for folder in DEVICE
        for path in sorted((TEMPLATES / folder).rglob("*.py.j2"))
    }
    assert len(lines) > 100
    found = {(a, b) for a, b in combinations(sorted(lines), 2) if shared(lines[a], lines[b]) > MOST_SHARED}
    assert found == set(), "these differ in one axis: make them one, with an `if`"
