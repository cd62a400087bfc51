"""Values that are tried for decisions of Hopper kernels, and defaults of others, each with its record."""

from __future__ import annotations

from gemmgen.plan.search import Choices, Values

KINDS = ("cooperative", "ping_pong")
"""Specializations that are tried for a persistent schedule; other schedules have none."""

TILES_N = (256, 128, 64, 32)
"""Columns of tiles of one part."""

STEP_BYTES = (128, 256, 512, 64)
"""Rows of the operands' tiles along K: 128 fill the widest swizzle."""

SWAP_AB_STEP_BYTES = (256, 512)
"""Bytes of rows of a K step with swap-AB: with few columns, shorter steps are soon multiplied."""

SWAP_AB_STEP_BLOCKS = (2, 1, 4)
"""Blocks of K in a step with swap-AB, if sums have scales: two were the fastest for most of few rows. On an
H100, a step of one, two and four blocks takes 0.25, 0.42 and 0.73 us
(``7a8a2c58:benchmarks/blockscale/h100_prototype.jsonl``: 8 x 2112 x 7168).
"""

CHOICES: Choices = {
    "cta_tile_m": (128, 256, 64),
    "cta_tile_n": TILES_N,
    "cluster_m": (1, 2),
    "cluster_n": (1,),
    "consumers": (2, 1),
    "outstanding_mmas": (0, 1),
}
"""Values that are tried for open decisions; of equal costs the earlier value wins."""

TILED_CHOICES: Choices = {"warps_m": (8, 4), "occupancy": (1, 2, 3)}
"""Further values in a tiled schedule, in which one CTA can multiply while others on its SM load, start or
store.
"""

WAVE_TILE = 128 * 256
"""Sums of the largest tile that may cover a problem in one wave: then kernels without roles are tried
beside kernels with roles. They start sooner, and one tile leaves roles little to overlap.
"""

WAVE_CHOICES: Choices = {**TILED_CHOICES, "outstanding_mmas": (1,)}
"""Values that are tried for kernels without roles."""

WAVE_TILE_M, WAVE_COLUMNS = 64, (96, 192)
"""Rows and columns of composed tiles that are tried for them: these take 2 to 4 % less time than with roles.
64 x 80, 64 x 160, 64 x 224, 128 x 192 and 128 x 224 take 5 to 46 % more, which the cost does not know
(``benchmarks/fit/h200_composed_waves.json``).
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

THIRDS_TILE_M = 192
"""Rows of a tile that three consumers share, 64 each."""

THIRDS_PRODUCER_REGISTERS = 32
"""Registers of a producer thread beside three consumers of 160, who hold 128 sums each."""

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
"""Decisions that a staggered tile requires."""

STAGGERED_TILES_N = (224, 160, 192, 96)
"""Columns of tiles that are tried where a spec wants staggered ones, beside those that fit its shapes."""

STAGGERED_TILE_M = 128
"""Rows of those that are tried. Of 8 bits they took up to 9 % less time than equal columns with A from either
place, but 192 columns 2 % more; of 16 bits up to 8 % less, but 96, 160 and 192 columns 1 to 2 % more
(``benchmarks/fit/h200_staggered_e4m3.json``, ``h200_staggered.json``).
"""

NARROWEST_BESIDE_REGISTERS = 144
"""Columns of a composed tile of two consumers from which on an A of 16 bits passes through registers."""

LONGEST_K = 16_384
"""K from which on programs divide it so often that a second kernel may add up their sums; shorter ones were
not measured.
"""

PARALLEL_CHOICES: Choices = {"splits": (4, 7, 8, 15, 16, 30, 32, 64), "cta_tile_n": (64, 128, 256)}
"""Values that are tried with a second kernel: they fill the places of the GPU, in clusters of two and four
too.
"""

SWAP_AB_CHOICES: Choices = {"cta_tile_n": (64, 128)}
"""Values that are tried with swap-AB; the tile's rows follow from the rows of A."""

SWAP_AB_TILED_CHOICES: Choices = {
    "warps_n": (4,),
    "outstanding_mmas": (1,),
    "occupancy": (1, 2, 3),
    "splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
}
"""Further values with swap-AB in a tiled schedule."""

LONG_K_CHOICES: Choices = {
    "cta_tile_m": (64, 128),
    "cta_tile_n": (64, 128),
    "cluster_n": (1, 2),
    "splits": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 30, 32),
}
"""Further values for a long K and few tiles, if consumers share a tile."""

STORES: Choices = {"subtile_n": (128, 64, 32, 256), "epilogue_buffers": (1, 2)}
"""Ways to store D that are tried: they take shared memory from the ring, and no time that the cost knows."""

MOST_SUBTILES = 64
"""Most sub-tiles of a composed tile for which a number of buffers is looked for: no legal tile has more."""

DEEPEST_RING = 8
"""Stages beyond which a ring hides nothing more."""

PARALLEL_RING_BYTES = 200 * 1024
"""Bytes of the ring beyond which it hides nothing more if a second kernel adds up sums: at 512 x 512 x 16384
the main loop of 128 x 128 x 64 alone takes 17.0 us with seven stages and 15.7 with six
(``benchmarks/fit/h200_parallel.json``); no reason was found.
"""

DEEPEST_SWAP_AB_RING = 12
"""Stages beyond which a ring hides nothing more with swap-AB, whose stages are small."""

PRODUCER_REGISTERS = 40
"""Registers of a producer thread if consumers take the rest; no record isolates it."""

OTHER_PRODUCER_REGISTERS = (24, 56, 72)
"""Other registers of a producer thread, tried if a role spills, besides an equal share for all."""

DEFAULTS: Values = {
    "schedule_kind": "persistent",
    "staggered": False,
    "promote_k": 0,
    "splits": 1,
    "reduction": "ordered",
    "early_operand": "none",
    "trigger": "end",
}
"""Decisions that no rule couples to another one, with values that ran well; no record isolates them."""


SWAP_AB_DEFAULTS: Values = {"schedule_kind": "tiled", "order": "row", "minor": "n", "width": 1}
"""Defaults with swap-AB: at most one wave of tiles, in one row, without roles."""

ORDER_DEFAULTS: Values = {"order": "snake", "minor": "m", "width": 16}
"""Defaults of the order of tiles, for several waves or if a spec states a part of it."""

LONG_K_DEFAULTS: Values = {"order": "row", "minor": "n", "width": 1}
"""Defaults of the order for a long K and few tiles: there is at most one wave of parts."""

PING_PONG_WIDTH = 8
"""The width that ran best with ping-pong, whose consumers have neighbouring tiles."""
