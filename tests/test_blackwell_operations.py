"""The inner loops are tight: hand-derived minima are the plan's, the compiler's, and the document's.

No Blackwell GPU has run any of it: what is counted is PTX and machine code.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import BLACKWELL_SPECS

from gemmgen.errors import GemmgenError
from gemmgen.lower import Lowered, disassemble, lower
from gemmgen.plan.blackwell import Tcgen05Plan
from gemmgen.product import Product, make
from gemmgen.target import MMA_KINDS, PADDED_K, SCALE_FORMATS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "blackwell.md").read_text()
COMPARED = "b200_nvfp4"
"""The spec that the document compares with the public example."""

# TMA loads, copies of scales and MMAs of a K step, and stores of a tile; all of one CTA.
#
# A load brings at most 256 rows of at most one swizzle's span, 128 bytes of K (or of M, N where those are
# contiguous); the scales of an operand come in one box. A copy moves 512 scales: 128 rows of 4. An MMA takes
# 32 bytes of K of the wider operand (as it lies in shared memory, where a padded element has a byte) and up
# to 256 columns. A store takes one sub-tile of N.
MINIMA = {
    # Dense, two bytes: 64 of K are 128 bytes, one load of A and one of B; 128 bytes are 4 MMAs.
    "b200_bf16": (1 + 1, 0, 4, 256 // 64),  # a pair: B's 256 columns are 128 in each CTA
    "b200_bf16_one_cta": (1 + 1, 0, 4, 128 // 32),
    "b200_bf16_cluster4x1": (1 + 1, 0, 4, 256 // 64),  # two pairs: B comes once for both, still one load
    "b200_bf16_cluster2x2": (1 + 1, 0, 4, 128 // 128),  # two pairs: A comes once for both
    "b200_fp16_gelu": (1 + 1, 0, 4, 256 // 32),
    # A K step of two spans: 128 of K are 256 bytes. Two loads of either operand, 256 / 32 MMAs.
    "b200_bf16_n64": (2 + 2, 0, 8, 64 // 32),
    # N contiguous: a CTA of the pair holds 128 columns of B, 256 bytes in a row, two spans of 64 rows.
    "b200_bf16_nn": (1 + 2, 0, 4, 256 // 128),
    # M and N contiguous: rows of 128 elements, 256 bytes, for both.
    "b200_bf16_tt": (2 + 2, 0, 4, 128 // 64),
    # Dense, one byte: 128 of K are 128 bytes. tf32 has four: 32 of K are 128 bytes.
    "b200_e4m3": (1 + 1, 0, 4, 256 // 64),
    "b200_e5m2_e4m3": (1 + 1, 0, 4, 128 // 64),
    "b200_tf32": (1 + 1, 0, 4, 256 // 64),
    # nvfp4, half a byte: 256 of K are 128 bytes and 256 / 16 = 16 scales of a row. A CTA has 128 rows of A,
    # 128 x 16 / 512 = 4 copies, and the scales of all columns of B: 256 x 16 / 512 = 8, of 128 columns 4.
    "b200_nvfp4": (1 + 1 + 2, 4 + 8, 4, 256 // 64),
    "b200_nvfp4_one_cta": (1 + 1 + 2, 4 + 4, 4, 128 // 32),
    "b200_nvfp4_search": (1 + 1 + 2, 4 + 4, 4, 128 // 64),
    "b200_nvfp4_wide_accumulators": (1 + 1 + 2, 4 + 4, 4, 128 // 128),
    # mxfp4: 256 / 32 = 8 scales of a row, 128 x 8 / 512 = 2 copies for A and 256 x 8 / 512 = 4 for B.
    "b200_mxfp4": (1 + 1 + 2, 2 + 4, 4, 256 // 64),
    # Half the K: 64 bytes, a swizzle of 64 that one load fills, 2 MMAs; 4 scales, 1 + 2 copies.
    "b200_mxfp4_one_cta": (1 + 1 + 2, 1 + 2, 2, 256 // 256),
    # mxfp8, a byte: 128 of K are 128 bytes and 4 scales: 128 x 4 / 512 = 1 copy for A, 2 for 256 columns.
    "b200_mxfp8": (1 + 1 + 2, 1 + 2, 4, 256 // 64),
    "b200_mxfp8_one_cta": (1 + 1 + 2, 1 + 1, 4, 128 // 32),
    # 256 of K are two spans and 8 scales: 128 x 8 / 512 = 2 copies for either.
    "b200_mxfp8_e5m2": (2 + 2 + 2, 2 + 2, 8, 128 // 64),
    # Mixed: padded fp4 has a byte an element in shared memory, so all is as for two times mxfp8.
    "b200_mxfp8_mxfp4": (1 + 1 + 2, 1 + 2, 4, 256 // 64),
    "b200_mxfp8_mxfp4_one_cta": (1 + 1 + 2, 1 + 1, 4, 128 // 64),
    "b200_mxfp4_mxfp8": (2 + 2 + 2, 2 + 2, 8, 128 // 64),
    "b200_mxfp4_mxfp8_one_cta": (1 + 1 + 2, 1 + 2, 4, 256 // 64),
}


def plan_of(stem: str) -> Tcgen05Plan:
    plan = make(ROOT / "specs" / f"{stem}.yaml").plan
    assert isinstance(plan, Tcgen05Plan)
    return plan


def test_every_committed_spec_has_a_minimum_derived_by_hand() -> None:
    assert set(MINIMA) == {spec.stem for spec in BLACKWELL_SPECS}


@pytest.mark.parametrize("stem", MINIMA)
def test_the_plan_promises_the_minimum_and_nothing_else(stem: str) -> None:
    plan = plan_of(stem)
    loads, copies, mmas, stores = MINIMA[stem]
    # A stage and an accumulator each have two sides that wait, and an MMA warp that commits. The load warp
    # announces bytes with the arrival that `load_ready` needs anyway; the epilogue arrives for the sums.
    expected = {
        "tcgen05.mma": mmas,
        "tcgen05.cp": copies,
        "tcgen05.commit": 1 + 1,
        "TMA load": loads,
        "TMA store": stores,
        "mbarrier wait": 2 + 2,
        "mbarrier arrive": 1,
        "mbarrier expect": 1,
        "launch control": 0,
    }
    if plan.schedule_kind == "launch_control":
        # All four roles wait for an answer and give it back; the scheduler waits for an empty slot, announces
        # 16 bytes and asks.
        expected["mbarrier wait"] += 4 + 1
        expected["mbarrier arrive"] += 4
        expected["mbarrier expect"] += 1
        expected["launch control"] += 1
    assert dict(plan.operations) == expected


# --- the compiler


@pytest.fixture(scope="module", params=[COMPARED, "b200_mxfp4_mxfp8"])
def built(request: pytest.FixtureRequest) -> tuple[Product, Lowered]:
    """A pair with launch control, and a static one with K steps of two spans and a padded operand."""
    product = make(ROOT / "specs" / f"{request.param}.yaml")
    return product, lower(product.module, product.plan, path=request.param, stem=request.param)


def innermost_loop(sass: str, operation: str) -> list[str]:
    """Return the instructions of the smallest loop that holds all instances of an operation."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := re.match(r"(LBB\d+):", line):
            labels[label[1]] = len(instructions)
        elif "\t" in line:
            instructions.append(line.split("\t", 1)[1])
    places = [i for i, text in enumerate(instructions) if re.search(operation, text)]
    assert places
    loops: list[list[str]] = []
    for end, text in enumerate(instructions):
        branch = re.search(r"\bBRA\S*\s.*?(?:(LBB\d+)|0x([0-9a-f]+));", text)
        if not branch:
            continue
        # Without a label the target is an address, and an instruction has 16 bytes.
        begin = labels[branch[1]] if branch[1] else int(branch[2], 16) // 16
        if begin <= places[0] and places[-1] <= end:
            loops.append(instructions[begin : end + 1])
    return min(loops, key=len)


def count(body: list[str], operation: str) -> int:
    return sum(1 for text in body if re.search(operation, text))


def test_the_compiler_confirms_the_minimum(built: tuple[Product, Lowered]) -> None:
    product, lowered = built
    assert dict(lowered.resources.operations) == dict(product.plan.operations)


def test_the_k_loops_of_the_machine_code_have_what_ptx_promised(built: tuple[Product, Lowered]) -> None:
    product, lowered = built
    loads, copies, mmas, _ = MINIMA[product.source.stem]
    sass = disassemble(lowered.artifacts["cubin"]).decode()
    multiply = innermost_loop(sass, r"\bUTC[A-Z]*MMA\b")
    load = innermost_loop(sass, r"\bUTMALDG\b")
    # A wait that fails spins outside of the loop's body, so that a try stands for it.
    wait, arrive, commit = r"\bSYNCS\.PHASECHK\b", r"\bSYNCS\.ARRIVE\b", r"\bUTCBAR\b"
    assert [count(multiply, what) for what in (r"\bUTC[A-Z]*MMA\b", r"\bUTCCP\b", commit, wait, arrive)] == [
        mmas,
        copies,
        1,
        1,
        0,
    ]
    assert [count(load, what) for what in (r"\bUTMALDG\b", arrive, wait, commit)] == [loads, 1, 1, 0]
    # Nothing else that synchronizes, and no memory but through TMA and the tensor cores.
    others = r"\b(?:BAR|MEMBAR|FENCE|LD[SGL]?|ST[SGL]?|LDTM|STTM|ATOM\w*|RED|NANOSLEEP)\b"
    assert [text for text in multiply + load if re.search(others, text)] == []


def test_a_barrier_operation_too_many_is_refused() -> None:
    product = make(ROOT / "specs" / "b200_bf16_one_cta.yaml")
    once = "            mbarrier.wait(load_ready.index(stage), load // STAGES & 1)\n"
    assert product.module.count(once) == 1
    with pytest.raises(GemmgenError) as error:
        lower(product.module.replace(once, once + once), product.plan, path="x.yaml", stem="x")
    assert str(error.value) == (
        "x.yaml: error[plan-differs] the plan has 9 mbarrier wait in its code, the compiler 10"
    )


# --- the document


def block(name: str) -> list[list[str]]:
    """Return the cells of the page's table between ``<!-- name -->`` and ``<!-- end -->``, without its head."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE, flags=re.DOTALL)
    assert found, f"docs/blackwell.md has no block {name}"
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines() if row]
    return rows[2:]


def operations_row(stem: str) -> list[str]:
    plan = plan_of(stem)
    found = plan.operations
    names = ("TMA load", "tcgen05.cp", "tcgen05.mma", "TMA store", "mbarrier wait", "mbarrier arrive")
    tile = f"{plan.cta_tile_m} x {plan.cta_tile_n} x {plan.cta_tile_k}"
    multicast = ", ".join(plan.multicast).replace("_", " ") or "none"
    cluster = f"{plan.cluster_m} x {plan.cluster_n}"
    kind = plan.schedule_kind.replace("_", " ")
    return [stem, tile, cluster, kind, multicast, *(str(found[name]) for name in names)]


def test_the_page_has_the_operations_of_every_plan() -> None:
    assert block("operations") == [operations_row(spec.stem) for spec in BLACKWELL_SPECS]


def test_the_page_has_the_formats_as_the_target_has_them() -> None:
    assert block("formats") == [formats_row(a, b, kind) for (a, b), kind in MMA_KINDS.items()]


def formats_row(a: str, b: str, kind: str) -> list[str]:
    """Return the elements, vector and scales of two formats, how e2m1 is packed, and K's alignment."""
    both = [SCALE_FORMATS[name] for name in dict.fromkeys((a, b))]
    elements = " / ".join(", ".join(one.elements) for one in both)
    (vector,), (dtype,) = {one.vector for one in both}, {one.dtype for one in both}
    if a != b:  # [gluon] with 8-bit elements e2m1 has to be padded
        return [f"{a} x {b}", elements, str(vector), dtype, "e2m1 padded", kind, str(PADDED_K)]
    # A byte is the least that a row has.
    packing, multiple = ("two in a byte", "2") if both[0].elements == ("e2m1",) else ("one in a byte", "1")
    return [f"{a} x {b}", elements, str(vector), dtype, packing, kind, multiple]


def test_the_page_has_the_barriers_of_the_compared_plan() -> None:
    plan = plan_of(COMPARED)
    expected = [[b.name, str(b.depth), str(b.arrivals)] for b in plan.barriers]
    assert [row[:3] for row in block("barriers")] == expected


def test_the_page_compares_what_the_plans_promise() -> None:
    claimed = {row[0]: (row[1], row[3]) for row in block("comparison")}
    claims = plan_of(COMPARED)
    static = replace(claims, schedule_kind="persistent")
    for name, found in claims.operations.items():
        assert claimed[name] == (str(found), str(static.operations[name])), name
    for name, plans in (("shared memory, bytes", "smem_bytes"), ("tensor memory, columns", "tmem_columns")):
        assert claimed[name] == tuple(f"{getattr(plan, plans):,}" for plan in (claims, static)), name
