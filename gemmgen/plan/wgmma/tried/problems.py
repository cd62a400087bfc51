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
from gemmgen.plan.wgmma.tried.row import Condition, PartialSpec

# --- conditions on what a spec says


def states(name: str) -> Condition:
    """Return the condition that a spec states a decision."""
    return lambda partial: name in partial.stated


def searches(name: str, values: Collection[object]) -> Condition:
    """Return the condition that a spec wants one of these values tried for a decision."""
    return lambda partial: not set(values).isdisjoint(partial.wanted.get(name, ()))


def searches_no_rows(partial: PartialSpec) -> bool:
    """Return True if a spec wants no values tried for the rows of a tile, or for who shares them."""
    return partial.wanted.keys().isdisjoint(("cta_tile_m", "consumers"))


def orders_in_part(partial: PartialSpec) -> bool:
    """Return True if a spec decides how tiles follow one another, but not the order itself."""
    swapped = partial.values["swap_ab"] and partial.values["schedule_kind"] == "tiled"
    return not {"minor", "width"}.isdisjoint(partial.stated if swapped else partial.decided)


def has_one_part(partial: PartialSpec) -> bool:
    """Return True if the columns of a tile may be a power of two: tiles of other widths have parts."""
    widths = [columns for columns in partial.asked("cta_tile_n") if isinstance(columns, int)]
    return not widths or any(map(is_power_of_two, widths))


def fits_swap_ab(partial: PartialSpec) -> bool:
    """Return True if the rows of a tile are open, or rows that are tried with swap-AB."""
    rows = rows_with_swap_ab(partial)
    return partial.stated.get("cta_tile_m", rows[-1]) in rows


# --- conditions on the matmul


def dense(partial: PartialSpec) -> bool:
    """Return True if there is one A and one B."""
    return partial.matmul.groups is None


def grouped(partial: PartialSpec) -> bool:
    """Return True if the product is divided into groups of rows or of K, or is a batch of products."""
    return partial.matmul.groups is not None


def equal_groups(partial: PartialSpec) -> bool:
    """Return True if all groups have the same extents, so that the host knows their tiles."""
    return partial.matmul.groups is not None and partial.matmul.groups.counts is None


def k_grouped(partial: PartialSpec) -> bool:
    """Return True if groups divide K."""
    return partial.matmul.groups is not None and partial.matmul.groups.divides_k


def scaled(partial: PartialSpec) -> bool:
    """Return True if the sums of each block of K have scales."""
    return partial.matmul.scaled_k is not None


def unscaled(partial: PartialSpec) -> bool:
    """Return True if sums have no scales, and so are promoted only if the spec says so."""
    return not scaled(partial)


def scaled_by_short_blocks(partial: PartialSpec) -> bool:
    """Return True if a block of K that has a scale is shorter than a row of the widest swizzle."""
    block = partial.matmul.scaled_k
    return block is not None and block < HOPPER.tma_swizzle_bytes[0]


def tile_scaled(partial: PartialSpec) -> bool:
    """Return True if many columns of B have one scale in each block of K."""
    return TensorAccess(partial.matmul).has_tile_scales


def quantized_gate(partial: PartialSpec) -> bool:
    """Return True if D has computed scales, and B a block of columns for each of several accumulators."""
    return partial.matmul.in_blocks and partial.matmul.d_scale is not None


def decodes(partial: PartialSpec) -> bool:
    """Return True if threads decode B, which then is the first operand of the instruction."""
    return partial.matmul.b.decoded is not None


def multiplies_as_stored(partial: PartialSpec) -> bool:
    """Return True if the tensor cores multiply A and B as they are in memory."""
    return not decodes(partial)


DECODED_FOR_FEW_ROWS = 32
"""Mean rows of the groups that have rows, up to which small CTAs decode weights sooner than large ones."""


def few_rows_beside_weights(partial: PartialSpec) -> bool:
    """Return True if the groups of any of the problems have few rows in the mean."""
    filled = (partial.matmul.filled_groups(m) for m, _, _ in partial.request.planned_shapes)
    return any(rows <= DECODED_FOR_FEW_ROWS * groups for groups, rows in filled)


ROWS_OF_SPLIT_WEIGHTS = 64
"""Rows of A up to which kernels with a producer do not divide K: these were measured for 128 rows and 256."""
SPLIT_WEIGHTS_TILE = 128
"""Rows and columns of the tile with which waves are counted for decoded weights."""
FILLED_WAVES = 2 / 3
"""Share of its waves that a problem fills, above which parts of K have no idle SMs to take. Parts of K gained
up to 0.19 of the time at seven of nine shapes that fill 0.61 or less, and nothing at seven that fill 0.73 or
more (``benchmarks/weights/h200_split.json``).
"""


def unfilled_beside_weights(partial: PartialSpec) -> bool:
    """Return True if tiles of any of the problems leave SMs idle, and the kernel may divide K for them."""
    side, places = SPLIT_WEIGHTS_TILE, partial.request.gpu.sm_count

    def leaves_idle(m: int, n: int) -> bool:
        tiles = math.ceil(m / side) * math.ceil(n / side)
        return m > ROWS_OF_SPLIT_WEIGHTS and tiles <= FILLED_WAVES * places * math.ceil(tiles / places)

    matmul = partial.matmul
    divides = dense(partial) and not (matmul.gated or matmul.batch_invariant)
    return divides and any(leaves_idle(m, n) for m, n, _ in partial.request.planned_shapes)


def plain(partial: PartialSpec) -> bool:
    """Return True if there are no groups, no gate, no scales of blocks and no weights to decode."""
    return dense(partial) and unscaled(partial) and not (partial.matmul.gated or decodes(partial))


def reads_a_from_shared_memory(partial: PartialSpec) -> bool:
    """Return True if the tensor cores can read A from shared memory without a transposition."""
    return a_source_of(partial.matmul) == "shared"


def loads_only_a_and_b(partial: PartialSpec) -> bool:
    """Return True if a kernel loads A and B through shared memory, and nothing else."""
    return partial.matmul.c is None and not partial.matmul.vectors and reads_a_from_shared_memory(partial)


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


def many_rows_of_tile_scales(partial: PartialSpec) -> bool:
    """Return True if groups have many rows, and each tile has one scale of B in a block of K."""
    filled = (partial.matmul.filled_groups(m) for m, _, _ in partial.request.planned_shapes)
    many = any(rows > READ_ROWS * groups for groups, rows in filled)
    return many and tile_scaled(partial) and not partial.matmul.in_blocks


def few_tiles_of_long_k(partial: PartialSpec) -> bool:
    """Return True if any of the problems has few tiles and a long K, and the kernel may divide K."""
    few = any(has_few_tiles(*shape) for shape in partial.request.planned_shapes)
    return few and dense(partial) and not partial.matmul.gated


def few_tiles_of_longest_k(partial: PartialSpec) -> bool:
    """Return True if any of the problems has few tiles and the longest K, and the kernel may divide it."""
    few = any(
        math.ceil(m / FEW_ROWS) * math.ceil(n / FEW_ROWS) <= FEW_TILES and k >= LONGEST_K
        for m, n, k in partial.request.planned_shapes
    )
    matmul = partial.matmul
    return few and dense(partial) and not (matmul.gated or matmul.batch_invariant or matmul.copies_misaligned)


def few_rows_a_group(partial: PartialSpec) -> bool:
    """Return True if the groups of any of the problems have few rows in the mean."""
    groups = partial.matmul.groups
    return groups is not None and any(tries_swap_ab(groups, m) for m, _, _ in partial.request.planned_shapes)


def of_a_wave(partial: PartialSpec) -> bool:
    """Return True if all tiles of any of the problems may run at the same time.

    Swap-AB is tried for few rows instead, and for few tiles programs that divide K. A gate excludes both.
    """
    gated, most = partial.matmul.gated, WAVE_TILE * partial.request.gpu.sm_count
    return dense(partial) and any(
        m * partial.matmul.b_blocks * n <= most
        and (gated or not (m <= FEWEST_ROWS or has_few_tiles(m, n, k)))
        for m, n, k in partial.request.planned_shapes
    )


# --- values


def step_bytes(*sizes: int) -> Callable[[PartialSpec], tuple[int, ...]]:
    """Return the function of the elements of K in steps whose rows of A have the given bytes."""
    return lambda partial: tuple(size // partial.matmul.a.dtype.bytes for size in sizes)


def step_blocks(*counts: int) -> Callable[[PartialSpec], tuple[int, ...]]:
    """Return the function of the elements of K in steps of one or more blocks that have scales."""

    def elements(partial: PartialSpec) -> tuple[int, ...]:
        scale = partial.matmul.a.scale
        return tuple(count * scale.format.vector for count in counts) if scale else ()

    return elements


def rows_with_swap_ab(partial: PartialSpec) -> tuple[int, ...]:
    """Return the rows of a tile that are tried with swap-AB: as many as A has, or fewer.

    There are at least as many as an instruction of each warp has columns, as a swizzle spans where A is
    M-contiguous, and as have scales in 16 bytes where TMA loads the scales of A.
    """
    a, stated = partial.matmul.a, partial.stated
    rows = max(m for m, _, _ in partial.request.planned_shapes)
    least = WGMMA.n_min * (2 if stated.get("warps_m") == 2 else 1)
    if a.major == "mn":
        spans = HOPPER.tma_swizzle_bytes
        span = next((span for span in spans if span == stated.get("a_swizzle_bytes")), spans[-1])
        least = max(least, span // a.dtype.bytes)
    if a.scale and not TensorAccess(partial.matmul).scales_from_any_row:
        least = max(least, a.scale.unit)
    most = max(least, min(FEW_ROWS, 1 << (rows - 1).bit_length()))
    return tuple(most >> halvings for halvings in range((most // least).bit_length()))


MOST_DECODED_ROWS = 256
"""Rows of a tile that a weight is decoded for at once: an instruction has no more."""


def rows_beside_weights(partial: PartialSpec) -> tuple[int, ...]:
    """Return the rows of a tile that are tried with a decoded weight: as many as A has, or fewer."""
    rows = max(m for m, _, _ in partial.request.planned_shapes)
    most = max(WGMMA.n_min, min(MOST_DECODED_ROWS, 1 << (rows - 1).bit_length()))
    return tuple(most >> halvings for halvings in range((most // WGMMA.n_min).bit_length()))


FITTED_COLUMNS = tuple(columns for columns in range(16, 384 + 1, 16) if columns.bit_count() <= MOST_PARTS)
"""Columns of tiles of up to three parts.

A part of 8 columns would read 64 rows of A for them; 384 columns are 192 sums of a thread, if a consumer has
64 rows.
"""
FITTED_WAVES = (1, 2, 3)
"""Waves into which columns are fitted: of more, the part of the last one that is idle matters less."""


def fitted(rows: int, among: Collection[int]) -> Callable[[PartialSpec], tuple[int, ...]]:
    """Return the function of the fewest columns with which tiles of some rows fill up to three waves.

    The columns are `among` the given ones. Two staggered tiles along N are one rectangle of D.
    """

    def columns(partial: PartialSpec) -> tuple[int, ...]:
        together = 2 if partial.values.get("staggered") else 1
        fewest = (
            next((each for each in FITTED_COLUMNS if tiles(m, n, each, together) <= programs), 0)
            for m, n, _ in partial.request.planned_shapes
            for programs in (waves * partial.request.gpu.sm_count for waves in FITTED_WAVES)
        )
        return tuple(dict.fromkeys(each for each in fewest if each in among))

    def tiles(m: int, n: int, width: int, together: int) -> int:
        return math.ceil(m / rows) * math.ceil(n / (together * width)) * together

    return columns
