"""Kernels that nobody here wrote, with their own tests: right numbers, and no finding that is not a fault.

benchmarks/studies/foreign_kernels.md says what each of the findings is. All cases: `python tests/foreign.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from foreign import TARGETS, VARIABLE, Case, Outcome, cases, folder, imported, outcome
from mutants.mutant import SCHEDULES, changed
from mutants.symptom import Told
from mutants.tutorials import MUTANTS, TutorialMutant

from gemmgen.hardware import BLACKWELL, HOPPER, Architecture

pytestmark = pytest.mark.skipif(
    folder() is None, reason=f"{VARIABLE} does not name the folder of other people's kernels"
)

FILES = (
    "01-intro.py",
    "02-layouts.py",
    "04-tma.py",
    "05-wgmma.py",
    "06-tcgen05.py",
    "07-persistence.py",
    "08-warp-specialization.py",
    "11-tcgen05-mma-scaled.py",
    "example-04-2cta-block-scale-matmul.py",
)
CASES_PER_TEST = 2


@dataclass(frozen=True)
class Fault:
    """A fault of a foreign kernel: where it shows, and what repairs it."""

    file: str
    test: str
    findings: frozenset[tuple[str, str]]
    """Kind and name of each finding that it makes, in one case or another."""
    repair: tuple[tuple[str, str], ...]
    case: str
    """A part of the parameters of a case that shows it."""
    schedules: tuple[str, ...] = ("lazy",)


FAULTS = {
    "a prologue beyond the last tile": Fault(
        "07-persistence.py",
        "test_persistent_matmul_pipelined",
        frozenset(
            {
                ("work-in-flight", "a_bufs"),
                ("work-in-flight", "b_bufs"),
                ("undefined-value", "pid_m"),
                ("undefined-value", "pid_n"),
            }
        ),
        (
            (
                "STEALB,\n                                      num_buffers)\n\n        mma = mma",
                "STEALB,\n                                      num_buffers, pred)\n\n        mma = mma",
            ),
        ),
        "208-416-304-64-64-64-3-4-GroupedPersistentTileScheduler(1)",
    ),
    "the other accumulator is released": Fault(
        "08-warp-specialization.py",
        "test_matmul_warp_specialized",
        frozenset({("early-arrival", "acc_empty_bars"), ("deadlock", "acc_empty_bars")}),
        (
            (
                "acc_state = acc_state.next()\n\n        accs =",
                "read = acc_state.index\n        acc_state = acc_state.next()\n\n        accs =",
            ),
            ("arrive(acc_empty_bars.index(acc_state.index)", "arrive(acc_empty_bars.index(read)"),
        ),
        "208-416-304-128-256-64-2-4-4-PersistentTileScheduler",
        ("eager",),
    ),
    "copies without the predicate": Fault(
        "11-tcgen05-mma-scaled.py",
        "test_mma_scaled_pipelined",
        frozenset(
            {
                ("work-in-flight", "a_scale_tmem"),
                ("read-after-write", "a_scale_bufs"),
                ("read-after-write", "b_scale_bufs"),
                ("uninitialised-read", "a_scale_bufs"),
                ("uninitialised-read", "b_scale_bufs"),
            }
        ),
        (
            (
                "\n    tcgen05_copy(a_scale, a_scale_tmem)\n    tcgen05_copy(b_scale",
                "\n    if pred:\n        tcgen05_copy(a_scale, a_scale_tmem)\n        tcgen05_copy(b_scale",
            ),
        ),
        "pipelined_kernel",
    ),
    "scales loaded again without a fence": Fault(
        "11-tcgen05-mma-scaled.py",
        "test_mma_scaled_packed_block",
        frozenset({("missing-fence", "a_scale_smem"), ("missing-fence", "b_scale_smem")}),
        (
            (
                "b_scale = b_scale_smem.load(gl.AutoLayout())\n",
                "b_scale = b_scale_smem.load(gl.AutoLayout())\n        fence_async_shared()\n",
            ),
        ),
        "",
    ),
    "a tile stored without a fence": Fault(
        "example-04-2cta-block-scale-matmul.py",
        "test_mma_scaled_warp_specialized",
        frozenset({("missing-fence", "acc_smems")}),
        (
            ("    mbarrier,\n    tma,\n)", "    mbarrier,\n    tma,\n    fence_async_shared,\n)"),
            (
                "acc_smem.store(acc)\n",
                "acc_smem.store(acc)\n            fence_async_shared()\n",
            ),
        ),
        "",
    ),
}


def known(case: Case) -> set[tuple[str, str]]:
    """Return the findings that the faults of a case's kernel make."""
    file, test = f"{case.module.__name__}.py", case.function.__name__
    faults = [fault for fault in FAULTS.values() if (fault.file, fault.test) == (file, test)]
    return {finding for fault in faults for finding in fault.findings}


@contextmanager
def opened(name: str, target: Architecture, directory: Path | None = None) -> Generator[ModuleType]:
    where = directory or folder()
    assert where
    with imported(where / name, target) as module:
        yield module


@pytest.mark.parametrize(
    ("file", "target"),
    [(file, target) for file in FILES for target in TARGETS.get(file, (HOPPER,))],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_foreign_kernels_are_right_and_only_their_faults_are_found(file: str, target: Architecture) -> None:
    with opened(file, target) as module:
        chosen = cases(module, target, CASES_PER_TEST)
        assert chosen
        for case in chosen:
            result = outcome(case, ("lazy", "random"))
            if result.status == "refused":
                # Triton 3.9 does not let a view grow beyond what it is of.
                assert "exceeds the source view" in result.text, (str(case), result.text)
                continue
            assert result.status in ("clean", "findings", "skipped"), (str(case), result.text)
            named = {(finding.kind.value, finding.name) for finding in result.findings}
            assert named <= known(case), (str(case), [*map(str, result.findings)])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_gone_when_it_is_repaired(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    where = folder()
    assert where
    for path in where.glob("*.py"):
        shutil.copyfile(path, tmp_path / path.name)
    text = (where / fault.file).read_text(encoding="utf-8")
    (tmp_path / fault.file).write_text(changed(text, fault.repair, fault.file), encoding="utf-8")
    target = TARGETS.get(fault.file, (HOPPER,))[0] if "08" not in fault.file else BLACKWELL
    with opened(fault.file, target) as module:
        before = outcome(shown(module, target, fault), fault.schedules)
    with opened(fault.file, target, tmp_path) as module:
        after = outcome(shown(module, target, fault), fault.schedules)
    assert (before.status, after.status) == ("findings", "clean"), (before.text, after)
    assert {(finding.kind.value, finding.name) for finding in before.findings} <= fault.findings


def test_an_arrival_before_the_accumulator_was_read_is_told_before_the_deadlock() -> None:
    fault = FAULTS["the other accumulator is released"]
    with opened(fault.file, BLACKWELL) as module:
        first = outcome(shown(module, BLACKWELL, fault), ("lazy", "eager")).findings[0]
    assert (first.kind.value, first.name) == ("early-arrival", "acc_empty_bars")
    assert "mbarrier.arrive(acc_empty_bars.index(acc_state.index)" in first.snippet


def shown(module: ModuleType, target: Architecture, fault: Fault) -> Case:
    """Return the first case that shows a fault."""
    return next(
        case
        for case in cases(module, target, None if fault.case else 1)
        if case.function.__name__ == fault.test and fault.case in str(case)
    )


CONSEQUENCE_FIRST: set[str] = set()
"""Mutants of which something else is told before the root cause."""
RANDOM_SCHEDULES = int(os.environ.get("GEMMGEN_CLEAN_SCHEDULES", "2"))
"""Under which the kernels run as they are; a hundred take minutes of a core."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    told = [Told.by(finding) for finding in run(mutant, tmp_path, mutant.made_in, SCHEDULES).findings]
    assert any(map(mutant.symptom.is_named, told)), told
    assert mutant.symptom.is_cause(told[0]) == (name not in CONSEQUENCE_FIRST), told


def test_the_root_cause_comes_first_of_nearly_all() -> None:
    """What a root cause is: `mutants.symptom`."""
    assert len(MUTANTS) >= 20
    assert set(MUTANTS) >= CONSEQUENCE_FIRST
    assert len(CONSEQUENCE_FIRST) <= 0.05 * len(MUTANTS)


@pytest.mark.parametrize("name", {mutant.where: name for name, mutant in MUTANTS.items()}.values())
def test_the_kernel_as_it_is_is_clean_under_many_schedules(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    result = run(mutant, tmp_path, mutant.repaired, ("random",) * RANDOM_SCHEDULES)
    assert (result.status, result.findings) == ("clean", ())


def run(
    mutant: TutorialMutant, directory: Path, made: Callable[[str], str], schedules: Sequence[str]
) -> Outcome:
    """Run a mutant's case in a folder of its own, its file's text made into another."""
    where = folder()
    assert where
    for path in where.glob("*.py"):
        shutil.copyfile(path, directory / path.name)
    text = (where / mutant.file).read_text(encoding="utf-8")
    (directory / mutant.file).write_text(made(text), encoding="utf-8")
    with opened(mutant.file, mutant.target, directory) as module:
        case = next(
            case
            for case in cases(module, mutant.target)
            if case.function.__name__ == mutant.test and mutant.case in str(case)
        )
        return outcome(case, schedules, limit_s=600)
