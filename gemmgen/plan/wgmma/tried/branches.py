"""Which kinds of Hopper kernels are tried for a problem, and with which values."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from gemmgen.hardware import HOPPER, WGMMA
from gemmgen.hardware.gpus import is_power_of_two
from gemmgen.plan.access import TensorAccess
from gemmgen.plan.decisions import LINES
from gemmgen.plan.forecast import FEW_ROWS, FEW_TILES, FEWEST_ROWS, has_few_tiles, tried_swap_ab
from gemmgen.plan.search import Branch, Choices, Values
from gemmgen.plan.wgmma.extent_rules import MOST_PARTS
from gemmgen.plan.wgmma.tried.derived import a_source_of, steps_of
from gemmgen.plan.wgmma.tried.values import (
    CHOICES,
    COMPOSED_TILES_M,
    DEFAULTS,
    FITTED_STEP_BYTES,
    FITTED_WAVES,
    KINDS,
    LONG_K_CHOICES,
    LONG_K_DEFAULTS,
    LONGEST_K,
    NARROW_STEP_BYTES,
    NARROW_TILE,
    NARROWEST_FITTED_PART,
    OF_ROLES,
    ORDER_DEFAULTS,
    PING_PONG_WIDTH,
    PRODUCER_REGISTERS,
    STAGGERED,
    STAGGERED_TILE_M,
    STAGGERED_TILES_N,
    STEP_BYTES,
    SWAP_AB_CHOICES,
    SWAP_AB_DEFAULTS,
    SWAP_AB_STEP_BLOCKS,
    SWAP_AB_STEP_BYTES,
    SWAP_AB_TILED_CHOICES,
    THIRDS_PRODUCER_REGISTERS,
    THIRDS_TILE_M,
    TILED_CHOICES,
    TILES_N,
    WAVE_CHOICES,
    WAVE_COLUMNS,
    WAVE_TILE,
    WAVE_TILE_M,
    WIDEST_FITTED,
)
from gemmgen.problem import Request, Shape


def defaults_of(stated: Values, swap_ab: object) -> Values:
    """Return the decisions that are not tried, with swap-AB or without."""
    return {**DEFAULTS, **_swap_ab_defaults(stated)} if swap_ab else DEFAULTS


def order_defaults_of(request: Request, decided: Collection[str], swap_ab: object, kind: object) -> Values:
    """Return the fixed decisions on the order of tiles; empty if the order follows from the tile."""
    if ORDER_DEFAULTS.keys() & decided:
        return {**ORDER_DEFAULTS, **({"width": PING_PONG_WIDTH} if kind == "ping_pong" else {})}
    return LONG_K_DEFAULTS if not swap_ab and _is_of_long_k(request) else {}


def choices_of(
    request: Request, stated: Values, swap_ab: object, kind: object, *, tiled: bool
) -> dict[str, tuple[object, ...]]:
    """Return the values tried for the open decisions of a kind of kernel, with swap-AB or without.

    `tiled` says that each program has one tile.
    """
    choices = {
        **CHOICES,
        "cta_tile_k": steps_of(request.matmul, SWAP_AB_STEP_BYTES if swap_ab else STEP_BYTES),
    }
    if stated.get("staggered"):
        choices["cta_tile_n"] = STAGGERED_TILES_N
    if swap_ab:
        choices |= {**SWAP_AB_CHOICES, "cta_tile_m": rows_of_tiles(request, stated)}
    elif kind == "cooperative" and _is_of_long_k(request):
        choices |= LONG_K_CHOICES
    if tiled:
        choices |= SWAP_AB_TILED_CHOICES if swap_ab else TILED_CHOICES
    if request.matmul.batch_invariant:  # what is best for K depends on M
        choices.pop("splits", None)
    return choices


def with_blocks(request: Request, stated: Values) -> Values:
    """Return the stated decisions, with those that follow from the blocks of K that scales belong to."""
    a = request.matmul.a.scale
    if a is None or not request.matmul.scales_sums:
        return stated
    return {"promote_k": a.format.vector, **stated}


def block_choices_of(request: Request, swap_ab: object) -> Choices:
    """Return the values that are tried for K steps whose sums have scales; empty for other sums.

    With swap-AB all blocks of a step are multiplied side by side, and so are short blocks, 128 or 64 of K
    in a step. Other tiles have one block in a step, which may be multiplied while the sums of the block
    before are scaled.
    """
    a = request.matmul.a.scale
    if a is None or not request.matmul.scales_sums:
        return {}
    if a.format.vector < STEP_BYTES[0]:  # elements of a byte
        return {"cta_tile_k": (STEP_BYTES[0], STEP_BYTES[0] // 2), "outstanding_mmas": (0,)}
    several = swap_ab and request.matmul.b.scale and request.matmul.b.scale.format.rows > 1
    blocks = SWAP_AB_STEP_BLOCKS if several else (1,)
    in_flight = (0,) if swap_ab else CHOICES["outstanding_mmas"]
    return {"cta_tile_k": tuple(a.format.vector * each for each in blocks), "outstanding_mmas": in_flight}


def thirds_of(stated: Values, wanted: Choices) -> Choices:
    """Return the values that are tried if a spec has three consumers, or rows that three consumers share."""
    choices: dict[str, tuple[object, ...]] = {}
    rows = values_of("cta_tile_m", stated, wanted)
    if thirds := [m for m in rows if _is_thirds(m)]:
        choices["consumers"] = (3,) if len(thirds) == len(rows) else (*CHOICES["consumers"], 3)
    consumers = values_of("consumers", stated, wanted)
    if 3 in consumers:
        others = () if set(consumers) == {3} else CHOICES["cta_tile_m"]
        choices["cta_tile_m"] = (*others, THIRDS_TILE_M)
    return choices


def values_of(name: str, stated: Values, wanted: Choices) -> tuple[object, ...]:
    """Return the value that a spec states for a decision, or those that it wants tried; none if neither."""
    return (stated[name],) if name in stated else wanted.get(name, ())


def _is_thirds(rows: object) -> bool:
    """Return True if only three consumers can share this number of rows of a tile."""
    return isinstance(rows, int) and rows % THIRDS_TILE_M == 0 and is_power_of_two(rows // THIRDS_TILE_M)


def fitted_tiles(
    request: Request, stated: Values, wanted: Choices, kind: object, *, pairs: bool = False
) -> Iterator[tuple[Values, Choices]]:
    """Yield rows of a tile, with who shares them, and the columns that fill whole waves best with them.

    A spec that states columns, or what composed tiles do not have, leaves none. `pairs` is whether tiles
    along N come by twos.
    """
    open_to = {"cta_tile_n", "cta_tile_m", "consumers"} - {*stated, *wanted}
    plain = {"cluster_n": 1, "warps_n": 1}
    if "cta_tile_n" not in open_to or request.matmul.gated or {"cta_tile_m", "consumers"} & wanted.keys():
        return
    if request.matmul.scales_sums:
        return
    if any(stated.get(name, value) != value for name, value in plain.items()):
        return
    for rows in COMPOSED_TILES_M:
        thirds = rows == THIRDS_TILE_M
        if stated.get("cta_tile_m", rows) != rows or (thirds and kind != "cooperative"):
            continue
        if thirds != (stated.get("consumers", 3 if thirds else 2) == 3):
            continue
        if widths := _widths(request, rows, tried=() if thirds else TILES_N, together=1 + pairs):
            tile = {"cta_tile_m": rows, **({"consumers": 3} if thirds else {})}
            for narrow, steps in ((True, NARROW_STEP_BYTES), (False, FITTED_STEP_BYTES)):
                columns = tuple(width for width in widths if (rows + width <= NARROW_TILE) == narrow)
                if columns:
                    yield tile, {"cta_tile_n": columns, "cta_tile_k": steps_of(request.matmul, steps)}


def thirds_of_scaled_sums(
    plain: Branch, request: Request, stated: Values, wanted: Choices
) -> Iterator[Branch]:
    """Yield the branch of tiles that three consumers share, for sums with scales of blocks.

    While one of three consumers promotes its sums, the MMAs of two others run. Its 64 rows have registers for
    128 columns, beside their partial sums.
    """
    thirds: Values = {
        "cta_tile_m": THIRDS_TILE_M,
        "consumers": 3,
        "cta_tile_n": 128,
        "producer_registers": THIRDS_PRODUCER_REGISTERS,
    }
    decided = {*stated, *wanted} & {*thirds, "consumer_registers"}
    if request.matmul.scales_sums and not decided:
        choices = {name: values for name, values in plain.choices.items() if name not in thirds}
        yield Branch({**plain.fixed, **thirds}, choices, plain.kind)


def may_stagger(request: Request, decided: Collection[str]) -> bool:
    """Return True if staggered tiles are tried too: A in shared memory, no gate, and nothing else loaded."""
    matmul = request.matmul
    loads = matmul.c is not None or matmul.vectors
    others = {"staggered", "a_source", "promote_k", "splits", "reduction"}
    return not (loads or matmul.gated or a_source_of(matmul) == "registers" or others & {*decided})


def staggered_branches(plain: Branch, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
    """Yield the branches of staggered tiles that are tried beside plain ones.

    They have two consumers of 64 rows: consumers of 128 rows were the best at none of the records' shapes.
    """
    fixed = {**plain.fixed, **STAGGERED}
    choices = {name: values for name, values in plain.choices.items() if name not in fixed}
    if any(stated.get(name, value) != value for name, value in STAGGERED.items()):
        return
    for tile, columns in fitted_tiles(request, stated, wanted, KINDS[0], pairs=True):
        if tile["cta_tile_m"] == STAGGERED_TILE_M:
            yield Branch({**fixed, **tile}, {**choices, **columns}, {**plain.kind, "staggered": True})


def branches_without_roles(
    roles: Branch, request: Request, stated: Values, wanted: Choices
) -> Iterator[Branch]:
    """Yield the branches of tiled kernels that are tried beside one with roles, of a wave of tiles."""
    fixed = {
        **roles.fixed,
        **implied_by({**stated, "schedule_kind": "tiled"}, "none"),
        "schedule_kind": "tiled",
    }
    del fixed["occupancy"]
    others = {name: values for name, values in roles.choices.items() if name not in fixed}
    choices: Choices = {**others, **WAVE_CHOICES}
    kind = {**roles.kind, "specialization": "none"}
    yield Branch(fixed, choices, kind)
    for tile, columns in fitted_tiles(request, stated, wanted, "none"):
        widths = tuple(n for n in columns["cta_tile_n"] if n in WAVE_COLUMNS)
        if widths and tile["cta_tile_m"] == WAVE_TILE_M:
            yield Branch({**fixed, **tile}, {**choices, **columns, "cta_tile_n": widths}, kind)


def _widths(request: Request, rows: int, *, tried: Collection[int], together: int) -> tuple[int, ...]:
    """Return the narrowest columns of tiles with `rows` rows that cover each shape in few enough waves.

    `together` tiles along N are one rectangle of D.
    """
    sums = [
        columns
        for columns in range(NARROWEST_FITTED_PART, WIDEST_FITTED + 1, NARROWEST_FITTED_PART)
        if columns.bit_count() <= MOST_PARTS
    ]
    fewest = (
        next(
            (
                columns
                for columns in sums
                if -(-m // rows) * -(-n // (together * columns)) * together <= waves * request.gpu.sm_count
            ),
            None,
        )
        for m, n, _ in request.planned_shapes
        for waves in FITTED_WAVES
    )
    return tuple(dict.fromkeys(columns for columns in fewest if columns and columns not in tried))


def is_of_a_wave(request: Request, decided: Collection[str]) -> bool:
    """Return True if kernels without roles are tried too: all tiles of a problem may run at the same time.

    Swap-AB is tried for few rows instead, and for few tiles programs that divide K. A gate excludes both.
    """
    if OF_ROLES & {*decided}:
        return False
    gated, most = request.matmul.gated, WAVE_TILE * request.gpu.sm_count
    return any(
        rows * request.matmul.b_blocks * columns <= most
        and (gated or not (rows <= FEWEST_ROWS or has_few_tiles(rows, columns, depth)))
        for rows, columns, depth in request.planned_shapes
    )


def _is_of_long_k(request: Request) -> bool:
    """Return True if any of the problems that a kernel is chosen for is of a long K and few tiles."""
    few = any(has_few_tiles(*shape) for shape in request.planned_shapes)
    return few and not request.matmul.gated  # whose kernels do not divide K


def may_reduce_apart(request: Request, decided: Collection[str], tried: Collection[str]) -> bool:
    """Return True if a second kernel that adds up sums is tried: for a D of few tiles and the longest K."""
    others = {"reduction", "splits", "subtile_n", "epilogue_buffers", "early_operand"}
    if request.matmul.gated or others & {*decided}:
        return False
    few = (
        -(-rows // FEW_ROWS) * -(-columns // FEW_ROWS) <= FEW_TILES and depth >= LONGEST_K
        for rows, columns, depth in request.planned_shapes
    )
    return "splits" in tried and any(few) and not request.matmul.copies_misaligned


def swaps_of(request: Request, stated: Values, wanted: Choices) -> tuple[object, ...]:
    """Return with which values of swap-AB kernels are tried if the spec does not want some tried.

    Swap-AB is tried for few rows of A; both are for a long K and few tiles. A gate excludes it, and so do
    decisions that are made for tiles of many rows, or for roles. A kernel for several problems is tried with
    the values of each of them.
    """
    if "swap_ab" in stated:
        return (stated["swap_ab"],)
    if request.matmul.gated:
        return (False,)
    others: Values = {
        "schedule_kind": "tiled",
        "specialization": "none",
        "staggered": False,
        "consumers": 1,
        "cluster_m": 1,
        "cluster_n": 1,
        "a_source": "shared",
        "warps_m": 1,
    }
    fits = all(stated.get(name, value) == value for name, value in others.items())
    fits &= stated.get("a_source", a_source_of(request.matmul)) == "shared"
    widths = [columns for columns in values_of("cta_tile_n", stated, wanted) if isinstance(columns, int)]
    # Other widths have parts, along the instruction's columns.
    fits &= not widths or any(map(is_power_of_two, widths))
    tiles = rows_of_tiles(request, stated)
    fits &= stated.get("cta_tile_m", tiles[-1]) in tiles
    free = not wanted.keys() & others.keys() and not {"subtile_n", "producer_registers"} & {*stated, *wanted}
    if not (fits and free):
        return (False,)
    of_each = [_swaps_for(shape, stated) for shape in request.planned_shapes]
    if (True,) in of_each and (False,) not in of_each:
        return (True,)  # without swap-AB a kernel loses most at the fewest rows
    return tuple(dict.fromkeys(itertools.chain.from_iterable(of_each)))


def _swaps_for(shape: Shape, stated: Values) -> tuple[bool, ...]:
    """Return the values of swap-AB that are tried for a problem [M, N, K], beside the stated decisions."""
    if has_few_tiles(*shape) and stated.get("reduction") == "atomic":
        return (False,)  # swap-AB was not measured with atomics
    if has_few_tiles(*shape) and stated.get("schedule_kind") == "tiled":
        return (True,)  # without roles others were no faster
    return tried_swap_ab(*shape)


def rows_of_tiles(request: Request, stated: Values) -> tuple[int, ...]:
    """Return the rows of a tile that are tried with swap-AB: as many as A has, or fewer.

    There are at least as many as an instruction of each warp has columns, as a swizzle spans where A is
    M-contiguous, and as have scales in 16 bytes where TMA loads the scales of A.
    """
    rows = max(shape[0] for shape in request.planned_shapes)
    least = WGMMA.n_min * (2 if stated.get("warps_m") == 2 else 1)
    if request.matmul.a.major == "mn":
        spans = HOPPER.tma_swizzle_bytes
        span = next((span for span in spans if span == stated.get("a_swizzle_bytes")), spans[-1])
        least = max(least, span // request.matmul.a.dtype.bytes)
    if (scale := request.matmul.a.scale) and not TensorAccess(request.matmul).scales_from_any_row:
        least = max(least, scale.unit)
    most = max(least, min(FEW_ROWS, 1 << (rows - 1).bit_length()))
    return tuple(most >> halvings for halvings in range((most // least).bit_length()))


def _swap_ab_defaults(stated: Values) -> Values:
    """Return the defaults with swap-AB; with roles these are the defaults of all kernels."""
    if stated.get("specialization", "none") != "none" or stated.get("schedule_kind", "tiled") != "tiled":
        return {}
    if stated.keys() & {"order", "minor", "width"}:
        return {"schedule_kind": "tiled"}  # an order goes with the other defaults
    return SWAP_AB_DEFAULTS


def kinds_of(stated: Values) -> tuple[object, ...]:
    """Return the kinds of warp specialization that are tried beside the stated decisions."""
    if "specialization" in stated:
        return (stated["specialization"],)
    if stated.get("staggered"):
        return KINDS[:1]
    persistent = stated.get("schedule_kind", "persistent") == "persistent"
    if not persistent:
        return ("none",)  # a program of one tile has nothing to overlap it with
    by_turns = stated.get("consumers", 2) == 2 and not _is_thirds(stated.get("cta_tile_m"))
    return KINDS if by_turns else KINDS[:1]


def implied_by(stated: Values, kind: object) -> dict[str, object]:
    """Return the decisions that follow from a kind of kernel, or from a single stated decision."""
    implied: dict[str, object] = {}
    if kind == "none":
        implied |= {"consumers": 1, "producer_registers": 0, "cluster_m": 1, "cluster_n": 1}
    elif "consumer_registers" in stated:
        implied["producer_registers"] = PRODUCER_REGISTERS
    if stated.get("schedule_kind") != "tiled":
        implied["occupancy"] = 1
    if kind == "ping_pong":
        implied["consumers"] = 2
    if stated.get("staggered") and kind == KINDS[0]:
        implied |= STAGGERED
    if stated.get("schedule_kind") == "single_tile":
        implied |= {"stages": 1, "outstanding_mmas": 0}
    if "early_operand" in stated:
        implied["trigger"] = "loads"  # so that the kernel behind has its own first loads early
    if minor := LINES.get(str(stated.get("order"))):
        implied |= {"minor": minor, "width": 1}
    if stated.get("stages") == 1:  # an MMA in flight needs a second one
        implied["outstanding_mmas"] = 0
    if "promote_k" in stated:  # a sum is promoted after each K step
        implied |= {"cta_tile_k": stated["promote_k"], "outstanding_mmas": 0}
    return implied
