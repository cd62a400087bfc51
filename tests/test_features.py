"""Features: each one has a folder with its sides, and the tables of the stages have them all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from modules import ROOT

from gemmgen.features.registry import FEATURES, REPORTED, REPORTED_FIRST, Stage, sides
from gemmgen.render.side import Rendering

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


def test_every_folder_is_registered_once() -> None:
    assert sorted(FEATURES) == [folder.name for folder in FOLDERS]


def test_features_that_report_first_are_registered() -> None:
    assert {*REPORTED_FIRST} <= {*FEATURES}
    assert sorted(REPORTED) == sorted(FEATURES)


@pytest.mark.parametrize("stage", get_args(Stage))
def test_a_stage_collects_the_side_of_each_folder_that_has_one(stage: Stage) -> None:
    collected = {side.__name__ for side in sides(stage)}
    having = (folder.name for folder in FOLDERS if (folder / f"{stage}.py").exists())
    assert collected == {f"gemmgen.features.{name}.{stage}" for name in having}


def test_each_side_of_rendering_is_in_its_folder() -> None:
    for side in sides("rendering"):
        made = {each for family in side.SIDES.values() for each in family}
        assert {each.__module__ for each in made} == {side.__name__}
        assert made == {each for each in vars(side).values() if _renders(each, side.__name__)}


def _renders(found: object, module: str) -> bool:
    return isinstance(found, type) and issubclass(found, Rendering) and found.__module__ == module
