"""What the ledger says of a problem, against sums made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hopper import hopper
from modules import ROOT, SPECS, made

from gemmgen.cli.texts import resources_text
from gemmgen.hardware import GPUS
from gemmgen.lower import Resources
from gemmgen.plan.entry import Entry
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.planner import plan_spec
from gemmgen.planner.ledger import ledger
from gemmgen.product import make
from gemmgen.spec import Spec, SpecFile

pytestmark = pytest.mark.quick

Shape = tuple[int, int, int]


def planned(
    shape: Shape, dtype: str = "bf16", d: str = "bf16", c: str | None = None, **sections: object
) -> WgmmaKernel:
    names = {"a": dtype, "b": dtype, "d": d} | ({"c": c} if c else {})
    data: dict[str, object] = {
        "title": "t",
        "target": "h200",
        "operands": {name: {"dtype": operand} for name, operand in names.items()},
        "bench": {"shapes": [list(shape)]},
    }
    found = Spec.model_validate(data | sections)
    return hopper(plan_spec(SpecFile(found, "x.yaml", "x", "", positions={}, key_positions={})))


def entries(plan: Kernel, title: str) -> dict[str, Entry]:
    (section,) = (section for section in ledger(plan).sections if section.title.startswith(title))
    return {entry.name: entry for entry in section.entries}


def test_the_page_explains_the_figures_of_the_plan() -> None:
    """What docs/planner.md says of warps and registers, of the same spec."""
    pool = hopper(make(ROOT / "specs" / "h100_bf16.yaml").plan).register_pool
    page = " ".join((ROOT / "docs" / "planner.md").read_text(encoding="utf-8").split())
    asked = pool.default_warps + sum(warps for warps, _ in pool.workers)
    assert f"**{pool.total_warps} warps, not {asked}.**" in page
    assert f"The kernel starts with {pool.launch_registers} registers per thread" in page
    assert f"**`setmaxnreg` {', '.join(map(str, pool.requests))}.**" in page
    default, waiting = pool.setup_registers
    assert f"with the largest request, {default} (" in page
    assert f"wait with the most that this leaves them, {waiting}." in page


# --- roles

ROLES = {"none: all warps do the same": False, "none: every role keeps the": True}
"""What is said of a kernel that asks for no registers, by its first words; and of which it is true."""


@pytest.mark.check
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_kernel_is_said_to_have_roles_if_its_module_specializes_warps(path: Path) -> None:
    product = made(path)
    specialized = "warp_specialize(" in product.module
    pool = product.plan.register_pool
    assert product.plan.specialized == specialized
    workers = {partition.name for partition in product.plan.workers}
    assert bool(workers) == specialized
    assert workers <= entries(product.plan, "registers").keys()
    resources = Resources(
        smem_bytes=product.plan.smem_bytes,
        warps=product.plan.total_warps,
        spill_store_bytes=0,
        spill_load_bytes=0,
        stack_bytes=0,
        tmem_columns=0,
        mmas=(),
        operations={},
        traps=False,
        setmaxnreg=pool.requests,  # what is lowered is held against the plan
        multicast_loads=0,
        ptxas_notes=(),
    )
    (said,) = (line for line in resources_text(resources, product.plan).splitlines() if "setmaxnreg" in line)
    if not pool.requests:
        assert [specialized] == [holds for words, holds in ROLES.items() if words in said]


def test_a_ping_pong_kernel_that_asks_for_no_registers_has_roles() -> None:
    plan = made(ROOT / "specs" / "h100_bf16_ping_pong.yaml").plan
    assert plan.specialized
    assert not plan.register_pool.requests


# --- operations per byte of DRAM


@pytest.mark.parametrize(
    ("dtype", "ridge"),
    [
        # 989.4 TFLOP/s of 16-bit operands over 4.8 TB/s; 8 bits have twice the rate, tf32 has half of it.
        ("bf16", 206.125),
        ("e4m3", 412.25),
        ("int8", 412.25),
        ("tf32", 103.0625),
    ],
)
def test_the_ridge_goes_with_the_bits_of_the_operands(dtype: str, ridge: float) -> None:
    d = {"int8": "int32", "tf32": "fp32"}.get(dtype, "bf16")
    plan = planned((8192, 8192, 8192), dtype, d)
    assert plan.gpu.ridge_flops_per_byte(plan.problem.a.dtype.bits) == pytest.approx(ridge)
    assert f"the ridge is at {ridge:.1f}" in entries(plan, "problem")["intensity"].derivation


def test_a_type_of_fewer_bits_needs_more_operations_per_byte() -> None:
    # 2 x 512 x 4096^2 operations. bf16: 2 x (2 x 512 x 4096 + 4096^2) bytes are 409.6 a byte, above 206.1.
    shape = (512, 4096, 4096)
    wide = entries(planned(shape), "problem")["intensity"]
    assert wide.amount == 409.6
    assert "bound by tensor cores" in wide.derivation
    # int8 to int32: 512 x 4096 + 4096^2 + 4 x 512 x 4096 bytes are 630.2 a byte, above 412.2; a quarter of
    # the rows, 128, have 221.4, below it, and bf16 would need no more than 206.1.
    assert entries(planned(shape, "int8", "int32"), "problem")["intensity"].amount == 630.2
    few = entries(planned((128, 4096, 4096), "int8", "int32"), "problem")["intensity"]
    assert few.amount == 221.4
    assert "bound by DRAM" in few.derivation


def test_c_and_the_epilogue_s_vectors_are_read_too() -> None:
    plan = planned(
        (4096, 4096, 4096),
        c="bf16",
        epilogue={"ops": ["row_scale", "column_bias", "residual"]},
    )
    # A, B, C and D of 4096^2 x 2 bytes, 4096 x 4 of scales and 4096 x 2 of bias.
    moved = 4 * 4096**2 * 2 + 4096 * 4 + 4096 * 2
    assert entries(plan, "problem")["intensity"].amount == round(2 * 4096**3 / moved, 1) == 1023.8


# --- L2 and time


def test_every_program_loads_its_tiles_from_l2_at_every_step() -> None:
    tile = {"m": 128, "n": 256, "k": 64}
    cooperative = {"kind": "cooperative", "consumers": 2}
    alone = planned((4096, 4096, 4096), tile=tile, cluster={"m": 1}, warp_specialization=cooperative)
    # 32 x 16 tiles x 64 steps x (128 + 256) x 64 x 2 bytes = 1.61 GB; A, B and D are 0.10 GB.
    found = entries(alone, "problem")["from L2"]
    assert found.amount == 1.61
    assert found.derivation.startswith("16.0 ")
    # Two CTAs share B: (2 x 128 + 256) x 64 x 2 for twice the rows.
    pair = planned((4096, 4096, 4096), tile=tile, cluster={"m": 2}, warp_specialization=cooperative)
    assert entries(pair, "problem")["from L2"].amount == 1.07


def test_a_time_is_said_to_be_a_prediction_and_of_what_it_is_the_sum() -> None:
    found = entries(planned((8192, 8192, 8192)), "problem")["time"]
    # 8192^3 / 2,048 / 132 SMs at 1.74 cycles a nanosecond are 1,169 us, of 1,588.
    assert shares(found) == [74, 22, 3]
    assert found.amount == pytest.approx(1588, abs=10)
    few = entries(planned((8, 8192, 8192)), "problem")["time"]
    assert shares(few) == [87, 8, 4]
    starved = entries(planned((8, 8192, 8192), mma={"rows": "m"}), "problem")["time"]
    assert shares(starved) == [46, 43, 5]  # of the second part, L2 takes most for rows outside of A


def shares(entry: Entry) -> list[int]:
    """The largest parts of a time, in percent."""
    return [int(number) for number in re.findall(r"(\d+)%", entry.derivation)][:3]


def test_a_time_of_blackwell_that_is_shorter_than_dram_takes_is_as_long_as_that() -> None:
    names = {name: {"dtype": "bf16"} for name in "abd"}
    data = {"title": "t", "target": "b200", "operands": names, "bench": {"shapes": [[8192, 8192, 64]]}}
    source = SpecFile(Spec.model_validate(data), "x.yaml", "x", "", positions={}, key_positions={})
    entry = next(entry for entry in ledger(plan_spec(source)).sections[-1].entries if entry.name == "time")
    assert entry.amount == pytest.approx(2 * (2 * 8192 * 64 + 8192**2) / 8e6, abs=0.1)


# --- occupancy


def test_occupancy_is_said_beside_what_shared_memory_would_hold() -> None:
    plan = planned(
        (8192, 8192, 8192),
        tile={"m": 128, "n": 128, "k": 64},
        buffering={"stages": 1},
        schedule={"kind": "tiled"},
        occupancy=2,
        epilogue={"subtile_n": 128},
    )
    # A and B 32,768, D 32,768, a barrier 8: 65,544 and 1,024 of the system, of 233,472: three.
    assert plan.smem_bytes == 65_544
    found = entries(plan, "kernel")["occupancy"]
    assert found.amount == 2
    assert found.derivation.endswith(" 3")


# --- other targets


def test_a_gpu_of_another_family_has_figures_too() -> None:
    assert GPUS["b200"].ridge_flops_per_byte(16) == pytest.approx(2_250 / 8)
    assert GPUS["h100"].ridge_flops_per_byte(16) == pytest.approx(989.4 / 3.35)


def test_the_ledger_is_plain_data_with_the_same_figures() -> None:
    plan = planned((4096, 4096, 4096))
    data = json.loads(json.dumps(ledger(plan).as_dict()))
    problem = data["sections"][-1]
    names = [entry["name"] for entry in problem["entries"]]
    assert names == ["tiles", "waves", "intensity", "from L2", "time"]
    assert max(map(len, ledger(plan).as_text().splitlines())) <= 130
