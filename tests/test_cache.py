"""cache: what was made before comes back whole or not at all, under everything that it depends on."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import stat
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from kernels.launch import launch
from modules import SPECS, made, spec_file

from gemmgen import cache
from gemmgen.build import build
from gemmgen.lower import lower
from gemmgen.module import import_generated
from gemmgen.product import make
from gemmgen.python_source import GRADIENTS, is_self_contained
from gluonsim.ir import ttgir

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


def as_stored(files: cache.Files) -> cache.Files:
    return files


def fetched(
    key: str | None, make: Callable[[], cache.Files], read: Callable[[cache.Files], cache.Files] = as_stored
) -> cache.Files:
    """An entry, of which the parts are wanted as they are stored."""
    return cache.cached(key, make, read)


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("??/*"))


def test_an_entry_is_made_once() -> None:
    make_entry = Maker()
    first = fetched(KEY, make_entry)
    assert fetched(KEY, make_entry) == first == {"text": b"x" * 1000, "number": b"1"}
    assert make_entry.made == 1


def test_without_a_key_and_without_a_directory_everything_is_made(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_entry = Maker()
    fetched(None, make_entry)
    fetched(None, make_entry)
    monkeypatch.setenv(cache.VARIABLE, "")
    fetched(KEY, make_entry)
    fetched(KEY, make_entry)
    assert make_entry.made == 4
    assert not directory.exists()


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_what_is_cut_short_or_changed_is_made_again(directory: Path, cut: int) -> None:
    make_entry = Maker()
    fetched(KEY, make_entry)
    (entry,) = entries(directory)
    data = entry.read_bytes()
    entry.write_bytes(data[:cut] if cut >= 0 else data.replace(b"number", b"numbes", 1))
    assert fetched(KEY, make_entry)["number"] == b"2"
    assert fetched(KEY, make_entry)["number"] == b"2"


def test_a_failure_is_not_kept(directory: Path) -> None:
    def fail() -> cache.Files:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError, match=r"^$"):
            fetched(KEY, fail)
    assert entries(directory) == []


def test_a_place_that_cannot_be_written_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    assert fetched(KEY, Maker())["number"] == b"1"


def test_what_was_used_the_longest_ago_goes_first(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{number:063x}0" for number in range(4)]  # keys that end in 0 look at the size
    for age, key in enumerate(keys[:3]):
        fetched(key, Maker())
        os.utime(directory / key[:2] / f"{key}.zip", (1000 + age, 1000 + age))
    size = entries(directory)[0].stat().st_size
    monkeypatch.setattr(cache, "MAX_BYTES", 3 * size)
    fetched(keys[3], Maker())
    assert [path.stem for path in entries(directory)] == [keys[3]]


def keys_of_one_folder(count: int) -> list[str]:
    """Keys whose writers look at the size of the cache."""
    return [f"ab{number:061x}0" for number in range(count)]


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, every file that the cache may remove is one too many."""
    monkeypatch.setattr(cache, "MAX_BYTES", 0)


def test_pruning_leaves_files_that_are_not_the_caches_own(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [
        directory / name
        for name in (
            "ab/notes.txt",
            f"ab/{'0' * 63}.zip",
            f"ab/cd{'0' * 62}.zip",  # of another folder
            f"ab/ab{'0' * 62}.ZIP",
            "ab/tmpabcdefgh.tmp",
            f"ab/ab{'0' * 62}.zip.d/inner",
            f"zz/zz{'0' * 62}.zip",
            "zz/thesis.tex",
            f"AB/AB{'0' * 62}.zip",
            "abc/thesis.tex",
        )
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not the cache's")
    full(monkeypatch)
    fetched(keys_of_one_folder(1)[0], Maker())
    assert [path for path in others if not path.exists()] == []
    assert not (directory / "ab" / f"{keys_of_one_folder(1)[0]}.zip").exists()


def test_pruning_follows_no_link(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = tmp_path / "foreign" / f"cd{'0' * 62}.zip"
    foreign.parent.mkdir()
    foreign.write_text("of another program")
    fetched(keys_of_one_folder(1)[0], Maker())
    (directory / "cd").symlink_to(foreign.parent)
    link = directory / "ab" / f"ab{'f' * 62}.zip"
    link.symlink_to(foreign)
    full(monkeypatch)
    fetched(keys_of_one_folder(2)[1], Maker())
    assert foreign.read_text() == "of another program"
    assert link.is_symlink()


def test_pruning_removes_what_killed_writers_left(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys_of_one_folder(1)[0]
    names: list[str] = []

    def leave(path: Path, *, missing_ok: bool = False) -> None:
        pass

    def stop(path: Path, target: Path) -> None:
        names.append(path.name)
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Path, "replace", stop)
        killed.setattr(Path, "unlink", leave)
        with pytest.raises(KeyboardInterrupt):
            fetched(key, Maker())
    assert [path.name for path in entries(directory)] == names
    full(monkeypatch)
    fetched(key, Maker())
    assert entries(directory) == []


# --- entries that are not as they were written


OTHER = cache.key_of(["another entry"])


def archive_of(
    parts: list[tuple[str, bytes]], packing: int = zipfile.ZIP_DEFLATED, comment: bytes = b""
) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", packing) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        archive.comment = comment
        for name, data in parts:
            archive.writestr(name, data)
    return buffer.getvalue()


GOOD = [("text", b"x" * 1000), ("number", b"1")]


def encrypted(data: bytes) -> bytes:
    """Set the flag of encryption of every member."""
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data = data[: at + offset] + bytes([data[at + offset] | 1]) + data[at + offset + 1 :]
    return data


def packed_oddly(data: bytes, method: int) -> bytes:
    """Claim another method of compression for every member."""
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data = data[: at + offset] + bytes([method, 0]) + data[at + offset + 2 :]
    return data


def with_wrong_checksum(data: bytes) -> bytes:
    at = data.rfind(b"PK\x01\x02")
    return data[: at + 16] + bytes([data[at + 16] ^ 1]) + data[at + 17 :]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "no archive": lambda _: b"x" * 5000,
    "encrypted": encrypted,
    "an unknown compression": lambda data: packed_oddly(data, 99),
    "another compression": lambda data: packed_oddly(data, zipfile.ZIP_LZMA),
    "a wrong checksum": with_wrong_checksum,
    "a missing part": lambda _: archive_of(GOOD[:1]),
    "another part": lambda _: archive_of([GOOD[0], ("number", b"7")]),
    "a part twice": lambda _: archive_of([*GOOD, ("number", b"7")]),
    "an absolute name": lambda _: archive_of([*GOOD, ("/etc/passwd", b"")]),
    "a name outside": lambda _: archive_of([*GOOD, ("../../outside", b"")]),
    "no parts": lambda _: archive_of([]),
}


def numbered(files: cache.Files) -> cache.Files:
    """What a caller does with the parts that it expects."""
    int(files["number"].decode())
    return {"number": files["number"], "text": files["text"]}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("signed", [False, True], ids=["as it is", "with a right digest"])
def test_a_broken_entry_is_as_none(directory: Path, kind: str, signed: bool) -> None:
    fetched(KEY, Maker())
    (entry,) = entries(directory)
    data = BROKEN[kind](archive_of(GOOD, comment=bytes(cache.DIGEST_BYTES)) if signed else entry.read_bytes())
    if signed:
        # Who may write in the directory can do this; there is still no traceback and no wrong part's name.
        content = data[: -cache.DIGEST_BYTES]
        data = content + cache._digest(KEY, content)  # pyright: ignore[reportPrivateUsage]
    entry.write_bytes(data)
    make_entry = Maker()
    found = fetched(KEY, make_entry, numbered)
    assert found.keys() == {"number", "text"}
    if not signed or kind not in ("another part", "an absolute name", "a name outside"):
        assert (make_entry.made, found["number"]) == (1, b"1")
    assert fetched(KEY, make_entry, numbered) == found


def test_an_entry_that_unpacks_to_too_much_is_as_none(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_entry = Maker()
    fetched(KEY, make_entry)
    (entry,) = entries(directory)
    assert entry.stat().st_size < 900  # of parts of 1,001 bytes
    monkeypatch.setattr(cache, "MAX_ENTRY_BYTES", 900)
    assert fetched(KEY, make_entry)["number"] == b"2"


def test_of_a_file_that_is_too_large_no_more_is_read_than_an_entry_may_have(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched(KEY, Maker())
    (entry,) = entries(directory)
    os.truncate(entry, 1 << 40)  # of holes
    with no_hang():
        monkeypatch.setattr(cache, "MAX_ENTRY_BYTES", 1 << 20)
        assert fetched(KEY, Maker())["number"] == b"1"


def test_an_entry_of_another_key_is_as_none(directory: Path) -> None:
    fetched(KEY, Maker())
    other = lambda: {"text": b"another kernel's", "number": b"9"}  # noqa: E731
    fetched(OTHER, other)
    source = directory / OTHER[:2] / f"{OTHER}.zip"
    (directory / KEY[:2] / f"{KEY}.zip").write_bytes(source.read_bytes())
    assert fetched(KEY, Maker())["number"] == b"1"


def test_a_replaced_part_is_not_taken(directory: Path) -> None:
    """As of a kernel whose machine code is exchanged for that of another one."""
    fetched(KEY, Maker())
    (entry,) = entries(directory)
    with zipfile.ZipFile(entry) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
        comment = archive.comment
    entry.write_bytes(archive_of([*(parts | {"text": b"evil"}).items()], comment=comment))
    assert fetched(KEY, Maker())["text"] == b"x" * 1000


@pytest.mark.parametrize("error", [ValueError, KeyError, TypeError, RuntimeError, AttributeError])
def test_parts_that_their_reader_refuses_are_made_again(directory: Path, error: type[Exception]) -> None:
    make_entry = Maker()
    fetched(KEY, make_entry)

    def read(files: cache.Files) -> cache.Files:
        if files["number"] == b"1":
            raise error
        return files

    assert fetched(KEY, make_entry, read)["number"] == b"2"
    assert fetched(KEY, make_entry)["number"] == b"2"


def test_what_its_reader_refuses_is_not_kept(directory: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fetched(KEY, Maker(), lambda _: {"never": bytes(1 // 0)})
    assert entries(directory) == []


@pytest.mark.parametrize("what", ["directory", "pipe", "link", "dangling link", "folder link", "folder file"])
def test_something_else_in_place_of_an_entry_is_as_none(directory: Path, tmp_path: Path, what: str) -> None:
    fetched(KEY, Maker())
    (entry,) = entries(directory)
    aside = tmp_path / "aside"
    entry.parent.rename(aside)
    if what == "folder link":
        entry.parent.symlink_to(aside)
    elif what == "folder file":
        entry.parent.touch()
    else:
        entry.parent.mkdir()
        if what == "directory":
            entry.mkdir()
        elif what == "pipe":
            os.mkfifo(entry)
        else:
            entry.symlink_to(aside / entry.name if what == "link" else aside / "absent")
    make_entry = Maker()
    make_entry.made = 5
    with no_hang():
        assert fetched(KEY, make_entry)["number"] == b"6"
    assert len(list(aside.iterdir())) == 1


@contextmanager
def no_hang(seconds: int = 20) -> Generator[None]:
    """Fail, in place of waiting for ever."""

    def stop(*_: object) -> None:
        pytest.fail("it waits for ever")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- locks


def lock_of(directory: Path, key: str) -> Path:
    return directory / f"lock-{int(key[:8], 16) % cache.LOCKS}"


@pytest.mark.parametrize("what", ["pipe", "directory", "link"])
def test_something_else_in_place_of_a_lock_is_not_waited_for(
    directory: Path, tmp_path: Path, what: str
) -> None:
    directory.mkdir(mode=0o700)
    lock = lock_of(directory, KEY)
    if what == "pipe":
        os.mkfifo(lock)
    elif what == "directory":
        lock.mkdir()
    else:
        lock.symlink_to(tmp_path / "made through a link")
    with no_hang():
        assert fetched(KEY, Maker())["number"] == b"1"
    assert not (tmp_path / "made through a link").exists()


def test_a_lock_that_another_process_keeps_is_named_and_given_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "LOCK_SECONDS", 0.2)
    lock = lock_of(directory, KEY)
    with no_hang(), lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.warns(cache.CacheWarning) as told:
            fetched(KEY, Maker())
        (only,) = told
        assert str(only.message).startswith(f"{lock}: warning[cache-locked]: ")
        # The second time there is neither a wait nor a word.
        monkeypatch.setattr(cache, "LOCK_SECONDS", 15.0)
        entries(directory)[0].unlink()
        assert fetched(KEY, Maker())["number"] == b"1"


def test_of_two_processes_one_makes_an_entry(directory: Path, tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from gemmgen import cache

def make():
    with Path(sys.argv[1]).open("a") as file:
        file.write("made\\n")
    time.sleep(1)
    return {"text": b"made"}

cache.cached("0" * 64, make, dict)
"""
    root = str(Path(cache.__file__).parent.parent)
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path / "log")]
    started = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root}) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "made\n"


# --- whose the directory is


def refusal(directory: Path) -> str:
    """The one warning that comes of using a directory as the cache, which it must not be."""
    make_entry = Maker()
    with pytest.warns(cache.CacheWarning) as told:
        fetched(KEY, make_entry)
    (warning,) = told
    fetched(KEY, make_entry)  # and no second warning, which would be an error
    assert make_entry.made == 2
    assert entries(directory) == []
    assert not lock_of(directory, KEY).exists()
    text = str(warning.message)
    assert text.startswith(f"{directory}: warning[cache-refused]: ")
    return text


def test_a_new_directory_is_its_users_alone(directory: Path) -> None:
    before = os.umask(0)
    try:
        fetched(KEY, Maker())
    finally:
        os.umask(before)
    private = {0o600, 0o700}
    assert {stat.S_IMODE(path.lstat().st_mode) for path in (directory, *directory.rglob("*"))} == private


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
def test_a_directory_that_others_may_write_in_is_refused(directory: Path, mode: int) -> None:
    directory.mkdir()
    directory.chmod(mode)
    assert f" {mode:04o} " in refusal(directory)


def test_a_directory_of_another_user_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir(mode=0o700)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert refusal(directory).endswith(f" {mine}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link to somebody else")
@pytest.mark.parametrize("how", ["the directory", "a directory above", "what another link names"])
def test_a_link_of_another_user_is_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    real = tmp_path / "real"
    (real / "cache").mkdir(parents=True, mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(real if how == "a directory above" else real / "cache")
    os.lchown(link, 12345, 12345)
    place = link / "cache" if how == "a directory above" else link
    if how == "what another link names":
        place = tmp_path / "mine"
        place.symlink_to("link")
    monkeypatch.setenv(cache.VARIABLE, str(place))
    found = refusal(place)
    assert f"{link} is " in found
    assert found.endswith(" 12345")


def test_a_link_of_ones_own_and_a_parent_like_tmp_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "link").symlink_to("shared")
    (tmp_path / "up").mkdir()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "up" / ".." / "link" / "mine"))
    make_entry = Maker()
    fetched(KEY, make_entry)
    fetched(KEY, make_entry)
    assert make_entry.made == 1
    assert stat.S_IMODE((shared / "mine").stat().st_mode) == 0o700


def test_links_in_a_circle_are_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "one"))
    with pytest.warns(cache.CacheWarning, match="more than 40 symbolic links lead to it"):
        assert fetched(KEY, Maker())["number"] == b"1"


def test_a_cache_that_can_only_be_read_is_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_entry = Maker()
    fetched(KEY, make_entry)

    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "utime", refuse)
    assert fetched(KEY, make_entry)["number"] == b"1"


def test_the_command_line_says_in_one_line_why_a_cache_is_not_used(directory: Path, tmp_path: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    (tmp_path / "good.yaml").write_text(SPEC.read_text())
    command = [sys.executable, "-m", "gemmgen", "lower", "good.yaml", "good.yaml"]
    root = str(Path(cache.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": root, "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"{directory}: warning[cache-refused]: ")


# --- where it is


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


def compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every compilation of a kernel fail, by machine code and as the simulator wants it."""

    def refuse(*_: object, **__: object) -> object:
        raise LookupError("a kernel is compiled")

    monkeypatch.setattr(sys.modules[lower.__module__], "_in_child", refuse)
    for name in ("_in_kept", "_kept"):
        monkeypatch.setattr(ttgir, name, refuse)


@pytest.mark.sample(1)
@pytest.mark.parametrize("stem", ["h100_bf16_single_tile", "h100_bf16_split8_parallel"])
def test_a_second_build_of_a_spec_compiles_nothing(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a module with two kernels too. The import list of a module alone could turn the cache off."""
    with monkeypatch.context() as context:
        compile_nothing(context)
        with pytest.raises(LookupError, match="a kernel is compiled"):
            build(spec_file(stem), tmp_path)
    first = build(spec_file(stem), tmp_path)
    compile_nothing(monkeypatch)
    second = build(spec_file(stem), tmp_path)
    assert second.resources == first.resources is not None
    assert second.simulation
    assert second.simulation.problems == ()


def test_no_module_turns_the_cache_off_by_what_it_imports() -> None:
    assert [spec.stem for spec in SPECS if not is_self_contained(made(spec).module)] == []


@pytest.fixture(scope="module")
def compiled() -> dict[str, bytes]:
    """What the compiler makes of a module."""
    product = made(SPEC)
    capability, sums = product.plan.architecture.compute_capability, product.plan.problem.accumulator.torch
    in_child = sys.modules[lower.__module__].__dict__["_in_child"]
    return in_child(product.module, capability, sums, lambda: None, path="x", stem="x")


def rewritten(entry: Path, parts: dict[str, bytes]) -> None:
    """Replace parts of an entry, with the right digest; an empty part is removed."""
    with zipfile.ZipFile(entry) as archive:
        files = {name: archive.read(name) for name in archive.namelist()} | parts
    whole = {name: data for name, data in files.items() if data}
    entry.write_bytes(cache._packed(entry.stem, whole))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "parts",
    [
        {"cubin": b""},
        {"ptxas": b""},
        {"ptxas": b"no report"},
        {"ptx": b"\xff"},
        {"figures": b"no JSON"},
        {"figures": b"[1]"},
        {"figures": b"{}"},
        {"figures": b'{"smem_bytes": "many", "warps": 1, "tmem_columns": 0}'},
        {"figures": b"[" * 100_000},
    ],
    ids=str,
)
def test_a_kernel_of_which_a_part_cannot_be_read_is_compiled_again(
    directory: Path, compiled: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, parts: dict[str, bytes]
) -> None:
    product = made(SPEC)
    count = 0

    def compile_again(*_: object, **__: object) -> dict[str, bytes]:
        nonlocal count
        count += 1
        return compiled

    monkeypatch.setattr(sys.modules[lower.__module__], "_in_child", compile_again)
    lowered = lower(product.module, product.plan, path="x", stem="x")
    (entry,) = entries(directory)
    rewritten(entry, parts)
    assert lower(product.module, product.plan, path="x", stem="x") == lowered
    assert count == 2


def test_ttgir_that_is_no_text_is_compiled_again(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(made(ROOT / "specs" / "h100_bf16.yaml").module)
    for _ in range(2):
        result, found, expected = launch(import_generated(path), (128, 256, 64), schedules=("lazy",))
        assert result.findings == ()
        assert torch.equal(found, expected)
        (entry,) = (each for each in entries(directory) if "ttgir" in zipfile.ZipFile(each).namelist())
        rewritten(entry, {"ttgir": b"\xff"})


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
            monkeypatch.setattr(ttgir, "call_in_worker", None)  # it would be called
        result, found, expected = launch(import_generated(path), (128, 256, 64), schedules=("lazy",))
        assert result.findings == ()
        assert torch.equal(found, expected)
        lines.append([span.line for span in result.trace.spans])
    assert lines[0] == lines[1]


def test_only_a_file_that_says_all_about_its_kernels_is_kept() -> None:
    assert is_self_contained("import torch\nfrom triton.experimental import gluon\n")
    assert not is_self_contained("import os\n")
    gradients = f"import importlib\n{GRADIENTS}\n"
    assert is_self_contained(gradients)
    assert not is_self_contained("import importlib\n")
    assert not is_self_contained(f"{gradients}importlib.import_module('helpers')\n")
    assert not is_self_contained(f"import os\n{gradients}")
    assert not is_self_contained("from . import sizes\n")
    assert not is_self_contained("def broken(:\n")
    assert not is_self_contained("import torch\ndef kernel():\n    import os\n")
    assert not is_self_contained("import torch; import os\n")
    assert not is_self_contained("import torch, os\n")
    assert not is_self_contained("import torch\nif torch: import os\n")
    assert not is_self_contained("import torch\nfrom os \\\n  import path\n")
    assert not is_self_contained("import torch\nfrom helpers \\\n  import torch\n")
    assert not is_self_contained("import torch\nfrom os import (\n  path,\n)\n")
    assert is_self_contained('"""What to import os for."""\nfrom torch import (\n  nn,\n)\n')
