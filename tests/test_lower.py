"""lower: the compiler makes what the plan says, and says so in order; what it refuses is one diagnostic."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from filecheck import filecheck_files
from hopper import computing, hopper
from modules import HOPPER_SPECS, made

from gemmgen.build import launch_differences
from gemmgen.errors import GemmgenError
from gemmgen.features.decoded_weights.parts import decoded_k
from gemmgen.hardware.elements import DTYPES
from gemmgen.lower import Lowered, lower, verdict_on
from gemmgen.plan.verdicts import verdict_of
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Operand
from gemmgen.product import Product, make
from gemmgen.render.aot.facts import LaunchFacts
from gemmgen.render.wgmma.scale_reads import RUN_STEPS

ROOT = Path(__file__).parent.parent
K_AND_N_MAJOR = [spec for spec in HOPPER_SPECS if hopper(made(spec).plan).problem.a.dtype.bits == 16]
"""The specs of 16-bit operands: the tensor cores take other types K-major only."""
OF_ONE_KERNEL = [
    spec
    for spec in HOPPER_SPECS
    if not (made(spec).plan.reduces_apart or made(spec).plan.problem.gated)
    and not (made(spec).plan.problem.scales_sums or made(spec).plan.problem.d_scale)
    and made(spec).plan.problem.d_blocks == 1
]
"""Those that a launcher in C launches; of the others tests/test_export.py has the refusal."""
DIRECTIVES = Path(__file__).parent / "lowered"
PTX_TYPES = {
    "bf16": "bf16",
    "fp16": "f16",
    "fp32": "f32",
    "tf32": "tf32",
    "e4m3": "e4m3",
    "e5m2": "e5m2",
    "int8": "s8",
    "int32": "s32",
}


STRUCTURES = [
    spec for spec in HOPPER_SPECS if not (spec.stem.endswith("_out") or made(spec).plan.problem.b.decoded)
]
"""Specs of one structure each, that multiply A and B as they are. Those that pair features have narrow
swizzles, whose loads come in spans, and other barriers beside them; what they promise is held against the
compiler by the tests above and every build.
"""
PING_PONG = [spec for spec in STRUCTURES if hopper(made(spec).plan).ping_pong]
"""Of these, those whose consumers take turns."""
ONE_OF_EACH = [
    *{
        (plan.problem.a.dtype.name, plan.specialization, plan.swap_ab, plan.a_source, plan.composed): spec
        for spec in STRUCTURES
        for plan in [hopper(made(spec).plan)]
    }.values()
]
"""Of all structures, one for each type of A, where its instructions have it from, and who gives them."""
MLIR_TYPES = {"bf16": "xbf16", "fp16": "xf16", "fp32": "xf32"}
SASS_MMAS = {"e4m3": "QGMMA", "e5m2": "QGMMA", "int8": "IGMMA"}


@pytest.fixture(scope="session", params=HOPPER_SPECS, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each committed Hopper spec; tests/test_blackwell_lower.py has the others."""
    return made(request.param)


# --- the compiler confirms the plan


def test_the_compiler_measures_what_the_plan_says(product: Product, lowered: Lowered) -> None:
    plan, found = hopper(product.plan), lowered.resources
    assert found.smem_bytes == plan.smem_bytes
    assert found.warps == plan.total_warps
    assert found.mmas == tuple(sorted(f"wgmma {instruction(plan, name)}" for name in plan.mma_names))
    assert {note[1:6] for note in found.ptxas_notes} <= set(plan.ptxas_notes)


def test_nothing_spills_as_the_table_of_verdicts_says(product: Product, lowered: Lowered) -> None:
    found = lowered.resources
    assert verdict_on(product.plan, found) == verdict_of(product.plan)
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)
    assert re.findall(r"\b(?:ld|st)\.local\b.*", ptx(lowered)) == []


def test_every_partition_gets_the_registers_of_the_plan(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    if not plan.specialized:
        assert lowered.resources.setmaxnreg == ()
        return
    planned = {worker.registers for worker in plan.workers} | {plan.register_pool.default_registers}
    if not plan.register_pool.handed_over:
        assert planned == {plan.register_pool.launch_registers}
        assert lowered.resources.setmaxnreg == ()
        return
    assert planned <= set(lowered.resources.setmaxnreg)
    assert plan.register_pool.default_registers >= plan.consumer_registers


def test_the_launch_is_limited_to_the_registers_that_its_ctas_share(
    product: Product, lowered: Lowered
) -> None:
    plan, limits = hopper(product.plan), re.findall(r"^\.maxnreg (\d+)$", ptx(lowered), re.MULTILINE)
    # Where no role asks for registers and a CTA has its SM alone, ptxas takes what it needs.
    limited = plan.register_pool.handed_over or plan.occupancy > 1
    assert limits == ([str(plan.register_pool.launch_registers)] if limited else [])
    assert lowered.resources.launch_registers == (plan.register_pool.launch_registers if limited else None)
    if limited:
        registers = plan.occupancy * plan.threads * plan.register_pool.launch_registers
        assert registers <= plan.architecture.registers_per_sm


def test_the_launch_has_the_threads_and_the_cluster_of_the_plan(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    assert f".reqntid {plan.threads}\n" in ptx(lowered)
    cluster = re.findall(r"^\.reqnctapercluster (\d+)$", ptx(lowered), re.MULTILINE)
    assert cluster == ([str(plan.cluster_size)] if plan.cluster_size > 1 else [])


@pytest.mark.parametrize("product", OF_ONE_KERNEL, indirect=True, ids=lambda path: path.stem)
def test_the_launcher_in_c_passes_what_the_compiled_kernel_takes(product: Product, lowered: Lowered) -> None:
    """Sizes and alignments of the parameters in the PTX; boxes, swizzles and types of the tensor maps."""
    facts = LaunchFacts(hopper(product.plan), product.source.stem, lowered.artifacts["cubin"])
    assert list(launch_differences(facts, lowered)) == []


def test_what_is_shared_is_multicast_and_only_by_a_cluster(product: Product, lowered: Lowered) -> None:
    # One load of B, and one of A for each consumer that has rows of its own, of what the cluster shares; a
    # tile whose rows are longer than its swizzle takes a load for each span. What is loaded early is twice.
    plan = hopper(product.plan)
    loads = {
        "a": plan.loads("a") if plan.cluster_n > 1 else 0,
        "b": plan.loads("b") if plan.cluster_m > 1 else 0,
    }
    assert lowered.resources.multicast_loads == sum(loads.values()) + loads.get(plan.read_early or "", 0)


def test_a_k_step_is_as_many_instructions_as_the_ledger_says(product: Product, lowered: Lowered) -> None:
    # A warpgroup's share of a K step, by m64, by the instruction's width and depth, for each part of a tile.
    plan = hopper(product.plan)
    (rows, columns), (down, along) = plan.consumer_extents, plan.warps_across
    parts = plan.column_parts if plan.composed else (columns,)
    block_k = plan.cta_tile_k // plan.step_blocks
    expected = [
        rows // (down // 4) // m * (part // along // n) * (block_k // k) // slabs_of(plan)
        for part, (m, n, k) in zip(parts, plan.mma_shapes, strict=True)
    ]
    assert plan.mmas_per_step == slabs_of(plan) * plan.step_blocks * sum(expected)
    if plan.problem.b.decoded:
        expected = [count * decoded_k(plan) // plan.cta_tile_k for count in expected]
    steps = re.findall(r"wgmma\.fence.*?wgmma\.commit_group", ptx(lowered), re.DOTALL)
    counts = [step.count("wgmma.mma_async") for step in steps]
    own = [expected[: parts_of(plan, number)] * issues(plan) for number in range(plan.consumers)]
    # The compiler may place the second one first.
    assert counts in ([*chain(*own)], [*chain(*own[::-1])])


@pytest.mark.parametrize("product", K_AND_N_MAJOR, indirect=True, ids=lambda path: path.stem)
def test_an_mn_major_operand_is_transposed_by_the_instruction(product: Product, lowered: Lowered) -> None:
    problem = hopper(product.plan).problem
    # Behind the predicate and the factors of A and B comes a flag for each operand from shared memory: its
    # rows, or columns, are contiguous.
    mma_of = hopper(product.plan).mma
    majors = [
        problem.operand(side.tensor).major for side in (mma_of.left, mma_of.right) if side.source == "shared"
    ]
    expected = ", ".join(str(int(major == "mn")) for major in majors)
    flags = rf"{re.escape(mma(hopper(product.plan)))} .*, (?:0|%p\d+), 1, 1, (.*);"
    assert set(re.findall(flags, ptx(lowered))) == {expected}


def test_a_16_bit_output_leaves_the_registers_by_stmatrix_alone(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    # An x4 stores four 8 x 8 matrices of 16 bits, 512 bytes of a warp; all warps run the same code.
    bytes_per_warp = plan.cta_consumer_tile_m * plan.cta_columns * 2 // plan.consumer_warps
    stored, problem = plan.consumers * bytes_per_warp * staged(plan, 16), plan.problem
    if alternates(plan):  # a thread has every fourth column of D: it stores element by element
        matrices = problem.b_blocks * problem.saves
        expected = stored // (2 * 32) if problem.d_blocks == 1 else problem.d_blocks * stored // (8 * 32)
        # Few of these instructions pass values to partitions.
        assert 0 <= ptx(lowered).count(stmatrix(plan)) - expected <= 2 * (problem.d_blocks > 1)
    else:
        matrices = problem.d_blocks + problem.b_blocks * problem.saves
    assert len(re.findall(r"stmatrix\.sync", ptx(lowered))) == matrices * stored // stmatrix_bytes(plan)


def test_the_machine_code_names_no_file(product: Product, lowered: Lowered) -> None:
    """Each compilation has its own folder: with names of files, no two would have the same bytes."""
    name = f"{product.source.stem}.py".encode()
    assert name in lowered.artifacts["ptx"]
    for kernel in lowered.kernels:
        assert name not in kernel.cubin
        assert b".debug_line" not in kernel.cubin


# The disassembler takes a third of a second to start, and of the others ptxas has told the same.
@pytest.mark.parametrize("product", ONE_OF_EACH, indirect=True, ids=lambda path: path.stem)
def test_the_machine_code_multiplies_on_the_tensor_cores_and_does_not_spill(
    product: Product, sass: str
) -> None:
    m, n, k = hopper(product.plan).mma_shape
    assert f"{SASS_MMAS.get(hopper(product.plan).problem.a.dtype.name, 'HGMMA')}.{m}x{n}x{k}." in sass
    assert "UTMALDG.2D" in sass
    assert ("UTMASTG.2D" in sass) == (not product.plan.reduces_apart)
    assert re.findall(r"\b(?:LDL|STL)\b.*", sass) == []


def staged(plan: WgmmaKernel, bits: int) -> bool:
    """Whether this kernel stages D, of elements so wide; sums for a second kernel are not staged."""
    return plan.problem.d.bits == bits and not plan.reduces_apart


def stmatrix_bytes(plan: WgmmaKernel) -> int:
    """What one instruction stores: two matrices of 8 x 8, of a tile with 8 rows, or four.

    A warp has 8 columns of D, and so half as many matrices, if sums of two columns of B are one of D.
    """
    columns = 8 if plan.problem.gated and plan.problem.b.decoded else 16
    return min(512, 2 * columns * plan.cta_consumer_tile_m)


def alternates(plan: WgmmaKernel) -> bool:
    """Return True if columns of accumulators alternate in B as it is multiplied, or in D."""
    return plan.problem.interleaved and not plan.problem.b.decoded


def stmatrix(plan: WgmmaKernel) -> str:
    """It, by its number of matrices; sums of D's tile transposed are turned on the way.

    Sums of interleaved columns of B are stored without it, and so are two columns of each matrix in an
    interleaved D.
    """
    if alternates(plan):
        return "st.shared.b16" if plan.problem.d_blocks == 1 else "st.shared.v2.b32"
    turned = ".trans" if plan.swap_ab else ""
    return f"stmatrix.sync.aligned.m8n8.x{stmatrix_bytes(plan) // 128}{turned}.shared.b16"


# --- operations in order


def ptx(lowered: Lowered) -> str:
    return lowered.artifacts["ptx"].decode()


def issues(plan: WgmmaKernel) -> int:
    """Places of the code that issue a K step.

    A loop that overlaps its MMAs has the first step outside of it, one that reads A ahead the last. Each slab
    of rows or columns, each block of a step, and each part of a decoded one is issued by itself. Scaled sums
    in flight have the steps of a run in the code, and one loop for the other steps.
    """
    if plan.problem.b.decoded:
        return plan.cta_tile_k // decoded_k(plan)
    if plan.problem.scales_sums and plan.step_blocks > 1:
        return plan.step_blocks
    if plan.problem.scales_sums and plan.scales_in_flight:
        return RUN_STEPS + 1
    return 2 if plan.outstanding_mmas or plan.fragments > 1 else slabs_of(plan)


def slabs_of(plan: WgmmaKernel) -> int:
    """Slabs of rows or columns that a consumer multiplies one after the other."""
    return plan.row_slabs * plan.column_slabs


def instruction(plan: WgmmaKernel, name: str) -> str:
    """Shape, and the types of D, A and B."""
    problem = plan.problem
    types = (problem.accumulator, problem.a.multiplied, problem.b.multiplied)
    return ".".join((name, *(PTX_TYPES[dtype.name] for dtype in types)))


def mma(plan: WgmmaKernel, part: int = 0) -> str:
    """Of a part of the tile, by default of the only one, or the widest."""
    return f"wgmma.mma_async.sync.aligned.{instruction(plan, plan.mma_names[part])}"


def regions(lowered: Lowered) -> list[str]:
    """What comes before the partitions, and each partition, in the order of the plan."""
    return re.split(
        r"^ *(?:default \{|partition\d+\()", lowered.artifacts["ttgir"].decode(), flags=re.MULTILINE
    )


def consumers(plan: WgmmaKernel, lowered: Lowered) -> list[str]:
    """The text of each consumer; without warp specialization that of the kernel, behind its barriers."""
    if plan.specialized:
        return regions(lowered)[1 : 1 + plan.consumers]
    return [lowered.artifacts["ttgir"].decode().rpartition("ttng.init_barrier")[2]]


def parts_of(plan: WgmmaKernel, number: int) -> int:
    """The parts of a consumer: of a staggered tile the second one has all but the last."""
    return len(plan.column_parts) - (plan.staggered and number > 0)


def multiply(plan: WgmmaKernel, number: int = 0) -> str:
    """The K loop of a consumer."""
    if plan.schedule_kind == "single_tile":
        return "multiply_once"
    if plan.synchronous:
        return "multiply_synchronous"
    if plan.problem.scales_sums:
        pace = "_slabs" if slabs_of(plan) > 1 else ""
        pace = "_blocks" if plan.step_blocks > 1 else "_overlapped" if plan.scales_in_flight else pace
        four = "_of_four" if plan.step_blocks > 2 else ""
        return f"multiply_scaled{pace}{four}{'' if plan.specialized else '_refill'}"
    if plan.promote_k:
        return "multiply_promoted"
    pace = "overlapped" if plan.outstanding_mmas else "in_order"
    if parts_of(plan, number) > 1 and plan.composed:
        refill = "" if plan.specialized else "_refill"
        three = "_of_three" if parts_of(plan, number) > 2 else ""
        return f"multiply_parts_{'prefetched' if plan.fragments > 1 else pace}{refill}{three}"
    if plan.read_early and not plan.specialized:
        return f"multiply_{pace}_early"
    refills = plan.outstanding_mmas and not plan.specialized
    return f"multiply_{pace}{'_refill' if refills else ''}"


def consumer_parts(plan: WgmmaKernel, number: int = 0) -> Iterator[str]:
    """What a consumer does, in order."""
    if plan.specialized and plan.dependent:
        yield "ahead"
    if plan.ping_pong and not epilogue_loads(plan):
        yield "turn_begin"
    if plan.splits == 1:
        yield from epilogue_loads(plan)
    yield multiply(plan, number)
    if plan.specialized and issues(plan) > slabs_of(plan) and not plan.problem.scales_sums:
        yield from ["release"] * len(plan.resources.load_empty)
    if plan.reduces_apart:
        yield "leave_sums"
        return
    if plan.splits > 1:
        kind = "_atomic" if plan.reduction == "atomic" else ""
        yield f"is_last{kind}"
        yield from epilogue_loads(plan)
        yield f"sum_of_splits{kind}"
    if plan.ping_pong and not epilogue_loads(plan):
        yield "turn_end"
    yield from store_parts(plan, number)


def epilogue_loads(plan: WgmmaKernel) -> list[str]:
    vectors = plan.problem.vectors
    loads = ["load_vectors", *["load_vector"] * len(vectors)] if vectors else []
    return loads + (["load_c"] * plan.epilogue_buffers if plan.problem.c else [])


def stores(plan: WgmmaKernel) -> int:
    """The stores of a sub-tile: of each matrix of D, and of saved sums, in one box if they are in turn."""
    problem = plan.problem
    saved = (1 if problem.interleaved else problem.b_blocks) * problem.saves
    return (problem.d_blocks if problem.d_in_blocks else 1) + saved


def store_parts(plan: WgmmaKernel, number: int) -> Iterator[str]:
    """The epilogue of a consumer, by sub-tiles."""
    if plan.problem.vectors:
        yield "await_vectors"
    columns = sum(plan.column_parts[: parts_of(plan, number)]) // plan.problem.b_blocks
    for subtile in range(max(1, columns // plan.subtile_n)):
        if plan.problem.c:
            yield "read_c"
            yield from ["load_c"] * (subtile + plan.epilogue_buffers < plan.subtiles)
        freed = plan.frees_buffers_early and subtile < plan.epilogue_buffers
        once = freed or not (plan.persistent or plan.subtiles > 1)
        yield "store_once" if once else "store" if stores(plan) == 1 else "store_several"
        yield from ["store_further"] * (stores(plan) - 2)
    yield "store_end"


def blocks(plan: WgmmaKernel) -> int:
    """The blocks of columns of B that are loaded one by one."""
    return plan.problem.b_blocks if plan.problem.in_blocks else 1


def load_parts(plan: WgmmaKernel, operand: str, stage: str) -> list[str]:
    """The loads of an operand for a K step: A has one for each share of the rows, in PTX for each span."""
    tiles = plan.row_shares if operand == "a" else len(plan.column_parts) * blocks(plan)
    boxes = plan.loads(operand) if stage == "ptx" else tiles
    scales = ["load"] * plan.stage.loads.get(f"{operand}_scale", 0)
    return [*["load_multicast" if operand in plan.multicast else "load"] * boxes, *scales]


def producer_parts(plan: WgmmaKernel, stage: str) -> Iterator[str]:
    """The loads of a K step: what is multicast comes last."""
    if plan.read_early:
        yield from early_producer_parts(plan, stage)
        return
    if plan.dependent and stage == "ttgir":  # PTX has the consumers' wait first, and their loop behind it
        yield "ahead"
        yield from ["trigger"] * (plan.trigger == "loads")
    yield "producer"
    for operand in sorted(("a", "b"), key=lambda operand: operand in plan.multicast):
        yield from ["await_group"] * (operand in plan.multicast)
        yield from load_parts(plan, operand, stage)
    yield "producer_end"


def early_producer_parts(plan: WgmmaKernel, stage: str) -> Iterator[str]:
    """One operand of the first steps, the wait, both of the others; where PTX has the late one varies."""
    early, late = "ab" if plan.read_early == "a" else "ba"
    yield "producer_early"
    yield from load_parts(plan, early, stage)
    yield "ahead"
    yield from ["trigger"] * (plan.trigger == "loads")
    expect = "expect_after_scales" if plan.problem.scales_sums else "expect"
    later = ["producer_later", *["await_group"] * len(plan.multicast), expect]
    later += load_parts(plan, early, stage)
    yield from later
    if stage == "ttgir":
        yield from ("producer_late", *load_parts(plan, late, stage), "producer_end")


def operand_parts(plan: WgmmaKernel) -> list[str]:
    lone = plan.a_source == "registers" and not plan.composed
    return ["operands_a_registers"] if lone else []


def definition(text: str, value: str, end: int) -> str:
    """The operation whose result a value is, of those before a place; empty for what is handed in."""
    found = re.findall(rf"^ *{re.escape(value)} = ([\w.]+)", text[:end], re.MULTILINE)
    return found[-1] if found else ""


def check(text: str, plan: WgmmaKernel, stage: str, *names: str) -> None:
    """Match the directives of some parts, in order, against the text of a stage."""
    problem = plan.problem
    columns = plan.vector_columns if plan.composed else plan.cta_tile_n
    extents = {v: plan.cta_consumer_tile_m if v.startswith("row") else columns for v in problem.vectors}
    values = {
        "STAGE_BYTES": plan.stage_bytes,
        "PENDINGS": (plan.epilogue_buffers - 1) * stores(plan),
        "D_RANK": 3 if problem.d_in_blocks else 2,
        "MMA": mma(plan),
        "LAST_MMA": mma(plan, -1),
        "GROUPS": max((barrier.scope.groups for barrier in plan.barriers), default=0),
        "STMATRIX": stmatrix(plan),
        "K_WIDTH": 32 // problem.a.dtype.bits,
        "C_BYTES": plan.subtile_bytes(problem.c) if problem.c else 0,
        "C_TYPE": MLIR_TYPES[problem.c.name] if problem.c else "",
        "VECTOR_BYTES": sum(extent * problem.vector_dtype(v).bytes for v, extent in extents.items()),
    }
    filecheck_files(text, (DIRECTIVES / f"{name}.{stage}.check" for name in names), values)


def test_the_kernel_has_one_partition_per_role(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    prologue, *partitions = regions(lowered)
    if not plan.specialized:
        assert partitions == []
        return
    assert len(partitions) == len(plan.partitions)
    warps = [int(re.findall(r"\) num_warps\((\d+)\)", partition)[0]) for partition in partitions[1:]]
    assert warps == [worker.warps for worker in plan.workers]
    requested = ", ".join(str(worker.registers) for worker in plan.workers)
    asked = f"requestedRegisters = array<i32: {requested}>" if plan.register_pool.handed_over else ""
    assert re.findall(r"requestedRegisters = array<[^>]*>", prologue) == [asked] * bool(asked)


def test_every_barrier_is_initialised_before_the_partitions_start(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    prologue, *partitions = regions(lowered)
    counts = sorted(int(n) for n in re.findall(r"ttng\.init_barrier %\w+, (\d+)", prologue))
    # The kernel writes arrivals per CTA: the compiler multiplies those of a barrier of several CTAs.
    per_cta = [b.count for b in plan.barriers for _ in range(b.ring.depth)]
    assert counts == sorted(per_cta)
    assert not any("ttng.init_barrier" in partition for partition in partitions)


@pytest.mark.parametrize("product", STRUCTURES, indirect=True, ids=lambda path: path.stem)
def test_a_consumer_waits_multiplies_releases_and_stores(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    for number, consumer in enumerate(consumers(plan, lowered)):
        check(consumer, plan, "ttgir", *consumer_parts(plan, number))
        # One release per step of the code, on each barrier that counts it, and one turn.
        steps = consumer.count("ttng.warp_group_dot ")
        assert steps == issues(plan) * parts_of(plan, number)
        steps //= parts_of(plan, number) * slabs_of(plan) * plan.step_blocks
        releases = steps * len(plan.resources.load_empty) + plan.ping_pong if plan.specialized else 0
        assert consumer.count("ttng.arrive_barrier") == releases


@pytest.mark.parametrize("product", PING_PONG, indirect=True, ids=lambda path: path.stem)
def test_consumers_that_take_turns_multiply_in_between(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    for consumer in consumers(plan, lowered):
        tile = consumer[consumer.index("scf.for %item") :]
        check(tile, plan, "ttgir", "turn_begin", multiply(plan))
        of_loop = plan.problem.scales_sums  # its directives have the release
        releases = [] if of_loop else ["release"] * len(plan.resources.load_empty)
        check(tile, plan, "ttgir", "turn_begin", multiply(plan), *releases, "turn_end")


def test_the_operands_reach_the_instruction_as_they_are_stored(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    text = consumers(plan, lowered)[0]
    for part in operand_parts(plan):
        check(text, plan, "ttgir", part)
    dots = list(re.finditer(r"ttng\.warp_group_dot (%[\w.]+), (%[\w.]+),", text))
    assert dots
    for dot in dots:
        first, second = (definition(text, value, dot.start()) for value in dot.groups())
        majors = (plan.problem.a.major, plan.problem.b.major)
        # A tile stored [K, M], or [N, K], is read the other way round; others as they are stored.
        if plan.composed and plan.a_source == "registers":
            assert first in (
                "ttg.local_load",
                "ttg.convert_layout",
            )  # of what was loaded, to the same registers
        elif plan.a_source == "registers":
            assert first == "ttg.local_load"
        else:
            assert (first == "ttg.memdesc_trans") == (majors[plan.swap_ab] == "mn")
        assert (second == "ttg.memdesc_trans") == (majors[not plan.swap_ab] == "k")


@pytest.mark.parametrize("product", STRUCTURES, indirect=True, ids=lambda path: path.stem)
def test_the_producer_waits_expects_and_loads(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    if not plan.specialized:
        return
    region = regions(lowered)[-1]
    check(region, plan, "ttgir", *producer_parts(plan, "ttgir"))
    assert not re.search("warp_group_dot|local_to_global|local_store", region)
    # Each operand, and each part of B, has a descriptor of its own: loads cannot be taken for each other's.
    found = re.findall(r"async_tma_copy_global_to_local (%\w+)\[(.*)", region)
    loads = [(descriptor, re.search(r"\bmulticast\}", rest)) for descriptor, rest in found]
    parts = [f"b{part}" for part in range(len(plan.column_parts))]
    of_operand = {"a": ["a"] * plan.row_shares, "b": parts * blocks(plan)}
    if plan.problem.scales_sums:
        of_operand["a"] = ["a", "a_scale"] * plan.row_shares
        of_operand["b"] += ["scale_of_b"] * ("b_scale" in plan.stage.tensors)
    order = sorted("ab", key=lambda operand: operand in plan.multicast)
    if plan.read_early:  # ahead of the loop, and in it
        early, late = "ab" if plan.read_early == "a" else "ba"
        order = [early, early, late]
    expected = [
        (tile, tile.partition("0")[0] in plan.multicast) for operand in order for tile in of_operand[operand]
    ]
    tiles = dict.fromkeys(tile for tile, _ in expected)
    names = dict(zip(dict.fromkeys(descriptor for descriptor, _ in loads), tiles, strict=True))
    assert [(names[descriptor], bool(multicast)) for descriptor, multicast in loads] == expected


@pytest.mark.parametrize("product", STRUCTURES, indirect=True, ids=lambda path: path.stem)
def test_the_instructions_of_each_role_come_in_order(product: Product, lowered: Lowered) -> None:
    plan = hopper(product.plan)
    check(ptx(lowered), plan, "ptx", multiply(plan))
    if not plan.reduces_apart:
        waits = ["store_wait"] if plan.persistent or plan.subtiles > 1 else []
        check(ptx(lowered), plan, "ptx", *[*waits, f"store_{plan.problem.d.bits}bit"] * plan.subtiles)
    if plan.specialized:
        check(ptx(lowered), plan, "ptx", *producer_parts(plan, "ptx"))


def test_every_file_of_directives_is_used_by_a_committed_spec() -> None:
    used: set[str] = set()
    for plan in (hopper(made(spec).plan) for spec in HOPPER_SPECS):
        ttgir = [*consumer_parts(plan), *consumer_parts(plan, plan.consumers - 1), *operand_parts(plan)]
        ttgir += ["turn_begin", "turn_end"] if plan.ping_pong else []
        ptx = [multiply(plan), f"store_{plan.problem.d.bits}bit", "store_wait"]
        if plan.specialized:
            ttgir += producer_parts(plan, "ttgir")
            ptx += producer_parts(plan, "ptx")
        used |= {f"{part}.ttgir.check" for part in ttgir} | {f"{part}.ptx.check" for part in ptx}
    assert {path.name for path in DIRECTIVES.iterdir()} == used


# --- what the compiler does not confirm


@pytest.fixture(scope="module")
def plain() -> Product:
    """Two consumers, one CTA, 128 x 256 x 64 in four stages."""
    return make(ROOT / "specs" / "h100_bf16.yaml")


def diagnostics(source: str, plan: WgmmaKernel, stem: str = "planted") -> list[str]:
    """What `lower` says of a module's text and a plan that do not belong together."""
    with pytest.raises(GemmgenError) as caught:
        lower(source, plan, path="specs/planted.yaml", stem=stem)
    return [str(diagnostic) for diagnostic in caught.value.diagnostics]


def planted(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_every_difference_between_plan_and_compiler_is_reported(plain: Product) -> None:
    # Four consumers of four warps and the producer's padded group: 20 warps.
    plan = replace(
        computing(hopper(plain.plan), accumulator=DTYPES["fp16"]),
        cta_tile_n=128,
        mma_n=128,
        consumers=4,
        cluster_m=2,
        consumer_registers=104,
        producer_registers=24,
    )
    assert plan.register_pool.default_registers == 144  # (96 * 20 - 4 * (3 * 104 + 24)) / 4
    prefix = "specs/planted.yaml: error[plan-differs]: the plan"
    compiled = "wgmma m64n256k16.f32.bf16.bf16"
    # By its name, under which it is compiled above.
    assert diagnostics(plain.module, plan, plain.source.stem) == [
        f"{prefix} has {plan.smem_bytes:,} bytes of shared memory, the compiler {plain.plan.smem_bytes:,}",
        f"{prefix} has 20 warps, the compiler 12",
        f"{prefix} multiplies with wgmma m64n128k16.f16.bf16.bf16, the compiler with {compiled}",
        f"{prefix} starts with 96 registers per thread, the compiler with 168",
        f"{prefix} has setmaxnreg 24, 56, 104, 144, 256, the compiler 40, 120, 232, 256",
        f"{prefix} has 1 multicast loads, the compiler 0",
    ]


def test_operands_of_another_type_are_a_difference() -> None:
    # fp16 operands have the shape of bf16's instruction and as many bytes.
    product = make(ROOT / "specs" / "h100_bf16.yaml")
    half = Operand(DTYPES["fp16"], "k")
    plan = computing(hopper(product.plan), a=half, b=half)
    (found,) = diagnostics(product.module, plan)
    assert found.endswith(
        "multiplies with wgmma m64n256k16.f32.f16.f16, the compiler with wgmma m64n256k16.f32.bf16.bf16"
    )


def test_a_launch_that_two_ctas_cannot_share_is_a_difference() -> None:
    product = make(ROOT / "specs" / "h100_bf16_blocked.yaml")
    source = re.sub(r' "maxnreg": \d+,', "", product.module)
    assert source != product.module
    (found,) = diagnostics(source, hopper(product.plan))
    limit = hopper(product.plan).launch_register_limit
    assert found.endswith(f"the plan starts with {limit} registers per thread, the compiler with any number")


def test_a_load_that_is_not_multicast_is_a_difference() -> None:
    product = make(ROOT / "tests" / "kinds" / "small" / "h100_bf16_cluster1x2.yaml")
    both = "ready, a_tile, multicast=True)"  # the load of each consumer's rows
    (found,) = diagnostics(
        planted(product.module, both, both.replace(", multicast=True", "")), hopper(product.plan)
    )
    assert found.endswith("the plan has 2 multicast loads, the compiler 0")


def test_a_stage_that_the_plan_does_not_have_is_a_difference_to_the_byte(plain: Product) -> None:
    source = planted(plain.module, "STAGES = gl.constexpr(4)", "STAGES = gl.constexpr(3)")
    # One stage less of A and of B, 49,152 bytes, and of two barriers, whose rings of 24 bytes end in padding.
    smem_bytes = replace(hopper(plain.plan), stages=3).smem_bytes
    assert smem_bytes == hopper(plain.plan).smem_bytes - 49_152 - 8
    (found,) = diagnostics(source, hopper(plain.plan))
    difference = f"{hopper(plain.plan).smem_bytes:,} bytes of shared memory, the compiler {smem_bytes:,}"
    assert found == f"specs/planted.yaml: error[plan-differs]: the plan has {difference}"


def test_spills_and_serialized_mmas_are_differences() -> None:
    # One consumer of four warps instead of eight: its accumulator would take 256 registers per thread.
    product = make(ROOT / "specs" / "h100_bf16_one_consumer.yaml")
    source = planted(product.module, "warps_per_cta=[8, 1]", "warps_per_cta=[4, 1]")
    source = planted(source, '"num_warps": 8', '"num_warps": 4')
    found = "\n".join(diagnostics(source, hopper(product.plan)))
    assert "error[plan-differs]: the plan has 12 warps, the compiler 8\n" in found
    spilled = r"registers spill: \d+ bytes stored, \d+ loaded, \d+ of stack"
    assert re.search(rf"{spilled}; try \d+ for [a-z_.]+\n", found)
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
    "a kernel that names what there is not": (
        "ring = RingPosition(gl.to_tensor(0), gl.to_tensor(1))",
        "ring = RingPosition(absent, gl.to_tensor(1))",
        "absent is not defined",
    ),
    "a kernel with an illegal shape": (
        "gl.zeros((CONSUMER_TILE_M, PROGRAM_TILE_N)",
        "gl.zeros((CONSUMER_TILE_M, 100)",
        "Shape element 1 must be a power of 2",
    ),
    "a module that cannot be imported": ("import warnings\n", "import absent\n", "No module named 'absent'"),
    "a module that is no Python": ("import warnings\n", "import functools)\n", "SyntaxError: unmatched"),
    "a module that ends the process": (
        "import warnings\n",
        "import functools, sys\nsys.exit(3)\n",
        "no message",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_compiler_refuses_is_one_diagnostic(plain: Product, name: str) -> None:
    old, new, message = REFUSED[name]
    (found,) = diagnostics(planted(plain.module, old, new), hopper(plain.plan))
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
    assert (
        lower(plain.module, hopper(plain.plan), path="x", stem="x").resources.smem_bytes
        == hopper(plain.plan).smem_bytes
    )


def test_a_compiler_that_hangs_is_ended(plain: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("gemmgen.lower"), "TIMEOUT_SECONDS", 1)
    source = planted(plain.module, "import warnings\n", "import functools\nimport time\ntime.sleep(60)\n")
    assert diagnostics(source, hopper(plain.plan)) == [
        "specs/planted.yaml: error[lowering-failed]: the compiler did not finish within 1 seconds"
    ]
