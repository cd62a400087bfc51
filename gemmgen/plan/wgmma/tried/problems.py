"""Conditions of rows of the table of candidates, and values that follow from a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from gemmgen.hardware import HOPPER, WGMMA
from gemmgen.hardware.gpus import is_power_of_two
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.forecast import FEW_ROWS, FEW_TILES, FEWEST_ROWS, has_few_tiles
from gemmgen.plan.group_forecast import tries_swap_ab
from gemmgen.plan.wgmma.extent_rules import MOST_PARTS
from gemmgen.plan.wgmma.tried.derived import a_source_of
from gemmgen.plan.wgmma.tried.row import Case, Condition

# --- conditions on what a spec says


def states(name: str) -> Condition:
    """Return the condition that a spec states a decision."""
    return lambda case: name in case.stated


def searches(name: str, values: Collection[object]) -> Condition:
    """Return the condition that a spec wants one of these values tried for a decision."""
    return lambda case: not set(values).isdisjoint(case.wanted.get(name, ()))


def searches_no_rows(case: Case) -> bool:
    """Return True if a spec wants no values tried for the rows of a tile, or for who shares them."""
    return case.wanted.keys().isdisjoint(("cta_tile_m", "consumers"))


def orders_in_part(case: Case) -> bool:
    """Return True if a spec decides how tiles follow one another, but not the order itself."""
    swapped = case.values["swap_ab"] and case.values["schedule_kind"] == "tiled"
    return not {"minor", "width"}.isdisjoint(case.stated if swapped else case.decided)


def has_one_part(case: Case) -> bool:
    """Return True if the columns of a tile may be a power of two: tiles of other widths have parts."""
    widths = [columns for columns in case.asked("cta_tile_n") if isinstance(columns, int)]
    return not widths or any(map(is_power_of_two, widths))


def fits_swap_ab(case: Case) -> bool:
    """Return True if the rows of a tile are open, or rows that are tried with swap-AB."""
    rows = rows_with_swap_ab(case)
    return case.stated.get("cta_tile_m", rows[-1]) in rows


# --- conditions on the matmul


def dense(case: Case) -> bool:
    """Return True if there is one A and one B."""
    return case.matmul.groups is None


def grouped(case: Case) -> bool:
    """Return True if the product is divided into groups of rows or of K, or is a batch of products."""
    return case.matmul.groups is not None


def equal_groups(case: Case) -> bool:
    """Return True if all groups have the same extents, so that the host knows their tiles."""
    return case.matmul.groups is not None and case.matmul.groups.counts is None


def k_grouped(case: Case) -> bool:
    """Return True if groups divide K."""
    return case.matmul.groups is not None and case.matmul.groups.divides_k


def scaled(case: Case) -> bool:
    """Return True if the sums of each block of K have scales."""
    return case.matmul.scales_sums and case.matmul.a.scale is not None


def unscaled(case: Case) -> bool:
    """Return True if sums have no scales, and so are promoted only if the spec says so."""
    return not case.matmul.scales_sums


def scaled_by_short_blocks(case: Case) -> bool:
    """Return True if a block of K that has a scale is shorter than a row of the widest swizzle."""
    scale = case.matmul.a.scale
    return scale is not None and scaled(case) and scale.format.vector < HOPPER.tma_swizzle_bytes[0]


def tile_scaled(case: Case) -> bool:
    """Return True if many columns of B have one scale in each block of K."""
    return case.matmul.has_tile_scales


def quantized_gate(case: Case) -> bool:
    """Return True if D has computed scales, and B a block of columns for each of several accumulators."""
    return case.matmul.in_blocks and case.matmul.d_scale is not None


def plain(case: Case) -> bool:
    """Return True if there are no groups, no gate and no scales of blocks."""
    return dense(case) and unscaled(case) and not case.matmul.gated


def reads_a_from_shared_memory(case: Case) -> bool:
    """Return True if the tensor cores can read A from shared memory, as it lies there."""
    return a_source_of(case.matmul) == "shared"


def loads_only_a_and_b(case: Case) -> bool:
    """Return True if a kernel loads A and B through shared memory, and nothing else."""
    return case.matmul.c is None and not case.matmul.vectors and reads_a_from_shared_memory(case)


# --- conditions on the planned problems

READ_ROWS = 16
"""Mean rows of the groups that have rows, up to which reading the weights decides the time. There swap-AB was
the fastest (``benchmarks/blockscale/h200_experts.jsonl``).
"""
LONGEST_K = 16_384
"""K from which on programs divide it so often that a second kernel may add up their sums; shorter ones were
not measured.
"""
WAVE_TILE = 128 * 256
"""Sums of the largest tile that may cover a problem in one wave."""


def many_rows_of_tile_scales(case: Case) -> bool:
    """Return True if groups have many rows, and each tile has one scale of B in a block of K."""
    filled = (case.matmul.filled_groups(m) for m, _, _ in case.request.planned_shapes)
    many = any(rows > READ_ROWS * groups for groups, rows in filled)
    return many and tile_scaled(case) and not case.matmul.in_blocks


def few_tiles_of_long_k(case: Case) -> bool:
    """Return True if any of the problems has few tiles and a long K, and the kernel may divide K."""
    few = any(has_few_tiles(*shape) for shape in case.request.planned_shapes)
    return few and dense(case) and not case.matmul.gated


def few_tiles_of_longest_k(case: Case) -> bool:
    """Return True if any of the problems has few tiles and the longest K, and the kernel may divide it."""
    few = any(
        math.ceil(m / FEW_ROWS) * math.ceil(n / FEW_ROWS) <= FEW_TILES and k >= LONGEST_K
        for m, n, k in case.request.planned_shapes
    )
    matmul = case.matmul
    return few and dense(case) and not (matmul.gated or matmul.batch_invariant or matmul.copies_misaligned)


def few_rows_a_group(case: Case) -> bool:
    """Return True if the groups of any of the problems have few rows in the mean."""
    groups = case.matmul.groups
    return groups is not None and any(tries_swap_ab(groups, m) for m, _, _ in case.request.planned_shapes)


def of_a_wave(case: Case) -> bool:
    """Return True if all tiles of any of the problems may run at the same time.

    Swap-AB is tried for few rows instead, and for few tiles programs that divide K. A gate excludes both.
    """
    gated, most = case.matmul.gated, WAVE_TILE * case.request.gpu.sm_count
    return dense(case) and any(
        m * case.matmul.b_blocks * n <= most and (gated or not (m <= FEWEST_ROWS or has_few_tiles(m, n, k)))
        for m, n, k in case.request.planned_shapes
    )


# --- values


def step_bytes(*sizes: int) -> Callable[[Case], tuple[int, ...]]:
    """Return the function of the elements of K in steps whose rows of A have the given bytes."""
    return lambda case: tuple(size // case.matmul.a.dtype.bytes for size in sizes)


def step_blocks(*counts: int) -> Callable[[Case], tuple[int, ...]]:
    """Return the function of the elements of K in steps of one or more blocks that have scales."""

    def elements(case: Case) -> tuple[int, ...]:
        scale = case.matmul.a.scale
        return tuple(count * scale.format.vector for count in counts) if scale else ()

    return elements


def rows_with_swap_ab(case: Case) -> tuple[int, ...]:
    """Return the rows of a tile that are tried with swap-AB: as many as A has, or fewer.

    There are at least as many as an instruction of each warp has columns, as a swizzle spans where A is
    M-contiguous, and as have scales in 16 bytes where TMA loads the scales of A.
    """
    a, stated = case.matmul.a, case.stated
    rows = max(m for m, _, _ in case.request.planned_shapes)
    least = WGMMA.n_min * (2 if stated.get("warps_m") == 2 else 1)
    if a.major == "mn":
        spans = HOPPER.tma_swizzle_bytes
        span = next((span for span in spans if span == stated.get("a_swizzle_bytes")), spans[-1])
        least = max(least, span // a.dtype.bytes)
    if a.scale and not TensorAccess(case.matmul).scales_from_any_row:
        least = max(least, a.scale.unit)
    most = max(least, min(FEW_ROWS, 1 << (rows - 1).bit_length()))
    return tuple(most >> halvings for halvings in range((most // least).bit_length()))


FITTED_COLUMNS = tuple(columns for columns in range(16, 384 + 1, 16) if columns.bit_count() <= MOST_PARTS)
"""Columns of tiles of up to three parts.

A part of 8 columns would read 64 rows of A for them; 384 columns are 192 sums of a thread, if a consumer has
64 rows.
"""
FITTED_WAVES = (1, 2, 3)
"""Waves into which columns are fitted: of more, the part of the last one that is idle matters less."""


def fitted(rows: int, among: Collection[int]) -> Callable[[Case], tuple[int, ...]]:
    """Return the function of the fewest columns with which tiles of some rows fill up to three waves.

    The columns are `among` the given ones. Two staggered tiles along N are one rectangle of D.
    """

    def columns(case: Case) -> tuple[int, ...]:
        together = 2 if case.values.get("staggered") else 1
        fewest = (
            next((each for each in FITTED_COLUMNS if tiles(m, n, each, together) <= programs), 0)
            for m, n, _ in case.request.planned_shapes
            for programs in (waves * case.request.gpu.sm_count for waves in FITTED_WAVES)
        )
        return tuple(dict.fromkeys(each for each in fewest if each in among))

    def tiles(m: int, n: int, width: int, together: int) -> int:
        return math.ceil(m / rows) * math.ceil(n / (together * width)) * together

    return columns
