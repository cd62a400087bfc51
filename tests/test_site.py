"""The site: it builds strictly, and its reference comes from the code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from modules import ROOT

from gemmgen.cli.app import app
from gemmgen.cli.explanations import explanations
from gemmgen.spec.model import json_schema
from tools.site import reference


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_the_site_builds_without_a_dead_link(site: Path) -> None:
    for name in ("index", "start", "tutorials/llama_layer", "reference/api", "performance", "studies/suites"):
        assert (site / f"{name}.html").is_file()


def test_nothing_of_a_page_is_loaded_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert 'src="http' not in text
    assert 'rel="stylesheet" href="http' not in text


def test_the_search_finds_the_words_of_the_field(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8").lower()
    for word in ("swap-ab", "pdl", "rasterization", "work unit", "split-k", "stream-k", "small m"):
        assert word in index


def test_the_reference_has_each_field_of_a_spec() -> None:
    page = reference.spec_page()
    schema = json_schema()
    for definition in (schema, *schema["$defs"].values()):
        for name in definition["properties"]:
            assert f"| `{name}` |" in page


def test_the_reference_has_each_command_and_option() -> None:
    page = reference.commands_page()
    for name, command in typer.main.get_group(app).commands.items():
        assert f"## gemmgen {name}\n" in page
        options = (option for each in command.params for option in each.opts if option.startswith("-"))
        assert [option for option in options if option not in page] == []


def test_the_reference_has_each_rule_with_its_statement_and_its_example() -> None:
    page = reference.rules_page((ROOT / "docs" / "rules.md").read_text(encoding="utf-8"))
    for code, explanation in explanations().items():
        entry = page.partition(f"## {code}\n")[2].partition("\n## ")[0]
        assert all(holds in entry for holds in explanation.holds)
        assert ("A spec that is refused" in entry) == (explanation.example is not None)
