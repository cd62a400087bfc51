"""Staggered tiles: two consumers of unequal columns, which change places in the next tile along N."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hopper import hopper
from modules import spec_file
from work import calls_of

from gemmgen.errors import GemmgenError
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.product import Product, make
from gemmgen.verify.launches import Launch
from gemmgen.verify.simulation import simulate_product


@pytest.fixture(scope="module")
def product() -> Product:
    return make(spec_file("h100_e4m3_staggered"))


@pytest.fixture(scope="module")
def plan(product: Product) -> WgmmaKernel:
    return hopper(product.plan)


@pytest.mark.parametrize(
    ("columns", "parts", "stagger"),
    [
        (48, (32, 32), 16),
        (96, (64, 64), 32),
        (112, (64, 32, 32), 16),
        (160, (128, 64), 32),
        (176, (128, 32, 32), 16),
        (192, (128, 128), 64),
        (208, (128, 64, 32), 16),
        (224, (128, 64, 64), 32),
        (272, (256, 32), 16),
        (320, (256, 128), 64),
    ],
)
def test_one_consumer_has_the_narrowest_part_for_both(
    plan: WgmmaKernel, columns: int, parts: tuple[int, ...], stagger: int
) -> None:
    tile = replace(plan, cta_tile_n=columns, subtile_n=parts[-1])
    assert tile.column_parts == parts
    assert tile.stagger_n == stagger
    # Both consumers together have as many columns as two of equal ones; a CTA loads those of the wider one.
    assert sum(parts) + sum(parts[:-1]) == 2 * columns
    assert tile.cta_widest_n == columns + stagger
    assert tile.stage.bytes_of("b") == sum(parts) * tile.cta_tile_k
    assert tile.accumulator_elements == 64 * sum(parts) // 128
    assert tile.subtiles == sum(parts) // parts[-1]
    assert tile.part_rows == (*[128] * (len(parts) - 1), 64)


def test_tiles_come_by_twos_along_n(plan: WgmmaKernel) -> None:
    assert plan.tiles((128, 1, 128)) == (1, 2)
    assert plan.tiles((128, 320, 128)) == (1, 2)
    assert plan.tiles((129, 321, 128)) == (2, 4)
    plain = replace(plan, staggered=False)
    assert plain.tiles((129, 321, 128)) == (2, 3)


def test_a_huge_tile_is_refused_at_once_with_columns_that_do(tmp_path: Path) -> None:
    spec = tmp_path / "huge.yaml"
    text = (spec_file("h100_e4m3_staggered")).read_text()
    spec.write_text(text.replace("n: 160", f"n: {3 << 29}"))
    with pytest.raises(GemmgenError) as caught:
        make(spec)

    def refused() -> None:
        with suppress(GemmgenError):
            make(spec)

    assert calls_of(refused) < 100_000  # not each number of columns is tried
    (found,) = caught.value.diagnostics
    assert (found.code, found.field) == ("accumulator-registers", "tile.n")


ALL_TILES = "tiles_n=2 * gl.cdiv(d_desc.shape[1], 2 * PROGRAM_TILE_N)"


@pytest.mark.parametrize("columns", [16, 208, 336, 400])
def test_every_element_is_computed_where_the_last_tile_has_no_neighbour_in_d(
    product: Product, columns: int
) -> None:
    launch = Launch((200, columns, 256), programs=3, inputs="integers", schedules=("eager", "lazy"))
    assert simulate_product(product, (launch,)).problems == ()


def test_without_that_neighbour_elements_are_missing(product: Product) -> None:
    """The second consumer's columns of a lone tile end before those of the first one."""
    assert product.module.count(ALL_TILES) == 1
    fewer = product.module.replace(ALL_TILES, "tiles_n=gl.cdiv(d_desc.shape[1], PROGRAM_TILE_N)")
    launch = Launch((128, 160, 128), programs=1, inputs="integers", schedules=("eager",))
    problems = simulate_product(replace(product, module=fewer), (launch,)).problems
    assert [problem.kind for problem in problems] == ["wrong-numbers"]
