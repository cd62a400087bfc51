"""Which tests each of `make test`, `make check` and `make nightly` runs, as `pytest --speed` names them.

* **test**: tests marked ``quick``. They need no compiler: values, rules, plans, rendered text, the launcher.
* **check**: those, and the tests without a mark, which compile, simulate or start processes. A test that goes
  over many committed modules runs there for the modules of ``tests/cover.json``, which together have every
  line of every template, and for every module that is not as ``tests/records/verified.json`` has it. Of many
  planted faults one of each kind runs, and the others (marked ``represented``) if their module is not as it
  was. Of the cases of a test marked ``sample`` so many run, evenly spaced, and each whose module is not as it
  was: what they compile or simulate is alike. The simulator's own tests (marked ``simulator``) run if it is
  not as it was, or they are not.
* **nightly**: all of them, also those marked ``nightly``.

The mark that is nearest to a test counts: a function's, then its file's.

``tests/records/verified.json`` has the digests of each module with its plan, of the simulator and of its own
tests, and the version of the compiler, with all of which these tests passed. Equal bytes under an equal
compiler and an equal simulator have the same verdicts again. A run with ``--record-verified`` that ends
without a failure writes the file.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from modules import COMMITTED, ROOT, file_of

from gemmgen.launcher_file import launcher_texts
from tools.rendered import PAIRS

SPEEDS = ("test", "check", "nightly")
MARKS = {"quick": "test", "check": "check", "nightly": "nightly"}
"""The first run that has a test, by the mark of the test."""
COMPILING = frozenset({"lowered", "sass", "kernels", "compiled"})
"""Fixtures that call the compiler."""
MANY = 20
"""A test of so many modules or more is about all of them; one of fewer is about those that it names."""
VERIFIED = ROOT / "tests" / "records" / "verified.json"
JUDGES = ("gluonsim", "gemmgen/verify", "gemmgen/numerics")
"""Folders of the programs that judge modules: the simulator, its launches and the references."""


def speed_of(item: pytest.Item) -> str:
    """Return the first run that has a test."""
    marks = [mark.name for mark in item.iter_markers() if mark.name in MARKS]
    if not COMPILING.isdisjoint(getattr(item, "fixturenames", ())):
        marks = [name for name in marks if name != "quick"]
    return MARKS[marks[0]] if marks else "check"


def select(items: Iterable[pytest.Item], speed: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests that a run has, and those that it leaves out."""
    chosen: list[pytest.Item] = []
    left: list[pytest.Item] = []
    of_many = _modules_of_tests(items)
    sampled = _sampled(items)
    for item in items:
        first = speed_of(item)
        due = SPEEDS.index(first) <= SPEEDS.index(speed)
        if due and speed == first == "check":
            if stem := of_many.get(item.nodeid):
                due = stem in cover() or stem in changed_modules()
            if represented := item.get_closest_marker("represented"):
                due = represented.args[0] in changed_modules() or not judged_as_verified()
            if item.get_closest_marker("simulator"):
                due = not simulator_as_verified()
            if item.get_closest_marker("sample"):
                due = item in sampled or any(stem in changed_modules() for stem in module_names(item))
        (chosen if due else left).append(item)
    return chosen, left


def _sampled(items: Iterable[pytest.Item]) -> frozenset[pytest.Item]:
    """Return as many cases of each test as its mark says, evenly spaced among all of them."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            cases[item.nodeid.partition("[")[0]].append(item)
    return frozenset(case for found in cases.values() for case in _evenly(found, _sample_size(found[0])))


def _sample_size(item: pytest.Item) -> int:
    mark = item.get_closest_marker("sample")
    assert mark is not None
    return mark.args[0]


def _evenly(cases: Sequence[pytest.Item], count: int) -> list[pytest.Item]:
    return [cases[i * len(cases) // count] for i in range(min(count, len(cases)))]


def _modules_of_tests(items: Iterable[pytest.Item]) -> Mapping[str, str]:
    """Return the module that a test is about, by its ID, for tests that go over many."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for item in items:
        for stem in module_names(item):
            found[item.nodeid.partition("[")[0]][item.nodeid] = stem
    return {
        node: stem
        for stems in found.values()
        if len(set(stems.values())) >= MANY
        for node, stem in stems.items()
    }


def module_names(item: pytest.Item) -> Iterator[str]:
    """Yield the names of the committed modules among the parameters of a test."""
    callspec: Any = getattr(item, "callspec", None)
    for value in callspec.params.values() if callspec else ():
        stem = value.stem if isinstance(value, Path) else value
        if isinstance(stem, str) and file_of(stem) and (stem == value or file_of(stem) == value):
            yield stem


@cache
def cover() -> frozenset[str]:
    """Return the modules that stand for all others."""
    return frozenset(json.loads((ROOT / "tests" / "cover.json").read_text(encoding="utf-8")))


@cache
def changed_modules() -> frozenset[str]:
    """Return the modules that are not as they were verified, or all if what judges them is another."""
    digests = module_digests()
    verified: dict[str, str] = _verified()["modules"] if judged_as_verified() else {}
    return frozenset(stem for stem, digest in digests.items() if verified.get(stem) != digest)


def judged_as_verified() -> bool:
    """Return True if what judges modules is what judged them when they were verified."""
    return _verified().get("judges") == judges()


@cache
def simulator_as_verified() -> bool:
    """Return True if the simulator and its own tests are those that passed."""
    return judged_as_verified() and _verified().get("simulator_tests") == simulator_tests()


@cache
def _verified() -> dict[str, Any]:
    return json.loads(VERIFIED.read_text(encoding="utf-8")) if VERIFIED.exists() else {}


def module_digests() -> dict[str, str]:
    """Return the digest of each module with its manifest, which has its plan: that of its files' digests."""
    texts: dict[str, str] = json.loads(PAIRS.digests.read_text(encoding="utf-8"))
    texts |= {path.name: sha256(path.read_bytes()).hexdigest() for path in COMMITTED.glob("*.*")}
    modules = (name.removesuffix(".py") for name in texts if name.endswith(".py"))
    return {
        stem: _digest(texts[f"{stem}.py"].encode(), texts[f"{stem}.json"].encode())
        for stem in modules
        if f"{stem}.json" in texts
    }


@cache
def judges() -> str:
    """Return the digest of the programs that judge modules, and of the compiler's version."""
    files = sorted(path for folder in JUDGES for path in (ROOT / folder).rglob("*.py"))
    launchers = (text.encode() for text in launcher_texts().values())
    compiler = json.loads((COMMITTED / "ptx.json").read_text(encoding="utf-8"))["triton"]
    return _digest(compiler.encode(), *launchers, *(_code(path).encode() for path in files))


@cache
def simulator_tests() -> str:
    """Return the digest of the simulator's own tests, with all that they can import of ``tests/``."""
    files = [path for path in (ROOT / "tests").glob("*.py") if not path.name.startswith("test_")]
    files += [path for folder in ("kernels", "mutants") for path in (ROOT / "tests" / folder).rglob("*.py")]
    files += [path for path in (ROOT / "tests").glob("test_*.py") if "mark.simulator" in path.read_text()]
    return _digest(*(_code(path).encode() for path in sorted(files)))


def _code(path: Path) -> str:
    """Return the code of a file of Python without comments and docstrings, which change no verdict."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [each for each in node.body if not _is_docstring(each)]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _digest(*parts: bytes) -> str:
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()


def record() -> None:
    """Write that all modules, as they are, have passed their tests."""
    table = {
        "judges": judges(),
        "simulator_tests": simulator_tests(),
        "modules": dict(sorted(module_digests().items())),
    }
    VERIFIED.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
