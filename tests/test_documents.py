"""Documents of somebody else: none of their text runs, no name leads out, and what cannot be is refused."""

from __future__ import annotations

import ast
import builtins
import copy
import hashlib
import importlib
import importlib.util
import json
import marshal
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from commands import Gemmgen
from contests import BF16, E4M3
from modules import ROOT

from gemmgen import literals
from gemmgen.bench.record import Ceilings, Environment, GpuState, Subject, encoded_line
from gemmgen.bench.result_log import (
    BASELINE,
    SCHEMA,
    ArmSamples,
    ContestOf,
    FinalPair,
    KernelEntry,
    PlannerRanking,
    Refused,
    Result,
    Rounds,
    Session,
)
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.kinds import LEAST_SECONDS, MOST_EXTENT
from gemmgen.library import package
from gemmgen.library.manifest import MANIFEST, TABLE, read_manifest
from gemmgen.problem.dtypes import Dtypes
from gemmgen.render import render_template
from gemmgen.tune import read_table

Json = Any

pytest_plugins = ["commands"]

Place = tuple[str | int, ...]

SPEC = """\
title: a
target: h200
operands: {a: {dtype: bf16}, b: {dtype: bf16}, d: {dtype: bf16}}
tile: {m: 128, n: 128, k: 64}
"""
ROW: dict[str, Json] = {
    "table": "gemmgen tune",
    "format": 2,
    "gpu": "NVIDIA H200",
    "m": 128,
    "n": 4096,
    "k": 4096,
    "dtypes": {"a": "bf16", "b": "bf16", "d": "bf16"},
    "problem": asdict(BF16),
    "description": "bf16",
    "spec": "lib_a.yaml",
    "kernel_sha256": "0" * 64,
    "seconds": 1e-5,
    "baseline_seconds": 1.1e-5,
    "first_seconds": 1e-5,
    "tried": 1,
    "date": "2026-01-01",
    "gemmgen": "0.1.0",
    "torch": "2",
    "triton": "3.9.0",
}
RUNS = 'setattr(__import__("builtins"), "PWNED", 1)'
POISONS = (
    f'x"""\n{RUNS}\n"""',
    f'x"; {RUNS}; y = "',
    f"x'; {RUNS}; y = '",
    f'x""";{RUNS};"""',
    f"x\n{RUNS}\n",
    f"{{{{ {RUNS} }}}}{{% raw %}}",
    "x\\",
    'x\\"',
    "*/ int evil(void) { return 1; } /*",
    "</script><script>evil()</script>",
    '"></title></svg><script>evil()</script>',
    "x\x00y",
    "\x1b[31mred\x1b[0m",
    "\ud800",
    "\u202eevil",
    "../outside/victim",
    "{outside}/victim",
    "[/red][link=x]",
    "$\\frac{x$",
    "",
)
"""Texts that would run, end what they stand in, or lead out of a folder."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a spec, a table, and the files of others beside it; it is the current one."""
    place = tmp_path / "world"
    (tmp_path / "outside").mkdir()
    for name in ("victim", "victim.py", "victim.yaml"):
        (tmp_path / "outside" / name).write_text("mine")
    place.mkdir()
    (place / "lib_a.yaml").write_text(SPEC)
    (place / "good.jsonl").write_text(json.dumps(ROW) + "\n")
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def made(world: Path, gemmgen_: Gemmgen) -> Path:
    """A library that a good table makes."""
    code, _, err = gemmgen_("library", "mylib", "--table", "good.jsonl", "--out", "libs", "--no-lower")
    assert code == 0, err
    return world / "libs" / "mylib"


@pytest.fixture(autouse=True)
def nothing_runs() -> Generator[None]:
    """Fail where a text of a document was executed."""
    yield
    ran = builtins.__dict__.pop("PWNED", None)
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] in ("mylib", "poisoned", "gemmgen_library_mylib")
    ]:
        del sys.modules[name]
    assert ran is None


def files_of(*folders: Path) -> dict[Path, bytes]:
    """Return what lies below folders."""
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def refusal(function: Callable[[], object]) -> Diagnostic:
    """Return the first diagnostic that a call ends with."""
    with pytest.raises(GemmgenError) as error:
        function()
    return error.value.diagnostics[0]


def refused(function: Callable[[], object]) -> tuple[str, str]:
    """Return the name of the file that the first diagnostic is about, and its code."""
    found = refusal(function)
    return Path(found.path).name, found.code


def changed(path: Path, **members: Json) -> None:
    """Give the members of a JSON document other values."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **members}))


def changed_table(package: Path, text: str) -> None:
    """Give a library another table, and the manifest its hash."""
    (package / TABLE).write_text(text)
    known = json.loads((package / MANIFEST).read_text())["sha256"]
    changed(package / MANIFEST, sha256={**known, TABLE: hashlib.sha256(text.encode()).hexdigest()})


# --- literals


def test_a_literal_a_docstring_and_a_comment_have_any_text_and_nothing_else() -> None:
    draw = random.Random(17)
    alphabet = [
        '"',
        "'",
        "\\",
        "\n",
        "\x00",
        "\x1b",
        "\ud800",
        "\u2028",
        "a",
        "N",
        "{",
        "{{",
        "*/",
        "/*",
        "é",
    ]
    for _ in range(3000):
        text = "".join(draw.choice(alphabet) for _ in range(draw.randrange(8)))
        assert ast.literal_eval(literals.python_literal(text)) == text
        (only,) = ast.parse(f'"""{literals.docstring_text(text)}.\n"""').body
        assert ast.literal_eval(cast("ast.Expr", only).value) == f"{text}.\n"
        comment = literals.comment_text(text)
        assert len(ast.parse(f"# {comment}\nx = 1").body) == len(comment.splitlines() or [""])
        inside = literals.c_comment_text(text)
        assert "*/" not in inside
        assert "/*" not in inside
        comment.encode()
        assert not set(literals.markup(text)) & set("<>\"'\x00\x1b\ud800")


def test_ordinary_text_is_written_as_it_is() -> None:
    text = "cuBLAS's default choice: torch.matmul(a, b, out=d), 100 % (é)"
    assert literals.python_literal(text) == f'"{text}"'
    assert literals.docstring_text(f"{text}\n{text}") == f"{text}\n{text}"
    assert literals.comment_text(text) == literals.c_comment_text(text) == text
    assert [literals.python_literal(value) for value in (None, 3, 2.5, True)] == ["None", "3", "2.5", "True"]
    for value in (float("nan"), float("inf"), b"", ()):
        with pytest.raises(TypeError, match="there is no literal of"):
            literals.python_literal(value)


def test_a_template_of_code_refuses_a_text_that_passed_no_filter() -> None:
    assert literals.only_visible("def f():\n    return 1\n")
    with pytest.raises(ValueError, match="a template writes 'a\\\\x00b' as it is: it has to pass one of lit"):
        literals.only_visible("a\x00b")
    with pytest.raises(ValueError, match="a template writes"):
        render_template(
            "library/init.py.j2",
            view={"title": "x", "types": "\x1b"},
            library_format=1,
        )


# --- tables


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"seconds": float("inf")}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"seconds": -1e-5}, "seconds"),
        ({"seconds": 1e-320}, "seconds"),
        ({"baseline_seconds": 0}, "baseline_seconds"),
        ({"first_seconds": True}, "first_seconds"),
        ({"m": 10**30}, "m"),
        ({"tried": 10**40}, "tried"),
        ({"m": 2**31}, "m"),
        ({"n": True}, "n"),
        ({"k": 4096.0}, "k"),
        ({"tried": -1}, "tried"),
        ({"gpu": "\u202e"}, "gpu"),
        ({"gpu": f'NVIDIA H200"; {RUNS}; x = "'}, "gpu"),
        ({"description": f'bf16"""\n{RUNS}\n"""'}, "description"),
        ({"problem": "bf16"}, "problem"),
        ({"problem": {"matmul": RUNS, "promoted": False}}, "problem.matmul"),
        ({"problem": asdict(E4M3)}, "problem"),
        ({"dtypes": {"a": "bf16", "b": "bf16", "d": "fp32"}}, "dtypes"),
        ({"dtypes": {"a": "bf16", "b": "bf16", "d": "bf17"}}, "dtypes.d"),
        ({"gpu": "NVIDIA B200"}, "gpu"),
        ({"kernel_sha256": "x"}, "kernel_sha256"),
        ({"more": 1}, "more"),
    ],
)
def test_a_row_that_cannot_be_is_refused_at_its_line_and_member(
    world: Path, gemmgen_: Gemmgen, members: dict[str, Json], field: str
) -> None:
    path = world / "bad.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps({**ROW, **members})}\n")
    if "gpu" in members and "B200" in members["gpu"]:  # one table is of one GPU
        path.write_text(f"{json.dumps({**ROW, **members})}\n")
    line = 1 if path.read_text().count("\n") == 1 else 2
    code, out, err = gemmgen_("library", "poisoned", "--table", path.name, "--out", "libs", "--no-lower")
    assert (code, out) == (1, "")
    assert err.startswith(f"bad.jsonl:{line}: error[bad-table] {field}: ")
    assert not (world / "libs").exists()


def test_the_extents_and_times_at_the_ends_are_read(world: Path) -> None:
    ends = {"m": MOST_EXTENT, "n": 1, "seconds": LEAST_SECONDS, "baseline_seconds": 1}
    (world / "ends.jsonl").write_text(json.dumps({**ROW, **ends}))
    (row,) = read_table(world / "ends.jsonl")
    assert (row.m, row.n, row.seconds, row.baseline_seconds) == (MOST_EXTENT, 1, LEAST_SECONDS, 1.0)


# --- manifests


def test_a_manifest_that_names_a_file_outside_deletes_nothing(made: Path, gemmgen_: Gemmgen) -> None:
    victim = made.parent.parent.parent / "outside" / "victim"
    manifest = json.loads((made / MANIFEST).read_text())
    good = files_of(made.parent.parent.parent)
    for name in (str(victim), "../../../outside/victim", "specs/../../../../outside/victim", "notes.txt"):
        changed(made / MANIFEST, sha256={**manifest["sha256"], name: "0" * 64})
        before = files_of(made.parent.parent.parent)
        for command in (
            ("library", made, "--refresh", "--no-lower"),
            ("library", made, "--check"),
            ("library", "mylib", "--table", "good.jsonl", "--out", "libs", "--no-lower"),
        ):
            code, _, err = gemmgen_(*command)
            assert code == 1, command
            assert "error[bad-library] sha256:" in err or "error[foreign-file]" in err
            assert files_of(made.parent.parent.parent) == before
        assert victim.read_text() == "mine"
    assert good.keys() == files_of(made.parent.parent.parent).keys()


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"name": "../elsewhere"}, "name"),
        ({"name": "other"}, "name"),
        ({"name": "torch"}, "name"),
        ({"description": f'bf16"""\n{RUNS}\n"""'}, "description"),
        ({"problem": {"matmul": RUNS, "promoted": 0}}, "problem.matmul"),
        ({"sources": [["../x", "0" * 64]]}, "sources.0.0"),
        ({"more": 1}, "more"),
    ],
)
def test_a_manifest_that_no_library_has_is_refused(made: Path, members: dict[str, Json], field: str) -> None:
    changed(made / MANIFEST, **members)
    for function in (package.check, package.read_library, package.contestants):
        found = refusal(lambda function=function: function(made))
        assert (found.code, found.field) == ("bad-library", field)


def test_a_manifest_with_a_kernel_that_has_the_name_of_a_part_is_refused(made: Path) -> None:
    known = json.loads((made / MANIFEST).read_text())["sha256"]
    changed(made / MANIFEST, sha256={**known, "specs/timing.yaml": "0" * 64})
    found = refusal(lambda: package.check(made))
    assert (found.code, found.field) == ("bad-library", "sha256")
    assert '"timing" is the name of a kernel, and the library has it already' in found.message


# --- tables of kernels


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"format": 4}, "format"),
        ({"kernels": ["../../outside/victim"]}, "kernels.0"),
        ({"kernels": ["timing"]}, "kernels"),
        ({"kernels": []}, "kernels"),
        ({"kernels": ["STEM", "STEM"]}, "kernels"),
        ({"gpu": 'x"'}, "gpu"),
        ({"gpu": None}, "gpu"),
        ({"baseline": "a\nb"}, "baseline"),
        ({"measured": {"STEM": [[2**40, 4096, 4096, 1.0, 1.0]]}}, "measured.STEM.0.0"),
        ({"measured": {"x": [[1, 2, 3, 1.0, 1.0]]}}, "measured"),
        ({"measured": {"a b": []}}, 'measured."a b"'),
        ({"measured": 1}, "measured"),
        ({"measured": {"STEM": [[1, 2, 3, True, 1.0]]}}, "measured.STEM.0.3"),
        ({"measured": {"STEM": [[1, 2, 3, 1.0]]}}, "measured.STEM.0.4"),
        ({"more": 1}, "more"),
    ],
)
def test_a_table_that_no_library_has_is_refused(made: Path, members: dict[str, Json], field: str) -> None:
    (stem,) = read_manifest(made).kernels
    text = json.dumps({**json.loads((made / TABLE).read_text()), **members}).replace("STEM", stem)
    changed_table(made, text)
    for function in (package.check, package.read_library, package.contestants):
        found = refusal(lambda function=function: function(made))
        assert (Path(found.path).name, found.code) == (TABLE, "bad-library")
        assert found.field == field.replace("STEM", stem)


@pytest.mark.parametrize("text", ["", "\x00", "{", f"{'[' * 3000}{']' * 3000}", '{"format": 1e999}'])
def test_a_table_that_is_no_json_is_refused(made: Path, text: str) -> None:
    changed_table(made, text)
    assert refused(lambda: package.read_library(made)) == (TABLE, "bad-library")


def test_members_of_a_table_that_follow_from_the_specs_are_stale_if_they_do_not(made: Path) -> None:
    document = json.loads((made / TABLE).read_text())
    for name in ("call", "rule"):
        changed_table(made, json.dumps({**document, name: {}}))
        assert refused(lambda: package.contestants(made)) == (TABLE, "stale")


def test_a_package_that_is_a_link_is_neither_written_nor_read(made: Path, gemmgen_: Gemmgen) -> None:
    outside = made.parent.parent.parent / "outside"
    shutil.move(made, outside / "mylib")
    made.symlink_to(outside / "mylib")
    before = files_of(outside)
    assert "a link" in refusal(lambda: package.check(made)).message
    code, _, err = gemmgen_("library", "mylib", "--table", "good.jsonl", "--out", "libs", "--no-lower")
    assert (code, "error[foreign-file]" in err) == (1, True)
    made.unlink()
    shutil.move(outside / "mylib", made)
    shutil.move(made / "specs", outside / "specs")
    (made / "specs").symlink_to(outside / "specs")
    for command in ("--check", "--refresh"):
        assert gemmgen_("library", made, command, "--no-lower")[0] == 1
    assert files_of(outside).keys() - {outside / "specs" / path.name for path in outside.glob("specs/*")} == {
        path for path in before if "mylib" not in path.parts
    }


def test_a_file_that_is_a_link_is_replaced_and_not_written_through(made: Path, gemmgen_: Gemmgen) -> None:
    victim = made.parent.parent.parent / "outside" / "victim.py"
    (made / "timing.py").unlink()
    (made / "timing.py").symlink_to(victim)
    assert gemmgen_("library", made, "--refresh", "--no-lower")[0] == 0
    assert victim.read_text() == "mine"
    assert not (made / "timing.py").is_symlink()


def test_a_library_in_the_current_directory_is_refreshed_where_it_lies(
    made: Path, gemmgen_: Gemmgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(made.parent)
    monkeypatch.chdir(made)
    assert gemmgen_("library", ".", "--refresh", "--no-lower")[0] == 0
    assert gemmgen_("library", ".", "--check") == (0, ".: up to date\n", "")
    assert files_of(made.parent) == before


# --- what is imported


def test_a_package_that_was_edited_is_refused_and_not_imported_by_bench(
    made: Path, gemmgen_: Gemmgen
) -> None:
    (made.parent.parent / "suite.yaml").write_text(
        "title: one\nfamilies: {one: {dtypes: [bf16], shapes: [[128, 4096, 4096]]}}\n"
    )
    for name in ("__init__.py", "timing.py"):
        before = (made / name).read_text()
        (made / name).write_text(f"{before}\n{RUNS}\n")
        assert refused(lambda: package.contestants(made)) == (name, "hand-edited")
        code, _, err = gemmgen_("bench", made, "--suite", "suite.yaml")
        assert (code, f"{name}: error[hand-edited]" in err) == (1, True)
        (made / name).write_text(before)
    # As if somebody had written the hash too: it is not what this gemmgen makes.
    edited = (made / "timing.py").read_text() + f"\n{RUNS}\n"
    manifest = json.loads((made / MANIFEST).read_text())
    (made / "timing.py").write_text(edited)
    digest = hashlib.sha256(edited.encode()).hexdigest()
    changed(made / MANIFEST, sha256={**manifest["sha256"], "timing.py": digest})
    assert refused(lambda: package.contestants(made)) == ("timing.py", "stale")


def test_what_python_would_import_in_place_of_a_package_s_files_is_not_imported(made: Path) -> None:
    assert package.check(made) == ()
    for name in ("rule/__init__.py", "rule.so", "table.pyc"):
        path = made / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(RUNS)
        assert refusal(lambda: package.contestants(made)).code == "orphaned"
        path.unlink()
        if path.parent != made:
            path.parent.rmdir()
    # The bytecode of another source, which Python would take for that of the file.
    cached = Path(importlib.util.cache_from_source(str(made / "timing.py")))
    cached.parent.mkdir(exist_ok=True)
    source, status = compile(RUNS, "timing.py", "exec"), (made / "timing.py").stat()
    stamp = int(status.st_mtime).to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
    cached.write_bytes(importlib.util.MAGIC_NUMBER + bytes(4) + stamp + marshal.dumps(source))
    specs, choose = package.contestants(made)
    assert choose((128, 4096, 4096)) == specs[0].stem


def test_a_library_does_not_take_the_place_of_a_module_that_is_imported(
    world: Path, gemmgen_: Gemmgen
) -> None:
    """`told` is imported by other tests; a name that an installed package has is refused."""
    import told

    assert gemmgen_("library", "told", "--table", "good.jsonl", "--out", "libs", "--no-lower")[0] == 0
    specs, choose = package.contestants(world / "libs" / "told")
    assert choose(SHAPE) == specs[0].stem
    assert sys.modules["told"] is told
    assert gemmgen_("library", "rich", "--table", "good.jsonl", "--out", "libs", "--no-lower")[0] == 1


def test_a_gpu_whose_name_has_a_slash_is_none_of_a_folder(world: Path, gemmgen_: Gemmgen) -> None:
    (world / "slash.jsonl").write_text(json.dumps({**ROW, "gpu": "X/../../outside/y"}))
    command = ("library", "mylib", "--table", "slash.jsonl", "--out", "libs", "--no-lower", "--vllm", "tiles")
    assert gemmgen_(*command)[0] == 0
    (path,) = (world / "tiles").rglob("*.json")
    assert path.name == "N=4096,K=4096,device_name=X_.._.._outside_y.json"


# --- every text of every document

ENVIRONMENT = Environment("0.1.0", "2.11", "3.9", "13", "13.1", "580", "NVIDIA H200", 132, 1 << 26)
BASELINE_WORDS = "cuBLAS's default choice"
ALLOWED = frozenset({"libs", "gen", "pics", "page.html", "plan.svg", "made"})
"""What the commands below write in the current directory, beside the documents."""
SHAPE = (128, 4096, 4096)


def suite_record() -> list[Json]:
    """Return a suite's record with a line of each kind, as JSON."""
    ceilings = Ceilings(8e14, 4e12, "a datasheet")
    contest = ContestOf(BF16, "bf16", Dtypes("bf16", "bf16", "bf16"), BASELINE_WORDS, ceilings, ceilings)
    subject = Subject("lib_a.yaml", hashlib.sha256(SPEC.encode()).hexdigest(), "0" * 64)
    entries = (KernelEntry("one", subject, BF16), KernelEntry("two", subject, BF16, SPEC))
    times = (1.2e-5, 1.1e-5, 1.3e-5)
    arms = tuple(ArmSamples(name, times, 10, 0.001, 1e-6) for name in ("one", "two"))
    theirs = ArmSamples(BASELINE, times, 10, 0.001, 1e-6)
    playoff, state = FinalPair("one", times, times), GpuState(1400.0, 600.0, 60.0)
    lines = (
        Session(
            "session", SCHEMA, "2026-01-01", "s.yaml", "0" * 64, ENVIRONMENT, Rounds(), (contest,), entries
        ),
        Result("result", SHAPE, BF16, ("few",), 3, theirs, ("nvjet<int>",), arms, playoff, state),
        Refused("refused", SHAPE, BF16, "two", "failed", "it raised"),
        PlannerRanking("choice", SHAPE, BF16, "lib_a", ("one",)),
    )
    return [json.loads(encoded_line(line)) for line in lines]


def bench_record() -> Json:
    """Return the record of one kernel: a committed one with its first shape and two samples of each arm."""
    document = json.loads((ROOT / "benchmarks" / "h100_bf16.json").read_text())
    document["measurements"] = document["measurements"][:1]
    timing = document["measurements"][0]["timing"]
    for arm in ("ours_seconds", "baseline_seconds"):
        timing[arm] = [samples[:2] for samples in timing[arm][:1]]
    return document


def places_of(value: Json, place: Place = ()) -> Iterator[tuple[Place, bool]]:
    """Yield where a document has texts; and whether it is the name of a member."""
    if isinstance(value, str):
        yield place, False
    elif isinstance(value, dict):
        for name, member in cast("dict[str, Json]", value).items():
            yield (*place, name), True
            yield from places_of(member, (*place, name))
    elif isinstance(value, list):
        for index, element in enumerate(cast("list[Json]", value)):
            yield from places_of(element, (*place, index))


def at(document: Json, place: Place) -> Json:
    """Return what a document has at a place."""
    for step in place:
        document = document[step]
    return document


def with_text(document: Json, place: Place, text: str, *, is_name: bool = False) -> Json:
    """Return a document with another text at a place."""
    new = copy.deepcopy(document)
    parent = at(new, place[:-1])
    if is_name:
        parent[text] = parent.pop(place[-1])
    else:
        parent[place[-1]] = text
    return new


def with_all(document: Json, before: str, text: str) -> Json:
    """Return a document with another text wherever it has one: names that refer to each other still do."""
    if isinstance(document, dict):
        members = cast("dict[str, Json]", document).items()
        return {name: with_all(member, before, text) for name, member in members}
    if isinstance(document, list):
        return [with_all(element, before, text) for element in cast("list[Json]", document)]
    return text if document == before else document


def poisoned(document: Json, outside: Path, count: int, *written: Place) -> Iterator[Json]:
    """Yield a document with so many of the poisons at each text in turn, and at all texts that are equal.

    At those places that are written into what is generated, yield it with every poison.
    """
    poisons = [text.replace("{outside}", str(outside)) for text in POISONS]
    yield from (with_text(document, place, text) for place in written for text in poisons)
    turn = 0
    for place, is_name in places_of(document):
        for _ in range(1 if is_name else count):
            turn += 1
            yield with_text(document, place, poisons[turn % len(poisons)], is_name=is_name)
    texts = Counter(at(document, place) for place, is_name in places_of(document) if not is_name)
    for text, times in texts.items():
        for _ in range(count if times > 1 else 0):
            turn += 1
            yield with_all(document, text, poisons[turn % len(poisons)])


class Scripts(HTMLParser):
    """What a page has in its scripts, and its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] == "script":
            self.scripts.append(data)


def shape_of(source: str) -> str:
    """Return the tree of a module with the kinds of its literals, and not their values."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = type(node.value).__name__
    return ast.dump(tree)


@dataclass
class Fuzz:
    """Runs commands over documents, and holds each to what they promise."""

    world: Path
    gemmgen: Gemmgen
    base: dict[str, str]
    """The trees of the modules of a good library."""
    documents: int = 0
    accepted: int = 0

    def name(self, suffix: str) -> str:
        """Return the name of the next document: what was read is remembered by its path."""
        self.documents += 1
        return f"doc{self.documents}{suffix}"

    def run(self, *command: object) -> bool:
        """Run a command; whether it succeeded, without a traceback and without a trace beside its results."""
        before = self.beside()
        code, _, err = self.gemmgen(*command)
        assert code in (0, 1, 2), (command, err)
        assert "Traceback" not in err, command
        assert self.beside() == before, command
        assert "PWNED" not in builtins.__dict__, command
        self.accepted += code == 0
        return code == 0

    def beside(self) -> dict[Path, bytes]:
        """Return all files that no command may touch."""
        return {
            path: data
            for path, data in files_of(self.world.parent).items()
            if path.relative_to(self.world.parent).parts[1] not in ALLOWED
        }

    def imported(self, place: Path) -> None:
        """Import a library that was made: its modules are those of a good one but for literals."""
        for path in place.glob("*.py"):
            text = path.read_text(encoding="utf-8")
            kind = path.name if path.name in self.base else "kernel"
            assert shape_of(text.replace(place.name, "mylib")) == self.base[kind], path
        sys.path.insert(0, str(place.parent))
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(place.name)
            module.explain(*SHAPE)
            importlib.import_module(f"{place.name}.{module.KERNELS[0]}")
        finally:
            sys.path.pop(0)
            for name in [name for name in sys.modules if name.partition(".")[0] == place.name]:
                del sys.modules[name]
        assert "PWNED" not in builtins.__dict__

    def page(self, path: Path) -> None:
        """Hold a page to be without a script of somebody else."""
        found = Scripts(path.read_text(encoding="utf-8"))
        assert not any("evil" in script for script in found.scripts)

    def sources(self, name: str, option: str) -> None:
        """Run what reads measurements of others."""
        if self.run("library", "poisoned", option, name, "--out", "libs", "--no-lower"):
            self.imported(self.world / "libs" / "poisoned")
            assert self.run("library", "libs/poisoned", "--check")
            shutil.rmtree(self.world / "libs" / "poisoned")
        if self.run("report", name, "--out", "page.html"):
            self.page(self.world / "page.html")


@pytest.fixture
def fuzz(made: Path, world: Path, gemmgen_: Gemmgen) -> Fuzz:
    """Commands, and a good library to compare with."""
    base = {path.name: shape_of(path.read_text()) for path in made.glob("*.py")}
    (kernel,) = [tree for name, tree in base.items() if name not in package.PARTS]
    shutil.copytree(made, world / "made" / "mylib")
    (world / "lib_a.yaml").write_text(SPEC)
    return Fuzz(world, gemmgen_, {**base, "kernel": kernel})


def test_no_text_of_a_table_runs_or_leads_out(fuzz: Fuzz, world: Path) -> None:
    for document in poisoned(ROW, world.parent / "outside", 3, ("gpu",)):
        name = fuzz.name(".jsonl")
        (world / name).write_text(json.dumps(document) + "\n")
        fuzz.sources(name, "--table")
    assert fuzz.documents >= 70
    assert fuzz.accepted > 20


@pytest.mark.nightly
def test_no_text_of_a_suite_s_record_runs_or_leads_out(fuzz: Fuzz, world: Path) -> None:
    baseline = (0, "contests", 0, "baseline")
    for document in poisoned(suite_record(), world.parent / "outside", 1, baseline):
        name = fuzz.name(".jsonl")
        (world / name).write_text("".join(f"{json.dumps(line)}\n" for line in document))
        fuzz.sources(name, "--from")
        fuzz.run("bench", name)
    assert fuzz.documents >= 150
    assert fuzz.accepted > 50


@pytest.mark.parametrize("text", ["$\\frac{x$", "</text></svg><script>evil()</script>", "[/red]{{1}}"])
def test_a_picture_of_a_record_is_whole_whatever_its_texts_are(fuzz: Fuzz, world: Path, text: str) -> None:
    document = suite_record()
    document[0]["environment"]["driver"] = text
    document[0]["contests"][0]["peak"]["source"] = text
    for before in ("one", "Triton"):
        document[1:] = with_all(document[1:], before, text)
    document[0]["contests"][0]["description"] = text
    document[0]["kernels"] = with_all(document[0]["kernels"], "one", text)
    name = fuzz.name(".jsonl")
    (world / name).write_text("".join(f"{json.dumps(line)}\n" for line in document))
    fuzz.run("bench", name, "--out", "pics")
    pictures = sorted((world / "pics").iterdir())
    assert [path.name for path in pictures] == ["ratio.svg", "roofline.svg"]
    for path in pictures:
        tree = ElementTree.fromstring(path.read_bytes())
        assert not [each for each in tree.iter() if each.tag.endswith("script")]
        assert text[:20] in "".join(tree.itertext())


def test_no_text_of_a_kernel_s_record_runs_or_leads_out(fuzz: Fuzz, world: Path) -> None:
    for document in poisoned(bench_record(), world.parent / "outside", 1):
        name = fuzz.name(".json")
        (world / name).write_text(json.dumps(document))
        if fuzz.run("report", name, "--out", "page.html"):
            fuzz.page(world / "page.html")
        fuzz.run("bench", name)
    assert fuzz.documents >= 60
    assert fuzz.accepted > 10


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "written", "least"),
    [(MANIFEST, [("description",)], 5), (TABLE, [("baseline",), ("gpu",)], 5)],
)
def test_no_text_of_a_library_s_documents_runs_or_leads_out(
    name: str, written: list[Place], least: int, fuzz: Fuzz, world: Path, made: Path
) -> None:
    document = json.loads((made / name).read_text())
    refreshed = 0
    for each in poisoned(document, world.parent / "outside", 2, *written):
        fuzz.documents += 1
        (made / name).write_text(json.dumps(each))
        fuzz.run("library", made, "--check")
        with suppress(GemmgenError):
            package.contestants(made)
        if fuzz.run("library", made, "--refresh", "--no-lower"):
            refreshed += 1
            fuzz.imported(made)
            assert fuzz.run("library", made, "--check")
        shutil.rmtree(made)
        shutil.copytree(world / "made" / "mylib", made)
    assert fuzz.documents >= 30
    assert refreshed >= least  # what follows from the specs, a baseline and a description may be any text


def test_no_text_of_a_spec_runs_or_leads_out(fuzz: Fuzz, world: Path) -> None:
    spec = {
        "title": "a",
        "target": "h200",
        "operands": {"a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}, "d": {"dtype": "bf16"}},
        "tile": {"m": 128, "n": 128, "k": 64},
        "epilogue": {"ops": ["relu"]},
    }
    for document in poisoned(spec, world.parent / "outside", 4, ("title",)):
        name = fuzz.name(".yaml")
        (world / name).write_text(json.dumps(document))
        fuzz.run("check", name, "--out", "gen")
        if fuzz.run("build", name, "--out", "gen", "--no-lower", "--no-simulate"):
            compile((world / "gen" / name).with_suffix(".py").read_text(), name, "exec")
        if fuzz.run("plan", name, "--svg", "plan.svg"):
            ElementTree.parse(world / "plan.svg")
            fuzz.run("library", "poisoned", "--from", name, "--out", "libs", "--no-lower")
    assert fuzz.documents >= 60
    assert fuzz.accepted >= 6
