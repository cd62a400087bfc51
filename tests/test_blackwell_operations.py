"""The inner loops are tight: hand-derived minima are the plan's, the compiler's, and the document's.

No Blackwell GPU has run any of it: what is counted is PTX and machine code.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from modules import BLACKWELL_SPECS, made, spec_file

from gemmgen.errors import GemmgenError
from gemmgen.hardware import MMA_KINDS, PADDED_K, SCALE_FORMATS
from gemmgen.lower import Lowered, lower
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.product import Product, make
from gemmgen.triton_api import disassemble

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "blackwell.md").read_text()
COMPARED = "b200_nvfp4"
"""The spec that the document compares with the public example."""

# Of the machine code. A wait that fails spins outside of the loop's body, in which one try stands for it.
MMA, COPY, COMMIT = r"UTC[A-Z]*MMA\b", r"UTCCP\b", r"UTCBAR\b"
LOAD, STORE, REQUEST = r"UTMALDG\b", r"UTMASTG\b", r"UGETNEXTWORKID\b"
TRY_WAIT, ARRIVE = r"SYNCS\.PHASECHK\b", r"SYNCS\.ARRIVE\b"
OTHERS = r"(?:BAR|MEMBAR|FENCE|LD[SGL]?|ST[SGL]?|LDTM|STTM|ATOM[A-Z]*|RED|NANOSLEEP)\b"

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
    "b200_bf16_rows64_cluster1x2": (1 + 1, 0, 4, 128 // 128),  # lone CTAs: each has all of its columns of B
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
    "b200_nvfp4_cluster4x1": (1 + 1 + 2, 4 + 4, 4, 128 // 64),  # B's scales come once for all four CTAs
    "b200_nvfp4_one_cta": (1 + 1 + 2, 4 + 4, 4, 128 // 32),
    "b200_nvfp4_search": (1 + 1 + 2, 4 + 8, 4, 256 // 64),
    "b200_nvfp4_two_accumulators": (1 + 1 + 2, 4 + 4, 4, 128 // 128),
    # mxfp4: 256 / 32 = 8 scales of a row, 128 x 8 / 512 = 2 copies for A and 256 x 8 / 512 = 4 for B.
    "b200_mxfp4": (1 + 1 + 2, 2 + 4, 4, 256 // 64),
    # Half the K: 64 bytes, a swizzle of 64 that one load fills, 2 MMAs; 4 scales, 1 + 2 copies.
    "b200_mxfp4_one_cta": (1 + 1 + 2, 1 + 2, 2, 256 // 256),
    # mxfp8, a byte: 128 of K are 128 bytes and 4 scales: 128 x 4 / 512 = 1 copy for A, 2 for 256 columns.
    "b200_mxfp8": (1 + 1 + 2, 1 + 2, 4, 256 // 64),
    "b200_mxfp8_cluster2x2": (1 + 1 + 2, 1 + 1, 4, 128 // 128),
    "b200_mxfp8_one_cta": (1 + 1 + 2, 1 + 1, 4, 128 // 32),
    # 256 of K are two spans and 8 scales: 128 x 8 / 512 = 2 copies for either.
    "b200_mxfp8_e5m2": (2 + 2 + 2, 2 + 2, 8, 128 // 64),
    # Mixed: padded fp4 has a byte an element in shared memory, so all is as for two times mxfp8.
    "b200_mxfp8_mxfp4": (1 + 1 + 2, 1 + 2, 4, 256 // 64),
    "b200_mxfp8_mxfp4_one_cta": (1 + 1 + 2, 1 + 1, 4, 128 // 64),
    "b200_mxfp4_mxfp8": (2 + 2 + 2, 2 + 2, 8, 128 // 64),
    "b200_mxfp4_mxfp8_one_cta": (1 + 1 + 2, 1 + 2, 4, 256 // 64),
    # What the epilogue reads comes besides: EPILOGUE_LOADS.
    "b200_bf16_bias_gelu": (1 + 1, 0, 4, 256 // 64),
    "b200_bf16_cluster_bias": (1 + 1, 0, 4, 128 // 128),
    "b200_bf16_residual": (1 + 1, 0, 4, 256 // 64),
    "b200_e4m3_quantized": (1 + 1, 0, 4, 128 // 64),
    "b200_e4m3_scaled": (1 + 1, 0, 4, 256 // 64),
    "b200_fp16_axpby": (1 + 1, 0, 4, 128 // 32),
    "b200_fp16_leaky_relu": (1 + 1, 0, 4, 128 // 64),
    "b200_mxfp8_bias": (1 + 1 + 2, 1 + 2, 4, 256 // 64),
    "b200_nvfp4_residual": (1 + 1 + 2, 4 + 8, 4, 256 // 64),
}

# TMA loads of a tile's C and vectors, and how often they are announced and awaited. A part of C is a load, as
# one of D is a store: of 128 rows of at most a swizzle's span, or a span for each warp. All vectors, a load
# each, arrive together.
EPILOGUE_LOADS = {
    "b200_bf16_bias_gelu": (1, 1),
    "b200_bf16_cluster_bias": (1 + 1, 1 + 1),  # C is stored whole: two spans, by two warps
    "b200_bf16_residual": (4 + 1, 4 + 1),
    "b200_e4m3_quantized": (3, 1),
    "b200_e4m3_scaled": (2, 1),
    "b200_fp16_axpby": (4, 4),
    "b200_fp16_leaky_relu": (1, 1),
    "b200_mxfp8_bias": (1, 1),
    "b200_nvfp4_residual": (4, 4),
}


@cache
def plan_of(stem: str) -> Tcgen05Kernel:
    plan = made(spec_file(stem)).plan
    assert isinstance(plan, Tcgen05Kernel)
    return plan


def test_every_committed_spec_has_a_minimum_derived_by_hand() -> None:
    assert set(MINIMA) == {spec.stem for spec in BLACKWELL_SPECS}
    reading = {stem for stem in MINIMA if plan_of(stem).problem.c or plan_of(stem).problem.vectors}
    assert set(EPILOGUE_LOADS) == reading


@pytest.mark.parametrize("stem", MINIMA)
def test_the_plan_promises_the_minimum_and_nothing_else(stem: str) -> None:
    plan = plan_of(stem)
    loads, copies, mmas, stores = MINIMA[stem]
    read, awaited = EPILOGUE_LOADS.get(stem, (0, 0))
    # A stage and an accumulator each have two sides that wait, and an MMA warp that commits. The load warp
    # announces bytes with the arrival that `load_ready` needs anyway; the epilogue arrives for the sums.
    expected = {
        "tcgen05.mma": mmas,
        "tcgen05.cp": copies,
        "tcgen05.commit": 1 + 1,
        "TMA load": loads + read,
        "TMA store": stores,
        "mbarrier wait": 2 + 2 + awaited,
        "mbarrier arrive": 1,
        "mbarrier expect": 1 + awaited,
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


SPEC = spec_file(COMPARED)
# A pair with launch control, and a static one with K steps of two spans and a padded operand.
confirmed = pytest.mark.parametrize(
    "product", [SPEC, ROOT / "specs" / "b200_mxfp4_mxfp8.yaml"], ids=lambda spec: spec.stem, indirect=True
)
compared = pytest.mark.parametrize("product", [SPEC], ids=[COMPARED], indirect=True)


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> tuple[Product, Lowered]:
    """The compared spec with a static schedule in place of launch control."""
    text, control = SPEC.read_text(), "schedule: {kind: launch_control}"
    assert text.count(control) == 1
    path = tmp_path_factory.mktemp("static") / SPEC.name
    path.write_text(text.replace(control, "schedule: {kind: persistent}"))
    product = make(path)
    return product, lower(product.module, product.plan, path=path.name, stem=path.stem)


def instructions_and_labels(sass: str) -> tuple[list[str], dict[str, int]]:
    """Return the instructions in their order, and the place of each label among them."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := re.match(r"(LBB\d+):", line):
            labels[label[1]] = len(instructions)
        elif "\t" in line:
            # What precedes the tab says when to issue; a predicate says whether.
            instructions.append(re.sub(r"^@!?\w+ ", "", line.split("\t", 1)[1]))
    return instructions, labels


def loops(sass: str, operation: str) -> list[list[str]]:
    """Return the instructions of the loops that hold all instances of an operation, the smallest first."""
    instructions, labels = instructions_and_labels(sass)
    places = [i for i, text in enumerate(instructions) if re.match(operation, text)]
    assert places
    found: dict[int, list[str]] = {}
    for end, text in enumerate(instructions):
        branch = re.match(r"BRA\S*\s.*?(?:(LBB\d+)|0x([0-9a-f]+));", text)
        if branch:
            # Without a label the target is an address, and an instruction has 16 bytes.
            begin = labels[branch[1]] if branch[1] else int(branch[2], 16) // 16
            if begin <= places[0] and places[-1] <= end:
                found[begin] = instructions[begin : end + 1]
    return sorted(found.values(), key=len)


def count(body: list[str], operation: str) -> int:
    return sum(1 for text in body if re.match(operation, text))


def sass_of(lowered: Lowered) -> str:
    return disassemble(lowered.artifacts["cubin"]).decode()


@confirmed
def test_the_compiler_confirms_the_minimum(product: Product, lowered: Lowered) -> None:
    assert dict(lowered.resources.operations) == dict(product.plan.operations)


@confirmed
def test_the_k_loops_of_the_machine_code_have_what_ptx_promised(product: Product, lowered: Lowered) -> None:
    loads, copies, mmas, _ = MINIMA[product.source.stem]
    multiply, load = (loops(sass_of(lowered), operation)[0] for operation in (MMA, LOAD))
    assert [count(multiply, what) for what in (MMA, COPY, COMMIT, TRY_WAIT)] == [mmas, copies, 1, 1]
    assert [count(load, what) for what in (LOAD, ARRIVE, TRY_WAIT)] == [loads, 1, 1]
    # Nothing else that synchronizes, and no memory but through TMA and the tensor cores.
    assert [count(multiply, what) for what in (LOAD, ARRIVE, OTHERS)] == [0, 0, 0]
    assert [count(load, what) for what in (MMA, COPY, COMMIT, OTHERS)] == [0, 0, 0, 0]


def test_a_barrier_operation_too_many_is_refused() -> None:
    product = make(ROOT / "specs" / "b200_bf16_one_cta.yaml")
    once = "        mbarrier.wait(args.load_ready.index(ring.slot), ring.phase)\n"
    assert product.module.count(once) == 1
    with pytest.raises(GemmgenError) as error:
        lower(product.module.replace(once, once + once), product.plan, path="x.yaml", stem="x")
    assert str(error.value) == (
        "x.yaml: error[plan-differs]: the plan has 9 mbarrier wait in its code, the compiler 10"
    )


# --- the document


def block(name: str) -> list[list[str]]:
    """Return the cells of the table between ``<!-- name -->`` and ``<!-- end -->``, without its head."""
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
    expected = [[b.name, str(b.ring.depth), str(b.arrivals)] for b in plan.barriers]
    assert [row[:3] for row in block("barriers")] == expected


PTX_ROWS = {
    "mbarrier.init": r"mbarrier\.init",
    "fence.proxy.async": r"fence\.proxy\.async",
    "bar.sync, barrier.sync": r"\bbar\.sync|\bbarrier\.sync",
    "tcgen05.ld": r"tcgen05\.ld\.",
    "st.shared": r"\bst\.shared",
    "ld.shared": r"\bld\.shared",
    "div, rem": r"\b(?:div|rem)\.[su]\d\d",
}


@compared
def test_the_page_compares_what_the_compiler_makes(
    product: Product, lowered: Lowered, static: tuple[Product, Lowered]
) -> None:
    rows = block("comparison")
    for column, found in ((1, comparison(product, lowered)), (3, comparison(*static))):
        assert {row[0]: row[column] for row in rows} == found


def comparison(product: Product, lowered: Lowered) -> dict[str, str]:
    """Return the cells of a kernel by row."""
    ptx, found = lowered.artifacts["ptx"].decode(), lowered.resources
    counts = {name: len(re.findall(pattern, ptx)) for name, pattern in PTX_ROWS.items()}
    sizes = {
        "spills, bytes": found.spill_store_bytes + found.spill_load_bytes,
        "shared memory, bytes": found.smem_bytes,
        "tensor memory, columns": found.tmem_columns,
    }
    fewest, most = found.setmaxnreg
    registers = {"registers, epilogue / others": f"{most} / {fewest}"}
    numbers = dict(product.plan.operations) | counts | sizes
    return {name: f"{number:,}" for name, number in numbers.items()} | registers


@compared
@pytest.mark.usefixtures("product")
def test_the_page_has_the_sizes_of_the_loops_of_the_machine_code(
    lowered: Lowered, static: tuple[Product, Lowered]
) -> None:
    rows = block("machine code")
    for column, found in ((1, loop_sizes(sass_of(lowered))), (3, loop_sizes(sass_of(static[1])))):
        assert {row[0]: row[column] for row in rows if row[column]} == found


def loop_sizes(sass: str) -> dict[str, str]:
    """Return the instructions of a kernel's loops by row."""
    multiply, load = ([len(body) for body in loops(sass, operation)[:2]] for operation in (MMA, LOAD))
    found = {
        "mma, a K step": multiply[0],
        "load, a K step": load[0],
        "mma, a tile": multiply[1] - multiply[0],
        "load, a tile": load[1] - load[0],
        "epilogue, a tile": len(loops(sass, STORE)[0]),
    }
    if "UGETNEXTWORKID" in sass:
        found["scheduler, a tile"] = len(loops(sass, REQUEST)[0])
    found["kernel"] = len(instructions_and_labels(sass)[0])
    return {name: f"{size:,}" for name, size in found.items()}
