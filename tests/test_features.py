"""Features: each one has a folder with its sides, and the tables of the stages have them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from modules import ROOT

from gemmgen.features.rendering import SIDES

pytestmark = pytest.mark.quick

FOLDERS = sorted(
    path for path in (ROOT / "gemmgen" / "features").iterdir() if (path / "__init__.py").exists()
)
PLACE = re.compile(r"`((?:gemmgen|templates)/[^`*]+)`")
"""A file or folder that a page names."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_feature_has_a_page_that_names_its_files_and_no_other(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    sides = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"^\* `(\w+\.py)`", page, re.MULTILINE)) == sides
    assert [place for place in PLACE.findall(page) if not (ROOT / place).exists()] == []


def test_the_table_of_rendering_has_the_side_of_each_feature() -> None:
    listed = {side.__module__ for sides in SIDES.values() for side in sides}
    having = (folder.name for folder in FOLDERS if (folder / "rendering.py").exists())
    assert listed == {f"gemmgen.features.{name}.rendering" for name in having}
