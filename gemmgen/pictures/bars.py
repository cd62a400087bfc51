"""Shared memory and registers of a plan, as bars to scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmgen.literals import markup
from gemmgen.pictures.drawing import (
    HEADER_HEIGHT,
    HUES,
    LEFT,
    MARGIN,
    WIDTH,
    Drawing,
    cell,
    fitting,
    notes,
    text_at,
)
from gemmgen.plan.kernel import Kernel

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
"""Share of shared memory below which an allocation is drawn on a scale of its own."""


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
    """Draw the SM's register file by role, and the registers of a thread of the first role by contents.

    The registers of a thread are left out if the kernel does not know their contents.
    """
    whole = kernel.architecture.registers_per_sm
    bars = list(_roles(kernel))
    top = HEADER_HEIGHT + 6.0
    lines = list(_bars(bars, 0, whole, top))
    top += ROW_HEIGHT * len(bars) + 2
    if threads := list(_of_thread(kernel)):
        each = _thread_registers(kernel)
        text = f"a thread that holds sums, of at most {each} registers:"
        lines.append(text_at("note", LEFT, top + 14, text))
        top += 22
        lines += _bars(threads, 0, each, top)
        top += ROW_HEIGHT * len(threads)
    top += 8
    used = int(sum(bar.size for bar in bars))
    return Drawing(
        "registers",
        "registers of an SM",
        f"{used:,} of {whole:,}, {kernel.threads} threads of each CTA",
        tuple(lines),
        top,
    )


def _roles(kernel: Kernel) -> Iterator[Bar]:
    """Yield the registers of each partition: the first one, then the workers as the compiler packs them."""
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
    """Yield the bars of a thread's registers in the first partition: the ledger's entries, and the rest."""
    entries = kernel.register_entries
    if not entries:
        return
    each, begin = _thread_registers(kernel), 0
    for entry in entries:
        amount = int(entry.amount)
        told = f"{entry.name}: {amount} registers, {entry.derivation}"
        yield Bar(entry.name, begin, amount, f"{amount} registers", told)
        begin += amount
    rest = max(0, each - begin)
    yield Bar("all else", begin, rest, f"{rest} registers", "addresses, loops, the epilogue")
