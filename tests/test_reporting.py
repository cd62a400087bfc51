"""What the command line says of a mistake, or of a machine that refuses: to people, editors and CI."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from commands import SPEC, Gemmgen, Ran
from modules import ROOT

from gemmgen.bench.figures.suite_tables import suite_tables
from gemmgen.bench.result_log import Refused, ResultLog
from gemmgen.cli import excerpt, explanations, reporting
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.literals import visible
from gemmgen.plan.choices import CHOICE_RULES
from gemmgen.planner import FAMILIES
from gemmgen.processes.scratch import is_full, scratch
from gemmgen.spec.diagnostics import Code

LONG = "x" * 300


pytest_plugins = ["commands"]


def process(*arguments: object, environment: dict[str, str] | None = None, **options: Any) -> Ran:
    """Run the command line in a process of its own."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "GEMMGEN_CACHE_DIR": ""} | (environment or {})
    command = [sys.executable, "-m", "gemmgen", *map(str, arguments)]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with subprocess.Popen(command, env=variables, text=True, **streams) as started:
        out, errors = started.communicate()
    assert "Traceback" not in (errors or "")
    return Ran(started.returncode, out or "", errors or "")


# --- what the machine refuses


class Header(ctypes.Structure):
    """Of capget and capset: their version, and the thread."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class Sets(ctypes.Structure):
    """32 capabilities each."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inherited", ctypes.c_uint32),
    )


OVERRIDE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextmanager
def mortal() -> Generator[None]:
    """Make root heed the permissions of files for as long as the context lasts; others do anyway."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = Header(0x20080522, 0), (Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0
    before = sets[0].effective
    sets[0].effective = before & ~OVERRIDE
    assert libc.capset(ctypes.byref(header), sets) == 0
    try:
        yield
    finally:
        sets[0].effective = before
        assert libc.capset(ctypes.byref(header), sets) == 0


@pytest.fixture
def closed(good: Path) -> Generator[Path]:
    """A directory in which nothing can be looked for, and which holds a module that cannot be read."""
    Path("closed/inner").mkdir(parents=True)
    Path("unreadable").mkdir()
    Path("unreadable/good.py").write_text("secret")
    Path("unreadable/good.py").chmod(0)
    Path("closed").chmod(0)
    with mortal():
        yield Path("closed")
    Path("closed").chmod(0o755)


@pytest.mark.check
@pytest.mark.parametrize(
    ("arguments", "code", "number"),
    [
        (("build", "--no-lower", "--out", "closed/out"), "cannot-write", errno.EACCES),
        (("build", "--no-lower", "--out", "unreadable"), "cannot-write", errno.EACCES),
        (("build", "--no-lower", "--out", LONG), "cannot-write", errno.ENAMETOOLONG),
        (("check", "--out", "closed/out"), "cannot-read", errno.EACCES),
        (("check", "--out", "unreadable"), "cannot-read", errno.EACCES),
        (("bench", "--record", "closed/inner/record.json"), "usage", errno.EACCES),
        (("bench", "--record", LONG), "usage", errno.ENAMETOOLONG),
        (("bench", "--record", f"{LONG}/record.json"), "usage", errno.ENAMETOOLONG),
        (("simulate", "--trace", "closed/inner/trace.json"), "usage", errno.EACCES),
        (("simulate", "--trace", LONG), "usage", errno.ENAMETOOLONG),
        (("simulate", "--trace", f"{LONG}/x.json"), "usage", errno.ENAMETOOLONG),
        (("plan", "--sarif", LONG), "cannot-write", errno.ENAMETOOLONG),
        (("plan", "--sarif", "closed/inner/x.sarif"), "cannot-write", errno.EACCES),
    ],
)
def test_a_place_that_cannot_be_used_is_told_in_words(
    gemmgen_: Gemmgen, closed: Path, arguments: tuple[str, ...], code: str, number: int
) -> None:
    ran = gemmgen_(*arguments, "good.yaml")
    assert ran.code == (2 if code == "usage" else 1)
    assert code == "usage" or code in ran.codes
    assert os.strerror(number) in " ".join(ran.stderr.split())


@pytest.mark.quick
@pytest.mark.parametrize("arguments", [("plan",), ("plan", "--json"), ("schema",), ("--help",)], ids=" ".join)
def test_a_full_output_is_told_once(good: Path, arguments: tuple[str, ...]) -> None:
    names = (good,) if arguments[0] == "plan" else ()
    with Path("/dev/full").open("w") as full:
        ran = process(*arguments, *names, stdout=full)
    assert (ran.code, ran.codes) == (1, ["cannot-write"])
    assert ran.stderr.startswith("standard output: ")


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_command_without_a_standard_stream_does_its_work(good: Path, stream: int) -> None:
    """What it opens must not get the number of the stream, and be printed into."""
    ran = process("build", "--no-lower", good, preexec_fn=lambda: os.close(stream))
    assert ran.code == 0
    assert Path("generated/good.py").read_text().startswith('"""')
    assert sorted(path.name for path in Path("generated").iterdir()) == [
        "gemmgen_driver.py",
        "gemmgen_launch.py",
        "good.json",
        "good.py",
    ]


def test_a_refusal_without_stderr_is_an_exit_code_and_not_on_stdout(good: Path) -> None:
    ran = process("plan", "absent.yaml", preexec_fn=lambda: os.close(2))
    assert (ran.code, ran.stdout) == (1, "")


def test_a_title_of_other_letters_is_compiled_in_an_ascii_locale(good: Path) -> None:
    good.write_text(SPEC.replace("a matmul", "naïve 矩阵"), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = process("build", "--no-simulate", good, environment=ascii_only)
    assert (ran.code, ran.stderr) == (0, "")
    assert "naïve 矩阵" in Path("generated/good.py").read_text(encoding="utf-8")


def test_another_triton_is_told_before_anything_of_it_is_used(good: Path) -> None:
    """One that is installed, and has nothing that this release has but its version."""
    Path("site/triton").mkdir(parents=True)
    Path("site/triton/__init__.py").write_text('__version__ = "3.6.0"\n')
    Path("site/triton-3.6.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: triton\nVersion: 3.6.0\n"
    Path("site/triton-3.6.0.dist-info/METADATA").write_text(metadata)
    paths = os.pathsep.join([str(Path("site").resolve()), str(ROOT)])
    ran = process("simulate", good, environment={"PYTHONPATH": paths})
    assert (ran.code, ran.stdout, ran.codes) == (1, "", ["unknown-triton"])
    assert "Triton 3.6.0" in ran.stderr


# --- a full disk


def no_space(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_place_for_temporary_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", no_space)
    assert is_full(tmp_path)
    with pytest.raises(GemmgenError) as caught, scratch():
        no_space()
    (found,) = caught.value.diagnostics
    assert (found.path, found.code) == (str(tmp_path), "no-scratch")
    assert os.strerror(errno.ENOSPC) in found.message
    assert list(tmp_path.iterdir()) == []


def test_what_has_space_is_not_called_full(tmp_path: Path) -> None:
    assert not is_full(tmp_path)
    with pytest.raises(OSError, match="No space"), scratch():
        no_space()  # of another place


def can_mount() -> bool:
    """Whether this process may make a file system of its own to fill."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    with Path(os.devnull).open("w") as nowhere:
        try:
            return subprocess.run(command, stderr=nowhere, check=False).returncode == 0
        except FileNotFoundError:
            return False


@pytest.mark.skipif(not can_mount(), reason="needs root; run where containers may mount, as CI's are")
def test_a_compiler_without_space_is_not_a_kernel_that_it_refuses(good: Path) -> None:
    # Some space is left: enough for the module, and not for what the compiler makes of it.
    Path("small").mkdir()
    program = 'mount -t tmpfs -o size=64k none small && head -c 20000 /dev/zero > small/fill && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", program, "sh", sys.executable, "-m", "gemmgen", "build"]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "GEMMGEN_CACHE_DIR": "", "TMPDIR": "small"}
    ran = subprocess.run([*command, good], env=variables, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"{Path('small').resolve()}: error[no-scratch]: ")
    assert not Path("generated").exists()


@pytest.mark.parametrize("before", ["nothing", "a module"])
def test_a_disk_that_takes_no_more_leaves_whole_files_and_nothing_else(good: Path, before: str) -> None:
    if before == "a module":
        process("build", "--no-lower", good)
        good.write_text(SPEC.replace("a matmul", "another one"))
    files = {path.name: path.read_bytes() for path in Path("generated").glob("*")}

    def limited() -> None:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (8_000, 8_000)
        )  # the manifest is smaller, the module is not

    ran = process("build", "--no-lower", good, preexec_fn=limited)
    assert (ran.code, ran.codes) == (1, ["cannot-write"])
    assert {path.name: path.read_bytes() for path in Path("generated").glob("*")} == files
    assert Path("generated").exists() == (before == "a module")


# --- the line that is meant


def wrong(*lines: str) -> None:
    Path("wrong.yaml").write_text(SPEC + "".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.quick
def test_a_diagnostic_has_its_line_and_a_caret_under_the_place(gemmgen_: Gemmgen, good: Path) -> None:
    wrong("buffering: {stages: 9}")
    head, line, caret = gemmgen_("plan", "wrong.yaml").stderr.splitlines()
    assert head.startswith("wrong.yaml:5:21: error[smem-capacity] buffering.stages: ")
    assert line == "    5 | buffering: {stages: 9}"
    assert caret == "      |                     ^"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "shown", "under"),
    [
        ("tile: {m: x, 矩: 1}", "tile: {m: x, 矩: 1}", 13),
        ("tile: {矩阵: 1, m: x}", "tile: {矩阵: 1, m: x}", 7),  # letters that are two columns wide
        ("矩阵: 1", "矩阵: 1", 0),
    ],
)
def test_a_caret_is_under_letters_of_any_width(
    gemmgen_: Gemmgen, good: Path, text: str, shown: str, under: int
) -> None:
    Path("wrong.yaml").write_text(SPEC.replace("tile: {m: 128, n: 256, k: 64}\n", f"{text}\n"), "utf-8")
    lines = gemmgen_("plan", "wrong.yaml").stderr.splitlines()
    assert f"    4 | {shown}" in lines
    assert f"      | {' ' * under}^" in lines


@pytest.mark.quick
def test_a_long_line_is_shown_around_the_place() -> None:
    Path("long.yaml").write_text("x" * 400 + "!" + "y" * 400)
    text = excerpt.shown(Diagnostic("long.yaml", "title", "no", line=1, column=401))
    _, line, caret = text.splitlines()
    assert len(line) <= 8 + excerpt.MOST_COLUMNS
    assert line[caret.index("^")] == "!"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.quick
def test_what_a_terminal_would_obey_is_not_shown_as_it_is() -> None:
    Path("odd.yaml").write_bytes(b"a: \x1b[31m\xff\tb")
    text = excerpt.shown(Diagnostic("odd.yaml", "title", "no", line=1, column=4))
    assert text.splitlines()[1] == "    1 | a: \ufffd[31m\ufffd b"


ODD = {
    "letters": b"bad\x1b[31m\x07\r\xff" + "\x9b31m\u202e".encode(),
    "a line break": b"bad\n/etc/passwd:1:1: error[x]",
    "markup": b"[red]bad[/red][link=x]",
}
"""Names whose letters a terminal would obey, or Rich."""
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COMMANDS = (
    ("plan", "{}.yaml"),
    ("plan", "{}/good.yaml"),
    ("plan", "{}/good.yaml", "--candidates", "1"),
    ("plan", "{}/many.yaml"),
    ("plan", "{}.yaml", "--format", "github"),
    ("plan", "good.yaml", "--svg", "{}/absent/x.svg"),
    ("plan", "good.yaml", "--{}"),
    ("plan", "good.yaml", "--format", "{}"),
    ("{}",),
    ("build", "--no-lower", "good.yaml", "--out", "{}/out"),
    ("build", "--no-lower", "{}/good.yaml"),
    ("build", "--no-lower", "{}/good.yaml", "good.yaml"),
    ("check", "{}/good.yaml"),
    ("check", "good.yaml", "--out", "{}/modules"),
    ("diff", "{}/good.yaml", "good.yaml"),
    ("explain", "{}"),
    ("init", "{}/new.yaml"),
    ("init", "{}"),
    ("simulate", "{}.py"),
    ("bench", "{}.json"),
    ("report", "{}.json"),
    ("library", "{}", "--check"),
)


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_name_is_obeyed_by_a_terminal(
    good: Path, gemmgen_: Gemmgen, kind: str, arguments: tuple[str, ...]
) -> None:
    name = os.fsdecode(ODD[kind])
    folder = Path(name)
    (folder / "modules").mkdir(parents=True)
    (folder / "modules" / "good.py").write_text("edited\x1b[31m\n")
    (folder / "good.yaml").write_text(SPEC)
    (folder / "many.yaml").write_text(SPEC + "".join(f"key_{number}: 1\n" for number in range(33)))
    Path(f"{name}.yaml").write_text(SPEC)
    ran = gemmgen_(*(argument.replace("{}", name) for argument in arguments))
    assert OBEYED.findall(ran.stdout + ran.stderr) == []
    shown = (ran.stdout + ran.stderr).replace("\n", " ")
    assert "bad" in shown
    if kind == "markup" and arguments[0] != "init":
        assert "[red]bad[/red]" in shown
    if kind == "a line break":
        assert "/etc/passwd:1:1: error[x]" not in [line[:25] for line in ran.stderr.splitlines()]


@pytest.mark.quick
def test_what_a_spec_says_is_not_obeyed_by_a_terminal(gemmgen_: Gemmgen, good: Path) -> None:
    for number, text in enumerate(
        (
            SPEC.replace("a matmul", '"a \\e[31m matmul"'),
            SPEC.replace("a matmul", "a \x1b[31m matmul"),
            SPEC + '"\\e[31m\\u202E": 1\n',
            SPEC + '"[red]x[/red]": 1\n',
            SPEC + 'tile: {"\\e": "\\e"}\n',
            SPEC.replace("h100", '"\\e[31m"'),
            SPEC.replace("bf16", '"\\e[31m"', 1),
            SPEC + 'epilogue: {ops: ["\\e", {"\\e": {"\\e": 1}}]}\n',
        )
    ):
        Path(f"text_{number}.yaml").write_text(text)
        for form in ("text", "github"):
            ran = gemmgen_("plan", f"text_{number}.yaml", "--format", form)
            assert (ran.code, OBEYED.findall(ran.stdout + ran.stderr)) == (1, [])


@pytest.mark.quick
def test_a_diagnostic_is_one_line_that_shows_escapes() -> None:
    found = Diagnostic("a\x1b\n.yaml", "title", "no\r\udcff", field="\u202e", line=1)
    assert str(found) == r"a\x1b\n.yaml:1: error[title] \u202e: no\r\udcff"
    assert str(GemmgenError([found])) == str(found)
    assert found.as_github() == r"::error file=a\x1b%0A.yaml,line=1,title=title::\u202e: no%0D\udcff"


def test_lines_of_two_threads_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting.RUN, "form", "text")
    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Stream())
    reporting.tell("lowering one.yaml")
    reporting.complain(GemmgenError([Diagnostic("two.yaml", "syntax", "it is cut off")]))
    assert written == ["lowering one.yaml\n", "two.yaml: error[syntax]: it is cut off\n"]


def test_a_table_of_a_suite_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[31m[red]x[/red] :warning:"
    session = ResultLog.opened(ROOT / "benchmarks" / "suites" / "h200_long_k.jsonl").sessions[0]
    (contest,) = session.contests
    named = replace(session, contests=(replace(contest, description=name),))
    refused = Refused("refused", (1, 2, 3), contest.contest, name, "cannot", name)
    log = ResultLog(lines=[named, refused])
    reporting.say_tables(suite_tables(log), 400)
    told = capsys.readouterr().out
    assert told.count(visible(name)) == 3


# --- what is said of a place


@pytest.mark.quick
def test_a_place_that_the_file_does_not_have_any_more_shows_none() -> None:
    Path("short.yaml").write_text("a\n")
    for path, line in (("short.yaml", 9), ("absent.yaml", 1)):
        found = Diagnostic(path, "title", "no", line=line, column=1)
        assert excerpt.shown(found) == str(found)


@pytest.mark.quick
def test_of_many_mistakes_twenty_are_shown_and_all_are_counted(gemmgen_: Gemmgen, good: Path) -> None:
    wrong(*(f"key_{number}: 1" for number in range(33)))
    ran = gemmgen_("plan", "wrong.yaml")
    assert ran.codes == ["unknown-key"] * 20
    assert ran.stderr.splitlines()[-1].startswith("wrong.yaml: note: 13 of 33 ")
    assert len(json.loads(gemmgen_("plan", "wrong.yaml", "--json").stdout)["diagnostics"]) == 33


def on_a_terminal(*arguments: object, **environment: str) -> str:
    """What a command shows on a terminal."""
    terminal, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    variables |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | environment
    command = [sys.executable, "-m", "gemmgen", *map(str, arguments)]
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=theirs):
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(terminal, 10_000):
                shown += part
        except OSError:  # nobody has it open any more
            pass
    os.close(terminal)
    return shown.decode()


def test_there_are_colours_on_a_terminal_unless_they_are_not_wanted(gemmgen_: Gemmgen, good: Path) -> None:
    wrong("tiles: 1")
    plain = gemmgen_("plan", "wrong.yaml").stderr
    coloured = on_a_terminal("plan", "wrong.yaml")
    assert "\x1b[1;31merror[unknown-key]\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured).replace("\r\n", "\n") == plain
    assert on_a_terminal("plan", "wrong.yaml", NO_COLOR="1").replace("\r\n", "\n") == plain


# --- for programs


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "code", "codes"),
    [
        (("plan", "good.yaml"), 0, []),
        (("plan", "absent.yaml"), 1, ["file-missing"]),
        (("plan", "good.yaml", "--candidates", "2"), 0, []),
        (("build", "--no-lower", "good.yaml"), 0, []),
        (("check", "good.yaml"), 1, ["missing"] * 4),
        (("check",), 1, ["missing"] * 4),
        (("list",), 0, []),
        (("doctor",), 0, []),
        (("init", "mine"), 0, []),
        (("init", "good"), 1, ["file-exists"]),
        (("explain", "title"), 0, []),
        (("explain", "nonsense"), 1, ["unknown-rule"]),
        (("plan",), 2, ["usage"]),
        (("nonsense",), 2, ["usage"]),
        (("build", "good.yaml", "--emit", "elf"), 2, ["usage"]),
        (("schema",), 2, ["usage"]),
        (("report", "absent.json"), 1, ["bad-record"]),
        (("bench", "absent.json"), 1, ["bad-record"]),
        (("library", "nowhere", "--check"), 1, ["no-library"]),
    ],
)
def test_every_command_has_one_json(
    gemmgen_: Gemmgen, good: Path, arguments: tuple[str, ...], code: int, codes: list[str]
) -> None:
    ran = gemmgen_(*arguments, "--json")
    told = json.loads(ran.stdout)
    assert list(told) == ["diagnostics", "results"]
    assert (ran.code, [found["code"] for found in told["diagnostics"]]) == (code, codes)
    keys = ["path", "code", "message", "field", "line", "column", "severity", "advice", "fix"]
    assert all(list(found) == keys for found in told["diagnostics"])
    assert told["results"] is not None or code


@pytest.mark.quick
@pytest.mark.parametrize("target", ["h100", "b200"])
def test_a_plan_has_a_value_of_every_field_that_a_spec_can_pin(
    gemmgen_: Gemmgen, good: Path, target: str
) -> None:
    good.write_text(SPEC.replace("h100", target))
    planned = json.loads(gemmgen_("plan", good, "--json").stdout)["results"]["good.yaml"]["fields"]
    assert (planned["tile.m"], planned["tile.n"], planned["tile.k"]) == (128, 256, 64)
    assert {"buffering.stages", "schedule.order", "epilogue.subtile_n", "cluster.m"} <= set(planned)
    # What is planned, stated, is the same plan.
    stated: dict[str, Any] = {}
    for path, value in planned.items():
        *sections, name = path.split(".")
        section = stated
        for each in sections:
            section = section.setdefault(each, {})
        if value is not None:
            section[name] = value
    operands = {name: {"dtype": "bf16", **stated.get("operands", {}).get(name, {})} for name in "abd"}
    stated.pop("dependent_launch", None)  # which a spec states only of kernels that have it
    whole = {"title": "all of it", "target": target, **stated, "operands": operands}
    Path("whole.yaml").write_text(json.dumps(whole))
    again = json.loads(gemmgen_("plan", "whole.yaml", "--json").stdout)["results"]["whole.yaml"]["fields"]
    assert again == planned


@pytest.mark.quick
def test_github_gets_its_commands(gemmgen_: Gemmgen, good: Path) -> None:
    wrong("buffering: {stages: 9}")
    ran = gemmgen_("plan", "wrong.yaml", "--format", "github")
    (line,) = ran.stderr.splitlines()
    place = "file=wrong.yaml,line=5,col=21,title=smem-capacity"
    assert line.startswith(f"::error {place}::buffering.stages: ")
    assert gemmgen_("plan", "wrong.yaml", "--format", "xml").code == 2


@pytest.mark.quick
def test_github_gets_no_other_command_out_of_a_message() -> None:
    found = Diagnostic("a,b:c.yaml", "title", "50 %\n::error::planted", severity="warning")
    assert found.as_github() == "::warning file=a%2Cb%3Ac.yaml,title=title::50 %25%0A::error::planted"


@pytest.mark.quick
@pytest.mark.parametrize("command", [["plan"], ["build", "--no-lower"], ["check"]], ids=" ".join)
def test_a_log_in_sarif_has_rules_places_and_lines(gemmgen_: Gemmgen, good: Path, command: list[str]) -> None:
    wrong("buffering: {stages: 9}")
    ran = gemmgen_(*command, "wrong.yaml", "--sarif", "found.sarif")
    assert ran.codes == ["smem-capacity"]
    (run,) = json.loads(Path("found.sarif").read_text())["runs"]
    (rule,), (result,) = run["tool"]["driver"]["rules"], run["results"]
    assert rule["id"] == result["ruleId"] == "smem-capacity"
    assert rule["shortDescription"]["text"] != "smem capacity"
    assert (result["level"], result["message"]["text"][:16]) == ("error", "buffering.stages")
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "wrong.yaml"
    snippet = {"text": "buffering: {stages: 9}"}
    assert physical["region"] == {"startLine": 5, "startColumn": 21, "snippet": snippet}


@pytest.mark.quick
def test_a_pipe_or_a_device_takes_a_log_and_stays_what_it_is(gemmgen_: Gemmgen, good: Path) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert gemmgen_("plan", good, "--sarif", "pipe").code == 0
    assert os.read(reader, 100).startswith(b"{")
    os.close(reader)
    Path("kept.sarif").touch()
    Path("link").symlink_to("kept.sarif")
    assert gemmgen_("plan", good, "--sarif", "link").code == 0
    assert Path("link").is_symlink()
    assert Path("kept.sarif").stat().st_size > 0


# --- stdin


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], None]:
    """Gives the next command something on stdin."""

    def give(data: str | bytes) -> None:
        raw = io.BytesIO(data.encode() if isinstance(data, str) else data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))

    return give


@pytest.mark.quick
def test_a_spec_can_come_on_stdin(gemmgen_: Gemmgen, good: Path, given: Callable[[str], None]) -> None:
    given(SPEC)
    ran = gemmgen_("build", "--no-lower", "-", "--out", "out")
    assert (ran.code, ran.stdout.splitlines()[-1]) == (0, "wrote out/matmul.py")
    given(SPEC)
    assert gemmgen_("check", "-", "--out", "out").code == 0
    given(SPEC)
    assert gemmgen_("plan", "-", "--candidates", "2").stdout.startswith("<stdin>: ")


@pytest.mark.quick
def test_a_mistake_on_stdin_has_its_line(
    gemmgen_: Gemmgen, good: Path, given: Callable[[str | bytes], None]
) -> None:
    given(SPEC + "tiles: 1\n")
    head, *excerpt = gemmgen_("plan", "-").stderr.splitlines()
    assert head.startswith("<stdin>:5:1: error[unknown-key]: ")
    assert excerpt == ["    5 | tiles: 1", "      | ^"]
    for data, code in ((b"", "file-empty"), (b"#" * 70_000, "file-size"), (b"\xff", "file-encoding")):
        given(data)
        assert gemmgen_("plan", "-").codes == [code]


# --- what a code means


@pytest.mark.quick
@pytest.mark.parametrize("code", ["tile-power-of-two", "epilogue-subtile", "cluster-shape"])
def test_what_differs_between_hopper_and_blackwell_says_whose_it_is(code: str, gemmgen_: Gemmgen) -> None:
    told = gemmgen_("explain", code).stdout.split("\n\n")[1:3]
    assert [line.partition(": ")[0] for line in told] == ["Hopper", "Blackwell"]
    assert "\nHopper: " not in gemmgen_("explain", "ring-depth").stdout


def test_every_rule_and_every_code_of_a_file_is_explained_and_no_other() -> None:
    rules = {rule.id for family in FAMILIES.values() for rule in family.rules}
    rules |= {rule.id for rule in CHOICE_RULES}
    refusing = (ROOT / "gemmgen/plan/exportable.py", *ROOT.glob("gemmgen/features/*/exporting.py"))
    exported = {
        code for path in refusing for code in re.findall(r'"((?:export|pack)-\w+)"', path.read_text())
    }
    warned = {"expected-registers", "few-waves", "idle-sms", "large-search", "unranked-search"}
    assert set(explanations.explanations()) == rules | exported | warned | set(get_args(Code))
    for rule in rules:
        entry = explanations.explanation_of(rule)
        assert entry.holds, rule
        assert entry.example, rule
        assert "\nSource: " in entry.text, rule
        assert entry.text.startswith("Protects "), rule


@pytest.mark.quick
def test_an_explanation_has_the_spec_and_what_is_said_of_it(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("explain", "smem-capacity")
    assert (ran.code, ran.stderr) == (0, "")
    entry = explanations.explanation_of("smem-capacity")
    for part in (*entry.holds, "\n    buffering: {stages: 5}\n", "error[smem-capacity] buffering.stages: "):
        assert part in ran.stdout
    assert gemmgen_("explain", "error[smem-capacity]").stdout == ran.stdout
    assert gemmgen_("explain", "exchanged-operands").stdout == gemmgen_("explain", "swap-ab").stdout
    listed = gemmgen_("explain").stdout
    assert len(listed.splitlines()) == 1 + len(explanations.explanations())


@pytest.mark.quick
def test_a_rule_that_there_is_not_gets_the_one_that_is_meant(gemmgen_: Gemmgen, good: Path) -> None:
    ran = gemmgen_("explain", "smem_capacty")
    assert (ran.code, ran.codes) == (1, ["unknown-rule"])
    assert "smem-capacity" in ran.stderr


@pytest.mark.quick
def test_advice_for_a_field_of_zero_is_words(gemmgen_: Gemmgen, good: Path) -> None:
    """A spec that was spoilt at random found this one: no power of two is below 0."""
    good.write_text(SPEC.replace("h100", "b200") + "buffering: {outstanding_mmas: 0}\naccumulator: fp16\n")
    assert gemmgen_("plan", good).codes == ["target-choice"]
