"""The scales of blocks in a stage of a Hopper kernel: a scale for each row of A, or each column of B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gemmgen.hardware import DType
from gemmgen.plan.stage import Payload, least_elements
from gemmgen.plan.storage import Extent
from gemmgen.plan.wgmma.geometry import WgmmaGeometry


def scales_of_step(plan: WgmmaGeometry) -> Iterator[Payload]:
    """Yield the scales of a K step that TMA loads; none for a kernel whose sums have no scales.

    A scale of B for all columns of a tile is no payload: threads read it by address.
    """
    problem = plan.problem
    if not problem.scales_sums:
        return
    rows, blocks, row_shares = plan.cta_consumer_tile_m, plan.step_blocks, plan.row_shares
    row_k = Extent(plan.cta_tile_k // blocks, "scale_k" if blocks > 1 else "tile_k")
    if scale := problem.a.scale:
        measure: Literal["consumer_tile_m", "tile_m"] = "consumer_tile_m" if row_shares > 1 else "tile_m"
        ahead = scale.unit - 1 if plan.access.scales_from_any_row else 0
        extent = Extent(plan.consumer_tile_m, measure)
        yield scales_of("a_scale", extent, rows, scale.dtype, blocks, row_k, row_shares, ahead)
    if (scale := problem.b.scale) and scale.format.rows == 1:
        columns = plan.cta_tile_n
        yield scales_of("b_scale", Extent(columns, "tile_n"), columns, scale.dtype, blocks, row_k)


def scales_of(
    tensor: Literal["a_scale", "b_scale"],
    extent: Extent,
    rows: int,
    dtype: DType,
    blocks: int,
    row_k: Extent,
    count: int = 1,
    ahead: int = 0,
) -> Payload:
    """Return the scales of `rows` rows of A, or columns of B, in each CTA, for each of `count` consumers.

    They are `blocks` rows, each of `row_k` of K. Up to `ahead` scales of other rows come before them.

    `extent` has the rows of all CTAs of a program. If they are fewer than TMA loads at least, the scales of
    the next rows come with them, which nobody reads, and so does a number that is no power of two.
    """
    measure: Literal["scale_rows"] | None = "scale_rows" if ahead else None
    loaded = max(least_elements(dtype), 1 << (rows + ahead - 1).bit_length() if ahead else rows)
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
        row_k=row_k,
        count=count,
    )
