"""Matmuls of the forms that Gluon's tutorials teach, written here: clean as they are, planted faults named.

They stand in for no tutorial: `test_foreign` runs the originals. Two more of the forms are in
`test_simulate_blackwell`: the persistent, warp-specialized matmul with static tiles, and the block-scaled one
of CTA pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kernels import hopper, tutorial_blackwell, tutorial_hopper
from kernels.blackwell_launch import FORMATS
from kernels.tutorial_launch import (
    BLACKWELL_TILE,
    HOPPER_TILE,
    Launch,
    blocked,
    launch_controlled,
    scaled,
    single_tile,
    tiled,
)
from mutants.mutant import SCHEDULES as MUTANT_SCHEDULES
from mutants.symptom import Symptom, Told

from gemmgen.hardware import BLACKWELL
from gluonsim import POLICIES, Kind, Severity

SCHEDULES = (*POLICIES, "random")

HopperForm = Callable[[Any, str], Launch]
"""Makes a launch of a kernel of a module, over tensors of a device."""
BlackwellForm = Callable[[Any], Launch]


def one_hopper_tile(dtype: torch.dtype, a_in_registers: bool) -> HopperForm:
    tile = (64, 64, 128 // dtype.itemsize)
    return lambda module, device: single_tile(
        module.single_tile_kernel, tile, a_in_registers, dtype, device=device
    )


def several_hopper_tiles(kernel: str, *more: Any, programs: int | None = None, k: int = 232) -> HopperForm:
    # 3 x 3 tiles of 64 x 64, and k-steps of 64; the last of each are ragged.
    shape = (184, 160, k)
    return lambda module, device: tiled(
        getattr(module, kernel), shape, HOPPER_TILE, *more, programs=programs, device=device
    )


def blocked_by_hopper(shape: tuple[int, int, int]) -> HopperForm:
    return lambda module, device: blocked(module.blocked_matmul_kernel, shape, device)


HOPPER_FORMS: dict[str, HopperForm] = {
    f"one tile, {str(dtype).removeprefix('torch.')}, A in {place}": one_hopper_tile(
        dtype, place == "registers"
    )
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8)
    for place in ("shared memory", "registers")
} | {
    "blocked": blocked_by_hopper((120, 160, 232)),
    # 11 k-steps: three laps of a ring of three, and two more.
    "pipelined, no MMA outstanding": several_hopper_tiles("pipelined_kernel", 0, k=696),
    "pipelined, one MMA outstanding": several_hopper_tiles("pipelined_kernel", 1, k=696),
    # Fewer steps than stages: the loads of the prologue are too many.
    "pipelined, two steps": several_hopper_tiles("pipelined_kernel", 0, k=128),
    # Two programs take five and four tiles of four k-steps.
    "persistent, row by row": several_hopper_tiles("persistent_kernel", 1, programs=2),
    "persistent, grouped": several_hopper_tiles("persistent_kernel", 2, programs=2),
    # One program takes nine tiles: each of two buffers of D comes round four times.
    "warp-specialized, row by row": several_hopper_tiles("specialized_kernel", 1, programs=1),
    "warp-specialized, grouped": several_hopper_tiles("specialized_kernel", 2, programs=1),
}


def one_blackwell_tile(rows: int, a_in_tensor_memory: bool) -> BlackwellForm:
    tile = (rows, 64, 64)
    return lambda module: single_tile(
        module.single_tile_kernel, tile, a_in_tensor_memory, torch.float16, BLACKWELL
    )


def several_blackwell_tiles(kernel: str, k: int) -> BlackwellForm:
    # 2 x 2 tiles of 128 x 64; the last rows, columns and k-step are ragged.
    shape = (200, 100, k)
    return lambda module: tiled(
        getattr(module, kernel), shape, BLACKWELL_TILE, target=BLACKWELL, d_columns=32
    )


def clusters(shape: tuple[int, int, int], *bases: list[int]) -> BlackwellForm:
    return lambda module: launch_controlled(module.launch_control_kernel, shape, list(bases))


def scaled_form(kind: str, by_copy: bool) -> BlackwellForm:
    # 2 x 2 tiles of 128 x 128, the last rows and columns ragged. By copy 10 k-steps of 128; by threads 3.75,
    # or 4 of the mixed formats, whose padded rows are multiples of 128 numbers.
    k = 1280 if by_copy else 512 if "_by_" in kind else 480
    kernel = "scales_by_copy_kernel" if by_copy else "scales_by_threads_kernel"
    return lambda module: scaled(getattr(module, kernel), (200, 132, k), kind, by_copy=by_copy)


BLACKWELL_FORMS: dict[str, BlackwellForm] = (
    {
        f"one tile of {rows} rows, A in {place} memory": one_blackwell_tile(rows, place == "tensor")
        for rows in (64, 128)
        for place in ("shared", "tensor")
    }
    | {
        "blocked": several_blackwell_tiles("blocked_kernel", 232),
        "pipelined": several_blackwell_tiles("pipelined_kernel", 680),
        # One program that takes over all of the others' tiles has at least six: three for each accumulator.
        "launch control, one CTA": clusters((728, 128, 200)),
        "launch control, a pair": clusters((1506, 64, 488), [1, 0]),
        "launch control, pairs that share B": clusters((2872, 64, 488), [1, 0], [2, 0]),
        "launch control, pairs that share A": clusters((1506, 120, 488), [1, 0], [0, 1]),
    }
    | {f"{kind}, scales by threads": scaled_form(kind, by_copy=False) for kind in FORMATS}
    | {f"{kind}, scales by copy": scaled_form(kind, by_copy=True) for kind in FORMATS}
)


def kernels_of(form: str) -> ModuleType:
    return hopper if form == "blocked" else tutorial_hopper


def check(name: str, launch: Launch) -> None:
    result = launch.simulate(SCHEDULES)
    assert result.findings == ()
    if not name.startswith("one tile") and "two steps" not in name:  # else no ring comes round
        assert result.uncovered == ()
    assert result.deterministic
    assert launch.d.equal(launch.expected)


@pytest.mark.parametrize("name", HOPPER_FORMS)
def test_a_hopper_matmul_is_clean_and_right(name: str) -> None:
    check(name, HOPPER_FORMS[name](kernels_of(name), "cpu"))


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", BLACKWELL_FORMS)
def test_a_blackwell_matmul_is_clean_and_right(name: str) -> None:
    check(name, BLACKWELL_FORMS[name](tutorial_blackwell))


@pytest.mark.gpu
@pytest.mark.parametrize("name", HOPPER_FORMS)
def test_the_gpu_makes_the_same_of_a_hopper_matmul(name: str) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no Hopper GPU")
    launch = HOPPER_FORMS[name](kernels_of(name), "cuda")
    launch.on_gpu()
    assert launch.d.equal(launch.expected)


@dataclass(frozen=True)
class Mutant:
    """One fault: what is replaced in a form's kernel, and what the simulator must say."""

    form: str
    old: str
    new: str
    kind: Kind
    name: str
    line: str
    severity: Severity = Severity.ERROR

    @property
    def symptom(self) -> Symptom:
        """What the simulator must say."""
        return Symptom(self.kind, self.name, self.line, self.severity)


K = Kind
NOTHING = "pass  # removed"
A_LOAD = "tma.async_load(a_desc, [row, k], ready, a_smem.index(stage)"
HOPPER_MUTANTS = {
    "the load is not awaited": Mutant(
        "one tile, float16, A in registers",
        "mbarrier.wait(load_ready, 0)",
        NOTHING,
        K.READ_AFTER_WRITE,
        "c_smem",
        "accumulator = c_smem.load(layout)",
    ),
    "the MMA is not awaited": Mutant(
        "one tile, float16, A in shared memory",
        "accumulator = warpgroup_mma_wait(0, deps=[accumulator])\n    c_smem",
        "accumulator = warpgroup_mma_wait(1, deps=[accumulator])\n    c_smem",
        K.ACCUMULATOR_IN_FLIGHT,
        "accumulator",
        "c_smem.store(accumulator)",
    ),
    "no fence in one partition": Mutant(
        "one tile, float16, A in shared memory",
        "fence_async_shared()  # the threads' stores",
        NOTHING,
        K.MISSING_FENCE,
        "c_smem",
        "tma.async_store(d_desc, [0, 0], c_smem)",
        Severity.LINT,
    ),
    "a phase that does not turn": Mutant(
        "blocked",
        "mbarrier.wait(ready, step & 1)",
        "mbarrier.wait(ready, step * 0)",
        K.READ_AFTER_WRITE,
        "a_smem",
        "total = warpgroup_mma(a_smem, b_smem, total, is_async=True)",
    ),
    "loads come over the MMA that is outstanding": Mutant(
        "pipelined, one MMA outstanding",
        "ahead: gl.constexpr = STAGES - outstanding",
        "ahead: gl.constexpr = STAGES",
        K.WRITE_AFTER_READ,
        "a_smem",
        A_LOAD,
    ),
    "the last store is not awaited": Mutant(
        "pipelined, no MMA outstanding",
        "tma.async_store(d_desc, [row, column], d_smem)\n    tma.store_wait(0)",
        "tma.async_store(d_desc, [row, column], d_smem)",
        K.WORK_IN_FLIGHT,
        "d_smem",
        "tma.async_store(d_desc, [row, column], d_smem)",
    ),
    "the store of the tile before is not awaited": Mutant(
        "persistent, grouped",
        "tma.store_wait(0)  # the last tile's store",
        NOTHING,
        K.WRITE_AFTER_READ,
        "d_smem",
        "d_smem.store(accumulator.to(d_desc.dtype))",
    ),
    "the next tile's loads come too early": Mutant(
        "persistent, row by row",
        "ahead: gl.constexpr = STAGES - 1",
        "ahead: gl.constexpr = STAGES",
        K.WRITE_AFTER_READ,
        "a_smem",
        A_LOAD,
    ),
    "a stage is released before it was read": Mutant(
        "warp-specialized, grouped",
        "            accumulator = warpgroup_mma_wait(0, deps=[accumulator])\n"
        "            mbarrier.arrive(load_empty.index(load % STAGES))\n",
        "            mbarrier.arrive(load_empty.index(load % STAGES))\n"
        "            accumulator = warpgroup_mma_wait(0, deps=[accumulator])\n",
        K.WRITE_AFTER_READ,
        "a_smem",
        A_LOAD,
    ),
    "no fence between partitions": Mutant(
        "warp-specialized, grouped",
        "        fence_async_shared()\n        mbarrier.arrive(d_ready.index(slot))",
        "        mbarrier.arrive(d_ready.index(slot))",
        K.MISSING_FENCE,
        "d_smem",
        "tma.async_store(d_desc, [row, column], d_smem.index(slot))",
    ),
    "a buffer is released while the store reads it": Mutant(
        "warp-specialized, row by row",
        "tma.store_wait(0)  # the store has read its buffer",
        NOTHING,
        K.WRITE_AFTER_READ,
        "d_smem",
        "d_smem.index(slot).store(",
    ),
    "a buffer is never released": Mutant(
        "warp-specialized, row by row",
        "mbarrier.arrive(d_empty.index(slot))",
        NOTHING,
        K.DEADLOCK,
        "d_empty",
        "mbarrier.wait(d_empty.index(slot)",
    ),
}
MMA_WAIT = "        mbarrier.wait(mma_done.index(load % STAGES), load // STAGES & 1 ^ 1)\n"
SUBTILE_LOAD = "subtile = accumulator.slice(i * subtile_n, subtile_n).load()"
ACC_RELEASE = "        mbarrier.arrive(acc_empty.index(slot))\n"
ACC_STORE = "        store_accumulator(d_desc, row, column, accumulators.index(slot), d_smem)\n"
BLACKWELL_MUTANTS = {
    "the commit is not awaited": Mutant(
        "one tile of 128 rows, A in tensor memory",
        "mbarrier.wait(mma_done, 0)",
        NOTHING,
        K.READ_AFTER_WRITE,
        "accumulator",
        "subtile = accumulator.load()",
    ),
    "the MMA is not committed": Mutant(
        "one tile of 64 rows, A in shared memory",
        "tcgen05_commit(mma_done)\n    mbarrier.wait(mma_done, 0)",
        "mbarrier.wait(mma_done, 0)",
        K.DEADLOCK,
        "mma_done",
        "mbarrier.wait(mma_done, 0)",
    ),
    "loads come over the MMA": Mutant(
        "blocked",
        "        mbarrier.wait(mma_done, step & 1)\n        use_acc",
        "        use_acc",
        K.WRITE_AFTER_READ,
        "a_smem",
        "tma.async_load(a_desc, [row, step * tile_k], load_ready, a_smem)",
    ),
    "loads come over the MMA that is outstanding": Mutant(
        "pipelined", MMA_WAIT, "", K.WRITE_AFTER_READ, "a_smem", A_LOAD
    ),
    "the last MMA is not awaited": Mutant(
        "pipelined",
        "    mbarrier.wait(mma_done.index(last % STAGES), last // STAGES & 1)\n    store",
        "    store",
        K.READ_AFTER_WRITE,
        "accumulator",
        SUBTILE_LOAD,
    ),
    "scales come over the MMA": Mutant(
        "mxfp8, scales by threads",
        "        # The MMA has read its tiles and its scales: the next may come over them.\n"
        "        mbarrier.wait(mma_done, step & 1)\n",
        "",
        K.WRITE_AFTER_READ,
        "a_scale_tmem|b_scale_tmem|a_smem|b_smem",
        "_scale_tmem.store(|tma.async_load(",
    ),
    "the scales of B are not copied": Mutant(
        "nvfp4, scales by copy",
        "tcgen05_copy(as_matrix(b_scale_smem.index(stage)), b_scale_tmem)",
        NOTHING,
        K.UNINITIALISED_READ,
        "b_scale_tmem",
        "tcgen05_mma_scaled(",
    ),
    "the scales' bytes are not expected": Mutant(
        "mxfp8, scales by copy",
        "        + b_scale_desc.nbytes_per_cta\n",
        "",
        K.BYTE_COUNT,
        "load_ready",
        "mbarrier.expect(ready, nbytes, pred=wanted)",
    ),
    "an accumulator is released before it was read": Mutant(
        "launch control, one CTA",
        ACC_STORE + ACC_RELEASE,
        ACC_RELEASE + ACC_STORE,
        K.WRITE_AFTER_READ,
        "accumulators",
        "tcgen05_mma(",
    ),
    "the loads of one CTA are awaited for a pair": Mutant(
        "launch control, a pair",
        "load_ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=pairs)",
        "load_ready = mbarrier.allocate_mbarrier(batch=STAGES)",
        K.READ_AFTER_WRITE,
        "a_smem",
        "tcgen05_mma(",
    ),
    "a stage is freed in one pair of two": Mutant(
        "launch control, pairs that share B",
        "multicast=True,  # frees",
        "multicast=False,  # frees",
        K.DEADLOCK,
        "load_empty",
        "mbarrier.wait(load_empty.index(stage)",
    ),
    "a multicast does not wait for the other pair": Mutant(
        "launch control, pairs that share A",
        "mbarrier.init(load_empty.index(i), count=mma_commits)",
        "mbarrier.init(load_empty.index(i), count=1)",
        K.WRITE_AFTER_READ,
        "a_smem",
        A_LOAD,
    ),
}


def mutated(module: ModuleType, mutant: Mutant, path: Path) -> ModuleType:
    assert module.__file__ is not None
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert mutant.old in text, f"no {mutant.old!r}"
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    made = ModuleType(path.stem)
    made.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), made.__dict__)
    return made


def check_named(mutant: Mutant, launch: Launch) -> None:
    told = [Told.by(finding) for finding in launch.simulate(MUTANT_SCHEDULES).findings]
    assert any(map(mutant.symptom.is_named, told)), told
    assert mutant.symptom.is_cause(told[0]), told


@pytest.mark.parametrize("name", HOPPER_MUTANTS)
def test_a_fault_in_a_hopper_matmul_is_named(name: str, tmp_path: Path) -> None:
    mutant, path = HOPPER_MUTANTS[name], tmp_path / "mutant.py"
    module = mutated(kernels_of(mutant.form), mutant, path)
    check_named(mutant, HOPPER_FORMS[mutant.form](module, "cpu"))


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", BLACKWELL_MUTANTS)
def test_a_fault_in_a_blackwell_matmul_is_named(name: str, tmp_path: Path) -> None:
    mutant, path = BLACKWELL_MUTANTS[name], tmp_path / "mutant.py"
    module = mutated(tutorial_blackwell, mutant, path)
    check_named(mutant, BLACKWELL_FORMS[mutant.form](module))
