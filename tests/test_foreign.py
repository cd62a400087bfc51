"""Kernels that nobody here wrote, with their own tests: right numbers, and no finding that is not a fault.

docs/foreign.md says what each of the findings is. All cases: `python tests/foreign.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from foreign import TARGETS, VARIABLE, Case, cases, folder, imported, outcome
from mutants.mutant import changed

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
        frozenset({("deadlock", "acc_empty_bars")}),
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


def shown(module: ModuleType, target: Architecture, fault: Fault) -> Case:
    """Return the first case that shows a fault."""
    return next(
        case
        for case in cases(module, target, None if fault.case else 1)
        if case.function.__name__ == fault.test and fault.case in str(case)
    )
