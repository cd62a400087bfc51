"""Random Hopper specs of what is for few rows of A: exchanged operands, divided K, early starts."""

from __future__ import annotations

import random

from gemmgen.hardware.elements import DTYPES
from random_specs import hopper
from random_specs.fields import HUGE, Field, Values, drop, random_text

CHANGED = {
    field.path: field
    for field in (
        Field("target", ("h100", "h200"), required=True),
        Field("operands.a.source", ("shared", "shared", "shared", "registers")),
        Field("tile.m", (8, 8, 16, 16, 32, 64, 128, 256), (1, 4, 24, 512, 4096, HUGE)),
        Field("tile.n", (64, 64, 128, 128, 256, 512), (1, 8, 96, 4096, HUGE)),
        Field("tile.k", (16, 32, 64, 128, 128, 256, 256, 512), (1, 8, 48, 1024, HUGE)),
        Field("warps.m", (1, 1, 2, 4, 8), (3, 12, HUGE)),
        Field("warps.n", (1, 2, 4, 4, 8), (3, 12, HUGE)),
        Field("cluster.m", (1, 1, 1, 2), (3, 8, HUGE)),
        Field("cluster.n", (1, 1, 2, 4), (3, 8, HUGE)),
        Field("buffering.stages", (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24), (200, HUGE)),
        Field(
            "warp_specialization.kind",
            (*["none"] * 7, "ping_pong", "ping_pong", "cooperative"),
            required=True,
        ),
        Field("warp_specialization.consumers", (1, 1, 2), (3, 5, 8, HUGE)),
        Field(
            "schedule.kind",
            (*["tiled"] * 10, "persistent", "persistent", "single_tile"),
            required=True,
        ),
        Field(
            "check.shapes", ([[8, 64, 64]], [[13, 416, 3088]], [[1, 16, 16]]), ([[256, 512, 4]], [[8, 8, 12]])
        ),
        Field(
            "bench.shapes",
            ([[1, 4096, 4096]], [[16, 2112, 7168]], [[64, 28672, 4096]]),
            ([[16, 2112, 7170]],),
        ),
    )
}
FIELDS = (
    *(CHANGED.get(field.path, field) for field in hopper.FIELDS),
    Field("mma.rows", ("n", "n", "n", "m"), required=True),
    Field(
        "schedule.splits", (1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 64), (65, HUGE), required=True
    ),
    Field(
        "dependent_launch",
        (
            *({"early": early} for early in "ab"),
            *({"early": early, "trigger": trigger} for early in "ab" for trigger in ("loads", "end")),
        ),
    ),
    Field("schedule.reduction", ("ordered", "ordered", "atomic")),
)


def spec_text(seed: int) -> str:
    """Return the text of the spec of a seed."""
    return random_text(
        seed,
        FIELDS,
        (
            hopper.reconcile_types,
            _reconcile_kinds,
            hopper.reconcile_roles,
            _reconcile_tile,
            hopper.reconcile_epilogue,
            _reconcile_reduction,
            _ask_for_same_bits,
        ),
    )


def _reconcile_kinds(values: Values, rng: random.Random) -> None:
    """Keep what is for programs of one tile to those, and operands to exchange in shared memory."""
    kind = values["warp_specialization.kind"]
    if kind != "none":
        values["schedule.kind"] = "persistent"
    if values["schedule.kind"] != "tiled" and kind != "cooperative":
        drop(values, "schedule.splits")
    if values["schedule.kind"] != "tiled":
        drop(values, "dependent_launch")
    elif values.get("schedule.splits", 1) > 1 or "dependent_launch" in values:
        values["buffering.stages"] = max(values.get("buffering.stages", 2), 2)
    if values["mma.rows"] == "n":
        drop(values, "operands.a.source")
        if DTYPES[values["operands.a.dtype"]].bits != 16:
            drop(values, "operands.a.major")
        if kind == "cooperative":
            values["warp_specialization.consumers"] = 1
        # Most kernels of few rows are pinned only in part: the planner's choices are drawn too.
        if kind == "none" and rng.random() < 0.2:
            drop(values, "buffering.stages", "buffering.outstanding_mmas", "mma.n", "occupancy")
            if values["schedule.kind"] == "tiled":
                drop(values, "schedule.splits")


def _reconcile_reduction(values: Values, rng: random.Random) -> None:
    """Say how sums are added up where there are several."""
    if values.get("schedule.splits", 1) == 1 and rng.random() < 0.7:
        drop(values, "schedule.reduction")


def _ask_for_same_bits(values: Values, rng: random.Random) -> None:
    """Ask in some for the same bits in every run, or in every batch, whatever adds up the sums."""
    asked = rng.random()
    if asked < 0.3:
        values["deterministic" if asked < 0.2 else "batch_invariant"] = True


def _reconcile_tile(values: Values, _: random.Random) -> None:
    """Shrink the tile to the registers of its warps, and what is part of it to the tile."""
    a = DTYPES[values["operands.a.dtype"]]
    exchanged = values["mma.rows"] == "n"
    kind = values["warp_specialization.kind"]
    shares = values.get("warp_specialization.consumers", 2) if kind == "cooperative" else 1
    (down_name, along_name) = ("warps.n", "warps.m") if exchanged else ("warps.m", "warps.n")
    if values.get(down_name) not in (4, 8):
        values[down_name] = 8 if values.get(down_name) == 2 else 4
    down = values[down_name]
    along = values[along_name] = 1 if down == 8 else min(2, values.get(along_name, 1))
    promoted = "mma.promote_k" in values
    tight = promoted or values.get("occupancy", 1) > 1 or "epilogue.ops" in values
    room = 64 if tight else 128
    (rows_name, columns_name) = ("tile.n", "tile.m") if exchanged else ("tile.m", "tile.n")
    rows = max(values.get(rows_name, 128), 16 * down * shares)
    widest = max(8 * along, room * 32 * down * along * shares // rows)
    columns = max(min(values.get(columns_name, 16), widest, 256), 8 * along)
    k = max(values.get("tile.k", 64), 32 // a.bytes)
    stage_bytes = (rows + columns) * a.bytes
    most_bytes = 100_000 // values.get("occupancy", 1)
    while k * a.bytes > 32 and stage_bytes * k > most_bytes:
        k //= 2
    values |= {rows_name: rows, columns_name: columns, "tile.k": k}
    m, n = values["tile.m"], values["tile.n"]
    if promoted:
        values["mma.promote_k"] = k
        values.pop("buffering.outstanding_mmas", None)
    if "mma.n" in values:
        values["mma.n"] = min(values["mma.n"], columns // along, 128 if a.name == "int8" else 256)
    stored = {
        "a": k if values.get("operands.a.major", "k") == "k" else m // shares,
        "b": k if values.get("operands.b.major", "k") == "k" else n,
    }
    for operand, row in stored.items():
        if row * a.bytes < 32:
            drop(values, f"operands.{operand}.major")
        if values.get(f"operands.{operand}.swizzle", 0) > row * a.bytes:
            drop(values, f"operands.{operand}.swizzle")
    if "buffering.stages" in values:
        most = max(1, 200_000 // values.get("occupancy", 1) // max(1, stage_bytes * k))
        least = max(1 + values.get("buffering.outstanding_mmas", 0), 2 if kind == "none" else 1)
        values["buffering.stages"] = max(min(values["buffering.stages"], most), least)
