"""The family of Hopper kernels: what is tried where a spec decides nothing, how kernels are told apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from gemmgen.hardware import HOPPER, WGMMA
from gemmgen.hardware.gpus import is_power_of_two
from gemmgen.plan.decisions import LINES
from gemmgen.plan.forecast import FEW_ROWS, FEW_TILES, has_few_tiles, tried_swap_ab
from gemmgen.plan.rule import altered
from gemmgen.plan.search import (
    Branch,
    Choices,
    Family,
    Space,
    Values,
    decided,
    narrow_cluster,
    narrow_tile,
    tile_and_cluster,
    whole_number,
)
from gemmgen.plan.wgmma.bounds import (
    expected_producer_registers,
    expected_registers,
    most_consumer_registers,
    most_consumers,
    most_stages,
)
from gemmgen.plan.wgmma.cost import COST_ORDER, NARROW_PART, cost, estimate, excess
from gemmgen.plan.wgmma.expectations import EXPECTATIONS
from gemmgen.plan.wgmma.resource_rules import RESOURCE_RULES
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.tile_rules import MOST_PARTS, OPERATION_RULES, TILE_RULES, TYPE_RULES
from gemmgen.problem import Matmul, Request, Shape

KINDS = ("cooperative", "ping_pong")
"""Specializations that are tried for a persistent schedule; other schedules have none."""

TILES_N = (256, 128, 64, 32)
"""Columns of tiles of one part."""

STEP_BYTES = (128, 256, 512, 64)
"""Rows of the operands' tiles along K: 128 fill the widest swizzle."""

SWAP_AB_STEP_BYTES = (256, 512)
"""The same with swap-AB: with few columns, shorter steps are soon multiplied."""

CHOICES: Choices = {
    "cta_tile_m": (128, 256, 64),
    "cta_tile_n": TILES_N,
    "cluster_m": (1, 2),
    "cluster_n": (1,),
    "consumers": (2, 1),
    "outstanding_mmas": (0, 1),
}
"""What is tried for a decision that a spec leaves open; ties in cost go to earlier values."""

TILED_CHOICES: Choices = {"warps_m": (8, 4), "occupancy": (1, 2, 3)}
"""The same in a tiled schedule, where one CTA can multiply while its neighbours load, start or store."""

WAVE_TILE = 128 * 256
"""Elements of D of the largest tile of those of which a wave may hold all: where it does, kernels without
roles are tried beside those with roles. They start sooner, and one tile leaves roles little to overlap.
"""

WAVE_CHOICES: Choices = {**TILED_CHOICES, "outstanding_mmas": (1,)}
"""What is tried for these."""

WAVE_TILE_M, WAVE_COLUMNS = 64, (96, 192)
"""Rows and columns of composed tiles that are tried for them: these take 2 to 4 % less time than with roles.
64 x 80, 64 x 160, 64 x 224, 128 x 192 and 128 x 224 take 5 to 46 % more, which the cost does not know
(``benchmarks/fit/h200_composed_waves.jsonl``).
"""

OF_ROLES = frozenset(
    (
        "schedule_kind",
        "specialization",
        "staggered",
        "consumers",
        "cluster_m",
        "cluster_n",
        "splits",
        "reduction",
        "last_wave",
        "a_source",
        "promote_k",
        "accumulators",
        "early_operand",
        "trigger",
        "producer_registers",
        "consumer_registers",
    )
)
"""Decisions of kernels with roles: a spec that makes one, or wants it tried, asks for roles."""

THIRDS_TILE_M = 192
"""Rows of a tile that three consumers share, 64 each."""

COMPOSED_TILES_M = (128, THIRDS_TILE_M, 64, 256)
"""Rows of the tiles whose columns are fitted to a problem."""

FITTED_WAVES = (1, 2, 3)
"""Waves into which columns are fitted: of more, the part of the last one that is idle matters less."""

FITTED_STEP_BYTES = (128,)
"""Rows of the operands' tiles along K, for such columns: others were measured up to 30 % slower."""

NARROW_TILE = 160
"""Rows and columns together of a tile up to which longer steps are tried for such columns too: their rings
have stages enough, and 64 x 80 of 128 x 5120 x 8192 was 6 % faster with them
(``benchmarks/suites/h200_many_rows.jsonl``).
"""

NARROW_STEP_BYTES = (128, 256)
"""Rows of the operands' tiles along K, for the columns of such tiles."""

NARROWEST_FITTED_PART = 16
"""Columns of the narrowest part that is tried: one of 8 would read 64 rows of A for them."""

WIDEST_FITTED = 384
"""Columns of the widest tile that is tried: 192 sums of a thread, where a consumer has 64 rows."""

STAGGERED: Values = {"staggered": True, "consumers": 2, "cluster_m": 1, "cluster_n": 1}
"""What a staggered tile goes with."""

STAGGERED_TILES_N = (224, 160, 192, 96)
"""Columns of tiles that are tried where a spec wants staggered ones, beside those that fit its shapes."""

STAGGERED_TILE_M = 128
"""Rows of those that are tried. Of 8 bits they took up to 9 % less time than equal columns with A from either
place, but 192 columns 2 % more; of 16 bits up to 8 % less, but 96, 160 and 192 columns 1 to 2 % more
(``benchmarks/fit/h200_staggered_e4m3.jsonl``, ``h200_staggered.jsonl``).
"""

NARROWEST_BESIDE_REGISTERS = 144
"""Columns of a composed tile of two consumers from which on an A of 16 bits passes through registers."""

LONGEST_K = 16_384
"""K from which on programs divide it so often that a second kernel may add up their sums; shorter ones were
not measured.
"""

PARALLEL_CHOICES: Choices = {"splits": (4, 7, 8, 15, 16, 30, 32, 64), "cta_tile_n": (64, 128, 256)}
"""What is tried where it does: what fills the places of the GPU, in clusters of two and of four too."""

SWAP_AB_CHOICES: Choices = {"cta_tile_n": (64, 128)}
"""The same with swap-AB; the tile's rows follow from those of A."""

SWAP_AB_TILED_CHOICES: Choices = {
    "warps_n": (4,),
    "outstanding_mmas": (1,),
    "occupancy": (1, 2, 3),
    "splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
}
"""The same in a tiled schedule."""

LONG_K_CHOICES: Choices = {
    "cta_tile_m": (64, 128),
    "cta_tile_n": (64, 128),
    "cluster_n": (1, 2),
    "splits": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 30, 32),
}
"""What is tried besides for a long K and few tiles, where consumers share a tile."""

STORES: Choices = {"subtile_n": (128, 64, 32, 256), "epilogue_buffers": (1, 2)}
"""The same for how D is stored: it takes shared memory from the ring, and no time that the cost knows."""

MOST_SUBTILES = 64
"""Of a composed tile, for which a number of buffers is looked for: no legal one has more, however wide."""

DEEPEST_RING = 8
"""Stages beyond which a ring hides nothing more."""

PARALLEL_RING_BYTES = 200 * 1024
"""The same in bytes where a second kernel adds up sums: of 128 x 128 x 64 at 512 x 512 x 16384 the main loop
alone takes 17.0 us with seven stages and 15.7 with six (``benchmarks/fit/h200_parallel.json``); no reason was
found.
"""

DEEPEST_SWAP_AB_RING = 12
"""The same with swap-AB, and stages are small."""

PRODUCER_REGISTERS = 40
"""Of a producer thread, where consumers take what it leaves; no record isolates it."""

OTHER_PRODUCER_REGISTERS = (24, 56, 72)
"""The same where the compiler has said that a role spills beside it, besides an equal share for all."""

DEFAULTS: Values = {
    "schedule_kind": "persistent",
    "staggered": False,
    "promote_k": 0,
    "splits": 1,
    "reduction": "ordered",
    "last_wave": "whole",
    "early_operand": "none",
    "trigger": "end",
}
"""Decisions that no rule couples to another one, with values that ran well; no record isolates them."""


SWAP_AB_DEFAULTS: Values = {"schedule_kind": "tiled", "order": "row", "minor": "n", "width": 1}
"""The same with swap-AB: a wave of tiles at most, of one row, without roles."""

ORDER_DEFAULTS: Values = {"order": "snake", "minor": "m", "width": 16}
"""The same of the order of tiles, of several waves or where a spec states a part of it."""

LONG_K_DEFAULTS: Values = {"order": "row", "minor": "n", "width": 1}
"""The same for a long K and few tiles: there is a wave of parts at most."""

PING_PONG_WIDTH = 8
"""The width that ran best with ping-pong, whose consumers have neighbouring tiles."""


@dataclass(frozen=True)
class Derived:
    """A decision that follows from others where the spec leaves it open."""

    name: str
    value: Callable[[WgmmaKernel], object]


TILE_DERIVED = (
    Derived("mma_n", lambda plan: max(1, min(_columns_of_warp(plan), plan.widest_mma_n))),
    Derived("a_swizzle_bytes", lambda plan: plan.widest_swizzle(plan.a_row, plan.problem.a.dtype.bits)),
    Derived("b_swizzle_bytes", lambda plan: plan.widest_swizzle(plan.b_row, plan.problem.b.dtype.bits)),
)
"""What follows from the tile and its warps, each from those alone."""
ORDER_DERIVED = (
    Derived("order", lambda plan: _order(plan)),
    Derived("minor", lambda plan: "n" if plan.order == "row" else ORDER_DEFAULTS["minor"]),
    Derived("width", lambda plan: _width(plan)),
)
"""How tiles follow one another, where a spec says nothing of that."""
SOURCE_DERIVED = (Derived("a_source", lambda plan: _source_for(plan)),)
"""What follows from these too."""
MEMORY_DERIVED = (
    Derived("stages", lambda plan: _stages(plan)),
    Derived("producer_registers", lambda plan: _producer_registers(plan)),
)
"""What follows from all of these and from how D is stored: neither depends on the other."""
CONSUMER_DERIVED = (Derived("consumer_registers", most_consumer_registers),)
"""What follows from the producer's registers."""


class WgmmaSpace(Space[WgmmaKernel]):
    """What is tried for Hopper."""

    stores = STORES

    def branches(self, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
        """Yield a branch for each kind of warp specialization, with swap-AB and without."""
        for swap_ab in wanted.get("swap_ab") or _swaps(request, stated, wanted):
            defaults = _defaults(stated, swap_ab)
            for kind in wanted.get("specialization") or _kinds({**defaults, **stated}):
                tiled = {**defaults, **stated}["schedule_kind"] == "tiled" and "schedule_kind" not in wanted
                choices = _choices(request, stated, swap_ab, kind, tiled=tiled)
                order = _order_defaults(request, {*stated, *wanted}, swap_ab, kind)
                fixed = {name: value for name, value in {**order, **defaults}.items() if name not in choices}
                fixed |= _implied({"schedule_kind": defaults["schedule_kind"], **stated}, kind)
                choices |= _thirds(stated, wanted)
                told = {"swap_ab": swap_ab, "specialization": kind}
                yield Branch(fixed, choices, told)
                if _reduces_apart(request, {*stated, *wanted}, choices):
                    # The order of tiles follows from what the cluster shares, unless something is decided.
                    free = LONG_K_DEFAULTS.keys() if order == LONG_K_DEFAULTS else ()
                    parallel = {name: value for name, value in fixed.items() if name not in free}
                    parallel["reduction"] = "parallel"
                    yield Branch(parallel, {**choices, **PARALLEL_CHOICES}, told)
                if kind == KINDS[0] and not swap_ab and _is_of_a_wave(request, {*stated, *wanted}):
                    yield from _without_roles(Branch(fixed, choices, told), request, stated, wanted)
                if kind != "none" and not swap_ab:
                    pairs = bool(stated.get("staggered"))
                    for tile, columns in _fitted(request, stated, wanted, kind, pairs=pairs):
                        yield Branch({**fixed, **tile}, {**choices, **columns}, told)
                if kind == KINDS[0] and not swap_ab and _may_stagger(request, {*stated, *wanted}):
                    yield from _staggered(Branch(fixed, choices, told), request, stated, wanted)

    def bound(self, request: Request, decisions: Values) -> WgmmaKernel:
        """Return the kernel with the deepest ring that is tried: no kernel of these decisions is cheaper."""
        down, along = ("warps_n", "warps_m") if decisions["swap_ab"] else ("warps_m", "warps_n")
        open_decisions = {
            **ORDER_DEFAULTS,
            "stages": _deepest_ring(bool(decisions["swap_ab"])),
            "producer_registers": PRODUCER_REGISTERS,
            "consumer_registers": 1,
            "subtile_n": decisions["cta_tile_n"],
            "epilogue_buffers": 1,
            along: 1,
            down: 1 if down in decisions else _warps_down(decisions),
        } | dict.fromkeys(("mma_n", "a_source", "a_swizzle_bytes", "b_swizzle_bytes"), 1)
        kernel = decided(WgmmaKernel, request, {**open_decisions, **decisions})
        for derived in (TILE_DERIVED, SOURCE_DERIVED, *((each,) for each in ORDER_DERIVED)):
            kernel = _derive(kernel, derived, decisions)
        if not {"warps_m", "warps_n", "mma_n"} & decisions.keys() and _needs_two_warpgroups(kernel):
            wider = altered(kernel, warps_m=2 * kernel.warps_m)
            kernel = min(kernel, wider, key=_lacking)
        return kernel

    def stored(
        self,
        bound: WgmmaKernel,
        store: Values,
        decisions: Values,  # noqa: ARG002  what a spec says of them is not in `store`
    ) -> WgmmaKernel:
        """Return that kernel with a way to store D, in so far as its tile has one."""
        return altered(bound, **(_with_subtiles(bound, store) if "subtile_n" in store else store))

    def filled(self, kernel: WgmmaKernel, decided: Collection[str]) -> WgmmaKernel:
        """Return a kernel with what follows from the memory that is left, where that is not decided."""
        return _derive(_derive(kernel, MEMORY_DERIVED, decided), CONSUMER_DERIVED, decided)

    def redivided(self, kernel: WgmmaKernel, decided: Collection[str]) -> Iterator[WgmmaKernel]:
        """Yield the kernel with other registers of its producer, and consumers with what these leave."""
        if not kernel.specialized or "producer_registers" in decided:
            return
        for producer in dict.fromkeys((*OTHER_PRODUCER_REGISTERS, kernel.register_pool.launch_registers)):
            if producer != kernel.producer_registers:
                yield _derive(altered(kernel, producer_registers=producer), CONSUMER_DERIVED, decided)

    def preferred(self, kernel: WgmmaKernel) -> Choices:
        """Return what is tried beside other decisions of a kernel, the best first."""
        steps = SWAP_AB_STEP_BYTES if kernel.swap_ab else STEP_BYTES
        choices: dict[str, tuple[object, ...]] = {**STORES, **CHOICES, **TILED_CHOICES}
        choices["cta_tile_k"] = _steps(kernel.problem, steps)
        choices["specialization"] = ("none",) if not kernel.persistent else (*KINDS, "none")
        swap_ab = kernel.swap_ab and kernel.schedule_kind == "tiled"
        defaults = {**ORDER_DEFAULTS, **DEFAULTS, **(SWAP_AB_DEFAULTS if swap_ab else {})}
        choices |= {name: (value,) for name, value in defaults.items()}
        for each in () if swap_ab else ORDER_DERIVED:
            choices[each.name] = (each.value(kernel),)
        return choices


def _defaults(stated: Values, swap_ab: object) -> Values:
    """Return the decisions that are not tried, with swap-AB or without."""
    return {**DEFAULTS, **_swap_ab_defaults(stated)} if swap_ab else DEFAULTS


def _order_defaults(request: Request, decided: Collection[str], swap_ab: object, kind: object) -> Values:
    """Return what is not tried of the order of tiles; nothing where it follows from the tile."""
    if ORDER_DEFAULTS.keys() & decided:
        return {**ORDER_DEFAULTS, **({"width": PING_PONG_WIDTH} if kind == "ping_pong" else {})}
    return LONG_K_DEFAULTS if not swap_ab and _is_of_long_k(request) else {}


def _choices(
    request: Request, stated: Values, swap_ab: object, kind: object, *, tiled: bool
) -> dict[str, tuple[object, ...]]:
    """Return the values tried for the open decisions of a kind of kernel, with swap-AB or without.

    `tiled` says that each program has one tile.
    """
    choices = {
        **CHOICES,
        "cta_tile_k": _steps(request.matmul, SWAP_AB_STEP_BYTES if swap_ab else STEP_BYTES),
    }
    if stated.get("staggered"):
        choices["cta_tile_n"] = STAGGERED_TILES_N
    if swap_ab:
        choices |= {**SWAP_AB_CHOICES, "cta_tile_m": _rows_of_tiles(request, stated)}
    elif kind == "cooperative" and _is_of_long_k(request):
        choices |= LONG_K_CHOICES
    if tiled:
        choices |= SWAP_AB_TILED_CHOICES if swap_ab else TILED_CHOICES
    if request.matmul.batch_invariant:  # what is best for K depends on M
        choices.pop("splits", None)
    return choices


def _steps(problem: Matmul, row_bytes: Iterable[int]) -> tuple[int, ...]:
    """Return the K of steps whose rows of A have so many bytes."""
    return tuple(size // problem.a.dtype.bytes for size in row_bytes)


def _with_subtiles(plan: WgmmaKernel, store: Values) -> Values:
    """Return a way to store D with sub-tiles that the kernel can have, and a number of buffers for them."""
    # Sub-tiles would part the columns of one CTA, or of one warp along N, from another's.
    if plan.reduces_apart:
        whole_tile = {"subtile_n": plan.cta_tile_n, "epilogue_buffers": 1}
        return {name: whole_tile[name] for name in store}
    whole = plan.cluster_n > 1 or plan.warps_n > 1
    subtile_n = plan.cta_tile_n if whole else min(whole_number(store["subtile_n"]), plan.column_parts[-1])
    store = {**store, "subtile_n": subtile_n}
    if not (plan.composed and plan.even_buffers) or store.get("epilogue_buffers", 1) == 1:
        return store
    subtiles = plan.cta_tile_n // subtile_n  # no power of two: the fewest buffers beyond one that divide them
    several = (count for count in range(2, min(subtiles, MOST_SUBTILES) + 1) if subtiles % count == 0)
    return {**store, "epilogue_buffers": next(several, 1)}  # a tile stored whole has one


def _thirds(stated: Values, wanted: Choices) -> Choices:
    """Return what is tried where a spec has rows that three consumers share, or three consumers."""
    choices: dict[str, tuple[object, ...]] = {}
    rows = _values("cta_tile_m", stated, wanted)
    if thirds := [m for m in rows if _is_thirds(m)]:
        choices["consumers"] = (3,) if len(thirds) == len(rows) else (*CHOICES["consumers"], 3)
    consumers = _values("consumers", stated, wanted)
    if 3 in consumers:
        others = () if set(consumers) == {3} else CHOICES["cta_tile_m"]
        choices["cta_tile_m"] = (*others, THIRDS_TILE_M)
    return choices


def _values(name: str, stated: Values, wanted: Choices) -> tuple[object, ...]:
    """Return the value that a spec states for a decision, or those that it wants tried; none if neither."""
    return (stated[name],) if name in stated else wanted.get(name, ())


def _is_thirds(rows: object) -> bool:
    """Whether three consumers share so many rows of a tile, which no other number of them does."""
    return isinstance(rows, int) and rows % THIRDS_TILE_M == 0 and is_power_of_two(rows // THIRDS_TILE_M)


def _fitted(
    request: Request, stated: Values, wanted: Choices, kind: object, *, pairs: bool = False
) -> Iterator[tuple[Values, Choices]]:
    """Yield rows of a tile, with who shares them, and the columns that fill whole waves best with them.

    A spec that states columns, or what composed tiles do not have, leaves none. `pairs` is whether tiles
    along N come by twos.
    """
    open_to = {"cta_tile_n", "cta_tile_m", "consumers"} - {*stated, *wanted}
    plain = {"cluster_n": 1, "warps_n": 1}
    if "cta_tile_n" not in open_to or {"cta_tile_m", "consumers"} & wanted.keys():
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
                    yield tile, {"cta_tile_n": columns, "cta_tile_k": _steps(request.matmul, steps)}


def _may_stagger(request: Request, decided: Collection[str]) -> bool:
    """Whether staggered tiles are tried too: of A in shared memory, with an epilogue that loads nothing."""
    loads = request.matmul.c is not None or request.matmul.vectors
    others = {"staggered", "a_source", "promote_k", "splits", "last_wave", "reduction"}
    return not (loads or _a_source(request.matmul) == "registers" or others & {*decided})


def _staggered(plain: Branch, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
    """Yield the branches of staggered tiles that are tried beside plain ones.

    Two consumers of 64 rows: those of 128 were the best at none of the records' shapes.
    """
    fixed = {**plain.fixed, **STAGGERED}
    choices = {name: values for name, values in plain.choices.items() if name not in fixed}
    if any(stated.get(name, value) != value for name, value in STAGGERED.items()):
        return
    for tile, columns in _fitted(request, stated, wanted, KINDS[0], pairs=True):
        if tile["cta_tile_m"] == STAGGERED_TILE_M:
            yield Branch({**fixed, **tile}, {**choices, **columns}, {**plain.kind, "staggered": True})


def _without_roles(roles: Branch, request: Request, stated: Values, wanted: Choices) -> Iterator[Branch]:
    """Yield the branches of tiled kernels that are tried beside one with roles, of a wave of tiles."""
    fixed = {
        **roles.fixed,
        **_implied({**stated, "schedule_kind": "tiled"}, "none"),
        "schedule_kind": "tiled",
    }
    del fixed["occupancy"]
    others = {name: values for name, values in roles.choices.items() if name not in fixed}
    choices: Choices = {**others, **WAVE_CHOICES}
    kind = {**roles.kind, "specialization": "none"}
    yield Branch(fixed, choices, kind)
    for tile, columns in _fitted(request, stated, wanted, "none"):
        widths = tuple(n for n in columns["cta_tile_n"] if n in WAVE_COLUMNS)
        if widths and tile["cta_tile_m"] == WAVE_TILE_M:
            yield Branch({**fixed, **tile}, {**choices, **columns, "cta_tile_n": widths}, kind)


def _widths(request: Request, rows: int, *, tried: Collection[int], together: int) -> tuple[int, ...]:
    """Return the fewest columns of tiles of so many rows that leave each shape few enough waves of them.

    So many tiles along N come together.
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


def _is_of_a_wave(request: Request, decided: Collection[str]) -> bool:
    """Whether kernels without roles are tried too: all tiles of a problem may run at the same time."""
    if OF_ROLES & {*decided}:
        return False
    most = WAVE_TILE * request.gpu.sm_count
    return any(
        rows > FEW_ROWS and rows * columns <= most and not has_few_tiles(rows, columns, depth)
        for rows, columns, depth in request.planned_shapes
    )


def _is_of_long_k(request: Request) -> bool:
    """Whether any of the problems that a kernel is chosen for is of a long K and few tiles."""
    return any(has_few_tiles(*shape) for shape in request.planned_shapes)


def _reduces_apart(request: Request, decided: Collection[str], tried: Collection[str]) -> bool:
    """Whether kernels are tried whose sums a second one adds up: for a D of few tiles and the longest K."""
    if {"reduction", "splits", "subtile_n", "epilogue_buffers", "early_operand"} & {*decided}:
        return False
    few = (
        -(-rows // FEW_ROWS) * -(-columns // FEW_ROWS) <= FEW_TILES and depth >= LONGEST_K
        for rows, columns, depth in request.planned_shapes
    )
    return "splits" in tried and any(few) and not request.matmul.copies_misaligned


def _swaps(request: Request, stated: Values, wanted: Choices) -> tuple[object, ...]:
    """Return with which values of swap-AB kernels are tried if the spec does not want some tried.

    Swap-AB is tried for few rows of A; both are for a long K and few tiles. Decisions that are made for
    tiles of many rows, or for roles, exclude it. A kernel for several problems is tried with the values of
    each of them.
    """
    if "swap_ab" in stated:
        return (stated["swap_ab"],)
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
    fits &= stated.get("a_source", _a_source(request.matmul)) == "shared"
    widths = [columns for columns in _values("cta_tile_n", stated, wanted) if isinstance(columns, int)]
    # Other widths have parts, along the instruction's columns.
    fits &= not widths or any(map(is_power_of_two, widths))
    tiles = _rows_of_tiles(request, stated)
    fits &= stated.get("cta_tile_m", tiles[-1]) in tiles
    free = not wanted.keys() & others.keys() and not {"subtile_n", "producer_registers"} & {*stated, *wanted}
    if not (fits and free):
        return (False,)
    of_each = (_swaps_for(shape, stated) for shape in request.planned_shapes)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(of_each)))


def _swaps_for(shape: Shape, stated: Values) -> tuple[bool, ...]:
    """Return the values of swap-AB that are tried for a problem [M, N, K], with what a spec states."""
    tried = tried_swap_ab(*shape)
    if len(tried) > 1 and stated.get("reduction") == "atomic":
        return (False,)  # swap-AB was not measured with atomics
    if len(tried) > 1 and stated.get("schedule_kind") == "tiled":
        return (True,)  # without roles others were no faster
    return tried


def _rows_of_tiles(request: Request, stated: Values) -> tuple[int, ...]:
    """Return the rows of a tile that are tried with swap-AB: as many as A has, or fewer.

    There are at least as many as an instruction of each warp has columns, and as a swizzle spans where A is
    M-contiguous.
    """
    rows = max(shape[0] for shape in request.planned_shapes)
    least = WGMMA.n_min * (2 if stated.get("warps_m") == 2 else 1)
    if request.matmul.a.major == "mn":
        spans = HOPPER.tma_swizzle_bytes
        span = next((span for span in spans if span == stated.get("a_swizzle_bytes")), spans[-1])
        least = max(least, span // request.matmul.a.dtype.bytes)
    most = max(least, min(FEW_ROWS, 1 << (rows - 1).bit_length()))
    return tuple(most >> halvings for halvings in range((most // least).bit_length()))


def _swap_ab_defaults(stated: Values) -> Values:
    """Return what is not tried with swap-AB; with roles it is what is not tried elsewhere."""
    if stated.get("specialization", "none") != "none" or stated.get("schedule_kind", "tiled") != "tiled":
        return {}
    if stated.keys() & {"order", "minor", "width"}:
        return {"schedule_kind": "tiled"}  # an order goes with the other defaults
    return SWAP_AB_DEFAULTS


def _stages(plan: WgmmaKernel) -> int:
    """Return the stages of a ring: as many as hide anything, and as there is shared memory for."""
    stages = min(_deepest_ring(plan.swap_ab), most_stages(plan))
    if plan.reduces_apart:
        stages = min(stages, PARALLEL_RING_BYTES // max(1, plan.stage_bytes))
    return max(1, stages)


def _deepest_ring(swap_ab: bool) -> int:
    return DEEPEST_SWAP_AB_RING if swap_ab else DEEPEST_RING


def _kinds(stated: Values) -> tuple[object, ...]:
    if "specialization" in stated:
        return (stated["specialization"],)
    if stated.get("staggered"):
        return KINDS[:1]
    persistent = stated.get("schedule_kind", "persistent") == "persistent"
    if not persistent:
        return ("none",)  # a program of one tile has nothing to overlap it with
    by_turns = stated.get("consumers", 2) == 2 and not _is_thirds(stated.get("cta_tile_m"))
    return KINDS if by_turns else KINDS[:1]


def _implied(stated: Values, kind: object) -> dict[str, object]:
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


def _derive(plan: WgmmaKernel, derived: tuple[Derived, ...], decided: Collection[str]) -> WgmmaKernel:
    """Return the plan with those decisions that are open derived from it."""
    found = {item.name: item.value(plan) for item in derived if item.name not in decided}
    return altered(plan, **found) if found else plan


def _columns_of_warp(plan: WgmmaKernel) -> int:
    """Return the columns of the instruction's tile, or of its widest part, that a warp has."""
    return plan.mma_parts[0] // plan.warps_across[1]


def _warps_down(decisions: Values) -> int:
    """Return the warps down the instruction: two warpgroups where one consumer has all rows, and enough."""
    warpgroup = HOPPER.warps_per_warpgroup
    along, rows = ("warps_m", "cta_tile_n") if decisions["swap_ab"] else ("warps_n", "cta_tile_m")
    lone = decisions["consumers"] == 1 and whole_number(decisions[rows]) >= 2 * WGMMA.m
    return max(warpgroup, 2 * warpgroup // whole_number(decisions.get(along, 1))) if lone else warpgroup


def _needs_two_warpgroups(plan: WgmmaKernel) -> bool:
    """Whether a ping-pong consumer of one warpgroup has no registers for its tile, however D is stored.

    Where CTAs along N share a tile it is stored whole.
    """
    return plan.ping_pong and plan.cluster_n > 1 and not plan.swap_ab and not _holds_its_tile(plan)


def _holds_its_tile(plan: WgmmaKernel) -> bool:
    """Whether consumers have registers for what they are expected to take."""
    return not _lacking(plan)


def _lacking(plan: WgmmaKernel) -> int:
    """Return the registers that a consumer thread is expected to take beyond the most that it can have."""
    return max(0, expected_registers(plan) - most_consumer_registers(plan))


def _a_source(problem: Matmul) -> str:
    """Return where A is read: of 16 bits it may lie either way in shared memory, of others only along K."""
    return "registers" if problem.a.major == "mn" and problem.a.dtype.bits != 16 else "shared"


def _source_for(plan: WgmmaKernel) -> str:
    """Return where A is read: from registers too where parts of a tile share it, gain by it and hold it.

    Tiles of three consumers gained by it on an H200, but 192 x 80 and 192 x 96 of 8 bits at one shape of
    eight, and wide ones of two; a lone consumer, which waits for its registers, lost, and so did tiles of
    128 x 80 to 128 x 112. See ``fragments`` too.
    """
    source = _a_source(plan.problem)
    apart = plan.specialization == "cooperative" and not (plan.outstanding_mmas or plan.staggered)
    if not (plan.composed and apart and plan.problem.a.dtype.bits <= 16):
        return source
    gains = plan.consumers > 2 or (plan.consumers == 2 and _is_wide_for_registers(plan))
    return "registers" if gains and _holds_its_tile(altered(plan, a_source="registers")) else source


def _is_wide_for_registers(plan: WgmmaKernel) -> bool:
    """Whether the parts of a tile of two consumers gain by an A in registers.

    Elements of 8 bits are read without the next step's, and so only where more than one part would read A
    slower than it multiplies: 128 x 176, 208, 224, 272, 288 and 304 took 2 to 9 % less by it, 128 x 144, 160
    and 192 took 4 to 5 % more (``benchmarks/fit/h200_a_in_registers_e4m3.jsonl``). In clusters, and with
    scales of rows or columns, some of these took up to 20 % more than others of the same loop, which was not
    explained (``benchmarks/suites/h200_many_rows_e4m3.jsonl``).
    """
    if plan.problem.a.dtype.bits > 8:
        return plan.cta_tile_n >= NARROWEST_BESIDE_REGISTERS
    if plan.cluster_size > 1 or plan.problem.vectors:
        return False
    first, *others = plan.column_parts
    return len(others) > 1 or (first == WGMMA.n_max and others[-1] < NARROW_PART)


def _is_one_wave(plan: WgmmaKernel) -> bool:
    """Whether all tiles run at the same time, in each problem that the plan is for.

    Then lines are the order that is found with the fewest divisions; the shorter ones are faster nearly
    everywhere (``benchmarks/fit/h200_orders.json``).
    """
    tiles = max(math.prod(plan.tiles(shape)) for shape in plan.request.planned_shapes)
    return tiles * plan.splits <= plan.resident_programs


def _order(plan: WgmmaKernel) -> object:
    """Return the order of tiles, where a spec says nothing of that."""
    if plan.reduces_apart:
        return plan.order_of_neighbours
    if not _is_one_wave(plan):
        return ORDER_DEFAULTS["order"]
    tiles_m, tiles_n = max(map(plan.tiles, plan.request.planned_shapes), key=math.prod)
    return "row" if tiles_m > tiles_n else "column"


def _width(plan: WgmmaKernel) -> object:
    """Return the tiles along the minor dimension that are walked together."""
    if plan.order in LINES:
        return 1
    return PING_PONG_WIDTH if plan.ping_pong else ORDER_DEFAULTS["width"]


def _producer_registers(plan: WgmmaKernel) -> int:
    """Return the registers of a producer thread: as many as consumers have, where these need no more.

    Then no role asks for registers, and the kernel starts and ends about 0.2 us sooner on an H200
    (``benchmarks/fit/h200_unfilled_waves.jsonl``). A lone consumer starts with all that a thread can use.
    """
    if not plan.specialized:
        return PRODUCER_REGISTERS
    usual = max(PRODUCER_REGISTERS, expected_producer_registers(plan))
    if plan.consumers not in range(2, most_consumers(plan) + 1) or plan.occupancy > 1:
        return usual
    share = plan.register_pool.launch_registers
    return share if max(expected_registers(plan), usual) <= share else usual


def kind_of(plan: WgmmaKernel) -> str:
    """Return what kind of kernel a plan is."""
    if plan.swap_ab and plan.schedule_kind == "tiled":
        return "swap-AB"
    if plan.specialized:
        return plan.specialization.replace("_", "-")
    if plan.synchronous:
        return "blocked"
    return "pipelined" if plan.schedule_kind == "tiled" else plan.schedule_kind.replace("_", " ")


def _label(plan: WgmmaKernel) -> str:
    """Return the decisions of a plan's configuration in one line."""
    parts = [kind_of(plan), *tile_and_cluster(plan)]
    if plan.specialization == "cooperative":
        parts.append(f"{plan.consumers} consumer{'s' * (plan.consumers > 1)}")
    if plan.occupancy > 1:
        parts.append(f"occupancy {plan.occupancy}")
    if plan.splits > 1:
        parts.append(f"K split by {plan.splits}{', added up in parallel' * plan.reduces_apart}")
    if plan.divides_last_wave:
        parts.append("stream-K")
    return ", ".join([*parts, f"{plan.outstanding_mmas} outstanding"])


def _as_dict(plan: WgmmaKernel) -> dict[str, object]:
    """Return the decisions of a Hopper plan as plain data."""
    return {
        "kernel": kind_of(plan),
        "tile": [plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k],
        "staggered": plan.staggered,
        "cluster": [plan.cluster_m, plan.cluster_n],
        "swap_ab": plan.swap_ab,
        "splits": plan.splits,
        "reduction": plan.reduction,
        "last_wave": plan.last_wave,
        "consumers": plan.consumers,
        "warps": plan.total_warps,
        "stages": plan.stages,
        "outstanding_mmas": plan.outstanding_mmas,
        "epilogue": [plan.epilogue_buffers, plan.subtile_n],
        "smem_bytes": plan.smem_bytes,
        "accumulator_registers": plan.accumulator_registers,
        "consumer_registers": plan.consumer_registers,
        "occupancy": plan.occupancy,
    }


def _division_of_k(plan: WgmmaKernel) -> str:
    """Return how K is divided among programs, for the cell of a table: ``split 4, parallel``."""
    if plan.splits > 1:
        return f"split {plan.splits}, {plan.reduction}"
    return "stream-K" if plan.divides_last_wave else "whole"


WGMMA_FAMILY = Family(
    kernel=WgmmaKernel,
    space=WgmmaSpace(),
    rules=(*TYPE_RULES, *TILE_RULES, *RESOURCE_RULES, *OPERATION_RULES),
    expectations=EXPECTATIONS,
    cost=cost,
    cost_order=COST_ORDER,
    estimate=estimate,
    excess=excess,
    columns=(
        ("kernel", kind_of),
        ("tile", narrow_tile),
        ("cluster", narrow_cluster),
        ("warps", lambda plan: str(plan.total_warps)),
        ("stages", lambda plan: str(plan.stages)),
        ("MMAs", lambda plan: str(plan.outstanding_mmas)),
        ("K", _division_of_k),
        ("smem", lambda plan: f"{plan.smem_bytes:,}"),
        ("sums", lambda plan: str(plan.accumulator_registers)),
        ("registers", lambda plan: str(plan.consumer_registers)),
        ("CTAs", lambda plan: str(plan.occupancy)),
    ),
    legend="MMAs in flight; how programs divide K; smem: bytes of a CTA; sums and registers of a consumer "
    "thread; CTAs on an SM",
    label=_label,
    as_dict=_as_dict,
)
