"""The scales of blocks in a stage of a Hopper kernel: a scale for each row of A, or each column of B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gemmgen.hardware import DType
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.stage import Payload
from gemmgen.plan.storage import Extent
from gemmgen.problem import Matmul

LEAST_BYTES = 128
"""Bytes of scales that TMA loads at least, so that the scales of each stage begin where TMA can write."""


def least_scales(dtype: DType) -> int:
    """Return the scales of a type that TMA loads at least."""
    return LEAST_BYTES // dtype.bytes


def column_slabs_of(problem: Matmul, tile_n: int) -> int:
    """Return the slabs of a tile's columns that are multiplied one after the other: one for each scale of B.

    A gate whose tile has whole blocks of columns has a slab for each accumulator. Others have one.
    """
    scale = problem.b.scale
    slabs = problem.b_blocks if problem.in_blocks and problem.has_tile_scales else 1
    return slabs if scale and tile_n // slabs >= scale.format.rows else 1


def scales_of_step(
    problem: Matmul, tile: tuple[int, int], row_shares: int, cluster_m: int, blocks: int
) -> Iterator[Payload]:
    """Yield the scales of a K step that TMA loads; none for a matmul whose sums have no scales.

    `tile` has the rows and columns of a CTA, whose rows `row_shares` consumers divide, and a step has
    `blocks` blocks of K. A scale of B for all columns of a tile is no payload: threads read it by address.
    """
    if not problem.scales_sums:
        return
    m, n = tile
    rows = m // row_shares
    if scale := problem.a.scale:
        measure: Literal["consumer_tile_m", "tile_m"] = "consumer_tile_m" if row_shares > 1 else "tile_m"
        ahead = scale.unit - 1 if TensorAccess(problem).scales_from_any_row else 0
        extent = Extent(rows * cluster_m, measure)
        yield _scales("a_scale", extent, rows, scale.dtype, blocks, row_shares, ahead)
    if (scale := problem.b.scale) and scale.format.rows == 1:
        yield _scales("b_scale", Extent(n, "tile_n"), n, scale.dtype, blocks)


def _scales(
    tensor: Literal["a_scale", "b_scale"],
    extent: Extent,
    rows: int,
    dtype: DType,
    blocks: int,
    count: int = 1,
    ahead: int = 0,
) -> Payload:
    """Return the scales of `rows` rows of A, or columns of B, in each CTA, for each of `count` consumers.

    They are of `blocks` blocks of K. Up to `ahead` scales of other rows come before them.

    `extent` has the rows of all CTAs of a program. Fewer than `LEAST_BYTES` come with the scales of
    the next rows, which nobody reads, and so does a number that is no power of two.
    """
    measure: Literal["scale_rows"] | None = "scale_rows" if ahead else None
    loaded = max(least_scales(dtype), 1 << (rows + ahead - 1).bit_length() if ahead else rows)
    return Payload(
        tensor=tensor,
        kind="block_scales",
        dtype=dtype,
        axis="m" if tensor == "a_scale" else "n",
        box=(
            Extent(blocks, "step_blocks" if blocks > 1 else None),
            extent if loaded == rows else Extent(loaded * (extent.size // max(1, rows)), measure),
        ),
        elements=blocks * loaded,
        bits=dtype.bits,
        loads_per_tile=1,
        words=f"{blocks} x {loaded} {dtype.name}",
        count=count,
    )
