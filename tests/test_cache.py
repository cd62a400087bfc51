"""cache: what was made before comes back whole or not at all, under everything that it depends on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from kernels.launch import launch

from gemmgen import cache
from gemmgen.lower import lower
from gemmgen.module import import_generated
from gemmgen.product import make
from gemmgen.simulate import ttgir

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "specs" / "h100_bf16_single_tile.yaml"
KEY = cache.key_of(["an entry"])


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Counts how often an entry is made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> cache.Files:
        self.made += 1
        return {"text": b"x" * 1000, "number": str(self.made).encode()}


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("??/*"))


def test_an_entry_is_made_once() -> None:
    make_entry = Maker()
    first = cache.cached(KEY, make_entry)
    assert cache.cached(KEY, make_entry) == first == {"text": b"x" * 1000, "number": b"1"}
    assert make_entry.made == 1


def test_without_a_key_and_without_a_directory_everything_is_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_entry = Maker()
    cache.cached(None, make_entry)
    cache.cached(None, make_entry)
    monkeypatch.setenv(cache.VARIABLE, "")
    cache.cached(KEY, make_entry)
    cache.cached(KEY, make_entry)
    assert make_entry.made == 4
    assert not directory.exists()


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_what_is_cut_short_or_changed_is_made_again(directory: Path, cut: int) -> None:
    make_entry = Maker()
    cache.cached(KEY, make_entry)
    (entry,) = entries(directory)
    data = entry.read_bytes()
    entry.write_bytes(data[:cut] if cut >= 0 else data.replace(b"number", b"numbes", 1))
    assert cache.cached(KEY, make_entry)["number"] == b"2"
    assert cache.cached(KEY, make_entry)["number"] == b"2"


def test_a_failure_is_not_kept(directory: Path) -> None:
    def fail() -> cache.Files:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError, match=r"^$"):
            cache.cached(KEY, fail)
    assert entries(directory) == []


def test_a_place_that_cannot_be_written_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    assert cache.cached(KEY, Maker())["number"] == b"1"


def test_what_was_used_the_longest_ago_goes_first(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{number:063x}0" for number in range(4)]  # keys that end in 0 look at the size
    for age, key in enumerate(keys[:3]):
        cache.cached(key, Maker())
        os.utime(directory / key[:2] / f"{key}.zip", (1000 + age, 1000 + age))
    size = entries(directory)[0].stat().st_size
    monkeypatch.setattr(cache, "MAX_BYTES", 3 * size)
    cache.cached(keys[3], Maker())
    assert [path.stem for path in entries(directory)] == [keys[3]]


def test_the_users_cache_is_where_it_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_directory() == Path("/xdg/gemmgen")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr("sys.platform", "linux")
    assert cache.cache_directory() == Path("/home/someone/.cache/gemmgen")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.cache_directory() == Path("/home/someone/Library/Caches/gemmgen")


def test_texts_do_not_run_together() -> None:
    assert cache.key_of(["ab", "c"]) != cache.key_of(["a", "bc"]) != cache.key_of(["abc"])


def test_a_module_is_compiled_once_and_another_text_again(monkeypatch: pytest.MonkeyPatch) -> None:
    product = make(SPEC)
    lowered = lower(product.module, product.plan, path="x", stem="x")
    module = sys.modules[lower.__module__]
    compiled: list[str] = []

    def count(source: str, *_: object, **__: object) -> dict[str, bytes]:
        compiled.append(source)
        raise LookupError

    monkeypatch.setattr(module, "_in_child", count)
    assert lower(product.module, product.plan, path="x", stem="x") == lowered
    assert compiled == []
    for source, stem in ((product.module + "\n# more\n", "x"), (product.module, "y")):
        with pytest.raises(LookupError):
            lower(source, product.plan, path="x", stem=stem)
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    with pytest.raises(LookupError):
        lower(product.module, product.plan, path="x", stem="x")


def test_ttgir_from_the_cache_names_the_file_where_it_now_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(ROOT / "specs" / "h100_bf16.yaml").module
    lines: list[list[object]] = []
    for folder in ("one", "two"):
        path = tmp_path / folder / "kernel.py"
        path.parent.mkdir()
        path.write_text(source)
        if folder == "two":
            monkeypatch.setattr(ttgir, "in_kept", None)  # it would be called
        result, found, expected = launch(import_generated(path), (128, 256, 64), schedules=("lazy",))
        assert result.findings == ()
        assert torch.equal(found, expected)
        lines.append([span.line for span in result.trace.spans])
    assert lines[0] == lines[1]


def test_only_a_file_that_says_all_about_its_kernels_is_kept() -> None:
    assert cache.is_self_contained("import torch\nfrom triton.experimental import gluon\n")
    assert not cache.is_self_contained("import os\n")
    assert not cache.is_self_contained("from . import sizes\n")
    assert not cache.is_self_contained("def broken(:\n")
    assert not cache.is_self_contained("import torch\ndef kernel():\n    import os\n")
    assert not cache.is_self_contained("import torch; import os\n")
    assert not cache.is_self_contained("import torch, os\n")
    assert not cache.is_self_contained("import torch\nif torch: import os\n")
    assert not cache.is_self_contained("import torch\nfrom os \\\n  import path\n")
    assert not cache.is_self_contained("import torch\nfrom helpers \\\n  import torch\n")
    assert not cache.is_self_contained("import torch\nfrom os import (\n  path,\n)\n")
    assert cache.is_self_contained('"""What to import os for."""\nfrom torch import (\n  nn,\n)\n')
