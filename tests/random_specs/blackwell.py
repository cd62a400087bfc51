"""Random Blackwell specs, crowded around the borders of what is legal; a seed makes one spec."""

from __future__ import annotations

import random

from gemmgen.hardware import BLACKWELL, MMA_KINDS, SCALE_COLUMNS, SCALE_FORMATS, SCALE_ROWS, TCGEN05
from gemmgen.hardware.elements import DTYPES, FP8, TCGEN05_KINDS, DType
from random_specs.fields import HUGE, Field, Values, drop, random_text, reconcile_order

DTYPE_NAMES = ("bf16", "fp16", "tf32", "e4m3", "e5m2", "e2m1", "e2m1")
OPS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("relu",),
    ("silu",),
    ("gelu_tanh",),
    ("gelu_erf",),
    ("tensor_scale",),
    ("tensor_scale", "relu"),
    ("relu", "tensor_scale", "gelu_erf"),
    ("gelu_tanh", "silu", "tensor_scale", "gelu_erf", "relu"),
    ("residual",),
    ("row_scale", "column_scale"),
    ("column_bias", "gelu_tanh"),
    ("column_bias", "silu", "residual"),
    ("row_bias", "leaky_relu", "residual"),
    ("column_scale", "silu"),
    ("tensor_scale", "row_scale", "column_scale", "row_bias", "column_bias", "residual", "gelu_erf"),
)
SCALES = tuple(
    scale
    for found in SCALE_FORMATS.values()
    for scale in (
        {"format": found.name},
        {"format": found.name, "dtype": found.dtype, "vector": found.vector},
    )
)
WRONG_SCALES = tuple(
    {"format": found.name, **wrong}
    for found in SCALE_FORMATS.values()
    for wrong in (
        {"dtype": "e4m3" if found.dtype == "ue8m0" else "ue8m0"},
        {"vector": 16 if found.vector == 32 else 32},
        {"vector": 1},
        {"dtype": found.dtype, "vector": HUGE},
    )
)
SEARCHES: tuple[dict[str, tuple[object, ...]], ...] = (
    {},
    {},
    {},
    {"tile.n": (128, 256), "tile.k": (128, 256), "epilogue.subtile_n": (64, 128, 256)},
    {"cluster.m": (1, 2), "schedule.kind": ("launch_control", "persistent")},
    {"buffering.stages": (3, 4, 5), "buffering.accumulators": (1, 2)},
    {"schedule.minor": ("m", "n"), "schedule.width": (4, 8, 16), "buffering.epilogue": (1, 2)},
    {"tile.m": (64, 128), "operands.a.swizzle": (32, 64, 128), "buffering.stages": (2, 60)},
    {"warp_specialization.registers.worker": (24, 40), "tile.n": (8, 48, 64)},
)
WRONG_SEARCHES: tuple[dict[str, tuple[object, ...]], ...] = (
    {"mma.n": (64, 128)},
    {"tile.n": ("wide",)},
    {"schedule.kind": (1,)},
    {"schedule.kind": ("tiled", "single_tile")},
    {"operands.d.dtype": ("bf16",), "tile.m": (1, 48)},
    {"buffering.stages": (60, HUGE), "tile.k": (HUGE,)},
)

FIELDS = (
    Field("target", ("b200",), required=True),
    Field("operands.a.dtype", DTYPE_NAMES, ("int8",), required=True),
    Field("operands.a.major", ("k", "mn")),
    Field("operands.a.swizzle", (32, 64, 128, 128), (0, 1, 16, 256, HUGE)),
    Field("operands.a.scale", SCALES, WRONG_SCALES),
    Field("operands.a.packing", ("packed", "padded")),
    Field("operands.b.dtype", DTYPE_NAMES, ("int8",), required=True),
    Field("operands.b.major", ("k", "mn")),
    Field("operands.b.swizzle", (32, 64, 128, 128), (0, 1, 16, 256, HUGE)),
    Field("operands.b.scale", SCALES, WRONG_SCALES),
    Field("operands.b.packing", ("packed", "padded")),
    Field("operands.c.dtype", ("bf16", "fp16", "fp32")),
    Field("operands.d.dtype", ("bf16", "fp16", "fp32", "e4m3", "e5m2"), ("int32",), required=True),
    Field("accumulator", ("fp32",), ("fp16", "int32")),
    Field("tile.m", (64, 128, 128, 128), (1, 32, 96, 256, HUGE)),
    Field("tile.n", (8, 16, 32, 64, 128, 256, 256), (1, 4, 24, 96, 257, 512, HUGE)),
    Field("tile.k", (8, 16, 32, 64, 128, 128, 256, 256, 512), (1, 48, 1024, 2048, HUGE)),
    Field("mma.n", (), (64, 256)),
    Field("cluster.m", (1, 1, 2, 2, 4), (3, 8, 16, 200, HUGE)),
    Field("cluster.n", (1, 1, 1, 2, 4), (3, 8, HUGE)),
    Field("buffering.stages", (1, 2, 3, 4, 5, 6, 8, 12, 40), (60, 1000, HUGE)),
    Field("buffering.accumulators", (1, 1, 2, 2, 3, 4, 8, 64), (65, 512, HUGE)),
    Field("buffering.epilogue", (1, 1, 2, 2, 4, 8), (3, 6, 64, HUGE)),
    Field("warp_specialization.kind", (), ("none", "cooperative", "ping_pong")),
    Field(
        "warp_specialization.registers.worker",
        (24, 24, 24, 32, 40, 48, 56, 64, 128, 256),
        (1, 16, 23, 36, 264, HUGE),
    ),
    Field("schedule.kind", ("persistent", "launch_control"), ("single_tile", "tiled")),
    Field("schedule.order", ("row", "grouped", "snake", "hilbert")),
    Field("schedule.minor", ("m", "n")),
    Field("schedule.width", (1, 2, 3, 8, 16, 64, 100, 4096), (4097, HUGE)),
    Field("occupancy", (1,), (2, 32, HUGE)),
    Field("epilogue.alpha", (1.0, -1.0, 0.5, 1e-30), (0.0, 1e300)),
    Field("epilogue.beta", (1.0, -1.0, 2.0), (0.0,)),
    Field("epilogue.ops", OPS, (("relu", "relu"), ("silu", "row_bias", "row_bias"))),
    Field("epilogue.subtile_n", (4, 8, 8, 16, 32, 64, 128, 256), (1, 2, 24, 512, HUGE)),
    Field("search", SEARCHES, WRONG_SEARCHES),
    Field(
        "check.shapes",
        ([[128, 128, 128]], [[256, 512, 384], [16, 16, 128]], [[500, 600, 640]], [[512, 608, 704]]),
        ([[256, 512, 4]], [[8, 8, 12]], [[1, 8, 16]], [[500, 600, 700], [1, 1, 1]]),
    ),
    Field("bench.shapes", ([[8192, 8192, 8192]], [[64, 4096, 4096]], [[128, 128, 128]]), ([[64, 64, 1]],)),
)


def spec_text(seed: int) -> str:
    """Return the text of the spec of a seed."""
    steps = (
        _reconcile_types,
        _reconcile_cluster,
        reconcile_order,
        _reconcile_search,
        _reconcile_tile,
        _reconcile_epilogue,
        _reconcile_memory,
    )
    return random_text(seed, FIELDS, steps)


def _reconcile_types(values: Values, rng: random.Random) -> None:
    """Take operands that an instruction multiplies, and majors and shapes that can be read."""
    if "operands.a.scale" in values:
        _reconcile_scales(values, rng)
    else:
        drop(values, "operands.b.scale", "operands.a.packing", "operands.b.packing")
        if values["operands.a.dtype"] == "e2m1":
            values["operands.a.dtype"] = rng.choice(tuple(TCGEN05_KINDS))
        a = values["operands.a.dtype"]
        values["operands.b.dtype"] = rng.choice(FP8) if a in FP8 else a
    for name in "ab":
        if values[f"operands.{name}.dtype"] in ("tf32", "e2m1"):
            drop(values, f"operands.{name}.major")
    # Rows of 500 elements can be strided in some types only.
    majors = {values.get("operands.a.major", "k"), values.get("operands.b.major", "k")}
    if majors != {"k"} and values.get("check.shapes") == [[500, 600, 640]]:
        values["check.shapes"] = [[512, 608, 640]]


def _reconcile_scales(values: Values, rng: random.Random) -> None:
    """Take formats that one instruction multiplies, A's first, of elements that these have, as they lie."""
    first = values["operands.a.scale"]["format"]
    partners = [b for a, b in MMA_KINDS if a == first]
    if values.get("operands.b.scale", {}).get("format") not in partners:
        values["operands.b.scale"] = {"format": rng.choice(partners)}
    for name in "ab":
        elements = SCALE_FORMATS[values[f"operands.{name}.scale"]["format"]].elements
        if values[f"operands.{name}.dtype"] not in elements:
            values[f"operands.{name}.dtype"] = rng.choice(elements)
    packing = "packed" if values["operands.a.dtype"] == values["operands.b.dtype"] else "padded"
    for name in "ab":
        if values[f"operands.{name}.dtype"] != "e2m1":
            drop(values, f"operands.{name}.packing")
        elif f"operands.{name}.packing" in values:
            values[f"operands.{name}.packing"] = packing
    if packing == "padded" and values.get("check.shapes") == [[512, 608, 704]]:
        values["check.shapes"] = [[512, 608, 768]]


def _reconcile_cluster(values: Values, _: random.Random) -> None:
    """Keep to pairs along M, and one of them where there are scales; tiles of 64 rows have none."""
    m, n = values.get("cluster.m", 1), values.get("cluster.n", 1)
    if "operands.a.scale" in values:
        m, n = min(m, 2), 1
    if n > 1:
        m = max(m, 2)
    if m * n > 4:
        n = max(1, 4 // m)
    if "cluster.m" in values or n > 1:
        values["cluster.m"] = m
    if "cluster.n" in values:
        values["cluster.n"] = n
    if m > 1 and values.get("tile.m") == 64:
        values["tile.m"] = 128


def _reconcile_search(values: Values, rng: random.Random) -> None:
    """Search a field or state it, as some have to be."""
    required = {field.path for field in FIELDS if field.required}
    searched = dict(values.get("search", {}))
    for path in sorted(searched.keys() & values.keys()):
        if rng.random() < 0.5 and path not in required:
            drop(values, path)
        else:
            del searched[path]
    if searched:
        values["search"] = searched
    else:
        drop(values, "search")


def _bits(values: Values) -> tuple[int, int]:
    """Return the bits of an element of A and of B in shared memory."""
    a, b = (DTYPES[values[f"operands.{name}.dtype"]].bits for name in "ab")
    return (8, 8) if {a, b} == {4, 8} else (a, b)


def _scale_vectors(values: Values) -> list[int]:
    """Return the elements that share a scale, of the operands that have scales."""
    scales = [values.get(f"operands.{name}.scale") for name in "ab"]
    return [SCALE_FORMATS[scale["format"]].vector for scale in scales if scale]


def _reconcile_tile(values: Values, _: random.Random) -> None:
    """Let the tile be no smaller than an instruction and the swizzles, and fit a stage of it."""
    a_bits, b_bits = _bits(values)
    vectors, cluster_m = _scale_vectors(values), values.get("cluster.m", 1)
    m = max(values.get("tile.m", 128), 128 if vectors or cluster_m > 1 else 64)
    least_n = SCALE_ROWS if vectors else TCGEN05.n_min_pair if cluster_m > 1 else 16 if m > 64 else 8
    n = max(values.get("tile.n", 256), least_n)
    least_k = max(TCGEN05.k_bytes * 8 // min(a_bits, b_bits), *(SCALE_COLUMNS * of for of in vectors), 16)
    k = max(values.get("tile.k", 128), least_k)
    while k > least_k and (m * a_bits + n * b_bits) * k > 8 * 150_000:
        k //= 2
    for path, value in (("tile.m", m), ("tile.n", n), ("tile.k", k)):
        if path in values or path not in values.get("search", {}):
            values[path] = value
    b_columns = n // 2 if cluster_m > 1 else n
    rows = {
        "a": (k if values.get("operands.a.major", "k") == "k" else m) * a_bits // 8,
        "b": (k if values.get("operands.b.major", "k") == "k" else b_columns) * b_bits // 8,
    }
    for name, row_bytes in rows.items():
        padded = values[f"operands.{name}.dtype"] == "e2m1" and (a_bits, b_bits) == (8, 8)
        if padded or values.get(f"operands.{name}.swizzle", 0) > row_bytes:
            drop(values, f"operands.{name}.swizzle")


def _stored(values: Values) -> list[DType]:
    """Return the types of what lies in sub-tiles: D, and C."""
    return [DTYPES[values[path]] for path in ("operands.d.dtype", "operands.c.dtype") if path in values]


def _reconcile_epilogue(values: Values, _: random.Random) -> None:
    """Store sub-tiles that TMA can move, whole tiles where CTAs share columns, and have a C to add."""
    ops = values.get("epilogue.ops", ())
    if "operands.c.dtype" not in values and "residual" in ops:
        values["epilogue.ops"] = ops = tuple(op for op in ops if op != "residual")
    if "operands.c.dtype" not in values or "residual" in ops:
        drop(values, "epilogue.beta")
    n = values.get("tile.n", 256)
    if "epilogue.subtile_n" in values:
        narrowest = max(BLACKWELL.tma_alignment_bytes // dtype.bytes for dtype in _stored(values))
        subtile_n = max(narrowest, min(values["epilogue.subtile_n"], n))
        values["epilogue.subtile_n"] = n if values.get("cluster.n", 1) > 1 else subtile_n
    if "buffering.epilogue" in values:
        subtiles = n // values.get("epilogue.subtile_n", n)
        values["buffering.epilogue"] = max(1, min(values["buffering.epilogue"], subtiles))


def _reconcile_memory(values: Values, rng: random.Random) -> None:
    """Take stages and accumulators that about fit, and sometimes one more than do."""
    a_bits, b_bits = _bits(values)
    m, n, k = (values.get(f"tile.{axis}", default) for axis, default in (("m", 128), ("n", 256), ("k", 128)))
    element_bytes = sum(dtype.bytes for dtype in _stored(values))
    subtile_bytes = m * values.get("epilogue.subtile_n", 64) * element_bytes
    b_columns = n // 2 if values.get("cluster.m", 1) > 1 else n
    scales = sum(rows * k // of for rows, of in zip((m, n), _scale_vectors(values), strict=False))
    stage_bytes = (m * a_bits + b_columns * b_bits) * k // 8 + scales
    room = BLACKWELL.smem_bytes_per_cta - 1_000 - subtile_bytes * values.get("buffering.epilogue", 1)
    columns = TCGEN05.tmem_columns - scales // TCGEN05.scale_bytes_per_column
    for path, most in (
        ("buffering.stages", max(0, room) // max(1, stage_bytes)),
        ("buffering.accumulators", max(0, columns) // max(1, n)),
    ):
        if path in values:
            one_more = rng.random() < 0.2
            values[path] = max(1, min(values[path], most) + one_more)


BORDER = (("worker_registers", -8), ("accumulators", 1), ("stages", 1))
"""Towards the fewest registers, the most columns of tensor memory, and then the most stages."""
