"""lower: the compiler makes what the plan says, and says so in order; what it refuses is one diagnostic."""

from __future__ import annotations

import importlib
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from filecheck import filecheck_files

from gemmgen.errors import GemmgenError
from gemmgen.lower import Lowered, disassemble, lower
from gemmgen.plan import Plan
from gemmgen.product import Product, make

ROOT = Path(__file__).parent.parent
DIRECTIVES = Path(__file__).parent / "lowered"
PTX_TYPES = {"bf16": "bf16", "fp16": "f16"}


# --- the compiler confirms the plan


def test_the_compiler_measures_what_the_plan_says(product: Product, lowered: Lowered) -> None:
    plan, found = product.plan, lowered.resources
    assert found.smem_bytes == plan.smem_bytes
    assert found.warps == plan.total_warps
    assert found.mma_shapes == (plan.mma_name,)
    assert found.ptxas_notes == ()


def test_nothing_spills(lowered: Lowered) -> None:
    found = lowered.resources
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)
    assert re.findall(r"\b(?:ld|st)\.local\b.*", ptx(lowered)) == []


def test_every_partition_gets_the_registers_of_the_plan(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    planned = {worker.registers for worker in plan.workers} | {plan.register_pool.default_registers}
    assert planned <= set(lowered.resources.setmaxnreg)
    assert plan.register_pool.default_registers >= plan.consumer_registers
    assert f".maxnreg {plan.register_pool.launch_registers}\n" in ptx(lowered)


def test_the_launch_has_the_threads_and_the_cluster_of_the_plan(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    assert f".reqntid {plan.threads}\n" in ptx(lowered)
    cluster = re.findall(r"^\.reqnctapercluster (\d+)$", ptx(lowered), re.MULTILINE)
    assert cluster == ([str(plan.cluster_size)] if plan.cluster_size > 1 else [])


def test_b_alone_is_multicast_and_only_by_a_cluster(product: Product, lowered: Lowered) -> None:
    assert lowered.resources.multicast_loads == (1 if product.plan.multicast else 0)


def test_a_k_step_is_as_many_instructions_as_the_ledger_says(product: Product, lowered: Lowered) -> None:
    # One warpgroup's share of a K step, by m64, by the tile's width, by the instruction's depth.
    plan = product.plan
    m, n, k = plan.mma_shape
    warpgroups = plan.consumer_warps // 4
    rows = plan.cta_consumer_tile_m // warpgroups
    expected = rows // m * (plan.cta_tile_n // n) * (plan.cta_tile_k // k)
    steps = re.findall(r"wgmma\.fence.*?wgmma\.commit_group", ptx(lowered), re.DOTALL)
    # A K loop that overlaps its MMAs has its first step outside of it.
    assert len(steps) == plan.consumers * (1 + plan.outstanding_mmas)
    assert {step.count(mma(plan)) for step in steps} == {expected}


def test_a_16_bit_output_leaves_the_registers_by_stmatrix_alone(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    # An x4 stores four 8 x 8 matrices of 16 bits, 512 bytes of a warp; all warps run the same code.
    bytes_per_warp = plan.cta_consumer_tile_m * plan.cta_tile_n * 2 // plan.consumer_warps
    expected = plan.consumers * bytes_per_warp // 512 if plan.d_dtype.bits == 16 else 0
    assert len(re.findall(r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16", ptx(lowered))) == expected


def test_the_machine_code_multiplies_on_the_tensor_cores_and_does_not_spill(
    product: Product, lowered: Lowered
) -> None:
    m, n, k = product.plan.mma_shape
    sass = disassemble(lowered.artifacts["cubin"]).decode()
    assert f"HGMMA.{m}x{n}x{k}.F32" in sass
    assert "UTMALDG.2D" in sass
    assert "UTMASTG.2D" in sass
    assert re.findall(r"\b(?:LDL|STL)\b.*", sass) == []


# --- operations in order


def ptx(lowered: Lowered) -> str:
    return lowered.artifacts["ptx"].decode()


def mma(plan: Plan) -> str:
    operand = PTX_TYPES[plan.a_dtype.name]
    return f"wgmma.mma_async.sync.aligned.{plan.mma_name}.f32.{operand}.{operand}"


def regions(lowered: Lowered) -> list[str]:
    """What comes before the partitions, and each partition, in the order of the plan."""
    return re.split(
        r"^ *(?:default \{|partition\d+\()", lowered.artifacts["ttgir"].decode(), flags=re.MULTILINE
    )


def multiply(plan: Plan) -> str:
    return "multiply_overlapped" if plan.outstanding_mmas else "multiply_in_order"


def producer(plan: Plan) -> str:
    return "producer_multicast" if plan.multicast else "producer"


def check(text: str, plan: Plan, stage: str, *names: str) -> None:
    """Match the directives of some parts, in order, against the text of a stage."""
    values = {"STAGE_BYTES": plan.stage_bytes, "PENDINGS": plan.epilogue_buffers - 1, "MMA": mma(plan)}
    filecheck_files(text, (DIRECTIVES / f"{name}.{stage}.check" for name in names), values)


def test_the_kernel_has_one_partition_per_role(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    prologue, *partitions = regions(lowered)
    assert len(partitions) == len(plan.partitions)
    warps = [int(re.findall(r"\) num_warps\((\d+)\)", partition)[0]) for partition in partitions[1:]]
    assert warps == [worker.warps for worker in plan.workers]
    requested = ", ".join(str(worker.registers) for worker in plan.workers)
    assert f"requestedRegisters = array<i32: {requested}>" in prologue


def test_every_barrier_is_initialised_before_the_partitions_start(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    prologue, *partitions = regions(lowered)
    counts = [int(n) for n in re.findall(r"ttng\.init_barrier %\w+, (\d+)", prologue)]
    # The kernel writes arrivals per CTA: the compiler multiplies those of a barrier of the whole cluster.
    per_cta = [b.arrivals // (plan.cluster_size if b.cluster_wide else 1) for b in plan.barriers]
    assert counts == per_cta * plan.stages
    assert not any("ttng.init_barrier" in partition for partition in partitions)


def test_a_consumer_waits_multiplies_releases_and_stores(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    consumers = regions(lowered)[1 : 1 + plan.consumers]
    for consumer in consumers:
        check(consumer, plan, "ttgir", multiply(plan), *["store"] * plan.subtiles, "store_end")
        # One release per step of the code, on each barrier that counts it.
        steps = consumer.count("ttng.warp_group_dot ")
        assert steps == 1 + plan.outstanding_mmas
        assert consumer.count("ttng.arrive_barrier") == steps * len(plan.release_arguments)
        assert "async_tma_copy_global_to_local" not in consumer


def test_the_producer_waits_expects_and_loads(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    region = regions(lowered)[-1]
    check(region, plan, "ttgir", producer(plan))
    assert region.count("ttng.async_tma_copy_global_to_local") == plan.consumers + 1
    assert not re.search("warp_group_dot|local_to_global|local_store", region)


def test_the_instructions_of_each_role_come_in_order(product: Product, lowered: Lowered) -> None:
    plan = product.plan
    check(ptx(lowered), plan, "ptx", multiply(plan))
    check(ptx(lowered), plan, "ptx", *[f"store_{plan.d_dtype.bits}bit"] * plan.subtiles)
    check(ptx(lowered), plan, "ptx", producer(plan))


def test_every_file_of_directives_is_used() -> None:
    used = {"multiply_in_order", "multiply_overlapped", "producer", "producer_multicast"}
    assert {path.name for path in DIRECTIVES.iterdir()} == (
        {f"{name}.{stage}.check" for name in used for stage in ("ttgir", "ptx")}
        | {"store.ttgir.check", "store_end.ttgir.check", "store_16bit.ptx.check", "store_32bit.ptx.check"}
    )


# --- what the compiler does not confirm


@pytest.fixture(scope="module")
def plain() -> Product:
    """Two consumers, one CTA, 128 x 256 x 64 in four stages."""
    return make(ROOT / "specs" / "h100_bf16.yaml")


def diagnostics(source: str, plan: Plan) -> list[str]:
    """What `lower` says of a module's text and a plan that do not belong together."""
    with pytest.raises(GemmgenError) as caught:
        lower(source, plan, path="specs/planted.yaml", stem="planted")
    return [str(diagnostic) for diagnostic in caught.value.diagnostics]


def planted(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_every_difference_between_plan_and_compiler_is_reported(plain: Product) -> None:
    # Four consumers of four warps and the producer's padded group: 20 warps.
    plan = replace(
        plain.plan, cta_tile_n=128, consumers=4, cluster_m=2, consumer_registers=104, producer_registers=24
    )
    assert plan.register_pool.default_registers == 144  # (96 * 20 - 4 * (3 * 104 + 24)) / 4
    prefix = "specs/planted.yaml: error[plan-differs]: the plan"
    assert diagnostics(plain.module, plan) == [
        f"{prefix} has {plan.smem_bytes:,} bytes of shared memory, the compiler {plain.plan.smem_bytes:,}",
        f"{prefix} has 20 warps, the compiler 12",
        f"{prefix} multiplies with m64n128k16, the compiler with m64n256k16",
        f"{prefix} has setmaxnreg 24, 56, 104, 144, 256, the compiler 40, 120, 232, 256",
        f"{prefix} has a multicast load, the compiler 0",
    ]


def test_a_stage_that_the_plan_does_not_have_is_a_difference_to_the_byte(plain: Product) -> None:
    source = planted(plain.module, "STAGES = gl.constexpr(4)", "STAGES = gl.constexpr(3)")
    # One stage less of A and of B, 49,152 bytes, and of two barriers, whose rings of 24 bytes end in padding.
    smem_bytes = replace(plain.plan, stages=3).smem_bytes
    assert smem_bytes == plain.plan.smem_bytes - 49_152 - 8
    (found,) = diagnostics(source, plain.plan)
    difference = f"{plain.plan.smem_bytes:,} bytes of shared memory, the compiler {smem_bytes:,}"
    assert found == f"specs/planted.yaml: error[plan-differs]: the plan has {difference}"


def test_spills_and_serialized_mmas_are_differences() -> None:
    # One consumer of four warps instead of eight: its accumulator would take 256 registers per thread.
    product = make(ROOT / "specs" / "h100_bf16_one_consumer.yaml")
    source = planted(product.module, "warps_per_cta=[8, 1]", "warps_per_cta=[4, 1]")
    source = planted(source, '"num_warps": 8', '"num_warps": 4')
    found = "\n".join(diagnostics(source, product.plan))
    assert "error[plan-differs]: the plan has 12 warps, the compiler 8\n" in found
    assert re.search(r"registers spill: \d+ bytes stored, \d+ loaded, \d+ of stack\n", found)
    assert "error[plan-differs]: ptxas: (C7511)" in found


# --- what the compiler refuses


REFUSED = {
    "a kernel that aborts the compiler": (
        "instr_shape=[16, 256, 16]",
        "instr_shape=[16, 96, 16]",
        r"\(killed by SIGABRT\): .*isPowerOf2",
    ),
    "a kernel that the compiler cannot lower": (
        "swizzle_byte_width=128",
        "swizzle_byte_width=0",
        r"planted\.py:\d+:\d+: error: failed to find valid wgmma layout",
    ),
    "a kernel that names what there is not": ("load = 0  #", "load = absent  #", "absent is not defined"),
    "a kernel with an illegal shape": (
        "gl.zeros((CONSUMER_TILE_M, PROGRAM_TILE_N)",
        "gl.zeros((CONSUMER_TILE_M, 100)",
        "Shape element 1 must be a power of 2",
    ),
    "a module that cannot be imported": ("import functools\n", "import absent\n", "No module named 'absent'"),
    "a module that is no Python": ("import functools\n", "import functools)\n", "SyntaxError: unmatched"),
    "a module that ends the process": (
        "import functools\n",
        "import functools, sys\nsys.exit(3)\n",
        "no message",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_compiler_refuses_is_one_diagnostic(plain: Product, name: str) -> None:
    old, new, message = REFUSED[name]
    (found,) = diagnostics(planted(plain.module, old, new), plain.plan)
    assert found.startswith("specs/planted.yaml: error[lowering-failed]: Triton refuses the kernel")
    assert re.search(message, found), found
    assert "\n" not in found
    assert "Traceback" not in found
    assert "gemmgen-" not in found  # the temporary directory


def test_files_beside_the_user_are_not_imported_by_the_compiler(
    plain: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("random", "tokenize", "triton"):
        Path(f"{name}.py").write_text("raise ImportError('a file of the user')\n")
    assert lower(plain.module, plain.plan, path="x", stem="x").resources.smem_bytes == plain.plan.smem_bytes


def test_a_compiler_that_hangs_is_ended(plain: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("gemmgen.lower.lower"), "TIMEOUT_SECONDS", 1)
    source = planted(plain.module, "import functools\n", "import functools\nimport time\ntime.sleep(60)\n")
    start = time.monotonic()
    assert diagnostics(source, plain.plan) == [
        "specs/planted.yaml: error[lowering-failed]: the compiler did not finish within 1 seconds"
    ]
    assert time.monotonic() - start < 20
