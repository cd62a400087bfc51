"""The simulator's verdicts and numbers against those of a GPU: measured by hand, recorded, tabulated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from consan.agreement import (
    AT_A_TIME,
    BY_DESIGN,
    CLEAN,
    DIFFERENCES,
    DOCUMENT,
    RECORD,
    Entry,
    Numbers,
    document,
    observe,
    observe_numbers,
    read,
    written,
)
from consan.case import CASES, UNMUTATED
from modules import spec_file

from gemmgen.device import require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.hardware import HOPPER
from gemmgen.numerics.inputs import is_exact
from gemmgen.numerics.reference import tolerance
from gemmgen.spec import load_spec

MESSAGES = {
    # The producer no longer waits for a stage to be empty.
    "no_empty_wait_overflows": "Buffer being accessed has outstanding",
    # A consumer no longer waits for a sub-tile to be stored before it overwrites it.
    "no_store_wait": "Accessing buffer with pending access. Pending access type: async_copy_shared_to_global",
    "missing_arrive": "Deadlock detected while waiting on an mbarrier",
    "barrier_not_initialised": "Barrier used before initialization",
}


def test_what_is_recorded_is_still_a_case() -> None:
    record = read()  # a newer module or mutant may wait for a GPU: the document names it
    recorded = [entry.name for entry in record.entries]
    assert recorded == [name for name in CASES if name in recorded]
    assert [numbers.module for numbers in record.numbers] == [name for name in recorded if name in UNMUTATED]
    assert RECORD.read_text(encoding="utf-8") == written(record)


def test_the_recorded_simulator_named_what_it_names_now() -> None:
    for entry in read().entries:
        planted = CASES[entry.name].planted  # test_simulate_mutants asserts that it is found
        assert set(entry.findings[:1]) <= planted
        assert bool(entry.findings) == bool(planted)
        assert entry.fault == (bool(planted) and entry.name not in BY_DESIGN)


def test_every_recorded_difference_has_a_reason() -> None:
    differing = {entry.name for entry in read().entries if not entry.agrees}
    assert differing == DIFFERENCES.keys()
    assert DIFFERENCES.keys().isdisjoint(UNMUTATED)
    assert set(BY_DESIGN) <= set(CASES)


def test_the_verdicts_of_twelve_mutants_agree() -> None:
    agreeing = [entry.name for entry in read().entries if entry.agrees]
    mutants = [name for name in agreeing if name not in UNMUTATED]
    assert len(mutants) >= 12


def test_the_recorded_numbers_are_the_simulators() -> None:
    for numbers in read().numbers:
        check(numbers)


def test_the_document_is_what_the_record_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(read())


def check(numbers: Numbers) -> None:
    """Compare bits on integers, unless the epilogue leaves them; on normals, hold the rest to `tolerance`.

    For one element to eight times that: both results are rounded to D's type, and it may be a large one.
    """
    path = spec_file(numbers.module)
    spec = load_spec(path).spec
    m, n, k = numbers.shape
    allowed = tolerance(spec, (m, n, k))
    assert numbers.different_bits == 0 or not is_exact(spec)
    assert numbers.relative <= allowed.relative
    assert numbers.worst_element <= 8 * allowed.relative


@pytest.fixture(scope="module")
def observed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Entry]]:
    """Observe each case once: some at a time, or, where pytest runs several workers, each on demand."""
    skip_without_hopper()
    started: dict[str, Future[Entry]] = {}
    with ThreadPoolExecutor(AT_A_TIME) as pool:

        def start(name: str) -> Future[Entry]:
            if name not in started:
                started[name] = pool.submit(observe, name, tmp_path_factory.mktemp(name))
            return started[name]

        if "PYTEST_XDIST_WORKER" not in os.environ:
            for item in cast(list[Any], request.session.items):
                if "observed" in getattr(item, "fixturenames", ()):
                    start(item.callspec.params["name"])
        yield lambda name: start(name).result()
        pool.shutdown(cancel_futures=True)


def skip_without_hopper() -> None:
    try:
        require_gpu(HOPPER)
    except GemmgenError as error:
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_consan_agrees_with_the_simulator(observed: Callable[[str], Entry], name: str) -> None:
    entry = observed(name)
    assert entry.agrees or name in DIFFERENCES, entry
    assert name not in UNMUTATED or (entry.consan, entry.bare) == (CLEAN, CLEAN), entry


@pytest.mark.gpu
@pytest.mark.parametrize("name", MESSAGES)
def test_consan_names_a_planted_fault(observed: Callable[[str], Entry], name: str) -> None:
    assert MESSAGES[name] in observed(name).consan


@pytest.mark.gpu
@pytest.mark.parametrize("name", UNMUTATED)
def test_the_simulators_numbers_are_the_hardwares(name: str, tmp_path: Path) -> None:
    skip_without_hopper()
    check(observe_numbers(name, tmp_path))
