"""product and build: what is on disk is what the specs say, whole, or not there at all."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from modules import COMMITTED, EVERY_SPEC, GROUPED_SPECS, ROOT, SPECS, WANTED, made, spec_file
from told import refusal

import gemmgen.build
import gemmgen.processes.workers
from gemmgen.build import build
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.launcher_file import LAUNCHERS, launcher_texts
from gemmgen.lower import Lowered, Resources
from gemmgen.processes.forking import Child
from gemmgen.processes.locks import lock
from gemmgen.product import Product, check, make, write
from tools.rendered import PAIRS, folder_of

pytestmark = pytest.mark.quick

SPEC = """\
title: {title}
target: h100
operands: {{a: {{dtype: bf16}}, b: {{dtype: bf16}}, d: {{dtype: bf16}}}}
tile: {{m: 128, n: 256, k: 64}}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec named `one.yaml` in the current directory."""
    monkeypatch.chdir(tmp_path)
    return titled("first")


def titled(title: str, name: str = "one") -> Path:
    path = Path(f"{name}.yaml")
    path.write_text(SPEC.format(title=title))
    return path


def found(*specs: Path, exhaustive: bool = True) -> list[tuple[str, str]]:
    """The file and the code of each finding."""
    findings = check([make(spec) for spec in specs], Path("out"), exhaustive=exhaustive)
    return sorted((finding.diagnostic.path, finding.diagnostic.code) for finding in findings)


def written(directory: Path = Path("out")) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.is_dir() else {}


# --- the committed modules


def test_every_committed_module_is_what_its_spec_generates() -> None:
    products = [made(spec) for spec in WANTED]
    assert products
    assert check(products, COMMITTED, exhaustive=True) == ()


def test_every_other_module_has_the_digest_of_what_its_spec_generates() -> None:
    """A change that is meant to move them records it: ``python -m tools.rendered --record``."""
    assert PAIRS.moved(PAIRS.render()) == []


@pytest.mark.check
def test_building_all_specs_again_changes_nothing(tmp_path: Path) -> None:
    for spec in (*SPECS, *GROUPED_SPECS):
        write(made(spec), tmp_path)
    folders = (COMMITTED, folder_of(PAIRS))
    committed = {path.name: path.read_bytes() for folder in folders for path in folder.glob("[!.]*.*")}
    modules = {
        name: data
        for name, data in committed.items()
        if Path(name).suffix in (".py", ".json", ".yaml") and name != "ptx.json"  # which needs the compiler
    }
    assert written(tmp_path) == modules


def test_a_manifest_names_what_its_module_was_made_from(product: Product) -> None:
    manifest = json.loads(product.manifest)
    assert manifest["spec"] == f"{product.source.stem}.yaml"
    assert manifest["spec_sha256"] == product.source.sha256
    sections = {section["title"]: section for section in manifest["ledger"]["sections"]}
    assert sections["shared memory per CTA"]["total"]["amount"] == product.plan.smem_bytes


# --- check


def test_what_was_just_written_is_up_to_date(spec: Path) -> None:
    write(make(spec), Path("out"))
    assert found(spec) == []


def test_a_module_that_was_never_built_is_missing(spec: Path) -> None:
    assert found(spec) == [(f"out/{name}", "missing") for name in (*LAUNCHERS, "one.json", "one.py")]


def test_a_module_of_an_older_spec_is_stale_and_the_difference_is_shown(spec: Path) -> None:
    write(make(spec), Path("out"))
    titled("second")
    assert found(spec) == [("out/one.json", "stale"), ("out/one.py", "stale")]
    (module,) = [f for f in check([make(spec)], Path("out"), exhaustive=True) if ".py" in f.diagnostic.path]
    assert module.diff.startswith(
        '--- out/one.py\n+++ out/one.py (generated)\n@@ -1,4 +1,4 @@\n-"""first.\n+"""second.\n'
    )


def test_a_module_that_was_edited_is_told_from_a_stale_one(spec: Path) -> None:
    module = write(make(spec), Path("out"))
    module.write_text(module.read_text().replace("constexpr(64)", "constexpr(32)"))
    assert found(spec) == [("out/one.py", "hand-edited")]
    (edited,) = check([make(spec)], Path("out"), exhaustive=True)
    assert "\n-PROGRAM_TILE_K = gl.constexpr(32)\n+PROGRAM_TILE_K = gl.constexpr(64)\n" in edited.diff


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "a blank": lambda text: text + b" ",
    "the last newline": lambda text: text[:-1],
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "another encoding": lambda text: text.decode().encode("utf-16"),
    "nothing left": lambda text: b"",
}


@pytest.mark.parametrize("edit", EDITS)
def test_every_byte_counts(spec: Path, edit: str) -> None:
    module = write(make(spec), Path("out"))
    module.write_bytes(EDITS[edit](module.read_bytes()))
    (edited,) = check([make(spec)], Path("out"), exhaustive=True)
    assert edited.diagnostic.code == "hand-edited"
    assert edited.diff.endswith("\n")


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"module_sha256": 1}', "\udcff"])
def test_a_broken_manifest_is_stale(spec: Path, manifest: str) -> None:
    write(make(spec), Path("out"))
    Path("out/one.json").write_bytes(manifest.encode(errors="surrogateescape"))
    assert found(spec) == [("out/one.json", "stale")]


def test_what_no_spec_generates_is_orphaned(spec: Path) -> None:
    write(make(spec), Path("out"))
    write(make(titled("another", "two")), Path("out"))
    assert found(spec) == [("out/two.json", "orphaned"), ("out/two.py", "orphaned")]


def test_a_check_of_some_specs_has_no_opinion_on_the_others(spec: Path) -> None:
    write(make(spec), Path("out"))
    write(make(titled("another", "two")), Path("out"))
    assert found(spec, exhaustive=False) == []


def test_what_is_no_module_is_no_orphan(spec: Path) -> None:
    write(make(spec), Path("out"))
    for name in ("README.md", "one.ptx", "one.cubin", ".hidden.py"):
        Path("out", name).touch()
    Path("out/__pycache__").mkdir()
    assert found(spec) == []


def test_what_gemmgen_did_not_write_is_no_orphan(spec: Path) -> None:
    write(make(spec), Path("out"))
    Path("out/__init__.py").touch()
    Path("out/mine.py").write_text("# Not Generated by gemmgen.\n")
    Path("out/mine.json").write_text('{"about": {"gemmgen": 1}}\n')
    Path("out/folder.py").mkdir()
    assert found(spec) == []


def test_a_release_changes_no_module(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(make(spec), Path("out"))
    monkeypatch.setattr(gemmgen, "__version__", "99.0.0")
    assert found(spec) == []
    assert "\nGenerated by gemmgen (module format 1): " in make(spec).module


def test_a_directory_that_is_not_there_holds_nothing(spec: Path) -> None:
    assert [code for _, code in found(spec)] == ["missing"] * 4
    Path("out").touch()
    assert [code for _, code in found(spec)] == ["missing"] * 4


# --- write


def test_a_product_is_a_module_and_its_manifest_and_nothing_else(spec: Path) -> None:
    product = make(spec)
    assert write(product, Path("out")) == Path("out/one.py")
    assert written() == {
        "one.py": product.module.encode(),
        "one.json": product.manifest.encode(),
        **{name: text.encode() for name, text in launcher_texts().items()},
    }


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_everybody_may_read_a_module(spec: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write(make(spec), Path("out"))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path("out").iterdir()} == {0o644}


def refused(spec: Path, directory: Path) -> tuple[str, str]:
    """The file and the code of the one diagnostic that a write ends with."""
    found = refusal(lambda: write(make(spec), directory))
    return found.path, found.code


def test_a_directory_that_is_a_file_is_one_diagnostic(spec: Path) -> None:
    Path("file").touch()
    assert refused(spec, Path("file")) == ("file", "cannot-write")
    assert refused(spec, Path("file/below")) == ("file/below", "cannot-write")


def test_a_module_that_is_a_directory_is_one_diagnostic(spec: Path) -> None:
    Path("out/one.py").mkdir(parents=True)
    assert refused(spec, Path("out")) == ("out/one.py", "cannot-write")
    assert list(written_names()) == ["one.py"]


def test_a_place_where_nobody_may_write_is_one_diagnostic(spec: Path) -> None:
    # Not a directory without permission: tests may run as root, who may write there.
    assert refused(spec, Path("/proc/gemmgen")) == ("/proc/gemmgen", "cannot-write")


def test_a_full_disk_is_one_diagnostic_and_leaves_no_temporary_file(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make(spec)
    write(before, Path("out"))
    titled("second")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert refused(spec, Path("out")) == ("out", "cannot-write")
    assert written() == {name: text.encode() for name, text in (before.files() | launcher_texts()).items()}


def test_a_file_that_gemmgen_did_not_make_is_left_alone(spec: Path) -> None:
    Path("out").mkdir()
    Path("out/one.py").write_text("print('mine')\n")
    assert refused(spec, Path("out")) == ("out/one.py", "foreign-file")
    assert written() == {"one.py": b"print('mine')\n"}


def test_a_foreign_manifest_is_left_alone(spec: Path) -> None:
    Path("out").mkdir()
    Path("out/one.json").write_text('{"mine": 1}\n')
    assert refused(spec, Path("out")) == ("out/one.json", "foreign-file")
    assert written() == {"one.json": b'{"mine": 1}\n'}


def written_names() -> Iterator[str]:
    return (path.name for path in sorted(Path("out").iterdir()))


# --- build


def refuse(*arguments: object, **options: object) -> Lowered:
    raise GemmgenError([Diagnostic("one.yaml", "lowering-failed", "planted")])


def test_nothing_is_written_when_a_stage_fails(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemmgen.build, "lower", refuse)
    with pytest.raises(GemmgenError, match="planted"):
        build(spec, Path("out"), emit=("ptx", "sass"))
    assert written() == {}


def test_a_module_that_was_built_stays_when_a_stage_fails(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(spec, Path("out"), lowering=False)
    before = written()
    titled("second")
    monkeypatch.setattr(gemmgen.build, "lower", refuse)
    with pytest.raises(GemmgenError, match="planted"):
        build(spec, Path("out"))
    assert written() == before


def test_a_spec_that_no_plan_satisfies_writes_nothing(spec: Path) -> None:
    spec.write_text(SPEC.format(title="too deep") + "buffering: {stages: 9}\n")
    with pytest.raises(GemmgenError, match="smem-capacity"):
        build(spec, Path("out"), lowering=False)
    assert not Path("out").exists()


OF_EACH_MMA = ("h100_bf16", "h100_e4m3", "h100_int8", "b200_bf16", "b200_mxfp8")


@pytest.fixture
def compiled(lowered: Lowered, sass: str, product: Product, monkeypatch: pytest.MonkeyPatch) -> Lowered:
    """A build takes the kernel that the session has compiled, and its machine code."""

    def lower(source: str, *arguments: object, **options: object) -> Lowered:
        assert source == product.module
        return lowered

    def disassemble(cubin: bytes) -> bytes:
        assert cubin == lowered.artifacts["cubin"]
        return sass.encode()

    monkeypatch.setattr(gemmgen.build, "lower", lower)
    monkeypatch.setattr(gemmgen.build, "disassemble", disassemble)
    return lowered


@pytest.mark.sample(2)
@pytest.mark.parametrize("product", [*map(spec_file, OF_EACH_MMA)], indirect=True, ids=OF_EACH_MMA)
def test_artifacts_lie_beside_the_module(product: Product, compiled: Lowered, tmp_path: Path) -> None:
    stem = product.source.stem
    built = build(spec_file(stem), tmp_path, emit=("ttgir", "cubin", "sass"), simulation=False)
    assert built.artifacts == tuple(tmp_path / f"{stem}.{stage}" for stage in ("ttgir", "cubin", "sass"))
    assert (tmp_path / f"{stem}.ttgir").read_bytes() == compiled.artifacts["ttgir"]
    assert (tmp_path / f"{stem}.cubin").read_bytes() == compiled.artifacts["cubin"]
    assert re.search(rb"[HIQ]GMMA|UTC\w*MMA", (tmp_path / f"{stem}.sass").read_bytes())
    assert (tmp_path / f"{stem}.py").read_text() == product.module
    assert built.resources == compiled.resources
    assert json.loads(json.dumps(built.as_dict()))["module"] == (tmp_path / f"{stem}.py").as_posix()


def test_nothing_is_written_when_an_artifact_cannot_be(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = Resources(0, 0, 0, 0, 0, 0, (), {}, False, (), 0, ())

    def lower(*arguments: object, **options: object) -> Lowered:
        return Lowered({"ttgir": b"ttgir", "ptx": b"ptx"}, resources)

    monkeypatch.setattr(gemmgen.build, "lower", lower)
    Path("out/one.ptx").mkdir(parents=True)
    found = refusal(lambda: build(spec, Path("out"), emit=("ttgir", "ptx")))
    assert (found.path, found.code) == ("out/one.ptx", "cannot-write")
    assert list(written_names()) == ["one.ptx"]


# --- processes and threads


@pytest.mark.check
def test_no_thread_is_inside_torch_when_the_compiler_is_forked(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be forked with the locks that such a thread holds, and without the thread."""
    events: list[str] = []
    gemmgen.processes.workers._end_idle()  # pyright: ignore[reportPrivateUsage] # a compiler that waits needs no fork
    monkeypatch.setattr(gemmgen.processes.workers, "MOST_CALLS", 1)
    simulate = gemmgen.build._simulate  # pyright: ignore[reportPrivateUsage]

    class Forked(Child[Any, Any]):
        """Tells of a process."""

        def __init__(self, start: Any) -> None:
            if threading.current_thread() not in simulating:
                events.append("the compiler is forked")
            super().__init__(start)

    def simulated(product: Product) -> Any:
        simulating.append(threading.current_thread())
        events.append("a simulation begins")
        found = simulate(product)
        events.append("a simulation ends")
        return found

    simulating: list[threading.Thread] = []
    paths = (spec, titled("second", "two"))
    for path in paths:  # small, as nothing is taken from the cache
        text = path.read_text().replace("n: 256", "n: 64")
        path.write_text(f"{text}buffering: {{stages: 3}}\n")
    monkeypatch.setenv("GEMMGEN_CACHE_DIR", "")
    monkeypatch.setattr(gemmgen.processes.workers, "Child", Forked)
    monkeypatch.setattr(gemmgen.build, "_simulate", simulated)
    with ThreadPoolExecutor(2) as pool:
        built = [pool.submit(build, path, Path("out")) for path in paths]
    assert all(one.result().simulation for one in built)
    assert events == 2 * ["the compiler is forked", "a simulation begins", "a simulation ends"]
    assert all(path.exists() for path in (Path("out/one.py"), Path("out/two.py")))


# --- crashes and races

WRITER = """
import itertools, sys
from pathlib import Path
from gemmgen.product import make, write
products = [make(Path(spec)) for spec in sys.argv[1:]]
for product in itertools.cycle(products):
    write(product, Path("out"))
    print("written", flush=True)
"""


@contextmanager
def writer(*specs: Path) -> Generator[subprocess.Popen[bytes]]:
    """A process that writes the products of specs in turn, for ever; it runs once this is entered."""
    command = [sys.executable, "-c", WRITER, *map(str, specs)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.check
def test_a_reader_sees_the_old_module_or_the_new_one_even_if_the_writer_is_killed(spec: Path) -> None:
    for directory, title in (("old", "first"), ("new", "second")):
        Path(directory).mkdir()
        Path(directory, "one.yaml").write_text(SPEC.format(title=title))
    specs = [Path(directory, "one.yaml") for directory in ("old", "new")]
    whole = {name: {make(spec).files()[name].encode() for spec in specs} for name in ("one.py", "one.json")}
    for milliseconds in (3, 50, 111):
        with writer(*specs) as process:
            end = time.monotonic() + milliseconds / 1000
            while time.monotonic() < end:
                for name, versions in whole.items():
                    assert Path("out", name).read_bytes() in versions
            process.send_signal(signal.SIGKILL)
            process.wait()
        for name, versions in whole.items():
            assert Path("out", name).read_bytes() in versions
    # Whatever the killed writers left does not matter, and the next build puts things right.
    write(make(spec), Path("out"))
    assert found(spec) == []
    assert list(written_names()) == [*sorted(LAUNCHERS), "one.json", "one.py"]


def test_the_next_build_removes_a_temporary_file_that_was_left_behind(spec: Path) -> None:
    write(make(spec), Path("out"))
    left = [Path("out/.one.py.abcdefgh.tmp"), Path("out/.gone.json.a_1b2c3d.tmp")]
    foreign = [Path("out/.one.py.swp"), Path("out/one.tmp"), Path("out/.notes.tmp")]
    for path in (*left, *foreign):
        path.write_text("half a mod")
    assert found(spec) == []
    titled("second")
    write(make(spec), Path("out"))
    assert found(spec) == []
    assert [path.exists() for path in (*left, *foreign)] == [False, False, True, True, True]


def test_the_temporary_files_of_a_build_that_is_still_running_stay(spec: Path) -> None:
    Path("out").mkdir()
    theirs = Path("out/.other.py.abcdefgh.tmp")
    theirs.write_text("half a mod")
    descriptor = os.open("out", os.O_RDONLY)
    assert lock(descriptor, exclusive=False)  # as a process that writes there has it
    write(make(spec), Path("out"))
    assert theirs.exists()
    os.close(descriptor)
    write(make(spec), Path("out"))
    assert not theirs.exists()


def test_a_build_that_is_killed_between_its_files_is_not_called_an_edit(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(make(spec), Path("out"))
    titled("second")
    replace = Path.replace
    replaced: list[Path] = []

    def killed_at_the_second(path: Path, target: Path) -> Path:
        replaced.append(target)
        if len(replaced) == 2:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        write(make(spec), Path("out"))
    assert [code for _, code in found(spec)] == ["stale"]


def test_builds_at_the_same_time_leave_one_whole_product(spec: Path) -> None:
    product = make(spec)
    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(write, product, Path("out")) for _ in range(64)]:
            future.result()
    assert found(spec) == []
    assert sorted(written_names()) == [*sorted(LAUNCHERS), "one.json", "one.py"]


@pytest.mark.nightly
def test_processes_that_build_at_the_same_time_leave_one_whole_product(spec: Path) -> None:
    specs = EVERY_SPEC
    arguments = ["build", "--no-lower", "--out", "out", *map(str, specs)]
    command = [sys.executable, "-c", "from gemmgen.cli import main; main()", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    products = [make(path) for path in specs]
    assert check(products, Path("out"), exhaustive=True) == ()
    of_gradients = 3 * sum(len(product.gradients) for product in products)
    assert len(written()) == len(LAUNCHERS) + 2 * len(specs) + of_gradients
