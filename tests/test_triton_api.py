"""triton_api: Triton's private names are in three files, and another Triton is refused in words."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmgen import triton_api
from gemmgen.errors import GemmgenError
from gemmgen.hardware import GPUS, TRITON

PACKAGE = Path(triton_api.__file__).parent
FILES = {"triton_api.py", "triton_errors.py", "triton_launches.py"}
"""The files that have private names of Triton."""
PUBLIC = {"triton", "triton.experimental.gluon.nvidia.hopper"}
"""What a generated module imports, and what tells the version."""
PRIVATE = re.compile(
    r"triton\._C|triton\.(?:backends|compiler|runtime|knobs|tools)\b|libtriton|GluonASTSource|_pack_args"
    r"|\bTRITON_[A-Z]+_[A-Z_]+\""
)


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of Triton that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_other_file_uses_a_private_name_of_triton() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.name in FILES:
            continue
        text = path.read_text(encoding="utf-8")
        private = [name for name in imports(ast.parse(text)) if name.split(".")[0] == "triton"]
        assert set(private) <= PUBLIC, path
        assert PRIVATE.findall(text) == [], path


def test_triton_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys, gemmgen.triton_api as api; assert 'triton' not in sys.modules; api.require(); "
        "assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_a_triton_of_the_supported_release_is_taken() -> None:
    triton_api.require()


@pytest.mark.parametrize(
    ("version", "is_patch"),
    [("3.9.0", True), ("3.9.1", True), ("3.9.0+git1a2b", True), ("3.9", True), ("3.9.0rc1", True)]
    + [(version, False) for version in ("3.10.0", "3.91.0", "3.8.9", "3", "4.0.0", "2.3.9", "main", "")],
)
def test_a_release_has_its_patches_alone(version: str, is_patch: bool) -> None:
    assert TRITON.has(version) == is_patch


def test_the_release_was_verified_for_every_gpu_that_a_spec_can_name() -> None:
    assert {gpu.architecture.compute_capability for gpu in GPUS.values()} == {*TRITON.verified}


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, r"error\[no-triton\]: Triton is not installed, and this needs Triton 3\.9"),
        ("3.10.0", r"error\[unknown-triton\]: found Triton 3\.10\.0, and this needs Triton 3\.9"),
    ],
)
def test_no_triton_and_another_are_refused_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch, version: str | None, message: str
) -> None:
    monkeypatch.setattr(triton_api, "found_version", lambda: version)
    with pytest.raises(
        GemmgenError, match=message + r": run `pip install '\.\[compile\]'` in a checkout of gemmgen$"
    ):
        triton_api.require()


def test_a_variable_that_changes_the_compiler_takes_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    library = triton_api.library_directory()
    known = triton_api.identity(library)
    assert known is not None
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert triton_api.identity(library) == known
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert triton_api.identity(library) is None


def test_another_file_of_the_compiler_is_another_compiler(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "ptxas").write_text("x")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ptxas").write_text("xx")
    assert triton_api.identity(tmp_path / "a") != triton_api.identity(tmp_path / "b")
