"""Generated text that git does not have: rendered once, when something changed, and known by digests."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from modules import module_file

import tools.rendered
from gemmgen.launcher_file import LAUNCHERS, LIBRARY_FILES
from tools.rendered import BUILD, PAIRS, STAMP, Files, Rendered, folder_of, rendered_anew

TEXTS = {"one.py": "1\n", "sub/two.py": "2\n"}


class Counted:
    """A text that counts how often it was rendered."""

    def __init__(self) -> None:
        self.files: dict[str, str] = dict(TEXTS)
        self.times = 0

    def __call__(self) -> Files:
        self.times += 1
        return self.files


def digested(files: Files) -> str:
    return json.dumps({name: sha256(text.encode()).hexdigest() for name, text in files.items()})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a generator and a folder of sources."""
    for name in ("gemmgen/plan.py", "templates/module.py.j2", "specs/one.yaml", *LAUNCHERS, *LIBRARY_FILES):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("first\n")
    monkeypatch.setattr(tools.rendered, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def text(root: Path, counted: Callable[[], Files]) -> Rendered:
    return Rendered(
        root / "build" / "text", root / "specs", root / "digests.json", counted, digested, json.loads
    )


def asked(text: Rendered) -> dict[str, str]:
    """What a new process finds in the folder of a text."""
    folder_of.cache_clear()
    folder = folder_of(text)
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*.py")}


def test_a_text_is_rendered_when_it_is_first_asked_for(text: Rendered, counted: Counted) -> None:
    assert [asked(text) for _ in range(3)] == [TEXTS] * 3
    assert counted.times == 1
    assert not [path for path in text.folder.parent.iterdir() if path.is_dir() and path != text.folder]


@pytest.mark.parametrize(
    "changed", ["gemmgen/plan.py", "templates/module.py.j2", "specs/one.yaml", *LAUNCHERS, *LIBRARY_FILES]
)
def test_a_text_is_rendered_anew_when_what_it_follows_from_has_changed(
    changed: str, root: Path, text: Rendered, counted: Counted
) -> None:
    asked(text)
    (root / changed).write_text("second\n")
    counted.files = {"three.py": "3\n"}
    assert asked(text) == {"three.py": "3\n"}
    assert counted.times == 2


@pytest.mark.parametrize("added", ["gemmgen/__pycache__/plan.pyc", "gemmgen/.cache/plan", "specs/.one.swp"])
def test_what_tools_leave_beside_the_sources_changes_nothing(
    added: str, root: Path, text: Rendered, counted: Counted
) -> None:
    asked(text)
    (root / added).parent.mkdir(exist_ok=True)
    (root / added).write_text("of a tool")
    asked(text)
    assert counted.times == 1


def test_a_new_source_makes_a_text_stale(root: Path, text: Rendered, counted: Counted) -> None:
    asked(text)
    (root / "specs" / "two.yaml").write_text("second\n")
    asked(text)
    assert counted.times == 2


def test_a_folder_that_was_left_half_rendered_is_rendered_anew(text: Rendered, counted: Counted) -> None:
    asked(text)
    (text.folder / STAMP).unlink()
    (text.folder / "one.py").write_text("half")
    assert asked(text) == TEXTS
    assert counted.times == 2


def test_of_many_that_ask_at_once_one_renders(text: Rendered, counted: Counted) -> None:
    folder_of.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(folder_of.__wrapped__, [text] * 16)} == {text.folder}
    assert counted.times == 1


def test_the_files_are_named_whose_digests_are_not_the_recorded_ones(
    text: Rendered, counted: Counted
) -> None:
    assert text.moved(counted()) == ["one.py", "sub/two.py"]
    text.record(counted())
    assert text.moved(counted()) == []
    counted.files = {"one.py": "1\n", "sub/two.py": "two\n", "three.py": "3\n"}
    assert text.moved(counted()) == ["sub/two.py", "three.py"]


def test_what_was_edited_by_hand_is_replaced(text: Rendered) -> None:
    asked(text)
    (text.folder / "one.py").write_text("edited")
    assert rendered_anew(text) == TEXTS
    assert asked(text) == TEXTS


def test_the_module_of_a_pair_is_where_it_is_rendered() -> None:
    assert module_file("h100_bf16_row") == BUILD / "pairs" / "h100_bf16_row.py"
    assert module_file("h100_bf16_row").is_file()
    assert {*json.loads(PAIRS.digests.read_text())} == {
        path.name for path in PAIRS.folder.glob("h100_*.*")
    } | {path.name for path in PAIRS.folder.glob("b200_*.*")}
