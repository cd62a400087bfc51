"""From specs to simulations: every spec is clean, in launches that wrap every ring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmgen.product import Product, make
from gemmgen.simulate.launches import all_launches, order_launch, parse_shape, pinned_launches, ring_launch
from gemmgen.simulate.specs import simulate

SPEC = Path(__file__).parent.parent / "specs" / "h100_bf16.yaml"
SEEDS = 10


def test_every_spec_is_clean_under_all_policies_and_ten_seeds(product: Product) -> None:
    simulation = simulate(product, all_launches(product.plan, SEEDS))
    assert simulation.diagnostics == ()
    assert simulation.notes == ()
    assert [launch.schedules.count("random") for launch in simulation.launches] == [SEEDS, 1]
    assert simulation.launches[0].schedules[:3] == ("lazy", "eager", "lifo")


def test_the_ring_launch_wraps_every_ring_at_ragged_edges(product: Product) -> None:
    plan, launch = product.plan, ring_launch(product.plan)
    m, n, k = launch.shape
    tiles_m, tiles_n = plan.tiles(launch.shape)
    assert -(-k // plan.cta_tile_k) >= 2 * plan.stages + 2
    assert tiles_m * tiles_n >= launch.programs * (2 * plan.epilogue_buffers + 1)
    assert m % plan.program_tile_m
    assert n % plan.program_tile_n
    assert k % plan.cta_tile_k


def test_the_order_launch_ends_a_group_of_tiles(product: Product) -> None:
    tiles_m, tiles_n = product.plan.tiles(order_launch(product.plan).shape)
    assert tiles_m > product.plan.width
    assert tiles_n > 2


def test_a_chosen_shape_that_wraps_no_ring_is_a_finding() -> None:
    (launch, _) = pinned_launches((128, 256, 256), 0)
    simulation = simulate(make(SPEC), (replace(launch, schedules=("lazy",), wraps=True),))
    assert [problem.kind for problem in simulation.problems] == ["ring-coverage"]


def test_a_shape_is_three_extents_that_a_cpu_can_do() -> None:
    assert parse_shape("1x20x300") == (1, 20, 300)
    for text in ("", "1x2", "1x2x3x4", "axbxc", "-1x1x1", "1x1x9999999999"):
        with pytest.raises(ValueError, match=r"MxNxK|hours|elements"):
            parse_shape(text)
