"""No test depends on how fast the machine is: it reads a clock only to give up waiting."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

TESTS = Path(__file__).parent
ROOT = TESTS.parent
MEASURES = Path("consan", "device.py")
"""The program that divides the time of a GPU among cases, and ends a case at its limit."""
CLOCK = re.compile(
    r"\b(?:(?:perf_counter|process_time|thread_time|monotonic|clock_gettime)(?:_ns)?|timeit)\("
)
OTHERS = re.compile(r"\b(?:time\.time(?:_ns)?|getrusage|os\.times)\(|\b(?:from|import) timeit\b")
WAITS = re.compile(r"\bend = time\.monotonic\(\) \+ |\b(?:while|assert) time\.monotonic\(\) < end\b")
"""The end of a wait is set, or looked for."""


def reads_a_clock(line: str) -> bool:
    """Return True if a line of a program or of a text reads a clock, and not to give up waiting."""
    return bool((CLOCK.search(line) or OTHERS.search(line)) and not WAITS.search(line))


@pytest.mark.check
def test_no_test_reads_a_clock_except_to_give_up_waiting() -> None:
    """Times are figures of benchmarks/harness/planning.py; a test counts work (`work.calls_of`)."""
    files = {*TESTS.rglob("*.py")} - {Path(__file__), TESTS / MEASURES}
    assert len(files) > 150
    found = {
        f"{path.relative_to(TESTS)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if reads_a_clock(line)
    }
    assert found == set()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("assert time.process_time() < 5", True),
        ("from timeit import timeit", True),
        ("resource.getrusage(resource.RUSAGE_SELF)", True),
        ("program = 'import time; start = time.perf_counter()'", True),
        ("assert time.monotonic() < 5", True),
        ("end = time.monotonic() + 5", False),
        ("while time.monotonic() < end:", False),
        ("monkeypatch.setattr('gluonsim.progress.perf_counter', now)", False),
    ],
)
def test_a_read_of_a_clock_is_found(line: str, found: bool) -> None:
    assert reads_a_clock(line) == found


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
    worst = f"{1e3 * statistics.median(invalid):.0f} ms", f"{max(invalid):.1f} s"
    assert all(figure in planner for figure in (stated, opened, legal))
    assert all(figure in study for figure in (stated, legal, refused, *worst))
