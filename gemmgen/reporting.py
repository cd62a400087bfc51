"""All that the command line prints: results, diagnostics, progress, JSON and SARIF; and the end of a run.

Results go to stdout (`say`), progress and diagnostics to stderr (`tell`). Text that comes from users and
files is shown with escapes for what a terminal would obey. A diagnostic is one line that editors parse, and
below it the line of the file that it is about. With ``--json`` stdout has one object, whatever happened:
``{"diagnostics": [...], "results": ...}``.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import gemmgen
from gemmgen.cache import CacheWarning
from gemmgen.errors import Diagnostic, GemmgenError, Region, Reported, sarif_log
from gemmgen.literals import visible
from gemmgen.product import write_files
from gemmgen.spec.diagnostics import did_you_mean, quoted
from gemmgen.spec.load import STDIN, stdin_bytes

if TYPE_CHECKING:
    from gemmgen.tune.tuning import Tick

S = TypeVar("S")
T = TypeVar("T")

WAKING_SECONDS = 0.2
"""How often the waiting thread wakes: a signal that comes just as it falls asleep does not wake it."""
MOST_SHOWN = 20
"""Diagnostics of one file that a person is shown; the others are counted."""
Form = Literal["text", "github"]
"""Of diagnostics on stderr."""
FORMS: tuple[Form, ...] = ("text", "github")
USAGE_CODE = "usage"
"""Of a diagnostic about the command's own words."""


@dataclass
class Run:
    """What one run of the command line is asked for, and has to tell at its end."""

    as_json: bool = False
    form: Form = "text"
    sarif: Path | None = None
    results: object = None
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def begin(self, *, as_json: bool) -> None:
        """Forget what another run of this process has left."""
        self.as_json, self.form, self.sarif, self.results, self.diagnostics = as_json, "text", None, None, []


_RUN = Run()


def run_command(app: Callable[..., object], arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; what a user can cause ends as a diagnostic.

    `app` is called as Typer's are.
    """
    _RUN.begin(as_json="--json" in arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a title may have letters that a terminal lacks
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _tell_warning
            code = _ended(lambda: _called(app))
        return max(code, _ended(_finish)) if code in (0, 1, 2) else code
    except BrokenPipeError:
        # The reader of stdout has gone, so nothing is reported.
        _forget(sys.stdout)
        return 1


def _called(app: Callable[..., object]) -> int:
    """Call the application; a wrong use of it is told, and is 2."""
    try:
        code = app(prog_name="gemmgen", standalone_mode=False)
    except typer.Abort:
        return 1
    except Exception as error:
        if not isinstance(error, _USAGE):
            raise
        wrong: Any = error
        place = getattr(getattr(wrong, "ctx", None), "command_path", "gemmgen")
        _RUN.diagnostics.append(Diagnostic(place, USAGE_CODE, wrong.format_message()))
        wrong.message = visible(wrong.message or "")  # it may quote the command's words
        wrong.show()
        return int(wrong.exit_code)
    return code if isinstance(code, int) else 0


_USAGE = typer.BadParameter.__mro__[2]
"""What Click raises for wrong usage; Typer may have a Click of its own, and names only this subclass."""


def _ended(step: Callable[[], int]) -> int:
    """Return the exit code of a step; what was refused on the way is told, and is 1."""
    try:
        return step()
    except GemmgenError as error:
        complain(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        # A full disk, a directory that went away: what no stage can foresee.
        complain(GemmgenError([_machine(error)]))
    return 1


def _machine(error: OSError) -> Diagnostic:
    """Return what the machine refused: a file, or where none is named perhaps what is printed."""
    message = error.strerror or str(error)
    if error.filename is None:
        try:
            os.write(sys.stdout.fileno(), b"")  # even of nothing a full device has no place
        except (OSError, ValueError):
            return _unprintable(error)
    return Diagnostic(str(error.filename or "this machine"), "machine", message)


def _unprintable(error: OSError) -> Diagnostic:
    """Return that stdout cannot be written; what it holds is dropped."""
    _forget(sys.stdout)
    message = f"cannot write: {error.strerror or error}"
    return Diagnostic("standard output", "cannot-write", message)


def _forget(stream: Any) -> None:
    """Let what a stream still holds go nowhere: Python would try to write it at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _finish() -> int:
    """Write what a run tells at its end."""
    code = _ended(_write_sarif)
    try:
        if _RUN.as_json:
            told = {"diagnostics": [found.as_dict() for found in _RUN.diagnostics], "results": _RUN.results}
            print(json.dumps(told, indent=2))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise GemmgenError([_unprintable(error)]) from error
    return code


def _write_sarif() -> int:
    """Write the log of diagnostics that was asked for."""
    if _RUN.sarif:
        reported = [
            Reported(found.code, found.severity, _text(found), [_region(found)]) for found in _RUN.diagnostics
        ]
        says = {code: entry.summary for code, entry in explanations().items()}
        write(_RUN.sarif, json.dumps(sarif_log("gemmgen", reported, says), indent=2) + "\n")
    return 0


def _text(found: Diagnostic) -> str:
    return f"{found.field}: {found.message}" if found.field else found.message


def _region(found: Diagnostic) -> Region:
    return Region(found.path, found.line, found.column, _line(found) or "")


# --- what a command says


def say(*values: object, end: str = "\n") -> None:
    """Print results to stdout."""
    print(visible(" ".join(map(str, values)), lines=True), end=end)


def tell(text: str) -> None:
    """Print one line to stderr, at once."""
    print(visible(text), file=sys.stderr, flush=True)


def say_tables(tables: Iterable[Table], columns: int) -> None:
    """Print tables to stdout, as wide as its terminal is; without a terminal `columns` characters wide.

    What terminals obey must be escaped in their cells already: of a table, colours are meant.
    """
    console = Console(width=None if sys.stdout.isatty() else columns, emoji=False)
    for table in tables:
        console.print(table)


def _tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Tell of the cache as of everything else; of other libraries' warnings as Python does."""
    if isinstance(message, CacheWarning):
        complain(GemmgenError([message.diagnostic]))
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(visible(text, lines=True), file=file or sys.stderr, end="")


def choose(form: str, sarif: Path | None) -> None:
    """Take the form of diagnostics on stderr, and where a log of them is written at the end."""
    if form not in FORMS:
        raise typer.BadParameter(f"{form}: choose among {', '.join(FORMS)}", param_hint="--format")
    _RUN.form, _RUN.sarif = form, sarif


def print_json(results: object) -> None:
    """Take what the run's JSON has as its results."""
    _RUN.results = results


def complain(error: GemmgenError) -> None:
    """Tell what was refused: on stderr up to a number for each file, in JSON and SARIF all."""
    _RUN.diagnostics.extend(error.diagnostics)
    told: Counter[str] = Counter()
    coloured = _has_colours(sys.stderr)
    with suppress(OSError):  # nobody can be told that stderr is full
        for found in error.diagnostics:
            told[found.path] += 1
            if _RUN.form == "github":
                print(found.as_github(), file=sys.stderr)
            elif told[found.path] <= MOST_SHOWN:
                print(shown(found, coloured=coloured), file=sys.stderr)
        for path, count in told.items() if _RUN.form == "text" else ():
            if count > MOST_SHOWN:
                rest = f"{count - MOST_SHOWN:,} of {count:,} diagnostics are not shown; --json has them all"
                tell(f"{path}: note: {rest}")


def end(failed: bool) -> None:
    """End a command: with 1 if it failed."""
    if failed:
        raise typer.Exit(1)


def unwritable(path: Path, *, folder: bool = False) -> str | None:
    """Return why a file cannot be written, as far as that can be seen before; None where it can.

    With `folder`, a directory that is there will do too.
    """
    try:
        if path.is_dir():
            return None if folder else f"{path} is a directory"
        if not path.parent.is_dir():
            return f"there is no directory {path.parent}"
        path.exists()  # which a name that is too long cannot
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None if os.access(path.parent, os.W_OK) else f"no file can be written in {path.parent}"


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all, where it is one: a pipe or a device takes what comes.

    Raises:
        GemmgenError: It cannot be written (``cannot-write``).
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8")
            return
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path.parent.as_posix())
        place = path.resolve() if path.is_symlink() else path  # the link stays, what it names is written
    except OSError as error:
        message = f"cannot write: {error.strerror or error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "cannot-write", message)]) from error
    write_files({place: text.encode()})


# --- a diagnostic with the line that it is about

RED, YELLOW, BOLD, FAINT, PLAIN = "\x1b[1;31m", "\x1b[1;33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
MOST_COLUMNS = 100
"""Of a line of a file that is shown; of a longer one the part around the place."""


def _has_colours(stream: Any) -> bool:
    """Whether a stream is a terminal, and its user has not asked for no colours: https://no-color.org."""
    named = os.environ.get("NO_COLOR", "") or os.environ.get("TERM", "") == "dumb"
    return bool(not named and stream is not None and stream.isatty())


def shown(found: Diagnostic, *, coloured: bool = False) -> str:
    """Return a diagnostic, and below it the line that it is about with a caret under the place."""
    text = str(found)
    strong = RED if found.severity == "error" else YELLOW
    if coloured:
        label = f"{found.severity}[{found.code}]"
        place, _, rest = text.partition(label)
        text = f"{BOLD}{place}{PLAIN}{strong}{label}{PLAIN}{rest}"
    line = _line(found)
    if line is None or found.line is None or found.column is None:
        return text
    start = max(0, found.column - 1 - MOST_COLUMNS // 2) if len(line) > MOST_COLUMNS else 0
    part = _visible(line[start : start + MOST_COLUMNS])
    before = _visible(line[start : found.column - 1])
    number, margin = f"{found.line:>5} | ", " " * 5 + " | "
    under = " " * cell_len(before) + "^"
    if coloured:
        number, margin, under = (
            f"{FAINT}{number}{PLAIN}",
            f"{FAINT}{margin}{PLAIN}",
            f"{strong}{under}{PLAIN}",
        )
    return f"{text}\n{number}{part.rstrip()}\n{margin}{under}"


def _visible(text: str) -> str:
    """Return text in which every character can be seen: a terminal would obey some of them."""
    return "".join(letter if letter.isprintable() else " " if letter == "\t" else "\ufffd" for letter in text)


def _line(found: Diagnostic) -> str | None:
    """Return the line of the file, None where no place in a file of text is meant."""
    if found.line is None or found.column is None:
        return None
    try:
        data = stdin_bytes(sys.stdin) if found.path == STDIN else Path(found.path).read_bytes()
    except (OSError, ValueError):
        return None
    lines = re.split("\r\n|\r|\n", data.decode("utf-8-sig", errors="replace"))
    return lines[found.line - 1] if found.line <= len(lines) else None


# --- what a code means


@dataclass(frozen=True)
class Explanation:
    """What a rule protects, by its id, or another code of a diagnostic of specs."""

    code: str
    text: str
    """Of docs/rules.md: what is protected, the arithmetic, the source."""

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.)\s", self.text, maxsplit=1)[0]

    @property
    def holds(self) -> tuple[str, ...]:
        """What holds for a plan that keeps the rule; where GPUs differ, each says first whose it is."""
        found = {rule.says: generation for generation, rule in _rules() if rule.id == self.code}
        said = [(generation, " ".join(says.split())) for says, generation in found.items()]
        return tuple(f"{generation}: {says}" if len(said) > 1 else says for generation, says in said)

    @property
    def example(self) -> tuple[str, str, str] | None:
        """An invalid spec: its name, its text, and what is said of it; None where no file can show it."""
        folder = _shipped("invalid", "tests/invalid")
        shown = f"error[{self.code}]"
        told = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*/*.txt"))}
        having = [path for path, text in told.items() if shown in text]
        if not having:
            return None
        stem = self.code.replace("-", "_")
        best = min(having, key=lambda path: (told[path].count("\n"), path.stem != stem, len(told[path])))
        spec = best.with_suffix(".yaml")
        lines = [line for line in told[best].splitlines() if shown in line]
        return spec.name, spec.read_text(encoding="utf-8"), "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        name, spec, said = self.example or (None, None, None)
        example = {"name": name, "spec": spec, "diagnostics": said} if name else None
        return {"code": self.code, "holds": list(self.holds), "text": self.text, "example": example}

    def __str__(self) -> str:
        parts = [self.code, *self.holds, self.text]
        if self.example:
            name, spec, said = self.example
            parts += [f"For example {name}:", textwrap.indent(spec.rstrip(), "    "), "is refused:", said]
        return "\n\n".join(parts)


@cache
def explanations() -> dict[str, Explanation]:
    """Return what is known of every code, in the order of docs/rules.md."""
    page = _shipped("rules.md", "docs/rules.md").read_text(encoding="utf-8")
    entries = re.findall(r"^## ([\w-]+)\n(.+?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    return {code: Explanation(code, text.strip()) for code, text in entries}


def explanation_of(code: str) -> Explanation:
    """Return what is known of a code.

    Raises:
        GemmgenError: No rule has it (``unknown-rule``).
    """
    known = explanations()
    name = code.removeprefix("error[").removesuffix("]").replace("_", "-").lower()
    if name not in known:
        message = f"no rule is called {quoted(code)}{did_you_mean(name, list(known))}"
        raise GemmgenError([Diagnostic("gemmgen explain", "unknown-rule", message)])
    return known[name]


def _rules() -> list[tuple[str, Any]]:
    """Return the rules of every family with its generation of GPUs, and those of what a target has."""
    from gemmgen.hardware import GPUS
    from gemmgen.plan.choices import CHOICE_RULES
    from gemmgen.plan.planner import FAMILIES

    generations = {gpu.architecture.mma: gpu.architecture.generation for gpu in GPUS.values()}
    of_families = [(generations[mma], rule) for mma, family in FAMILIES.items() for rule in family.rules]
    return [*of_families, *(("Any GPU", rule) for rule in CHOICE_RULES)]


def _shipped(name: str, source: str) -> Path:
    """Return where a file is: inside an installed package, or beside it in a checkout."""
    package = Path(gemmgen.__file__).parent
    installed = package / name
    return installed if installed.exists() else package.parent / source


# --- running a stage on several specs


def each(
    paths: Iterable[S],
    action: Callable[[S], T],
    progress: Callable[[str], None] | None = None,
    *,
    parallel: bool = False,
) -> tuple[list[T], bool]:
    """Run an action on each path, in order, past what is rejected; return results, and whether any failed."""

    def attempt(path: S) -> T | GemmgenError:
        if progress:
            progress(str(path))
        try:
            return action(path)
        except GemmgenError as error:
            return error

    pool = ThreadPoolExecutor(os.cpu_count() if parallel else 1)
    try:
        attempts = [pool.submit(attempt, path) for path in paths]
        while wait(attempts, WAKING_SECONDS).not_done:
            pass
        outcomes = [done.result() for done in attempts]
    finally:
        # An interrupt does not wait for the threads, whose work can take minutes: the process ends with them.
        pool.shutdown(wait=False, cancel_futures=True)
    results: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, GemmgenError):
            complain(outcome)
        else:
            results.append(outcome)
    return results, len(results) < len(outcomes)


@contextmanager
def progressing(what: str) -> Generator[Callable[[str], None]]:
    """Give a function that tells on stderr what is being done; a spinner where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: tell(f"{what} {step}")
        return
    try:
        with console.status(Text(what)) as status:
            yield lambda step: status.update(Text(visible(f"{what} {step}")))  # no markup
    finally:
        console.show_cursor()  # an interrupt can come before the status is there to do it


@contextmanager
def tuning_progress() -> Generator[Callable[[Tick], None]]:
    """Give a function that shows how far tuning is: a bar with the time left, or lines without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told: set[tuple[str, str]] = set()

        def tell_once(tick: Tick) -> None:
            text = tick.text.partition(",")[0]
            if (tick.subject, text) not in told:  # not every trial
                told.add((tick.subject, text))
                tell(f"tuning {tick.subject}, {tick.number} of {tick.count}: {text}")

        yield tell_once
        return
    left = TimeRemainingColumn(compact=True)
    what = TextColumn("{task.description}", markup=False)
    with Progress(what, BarColumn(), TaskProgressColumn(), left, console=console) as shown:
        bar = shown.add_task("tuning", total=None)

        def show(tick: Tick) -> None:
            done = (tick.number - 1) * tick.budget + min(tick.spent, tick.budget)
            shown.update(
                bar,
                total=tick.count * tick.budget,
                completed=done,
                description=visible(f"{tick.subject}, {tick.number} of {tick.count}: {tick.text}"),
            )

        yield show


_States = dict[Path, tuple[int, int] | None]
"""Of each watched file, the nanosecond of its last change and its bytes; None of one that is not there."""

LOOKING_SECONDS = 0.3
"""How often a watched file is looked at."""


def watch(files: Callable[[], Sequence[Path]], command: Callable[[], None]) -> NoReturn:
    """Run a command now, and again each time that one of the files has changed; until it is interrupted."""
    if _RUN.as_json or _RUN.sarif or Path("-") in files():
        message = "goes with files and text: leave out --json, --sarif and `-`"
        raise typer.BadParameter(message, param_hint="--watch")
    while True:
        before = _states(files())
        with suppress(typer.Exit):
            _ended(lambda: _nothing(command))
        sys.stdout.flush()
        count = len(before)
        tell(f"watching {count} {'spec' if count == 1 else 'specs'}")
        _until_saved(files, before)


def _until_saved(files: Callable[[], Sequence[Path]], before: _States) -> None:
    """Return once the files differ from before and two looks agree: who saves a file empties it first."""
    last = before
    while (now := _states(files())) == before or now != last:
        last = now
        time.sleep(LOOKING_SECONDS)


def _nothing(command: Callable[[], None]) -> int:
    command()
    return 0


def _states(files: Sequence[Path]) -> _States:
    """Return what changes when a file is written; None of one that is not there."""

    def state(path: Path) -> tuple[int, int] | None:
        try:
            status = path.stat()
        except (OSError, ValueError):
            return None
        return status.st_mtime_ns, status.st_size

    return {path: state(path) for path in files}
