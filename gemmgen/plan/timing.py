"""The time of a Hopper kernel on a problem [M, N, K], by a formula of a row of numbers for the kernel.

``docs/planner.md`` of gemmgen explains the terms. gemmgen's planner makes the rows and ranks kernels by this
file; each library has a copy of it beside its rows. All times are in nanoseconds; "CTA" is a thread block,
"stage" is one slot of the ring in shared memory that holds a K step of A and B.
"""

import math
from typing import NamedTuple


class Card(NamedTuple):
    """Rates of one GPU."""

    sm_count: int
    dram_bytes_per_second: float  # by the datasheet
    dense_flops_per_second: float  # of 16-bit operands, by the datasheet
    tensor_cycles_per_ns: float  # clock of the SMs while few of them multiply
    power_cycles_per_ns: float  # clock at the power limit, while all of them multiply
    power_exponent: float  # by which the clock rises from there while tensor cores idle
    l2_bytes_per_ns: float  # to all SMs, for kernels of `Tiles`
    l2_overlap: float  # exponent by which the times of L2 and of an SM add up
    dram_share: float  # of the datasheet's bandwidth, for kernels of `Tiles`
    dram_overlap: float  # exponent by which the time of DRAM adds to these
    stream_l2_bytes_per_ns: float  # the same three for kernels of `Stream`
    stream_dram_share: float
    stream_overlap: float
    least_split_share: float  # of the time to load rows that begin inside sectors, where few SMs load


class Traffic(NamedTuple):
    """Bits in DRAM of one element of each matrix, and of one element of all vectors together."""

    a: int
    b: int
    c: int  # 0 without C
    d: int
    row_vectors: int  # with one element for each row of D
    column_vectors: int
    a_rows: str = "k"  # the dimension along which A is contiguous in memory: "k" or "m"
    b_rows: str = "k"  # likewise for B: "k" or "n"


class Moved(NamedTuple):
    """Bytes from and to DRAM for a problem, and whether rows of A and B begin inside sectors of L2."""

    every: int  # each matrix and vector once
    operands_and_d: int  # the same without C and vectors
    splits_a: bool = False  # True if every second row of A begins in the middle of a sector
    splits_b: bool = False


class Tiles(NamedTuple):
    """A kernel whose SMs compute tiles of D in rounds, each a main loop over K and an epilogue."""

    swap_ab: bool  # B's columns are the rows of the MMA instruction
    line: str  # "m" or "n": tiles are walked line by line along it; "" in other orders
    rows: int  # of D, that a program computes at a time
    columns: int
    together: int  # tiles along N that come together: 2 where they are staggered
    depth: int  # of K, in a step
    ctas: int  # of a program
    programs: int  # that the GPU holds, one on each SM or cluster of SMs
    occupancy: int  # programs that share an SM
    tensor_cycles: float  # of the tensor cores, for a CTA's K step
    smem_cycles: float  # of shared memory, for a CTA's K step
    exposed: float  # time of a K step without an MMA in flight
    exposed_of_all: float  # more of that where all SMs work
    refill: float  # time to ask for the next stage, where no producer warp does
    refill_cover: float  # share of a step's MMA behind which that is hidden
    shares: int  # consumers that divide a tile
    held: float  # time of a K step in which a consumer brings A to registers; 0 where it does not
    short_step: float  # added to a step of less than 128 bytes
    latency: float  # from asking for a stage to its first bytes
    loading: float  # from a stage's first bytes to its last
    split_a: float  # time to load A for a CTA's K step, if its rows begin inside sectors and all SMs load
    split_b: float
    stages: int
    outstanding: int  # MMAs in flight when the next one is issued
    stage_bytes: int
    epilogue: float  # of a tile, with its start
    turn: float  # from one ping-pong consumer's MMA to the other's; 0 without ping-pong
    cluster_share: float  # of the main loop, in which CTAs of a cluster wait for each other
    occupancy_share: float  # of the main loop, in which CTAs on one SM wait for each other
    start: float  # from launch to the first MMA, and from the last store to the next launch
    next_round: float  # from one program's end to the first MMA of the next in its place
    delivery: float = 1.0  # share of L2 and DRAM that is left by the kernel ahead, which still runs
    ends_with_d: bool = False  # True if a last tile along M begins earlier, and ends with D
    outside_bytes: float = 0.0  # as which L2 takes a row of a tile that A does not have, in a K step


class Stream(NamedTuple):
    """A kernel that streams B past few rows of A, or whose programs divide K. Fields as in `Tiles`."""

    swap_ab: bool
    line: str
    rows: int
    columns: int
    together: int
    depth: int
    ctas: int
    programs: int
    occupancy: int
    splits: int  # of K
    multiply: float  # of the tensor cores for a K step
    least_multiply: float  # to issue that step's MMAs, or to read what they multiply from shared memory
    issue: float  # of a K step, beside its MMAs
    drain: float  # of a step's MMAs, and to ask for its stage again; 0 where others cover for that
    latency: float
    loading: float  # of a stage into one SM
    split_a: float
    split_b: float
    stages: int
    outstanding: int
    neighbours: float  # for two SMs side by side to load a K step each; 0 where CTAs share an SM
    sent_bytes: float  # by L2, for a program's K step
    start: float
    next_round: float
    sums: float = 0.0  # to add up the splits
    sums_of_program: float = 0.0  # the same for each program, where a second kernel adds up
    delivery: float = 1.0
    early: float = 0.0  # by which a kernel starts sooner that is launched before the one ahead has ended
    early_places: float = 0.0  # share of the GPU from which on it loses nothing by that; 0: it never does
    early_loss: float = 0.0  # of its time, for each place that is left
    early_steps: float = 0.0  # K steps that are loaded ahead and cover for that loss
    reread: float = 1.0  # factor of what L2 sends, if several rows of tiles read B


STEP_CAUSES = ("tensor cores", "shared memory", "drained MMAs", "split sectors", "short ring")
"""Causes of a K step's time: the longest of these times decides."""
ROUND_CAUSES = ("turns", "epilogue", "cluster", "shared SM")
"""Causes of an SM's time beside its main loops."""


def part_of(card: Card, sm_count: int, memory_share: float) -> Card:
    """Return the rates of `sm_count` SMs of a GPU, with a share of its memory's bandwidth."""
    share = sm_count / card.sm_count
    return card._replace(
        sm_count=sm_count,
        dram_bytes_per_second=card.dram_bytes_per_second * memory_share,
        dense_flops_per_second=card.dense_flops_per_second * share,
        l2_bytes_per_ns=card.l2_bytes_per_ns * share,
        stream_l2_bytes_per_ns=card.stream_l2_bytes_per_ns * share,
    )


def moved_to(card: Card, kernel: Tiles | Stream, own: Card) -> Tiles | Stream:
    """Return the row of a kernel on another GPU than its own: programs by the SMs, MMAs by an SM's peak."""
    if card == own:
        return kernel
    programs = kernel.programs * card.sm_count // own.sm_count
    peaks = (each.dense_flops_per_second / each.sm_count for each in (own, card))
    slower = next(peaks) / next(peaks)
    if isinstance(kernel, Tiles):
        return kernel._replace(programs=programs, tensor_cycles=kernel.tensor_cycles * slower)
    return kernel._replace(programs=programs, multiply=kernel.multiply * slower)


def grid(kernel: Tiles | Stream, m: int, n: int) -> tuple[int, int]:
    """Return the tiles along M and along N."""
    return -(-m // kernel.rows), -(-n // (kernel.together * kernel.columns)) * kernel.together


def moved_bytes(traffic: Traffic, m: int, n: int, k: int) -> Moved:
    """Return the bytes from and to DRAM: each matrix and vector once."""
    a, b, d = m * k * traffic.a // 8, n * k * traffic.b // 8, m * n * traffic.d // 8
    others = (m * n * traffic.c + m * traffic.row_vectors + n * traffic.column_vectors) // 8
    splits_a = splits_sectors((k if traffic.a_rows == "k" else m) * traffic.a)
    splits_b = splits_sectors((k if traffic.b_rows == "k" else n) * traffic.b)
    return Moved(a + b + d + others, a + b + d, splits_a, splits_b)


def splits_sectors(row_bits: int) -> bool:
    """Return True if rows that follow one another begin inside sectors of L2, which have 32 bytes.

    Rows for TMA are multiples of 16 bytes apart. If the multiple is odd, every second row begins in the
    middle of a sector.
    """
    return -(-row_bits // (16 * 8)) % 2 == 1


def predicted(kernel: Tiles | Stream, card: Card, moved: Moved, m: int, n: int, k: int) -> float:
    """Return the seconds that a kernel takes, no less than DRAM does."""
    sms = sum(causes(kernel, card, moved, m, n, k).values()) / 1e9
    dram = moved.every / card.dram_bytes_per_second
    return sms if sms > dram else dram


def causes(kernel: Tiles | Stream, card: Card, moved: Moved, m: int, n: int, k: int) -> dict[str, float]:
    """Return the time by cause: the ideal time, and each loss on top of it."""
    if not kernel.programs:
        return {"tensor cores": math.inf}  # a cluster of more CTAs than the GPU has SMs
    if isinstance(kernel, Tiles):
        return _of_tiles(kernel, card, moved, m, n, k)
    return _of_stream(kernel, card, moved, m, n, k)


def together(exponent: float, one: float, other: float, third: float = 0.0) -> float:
    """Return the time of parts that overlap in part: longer than each if they take nearly the same time."""
    return (one**exponent + other**exponent + third**exponent) ** (1 / exponent)


# --- tiles in rounds


def split_loading(kernel: Tiles | Stream, card: Card, moved: Moved, share: float) -> float:
    """Return the time of TMA to load those rows of a CTA's K step that begin inside sectors.

    `share` is the share of SMs that load. They share the rate of L2, and few SMs have a limit of their own.
    """
    loading = kernel.split_a * moved.splits_a + kernel.split_b * moved.splits_b
    return loading * max(share, card.least_split_share)


def step(kernel: Tiles, ctas: int, rate: float, share: float, split: float = 0.0) -> tuple[float, ...]:
    """Return the least time of a K step of `ctas` CTAs on an SM, for each of ``STEP_CAUSES``.

    CTAs share the cycles of an SM, `rate` of them in a nanosecond, and one CTA waits while another one
    multiplies. A stage is free again when its MMA has retired, or, with an MMA in flight, when the next one
    is issued. `share` is the share of SMs that are at work, `split` the time of `split_loading`.
    """
    mma, smem = kernel.tensor_cycles / rate, kernel.smem_cycles / rate
    busy = mma if mma > smem else smem
    busy += kernel.exposed + kernel.exposed_of_all * share
    refill = kernel.refill - kernel.refill_cover * mma
    if refill > 0:
        busy += refill
    if kernel.held:
        busy = max(busy, mma / kernel.shares + kernel.held)
    busy += kernel.short_step
    lap = kernel.latency + ctas * max(kernel.loading, split) + (0.0 if kernel.outstanding else busy)
    return ctas * mma, ctas * smem, busy, ctas * split, lap / max(1, kernel.stages - kernel.outstanding)


def _of_tiles(kernel: Tiles, card: Card, moved: Moved, m: int, n: int, k: int) -> dict[str, float]:
    tiles_m, tiles_n = grid(kernel, m, n)
    tiles = tiles_m * tiles_n
    per_sm = -(-tiles // kernel.programs)
    ctas = min(kernel.occupancy, per_sm)
    rounds = -(-per_sm // ctas)
    k_steps = -(-k // kernel.depth)
    tiles *= kernel.ctas
    share = min(1.0, tiles / (rounds * ctas * card.sm_count))
    outside = 0 if tiles_m > 1 and kernel.ends_with_d else tiles_m * kernel.rows - m
    sent = tiles * kernel.stage_bytes + tiles_n * outside * kernel.outside_bytes
    dram = moved.every / (card.dram_share * kernel.delivery * card.dram_bytes_per_second / 1e9)
    l2 = k_steps * sent / (card.l2_bytes_per_ns * kernel.delivery)
    tile_fma = kernel.rows * kernel.columns * kernel.depth // kernel.ctas
    ideal = m * n * k / tile_fma * kernel.tensor_cycles / card.sm_count
    fastest = ideal / card.tensor_cycles_per_ns
    split = split_loading(kernel, card, moved, share)

    def busiest_sm(main_loop: float) -> tuple[tuple[float, ...], float, float]:
        """Return an SM's time beside its main loops, by cause, all its time, and that with L2 and DRAM."""
        beside = _beside_main_loops(kernel, main_loop, rounds, ctas)
        alone = rounds * main_loop + sum(beside)
        return beside, alone, together(card.dram_overlap, together(card.l2_overlap, alone, l2), dram)

    # Power limits the clock by how busy the tensor cores are, however deep the ring is.
    *unhindered, _ = step(kernel, ctas, card.tensor_cycles_per_ns, share, split)
    used = min(1.0, fastest / busiest_sm(k_steps * max(unhindered))[-1])
    rate = min(card.tensor_cycles_per_ns, card.power_cycles_per_ns * used**-card.power_exponent)

    steps = step(kernel, ctas, rate, share, split)
    slowest = max(steps)
    beside, alone, total = busiest_sm(k_steps * slowest)
    found = {
        "tensor cores": fastest,
        "power": ideal / rate - fastest,
        "idle SMs": rounds * k_steps * steps[0] - ideal / rate,
    }
    if slowest > steps[0]:
        found[STEP_CAUSES[steps.index(slowest)]] = rounds * k_steps * (slowest - steps[0])
    found.update(zip(ROUND_CAUSES, beside, strict=True))
    found["DRAM" if dram > l2 else "L2"] = total - alone
    found["start"] = kernel.start + (rounds - 1) * kernel.next_round
    return found


def _beside_main_loops(kernel: Tiles, main_loop: float, rounds: int, ctas: int) -> tuple[float, ...]:
    """Return the time of an SM's rounds that no main loop covers, for each of ``ROUND_CAUSES``."""
    epilogues = rounds * kernel.epilogue
    if kernel.turn:
        # One consumer stores while the other multiplies, except the last tile; before the first nothing ran.
        epilogues = kernel.epilogue + rounds * max(0.0, (kernel.epilogue - main_loop - kernel.turn) / 2)
    cluster = rounds * kernel.cluster_share * main_loop
    shared = rounds * kernel.occupancy_share * main_loop if ctas > 1 else 0.0
    return (rounds - 1) * kernel.turn, epilogues, cluster, shared


# --- streams


def stream_step(kernel: Stream, ctas: int, split: float = 0.0) -> float:
    """Return the least time of a K step of `ctas` CTAs on an SM; `split` is the time of `split_loading`."""
    multiply = max(kernel.multiply, kernel.least_multiply)
    drained = multiply + kernel.drain
    loading = max(kernel.loading, split)
    lap = kernel.latency + ctas * loading + (0.0 if kernel.outstanding else drained)
    ring = lap / max(1, kernel.stages - kernel.outstanding)
    return max(ctas * loading, ctas * multiply, drained + kernel.issue, ring)


def _of_stream(kernel: Stream, card: Card, moved: Moved, m: int, n: int, k: int) -> dict[str, float]:
    tiles_m, tiles_n = grid(kernel, m, n)
    programs = tiles_m * tiles_n * kernel.splits
    per_sm = -(-programs // kernel.programs)
    ctas = min(kernel.occupancy, per_sm)
    rounds = -(-per_sm // ctas)
    k_steps = -(-k // (kernel.depth * kernel.splits))
    share = min(1.0, programs * kernel.ctas / (rounds * ctas * card.sm_count))
    busiest = rounds * stream_step(kernel, ctas, split_loading(kernel, card, moved, share))
    if kernel.neighbours:
        busiest = max(busiest, -(-2 * programs * kernel.ctas // card.sm_count) * kernel.neighbours)
    dram = moved.operands_and_d / (
        card.stream_dram_share * kernel.delivery * card.dram_bytes_per_second / 1e9
    )
    sent = programs * k_steps * kernel.sent_bytes / card.stream_l2_bytes_per_ns / kernel.delivery
    if tiles_m > 1:
        sent *= kernel.reread
    found = {
        "DRAM": dram,
        "busiest SM": together(card.stream_overlap, dram, k_steps * busiest, sent) - dram,
        "start": kernel.start + (rounds - 1) * kernel.next_round,
        "splits": kernel.sums + programs * kernel.sums_of_program,
    }
    if kernel.early:
        _start_early(found, kernel, programs * kernel.ctas / (card.sm_count * kernel.occupancy), k_steps)
    return found


def _start_early(found: dict[str, float], kernel: Stream, taken: float, k_steps: int) -> None:
    """Change a kernel's times by cause for its early launch; `taken` is its share of the GPU's places."""
    if kernel.early_places:
        if taken <= 0.5:
            return  # the kernel behind has places of its own
        exposed = max(0.0, 1 - kernel.early_steps / k_steps)
        left = max(0.0, kernel.early_places - taken)
        found["places left"] = kernel.early_loss * left * exposed * sum(found.values())
    found["start"] -= kernel.early
