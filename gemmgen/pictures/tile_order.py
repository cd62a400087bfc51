"""The rasterization order: where the tiles of a wave are in D, and the bytes that they share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gemmgen.pictures.drawing import (
    HEADER_HEIGHT,
    LEFT,
    LETTER_WIDTH,
    MARGIN,
    WIDTH,
    Drawing,
    cell,
    ending,
    inside,
    text_at,
    width_of,
)
from gemmgen.plan.decisions import LINES
from gemmgen.plan.kernel import Kernel
from gemmgen.problem import DEFAULT_SHAPE, Shape, shape_text

GRID_WIDTH = 450
GRID_HEIGHT = 400
MOST_CELL = 36
"""Pixels of a tile's longer side, at most."""
MOST_TILES = 64
"""Most tiles along a side of the grid."""
MOST_PLACED = 1 << 16
"""Most tiles that are all placed; of more tiles only two waves are."""
MOST_NUMBERS = 150
"""Most tiles with numbers; the order of more is a line."""


def place(kernel: Kernel, tile: int, tiles_m: int, tiles_n: int) -> tuple[int, int]:
    """Return row and column, in tiles, of a tile by its number, as a module's ``tile_origin`` does."""
    if kernel.order in LINES or kernel.schedule_kind == "single_tile":
        down = LINES.get(kernel.order) == "m"
        return (tile % tiles_m, tile // tiles_m) if down else divmod(tile, tiles_n)
    if kernel.order == "hilbert":
        return _on_curve(tile, tiles_m, tiles_n, kernel.width)
    along_m = kernel.minor == "m"
    minor, major = (tiles_m, tiles_n) if along_m else (tiles_n, tiles_m)
    group, in_group = divmod(tile, kernel.width * major)
    first = group * kernel.width
    lines = min(minor - first, kernel.width)
    far, near = divmod(in_group, lines)
    if kernel.order == "snake":
        near = lines - 1 - near if far % 2 else near
        far = major - 1 - far if group % 2 else far
    return (first + near, far) if along_m else (far, first + near)


def _on_curve(tile: int, tiles_m: int, tiles_n: int, side: int) -> tuple[int, int]:
    """Return the place of a tile on Hilbert curves through squares; those that an edge cuts go by columns."""
    band, in_band = divmod(tile, side * tiles_n)
    first_row = band * side
    rows = min(tiles_m - first_row, side)
    square, in_square = divmod(in_band, rows * side)
    first_column = square * side
    columns = min(tiles_n - first_column, side)
    if rows < side or columns < side:
        column, row = divmod(in_square, rows)
        return first_row + row, first_column + column
    row = column = 0
    for level in range(side.bit_length() - 1):
        quadrant = 1 << level
        right = in_square // 2 % 2
        lower = (in_square ^ right) % 2
        if lower == 0:
            if right:
                row, column = quadrant - 1 - row, quadrant - 1 - column
            row, column = column, row
        row, column = row + lower * quadrant, column + right * quadrant
        in_square //= 4
    return first_row + row, first_column + column


@dataclass(frozen=True)
class Reuse:
    """The operands that a wave reads."""

    tiles: int
    rows: int
    """Distinct rows of tiles: each reads its rows of A."""
    columns: int
    bytes: int
    """Distinct bytes of A and B."""
    asked: int
    """Bytes that its programs load, with repetitions."""

    @property
    def times(self) -> float:
        """Mean reads of a byte by programs for each read of it from DRAM."""
        return self.asked / self.bytes


def reuse(kernel: Kernel, shape: Shape, places: Sequence[tuple[int, int]]) -> Reuse:
    """Return the operands that the programs of a wave read for a problem, by their places in D."""
    a = kernel.program_tile_m * shape[2] * kernel.problem.a.dtype.bits // 8
    b_column = shape[2] * kernel.problem.b.dtype.bits // 8
    rows, columns = len({row for row, _ in places}), len({column for _, column in places})
    touched = rows * a + columns * kernel.problem.columns_of_b(kernel.program_tile_n) * b_column
    return Reuse(len(places), rows, columns, touched, len(places) * (a + kernel.loaded_n * b_column))


def tile_order(kernel: Kernel) -> Iterator[Drawing]:
    """Yield the order in which tiles follow one another over D, where there are several."""
    if kernel.schedule_kind == "single_tile":
        return
    shape = next(iter((*kernel.request.bench_shapes, *kernel.request.planned_shapes)), DEFAULT_SHAPE)
    tiles_m, tiles_n = kernel.tiles(shape)
    count = tiles_m * tiles_n
    wave = max(1, kernel.resident_programs // kernel.splits_per_tile)
    placed = count if count <= MOST_PLACED else 2 * wave
    places = [place(kernel, tile, tiles_m, tiles_n) for tile in range(placed)]
    waves = [places[i : i + wave] for i in range(0, placed, wave)]
    grid = _grid(kernel, places[: 2 * wave], (tiles_m, tiles_n))
    left, top = grid.left, grid.top
    lines = [
        text_at("note", left, HEADER_HEIGHT + 14, f"B by {kernel.loaded_n} columns"),
        *_strip(waves[0], grid),
        cell("panel", left, top, round(grid.columns * grid.width, 1), round(grid.rows * grid.height, 1)),
        *_wave(waves[0], "c0", grid),
        *(_wave(waves[1], "c1", grid) if len(waves) > 1 else ()),
        *_walk(places[: 2 * wave], grid),
    ]
    text_left = max(left + grid.columns * grid.width + 30, WIDTH / 2)
    most = int((WIDTH - MARGIN - 26 - text_left) / (11 * LETTER_WIDTH))
    y = top + 4
    for kind, text in _order_texts(kernel, shape, waves, grid):
        if kind:
            lines.append(cell(kind, text_left, y - 10, 14, 12))
        for line in textwrap.wrap(text, most) or [""]:
            lines.append(text_at("note", text_left + 20, y, line))
            y += 17
    height = max(top + grid.rows * grid.height, y) + 14
    tile = f"{kernel.program_tile_m} x {kernel.program_tile_n}"
    yield Drawing(
        "tile_order",
        "the order of tiles over D",
        f"{shape_text(shape)}: {tiles_m} x {tiles_n} tiles of {tile}",
        tuple(lines),
        height,
    )


@dataclass(frozen=True)
class Grid:
    """The first tiles of D, as large as there is room for them."""

    rows: int
    columns: int
    width: float
    """Width of a tile, in pixels."""
    height: float
    left: float = LEFT + 46.0
    top: float = HEADER_HEIGHT + 40.0

    def shows(self, place: tuple[int, int]) -> bool:
        """Return whether a tile, by its row and column, is shown."""
        return place[0] < self.rows and place[1] < self.columns


def _grid(kernel: Kernel, shown: Sequence[tuple[int, int]], tiles: tuple[int, int]) -> Grid:
    """Return the tiles that have these places among them, and one more, in proportion if that can be read."""
    rows, columns = (min(max(place[axis] for place in shown) + 2, tiles[axis], MOST_TILES) for axis in (0, 1))
    width, height = float(kernel.program_tile_n), float(kernel.program_tile_m)
    width, height = min(width, 2 * height), min(height, 2 * width)
    scale = min(GRID_WIDTH / (columns * width), GRID_HEIGHT / (rows * height), MOST_CELL / max(width, height))
    return Grid(rows, columns, width * scale, height * scale)


def _strip(wave: Iterable[tuple[int, int]], grid: Grid) -> Iterator[str]:
    """Yield which rows of A's tiles, and columns of B's, the first wave reads."""
    places = [place for place in wave if grid.shows(place)]
    for row in sorted({row for row, _ in places}):
        y = round(grid.top + row * grid.height, 1)
        yield cell("c4", grid.left - 20, y, 12, round(grid.height, 1))
    for column in sorted({column for _, column in places}):
        x = round(grid.left + column * grid.width, 1)
        yield cell("c4", x, grid.top - 20, round(grid.width, 1), 12)
    yield ending("axis", grid.left - 26, grid.top + 10, "A")


def _wave(wave: Iterable[tuple[int, int]], kind: str, grid: Grid) -> Iterator[str]:
    """Yield the tiles of a wave as one shape."""
    box = f"h{grid.width:.1f}v{grid.height:.1f}h{-grid.width:.1f}z"
    boxes = "".join(
        f"M{grid.left + place[1] * grid.width:.1f} {grid.top + place[0] * grid.height:.1f}{box}"
        for place in wave
        if grid.shows(place)
    )
    if boxes:
        yield f'<path class="{kind}" d="{boxes}"/>'


def _walk(places: Sequence[tuple[int, int]], grid: Grid) -> Iterator[str]:
    """Yield the way from tile to tile with its beginning, or numbers where there is room for them."""
    shown = [
        (grid.left + (column + 0.5) * grid.width, grid.top + (row + 0.5) * grid.height)
        if grid.shows((row, column))
        else None
        for row, column in places
    ]
    room = grid.width >= width_of(str(len(places)), 10) + 4 and grid.height >= 12
    if room and len(places) <= MOST_NUMBERS:
        for number, point in enumerate(shown):
            if point:
                yield inside(round(point[0], 1), round(point[1] + 4, 1), str(number))
        return
    steps: list[str] = []
    for before, after in pairwise([None, *shown]):
        if after:
            steps.append(f"{'L' if before else 'M'}{after[0]:.1f} {after[1]:.1f}")
    yield f'<path class="path" d="{"".join(steps)}"/>'
    if shown[0]:
        size = max(2, min(grid.width, grid.height) / 4)
        yield f'<circle class="first" cx="{shown[0][0]:.1f}" cy="{shown[0][1]:.1f}" r="{size:.1f}"/>'


def _order_texts(
    kernel: Kernel, shape: Shape, waves: Sequence[Sequence[tuple[int, int]]], grid: Grid
) -> Iterator[tuple[str, str]]:
    """Yield lines of text, each with the class of the box before it."""
    lines = {
        "row": "row by row",
        "column": "column by column",
        "hilbert": f"Hilbert curves, {kernel.width} tiles a side",
    }
    walked = "rows" if kernel.minor == "m" else "columns"
    order = f"{kernel.order}, {kernel.width} {walked} of tiles together"
    yield "", f"order: {lines.get(kernel.order, order)}"
    programs = f"{kernel.resident_programs} programs at a time"
    if kernel.splits_per_tile > 1:
        programs += f", {kernel.splits_per_tile} for a tile"
    tiles_m, tiles_n = kernel.tiles(shape)
    count = tiles_m * tiles_n
    number = -(-count // len(waves[0]))
    yield "", f"{programs}: a wave is {len(waves[0]):,} tiles, and there are {number:,}"
    every = [reuse(kernel, shape, wave) for wave in waves]
    first = every[0]
    yield "c0", "the first wave, tile by tile as it is numbered or as the line goes from the dot"
    if len(waves) > 1:
        yield "c1", "the second wave"
    yield "c4", f"of the first wave: {first.rows} rows of A's tiles and {first.columns} columns of B's"
    megabytes = f"{first.asked / 1e6:,.1f} MB of A and B, of which {first.bytes / 1e6:,.1f} MB are distinct"
    yield "", f"The first wave loads {megabytes}: L2 can serve each {first.times:.1f} times."
    if count <= MOST_PLACED:
        mean = sum(each.asked for each in every) / sum(each.bytes for each in every)
        yield "", f"Over all waves that is {mean:.1f} times."
    if (grid.rows, grid.columns) != kernel.tiles(shape):
        yield "", f"The first {grid.rows} x {grid.columns} tiles are shown."
