"""Tiles drawn as the papers about matrix instructions draw them: each element at its byte or register."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmgen.drawing import (
    HEADER_HEIGHT,
    HUES,
    LEFT,
    Drawing,
    cell,
    ending,
    middle,
    notes,
    text_at,
)
from gemmgen.hardware import WGMMA
from gemmgen.pictures.layouts import (
    BANK_BYTES,
    LINE_BYTES,
    OCTET,
    QUAD,
    UNIT_BYTES,
    RegisterTile,
    SharedTile,
)

UNIT_WIDTH = 48
UNIT_HEIGHT = 19
LINE_UNITS = LINE_BYTES // UNIT_BYTES
MATRIX_LEFT = LEFT + 44
MEMORY_LEFT = MATRIX_LEFT + LINE_UNITS * UNIT_WIDTH + 84


# --- shared memory


def shared_tile(tile: SharedTile, alike: Sequence[str], mma_bytes: int, instruction: str) -> Drawing:
    """Draw eight rows of a tile as a matrix and in memory, and the place of all such rows.

    Args:
        tile: The tile.
        alike: Other buffers with the same layout, of other extents and addresses.
        mma_bytes: Bytes of K that one instruction reads; 0 if none reads the tile.
        instruction: Its name.
    """
    units = min(tile.span_bytes, LINE_BYTES) // UNIT_BYTES or 1
    in_memory = f"the same bytes in memory: {tile.row}, first {tile.column}"
    top = HEADER_HEIGHT + 30.0
    lines = [
        text_at("note", MATRIX_LEFT, HEADER_HEIGHT + 12, f"{tile.atom_rows} rows of the matrix, by byte"),
        text_at("note", MEMORY_LEFT, HEADER_HEIGHT + 12, in_memory),
    ]
    lines += _as_matrix(tile, units, top)
    lines += _in_memory(tile, units, top)
    bottom = top + UNIT_HEIGHT * tile.atom_rows
    if mma_bytes and tile.column == "k":
        lines += _steps(units, mma_bytes, instruction, bottom)
    bottom += 30
    drawn, height = _atoms(tile, bottom)
    lines += drawn
    bottom += height
    drawn, height = notes(bottom, [formula(tile)], "formula")
    lines += drawn
    bottom += height - 4
    remarks = list(_remarks(tile, mma_bytes, instruction))
    if alike:
        remarks.append(f"Elements lie alike in {', '.join(alike)}.")
    drawn, height = notes(bottom, remarks)
    return Drawing(
        name=tile.name,
        title=f"{tile.name}: {tile.tensor} in shared memory",
        remark=f"{tile.rows} x {tile.columns} {tile.dtype}, {tile.row} by {tile.column}, {_swizzle(tile)}",
        lines=(*lines, *drawn),
        height=bottom + height,
    )


def _swizzle(tile: SharedTile) -> str:
    return f"swizzled by {tile.swizzle_bytes} bytes" if tile.swizzle_bytes else "not swizzled"


def _unit_text(tile: SharedTile, row: int, unit: int) -> str:
    first = unit * tile.elements_per_unit
    byte = tile.byte(row, first)
    last = min(first + tile.elements_per_unit, tile.columns) - 1
    which = f"{tile.tensor} {tile.row} {row}, {tile.column} {first} to {last}"
    return f"{which}: bytes {byte} to {byte + UNIT_BYTES - 1}"


def _units(tile: SharedTile, units: int) -> Iterator[tuple[int, int, int]]:
    """Yield the row, the number and the first byte of each unit of an atom."""
    for row in range(tile.atom_rows):
        for unit in range(units):
            yield row, unit, tile.byte(row, unit * tile.elements_per_unit)


def _as_matrix(tile: SharedTile, units: int, top: float) -> Iterator[str]:
    yield ending("axis", MATRIX_LEFT - 8, top - 5, f"{tile.row} \\ {tile.column}")
    for unit in range(units):
        first = unit * tile.elements_per_unit
        yield middle("axis", MATRIX_LEFT + UNIT_WIDTH * (unit + 0.5), top - 5, str(first))
    for row, unit, byte in _units(tile, units):
        x, y = MATRIX_LEFT + UNIT_WIDTH * unit, top + UNIT_HEIGHT * row
        if unit == 0:
            yield ending("axis", MATRIX_LEFT - 8, y + 13, str(row))
        yield cell(f"c{unit % HUES}", x, y, UNIT_WIDTH, UNIT_HEIGHT, _unit_text(tile, row, unit))
        yield middle("inside", x + UNIT_WIDTH / 2, y + 13, str(byte))


def _in_memory(tile: SharedTile, units: int, top: float) -> Iterator[str]:
    found = list(_units(tile, units))
    lines = sorted({byte // LINE_BYTES for _, _, byte in found})
    yield ending("axis", MEMORY_LEFT - 8, top - 5, "byte \\ bank")
    for unit in range(LINE_UNITS):
        bank = unit * UNIT_BYTES // BANK_BYTES
        text = f"{bank}-{bank + UNIT_BYTES // BANK_BYTES - 1}"
        yield middle("axis", MEMORY_LEFT + UNIT_WIDTH * (unit + 0.5), top - 5, text)
    for number, line in enumerate(lines):
        yield ending("axis", MEMORY_LEFT - 8, top + UNIT_HEIGHT * number + 13, str(line * LINE_BYTES))
    for row, unit, byte in found:
        x = MEMORY_LEFT + UNIT_WIDTH * (byte % LINE_BYTES // UNIT_BYTES)
        y = top + UNIT_HEIGHT * lines.index(byte // LINE_BYTES)
        yield cell(f"c{unit % HUES}", x, y, UNIT_WIDTH, UNIT_HEIGHT, _unit_text(tile, row, unit))
        first = unit * tile.elements_per_unit
        yield middle("inside", x + UNIT_WIDTH / 2, y + 13, f"{row}, {first}")


def _steps(units: int, mma_bytes: int, instruction: str, top: float) -> Iterator[str]:
    """Yield a bracket under the columns that one instruction reads."""
    each = mma_bytes // UNIT_BYTES
    for step in range(units // each):
        x = MATRIX_LEFT + UNIT_WIDTH * each * step
        yield f'<path class="rule" d="M{x + 3:g} {top + 3:g}v4h{UNIT_WIDTH * each - 6:g}v-4"/>'
        text = f"{instruction} {step}"
        yield middle("axis", x + UNIT_WIDTH * each / 2, top + 18, text)


ATOM_WIDTH = 128
ATOM_HEIGHT = 20
MOST_SPANS = 4


def _atoms(tile: SharedTile, top: float) -> tuple[list[str], float]:
    """Return the map of the tile's atoms with their first bytes, and its height."""
    groups = max(1, tile.rows // OCTET)
    shown: list[int | None] = list(range(groups)) if groups <= 5 else [0, 1, 2, None, groups - 1]
    spans: list[int | None] = list(range(tile.spans))
    if tile.spans > MOST_SPANS:
        spans = [0, 1, None, tile.spans - 1]
    left, y = MATRIX_LEFT + 56, top + 32
    lines = [text_at("note", LEFT, top + 12, "all of the tile: the first byte of such rows")]
    for number, group in enumerate(shown):
        x = left + ATOM_WIDTH * number
        text = (
            "…"
            if group is None
            else f"{tile.row} {OCTET * group}-{min(OCTET * group + OCTET, tile.rows) - 1}"
        )
        lines.append(middle("axis", x + ATOM_WIDTH / 2, y - 5, text))
    for down, span in enumerate(spans):
        row_top = y + ATOM_HEIGHT * down
        text = "…"
        if span is not None:
            first = span * tile.span_elements
            text = f"{tile.column} {first}-{first + tile.span_elements - 1}"
        lines.append(ending("axis", left - 8, row_top + 14, text))
        for number, group in enumerate(shown):
            x = left + ATOM_WIDTH * number
            if span is None or group is None:
                lines.append(cell("free", x, row_top, ATOM_WIDTH, ATOM_HEIGHT))
                continue
            byte = tile.byte(OCTET * group, span * tile.span_elements)
            lines.append(cell("panel", x, row_top, ATOM_WIDTH, ATOM_HEIGHT))
            lines.append(cell("rule", x, row_top, ATOM_WIDTH, ATOM_HEIGHT))
            lines.append(middle("inside", x + ATOM_WIDTH / 2, row_top + 14, f"{byte:,}"))
    return lines, 32 + ATOM_HEIGHT * len(spans) + 8


def formula(tile: SharedTile) -> str:
    """Return the byte of an element as a sum that can be typed into Python."""
    r, c = tile.row, tile.column
    line, units = LINE_BYTES, tile.span_bytes // UNIT_BYTES
    each = tile.elements_per_unit
    in_span = f"{c} % {tile.span_elements}" if tile.spans > 1 else c
    unit = f"({in_span}) // {each}" if tile.spans > 1 else f"{c} // {each}"
    terms = [f"{r} * {tile.span_bytes}"]
    if tile.spans > 1:
        terms.insert(0, f"{c} // {tile.span_elements} * {tile.leading_bytes}")
    if tile.swizzle_bytes:
        lines = f"{r} // {line // tile.span_bytes}" if tile.span_bytes < line else r
        terms.append(f"({unit} ^ {lines} % {units}) * {UNIT_BYTES}")
    else:
        terms.append(f"{unit} * {UNIT_BYTES}")
    width = f"{c} % {each}"
    size = tile.bits // 8
    terms.append(f"{width} * {size}" if size > 1 else width if size else f"{c} % {each} // 2")
    return f"byte = {' + '.join(terms)}"


def _remarks(tile: SharedTile, mma_bytes: int, instruction: str) -> Iterator[str]:
    size = f"{tile.elements_per_unit} {tile.dtype}"
    padded = ", in its first 8 bytes" if tile.padded else ""
    yield (
        f"A cell is {UNIT_BYTES} bytes, which a swizzle moves as a whole: {size}{padded}. A column of "
        f"{tile.atom_rows} cells of one colour is a core matrix."
    )
    slots = f"; slot s of {tile.slots} at {tile.address:,} + s * {tile.bytes:,}" if tile.slots > 1 else ""
    first = f" at byte {tile.address:,} of shared memory" if not slots else ""
    offsets = f"Stride offset {tile.stride_bytes:,} bytes, from {OCTET} rows to the next {OCTET}"
    if tile.spans > 1:
        offsets += (
            f"; leading offset {tile.leading_bytes:,}, from a span of {tile.span_bytes} bytes to the next"
        )
    yield f"{offsets}{slots}{first}."
    if not mma_bytes:
        return
    depth = mma_bytes * 8 // (tile.bits if not tile.padded else 8)
    if tile.column == "k":
        yield (
            f"One {instruction} reads {depth} of k, {mma_bytes} bytes of each row: "
            f"the next begins {mma_bytes} bytes further."
        )
        return
    yield (
        f"One {instruction} reads {depth} rows of k, transposed on their way: the next begins "
        f"{depth * tile.span_bytes:,} bytes further."
    )


# --- registers

PAIR_WIDTH = 62
PAIR_HEIGHT = 17
STRIP_WIDTH = 250


def register_tiles(tiles: Sequence[RegisterTile]) -> Drawing:
    """Draw the 16 rows of a warp by thread and element, and which warp holds which part of the tiles.

    Args:
        tiles: One, or the parts of a consumer's sums, whose rows of a warp are alike.
    """
    tile = tiles[0]
    octet = QUAD * tile.pair
    octets = tile.group // octet
    shown: list[int | None] = list(range(octets)) if octets <= 3 else [0, 1, None, octets - 1]
    top = HEADER_HEIGHT + 34.0
    lines = [text_at("note", MATRIX_LEFT, HEADER_HEIGHT + 12, _fragment_text(tile))]
    lines.append(ending("axis", MATRIX_LEFT - 8, top - 5, f"{tile.row} \\ {tile.column}"))
    x = float(MATRIX_LEFT)
    for number in shown:
        if number is None:
            lines.append(middle("lane", x + 16, top + PAIR_HEIGHT * OCTET, "…"))
            x += 32
            continue
        for quad in range(QUAD):
            column = octet * number + tile.pair * quad
            left = x + PAIR_WIDTH * quad
            text = _range(column, column + tile.pair - 1)
            lines.append(middle("axis", left + PAIR_WIDTH / 2, top - 5, text))
            lines += _pairs(tile, column, left, top)
        x += PAIR_WIDTH * QUAD + 6
    for row in range(WGMMA.rows_per_warp):
        lines.append(ending("axis", MATRIX_LEFT - 8, top + PAIR_HEIGHT * row + 12, str(row)))
    bottom = top + PAIR_HEIGHT * WGMMA.rows_per_warp + 6
    for part in tiles:
        drawn, height = _strips(
            part, bottom, "all of the tile" if part is tiles[-1] and part is tile else part.name
        )
        lines += drawn
        bottom += height
    drawn, height = notes(bottom, list(_register_remarks(tiles)))
    extents = " and ".join(f"{part.rows} x {part.columns}" for part in tiles)
    return Drawing(
        name=tile.name.partition("_")[0],
        title="A in registers" if tile.name == "A" else "the accumulator in registers",
        remark=f"{extents} {tile.dtype}, {tile.row} by {tile.column}, of one consumer",
        lines=(*lines, *drawn),
        height=bottom + height,
    )


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _fragment_text(tile: RegisterTile) -> str:
    several = "the first" if tile.pair == 2 else f"the first of {tile.pair}"
    return f"warp 0: T is the thread, d {several} of its elements in the cell"


def _pairs(tile: RegisterTile, column: int, x: float, top: float) -> Iterator[str]:
    for row in range(WGMMA.rows_per_warp):
        found = tile.place(row, column)
        y = top + PAIR_HEIGHT * row
        last = found.element + tile.pair - 1
        columns = f"{tile.column} {_range(column, column + tile.pair - 1)}"
        who = f"warp {found.warp}, thread {found.lane}"
        tooltip = f"{tile.row} {row}, {columns}: {who}, d{_range(found.element, last)}"
        yield cell(f"c{found.lane % QUAD}", x, y, PAIR_WIDTH, PAIR_HEIGHT, tooltip)
        yield middle("inside", x + PAIR_WIDTH / 2, y + 12, f"T{found.lane} d{found.element}")
        if found.lane == 0:
            yield cell("first", x + 1, y + 1, PAIR_WIDTH - 2, PAIR_HEIGHT - 2)


MOST_STRIPS = 8


def _strips(tile: RegisterTile, top: float, name: str) -> tuple[list[str], float]:
    """Return which warp holds which rows and columns, in which elements, and the height of that."""
    rows, groups = tile.rows // WGMMA.rows_per_warp, max(1, tile.columns // tile.group)
    strips: list[int | None] = list(range(rows)) if rows <= MOST_STRIPS else [0, 1, 2, 3, None, rows - 1]
    across: list[int | None] = list(range(groups)) if groups <= 3 else [0, None, groups - 1]
    left, y = MATRIX_LEFT + 40, top + 32
    lines = [text_at("note", LEFT, top + 12, f"{name}: which warp has what, in which elements")]
    for number, group in enumerate(across):
        text = "…" if group is None else f"{tile.column} {group * tile.group}-{(group + 1) * tile.group - 1}"
        lines.append(middle("axis", left + STRIP_WIDTH * (number + 0.5), y - 5, text))
    for down, strip in enumerate(strips):
        row_top, row = y + PAIR_HEIGHT * down, (strip or 0) * WGMMA.rows_per_warp
        text = "…" if strip is None else f"{tile.row} {row}-{row + WGMMA.rows_per_warp - 1}"
        lines.append(ending("axis", left - 8, row_top + 12, text))
        for number, group in enumerate(across):
            x = left + STRIP_WIDTH * number
            if strip is None or group is None:
                lines.append(cell("free", x, row_top, STRIP_WIDTH, PAIR_HEIGHT))
                continue
            first = tile.place(row, group * tile.group)
            last = tile.place(row + WGMMA.rows_per_warp - 1, (group + 1) * tile.group - 1)
            lines.append(cell(f"c{4 + first.warp % 4}", x, row_top, STRIP_WIDTH, PAIR_HEIGHT))
            text = f"{_warps(tile, first.warp)}: d{first.element}-d{last.element}"
            lines.append(middle("inside", x + STRIP_WIDTH / 2, row_top + 12, text))
    return lines, 32 + PAIR_HEIGHT * len(strips) + 8


def _warps(tile: RegisterTile, first: int) -> str:
    """Name the warps that hold a strip."""
    if not tile.copies or tile.warps[1] == 1:
        return f"warp {first}"
    numbers = [str(first + tile.warps[0] * number) for number in range(tile.warps[1])]
    return f"warps {' and '.join(numbers)}"


def _register_remarks(tiles: Sequence[RegisterTile]) -> Iterator[str]:
    packed = 32 // tiles[0].bits
    elements, taken = sum(part.elements for part in tiles), sum(part.registers for part in tiles)
    held = "each a register" if packed == 1 else f"{packed} to a register"
    yield (
        f"A thread has {elements} elements, {held}: {taken} registers. Warps are numbered from "
        "the consumer's first. The cells of thread 0 are framed."
    )
