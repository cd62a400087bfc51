"""The tiles of A and B in a stage of a Hopper kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from gemmgen.hardware.elements import DTYPES, DType
from gemmgen.plan.stage import Payload, Stage, boxes
from gemmgen.plan.storage import Extent, Measure, numbers

Major = Literal["k", "mn"]

PART_MEASURES: tuple[Measure, ...] = ("part_n_0", "part_n_1", "part_n_2")
"""Measures of the columns of each part of a composed tile."""
KEPT_STAGES = 8192
"""Stages that are kept: more than the different ones among the plans of one search."""


@lru_cache(maxsize=KEPT_STAGES)
def stage_of(
    dtypes: tuple[str, str],
    majors: tuple[Major, Major],
    swizzles: tuple[int, tuple[int, ...]],
    tile: tuple[int, tuple[int, ...], int],
    row_shares: int,
    sums: tuple[int, bool],
    cluster: tuple[int, int],
    box_rows: int,
) -> Stage:
    """Return the stage of a kernel: A's tiles, one for each share of the rows, then B's, one for each part.

    Types, majors and swizzles in bytes are of A and of B, whose parts have one each; `tile` has the rows of a
    CTA, the columns of each part, and the elements of K; `sums` has the columns of B for each column of D,
    and true if they are interleaved; `cluster` has the CTAs along M and N; `box_rows` are the most rows that
    one TMA operation moves. Of a B of several blocks of columns, a tile has columns of each block side by
    side, and each block is loaded by itself. Plans that differ elsewhere share a stage, so the arguments are
    numbers and names, which are hashed fast.
    """
    (m, parts, k), (cluster_m, cluster_n), (count, interleaved) = tile, cluster, sums
    rows = m // row_shares
    measure: Measure = "consumer_tile_m" if row_shares > 1 else "tile_m"
    of_a = _tile(
        "a", dtypes[0], majors[0], (Extent(rows * cluster_m, measure), rows, k), swizzles[0], box_rows
    )
    of_b = (
        replace(
            _tile(
                "b",
                dtypes[1],
                majors[1],
                (Extent(columns * cluster_n, _columns_measure(part, count)), columns, k),
                swizzle_bytes,
                box_rows,
                1 if interleaved else count,
            ),
            sharing=cluster_m,
            part=part,
        )
        for part, columns, swizzle_bytes in zip(numbers(len(parts)), parts, swizzles[1], strict=True)
    )
    return Stage((replace(of_a, sharing=cluster_n, count=row_shares), *of_b))


def _depth(k: int, dtype: DType) -> Extent:
    """Return the elements of K of a tile as they are stored: bytes, of elements that share them."""
    packed = dtype.elements_per_byte
    return Extent(k // packed, "packed_tile_k") if packed > 1 else Extent(k, "tile_k")


def _columns_measure(part: int | None, sums: int) -> Measure:
    if part is None:
        return "product_n" if sums > 1 else "tile_n"
    # A tile that no rule has judged yet may have more parts than any kernel.
    return PART_MEASURES[min(part, len(PART_MEASURES) - 1)]


def _tile(
    tensor: Literal["a", "b"],
    dtype_name: str,
    major: Major,
    extents: tuple[Extent, int, int],
    swizzle_bytes: int,
    box_rows: int,
    blocks: int = 1,
) -> Payload:
    """Return one tile; `extents` has its rows of A or columns of B, over all CTAs and in one, and its K.

    Its rows or columns are of a number of `blocks`, each loaded by itself.
    """
    (outer, rows, k), dtype = extents, DTYPES[dtype_name]
    row_bytes, depth = (k if major == "k" else rows // blocks) * dtype.bits // 8, _depth(k, dtype)
    box = (outer, depth)
    stored_rows = rows // blocks * k * dtype.bits // 8 // max(1, row_bytes)
    block = (Extent(outer.size // blocks, "tile_n"), depth) if blocks > 1 else None
    return Payload(
        tensor=tensor,
        kind="matrix",
        dtype=dtype,
        axis="m" if tensor == "a" else "n",
        box=box if major == "k" else box[::-1],
        loaded_box=block if block is None or major == "k" else block[::-1],
        elements=rows * k,
        bits=dtype.bits,
        loads_per_tile=blocks * boxes(stored_rows, row_bytes, swizzle_bytes, box_rows),
        words=f"{rows} x {k} {dtype.name}",
        swizzle_bytes=swizzle_bytes,
    )
