"""The scales of blocks in a stage of a Blackwell kernel, as they are packed for the tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gemmgen.hardware import SCALE_COLUMNS, SCALE_ROWS
from gemmgen.plan.stage import Payload
from gemmgen.plan.storage import Extent
from gemmgen.plan.tcgen05.geometry import Tcgen05Geometry

LANES_OF_A_BLOCK = (Extent(2), Extent(256))
"""How TMA sees a block of 512 bytes, the scales of 128 rows, 4 each."""


def packed_scales(plan: Tcgen05Geometry) -> Iterator[Payload]:
    """Yield the scales of a K step, in blocks of 128 rows of 4, which one load brings.

    CTAs along N share all scales of A, and CTAs along M all scales of B.
    """
    yield from _scales(plan, "a_scale", plan.cta_tile_m, plan.program_tile_m, plan.cluster_n)
    yield from _scales(plan, "b_scale", plan.cta_tile_n, plan.program_tile_n, plan.cluster_m)


def _scales(
    plan: Tcgen05Geometry, tensor: Literal["a_scale", "b_scale"], rows: int, program_rows: int, sharing: int
) -> Iterator[Payload]:
    """Yield the scales of an operand with `rows` rows of A, or columns of B, in a CTA; none without any."""
    is_a = tensor == "a_scale"
    operand = plan.problem.a if is_a else plan.problem.b
    if operand.scale is None:
        return
    dtype, columns = operand.scale.dtype, plan.scale_columns(operand)
    blocks = Extent(program_rows // SCALE_ROWS, "a_scale_blocks" if is_a else "b_scale_blocks")
    groups = Extent(max(1, columns // SCALE_COLUMNS), "scale_blocks_k")
    yield Payload(
        tensor=tensor,
        kind="block_scales",
        dtype=dtype,
        axis="m" if is_a else "n",
        box=(Extent(1), blocks, groups, *LANES_OF_A_BLOCK),
        elements=rows * columns,
        bits=dtype.bits,
        loads_per_tile=1,
        words=f"{rows} x {columns}",
        sharing=sharing,
    )
