"""Random specs of the Hopper family, crowded around the borders of what is legal; a seed makes one spec."""

from __future__ import annotations

import random

from gemmgen.hardware.elements import DTYPES, FP8, WGMMA_ACCUMULATORS, outputs_of
from random_specs.fields import HUGE, Field, Values, drop, random_text, reconcile_order

OPS: tuple[tuple[str, ...], ...] = (
    (),
    ("relu",),
    ("silu",),
    ("gelu_tanh",),
    ("gelu_erf",),
    ("tensor_scale",),
    ("column_bias",),
    ("row_bias", "gelu_erf"),
    ("residual", "relu"),
    ("row_scale", "column_scale", "column_bias", "silu"),
    ("tensor_scale", "row_scale", "column_scale", "row_bias", "column_bias", "residual", "gelu_tanh"),
    ("tensor_scale", "gelu_erf", "residual", "column_scale", "silu", "relu", "row_bias", "gelu_tanh"),
)


FIELDS = (
    Field("target", ("h100", "h200"), ("b200",), required=True),
    Field("operands.a.dtype", ("bf16", "fp16", "tf32", "e4m3", "e5m2", "int8"), required=True),
    Field("operands.a.major", ("k", "mn")),
    Field("operands.a.swizzle", (32, 64, 128, 128), (1, 16, 256, HUGE)),
    Field("operands.a.source", ("shared", "shared", "registers")),
    Field("operands.b.dtype", ("bf16", "fp16", "tf32", "e4m3", "e5m2", "int8"), required=True),
    Field("operands.b.major", ("k", "mn")),
    Field("operands.b.swizzle", (32, 64, 128, 128), (1, 16, 256, HUGE)),
    Field("operands.c.dtype", ("bf16", "fp16", "fp32")),
    Field("operands.d.dtype", ("bf16", "fp16", "fp32", "e4m3", "e5m2", "int32"), required=True),
    Field("accumulator", ("fp32", "fp32", "fp16", "int32")),
    Field("tile.m", (64, 128, 128, 128, 256, 512, 1024, 2048), (1, 48, 96, 160, 4096, HUGE)),
    Field("tile.n", (8, 16, 32, 64, 128, 256, 256), (1, 4, 20, 120, 257, 512, HUGE)),
    Field("tile.k", (16, 32, 64, 64, 128, 256, 512), (1, 8, 48, 1024, HUGE)),
    Field("mma.n", (8, 16, 32, 64, 128, 128, 256), (1, 4, 24, 96, 192, 512, HUGE)),
    Field("mma.promote_k", (32, 64, 128, 256), (1, 48, HUGE)),
    Field("warps.m", (4, 8), (1, 2, 3, 12, 16, HUGE)),
    Field("warps.n", (1, 1, 2), (3, 4, HUGE)),
    Field("cluster.m", (1, 1, 2, 4), (3, 8, 200, HUGE)),
    Field("cluster.n", (1, 1, 2, 4), (3, 8, HUGE)),
    Field("buffering.stages", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), (60, HUGE)),
    Field("buffering.outstanding_mmas", (0, 1)),
    Field("buffering.epilogue", (1, 1, 2, 4, 8), (3, 6, 64, HUGE)),
    Field("warp_specialization.kind", ("none", "cooperative", "cooperative", "ping_pong"), required=True),
    Field("warp_specialization.consumers", (1, 2, 2, 4), (9, 5, 6, 7, 8, 16, HUGE)),
    Field("warp_specialization.registers.producer", (24, 24, 32, 40, 64, 128, 256), (1, 23, 36, 264, HUGE)),
    Field(
        "warp_specialization.registers.consumer",
        (32, 48, 64, 96, 104, 112, 160, 168, 208, 232, 240),
        (1, 24, 100, 248, 256, HUGE),
    ),
    Field("schedule.kind", ("single_tile", "tiled", "persistent", "persistent"), required=True),
    Field("schedule.order", ("row", "grouped", "snake", "hilbert")),
    Field("schedule.minor", ("m", "n")),
    Field("schedule.width", (1, 2, 3, 8, 16, 64, 100, 4096), (4097, HUGE)),
    Field("occupancy", (1, 1, 2, 3), (4, 32, HUGE)),
    Field("epilogue.alpha", (1.0, -1.0, 0.5), (0.0,)),
    Field("epilogue.beta", (1.0, -1.0, 2.0), (0.0,)),
    Field("epilogue.ops", OPS, (("relu", "relu"), ("silu", "row_bias", "row_bias"))),
    Field("epilogue.subtile_n", (8, 16, 32, 64, 128, 256), (1, 4, 24, 512, HUGE)),
    Field(
        "check.shapes", ([[32, 64, 16]], [[256, 512, 384]], [[1, 16, 16]]), ([[256, 512, 4]], [[8, 8, 12]])
    ),
    Field("bench.shapes", ([[8192, 8192, 8192]], [[64, 4096, 4096]], [[1, 8, 16]]), ([[64, 64, 1]],)),
)


def spec_text(seed: int) -> str:
    """Return the text of the spec of a seed."""
    return random_text(seed, FIELDS, (reconcile_types, reconcile_roles, _reconcile_tile, reconcile_epilogue))


def reconcile_types(values: Values, rng: random.Random) -> None:
    """Take types that an instruction has, in majors that it reads, and a D that can hold them."""
    a = values["operands.a.dtype"]
    values["operands.b.dtype"] = rng.choice(FP8) if a in FP8 else a
    if values.get("accumulator") not in WGMMA_ACCUMULATORS[a]:
        values.pop("accumulator", None)
    accumulator = values.get("accumulator", WGMMA_ACCUMULATORS[a][0])
    if values["operands.d.dtype"] not in outputs_of(accumulator):
        values["operands.d.dtype"] = rng.choice(outputs_of(accumulator))
    if values["operands.d.dtype"] == "int32":
        drop(values, "operands.c.dtype", "epilogue.alpha", "epilogue.beta", "epilogue.ops")
    if values.get("operands.a.source") == "registers":
        values.pop("buffering.outstanding_mmas", None)
    if DTYPES[a].bits != 16:
        values.pop("operands.b.major", None)
        if values.get("operands.a.major") == "mn":
            values.pop("operands.a.source", None)
    if a not in FP8 or accumulator != "fp32":
        values.pop("mma.promote_k", None)


def reconcile_roles(values: Values, rng: random.Random) -> None:
    """Keep what the kernel's kind has: roles in a persistent schedule, clusters and consumers with roles."""
    kind, schedule = values["warp_specialization.kind"], values["schedule.kind"]
    if schedule != "persistent":
        values["warp_specialization.kind"] = kind = "none"
    unknown = ["mma.promote_k"] if schedule == "single_tile" else []
    if kind == "none":
        unknown += ["cluster.m", "cluster.n", "warp_specialization.consumers"]
    if kind != "cooperative" or values.get("warp_specialization.consumers", 2) == 1:
        unknown.append("warp_specialization.registers.consumer")
    if kind == "none":
        unknown.append("warp_specialization.registers.producer")
    if kind == "ping_pong":
        unknown.append("warp_specialization.consumers")
    if schedule == "single_tile":
        unknown += ["buffering.stages", "buffering.outstanding_mmas", "check.shapes", "bench.shapes"]
    drop(values, *unknown)
    if values.get("cluster.m", 1) * values.get("cluster.n", 1) > 4:
        values["cluster.n"] = max(1, 4 // values.get("cluster.m", 1))
    if values.get("cluster.m", 1) * values.get("cluster.n", 1) > 1:
        values.pop("occupancy", None)
    reconcile_order(values, rng)


def _reconcile_tile(values: Values, _: random.Random) -> None:
    """Shrink the tile to the registers of its warps, and what is part of it to the tile."""
    a = DTYPES[values["operands.a.dtype"]]
    kind = values["warp_specialization.kind"]
    shares = values.get("warp_specialization.consumers", 2) if kind == "cooperative" else 1
    if values.get("warps.m") == 8:
        values.pop("warps.n", None)
    warps_m, warps_n = values.get("warps.m", 4), values.get("warps.n", 1)
    m = min(max(values.get("tile.m", 128), 16 * warps_m * shares), HUGE)
    promoted = "mma.promote_k" in values
    room = 64 if promoted or values.get("occupancy", 1) > 1 or shares == 4 else 128
    widest = max(8 * warps_n, room * 32 * warps_m * warps_n * shares // m)
    n = min(max(min(values.get("tile.n", 256), widest), 8 * warps_n), HUGE)
    k = max(values.get("tile.k", 64), 32 // a.bytes)
    stage_bytes = (m + n) * a.bytes
    while k * a.bytes > 32 and stage_bytes * k > 100_000:
        k //= 2
    values |= {"tile.m": m, "tile.n": n, "tile.k": k}
    if promoted:
        values["mma.promote_k"] = k
        values.pop("buffering.outstanding_mmas", None)
    if "mma.n" in values:
        values["mma.n"] = min(values["mma.n"], n // warps_n, 128 if a.name == "int8" else 256)
    rows = {
        "a": k if values.get("operands.a.major", "k") == "k" else m // shares,
        "b": k if values.get("operands.b.major", "k") == "k" else n,
    }
    for operand, row in rows.items():
        if values.get(f"operands.{operand}.swizzle", 0) > row * a.bytes:
            values.pop(f"operands.{operand}.swizzle")
    if "buffering.stages" in values:
        most = max(1, 220_000 // max(1, stage_bytes * k))
        least = max(1 + values.get("buffering.outstanding_mmas", 0), 2 if kind == "none" else 1)
        values["buffering.stages"] = max(min(values["buffering.stages"], most), least)


def reconcile_epilogue(values: Values, _: random.Random) -> None:
    """Let the epilogue compute with what there is, in parts that a thread holds and TMA moves."""
    ops = values.get("epilogue.ops", ())
    if "operands.c.dtype" not in values and "residual" in ops:
        values["epilogue.ops"] = ops = tuple(op for op in ops if op != "residual")
    if "operands.c.dtype" not in values or "residual" in ops:
        values.pop("epilogue.beta", None)
    whole = values.get("cluster.n", 1) > 1 or values.get("warps.n", 1) > 1
    n = values.get("tile.n", 256)
    subtile_n = n if whole else min(values.get("epilogue.subtile_n", n), n)
    if DTYPES[values["operands.d.dtype"]].bits == 8 and n >= 16:
        subtile_n = max(subtile_n, 16)
    values["epilogue.subtile_n"] = subtile_n
    if "buffering.epilogue" in values:
        values["buffering.epilogue"] = max(1, min(values["buffering.epilogue"], n // subtile_n))


BORDER = (("producer_registers", -8), ("consumer_registers", -8), ("stages", 1))
"""Towards the fewest registers, and then the most stages, that the rules allow a plan."""
