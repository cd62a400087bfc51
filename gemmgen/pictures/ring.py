"""The time line of the ring of A and B: loads, MMAs and stores of a program's first tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmgen.pictures.drawing import (
    HEADER_HEIGHT,
    LEFT,
    MARGIN,
    WIDTH,
    Drawing,
    cell,
    inside,
    notes,
    text_at,
    width_of,
)
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.wgmma import WgmmaKernel

STEP = 4
"""Units of the time line in which the tensor cores multiply a K step."""
ISSUE = 1
"""Units between two steps if no MMA is in flight while the next one is issued."""
EPILOGUE_STEPS = 2
LANE_LEFT = LEFT + 116
LANE_WIDTH = WIDTH - MARGIN - 12 - LANE_LEFT
LANE_HEIGHT = 18
MOST_SLOTS = 12


@dataclass(frozen=True)
class Workers:
    """The roles that multiply and store the tiles of a program."""

    multipliers: tuple[str, ...]
    """Names of the roles that multiply; these take the tiles in turn."""
    storer: str
    """Name of the role that stores the tiles; empty if each multiplier stores its own."""
    places_of_sums: int
    """Tiles whose sums have a place at a time."""
    loads_ahead: bool
    """True if the loads of a tile do not wait for the store of the previous one."""
    mmas_in_flight: int | None
    """MMAs that run while the next one is issued; None if the tensor cores queue them."""


def workers(kernel: Kernel) -> Workers:
    """Return the roles that multiply and store the tiles of a kernel."""
    if isinstance(kernel, Tcgen05Kernel):
        return Workers(("tensor cores",), "epilogue", kernel.accumulators, True, None)
    assert isinstance(kernel, WgmmaKernel)
    if kernel.ping_pong:
        consumers = tuple(f"consumer {number}" for number in range(kernel.consumers))
    else:
        consumers = ("consumers" if kernel.consumers > 1 else "consumer",)
    ahead = kernel.persistent and kernel.specialized
    return Workers(consumers, "", len(consumers), ahead, kernel.outstanding_mmas)


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
    """Number, storer, begin and end of each tile's store."""
    load_units: int
    tile_steps: int
    storers: int


def pipeline(kernel: Kernel) -> Pipeline:
    """Return the time line of a program's first tiles.

    A K step is requested as soon as its slot is free, and multiplied as soon as it is there and the sums of
    its tile have a place. Who keeps MMAs in flight frees a slot while the next step is multiplied.
    """
    depth, who = kernel.stages, workers(kernel)
    load_units = max(1, depth - 1) * STEP
    tile_steps = depth + 2
    places = who.places_of_sums
    gap = ISSUE if who.mmas_in_flight == 0 else 0
    stages: list[Stage] = []
    stores: list[tuple[int, int, int, int]] = []
    freed: list[int] = []
    tensor_free = 0
    for number in range(2 * depth + tile_steps // 2):
        tile, step = divmod(number, tile_steps)
        requested = freed[number - depth] if number >= depth else number % depth
        if not who.loads_ahead and tile and stores:
            # The same warps load and store: a tile's first loads follow the store of the previous tile.
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


def ring(kernel: Kernel) -> Drawing:
    """Draw the time line of each slot of the ring of A and B, of the MMAs and of the stores."""
    found, who = pipeline(kernel), workers(kernel)
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
    for lane, name in enumerate(who.multipliers):
        lines.append(text_at("lane", LEFT, y + 12, name))
        for stage in found.stages:
            if stage.tile % len(who.multipliers) == lane:
                told = f"tile {stage.tile}, K step {stage.step}, from slot {stage.slot}"
                lines += _drawn_bar("mma", stage.multiplied, stage.done, y, per_unit, str(stage.step), told)
        for tile, storer, begin, finish in found.stores:
            if storer == lane and not who.storer:
                told = f"tile {tile} is stored"
                lines += _drawn_bar("store", begin, min(finish, end), y, per_unit, "store", told)
        y += LANE_HEIGHT
    if who.storer:
        lines.append(text_at("lane", LEFT, y + 12, who.storer))
        for tile, storer, begin, finish in found.stores:
            told = f"tile {tile} is stored from accumulator {storer}"
            lines += _drawn_bar("store", begin, min(finish, end), y, per_unit, f"tile {tile}", told)
        y += LANE_HEIGHT
    y += 4
    drawn, height = _ring_legend(y)
    lines += drawn
    y += height
    drawn, height = notes(y, list(_ring_remarks(kernel.stages, found.load_units, who)))
    return Drawing(
        "ring",
        "the ring's time line",
        f"{kernel.stages} stages of {kernel.stage_bytes:,} bytes; tiles of {found.tile_steps} K steps",
        (*lines, *drawn),
        y + height,
    )


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
        yield inside(round(x + width / 2, 1), y + 12, text)


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


def _ring_remarks(stages: int, load_units: int, who: Workers) -> Iterator[str]:
    hidden = load_units // STEP
    yield (
        "The order is the plan's, lengths are no times: loads are drawn as long as "
        f"{hidden} K step{'s' * (hidden > 1)}, the longest that this ring hides."
    )
    if stages > MOST_SLOTS:
        yield f"The first {MOST_SLOTS} of {stages} slots are shown."
    if who.mmas_in_flight:
        mmas = f"{who.mmas_in_flight} MMA{'s' * (who.mmas_in_flight > 1)} in flight"
        yield f"{mmas} while the next is issued: the tensor cores have no gap."
    elif who.mmas_in_flight == 0:
        yield "No MMA is in flight while the next is issued: each K step waits for the one before."
