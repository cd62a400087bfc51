"""Rules of choices and of Blackwell plans, and what no spec can get wrong, on the text of modules.

tests/test_rules.py has what holds for every rule of both families.

No Blackwell GPU was at hand: what Triton refuses, and what it compiles in silence, was found by lowering.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import told
from modules import BLACKWELL_SPECS, made

from gemmgen.plan.choices import CHOICE_RULES
from gemmgen.plan.rule import judge
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.planner import FAMILIES
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec import load_spec

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parent.parent
DIRECTORY = Path("tests/invalid/blackwell")
CHOICES = Path("tests/invalid/choices")
"""Specs that state what their target does not have, or search values that a field cannot have."""

Built = tuple[Tcgen05Kernel, str]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagnostics name a spec as the user does, so relative to where the test runs."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(
    scope="module",
    params=BLACKWELL_SPECS,
    ids=lambda path: path.stem,
)
def built(request: pytest.FixtureRequest) -> Built:
    """The plan and the text of each committed Blackwell module."""
    product = made(request.param)
    assert isinstance(product.plan, Tcgen05Kernel)
    return product.plan, product.module


@pytest.mark.parametrize("stem", sorted(path.stem for path in (ROOT / CHOICES).glob("*.yaml")))
def test_a_choice_that_a_target_does_not_have_gets_the_diagnostics_of_the_file(stem: str) -> None:
    path = CHOICES / f"{stem}.yaml"
    found = told.diagnostics(path)
    assert {diagnostic.code for diagnostic in found} <= {own.id for own in CHOICE_RULES}
    assert told.data_of(found) == told.committed(CHOICES.name)[stem]
    if stem in told.texts(CHOICES.name):
        assert "".join(f"{diagnostic}\n" for diagnostic in found) == path.with_suffix(".txt").read_text()


# --- who is asked when


@pytest.mark.parametrize("stem", sorted(path.stem for path in (ROOT / DIRECTORY).glob("*.yaml")))
def test_a_rule_of_the_problem_judges_no_decision(stem: str) -> None:
    # The planner asks one plan for all: the same problem with other decisions is judged the same.
    judged = {
        judge(configuration.lower_bound, FAMILIES["tcgen05"].problem_rules)
        for configuration in FAMILIES["tcgen05"].space.configurations(load_spec(DIRECTORY / f"{stem}.yaml"))
    }
    assert len(judged) == 1


def test_rules_of_the_store_are_rules() -> None:
    assert FAMILIES["tcgen05"].store_rules < {rule.id for rule in FAMILIES["tcgen05"].rules}
    assert FAMILIES["tcgen05"].store_rules.isdisjoint(FAMILIES["tcgen05"].problem_rule_ids)


# --- what every module does and no spec can ask for: the text of the committed modules


def constant(text: str, name: str) -> str:
    """What a module's constant is defined as, in one line."""
    found = re.search(
        rf"^{name} = gl\.constexpr\((.*?)\)(?:  #.*)?\n(?=\S|\n)", text, re.DOTALL | re.MULTILINE
    )
    assert found, name
    return " ".join(found[1].split())


def bases(layout: str) -> list[list[int]]:
    """The CGA bases of a layout, one for each bit of a CTA's rank."""
    found = re.search(r"cga_layout=(\[\[.*?\]\])", layout)
    return ast.literal_eval(found[1]) if found else []


def barrier(text: str, name: str) -> str:
    """How a barrier is allocated."""
    found = re.search(rf"^    {name} = mbarrier\.allocate_mbarrier\((.*)\)$", text, re.MULTILINE)
    assert found, name
    return found[1]


def initial_count(text: str, name: str) -> str:
    """For how many arrivals a phase of a barrier waits."""
    found = re.search(rf"mbarrier\.init\({name}(?:\.index\(\w+\))?, count=(\w+)\)", text)
    assert found, name
    return found[1]


def test_the_ctas_of_a_pair_have_rows_of_the_sums_and_of_a_and_columns_of_b(built: Built) -> None:
    # "twoCTAs layout requires the first CGALayout block basis to be [1, 0]", and "twoCTA mode expects the
    # first basis of the cga_layout of the RHS to be [0, 1]": there B is [K, N], and [N, K] as it is stored.
    plan, text = built
    problem = plan.problem
    first = {name: bases(constant(text, f"{name}_LAYOUT"))[:1] for name in ("ACCUMULATOR", "A", "B", "D")}
    if not plan.paired:  # lone CTAs lie along N
        assert first["ACCUMULATOR"] == [[0, 1]] * (plan.cluster_n > 1)
        return
    a = [1, 0] if problem.a.major == "k" else [0, 1]
    b = [1, 0] if problem.b.major == "k" else [0, 1]
    assert first == {"ACCUMULATOR": [[1, 0]], "A": [a], "B": [b], "D": [[1, 0]]}


def test_every_mma_of_a_kernel_is_of_as_many_ctas(built: Built) -> None:
    # "inconsistent two_ctas setting across matmuls": there is one MMA, and its accumulator's layout decides.
    plan, text = built
    assert len(re.findall(r"= TensorMemoryLayout|TensorMemoryLayout\(block", text)) == 1
    assert len(re.findall(r"^ +tcgen05_mma(?:_scaled)?\(", text, re.MULTILINE)) == 1
    assert ("two_ctas=True" in constant(text, "ACCUMULATOR_LAYOUT")) == plan.paired


def test_a_barrier_that_both_ctas_of_a_pair_complete_is_the_pairs(built: Built) -> None:
    # What MMAs arrive at is each CTA's own ("completion barrier cga_layout must be [[1]], got [[0]]"); what
    # the MMA warp awaits is not, and compiles in silence where it is.
    plan, text = built
    of_a_pair = ("load_ready", "accumulator_empty")
    for name in (*of_a_pair, "load_empty", "accumulator_ready"):
        assert ("two_ctas=True" in barrier(text, name)) == (plan.paired and name in of_a_pair)


def test_an_mma_arrives_at_the_barriers_of_all_ctas_that_filled_its_stage(built: Built) -> None:
    # Without multicast it would tell one CTA of several, and compile in silence. A stage has been read by the
    # MMAs of all pairs that its tiles go to: of 2 x 2 CTAs, two columns of pairs share A. Of lone CTAs each
    # is a reader of its own.
    plan, text = built
    call = re.search(r"^ +tcgen05_mma(?:_scaled)?\((.*?)\n? *mbarriers=", text, re.DOTALL | re.MULTILINE)
    assert call
    assert ("multicast=True" in call[1]) == (plan.cluster_size > 1)
    assert "mbarriers=[args.load_empty.index(ring.slot)]" in text
    readers = {(1, 1): 1, (1, 2): 2, (2, 1): 1, (4, 1): 2, (2, 2): 2}
    assert initial_count(text, "load_empty") == str(readers[plan.cluster_m, plan.cluster_n])


def test_a_sum_takes_a_column_of_32_bits(built: Built) -> None:
    # "bitwidth * colStride must be less than or equal to 32": 32 bits of fp32, times one.
    plan, text = built
    layout = constant(text, "ACCUMULATOR_LAYOUT")
    assert f"block=[{plan.cta_tile_m}, {plan.cta_tile_n}], col_stride=1" in layout
    assert re.search(r"accumulators? = allocate_tensor_memory\(\s*gl\.float32,", text)


def test_four_warps_read_tensor_memory_and_no_others_do(built: Built) -> None:
    # "num_warps must be a power of two and >= 4": those of the first partition, which alone loads sums.
    _, text = built
    assert '"num_warps": 4,' in text
    bodies = dict(re.findall(r"^def (\w+)(\(.*?)(?=^def |\Z)", text, re.DOTALL | re.MULTILINE))
    assert [name for name, body in bodies.items() if re.search(r"accumulator.*\.load\(\)", body)] == ["store"]
    assert [name for name, body in bodies.items() if " store(" in body] == ["epilogue_partition"]


def test_a_slice_of_an_accumulator_is_one_of_equal_parts(built: Built) -> None:
    # "shape must have power-of-2 ...", "The split offset may not exceed the source shape".
    plan, text = built
    if plan.subtiles == 1:
        assert ".slice(" not in text
        return
    columns = int(constant(text, "SUBTILE_N"))
    assert (columns & (columns - 1), columns * plan.subtiles) == (0, plan.cta_tile_n)
    slices = re.findall(r"\.slice\((.*), SUBTILE_N\)\.load", text)
    if plan.subtiles == 2:
        assert slices == ["0", "SUBTILE_N"]
        return
    assert int(constant(text, "SUBTILES")) == plan.subtiles
    # A ring of buffers of C is filled again in a loop of its own, before the others.
    refilled = plan.problem.c is not None and 1 < plan.epilogue_buffers < plan.subtiles
    last = "SUBTILES - EPILOGUE_BUFFERS, SUBTILES - 1" if refilled else "SUBTILES - 1"
    assert f"for i in gl.static_range({last}):" in text
    assert slices == ["i * SUBTILE_N"] * (1 + refilled) + ["(SUBTILES - 1) * SUBTILE_N"]


def test_what_an_epilogue_reads_is_each_ctas_own(built: Built) -> None:
    # The CTAs along M have rows of C, of vectors of rows, and all of those of columns; along N the others.
    plan, text = built
    rows = [[1, 0]] * (plan.cluster_m.bit_length() - 1)
    columns = [[0, 1 << bit] for bit in range(plan.cluster_n.bit_length() - 1)]
    if plan.cluster_m == 4:
        rows = [[1, 0], [2, 0]]
    if plan.problem.c:
        assert bases(constant(text, "C_LAYOUT")) == rows + columns
        assert "two_ctas" not in barrier(text, "c_ready")
    for name in plan.problem.vectors:
        axis = 0 if OPERATIONS[name].along == "m" else 1
        assert bases(constant(text, f"{name.upper()}_LAYOUT")) == [[basis[axis]] for basis in rows + columns]
        assert "two_ctas" not in barrier(text, "vectors_ready")


def test_scales_are_copied_from_packed_unswizzled_blocks(built: Built) -> None:
    # "failed to find valid tcgen05.copy layout": each [1, rows / 128, K / (4 VEC), 2, 256], swizzled over 0.
    plan, text = built
    if not plan.problem.block_scaled:
        assert "tcgen05_copy" not in text
        return
    for name, operand, rows in (
        ("A", plan.problem.a, plan.program_tile_m),
        ("B", plan.problem.b, plan.program_tile_n),
    ):
        assert operand.scale
        layout = constant(text, f"{name}_SCALE_LAYOUT")
        assert "swizzle_byte_width=0, element_bitwidth=8, rank=5" in layout
        assert int(constant(text, f"{name}_SCALE_BLOCKS")) == rows // 128
        assert int(constant(text, "SCALE_BLOCKS_K")) == plan.cta_tile_k // (4 * operand.scale.vector)
        block = "SCALE_BLOCKS_K, SCALE_LINES, SCALE_LINE_BYTES"
        box = f"[STAGES, 1, {name}_SCALE_BLOCKS, {block}], {name}_SCALE_LAYOUT"
        assert box in " ".join(text.split())


def test_a_cta_has_the_scales_of_its_rows_of_a_and_of_all_columns_of_b_that_it_multiplies(
    built: Built,
) -> None:
    # CTAs along M have rows of A each and the same columns of B, the two of a pair too; along N the others.
    plan, text = built
    if not plan.problem.block_scaled:
        return
    m, n = ([1 << bit for bit in range(ctas.bit_length() - 1)] for ctas in (plan.cluster_m, plan.cluster_n))
    blocks = plan.cta_tile_n // 128
    a, b = [*m, *(0 for _ in n)], [*(0 for _ in m), *n]
    assert bases(constant(text, "A_SCALE_LAYOUT")) == [[0, step, 0, 0, 0] for step in a]
    assert bases(constant(text, "B_SCALE_LAYOUT")) == [[0, step * blocks, 0, 0, 0] for step in b]
    assert bases(constant(text, "A_SCALE_TMEM_LAYOUT")) == [[step, 0] for step in a]
    assert bases(constant(text, "B_SCALE_TMEM_LAYOUT")) == [[step, 0] for step in b]
