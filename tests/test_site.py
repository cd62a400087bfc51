"""The site: it builds strictly, and its reference comes from the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from mkdocs.config.defaults import MkDocsConfig
from modules import ROOT

from gemmgen.cli.app import commands
from gemmgen.cli.explanations import explanations
from gemmgen.spec.model import json_schema
from tools.site import hooks, reference


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    environment |= {"GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "owner/name"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_the_first_page_is_the_readme(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    heads = re.findall(r"(?m)^## (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [head for head in heads if f">{head}<" not in text] == []


def test_a_page_links_to_its_neighbours_and_changes_its_colours(site: Path) -> None:
    text = (site / "spec" / "groups.html").read_text(encoding="utf-8")
    for rel, name in (("prev", "epilogue.html"), ("next", "block_scales.html")):
        assert f'<link rel="{rel}" href="{name}">' in text
    assert text.count('name="__palette"') == 3
    assert 'href="../wide.css"' in text


@pytest.mark.parametrize(
    ("origin", "environment", "address"),
    [
        ("", {}, None),
        ("/srv/clone.git", {}, None),
        ("git@host:owner/name.git", {}, None),
        ("https://host/owner/name.git", {}, "https://host/owner/name"),
        ("https://user:word@host/owner/name", {}, "https://host/owner/name"),
        (
            "/srv/clone.git",
            {"GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "owner/name"},
            "https://host/owner/name",
        ),
    ],
)
def test_the_site_links_to_the_repository_that_it_is_built_from(
    origin: str,
    environment: dict[str, str],
    address: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    if origin:
        subprocess.run(["git", "-C", str(tmp_path), "remote", "add", "origin", origin], check=True)
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hooks.repository() == address
    config = hooks.on_config(cast(MkDocsConfig, MkDocsConfig()))
    assert config.repo_url == address
    assert config.repo_name == (address and "owner/name")


def test_the_site_builds_without_a_dead_link(site: Path) -> None:
    for name in (
        "index",
        "contents",
        "start",
        "spec/kernels",
        "tutorials/llama_layer",
        "reference/api",
        "performance",
        "studies/suites",
    ):
        assert (site / f"{name}.html").is_file()


def test_nothing_of_a_page_is_loaded_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert 'src="http' not in text
    assert 'rel="stylesheet" href="http' not in text
    # The theme's link to the repository asks its host for numbers of stars and forks.
    assert 'class="md-source"' in text
    assert 'data-md-component="source"' not in text


def test_the_search_finds_the_words_of_the_field(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8").lower()
    for word in ("swap-ab", "pdl", "rasterization", "work unit", "split-k", "small m"):
        assert word in index


def test_the_reference_has_each_field_of_a_spec() -> None:
    page = reference.spec_page()
    schema = json_schema()
    for definition in (schema, *schema["$defs"].values()):
        for name in definition["properties"]:
            assert f"| `{name}` |" in page


def test_the_reference_has_each_command_and_option() -> None:
    page = reference.commands_page()
    for name, command in commands().items():
        assert f"## gemmgen {name}\n" in page
        options = (option for each in command.params for option in each.opts if option.startswith("-"))
        assert [option for option in options if option not in page] == []
    assert [word for word in ("\\|", "[[", "<list[") if word in page] == []


def test_the_page_of_rules_has_one_title_and_all_its_headings_in_the_contents(site: Path) -> None:
    text = (site / "rules.html").read_text(encoding="utf-8")
    assert text.count("<h1") == 1
    # A heading links to itself, too.
    assert [code for code in explanations() if text.count(f'href="#{code}"') < 2] == []


@pytest.mark.nightly
def test_the_reference_has_each_rule_with_its_statement_and_its_example() -> None:
    page = reference.rules_page((ROOT / "docs" / "rules.md").read_text(encoding="utf-8"))
    for code, explanation in explanations().items():
        entry = page.partition(f"\n### {code}\n")[2].partition("\n### ")[0]
        assert all(holds in entry for holds in explanation.holds)
        assert ("A spec that is refused" in entry) == (explanation.example is not None)
