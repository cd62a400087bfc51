"""The house: imports go one way, no folder has too many files, names tell them apart, the picture is true."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from modules import ROOT

from gemmgen.features.registry import Stage

pytestmark = pytest.mark.quick

MOST_FILES_OF_A_NAME = 2


@pytest.fixture(scope="module")
def architecture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


def written(root: Path, **sources: str) -> Path:
    """Write a package of these modules, whose names have ``__`` for a dot; return where it is."""
    for name, source in {"__init__": "", **sources}.items():
        path = root.joinpath("gemmgen", *re.split("(?<=[a-z])__(?=.)", name)).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


def test_no_modules_import_each_other(architecture: ModuleType) -> None:
    assert architecture.circles(architecture.imports()) == []


def test_an_import_inside_of_a_function_and_one_for_types_close_a_circle(
    architecture: ModuleType, tmp_path: Path
) -> None:
    sources = {
        "plan": "def f():\n    from gemmgen import roles\n",
        "roles": "if TYPE_CHECKING:\n    from gemmgen.tiles import Tile\n",
        "tiles": "import gemmgen.plan\n",
        "cost": "from . import tiles\n",
    }
    found = architecture.circles(architecture.imports(written(tmp_path, **sources)))
    assert found == [["gemmgen.plan", "gemmgen.roles", "gemmgen.tiles"]]


LEAVES = frozenset(
    {
        "cache",
        "errors",
        "gemmgen",  # its version
        "hardware",
        "literals",
        "module",
        "numerics.encoding",
        "processes",
        "python_source",
        "triton_api",
        "triton_errors",
        "triton_launches",
    }
)
"""Modules of gemmgen, and packages, that know no specs and that gluonsim shares."""


def test_the_simulator_imports_nothing_that_knows_specs(architecture: ModuleType) -> None:
    imported = {
        target.removeprefix("gemmgen.")
        for name, targets in architecture.imports().items()
        if name.split(".")[0] == "gluonsim"
        for target in targets
        if target.split(".")[0] == "gemmgen"
    }
    assert {name for name in imported if not {name, name.rpartition(".")[0]} & LEAVES} == set()


def test_no_stage_imports_a_feature(architecture: ModuleType) -> None:
    """A stage is given the sides of features, and loops over them."""
    stages = {"hardware", "numerics", "plan", "problem", "render", "spec"}
    importing = {
        name
        for name, targets in architecture.imports().items()
        if name.split(".")[1:2] and name.split(".")[1] in stages
        for target in targets
        if target.startswith("gemmgen.features")
    }
    assert importing == set()


def test_no_side_imports_a_table_of_sides(architecture: ModuleType) -> None:
    """The tables import the sides by their names, which the graph of imports does not show."""
    tables = {f"gemmgen.features.{stage}" for stage in ("registry", *get_args(Stage))}
    importing = {
        name
        for name, targets in architecture.imports().items()
        if name.startswith("gemmgen.features.") and name.count(".") > 2 and targets & tables
    }
    assert importing == set()


def test_parts_that_import_each_other_are_not_drawn(architecture: ModuleType, tmp_path: Path) -> None:
    sources = {
        "plan__rules": "import gemmgen.spec.model",
        "spec__model": "",
        "spec__load": "import gemmgen.plan.cost",
        "plan__cost": "",
    }
    root = written(tmp_path, **sources)
    assert architecture.circles(architecture.imports(root)) == []
    with pytest.raises(ValueError, match=r"in circles: \[\['plan', 'spec'\]\]"):
        architecture.drawn(root)


def test_the_names_of_files_tell_them_apart(architecture: ModuleType) -> None:
    # The folder of a feature tells its files apart, which are named after the stages.
    files = [path for path in architecture.files().values() if "features" not in path.parts]
    names = Counter(path.name for path in files if path.name != "__init__.py")
    assert {name: count for name, count in names.items() if count > MOST_FILES_OF_A_NAME} == {}


def test_only_modules_of_specs_import_pydantic_when_they_are_imported(architecture: ModuleType) -> None:
    """Commands that read no spec start without it: to import Pydantic takes a while."""
    importing = {
        name
        for name, path in architecture.files().items()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if (isinstance(node, ast.ImportFrom) and node.module in ("pydantic", "pydantic_core"))
        or (isinstance(node, ast.Import) and node.names[0].name.startswith("pydantic"))
    }
    assert importing == {name for name in importing if name.startswith("gemmgen.spec.")} != set()


def test_only_a_loaded_spec_makes_its_request(architecture: ModuleType) -> None:
    """All others take the request that it carries, or the matmul of that."""
    asking = {
        name
        for name, path in architecture.files().items()
        if "gemmgen.spec.request" in path.read_text(encoding="utf-8")
    }
    assert asking == {"gemmgen.spec.load"}


def test_the_picture_is_drawn_from_the_imports(architecture: ModuleType) -> None:
    """`python docs/architecture.py` draws it anew."""
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.drawn()


def test_the_picture_shows_every_part_and_no_arrow_twice(architecture: ModuleType, tmp_path: Path) -> None:
    sources = {
        "errors": "",
        "spec____init__": '"""The spec."""\nimport gemmgen.errors',
        "plan____init__": '"""A plan."""\nimport gemmgen.errors, gemmgen.spec',
        "cli": "import gemmgen.plan, gemmgen.errors",
    }
    drawn: str = architecture.drawn(written(tmp_path, **sources))
    assert all(f">{name}</text>" in drawn for name in ("errors", "spec", "plan", "cli", "A plan"))
    assert drawn.count('class="arrow"') == 3  # of the five imports two follow from the others
