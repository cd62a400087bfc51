"""Tensor memory of a Blackwell SM: its columns and lanes, and the scales of one K step in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmgen.drawing import (
    GAP,
    HEADER_HEIGHT,
    HUES,
    LEFT,
    MARGIN,
    NOTE_HEIGHT,
    WIDTH,
    Drawing,
    cell,
    ending,
    middle,
    notes,
    text_at,
    width_of,
)
from gemmgen.hardware import SCALE_COLUMNS, TCGEN05
from gemmgen.pictures.layouts import (
    BANK_BYTES,
    LANES,
    ScaleTile,
    TensorTile,
)
from gemmgen.pictures.matrices import MATRIX_LEFT, UNIT_HEIGHT
from gemmgen.plan.kernel import Kernel

COLUMN_LEFT = LEFT + 96
COLUMNS_WIDTH = WIDTH - MARGIN - 10 - COLUMN_LEFT
LANE_HEIGHT = 1.125
"""Pixels of one of 128 lanes."""
ALL_LANES = 128


def tensor_memory(kernel: Kernel, sums: TensorTile, scales: Sequence[ScaleTile]) -> Drawing:
    """Draw the columns and lanes of tensor memory with their contents."""
    top = HEADER_HEIGHT + 20.0
    per_column = COLUMNS_WIDTH / TCGEN05.tmem_columns
    height = ALL_LANES * LANE_HEIGHT
    lines = [cell("free", COLUMN_LEFT, top, COLUMNS_WIDTH, height)]
    for column in range(0, TCGEN05.tmem_columns + 1, 64):
        lines.append(middle("axis", COLUMN_LEFT + per_column * column, top - 4, str(column)))
    for warp in range(4):
        y = top + height * warp / 4
        lines.append(
            ending("axis", COLUMN_LEFT - 8, y + height / 8 + 4, f"lanes {LANES * warp}-{LANES * warp + 31}")
        )
    for slot in range(sums.slots):
        x, width = COLUMN_LEFT + per_column * sums.column(0, slot), per_column * sums.columns
        lines += _sums(sums, slot, x, width, top)
    for number, scale in enumerate(scales):
        width = per_column * scale_columns(scale)
        x = COLUMN_LEFT + per_column * scale.first_column
        told = (
            f"{scale.name}: columns {scale.first_column} to {scale.first_column + scale_columns(scale) - 1}"
        )
        lines.append(cell(f"c{2 + number}", x, top, width, height, told))
    bottom = top + height + 6
    keyed = [
        ("c0", _sums_text(sums)),
        *((f"c{2 + i}", _scales_text(scale)) for i, scale in enumerate(scales)),
    ]
    for kind, text in keyed:
        lines.append(cell(kind, LEFT, bottom + 3, 12, 10))
        lines.append(text_at("note", LEFT + 20, bottom + NOTE_HEIGHT - 4, text))
        bottom += NOTE_HEIGHT
    reach = "A lane has 4 bytes in each column. Warp w of the epilogue reaches lanes 32 w to 32 w + 31."
    drawn, note_height = notes(bottom, [reach])
    used = kernel.tensor_memory.columns
    return Drawing(
        name="tensor_memory",
        title="tensor memory",
        remark=f"{used} columns used, {kernel.tmem_columns} allocated of {TCGEN05.tmem_columns}",
        lines=(*lines, *drawn),
        height=bottom + note_height,
    )


def scale_columns(scale: ScaleTile) -> int:
    """Return the columns of tensor memory that scales take."""
    return scale.byte(scale.rows - 1, scale.columns - 1) // BANK_BYTES + 1


def _sums(sums: TensorTile, slot: int, x: float, width: float, top: float) -> Iterator[str]:
    first = sums.column(0, slot)
    name = sums.name if sums.slots == 1 else f"{sums.name}[{slot}]"
    told = f"{name}: columns {first} to {first + sums.columns - 1}"
    rows = [sums.lane(row) for row in range(sums.rows)]
    run = next((i for i, lane in enumerate(rows) if lane != i), sums.rows)
    for row in range(0, sums.rows, run):
        y = top + rows[row] * LANE_HEIGHT
        yield cell(f"c{slot % 2}", x, y, width, run * LANE_HEIGHT, told)
        text = f"{name}: rows {row}-{row + run - 1}"
        if width_of(text, 10) + 8 < width:
            yield middle("inside", x + width / 2, y + run * LANE_HEIGHT / 2 + 4, text)


def _sums_text(sums: TensorTile) -> str:
    lane = "lane m" if sums.rows == ALL_LANES else "lane m // 16 * 32 + m % 16"
    first = f"{sums.first_column} + " if sums.first_column else ""
    slot = f"{sums.columns} * slot + " if sums.slots > 1 else ""
    return f"{sums.name}: D[m, n] of the CTA's tile is in {lane}, column {first}{slot}n, an fp32 each."


def _scales_text(scale: ScaleTile) -> str:
    last = scale.first_column + scale_columns(scale) - 1
    return (
        f"{scale.name}: columns {scale.first_column} to {last}, the {scale.dtype} scales of "
        f"{scale.rows} rows, {scale.columns} of each row, one for {scale.vector} of k."
    )


SCALE_WIDTH = 100
MOST_SCALE_COLUMNS = 8


def scale_tile(scale: ScaleTile) -> Drawing:
    """Draw which scales are in which lane and column."""
    top = HEADER_HEIGHT + 36.0
    dimension = "m" if scale.tensor == "A" else "n"
    count = scale_columns(scale)
    rows_of = {
        (scale.lane(row), scale.byte(row, column) // BANK_BYTES): (row, column)
        for row in range(scale.rows)
        for column in range(0, scale.columns, SCALE_COLUMNS)
    }
    shown = range(min(count, MOST_SCALE_COLUMNS))
    head = f"row {dimension}, and the scales of that row in the column's 4 bytes"
    lanes: list[int | None] = [0, 1, 2, None, LANES - 1]
    lines = [
        text_at("note", MATRIX_LEFT, HEADER_HEIGHT + 12, head),
        ending("axis", MATRIX_LEFT - 8, top - 5, "lane"),
    ]
    for column in shown:
        text = f"column {scale.first_column + column}"
        lines.append(middle("axis", MATRIX_LEFT + SCALE_WIDTH * (column + 0.5), top - 5, text))
    for down, lane in enumerate(lanes):
        y = top + UNIT_HEIGHT * down
        lines.append(ending("axis", MATRIX_LEFT - 8, y + 13, "…" if lane is None else str(lane)))
        for column in shown:
            x = MATRIX_LEFT + SCALE_WIDTH * column
            if lane is None:
                lines.append(cell("free", x, y, SCALE_WIDTH, UNIT_HEIGHT))
                continue
            row, first = rows_of[lane, column]
            last = min(first + SCALE_COLUMNS, scale.columns) - 1
            kind = f"c{first // SCALE_COLUMNS % HUES}"
            where = f"lane {lane}, column {scale.first_column + column}"
            told = f"{scale.tensor} {dimension} {row}, scales {first} to {last}: {where}"
            lines.append(cell(kind, x, y, SCALE_WIDTH, UNIT_HEIGHT, told))
            lines.append(middle("inside", x + SCALE_WIDTH / 2, y + 13, f"{dimension} {row}: {first}-{last}"))
    bottom = top + UNIT_HEIGHT * len(lanes) + GAP
    texts = [
        "Lanes 32 to 127 hold copies: each quarter has all. A scale is a byte, the first one the lowest."
    ]
    if count > MOST_SCALE_COLUMNS:
        texts.append(f"The first {MOST_SCALE_COLUMNS} of {count} columns are shown.")
    drawn, height = notes(bottom, texts)
    return Drawing(
        name=scale.name,
        title=f"{scale.name}: {scale.tensor}'s scales in tensor memory",
        remark=f"{scale.rows} x {scale.columns} {scale.dtype}",
        lines=(*lines, *drawn),
        height=bottom + height,
    )
