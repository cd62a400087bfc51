"""Blackwell modules in the simulator, on the shapes that stand for all: no GPU has run them.

``tests/test_simulate_specs.py`` has the launches that wrap every ring, with these specs among all others.
"""

from __future__ import annotations

import pytest
from modules import BLACKWELL_SPECS, made

from gemmgen.problem import Shape
from gemmgen.product import Product
from gemmgen.simulate.policies import schedules
from gemmgen.verify.simulation import Launch, simulate_product

SEEDS = 5
PROGRAMS = 2
SHAPES: tuple[Shape, ...] = (
    (128, 128, 128),
    (256, 256, 256),
    (500, 600, 640),  # no tile divides M or N
    (300, 776, 704),  # nor K steps of 128 or 256 this K
    (300, 776, 1152),
)


@pytest.fixture(scope="session", params=BLACKWELL_SPECS, ids=lambda path: path.stem)
def product(request: pytest.FixtureRequest) -> Product:
    """What follows from each committed Blackwell spec."""
    return made(request.param)


def allowed(product: Product, shape: Shape) -> bool:
    """Whether the operands' formats allow this K."""
    return shape[2] % product.plan.problem.k_multiple == 0


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_a_module_is_right_and_without_findings_on_every_shape(product: Product, shape: Shape) -> None:
    if not allowed(product, shape):
        assert product.plan.problem.k_multiple == 128  # padded fp4: 704 is no whole number of boxes
        return
    integers = Launch(shape, PROGRAMS, "integers", schedules(SEEDS))
    normal = Launch(shape, PROGRAMS, "normal", ("random",))
    simulation = simulate_product(product, (integers, normal))
    assert simulation.diagnostics == ()


def test_only_padded_operands_leave_a_shape_out() -> None:
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
