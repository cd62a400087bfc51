"""Pictures of what a plan decided: memory, registers, the ring, the order of tiles, and where elements lie.

They come from the plan alone: neither torch nor Triton is needed. `svg` stacks all of a kernel's drawings or
some; `page` has them all for a browser, and looks up any element. What a plan spends, to scale, and what it
does in which order is drawn here; ``matrices`` draws tiles, by the arithmetic of ``layouts``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePath

from gemmgen.drawing import (
    HEADER_HEIGHT,
    HUES,
    LETTER_WIDTH,
    MARGIN,
    MATRIX_STYLE,
    STYLE,
    WIDTH,
    Drawing,
    alone,
    cell,
    ending,
    fitting,
    middle,
    stacked,
    text_at,
    width_of,
)
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import TCGEN05, WGMMA
from gemmgen.literals import markup
from gemmgen.pictures import layouts, matrices
from gemmgen.pictures.matrices import LEFT, notes
from gemmgen.plan.decisions import LINES
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import DEFAULT_SHAPE, Shape, shape_text
from gemmgen.product import Product
from gemmgen.render import render_page

__all__ = ["Drawing", "drawings", "page", "svg"]

# --- bars to scale

BAR_LEFT = LEFT + 150
BAR_WIDTH = 520
BAR_HEIGHT = 16
ROW_HEIGHT = 20
TEXT_LEFT = BAR_LEFT + BAR_WIDTH + 12
TEXT_WIDTH = WIDTH - MARGIN - 6 - TEXT_LEFT


@dataclass(frozen=True)
class Bar:
    """An amount with its place in a whole."""

    name: str
    begin: float
    size: float
    text: str
    tooltip: str
    pieces: int = 1
    """Parts of the same size in which it is drawn."""


def _bars(bars: Sequence[Bar], first: float, whole: float, top: float) -> Iterator[str]:
    """Yield bars under each other, on a scale from `first` on."""
    per_unit = BAR_WIDTH / whole
    for number, bar in enumerate(bars):
        y = top + ROW_HEIGHT * number
        yield text_at("lane", LEFT, y + 12, fitting(bar.name, BAR_LEFT - LEFT - 8, 11))
        yield cell("panel", BAR_LEFT, y, BAR_WIDTH, BAR_HEIGHT)
        x, width = BAR_LEFT + (bar.begin - first) * per_unit, bar.size * per_unit
        pieces = bar.pieces if width / bar.pieces > 4 else 1
        each = width / pieces
        shown = round(max(1.5, each - 1) if pieces > 1 else max(1.5, each), 1)
        lefts = (min(x + each * piece, BAR_LEFT + BAR_WIDTH - 1.5) for piece in range(pieces))
        box = f"v{BAR_HEIGHT}h{-shown:g}z"
        boxes = "".join(f"M{left:.1f} {y:g}h{shown:g}{box}" for left in lefts)
        told = f"<title>{markup(bar.tooltip)}</title>"
        yield f'<path class="c{number % HUES}" d="{boxes}">{told}</path>'
        yield text_at("note", TEXT_LEFT, y + 12, fitting(bar.text, TEXT_WIDTH, 11))


# --- shared memory

SMALL_SHARE = 0.01
"""Of all shared memory: what is smaller has a scale of its own."""


def shared_memory(kernel: Kernel) -> Drawing:
    """Draw every allocation at its address."""
    memory, limit = kernel.shared_memory, kernel.smem_limit_bytes
    buffers = {buffer.name: buffer for buffer in memory.buffers}
    barriers = {barrier.name: barrier for barrier in memory.barriers}
    large: list[Bar] = []
    small: list[Bar] = []
    for allocation, begin in memory.placed:
        text, pieces = f"{allocation.bytes:,} bytes at {begin:,}", 1
        tooltip = f"{allocation.name}: bytes {begin:,} to {begin + allocation.bytes - 1:,}"
        if buffer := buffers.get(allocation.name):
            pieces = buffer.ring.depth if buffer.ring else 1
            tooltip += f", {buffer.contents}"
        if barrier := barriers.get(allocation.name):
            pieces = barrier.ring.depth
            tooltip += f", {barrier.arrivals} arrivals: {barrier.meaning}"
        bar = Bar(allocation.name, begin, allocation.bytes, text, tooltip, pieces)
        (large if allocation.bytes > SMALL_SHARE * limit else small).append(bar)
    top = HEADER_HEIGHT + 6.0
    lines = list(_bars(large, 0, limit, top))
    top += ROW_HEIGHT * len(large) + 2
    if small:
        begin, end = int(small[0].begin), int(max(bar.begin + bar.size for bar in small))
        lines.append(text_at("note", LEFT, top + 14, f"magnified, bytes {begin:,} to {end - 1:,}:"))
        top += 22
        lines += _bars(small, begin, end - begin, top)
        top += ROW_HEIGHT * len(small) + 2
    texts = ["A piece is a slot of a ring, or its mbarrier. The compiler places what is largest first."]
    if behind := memory.total_bytes - max(begin + allocation.bytes for allocation, begin in memory.placed):
        texts.append(f"The last {behind} bytes are for partitions that count in global memory.")
    drawn, height = notes(top, texts)
    share = "one CTA" if kernel.occupancy == 1 else f"{kernel.occupancy} CTAs"
    used = f"{kernel.smem_bytes:,} of {limit:,} bytes, {kernel.smem_bytes / limit:.1%}, for {share} per SM"
    return Drawing("shared_memory", "shared memory of a CTA", used, (*lines, *drawn), top + height)


# --- registers


def registers(kernel: Kernel) -> Drawing:
    """Draw the SM's register file by role, and what a thread holds that multiplies or stores."""
    whole = kernel.architecture.registers_per_sm
    bars = list(_roles(kernel))
    top = HEADER_HEIGHT + 6.0
    lines = list(_bars(bars, 0, whole, top))
    top += ROW_HEIGHT * len(bars) + 2
    threads = list(_of_thread(kernel))
    each = _thread_registers(kernel)
    lines.append(text_at("note", LEFT, top + 14, f"a thread that holds sums, of at most {each} registers:"))
    top += 22
    lines += _bars(threads, 0, each, top)
    top += ROW_HEIGHT * len(threads) + 8
    used = int(sum(bar.size for bar in bars))
    return Drawing(
        "registers",
        "registers of an SM",
        f"{used:,} of {whole:,}, {kernel.threads} threads of each CTA",
        tuple(lines),
        top,
    )


def _roles(kernel: Kernel) -> Iterator[Bar]:
    """Yield what each partition has: the first one, then the workers as the compiler packs them."""
    pool, per_warp = kernel.register_pool, kernel.architecture.threads_per_warp
    first = kernel.partitions[0]
    default = pool.default_registers if kernel.specialized else first.registers
    default = min(default, pool.launch_registers) if not kernel.specialized else default
    shares = [(first.name, pool.default_warps, default)]
    ordered = sorted(kernel.workers, key=lambda worker: (worker.warps, worker.registers), reverse=True)
    size = kernel.architecture.warps_per_warpgroup
    packed = 0
    for worker in ordered:
        shares.append((worker.name, worker.warps, pool.groups[packed // size]))
        packed += worker.warps
    if idle := size * len(pool.groups) - packed:
        shares.append(("idle warps", idle, pool.groups[-1]))
    begin = 0
    for number in range(kernel.occupancy):
        of_cta = f", CTA {number}" if kernel.occupancy > 1 else ""
        for name, warps, each in shares:
            amount = warps * per_warp * each
            text = f"{warps} warp{'s' * (warps > 1)} x 32 x {each} = {amount:,}"
            tooltip = f"{name}{of_cta}: {each} registers for each of {warps * per_warp} threads"
            yield Bar(f"{name}{of_cta}", begin, amount, text, tooltip, warps)
            begin += amount


def _thread_registers(kernel: Kernel) -> int:
    first = kernel.partitions[0]
    most = min(first.registers, kernel.architecture.registers_per_thread)
    return min(most, kernel.register_pool.default_registers) if kernel.specialized else most


def _of_thread(kernel: Kernel) -> Iterator[Bar]:
    """Yield what a thread of the first partition holds."""
    each, begin = _thread_registers(kernel), 0
    held: list[tuple[str, int, str]] = []
    if isinstance(kernel, WgmmaKernel):
        sums = kernel.accumulator_registers // (2 if kernel.promote_k else 1)
        held.append(("accumulator", sums, "of its tile"))
        if kernel.promote_k:
            held.append(("partial sums", sums, f"of {kernel.promote_k} of k"))
        if kernel.operand_registers:
            held.append(("A", kernel.operand_registers, "of its rows"))
    elif isinstance(kernel, Tcgen05Kernel):
        threads = kernel.default_warps * kernel.architecture.threads_per_warp
        sums = kernel.cta_tile_m * min(kernel.subtile_n, kernel.cta_tile_n) // threads
        held.append(("sub-tile of sums", sums, "at a time"))
    for name, amount, what in held:
        yield Bar(name, begin, amount, f"{amount} registers, {what}", f"{name}: {amount} registers {what}")
        begin += amount
    yield Bar(
        "all else", begin, max(0, each - begin), f"{each - begin} registers", "addresses, loops, the epilogue"
    )


# --- the ring

STEP = 4
"""Units of the time line in which the tensor cores multiply a K step."""
ISSUE = 1
"""Between two steps, where no MMA is in flight while the next is issued."""
EPILOGUE_STEPS = 2
LANE_LEFT = LEFT + 116
LANE_WIDTH = WIDTH - MARGIN - 12 - LANE_LEFT
LANE_HEIGHT = 18
MOST_SLOTS = 12


@dataclass(frozen=True)
class Stage:
    """A K step on the time line, in its units."""

    tile: int
    step: int
    slot: int
    requested: int
    arrived: int
    multiplied: int
    """When its MMAs begin."""
    done: int
    freed: int


@dataclass(frozen=True)
class Pipeline:
    """The first tiles of a program, by the plan's rings: loads that take as long as the ring can hide."""

    stages: tuple[Stage, ...]
    stores: tuple[tuple[int, int, int, int], ...]
    """Of each tile: number, who stores it, begin and end."""
    load_units: int
    tile_steps: int
    storers: int


def pipeline(kernel: Kernel) -> Pipeline:
    """Return the time line of a program's first tiles.

    A K step is requested as soon as its slot is free, and multiplied as soon as it is there and the sums of
    its tile have a place. Who keeps MMAs in flight frees a slot while the next step is multiplied.
    """
    depth, ahead = kernel.stages, _in_flight(kernel)
    load_units = max(1, depth - 1) * STEP
    tile_steps = depth + 2
    places = _places_of_sums(kernel)
    gap = 0 if ahead else ISSUE
    overlapped = (kernel.persistent and kernel.specialized) or isinstance(kernel, Tcgen05Kernel)
    stages: list[Stage] = []
    stores: list[tuple[int, int, int, int]] = []
    freed: list[int] = []
    tensor_free = 0
    for number in range(2 * depth + tile_steps // 2):
        tile, step = divmod(number, tile_steps)
        requested = freed[number - depth] if number >= depth else number % depth
        if not overlapped and tile and stores:
            # The same warps load and store: a tile's first loads come behind the one before.
            requested = max(requested, stores[tile - 1][3] + step if step < depth else 0)
        if number and requested < stages[-1].requested:
            requested = stages[-1].requested
        arrived = requested + load_units
        begin = max(arrived, tensor_free)
        if step == 0 and tile >= places:
            begin = max(begin, stores[tile - places][3])
        done = begin + STEP
        tensor_free = done + gap
        freed.append(done)
        stages.append(Stage(tile, step, number % depth, requested, arrived, begin, done, done))
        if step == tile_steps - 1:
            stores.append((tile, tile % places, done, done + EPILOGUE_STEPS * STEP))
    return Pipeline(tuple(stages), tuple(stores), load_units, tile_steps, places)


def _in_flight(kernel: Kernel) -> bool:
    """Whether MMAs run while the next are issued."""
    return isinstance(kernel, Tcgen05Kernel) or (
        isinstance(kernel, WgmmaKernel) and kernel.outstanding_mmas > 0
    )


def _places_of_sums(kernel: Kernel) -> int:
    """Return the tiles whose sums have a place at a time."""
    if isinstance(kernel, Tcgen05Kernel):
        return kernel.accumulators
    return kernel.consumers if isinstance(kernel, WgmmaKernel) and kernel.ping_pong else 1


def ring(kernel: Kernel) -> Drawing:
    """Draw what is in each slot of the ring of A and B, what is multiplied when, and when it is stored."""
    found = pipeline(kernel)
    end = max(stage.freed for stage in found.stages)
    per_unit = LANE_WIDTH / end
    slots = min(kernel.stages, MOST_SLOTS)
    top = HEADER_HEIGHT + 4.0
    lines: list[str] = []
    for slot in range(slots):
        y = top + LANE_HEIGHT * slot
        lines.append(text_at("lane", LEFT, y + 12, f"slot {slot}"))
        for stage in found.stages:
            if stage.slot == slot:
                lines += _drawn_stage(stage, y, per_unit)
    lines += _phases(kernel, found.stages, top, per_unit)
    y = top + LANE_HEIGHT * slots + 4
    for lane, name in enumerate(_multipliers(kernel)):
        lines.append(text_at("lane", LEFT, y + 12, name))
        for stage in found.stages:
            if stage.tile % found.storers == lane or len(_multipliers(kernel)) == 1:
                told = f"tile {stage.tile}, K step {stage.step}, from slot {stage.slot}"
                lines += _drawn_bar("mma", stage.multiplied, stage.done, y, per_unit, str(stage.step), told)
        for tile, storer, begin, finish in found.stores:
            if (
                storer == lane
                and len(_multipliers(kernel)) == found.storers
                and isinstance(kernel, WgmmaKernel)
            ):
                lines += _drawn_bar(
                    "store", begin, min(finish, end), y, per_unit, "store", f"tile {tile} is stored"
                )
        y += LANE_HEIGHT
    if isinstance(kernel, Tcgen05Kernel):
        lines.append(text_at("lane", LEFT, y + 12, "epilogue"))
        for tile, storer, begin, finish in found.stores:
            told = f"tile {tile} is stored from accumulator {storer}"
            lines += _drawn_bar("store", begin, min(finish, end), y, per_unit, f"tile {tile}", told)
        y += LANE_HEIGHT
    y += 4
    drawn, height = _ring_legend(y)
    lines += drawn
    y += height
    drawn, height = notes(y, list(_ring_remarks(kernel, found)))
    return Drawing(
        "ring",
        "the ring's time line",
        f"{kernel.stages} stages of {kernel.stage_bytes:,} bytes; tiles of {found.tile_steps} K steps",
        (*lines, *drawn),
        y + height,
    )


def _multipliers(kernel: Kernel) -> list[str]:
    if isinstance(kernel, WgmmaKernel):
        if kernel.ping_pong:
            return [f"consumer {number}" for number in range(kernel.consumers)]
        return ["consumers" if kernel.consumers > 1 else "consumer"]
    return ["tensor cores"]


def _drawn_stage(stage: Stage, y: float, per_unit: float) -> Iterator[str]:
    name = f"tile {stage.tile}, K step {stage.step}"
    yield from _drawn_bar(
        "load", stage.requested, stage.arrived, y, per_unit, f"load {stage.step}", f"{name} is being loaded"
    )
    if stage.multiplied > stage.arrived:
        yield from _drawn_bar(
            "wait", stage.arrived, stage.multiplied, y, per_unit, "", f"{name} waits in its slot"
        )
    yield from _drawn_bar(
        "mma", stage.multiplied, stage.freed, y, per_unit, str(stage.step), f"{name} is multiplied"
    )


def _phases(kernel: Kernel, stages: Sequence[Stage], top: float, per_unit: float) -> Iterator[str]:
    """Yield a tick for each phase of the ring's barriers; a kernel whose warps all load has one barrier."""
    known = {barrier.name for barrier in kernel.barriers}
    ends = {
        "load_ready": [(stage.slot, stage.arrived) for stage in stages],
        "load_empty": [(stage.slot, stage.freed) for stage in stages],
    }
    for name in (name for name in ends if name in known):
        ticks = "".join(
            f"M{LANE_LEFT + at * per_unit:.1f} {top + LANE_HEIGHT * slot:g}v{LANE_HEIGHT - 2}"
            for slot, at in ends[name]
            if slot < MOST_SLOTS
        )
        yield f'<path class="phase" d="{ticks}"><title>{name}: a phase completes</title></path>'


def _drawn_bar(
    kind: str, begin: int, end: int, y: float, per_unit: float, text: str, tooltip: str
) -> Iterator[str]:
    x, width = LANE_LEFT + begin * per_unit, (end - begin) * per_unit
    yield cell(kind, round(x + 0.5, 1), y + 1, round(width - 1, 1), LANE_HEIGHT - 4, tooltip)
    if text and width_of(text, 10) + 4 < width:
        yield middle("inside", round(x + width / 2, 1), y + 12, text)


def _ring_legend(y: float) -> tuple[list[str], float]:
    lines: list[str] = []
    x = float(LEFT)
    for kind, text in (
        ("load", "TMA fills the slot"),
        ("wait", "full, not yet read"),
        ("mma", "MMAs read it"),
        ("store", "a tile is stored"),
    ):
        lines += [cell(kind, x, y, 14, 12), text_at("note", x + 20, y + 10, text)]
        x += 20 + width_of(text, 11) + 18
    lines.append(f'<path class="phase" d="M{x:g} {y:g}v12"/>')
    lines.append(text_at("note", x + 8, y + 10, "a barrier's phase completes"))
    return lines, 18


def _ring_remarks(kernel: Kernel, found: Pipeline) -> Iterator[str]:
    hidden = found.load_units // STEP
    yield (
        "The order is the plan's, lengths are no times: loads are drawn as long as "
        f"{hidden} K step{'s' * (hidden > 1)}, the longest that this ring hides."
    )
    if kernel.stages > MOST_SLOTS:
        yield f"The first {MOST_SLOTS} of {kernel.stages} slots are shown."
    if isinstance(kernel, WgmmaKernel):
        if kernel.outstanding_mmas:
            mmas = f"{kernel.outstanding_mmas} MMA{'s' * (kernel.outstanding_mmas > 1)} in flight"
            yield f"{mmas} while the next is issued: the tensor cores have no gap."
        else:
            yield "No MMA is in flight while the next is issued: each K step waits for the one before."


# --- the order of tiles

GRID_WIDTH = 450
GRID_HEIGHT = 400
MOST_CELL = 36
"""Pixels of a tile's longer side, at most."""
MOST_TILES = 64
"""Along a side of what is shown."""
MOST_PLACED = 1 << 16
"""Tiles of which all are placed; of more, two waves."""
MOST_NUMBERS = 150
"""Of tiles: the way through more is a line."""


def place(kernel: Kernel, tile: int, tiles_m: int, tiles_n: int) -> tuple[int, int]:
    """Return row and column, in tiles, of a tile by its number: what a module's ``tile_origin`` computes."""
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
    """What a wave reads."""

    tiles: int
    rows: int
    """Distinct rows of tiles, of which each needs A's."""
    columns: int
    bytes: int
    """Of A and B that it touches."""
    asked: int
    """That its programs load, each its own tiles."""

    @property
    def times(self) -> float:
        """How often a byte is read, that comes from DRAM once."""
        return self.asked / self.bytes


def reuse(kernel: Kernel, shape: Shape, places: Sequence[tuple[int, int]]) -> Reuse:
    """Return what the programs of a wave read of A and B for a problem, at these places of D."""
    a = kernel.program_tile_m * shape[2] * kernel.problem.a.dtype.bits // 8
    b_column = shape[2] * kernel.problem.b.dtype.bits // 8
    rows, columns = len({row for row, _ in places}), len({column for _, column in places})
    touched = rows * a + columns * kernel.program_tile_n * b_column
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
    """Of a tile, in pixels."""
    height: float
    left: float = LEFT + 46.0
    top: float = HEADER_HEIGHT + 40.0

    def shows(self, place: tuple[int, int]) -> bool:
        """Whether a tile, by its row and column, is among them."""
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
                yield middle("inside", round(point[0], 1), round(point[1] + 4, 1), str(number))
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
    if kernel.divides_last_wave and count % len(waves[0]):
        yield "", "The tiles of the last wave are divided by K steps (stream-K)."
    if (grid.rows, grid.columns) != kernel.tiles(shape):
        yield "", f"The first {grid.rows} x {grid.columns} tiles are shown."


# --- all of a kernel


def drawings(kernel: Kernel) -> tuple[Drawing, ...]:
    """Return every drawing of a kernel, from the coarse to the fine; buffers that are alike have one."""
    found = [shared_memory(kernel), registers(kernel)]
    sums, scales = layouts.tensor_tile(kernel), layouts.scale_tiles(kernel)
    if sums:
        found.append(matrices.tensor_memory(kernel, sums, scales))
    found += [ring(kernel), *tile_order(kernel)]
    instruction = kernel.architecture.mma
    k_bytes = {"wgmma": WGMMA.k_bytes, "tcgen05": TCGEN05.k_bytes}[instruction]
    in_registers = layouts.operand_in_registers(kernel)
    alike: dict[tuple[str, int], list[layouts.SharedTile]] = {}
    for tile in layouts.shared_tiles(kernel):
        alike.setdefault((tile.tensor, tile.swizzle_bytes), []).append(tile)
    for (tensor, _), (tile, *others) in alike.items():
        if tensor in ("A", "B"):
            read = 0 if tensor == "A" and in_registers else k_bytes
            names = [other.name for other in others]
            found.append(matrices.shared_tile(tile, names, read, instruction))
    fragments = ((in_registers,) if in_registers else (), layouts.accumulators(kernel))
    found += [matrices.register_tiles(tiles) for tiles in fragments if tiles]
    found += [matrices.scale_tile(scale) for scale in scales]
    return tuple(found)


def svg(product: Product, names: Collection[str] = ()) -> str:
    """Return a kernel's drawings one under the other: all, or those of these names; same plan, same bytes.

    Raises:
        GemmgenError: It has no drawing of a name (``no-drawing``).
    """
    path, found = product.source.path, drawings(product.plan)
    known = {drawing.name: drawing for drawing in found}
    for name in names:
        if name not in known:
            message = f"there is no drawing `{name}`; there are {', '.join(known)}"
            raise GemmgenError([Diagnostic(path, "no-drawing", message)])
    chosen = [known[name] for name in names] if names else found
    spoken = f"{product.plan.request.title}: {', '.join(drawing.title for drawing in chosen)}"
    return stacked(f"{PurePath(path).name}: {product.plan.request.title}", spoken, chosen)


def page(product: Product) -> str:
    """Return all of a kernel's drawings as a page that stands alone and looks up any element."""
    return render_page("pictures/page.html", Page(product))


@dataclass(frozen=True)
class Page:
    """What the page's template reads."""

    product: Product

    @property
    def title(self) -> str:
        """The spec's title."""
        return self.product.plan.request.title

    @property
    def spec(self) -> str:
        """The spec's path as it was given."""
        return self.product.source.path

    @property
    def kernel(self) -> str:
        """What it is compiled for."""
        plan = self.product.plan
        return f"{plan.gpu.name}, {plan.architecture.name}"

    @property
    def style(self) -> str:
        """The styles of all drawings."""
        return STYLE + MATRIX_STYLE

    @cached_property
    def drawings(self) -> tuple[tuple[Drawing, str], ...]:
        """Each drawing, and its picture."""
        return tuple((drawing, alone(drawing)) for drawing in drawings(self.product.plan))

    @property
    def tiles(self) -> list[dict[str, object]]:
        """What the page's script looks elements up in."""
        return look_ups(self.product.plan)


def look_ups(kernel: Kernel) -> list[dict[str, object]]:
    """Return every tile with the bases from which the place of each of its elements follows."""
    found: list[dict[str, object]] = []

    def add(kind: str, tile: _Tile, name: str, row: str, column: str, **more: object) -> None:
        rows, columns = tile.bases
        extents: dict[str, object] = {"rows": tile.rows, "columns": tile.columns}
        bases = {"row_bases": rows, "column_bases": columns}
        found.append({"kind": kind, "name": name, "row": row, "column": column, **extents, **bases, **more})

    for tile in layouts.shared_tiles(kernel):
        more = {"address": tile.address, "slots": tile.slots, "slot_bytes": tile.bytes, "bits": tile.bits}
        add("shared", tile, f"{tile.name} ({tile.tensor})", tile.row, tile.column, **more)
    fragments = layouts.accumulators(kernel)
    if in_registers := layouts.operand_in_registers(kernel):
        fragments = (in_registers, *fragments)
    for fragment in fragments:
        add("registers", fragment, f"{fragment.name}, in registers", fragment.row, fragment.column)
    if sums := layouts.tensor_tile(kernel):
        more = {"first": sums.first_column, "slots": sums.slots, "slot_columns": sums.columns}
        add("sums", sums, f"{sums.name}, in tensor memory", "m", "n", **more)
    for scale in layouts.scale_tiles(kernel):
        row = "m" if scale.tensor == "A" else "n"
        add("scales", scale, f"{scale.name}, in tensor memory", row, "scale", first=scale.first_column)
    return found


_Tile = layouts.SharedTile | layouts.RegisterTile | layouts.TensorTile | layouts.ScaleTile
