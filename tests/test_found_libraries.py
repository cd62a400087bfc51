"""A package of somebody else: what its files may not be, and what no library is made of."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from contests import BF16, E4M3
from modules import ROOT

from gemmgen import files, library
from gemmgen.errors import GemmgenError
from gemmgen.library import package, sources
from gemmgen.library.assemble import Library, assemble
from gemmgen.library.manifest import MANIFEST, TABLE
from gemmgen.product import check as check_modules
from gemmgen.product import make
from gemmgen.tune import read_table

FIRST, SECOND = "h100_bf16", "h100_bf16_128x128"


def spec(stem: str) -> Path:
    return ROOT / "specs" / f"{stem}.yaml"


def assembled(name: str, *paths: Path) -> Library:
    found = sources.read(paths)
    return assemble(name, found, library.choose(found))


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """A library of two kernels that nothing was measured of."""
    return package.write(assembled("found", spec(FIRST), spec(SECOND)), tmp_path)


def refused(action: Callable[[], object]) -> str:
    """Return the diagnostic that a call ends with."""
    with pytest.raises(GemmgenError) as error:
        action()
    return "; ".join(str(each) for each in error.value.diagnostics)


# --- names of kernels


def test_two_specs_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    second = tmp_path / "other" / f"{FIRST}.yaml"
    shutil.copy(spec(SECOND), second)
    assert "h100_bf16 cannot be the name of a kernel in it: two of its specs have it" in refused(
        lambda: assembled("twice", spec(FIRST), second)
    )


@pytest.mark.parametrize("name", ["timing", "table", "library", "choose"])
def test_a_kernel_of_the_name_of_a_part_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    shutil.copy(spec(SECOND), path)
    assert (
        f"{name} cannot be the name of a kernel in it: a library has something else of that name"
        in refused(lambda: assembled("parts", spec(FIRST), path))
    )


# --- what a package says of its kernels


OTHER_SPECS = {
    "of another type": ("h100_e4m3", "a library computes one problem, and there are "),
    "for another GPU": ("b200_bf16", "a library is for one GPU, and its specs are for "),
    "of one tile": (
        "h100_bf16_single_tile",
        "cannot be in a library: its kernel computes a single tile",
    ),
}


@pytest.mark.parametrize("case", OTHER_SPECS)
def test_a_package_with_a_spec_of_another_library_is_refused(found: Path, case: str) -> None:
    stem, said = OTHER_SPECS[case]
    shutil.copy(spec(stem), found / "specs" / f"{FIRST}.yaml")
    assert said in refused(lambda: package.read_library(found))


def test_a_package_that_breaks_a_promise_of_batch_invariance_is_refused(found: Path) -> None:
    path = found / "specs" / f"{FIRST}.yaml"
    path.write_text(path.read_text() + "batch_invariant: true\n")
    assert "library-batch-invariance" in refused(lambda: package.read_library(found))


FALSE_MEMBERS = {
    "problem": (
        MANIFEST,
        asdict(E4M3),
        f"bad-library] problem: is {E4M3}, and its specs are of 'bf16' ({BF16})",
    ),
    "gpu": (
        TABLE,
        "NVIDIA B200",
        "bad-library] gpu: is NVIDIA B200, a GPU of Blackwell, and the kernel is for Hopper",
    ),
}


@pytest.mark.parametrize("member", FALSE_MEMBERS)
def test_a_library_whose_documents_contradict_its_specs_is_refused(found: Path, member: str) -> None:
    name, value, said = FALSE_MEMBERS[member]
    document = json.loads((found / name).read_text())
    (found / name).write_text(json.dumps(document | {member: value}))
    assert said in refused(lambda: package.read_library(found)).replace('"', "'")


# --- files that are no files


@pytest.mark.parametrize("name", [MANIFEST, TABLE, f"{FIRST}.py", f"specs/{FIRST}.yaml"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_a_package_is_not_waited_for(found: Path, name: str, kind: str) -> None:
    (found / name).unlink()
    if kind == "pipe":
        os.mkfifo(found / name)
    else:
        (found / name).symlink_to("/dev/zero")
    with suppress(GemmgenError):  # of a file that it cannot do without
        assert package.check(found)


@pytest.mark.parametrize("name", [f"{FIRST}.py", f"{FIRST}.json"])
def test_a_pipe_in_place_of_a_module_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    (named,) = [
        finding.diagnostic
        for finding in check_modules([make(spec(FIRST))], tmp_path, exhaustive=False)
        if finding.diagnostic.path.endswith(name)
    ]
    assert (named.code, named.message) == ("cannot-read", "it is a pipe, a socket or a device, not a file")


def test_a_pipe_in_place_of_a_table_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.jsonl")
    said = "it is a pipe, a socket or a device, not a file"
    assert said in refused(lambda: read_table(tmp_path / "table.jsonl"))
    assert said in refused(lambda: sources.read([tmp_path / "table.jsonl"]))


def test_no_more_is_read_than_a_document_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert files.read_text(path) == "0123456789"
    path.write_bytes(b"0123456789+")
    with pytest.raises(OSError, match="more than 10 bytes"):
        files.read_bytes(path)
    with pytest.raises(IsADirectoryError):
        files.read_bytes(tmp_path)


# --- bytecode


def test_bytecode_that_python_does_not_check_is_named_and_goes(found: Path) -> None:
    """Python runs it in place of the module, however the module reads."""
    foreign = found.parent / "foreign.py"
    foreign.write_text("raise SystemExit('foreign code')\n")
    stem = "timing"
    kept = found / "__pycache__" / f"{stem}.cpython-311.pyc"
    py_compile.compile(
        str(foreign), cfile=str(kept), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    (named,) = package.check(found)
    assert (named.diagnostic.path, named.diagnostic.code) == (kept.as_posix(), "orphaned")
    package.write(package.read_library(found), found.parent)
    assert not kept.exists()
    assert package.check(found) == ()


def test_bytecode_that_python_wrote_is_left_alone_by_a_check(found: Path) -> None:
    py_compile.compile(str(found / "timing.py"), doraise=True)
    other = found / "__pycache__" / "other.cpython-311.pyc"
    other.write_bytes(b"")
    assert package.check(found) == ()
    package.write(package.read_library(found), found.parent)
    assert [path.name for path in (found / "__pycache__").iterdir()] == [other.name]
