"""Blackwell modules in the simulator, on the shapes that stand for all: no GPU has run them.

``tests/test_simulate_specs.py`` has the launches that wrap every ring, with these specs among all others.
Here K is as short as its edges need.
"""

from __future__ import annotations

import pytest
from modules import BLACKWELL_SPECS, made

from gemmgen.features.rendering import render
from gemmgen.lower import lower
from gemmgen.plan.tcgen05.tile_rules import CLUSTERS
from gemmgen.planner import plan_spec
from gemmgen.problem import Shape
from gemmgen.product import Product
from gemmgen.verify.launches import Launch, ring_launch
from gemmgen.verify.simulation import simulate_product
from gluonsim.policies import schedules
from tools.fuzz import draft, judge, tables

SEEDS = 5
PROGRAMS = 2
SHAPES: tuple[Shape, ...] = (
    (128, 128, 128),
    (256, 256, 256),
    (500, 600, 256),  # no tile divides M or N
    (300, 776, 448),  # nor K steps of 128 or 256 this K
)
OF_BOXES: Shape = (300, 776, 384)
"""In place of the last for padded operands, whose K is whole boxes of 128: three, no whole steps of 256."""


@pytest.fixture(scope="session", params=BLACKWELL_SPECS, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each committed Blackwell spec."""
    return made(request.param)


def allowed(product: Product, shape: Shape) -> bool:
    """Whether the operands' formats allow this K."""
    return shape[2] % product.plan.access.k_multiple == 0


@pytest.mark.sample(12)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_a_module_is_right_and_without_findings_on_every_shape(product: Product, shape: Shape) -> None:
    if not allowed(product, shape):
        assert shape == SHAPES[-1]
        shape = OF_BOXES
        assert allowed(product, shape)
    integers = Launch(shape, PROGRAMS, "integers", schedules(SEEDS))
    normal = Launch(shape, PROGRAMS, "normal", ("random",))
    simulation = simulate_product(product, (integers, normal))
    assert simulation.diagnostics == ()


def test_only_padded_operands_need_a_k_of_whole_boxes() -> None:
    left_out = {
        product.source.stem
        for product in map(made, BLACKWELL_SPECS)
        for shape in SHAPES
        if not allowed(product, shape)
    }
    padded = {
        product.source.stem
        for product in map(made, BLACKWELL_SPECS)
        if product.plan.problem.a.padded or product.plan.problem.b.padded
    }
    assert left_out == padded


# --- clusters of eight CTAs, of which no spec is committed

DENSE: tables.Values = {f"operands.{name}.dtype": "bf16" for name in "abd"} | {"tile.n": 32, "tile.k": 16}
"""Small tiles: the compiler looks at every byte of eight CTAs."""
SCALED: tables.Values = DENSE | {
    "operands.a.dtype": "e2m1",
    "operands.b.dtype": "e4m3",
    "operands.a.scale": {"format": "mxfp4"},
    "operands.b.scale": {"format": "mxfp8"},
    "tile.n": 128,
    "tile.k": 128,
}
"""The smallest tile whose scales are whole."""
STATED: tables.Values = {
    "title": "a cluster of CTAs",
    "target": "b200",
    "tile.m": 128,
    "buffering.stages": 2,
}
"""With two stages a pair that could be a lap ahead soon is."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(("m", "n"), [(8, 1), (2, 4), (1, 8)])
@pytest.mark.parametrize("operands", [DENSE, SCALED], ids=["dense", "scaled"])
def test_eight_ctas_compile_as_planned_and_are_without_findings(
    operands: tables.Values, m: int, n: int
) -> None:
    source = draft.spec_of(STATED | operands | {"cluster.m": m, "cluster.n": n})
    plan = plan_spec(source)
    module = render(plan, spec_name="eight_ctas.yaml", spec_sha256=source.sha256)
    lower(module, plan, path="eight_ctas.yaml", stem="eight_ctas")
    assert simulate_product(Product(source, plan, module), (ring_launch(plan),)).diagnostics == ()


def test_the_simulator_finds_what_pairs_that_share_no_tile_overwrite() -> None:
    assert (4, 2) not in CLUSTERS
    source = draft.spec_of(STATED | DENSE | {"cluster.m": 4, "cluster.n": 2})
    plan = judge.plan_without(source, ("cluster-shape",))
    assert plan is not None
    module = render(plan, spec_name="four_pairs.yaml", spec_sha256=source.sha256)
    lower(module, plan, path="four_pairs.yaml", stem="four_pairs")
    found = simulate_product(Product(source, plan, module), (ring_launch(plan),)).diagnostics
    assert "write-after-write" in {diagnostic.code for diagnostic in found}
