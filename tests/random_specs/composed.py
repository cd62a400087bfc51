"""Random Hopper specs of composed tiles, and of three consumers."""

from __future__ import annotations

import random

from gemmgen.hardware.elements import DTYPES
from random_specs import hopper
from random_specs.fields import HUGE, Field, Values, drop, random_text

WIDTHS = (
    24,
    40,
    48,
    80,
    96,
    96,
    112,
    136,
    144,
    160,
    160,
    176,
    192,
    192,
    192,
    208,
    224,
    272,
    288,
    320,
    320,
    384,
)
CHANGED = {
    field.path: field
    for field in (
        Field("target", ("h100", "h200"), required=True),
        Field("operands.a.source", ("shared", "registers", "registers")),
        Field("tile.m", (64, 128, 128, 192, 192, 256), (48, 96, 160, HUGE), required=True),
        Field("tile.n", WIDTHS, (20, 120, 257, 480, HUGE), required=True),
        Field("tile.k", (16, 32, 64, 64, 64, 128, 256), (8, 48, HUGE)),
        Field("mma.n", (16, 32, 64, 128, 256), (4, 24, 96, HUGE)),
        Field("warps.n", (1,), (2, 3)),
        Field("cluster.m", (1, 1, 2, 4), (3, 8)),
        Field("cluster.n", (1,), (2, 4)),
        Field("buffering.stages", (1, 2, 3, 4, 5, 6, 7, 8), (60, HUGE)),
        Field("buffering.epilogue", (1, 1, 2, 3, 5, 7, 9), (4, 64, HUGE)),
        Field(
            "warp_specialization.kind",
            ("cooperative", "cooperative", "cooperative", "ping_pong"),
            ("none",),
            required=True,
        ),
        Field("warp_specialization.consumers", (1, 2, 2, 3, 3, 4), (5, 8, HUGE)),
        Field("warp_specialization.registers.producer", (24, 32, 40, 40, 56), (1, 23, 36, 264, HUGE)),
        Field("schedule.kind", ("persistent",), ("tiled", "single_tile"), required=True),
        Field("epilogue.subtile_n", (8, 16, 16, 32, 64), (4, 24, 512, HUGE)),
        Field("bench.shapes", ([[512, 6144, 4096]], [[2048, 2112, 7168]], [[300, 776, 1032]]), ()),
    )
}
FIELDS = (
    *(CHANGED.get(field.path, field) for field in hopper.FIELDS),
    Field("dependent_launch", ({"early": "a"}, {"early": "b"}, {"early": "b", "trigger": "end"})),
)


def spec_text(seed: int) -> str:
    """Return the text of the spec of a seed."""
    return random_text(
        seed, FIELDS, (_reconcile_types, hopper.reconcile_roles, _reconcile_tile, _reconcile_epilogue)
    )


def _reconcile_types(values: Values, rng: random.Random) -> None:
    """Take types that an instruction has, with an A in shared memory."""
    hopper.reconcile_types(values, rng)
    if DTYPES[values["operands.a.dtype"]].bits != 16 and values.get("operands.a.source") != "registers":
        drop(values, "operands.a.major")


def _lowest(columns: int) -> int:
    """Return the narrowest part of so many columns."""
    return columns & -columns


def _reconcile_tile(values: Values, rng: random.Random) -> None:
    """Let consumers have rows that they can share, and a tile that registers and memory hold."""
    a = DTYPES[values["operands.a.dtype"]]
    cooperative = values["warp_specialization.kind"] == "cooperative"
    if cooperative:
        consumers = 3 if values["tile.m"] % 192 == 0 else rng.choice((1, 2, 2))
        values["warp_specialization.consumers"] = consumers
    else:
        consumers = 1
        values["tile.m"] = min(values["tile.m"], 128)
        if values["tile.m"] == 192:
            values["tile.m"] = 128
    warps_m = values["warps.m"] = 8 if consumers == 1 and values["tile.m"] >= 128 else 4
    values["tile.m"] = max(values["tile.m"], 16 * warps_m * consumers)
    m = values["tile.m"]
    promoted = "mma.promote_k" in values
    registers = values.get("operands.a.source") == "registers"
    room = (96 if consumers == 3 else 128 if registers else 176) // (2 if promoted else 1)
    if registers:
        drop(values, "buffering.outstanding_mmas")
        values["tile.k"] = min(values.get("tile.k", 64), 128 // a.bytes)
        values["buffering.stages"] = max(2, values.get("buffering.stages", 2))
    sums = m * values["tile.n"] // (32 * warps_m * consumers)
    if sums > room:
        fitting = [width for width in WIDTHS if m * width // (32 * warps_m * consumers) <= room]
        values["tile.n"] = rng.choice(fitting or [24])
    n = values["tile.n"]
    if "mma.n" in values:
        values["mma.n"] = min(values["mma.n"], 1 << (n.bit_length() - 1), 128 if a.name == "int8" else 256)
    k = max(values.get("tile.k", 64), 32 // a.bytes)
    stage_bytes = (m + n) * a.bytes
    while k * a.bytes > 32 and stage_bytes * k > 100_000:
        k //= 2
    values["tile.k"] = k
    if promoted:
        values["mma.promote_k"] = k
        drop(values, "buffering.outstanding_mmas")
    if values.get("operands.b.major") == "mn" and _lowest(n) * a.bytes < 32:
        drop(values, "operands.b.major")
    drop(values, "operands.a.swizzle", "operands.b.swizzle")
    if "buffering.stages" in values:
        most = max(1, 200_000 // max(1, stage_bytes * k))
        least = 1 + values.get("buffering.outstanding_mmas", 0)
        values["buffering.stages"] = max(min(values["buffering.stages"], most), least)
    drop(values, "occupancy", "warp_specialization.registers.consumer")


def _reconcile_epilogue(values: Values, rng: random.Random) -> None:
    """Store the tile in sub-tiles of its narrowest part, through a number of buffers that divides them."""
    hopper.reconcile_epilogue(values, rng)
    n = values["tile.n"]
    bits = DTYPES[values["operands.d.dtype"]].bits
    if bits == 8 and _lowest(n) < 16:
        values["tile.n"] = n = n + 8
    subtile_n = min(values.get("epilogue.subtile_n", 64), _lowest(n))
    values["epilogue.subtile_n"] = max(subtile_n, 16) if bits == 8 else subtile_n
    if n % values["epilogue.subtile_n"] == 0 and "buffering.epilogue" in values:
        subtiles = n // values["epilogue.subtile_n"]
        values["buffering.epilogue"] = rng.choice([i for i in range(1, 10) if subtiles % i == 0])
