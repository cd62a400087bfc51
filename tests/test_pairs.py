"""The committed specs exercise every row of the Hopper table, and every two features that can meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hopper import hopper
from modules import EVERY_SPEC, HOPPER_SPECS, ROOT, WANTED, made, spec_file
from pairs.features import ALL, DIMENSIONS, Feature, can_meet, features, pair, pairs

from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.planner import plan_spec
from gemmgen.spec import load_spec

pytestmark = pytest.mark.quick

FEWEST_SPECS = 24


@cache
def plans() -> dict[str, WgmmaKernel]:
    """The plan of each committed spec for Hopper that multiplies A and B as they are, by the spec's name.

    Weights that threads decode leave few choices: `test_decoded_weights` is about these.
    """
    found = {path.stem: hopper(plan_spec(load_spec(path))) for path in HOPPER_SPECS}
    return {name: plan for name, plan in found.items() if not plan.problem.b.decoded}


@cache
def exercised() -> frozenset[Feature]:
    """Every feature of any committed spec."""
    return frozenset[Feature]().union(*map(features, plans().values()))


def test_every_feature_is_exercised() -> None:
    assert len(plans()) >= FEWEST_SPECS
    assert set(ALL) - exercised() == set()


@pytest.mark.check
def test_every_two_features_that_can_meet_do() -> None:
    """What is missing is listed; a spec that adds it closes the gap."""
    together = {two for plan in plans().values() for two in pairs(features(plan))}
    missing = [two for two in sorted(pairs(ALL) - together) if can_meet(*two)]
    lines = [f"no spec has {' '.join(first)} with {' '.join(second)}" for first, second in missing]
    assert not missing, "\n".join([f"{len(missing)} of {len(together) + len(missing)} pairs:", *lines])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("kind", "single_tile"), ("outstanding", "1")),  # all of K is one step
        (("kind", "persistent"), ("cluster", "2x1")),  # only producers wait for other CTAs
        (("operands", "tf32"), ("b_major", "mn")),  # wgmma reads 32 bits along K only
        (("accumulator", "fp16"), ("operands", "bf16")),
        (("d", "int32"), ("relu", "yes")),  # computed in fp32, which does not hold every int32
        (("occupancy", "2"), ("cluster", "2x2")),
        (("promoted", "yes"), ("operands", "int8")),
    ],
    ids="_".join,
)
def test_the_rules_keep_two_features_apart(first: Feature, second: Feature) -> None:
    assert not can_meet(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("operands", "int8"), ("a_major", "mn")),  # through registers
        (("kind", "ping_pong"), ("cluster", "2x2")),
        (("gelu_erf", "yes"), ("d", "e5m2")),
        (("operands", "mixed_fp8"), ("accumulator", "fp16")),
    ],
    ids="_".join,
)
def test_two_features_meet_where_a_plan_has_both(first: Feature, second: Feature) -> None:
    assert can_meet(first, second)


def test_features_of_one_dimension_never_meet() -> None:
    # 2 + 1 values: the two of d with each other are no pair.
    two = pairs([("d", "bf16"), ("d", "fp16"), ("alpha", "1")])
    assert two == {pair(("alpha", "1"), ("d", "bf16")), pair(("alpha", "1"), ("d", "fp16"))}


def test_every_feature_is_one_of_its_dimension() -> None:
    assert exercised() <= set(ALL)
    for name, plan in plans().items():
        named = [dimension for dimension, _ in features(plan)]
        assert len(named) == len(set(named)) <= len(DIMENSIONS), name


ROWS: dict[str, tuple[str, Callable[[WgmmaKernel], bool]]] = {
    "H1 single tile with C": (
        "h100_bf16_single_tile",
        lambda plan: plan.schedule_kind == "single_tile" and plan.problem.c is not None,
    ),
    "H2 A from registers": (
        "h100_fp16_single_tile_registers",
        lambda plan: plan.a_source == "registers",
    ),
    "H2 M-major A from registers": (
        "h100_int8_a_registers",
        lambda plan: plan.a_source == "registers" and plan.problem.a.major == "mn",
    ),
    "H3 blocked": (
        "h100_bf16_blocked",
        lambda plan: plan.schedule_kind == "tiled" and plan.synchronous,
    ),
    "H3 two CTAs on each SM": ("h100_bf16_occupancy2", lambda plan: plan.occupancy == 2),
    "H4 pipelined": (
        "h100_bf16_pipelined",
        lambda plan: plan.stages > 1 and plan.outstanding_mmas == 1 and not plan.specialized,
    ),
    "H5 persistent": ("h100_bf16_persistent", lambda plan: plan.persistent and not plan.specialized),
    "H5 row by row": ("h100_bf16_row", lambda plan: plan.order == "row"),
    "H5 grouped": ("h100_bf16", lambda plan: plan.order == "grouped"),
    "H5 snake": ("h100_fp16", lambda plan: plan.order == "snake"),
    "H5 Hilbert": ("h100_bf16_hilbert", lambda plan: plan.order == "hilbert"),
    "H6 cooperative": ("h100_bf16", lambda plan: plan.specialized and plan.row_shares == 2),
    "H6 one consumer": ("h100_bf16_one_consumer", lambda plan: plan.specialized and plan.consumers == 1),
    "H6 ping-pong": ("h100_bf16_ping_pong", lambda plan: plan.ping_pong),
    "H7 multicast of B": ("h100_bf16_cluster2x1", lambda plan: plan.multicast == ("b",)),
    "H7 multicast of A": ("h100_bf16_cluster1x2", lambda plan: plan.multicast == ("a",)),
    "H7 multicast of both": ("h100_bf16_cluster2x2", lambda plan: plan.multicast == ("a", "b")),
    "H8 tf32": ("h100_tf32", lambda plan: plan.problem.a.dtype.name == "tf32"),
    "H8 two 8-bit floats": (
        "h100_e5m2_e4m3",
        lambda plan: (plan.problem.a.dtype.name, plan.problem.b.dtype.name) == ("e5m2", "e4m3"),
    ),
    "H8 int8": ("h100_int8", lambda plan: plan.problem.d.name == "int32"),
    "H8 fp16 accumulator": (
        "h100_fp16_accumulator16",
        lambda plan: plan.problem.accumulator.name == "fp16",
    ),
    "H9 NN": ("h100_bf16_nn", lambda plan: (plan.problem.a.major, plan.problem.b.major) == ("k", "mn")),
    "H9 NT": ("h100_bf16_nt", lambda plan: (plan.problem.a.major, plan.problem.b.major) == ("mn", "mn")),
    "H9 TT": ("h100_bf16_tt", lambda plan: (plan.problem.a.major, plan.problem.b.major) == ("mn", "k")),
    "H9 M-major A of 8 bits": ("h100_int8_a_registers", lambda plan: plan.problem.a.major == "mn"),
    "H10 swizzles": (
        "h100_bf16_swizzle",
        lambda plan: {plan.a_swizzle_bytes, plan.b_swizzle_bytes} != {128},
    ),
    "H11 warps along N": ("h100_bf16_warps4x2", lambda plan: (plan.warps_m, plan.warps_n) == (4, 2)),
    "H11 eight warps along M": (
        "h100_bf16_one_consumer",
        lambda plan: (plan.warps_m, plan.warps_n) == (8, 1),
    ),
    "H12 alpha and beta": (
        "h100_fp16_axpby",
        lambda plan: plan.problem.epilogue.alpha != 1 != plan.problem.epilogue.beta,
    ),
    "H13 column bias and GELU": (
        "h100_bf16_bias_gelu",
        lambda plan: plan.problem.ops == ("column_bias", "gelu_tanh"),
    ),
    "H13 GELU by erf": ("h100_bf16_gelu_erf", lambda plan: "gelu_erf" in plan.problem.ops),
    "H13 row bias and ReLU": (
        "h100_bf16_row_bias_relu",
        lambda plan: plan.problem.ops == ("row_bias", "relu"),
    ),
    "H13 residual": ("h100_bf16_residual", lambda plan: plan.request.lists_c),
    "H13 a gate": ("h100_bf16_gated", lambda plan: plan.problem.gated),
    "H13 a gate of scaled sums": (
        "h100_e4m3_gated_scaled",
        lambda plan: plan.problem.gated and plan.problem.epilogue.uses["row_scale"] == 2,
    ),
    "H13 scales": ("h100_e4m3_scaled", lambda plan: plan.problem.scalar or bool(plan.problem.vectors)),
    "H14 fast": ("h100_e4m3", lambda plan: plan.fp8 and not plan.promote_k),
    "H14 promoted": ("h100_e4m3_promoted128", lambda plan: plan.promote_k == 128),
}
"""A spec for each row H1-H14 of the feature table, and for each word of its detail."""


@pytest.mark.parametrize(("stem", "has_it"), ROWS.values(), ids=ROWS)
def test_a_row_of_the_feature_table_is_exercised(stem: str, has_it: Callable[[WgmmaKernel], bool]) -> None:
    assert has_it(plans()[stem])


BLACKWELL_ROWS: dict[str, tuple[str, Callable[[Tcgen05Kernel], bool]]] = {
    "B1 bf16": ("b200_bf16", lambda plan: plan.mma_kind == "f16" and plan.problem.a.dtype.name == "bf16"),
    "B1 fp16": ("b200_fp16_gelu", lambda plan: plan.problem.a.dtype.name == "fp16"),
    "B1 fp8": (
        "b200_e4m3",
        lambda plan: plan.problem.a.dtype.name == "e4m3" and not plan.problem.block_scaled,
    ),
    "B1 tf32": ("b200_tf32", lambda plan: plan.mma_kind == "tf32"),
    "B2 mxfp8": ("b200_mxfp8", lambda plan: formats(plan) == ("mxfp8", "mxfp8")),
    "B2 mxfp4": ("b200_mxfp4", lambda plan: formats(plan) == ("mxfp4", "mxfp4")),
    "B2 mxfp8 by mxfp4": ("b200_mxfp8_mxfp4", lambda plan: formats(plan) == ("mxfp8", "mxfp4")),
    "B2 mxfp4 by mxfp8": ("b200_mxfp4_mxfp8", lambda plan: formats(plan) == ("mxfp4", "mxfp8")),
    "B2 nvfp4": ("b200_nvfp4", lambda plan: formats(plan) == ("nvfp4", "nvfp4")),
    "B3 one CTA": ("b200_bf16_one_cta", lambda plan: not plan.paired and plan.cluster_size == 1),
    "B3 a pair": ("b200_mxfp8", lambda plan: plan.paired and plan.multicast == ("b_scale",)),
    "B4 N of 64": ("b200_bf16_n64", lambda plan: plan.cta_tile_n == 64),
    "B4 K of 256": ("b200_nvfp4", lambda plan: plan.cta_tile_k == 256),
    "B5 in parts of 32": ("b200_fp16_gelu", lambda plan: plan.subtile_n == 32),
    "B5 in parts of 128": ("b200_bf16_nn", lambda plan: plan.subtile_n == 128 < plan.cta_tile_n),
    "B5 the whole tile": ("b200_mxfp4_one_cta", lambda plan: plan.subtile_n == plan.cta_tile_n),
    "B6 launch control": ("b200_nvfp4", lambda plan: plan.launch_control),
    "B6 persistent": ("b200_bf16", lambda plan: plan.schedule_kind == "persistent"),
    "B7 ragged": ("b200_bf16", lambda plan: (500, 600, 640) in plan.request.check_shapes),
    "B8 search": ("b200_nvfp4_search", lambda plan: plan.problem.block_scaled),
}
"""A spec for each row B1-B8 of the feature table, and for each word of its detail."""


def formats(plan: Tcgen05Kernel) -> tuple[str, ...]:
    """The scale formats of A and B; none where they have none."""
    scales = (plan.problem.a.scale, plan.problem.b.scale)
    return tuple(scale.format.name for scale in scales if scale)


@pytest.mark.parametrize(("stem", "has_it"), BLACKWELL_ROWS.values(), ids=BLACKWELL_ROWS)
def test_a_row_of_the_blackwell_table_is_exercised(
    stem: str, has_it: Callable[[Tcgen05Kernel], bool]
) -> None:
    plan = made(spec_file(stem)).plan
    assert isinstance(plan, Tcgen05Kernel)
    assert has_it(plan)


def test_no_row_is_left_out() -> None:
    assert {row.split()[0] for row in ROWS} == {f"H{i}" for i in range(1, 15)}
    assert {row.split()[0] for row in BLACKWELL_ROWS} == {f"B{i}" for i in range(1, 9)}


def test_every_row_has_a_spec_that_a_person_would_want() -> None:
    """Words of a row may be exercised by tests/pairs alone; the row itself by a spec under specs/."""
    wanted = {spec.stem for spec in WANTED}
    rows = (ROWS | BLACKWELL_ROWS).items()
    exercised = {row.split()[0] for row, (stem, _) in rows if stem in wanted}
    assert exercised == {row.split()[0] for row, _ in rows}


def test_the_planner_searches_where_a_wanted_spec_leaves_fields_out() -> None:
    """Row H15."""
    spec = load_spec(spec_file("h100_int8_scaled")).spec
    assert (spec.warp_specialization.kind, spec.cluster.m, spec.buffering.stages) == (None, None, None)
    assert hopper(plan_spec(load_spec(spec_file("h100_int8_scaled")))).specialized


def test_a_wanted_spec_is_named_after_what_it_computes() -> None:
    """A spec whose name counts its features is of the covering array: a wanted one has two of them."""
    names = [spec.stem.removesuffix("_out").replace("ping_pong", "feature") for spec in WANTED]
    assert [name for name in names if name.count("_") > 3] == []


def test_every_record_is_of_a_committed_spec() -> None:
    records = {record.stem for record in (ROOT / "benchmarks").glob("*.json")}
    assert records <= {spec.stem for spec in EVERY_SPEC}
