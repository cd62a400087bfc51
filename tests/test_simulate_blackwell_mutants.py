"""Faults planted in Blackwell kernels: the simulator names each by kind, variable and line."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from kernels.blackwell_launch import dense, paired, scaled
from kernels.launch import FIXED, lines_of
from mutants import one_of_each
from mutants.mutant import SCHEDULES
from mutants.symptom import Symptom, Told

from gluonsim import Kind

pytestmark = pytest.mark.simulator

KERNELS = Path(__file__).parent / "kernels" / "blackwell.py"
NOTHING = "pass  # removed"
ENOUGH = 30_000
"""Operations without progress, after which a run is ended: five programs take fewer in all."""

ACC_EMPTY_WAIT = "mbarrier.wait(acc_empty.index(slot), turn // ACCUMULATORS & 1 ^ 1)"
ACC_READY_WAIT = "mbarrier.wait(acc_ready.index(slot), turn // ACCUMULATORS & 1)"
LOAD_EMPTY_WAIT = "mbarrier.wait(load_empty.index(stage), load // STAGES & 1 ^ 1)"
LOAD_READY_WAIT = "mbarrier.wait(load_ready.index(stage), load // STAGES & 1)"
RELEASE = "        mbarrier.arrive(acc_empty.index(slot))\n"
ACCUMULATOR = "        accumulator = accumulators.index(slot)\n        for i in"
SUBTILE = "subtile = accumulator.slice("
DENSE_MMA = "tcgen05_mma(a_smem"
DENSE_COMMIT = "tcgen05_commit(load_empty.index(stage), descs=[a_smem.index(stage), b_smem.index(stage)])"
END_OF_DENSE_MMA = "\n\n@gluon.jit\ndef dense_epilogue_partition("
LAST_MMA = "tcgen05_mma(a_smem.index(0), b_smem.index(0).permute((1, 0)), accumulators.index(0))"
SCALED_MMA = "tcgen05_mma_scaled("
ACC_COMMIT = "        tcgen05_commit(acc_ready.index(slot))\n"
TRY_CANCEL = "clc.try_cancel("
CLC_READY_WAIT = "mbarrier.wait(clc_ready.index(slot), turn // CLC_STAGES & 1)"
CLC_EMPTY_WAIT = "mbarrier.wait(clc_empty.index(slot), turn // CLC_STAGES & 1 ^ 1)"
LOAD_B = "tma.async_load(b_desc, [column, k]"
NEXT_IN_MMA = (
    "        _, working = next_tile(clc_results, clc_ready, clc_empty, turn)\n"
    "        turn += 1\n\n\n@gluon.jit\ndef scaled_epilogue"
)
NEXT_UNSIGNALLED = (
    "        mbarrier.wait(clc_ready.index(turn % CLC_STAGES), turn // CLC_STAGES & 1)\n"
    "        working = clc.load_result(clc_results.index(turn % CLC_STAGES)).is_canceled()\n"
    "        turn += 1\n\n\n@gluon.jit\ndef scaled_epilogue"
)
ASK_ONCE = "_, working = next_tile(clc_results, clc_ready, clc_empty, turn)"
ASK_AGAIN = "        turn += 1\n\n\n@gluon.jit\ndef scaled_load_partition("


@dataclass(frozen=True)
class Mutant:
    """One fault: what is replaced, and what the simulator must say."""

    kernel: str
    """dense, shared (dense, two CTAs that share B), pairs (two of them), scaled."""
    changes: tuple[tuple[str, str], ...]
    kind: Kind
    name: str
    line: str
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def symptom(self) -> Symptom:
        """What the simulator must say."""
        return Symptom(self.kind, self.name, self.line, also=self.also)


K = Kind
MUTANTS = {
    # Dense.
    "no_accumulator_wait": Mutant(
        "dense", ((ACC_READY_WAIT, NOTHING),), K.UNINITIALISED_READ, "accumulators", SUBTILE
    ),
    "constant_accumulator_phase": Mutant(
        "dense",
        ((ACC_READY_WAIT, ACC_READY_WAIT.replace("turn // ACCUMULATORS & 1", "turn * 0")),),
        K.READ_AFTER_WRITE,
        "accumulators",
        SUBTILE,
    ),
    "accumulator_not_awaited_before_reuse": Mutant(
        "dense", ((ACC_EMPTY_WAIT, NOTHING),), K.WRITE_AFTER_READ, "accumulators", DENSE_MMA
    ),
    "accumulator_released_before_it_was_read": Mutant(
        "dense",
        ((RELEASE, ""), (ACCUMULATOR, RELEASE + ACCUMULATOR)),
        K.WRITE_AFTER_READ,
        "accumulators",
        DENSE_MMA,
    ),
    "accumulator_not_released": Mutant("dense", ((RELEASE, ""),), K.DEADLOCK, "acc_empty", ACC_EMPTY_WAIT),
    "accumulator_committed_too_early": Mutant(
        "dense",
        ((ACC_COMMIT, ""), ("        use_acc = False\n", f"        use_acc = False\n{ACC_COMMIT}")),
        K.UNINITIALISED_READ,
        "accumulators",
        SUBTILE,
    ),
    "stage_not_committed": Mutant(
        "dense", ((DENSE_COMMIT, NOTHING),), K.DEADLOCK, "load_empty", LOAD_EMPTY_WAIT
    ),
    "accumulator_not_committed": Mutant(
        "dense", ((ACC_COMMIT, ""),), K.DEADLOCK, "acc_ready", ACC_READY_WAIT
    ),
    "stage_committed_twice": Mutant(
        "dense",
        ((DENSE_COMMIT, f"{DENSE_COMMIT}\n            {DENSE_COMMIT}  # twice"),),
        K.WRITE_AFTER_WRITE,
        "a_smem|b_smem",
        "tma.async_load(",
        ((K.EARLY_ARRIVAL, "load_empty", "tcgen05_commit("),),
    ),
    "no_load_wait": Mutant("dense", ((LOAD_READY_WAIT, NOTHING),), K.UNINITIALISED_READ, "a_smem", DENSE_MMA),
    "no_empty_wait": Mutant(
        "dense",
        ((LOAD_EMPTY_WAIT, NOTHING),),
        K.WRITE_AFTER_READ,
        "a_smem|b_smem",
        "tma.async_load(",
        ((K.ARRIVAL_OVERFLOW, "load_ready", "mbarrier.expect("),),
    ),
    "too_many_accumulators": Mutant(
        "dense",
        (("ACCUMULATORS = gl.constexpr(2)", "ACCUMULATORS = gl.constexpr(9)"),),
        K.TMEM_CAPACITY,
        "accumulators",
        "accumulators = allocate_tensor_memory(",
    ),
    "no_store_wait": Mutant(
        "dense", (("            tma.store_wait(0)\n", ""),), K.WRITE_AFTER_READ, "d_smem", "d_smem.store("
    ),
    "no_final_store_wait": Mutant(
        "dense", (("\n    tma.store_wait(0)\n", "\n"),), K.WORK_IN_FLIGHT, "d_smem", "tma.async_store("
    ),
    "mma_after_the_last_commit": Mutant(
        "dense",
        ((END_OF_DENSE_MMA, f"    {LAST_MMA}\n{END_OF_DENSE_MMA}"),),
        K.WORK_IN_FLIGHT,
        "accumulators",
        LAST_MMA,
        ((K.WRITE_AFTER_READ, "accumulators", LAST_MMA),),
    ),
    "mma_committed_that_nobody_awaits": Mutant(
        "dense",
        ((END_OF_DENSE_MMA, f"    {LAST_MMA}\n    tcgen05_commit(load_ready.index(0))\n{END_OF_DENSE_MMA}"),),
        K.WORK_IN_FLIGHT,
        "accumulators",
        LAST_MMA,
        ((K.WRITE_AFTER_READ, "accumulators", LAST_MMA),),
    ),
    # Two CTAs that share B.
    "multicast_without_a_cluster_wide_empty": Mutant(
        "shared",
        ((DENSE_COMMIT, "tcgen05_commit(load_empty.index(stage))"), ("count=mma_commits", "count=1")),
        K.WRITE_AFTER_READ,
        "b_smem",
        LOAD_B,
    ),
    "one_commit_too_few_is_awaited": Mutant(
        "shared", (("count=mma_commits", "count=1"),), K.WRITE_AFTER_READ, "b_smem", LOAD_B
    ),
    "own_commits_only": Mutant(
        "shared",
        ((DENSE_COMMIT, "tcgen05_commit(load_empty.index(stage))"),),
        K.DEADLOCK,
        "load_empty",
        LOAD_EMPTY_WAIT,
    ),
    # Two pairs that share B.
    "one_pair_is_awaited": Mutant(
        "pairs",
        (("mbarrier.init(done, count=commits)", "mbarrier.init(done, count=1)"),),
        K.WRITE_AFTER_READ,
        "b_smem",
        "tma.async_load(b_desc, [column, step * tile_k]",
    ),
    "pairs_arm_one_cta": Mutant(
        "pairs",
        (("allocate_mbarrier(two_ctas=paired)", "allocate_mbarrier()"),),
        K.READ_AFTER_WRITE,
        "a_smem",
        "tcgen05_mma(a_smem, b_tile",
    ),
    # Pairs of CTAs, block-scaled, cluster launch control.
    "ready_of_one_cta": Mutant(
        "scaled",
        (("(batch=STAGES, two_ctas=True)", "(batch=STAGES)"),),
        K.READ_AFTER_WRITE,
        "a_smem|b_smem|a_scale_smem|b_scale_smem",
        f"{SCALED_MMA}|tcgen05_copy(",
    ),
    "accumulator_released_by_one_cta": Mutant(
        "scaled",
        (("(batch=ACCUMULATORS, two_ctas=True)", "(batch=ACCUMULATORS)"),),
        K.WRITE_AFTER_READ,
        "accumulators",
        SCALED_MMA,
    ),
    "pair_released_before_it_was_read": Mutant(
        "scaled",
        ((RELEASE, ""), (ACCUMULATOR, RELEASE + ACCUMULATOR)),
        K.WRITE_AFTER_READ,
        "accumulators",
        SCALED_MMA,
    ),
    "no_commit_after_the_mma": Mutant(
        "scaled",
        (("mbarriers=[load_empty.index(stage)]", "mbarriers=[]"),),
        K.DEADLOCK,
        "load_empty",
        LOAD_EMPTY_WAIT,
    ),
    "no_load_wait_in_the_pair": Mutant(
        "scaled",
        ((LOAD_READY_WAIT, NOTHING),),
        K.UNINITIALISED_READ,
        "a_scale_smem",
        "tcgen05_copy(as_matrix(a_scale_smem",
    ),
    "scales_not_copied": Mutant(
        "scaled",
        (("tcgen05_copy(as_matrix(b_scale_smem.index(stage)), b_scale_tmem)", NOTHING),),
        K.UNINITIALISED_READ,
        "b_scale_tmem",
        SCALED_MMA,
    ),
    "scale_bytes_not_expected": Mutant(
        "scaled",
        (("        + b_scale_desc.nbytes_per_cta\n", ""),),
        K.BYTE_COUNT,
        "load_ready",
        "mbarrier.expect(ready, nbytes)",
    ),
    "answer_read_without_signalling": Mutant(
        "scaled",
        (
            ("CLC_READERS = gl.constexpr(4)", "CLC_READERS = gl.constexpr(3)"),
            (
                NEXT_IN_MMA,
                NEXT_UNSIGNALLED,
            ),
        ),
        K.WRITE_AFTER_READ,
        "clc_results",
        TRY_CANCEL,
    ),
    "half_of_the_answer_expected": Mutant(
        "scaled",
        (("clc_ready.index(slot), 16, from_cta=0)", "clc_ready.index(slot), 8, from_cta=0)"),),
        K.BYTE_COUNT,
        "clc_ready",
        "mbarrier.expect(clc_ready",
    ),
    "answer_not_awaited": Mutant(
        "scaled", ((CLC_READY_WAIT, NOTHING),), K.READ_AFTER_WRITE, "clc_results", "answer = clc.load_result("
    ),
    "no_wait_before_the_next_request": Mutant(
        "scaled", ((CLC_EMPTY_WAIT, NOTHING),), K.WRITE_AFTER_WRITE, "clc_results", TRY_CANCEL
    ),
    "asked_again_after_a_refusal": Mutant(
        "scaled",
        (
            (
                ASK_AGAIN,
                ASK_AGAIN.replace(
                    "turn += 1\n",
                    "turn += 1\n"
                    "    slot = turn % CLC_STAGES\n"
                    "    mbarrier.expect(clc_ready.index(slot), 16, from_cta=0)\n"
                    "    clc.try_cancel(clc_results.index(slot), clc_ready.index(slot))\n",
                ),
            ),
        ),
        K.CANCEL_AFTER_REFUSAL,
        "clc_results",
        TRY_CANCEL,
        ((K.EARLY_ARRIVAL, "clc_ready", "mbarrier.expect(clc_ready"),),  # without a wait for clc_empty
    ),
}


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"mutant_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # the compiler looks it up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _forget_mutants() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    for name in [name for name in sys.modules if name.startswith("mutant_")]:
        del sys.modules[name]


def mutated(path: Path, *changes: tuple[str, str]) -> Path:
    text = KERNELS.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, f"no {old!r}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "name", one_of_each(MUTANTS, lambda _, mutant: (mutant.kernel, mutant.kind), lambda mutant: mutant.kernel)
)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    path = mutated(tmp_path / f"{name}.py", *mutant.changes)
    module = imported(path)
    if mutant.kernel == "scaled":
        result, _, _ = scaled(module, (768, 256, 1024), schedules=SCHEDULES, max_idle_operations=ENOUGH)
    elif mutant.kernel == "pairs":
        result, _, _ = paired(module, 128, [[1, 0], [2, 0]], schedules=SCHEDULES)
    else:
        ctas = 2 if mutant.kernel == "shared" else 1
        result, _, _ = dense(module, (768 * ctas, 64, 512), ctas=ctas, schedules=SCHEDULES)

    told = [Told.by(finding) for finding in result.findings]
    assert any(map(mutant.symptom.is_named, told)), told
    assert mutant.symptom.is_cause(told[0]), told


def test_a_kernel_that_asks_for_programs_for_ever_is_ended_and_told_where_it_was(tmp_path: Path) -> None:
    path = mutated(tmp_path / "endless.py", (CLC_READY_WAIT, NOTHING))
    # The fourth schedule is the one that shows it: of its seed.
    schedules = (*FIXED, "random")
    result, _, _ = scaled(imported(path), (768, 256, 1024), schedules=schedules, max_idle_operations=ENOUGH)
    (finding,) = (finding for finding in result.findings if finding.kind is Kind.LIVELOCK)
    assert finding.name == "scaled_kernel"
    assert finding.partition == "partition 3 (scaled_clc_partition)"
    asking = range(min(lines_of(path, "def scaled_clc_partition(")), min(lines_of(path, ASK_ONCE)))
    assert finding.lines[0] in asking
    (empty_wait,) = lines_of(path, LOAD_EMPTY_WAIT) - {min(lines_of(path, LOAD_EMPTY_WAIT))}
    where = f"waits at line {empty_wait} (scaled_load_partition)"
    assert f"partition 2 (scaled_load_partition) of CTA 0 {where}" in finding.text


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("m * scale_m, k * scale_k", "m * scale_m, k * 0"), ("n * scale_n, k * scale_k", "n * 0, k * scale_k")],
)
def test_a_wrong_scale_coordinate_shows_in_the_numbers_only(right: str, wrong: str, tmp_path: Path) -> None:
    module = imported(mutated(tmp_path / "wrong_scales.py", (right, wrong)))
    result, found, expected = scaled(module, (256, 256, 1024), schedules=("lazy",))
    assert result.findings == ()
    assert not found.equal(expected)
