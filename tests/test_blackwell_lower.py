"""Blackwell modules as the compiler makes them: the promised instructions, in order, in the promised number.

No Blackwell GPU has run any of them. That shared memory, tensor memory, registers and the number of each
operation are the plan's is what ``lower`` itself confirms; a difference would fail every test here.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from modules import BLACKWELL_SPECS, ROOT, made

from gemmgen.errors import GemmgenError
from gemmgen.lower import Lowered, lower, verdict_on
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.verdicts import verdict_of
from gemmgen.product import Product, make

FEWEST_SPECS = 20
ONE_OF_EACH = [
    *{
        (plan.mma_kind, plan.paired, plan.cluster_size): spec
        for spec in BLACKWELL_SPECS
        for plan in [made(spec).plan]
        if isinstance(plan, Tcgen05Kernel)
    }.values()
]
"""One for each kind of instruction and each number of CTAs."""
GENERIC = re.compile(r"tcgen05\.mma\.cta_group::(\d)\.kind::([\w.]+)")


@pytest.fixture(scope="session", params=BLACKWELL_SPECS, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each committed Blackwell spec."""
    return made(request.param)


def plan_of(product: Product) -> Tcgen05Kernel:
    assert isinstance(product.plan, Tcgen05Kernel)
    return product.plan


def roles(product: Product, lowered: Lowered) -> dict[str, str]:
    """The text of each partition in TTGIR, and of what comes before them."""
    text = lowered.artifacts["ttgir"].decode()
    prologue, *bodies = re.split(r"^ *(?:default \{|partition\d+\()", text, flags=re.MULTILINE)
    named = dict(zip((role.name for role in product.plan.partitions), bodies, strict=True))
    return {"prologue": prologue} | named


def in_order(text: str, *patterns: str) -> None:
    """Assert that the patterns are found one behind the other."""
    position = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, position)
        assert found, f"{pattern} is not behind {text[max(0, position - 200) : position]!r}"
        position = found.end()


# --- PTX


@pytest.mark.sample(4)
def test_the_instruction_has_the_kind_and_the_ctas_of_the_plan(product: Product, lowered: Lowered) -> None:
    plan, ptx = plan_of(product), lowered.artifacts["ptx"].decode()
    assert set(GENERIC.findall(ptx)) == {(str(1 + plan.paired), plan.mma_kind)}
    assert ptx.count("tcgen05.mma.") == plan.mmas_per_step
    assert "trap;" not in ptx
    assert ".target sm_100a" in ptx


def test_nothing_spills_and_the_plan_is_the_compilers(product: Product, lowered: Lowered) -> None:
    found = lowered.resources
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)
    assert verdict_on(product.plan, found) == verdict_of(product.plan)
    assert found.smem_bytes == product.plan.smem_bytes <= 232_448
    assert found.tmem_columns == product.plan.tmem_columns <= 512
    assert found.setmaxnreg == product.plan.register_pool.requests
    assert not found.traps
    assert {name: found.operations[name] for name in product.plan.operations} == product.plan.operations


def test_what_ctas_share_is_multicast_and_only_that(product: Product, lowered: Lowered) -> None:
    plan, ptx = plan_of(product), lowered.artifacts["ptx"].decode()
    loads = re.findall(r"cp\.async\.bulk\.tensor\S*mbarrier::complete_tx\S*", ptx)
    shared = [load for load in loads if "multicast::cluster" in load]
    assert len(shared) == sum(map(plan.loads, plan.multicast))
    # What the epilogue loads arrives on its own CTA's barrier, what fills a stage on the pair's.
    of_pairs = [load for load in loads if ".cta_group::2" in load]
    assert len(of_pairs) == (len(loads) - plan.epilogue_loads) * plan.paired
    commits = re.findall(r"tcgen05\.commit\S*", ptx)
    # A stage is every CTA's that shares its tiles, a sum the pair's.
    told = sorted(".multicast::cluster" in commit for commit in commits)
    assert told == sorted([plan.cluster_size > 1, plan.paired])
    assert all(f".cta_group::{1 + plan.paired}." in commit for commit in commits)


def test_launch_control_asks_and_answers_where_it_is_planned(product: Product, lowered: Lowered) -> None:
    plan, ptx = plan_of(product), lowered.artifacts["ptx"].decode()
    asked = re.findall(r"clusterlaunchcontrol\.try_cancel\S*", ptx)
    assert len(asked) == plan.launch_control
    assert all((".multicast::cluster::all" in request) == (plan.cluster_size > 1) for request in asked)
    # Every role reads every answer.
    readers = len(plan.partitions) if plan.launch_control else 0
    assert ptx.count("clusterlaunchcontrol.query_cancel.is_canceled") == readers


# As of Hopper modules: the disassembler takes a third of a second, and of others ptxas has told the same.
@pytest.mark.sample(5)
@pytest.mark.parametrize("product", ONE_OF_EACH, indirect=True, ids=lambda path: path.stem)
def test_the_machine_code_multiplies_on_the_tensor_cores(sass: str) -> None:
    assert re.search(r"\bUTC\w*MMA", sass)
    assert "UTMALDG.2D" in sass
    assert "UTMASTG.2D" in sass
    assert re.findall(r"\b(?:LDL|STL)\b.*", sass) == []


# --- TTGIR, role by role


def test_barriers_of_a_pair_are_the_pairs_and_are_initialised_first(
    product: Product, lowered: Lowered
) -> None:
    plan, text = plan_of(product), roles(product, lowered)
    counts = sorted(int(n) for n in re.findall(r"ttng\.init_barrier %\w+, (\d+)", text["prologue"]))
    # What the kernel writes are arrivals per CTA.
    per_cta = [bar.count for bar in plan.barriers for _ in range(bar.ring.depth)]
    assert counts == sorted(per_cta)
    assert not any("ttng.init_barrier" in body for name, body in text.items() if name != "prologue")


def test_the_load_warp_waits_announces_and_loads(product: Product, lowered: Lowered) -> None:
    plan, body = plan_of(product), roles(product, lowered)["load"]
    operands = ("a", "b", *(("a_scale", "b_scale") if plan.problem.block_scaled else ()))
    loads = [
        r"ttng\.async_tma_copy_global_to_local .*"
        + (r"\{multicast\}" if operand in plan.multicast else r"%true\w* : ")
        for operand in operands
    ]
    in_order(body, r"ttng\.wait_barrier", rf"ttng\.barrier_expect %\w+, {plan.stage.awaited_bytes}, ", *loads)
    assert body.count("ttng.async_tma_copy_global_to_local") == len(operands)
    assert not re.search(r"tc_gen5|ttng\.tmem_|local_to_global", body)


def test_the_mma_warp_waits_copies_scales_multiplies_and_commits(product: Product, lowered: Lowered) -> None:
    plan, body = plan_of(product), roles(product, lowered)["mma"]
    copies = [r"ttng\.tmem_copy"] * (2 if plan.problem.block_scaled else 0)
    multicast = ", multicast" if plan.cluster_size > 1 else ""
    pair = ", two_ctas" if plan.paired else ""
    scaled = "_scaled" if plan.problem.block_scaled else ""
    mma = rf"ttng\.tc_gen5_mma{scaled} .*\{{is_async{multicast}{pair}\}}"
    in_order(
        body,
        r"ttng\.wait_barrier",
        r"scf\.for %k_step",
        r"ttng\.wait_barrier",
        *copies,
        mma,
        r"ttng\.tc_gen5_commit",
    )
    assert body.count("ttng.tc_gen5_mma") == 1
    assert body.count("ttng.tc_gen5_commit") == 1
    assert not re.search(r"tma_copy|tmem_load|local_store", body)


def test_the_epilogue_reads_releases_and_stores(product: Product, lowered: Lowered) -> None:
    plan, body = plan_of(product), roles(product, lowered)["epilogue"]
    pendings = plan.epilogue_buffers - 1 if plan.subtiles > 1 else 0
    store = [
        rf"ttng\.async_tma_store_wait \{{pendings = {pendings} : i32",
        r"ttg\.local_store",
        r"ttng\.fence_async_shared",
        r"ttng\.async_tma_copy_local_to_global",
    ]
    first = [*[r"ttng\.tmem_load", *store] * (plan.subtiles - 1)]
    last = [r"ttng\.tmem_load", r"ttng\.arrive_barrier", *store]
    in_order(body, r"ttng\.wait_barrier", *first, *last, r"async_tma_store_wait \{pendings = 0 : i32")
    # The sums are released once a tile, and not before the last of them is read.
    assert body.count("ttng.tmem_load") == plan.subtiles
    assert body.count("ttng.arrive_barrier") == 1 + plan.launch_control
    assert body.index("ttng.arrive_barrier") > body.rindex("ttng.tmem_load")


def test_the_epilogue_loads_what_it_reads_before_it_waits_for_the_sums(
    product: Product, lowered: Lowered
) -> None:
    plan, body = plan_of(product), roles(product, lowered)["epilogue"]
    problem, copy = plan.problem, r"ttng\.async_tma_copy_global_to_local"
    vectors = len(problem.vectors)
    first = vectors + (plan.epilogue_buffers if problem.c else 0)
    before, *behind = re.split(r"ttng\.tmem_load", body)
    # Behind the wait for the sums no more is loaded than what a buffer of C takes after its first part.
    awaited = before.rindex("ttng.wait_barrier") if not vectors else before.index("ttng.wait_barrier")
    assert len(re.findall(copy, before[:awaited])) == first
    refills = plan.subtiles - plan.epilogue_buffers if problem.c else 0
    assert [len(re.findall(copy, part)) for part in behind] == [1] * refills + [0] * (len(behind) - refills)
    # Before TMA writes where threads have read, a fence; and before a part of C is read, a wait for it.
    fences = bool(vectors) + (plan.subtiles if problem.c else 0)
    assert body.count("ttng.fence_async_shared") == plan.subtiles + fences
    assert body.count("ttng.barrier_expect") == plan.awaited_loads
    assert body.count("ttng.wait_barrier") == 1 + plan.awaited_loads + plan.launch_control


def test_all_warps_have_read_before_one_thread_releases_the_sums(product: Product, lowered: Lowered) -> None:
    ptx = lowered.artifacts["ptx"].decode()
    epilogue = ptx[ptx.index("tcgen05.ld.") :]
    in_order(epilogue, r"tcgen05\.wait::ld", r"bar\.sync \t0, 128", r"mbarrier\.arrive\.shared")
    last_read = epilogue.rindex("tcgen05.wait::ld")
    released = epilogue.index("mbarrier.arrive.shared")
    assert "bar.sync" in epilogue[last_read:released]


# --- the corpus, and differences


def test_the_specs_have_every_format_pair_on_one_cta_and_on_a_pair() -> None:
    plans = [plan_of(make(spec)) for spec in BLACKWELL_SPECS]
    assert len(plans) >= FEWEST_SPECS
    scaled = [plan for plan in plans if plan.problem.block_scaled]
    formats = {
        (plan.problem.a.scale.format.name, plan.problem.b.scale.format.name, plan.paired)
        for plan in scaled
        if plan.problem.a.scale and plan.problem.b.scale
    }
    pairs = [
        ("mxfp8", "mxfp8"),
        ("mxfp4", "mxfp4"),
        ("nvfp4", "nvfp4"),
        ("mxfp8", "mxfp4"),
        ("mxfp4", "mxfp8"),
    ]
    assert formats == {(*pair, paired) for pair in pairs for paired in (False, True)}
    assert {plan.schedule_kind for plan in scaled} == {"persistent", "launch_control"}
    assert {plan.cta_tile_k for plan in scaled} == {128, 256}
    assert {32, 64, 256} <= {plan.subtile_n for plan in scaled}
    assert {plan.accumulators for plan in scaled} == {1, 2}
    dense = {plan.problem.a.dtype.name for plan in plans if not plan.problem.block_scaled}
    assert dense == {"bf16", "fp16", "tf32", "e4m3", "e5m2"}
    assert {plan.cluster_size for plan in plans} == {1, 2, 4}


def test_the_search_spec_has_all_that_the_public_example_tries() -> None:
    """128 rows a CTA; 2 tiles of N and of K; 1 or 2 CTAs, accumulators, ways to go; 3 widths and rings."""
    search = make(ROOT / "specs" / "b200_nvfp4_search.yaml").source.spec.search
    assert search == {
        "tile.m": (128,),
        "tile.n": (128, 256),
        "tile.k": (128, 256),
        "epilogue.subtile_n": (64, 128, 256),
        "cluster.m": (1, 2),
        "schedule.kind": ("launch_control", "persistent"),
        "schedule.minor": ("m", "n"),
        "schedule.width": (4, 8, 16),
        "buffering.stages": (3, 4, 5),
        "buffering.accumulators": (1, 2),
    }


def test_every_difference_is_reported() -> None:
    product = make(ROOT / "specs" / "b200_nvfp4.yaml")
    plan = plan_of(product)
    changed = replace(plan, accumulators=2, cta_tile_k=128, cluster_m=1, worker_registers=48)
    with pytest.raises(GemmgenError) as raised:
        lower(product.module, changed, path="x.yaml", stem=product.source.stem)  # as it is compiled above
    text = str(raised.value)
    # 2 x 256 columns and 8 + 16 of scales are 536, which the compiler would round up to 576.
    assert "the plan has 576 columns of tensor memory, the compiler 512" in text
    assert "the plan multiplies with tcgen05 cta_group::1.kind::mxf4nvf4.block_scale.block16" in text
    assert "the plan has 2 tcgen05.mma in its code, the compiler 4" in text
    assert "the plan has setmaxnreg 48, 256, the compiler 40, 256" in text
