"""Other people's kernels with their own tests, run unchanged on a machine without a GPU.

A test function is called with what it is parametrised with; its launches are simulated, ``device="cuda"`` is
the CPU, and the device that it asks for is a Hopper or a Blackwell one. Sizes are cut where a test takes only
a benchmark's: `SMALLER` says to what, and a ragged size stays one.

    python tests/foreign.py 05-wgmma.py --per-test 4
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gemmgen.errors import GemmgenError
from gemmgen.hardware import BLACKWELL, GPUS, HOPPER, Architecture
from gluonsim import Finding, Kind, Result
from gluonsim.policies import DEFAULT_SCHEDULES
from gluonsim.programs.pretended import pretended

VARIABLE = "GEMMGEN_FOREIGN_DIR"
"""Names the folder of the files; they are not part of this repository."""

TARGETS = {
    "05-wgmma.py": (HOPPER,),
    "06-tcgen05.py": (BLACKWELL,),
    "07-persistence.py": (HOPPER, BLACKWELL),
    "08-warp-specialization.py": (HOPPER, BLACKWELL),
    "11-tcgen05-mma-scaled.py": (BLACKWELL,),
    "example-04-2cta-block-scale-matmul.py": (BLACKWELL,),
}
"""What the tests of a file ask for; a Hopper one by default."""

SMALLER = {"M": {2000: 272, 2048: 256, 8192: 768}, "N": {1000: 400, 2048: 512, 8192: 768}}
SMALLER["K"] = {2000: 464, 4096: 1536}
SMALLER["xnumel"] = {1000: 200, 4000: 200}
SMALLER["ynumel"] = {2000: 332}
"""What a parameter is cut to, by its name and value."""

SMS = 2
"""Few, so that a persistent program computes several tiles."""


@dataclass(frozen=True)
class Case:
    """One call of a test function."""

    module: ModuleType
    function: Callable[..., None]
    parameters: Mapping[str, Any]
    target: Architecture

    def __str__(self) -> str:
        values = "-".join(_word(value) for value in self.parameters.values())
        major = self.target.compute_capability // 10
        return f"{self.module.__name__}::{self.function.__name__}[sm{major}0-{values}]"


def _word(value: Any) -> str:
    return str(getattr(value, "__name__", value))


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    status: str
    """clean, findings, wrong, refused, skipped, timeout or error."""
    text: str
    findings: tuple[Finding, ...]


def as_on(
    target: Architecture, schedules: Sequence[str] = (), tell: Callable[[Result], None] = lambda _: None
) -> AbstractContextManager[None]:
    """Let programs find a small GPU of an architecture, on which launches are simulated."""
    product = next(gpu for gpu in GPUS.values() if gpu.architecture == target)
    return pretended(replace(product, sm_count=SMS), tell, tuple(schedules))


def folder() -> Path | None:
    """Return the folder of the files; None where the environment names none."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


@contextmanager
def imported(path: Path, target: Architecture) -> Generator[ModuleType]:
    """Import a file, and those beside it that it imports, as on a device."""
    before = set(sys.modules)
    sys.path.insert(0, str(path.parent))
    sys.modules["03-async-copy"] = ModuleType("03-async-copy")  # benchmarks compare with it
    try:
        with as_on(target):
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec
            assert spec.loader
            module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(path.parent))
        for name in set(sys.modules) - before:
            if getattr(sys.modules[name], "__file__", None) in (None, *map(str, path.parent.glob("*.py"))):
                del sys.modules[name]


def cases(module: ModuleType, target: Architecture, per_test: int | None = None) -> list[Case]:
    """Return every case of a file's tests, or some of each test: with every value of every parameter at
    least once, as far as they go."""
    found: list[Case] = []
    for name, function in list(vars(module).items()):
        if not name.startswith("test_") or function.__module__ != module.__name__:
            continue
        marks = getattr(function, "pytestmark", [])
        if any(mark.name == "skipif" and mark.args[0] for mark in marks):
            continue
        axes: list[list[dict[str, Any]]] = []
        for mark in reversed(marks):
            if mark.name == "parametrize":
                names = [part.strip() for part in mark.args[0].split(",")]
                rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
                axes.append([dict(zip(names, row, strict=True)) for row in rows])
        chosen = [_merged(parts) for parts in itertools.product(*axes)]
        unique = {str(Case(module, function, values, target)): values for values in map(_smaller, chosen)}
        kept = list(unique.values())
        if per_test is not None:
            kept = _some(kept, per_test)
        found += [Case(module, function, values, target) for values in kept]
    return found


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _smaller(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: SMALLER.get(name, {}).get(value, value) if isinstance(value, int) else value
            for name, value in values.items()}  # fmt: skip


def _some(all_: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    left = list(all_)
    random.Random(0).shuffle(left)
    seen: Counter[str] = Counter()
    kept: list[dict[str, Any]] = []
    while left and len(kept) < count:
        best = min(left, key=lambda values: sum(seen[f"{k}={_word(v)}"] for k, v in values.items()))
        left.remove(best)
        kept.append(best)
        seen.update(f"{k}={_word(v)}" for k, v in best.items())
    return kept


class _TimeoutError(BaseException):
    pass


def outcome(case: Case, schedules: Sequence[str] = DEFAULT_SCHEDULES, limit_s: int = 60) -> Outcome:
    """Run one case."""

    def interrupt(*_: Any) -> None:
        raise _TimeoutError

    found: list[Finding] = []
    status, text = "clean", ""
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(limit_s)
    try:
        with as_on(case.target, schedules, lambda result: found.extend(result.findings)):
            case.function(**case.parameters)
        status = "findings" if found else "clean"
    except pytest.skip.Exception as error:
        status, text = "skipped", str(error)
    except AssertionError as error:
        text = str(error)
        status = "wrong" if "are not" in text else "error"  # assert_close's word
        if any(finding.kind in (Kind.DEADLOCK, Kind.LIVELOCK) for finding in found):
            status = "findings"  # what a kernel that does not end leaves behind is no result
    except GemmgenError as error:
        status, text = "refused", str(error)
    except _TimeoutError:
        status, text = "timeout", f"more than {limit_s} s"
    except Exception as error:  # the table says what it was
        status, text = "error", f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return Outcome(status, text, tuple(found))


def main() -> None:
    """Run the files that are named and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--per-test", type=int)
    parser.add_argument("--schedules", default=",".join(DEFAULT_SCHEDULES))
    parser.add_argument("-k", default="")
    given = parser.parse_args()
    where = folder()
    if where is None:
        raise SystemExit(f"set {VARIABLE}")
    table: dict[str, Counter[str]] = {}
    for name in given.files or sorted(path.name for path in where.glob("*.py")):
        for target in TARGETS.get(name, (HOPPER,)):
            with imported(where / name, target) as module:
                for case in cases(module, target, given.per_test):
                    if given.k not in str(case):
                        continue
                    result = outcome(case, given.schedules.split(","))
                    table.setdefault(name, Counter())[result.status] += 1
                    lines = [f"{result.status:9}{case}"]
                    if result.text:
                        lines.append("    " + " | ".join(result.text.strip().splitlines()[:6])[:300])
                    lines += [f"    {text[:400]}" for text in dict.fromkeys(map(str, result.findings))]
                    sys.stdout.write("\n".join(lines) + "\n")
                    sys.stdout.flush()
    for name, counts in table.items():
        sys.stdout.write(f"{name} {dict(counts)}\n")


if __name__ == "__main__":
    main()
