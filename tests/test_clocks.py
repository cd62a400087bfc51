"""No test depends on how fast the machine is: it reads a clock only to give up waiting."""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CLOCKS = frozenset(
    name + suffix
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
    for suffix in ("", "_ns")
)
OTHERS = {"timeit": {"timeit", "repeat"}, "resource": {"getrusage"}, "os": {"times"}}
"""Functions of other modules that return times."""
MEASURES = Path("consan", "device.py")
"""The program that divides the time of a GPU among cases, and ends a case at its limit."""
IN_TEXT = re.compile(r"\b(?:perf_counter|process_time|thread_time|monotonic|timeit|getrusage)(?:_ns)?\(")
"""A read of a clock in a program that a test runs from its text."""


def reads_of_clocks(source: str) -> Iterator[int]:
    """Yield the line of each read of a clock that is not for waiting.

    For waiting are the two reads of ``end = time.monotonic() + seconds`` and, in a ``while`` statement of the
    same function, of ``time.monotonic() < end``.
    """
    tree = ast.parse(source)
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in OTHERS.get(node.module or "", CLOCKS if node.module == "time" else set[str]())
    }
    allowed = {
        read
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for read in _for_waiting(function)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call() if node not in allowed and _reads(node, names):
                yield node.lineno
            case ast.Constant(value=str(text)) if IN_TEXT.search(text):
                yield node.lineno
            case _:
                pass


def _reads(call: ast.Call, names: set[str]) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr=function):
            return function in (CLOCKS if module == "time" else OTHERS.get(module, set[str]()))
        case ast.Name(id=function):
            return function in names
        case _:
            return False


def _for_waiting(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the reads in a function that set the end of a wait, or look whether it has come."""
    ends: set[str] = set()
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(left=read, op=ast.Add())):
                if _is_monotonic(read):
                    ends.add(name)
                    yield read
            case _:
                pass
    for loop in ast.walk(function):
        for node in ast.walk(loop) if isinstance(loop, ast.While) else ():
            match node:
                case ast.Compare(left=read, ops=[ast.Lt()], comparators=[ast.Name(id=name)]):
                    if _is_monotonic(read) and name in ends:
                        yield read
                case _:
                    pass


def _is_monotonic(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="monotonic")):
            return True
        case _:
            return False


@pytest.mark.check
def test_no_test_reads_a_clock_except_to_give_up_waiting() -> None:
    """Times are figures of benchmarks/harness/planning.py; a test counts work (`work.calls_of`)."""
    files = {*TESTS.rglob("*.py")} - {Path(__file__), TESTS / MEASURES}
    assert len(files) > 150
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in files
        for line in reads_of_clocks(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "start = time.perf_counter()",
        "assert time.process_time() < 5",
        "since = time.time()",
        "name = time.monotonic_ns()",
        "begin = time.monotonic()",
        "from time import perf_counter as now\nnow()",
        "from timeit import timeit\ntimeit(work)",
        "seconds = timeit.timeit(work)",
        "resource.getrusage(resource.RUSAGE_SELF)",
        "program = 'import time; start = time.process_time()'",
        "def f():\n    end = time.monotonic() + 5\n    work()\n    assert time.monotonic() < end",
        "def f():\n    while True:\n        assert time.monotonic() < 5",
        "def f():\n    while work():\n        assert time.monotonic() - begin < 5",
    ],
)
def test_a_read_of_a_clock_is_found(source: str) -> None:
    assert [*reads_of_clocks(source)]


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    end = time.monotonic() + 5\n    while time.monotonic() < end:\n        work()",
        "def f():\n    end = time.monotonic() + 5\n    while work():\n        assert time.monotonic() < end",
        "time.sleep(5)",
        "monkeypatch.setattr('gluonsim.progress.perf_counter', now)",
        "process.wait(timeout=5)",
    ],
)
def test_waiting_is_allowed(source: str) -> None:
    assert [*reads_of_clocks(source)] == []


def test_the_pages_have_the_times_of_the_record() -> None:
    record = json.loads((ROOT / "benchmarks/reading/planning.json").read_text(encoding="utf-8"))
    samples: dict[str, list[float]] = record["processor_seconds"]
    medians = {name: statistics.median(found) for name, found in samples.items()}
    stated, opened = (
        f"{1e3 * medians[f'plan {which}']:.0f} ms" for which in ("a stated spec", "an open spec for h100")
    )
    legal, refused = (
        f"{medians[f'search 10,000 combinations, {which}']:.1f} s" for which in ("legal", "all refused")
    )
    invalid = samples["refuse each invalid spec"]
    planner, study = (
        " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for page in ("docs/planner.md", "benchmarks/studies/random_specs.md")
    )
    assert f"takes {stated} of processor time, an open spec for Hopper {opened}, and a search" in planner
    assert f"10,000 combinations {legal}, on shared cores" in planner
    assert f"takes {stated} of processor time once modules are loaded" in study
    assert f"10,000 combinations takes {legal}, or {refused} if none of them is legal." in study
    middle = f"{1e3 * statistics.median(invalid):.0f} ms"
    assert f"are refused in {middle} at the median and {max(invalid):.1f} s at most" in study
