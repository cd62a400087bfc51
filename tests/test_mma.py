"""The sides of a Hopper kernel's instruction: all that swap_ab exchanges follows from them."""

from __future__ import annotations

import pytest
from hopper import hopper
from modules import ROOT

from gemmgen.plan.rule import altered
from gemmgen.plan.wgmma.mma import Side, mma_of
from gemmgen.product import make


@pytest.mark.quick
def test_b_is_on_the_left_where_n_lies_along_the_rows() -> None:
    plain, swapped = mma_of("registers", swap_ab=False), mma_of("shared", swap_ab=True)
    assert (plain.left, plain.right) == (Side("a", "m", "registers"), Side("b", "n", "shared"))
    assert (swapped.left, swapped.right) == (Side("b", "n", "shared"), Side("a", "m", "shared"))
    assert (plain.swap_ab, swapped.swap_ab) == (False, True)
    assert (plain.left.lines, swapped.left.lines) == ("rows", "columns")


@pytest.mark.quick
@pytest.mark.parametrize("rows", ["m", "n"])
def test_extents_of_d_go_to_the_instruction_and_back(rows: str) -> None:
    mma = mma_of("shared", swap_ab=rows == "n")
    assert mma.across("M", "N") == (("N", "M") if rows == "n" else ("M", "N"))
    assert mma.of_d(*mma.across("M", "N")) == ("M", "N")


@pytest.mark.quick
def test_extents_warps_and_types_of_a_kernel_follow_its_sides() -> None:
    """One instruction of 64 x n: its rows are the 64 rows of D, and with swap_ab 64 columns."""
    rows8 = hopper(make(ROOT / "specs" / "h100_bf16_rows8.yaml").plan)
    assert rows8.mma.swap_ab
    assert rows8.consumer_extents == (rows8.cta_tile_n, rows8.cta_consumer_tile_m)
    assert rows8.warps_across == (rows8.warps_n, rows8.warps_m)
    assert rows8.mma_parts == (rows8.cta_consumer_tile_m,)
    plain = altered(rows8, swap_ab=False)
    assert plain.consumer_extents == rows8.consumer_extents[::-1]
    assert plain.warps_across == rows8.warps_across[::-1]
    assert plain.mma_parts == (rows8.cta_tile_n,)
    unlike = hopper(make(ROOT / "specs" / "h100_e5m2_e4m3.yaml").plan)
    assert unlike.mma_types == ("f32", "e5m2", "e4m3")
    assert altered(unlike, swap_ab=True).mma_types == ("f32", "e4m3", "e5m2")
