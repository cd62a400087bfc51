"""The table of candidates: the values that are tried for open decisions of Hopper kernels, and why.

The values of a row replace the values of earlier rows. A branch of the search has a kind of kernel, the
values from all rows of `VALUES` that apply to the kind, the values from one row of `KERNELS`, and the values
from all rows of `FOLLOWS` that apply. The rules of the family refuse illegal combinations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gemmgen.plan.search import Choices, Values
from gemmgen.plan.wgmma.tried.derived import ORDER, PRODUCER_REGISTERS
from gemmgen.plan.wgmma.tried.problems import (
    FITTED_COLUMNS,
    decodes,
    dense,
    equal_groups,
    few_rows_beside_weights,
    few_tiles_of_long_k,
    few_tiles_of_longest_k,
    fits_swap_ab,
    fitted,
    grouped,
    has_one_part,
    k_grouped,
    loads_only_a_and_b,
    many_rows_of_tile_scales,
    multiplies_as_stored,
    of_a_wave,
    orders_in_part,
    plain,
    quantized_gate,
    reads_a_from_shared_memory,
    rows_beside_weights,
    rows_with_swap_ab,
    scaled,
    scaled_by_short_blocks,
    searches,
    searches_no_rows,
    states,
    step_blocks,
    step_bytes,
    tile_scaled,
    unfilled_beside_weights,
    unscaled,
)
from gemmgen.plan.wgmma.tried.row import Row, Tried

COOPERATIVE: Choices = {"specialization": ("cooperative",), "swap_ab": (False,)}
WITH_ROLES: Choices = {"specialization": ("cooperative", "ping_pong"), "swap_ab": (False,)}
NO_SWAP: Choices = {"swap_ab": (False,)}
SWAP: Choices = {"swap_ab": (True,)}
TILED: Choices = {"schedule_kind": ("tiled",), "swap_ab": (False,)}
TILED_SWAP: Choices = {"schedule_kind": ("tiled",), "swap_ab": (True,)}
WALKED_SWAP: Choices = {"schedule_kind": ("persistent",), "specialization": ("cooperative",), **SWAP}
ONE_CTA: Choices = {"cluster_m": (1,), "cluster_n": (1,)}
DECODED: Mapping[str, Tried] = {
    "cta_tile_m": rows_beside_weights,
    "cta_tile_n": (64,),
    "cta_tile_k": (256, 128),
    "warps_m": (1,),
    "warps_n": (4,),
    "outstanding_mmas": (0,),
    "occupancy": (1,),
    **ONE_CTA,
}
STAGGERED: Choices = {"staggered": (True,), "consumers": (2,), **ONE_CTA}
NO_ROLES: Values = {"specialization": "none", "schedule_kind": "tiled"}
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
        "a_source",
        "promote_k",
        "accumulators",
        "early_operand",
        "trigger",
        "producer_registers",
        "consumer_registers",
    )
)
"""Decisions of kernels with roles: a spec that states or searches one of them requires roles."""
THIRDS = (192, 384, 768, 1536)
"""Rows of a tile that only three consumers can share."""

# --- the kinds of kernels

SWAP_AB_ALONE = Row(
    {},
    fits={
        "schedule_kind": ("tiled",),
        "specialization": ("none",),
        "staggered": (False,),
        "consumers": (1,),
        **ONE_CTA,
        "a_source": ("shared",),
        "warps_m": (1,),
    },
    undecided=frozenset(("subtile_n", "producer_registers")),
    when=(reads_a_from_shared_memory, has_one_part, fits_swap_ab),
)
"""Swap-AB, beside the decisions of a spec that says nothing of swap-AB: at most one wave of tiles, without
roles.
"""
KINDS = (
    Row({}, of={"schedule_kind": ("persistent",)}, kind={"specialization": "cooperative"}),
    Row(
        {},
        of={"schedule_kind": ("persistent",)},
        kind={"specialization": "ping_pong"},
        fits={"consumers": (2,), "staggered": (False,)},
        when=(multiplies_as_stored, lambda partial: partial.stated.get("cta_tile_m") not in THIRDS),
    ),
    # A program of one tile has nothing to overlap it with.
    Row(
        {},
        of={"schedule_kind": ("tiled", "single_tile", "launch_control")},
        kind={"specialization": "none"},
    ),
    # The host knows the tiles of batches. Programs of one tile load ahead of an early launch, too.
    Row({}, kind=NO_ROLES, undecided=OF_ROLES - {"early_operand"}, when=(equal_groups, unscaled)),
)
"""The specializations that are tried beside each other if the spec says nothing of them."""

# --- the values of a kind of kernel

DEFAULTS: Choices = {
    "schedule_kind": ("persistent",),
    "staggered": (False,),
    "promote_k": (0,),
    "splits": (1,),
    "reduction": ("ordered",),
    "early_operand": ("none",),
    "trigger": ("end",),
}
"""Decisions that no rule couples to another one, unless a row has values: they ran well, but no record
isolates them.
"""
EVERY = Row(
    {
        "cta_tile_m": (128, 256, 64),
        "cta_tile_n": (256, 128, 64, 32),
        "cluster_m": (1, 2),
        "cluster_n": (1,),
        "consumers": (2, 1),
        "outstanding_mmas": (0, 1),
        "cta_tile_k": step_bytes(128, 256, 512, 64),  # 128 bytes fill the widest swizzle
    }
)
WITHOUT_ROLES = Row({"warps_m": (8, 4), "occupancy": (1, 2, 3)}, of=TILED)
"""A CTA can multiply while others on its SM load, start or store."""
SWAP_AB = Row(
    {"cta_tile_m": rows_with_swap_ab, "cta_tile_n": (64, 128), "cta_tile_k": step_bytes(256, 512)}, of=SWAP
)
"""For few rows of A. With few columns, shorter steps are soon multiplied."""
LONG_K: Choices = {
    "cta_tile_m": (64, 128),
    "cta_tile_n": (64, 128),
    "cluster_n": (1, 2),
    "splits": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 30, 32),
}
"""For few tiles: programs divide K, and clusters share operands."""

VALUES = (
    EVERY,
    WITHOUT_ROLES,
    # Staggered tiles of any shape.
    Row({"cta_tile_n": (224, 160, 192, 96)}, of={"staggered": (True,)}),
    Row(LONG_K, of=COOPERATIVE, when=(few_tiles_of_long_k,)),
    SWAP_AB,
    Row({"warps_n": (4,), "outstanding_mmas": (1,), "occupancy": (1, 2, 3)}, of=TILED_SWAP),
    Row({"splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}, of=TILED_SWAP, when=(dense,)),
    # Three consumers, and the rows that only they can share.
    Row({"consumers": (3,)}, of={"cta_tile_m": THIRDS}, when=(dense,)),
    Row({"consumers": (2, 1, 3)}, when=(dense, searches("cta_tile_m", THIRDS))),
    Row({"cta_tile_m": (192,)}, of={"consumers": (3,)}, when=(dense,)),
    Row({"cta_tile_m": (128, 256, 64, 192)}, when=(dense, searches("consumers", (3,)))),
    # --- groups: each program finds the group of its tile
    Row({"cta_tile_m": (128, 64), "cta_tile_n": (256, 128, 64), **ONE_CTA}, when=(grouped,)),
    # The host knows the tiles of batches.
    Row({"cluster_m": (1, 2), "cluster_n": (1, 2)}, of=NO_SWAP, when=(equal_groups,)),
    # Each group of K has all rows of D, which fill tall tiles too.
    Row({"cta_tile_m": (256, 128, 64)}, of=NO_SWAP, when=(k_grouped,)),
    # Groups of few rows (``benchmarks/grouped/h200_sweep.json``).
    Row(
        {"cta_tile_m": (8, 16, 32, 64, 128), "cta_tile_n": (64, 128, 256), "outstanding_mmas": (1,)},
        of=SWAP,
        when=(grouped,),
    ),
    Row({"consumers": (1,)}, of={"specialization": ("cooperative",), **SWAP}, when=(grouped,)),
    # Two slabs of rows of scaled sums; with swap-AB, all columns of a tile have one scale of B.
    Row({"cta_tile_m": (256, 128, 64), "cta_tile_n": (128, 64)}, of=NO_SWAP, when=(grouped, scaled)),
    Row({"cta_tile_n": (64, 128)}, of=SWAP, when=(grouped, scaled)),
    # D has scales of its own: one block of each accumulator.
    Row({"cta_tile_n": (256,)}, of=NO_SWAP, when=(grouped, scaled, quantized_gate)),
    # A program for each tile. Steps of 64 bytes took up to 1.16 times the time of steps of 128 bytes of the
    # same tile (``benchmarks/grouped/h200_batched_steps.jsonl``); a K of one step needs no MMA in flight.
    Row({"cta_tile_m": (128, 64), "cta_tile_n": (256, 128, 64)}, of=TILED, when=(grouped,)),
    Row({"cta_tile_n": (64, 128, 256)}, of=TILED_SWAP, when=(grouped,)),
    Row(
        {"outstanding_mmas": (1, 0), "cta_tile_k": step_bytes(128, 256, 512)},
        of={"schedule_kind": ("tiled",)},
        when=(grouped,),
    ),
    # --- sums with scales of blocks: they are promoted after each block of K
    Row(
        {"promote_k": step_blocks(1), "cta_tile_k": step_blocks(1), "outstanding_mmas": (0,)}, when=(scaled,)
    ),
    # A block may be multiplied while the sums of the block before it are scaled.
    Row({"outstanding_mmas": (0, 1)}, of=NO_SWAP, when=(dense, scaled)),
    # In groups of few rows, reading the weights decides the time.
    Row({"outstanding_mmas": (0, 1)}, of=NO_SWAP, when=(grouped, many_rows_of_tile_scales)),
    # All blocks of a step are multiplied side by side. A step of one, two and four blocks takes 0.25, 0.42
    # and 0.73 us at 8 x 2112 x 7168 on an H100, and two were the fastest for most of few rows
    # (``7a8a2c58:benchmarks/blockscale/h100_prototype.jsonl``).
    Row({"cta_tile_k": step_blocks(2, 1, 4)}, of=SWAP, when=(dense, tile_scaled)),
    # Short blocks are multiplied side by side too.
    Row({"cta_tile_k": step_bytes(128, 64), "outstanding_mmas": (0,)}, when=(dense, scaled_by_short_blocks)),
    # --- weights that threads decode: few rows in many small CTAs, others in few large ones
    # (``benchmarks/weights/h200_kernels.json``)
    Row(DECODED, of=SWAP, when=(decodes,)),
    Row({"occupancy": (4, 3, 2, 1)}, of=TILED_SWAP, when=(decodes,)),
    Row({"splits": (1, 2, 3, 4, 6, 8, 12, 16)}, of=TILED_SWAP, when=(dense, decodes)),
    Row(
        {"cta_tile_n": (128,), "warps_n": (8, 4), "cta_tile_k": (256, 128), "consumers": (1,)},
        of={"specialization": ("cooperative",), **SWAP},
        when=(decodes,),
    ),
    # The splits that were the fastest at some shape (``benchmarks/weights/h200_split.json``).
    Row({"splits": (1, 2, 3, 4)}, of=WALKED_SWAP, when=(decodes, unfilled_beside_weights)),
    # Groups of few rows in small CTAs too, which take tiles of groups in turn
    # (``benchmarks/weights/h200_experts.json``).
    Row(
        {"cta_tile_n": (64,), "warps_n": (4,), "cta_tile_k": (256,), "occupancy": (3, 2, 1)},
        of={"specialization": ("cooperative",), **SWAP},
        when=(grouped, decodes, few_rows_beside_weights),
    ),
    # --- what a promise leaves, whatever was tried before: the best number of splits depends on M
    Row({"splits": (1,)}, when=(lambda partial: partial.matmul.batch_invariant,)),
)
"""Values by the kind of kernel and the problem, from the general to the special."""

# --- kernels that are tried beside each other

NARROW_TILE = 160
"""Rows and columns together of a composed tile up to which longer steps are tried: its ring has stages
enough, and 64 x 80 of 128 x 5120 x 8192 was 6 % faster with them. In wider tiles, steps of other lengths were
measured up to 30 % slower (``benchmarks/suites/h200_many_rows.jsonl``).
"""
UNEVEN_COLUMNS = tuple(columns for columns in FITTED_COLUMNS if columns not in (256, 128, 64, 32))


def fitted_tiles(
    row: Row, rows: int, widths: Iterable[int] = UNEVEN_COLUMNS, consumers: tuple[int, ...] = (2, 1)
) -> tuple[Row, ...]:
    """Return the rows of tiles whose columns, among some widths, are fitted to a problem.

    Consumers share the `rows` of such a tile. The table has one row for narrow tiles, and one for wide tiles.
    """
    narrow = [width for width in widths if rows + width <= NARROW_TILE]
    wide = [width for width in widths if rows + width > NARROW_TILE]
    shared: Choices = {"cta_tile_m": (rows,), "consumers": consumers}
    fits = {**shared, "cluster_n": (1,), "warps_n": (1,), **row.fits}
    return tuple(
        replace(
            row,
            tries={
                **row.tries,
                **shared,
                "cta_tile_n": fitted(rows, among),
                "cta_tile_k": step_bytes(*steps),
            },
            fits=fits,
            undecided=row.undecided | {"cta_tile_n"},
            when=(plain, searches_no_rows, *row.when),
        )
        for among, steps in ((narrow, (128, 256)), (wide, (128,)))
    )


PARALLEL = Row(
    {"splits": (4, 7, 8, 15, 16, 30, 32, 64), "cta_tile_n": (64, 128, 256)},
    kind={"reduction": "parallel"},
    undecided=frozenset(("reduction", "splits", "subtile_n", "epilogue_buffers", "early_operand")),
    when=(few_tiles_of_longest_k,),
)
"""A second kernel adds up the sums: splits fill the places of the GPU, in clusters of two and four too."""
ONE_WAVE = Row(
    {**WITHOUT_ROLES.tries, "outstanding_mmas": (1,)},
    of=COOPERATIVE,
    kind=NO_ROLES,
    undecided=OF_ROLES,
    when=(unscaled, of_a_wave),
)
"""Kernels without roles start sooner, and one tile leaves roles little to overlap."""

KERNELS = (
    Row({}),
    # While one of three consumers promotes its sums, the MMAs of two others run. A consumer of 64 rows has
    # registers for 128 columns, beside their partial sums.
    Row(
        {"cta_tile_m": (192,), "consumers": (3,), "cta_tile_n": (128,), "producer_registers": (32,)},
        of=COOPERATIVE,
        undecided=frozenset(
            ("cta_tile_m", "consumers", "cta_tile_n", "producer_registers", "consumer_registers")
        ),
        when=(dense, scaled),
    ),
    replace(PARALLEL, of=TILED_SWAP),
    replace(PARALLEL, of=COOPERATIVE, when=(few_tiles_of_long_k, *PARALLEL.when)),
    # With a second kernel, three and four parts of tiles of 128 rows took 0.80 to 1.03 of the time of ordered
    # sums (``benchmarks/weights/h200_split.json``). Two parts and other rows were not measured.
    replace(
        PARALLEL,
        tries={"splits": (3, 4), "cta_tile_m": (128,)},
        of=WALKED_SWAP,
        when=(decodes, unfilled_beside_weights),
    ),
    ONE_WAVE,
    # Of composed tiles, 64 x 96 and 64 x 192 take 2 to 4 % less time without roles. 64 x 80, 64 x 160,
    # 64 x 224, 128 x 192 and 128 x 224 take 5 to 46 % more, which the cost does not know
    # (``benchmarks/fit/h200_composed_waves.json``).
    *fitted_tiles(ONE_WAVE, 64, (96, 192)),
    *fitted_tiles(Row({}, of=WITH_ROLES), 128),
    *fitted_tiles(Row({}, of=COOPERATIVE), 192, FITTED_COLUMNS, consumers=(3,)),
    *fitted_tiles(Row({}, of=WITH_ROLES), 64),
    *fitted_tiles(Row({}, of=WITH_ROLES), 256),
    # Of 8 bits, staggered tiles took up to 9 % less time than equal columns with A from either place, but 192
    # columns 2 % more; of 16 bits up to 8 % less, but 96, 160 and 192 columns 1 to 2 % more
    # (``benchmarks/fit/h200_staggered_e4m3.json``, ``h200_staggered.json``). Consumers of 128 rows were the
    # best at no shape.
    *fitted_tiles(
        Row(
            {},
            of=COOPERATIVE,
            kind={"staggered": True},
            fits=STAGGERED,
            undecided=frozenset(("staggered", "a_source", "promote_k", "splits", "reduction")),
            when=(loads_only_a_and_b,),
        ),
        128,
    ),
)
"""Kernels of one kind that are tried beside each other: each row with what differs from `VALUES`."""

# --- what follows from a decision

FOLLOWS = (
    Row({"consumers": (1,), "producer_registers": (0,), **ONE_CTA}, of={"specialization": ("none",)}),
    Row({"consumers": (2,)}, of={"specialization": ("ping_pong",)}),
    Row(
        {"producer_registers": (PRODUCER_REGISTERS,)},
        of={"specialization": ("cooperative", "ping_pong")},
        when=(states("consumer_registers"),),
    ),
    Row(STAGGERED, of={"staggered": (True,), "specialization": ("cooperative",)}),
    Row(
        {"occupancy": (1,)},
        of={"schedule_kind": ("persistent", "single_tile", "launch_control")},
        when=(lambda partial: not (grouped(partial) and decodes(partial)),),
    ),
    Row({"stages": (1,), "outstanding_mmas": (0,)}, of={"schedule_kind": ("single_tile",)}),
    # At most one wave of tiles, or of parts of tiles.
    Row({"order": ("row",)}, of=TILED_SWAP, when=(dense,)),
    Row(
        {"order": ("row",)},
        of=NO_SWAP,
        when=(few_tiles_of_long_k, lambda partial: "reduction" not in partial.kind),
    ),
    # If a spec says a part of the order, the rest is that of several waves.
    Row({"order": (ORDER,)}, when=(dense, orders_in_part)),
    # The kernel behind has its own first loads early.
    Row({"trigger": ("loads",)}, when=(states("early_operand"),)),
    # An MMA in flight needs a second stage.
    Row({"outstanding_mmas": (0,)}, of={"stages": (1,)}),
    # Sums are promoted after each K step.
    Row(
        {"cta_tile_k": lambda partial: (partial.stated["promote_k"],), "outstanding_mmas": (0,)},
        when=(states("promote_k"), lambda partial: not scaled(partial)),
    ),
)
"""Decisions that follow from others, whatever is tried for them."""
