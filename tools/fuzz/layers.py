"""The values of random specs of layers: groups, gates, expressions, block scales, saved sums and open fields.

They are written from the pages of the spec, and not from the rules: values stand together that no kernel has.
"""

from __future__ import annotations

from tools.fuzz.values import Kinds, Stated

TYPES = ("bf16", "bf16", "bf16", "fp16", "tf32", "e4m3", "e5m2", "int8")
OUTPUTS = ("bf16", "bf16", "bf16", "fp16", "fp32", "e4m3", "e5m2", "int32")
COUNTS = (1, 2, 3, 5, 8, 32, 128, 512)
EXPRESSIONS = (
    "acc",
    "silu(acc)",
    "acc * row_scale",
    "acc * row_scale * column_scale",
    "silu(acc * row_scale - 0.5 * column_bias)",
    "2 * silu(acc * row_scale - 0.5 * column_bias) * c + 1",
    "gelu_tanh(acc + column_bias) * tensor_scale",
    "clamp(acc, min=-2, max=6)",
    "quick_gelu(acc + row_bias, alpha=1.5)",
    "relu(acc) * c",
    "acc * c + c",
    "acc + acc",
    "-acc * column_bias",
    "silu(acc) * acc",
    "0.5 * acc + 2 * c",
)
GATED = (
    "silu(gate) * up",
    "silu(gate) * up",
    "gelu_tanh(gate) * up",
    "silu(gate) * up * row_scale",
    "silu(gate + column_bias) * (up + column_bias)",
    "silu(gate * row_scale * column_scale) * (up * row_scale * column_scale)",
    "quick_gelu(clamp_max(gate + column_bias, max=7)) * (clamp(up + column_bias, min=-7, max=7) + 1)",
    "silu(gate) * up + c",
    "silu(gate) + up",
    "gate * up",
)
BACKWARDS = (
    ["acc * up * silu_grad(gate)", "acc * silu(gate)"],
    ["acc * row_scale * up * silu_grad(gate)", "acc * row_scale * silu(gate)"],
    ["acc * up * gelu_tanh_grad(gate)", "acc * gelu_tanh(gate)"],
    ["acc * up * relu_grad(gate)", "acc * relu(gate)"],
    ["acc * gate", "acc * up"],
    ["acc * up", "acc"],
)
FORMATS = ("fp32_1x128", "fp32_128x128", "ue8m0_1x128", "ue8m0_128x128", "ue8m0_1x32", "mxfp8", "nvfp4")


def scales(*formats: str) -> tuple[object, ...]:
    """Return scales of these formats."""
    return tuple({"format": each} for each in formats)


def problems(m: tuple[object, ...], n: tuple[object, ...], k: tuple[object, ...]) -> tuple[object, ...]:
    """Return problems of these extents, as a spec states them."""
    return tuple({"m": rows, "n": columns, "k": depth} for rows in m for columns in n for depth in k)


LAYERS: Stated = {
    "target": ("h100", "h200"),
    "operands.a.dtype": TYPES,
    "operands.b.dtype": TYPES,
    "operands.c.dtype": ("bf16", "fp16", "fp32"),
    "operands.d.dtype": OUTPUTS,
    "operands.a.major": ("k", "k", "k", "mn"),
    "operands.b.major": ("k", "k", "k", "mn"),
    "operands.a.source": ("shared", "registers"),
    "operands.misaligned": ("refuse", "copy"),
    "accumulator": ("fp32", "fp32", "fp16"),
    "tile.m": (8, 16, 32, 64, 128, 128, 192, 256),
    "tile.n": (16, 32, 64, 128, 128, 160, 192, 256),
    "tile.k": (32, 64, 64, 128, 256),
    "mma.swap_ab": (True, False),
    "mma.promote_k": (64, 128),
    "cluster.m": (1, 1, 2),
    "cluster.n": (1, 1, 2),
    "buffering.stages": (2, 3, 4, 6, 8),
    "buffering.outstanding_mmas": (0, 1),
    "buffering.epilogue": (1, 2),
    "warp_specialization.kind": ("none", "cooperative", "cooperative", "ping_pong"),
    "warp_specialization.consumers": (1, 2, 2, 3),
    "schedule.kind": ("tiled", "persistent"),
    "schedule.order": ("row", "grouped", "snake"),
    "schedule.splits": (2, 4, 8),
    "schedule.reduction": ("ordered", "atomic", "parallel"),
    "dependent_launch": ({"early": "b"}, {"early": "a"}, {"early": "nothing"}),
    "occupancy": (1, 2),
    "deterministic": (True,),
    "batch_invariant": (True,),
    "backward": (True,),
    "epilogue.subtile_n": (16, 32, 64, 128),
    "groups.kind": ("m_offsets", "m_masked", "batched", "k_offsets"),
    "groups.count": COUNTS,
    "groups.skew": (0, 0.5, 2, 4),
    "groups.broadcast": ("a", "b"),
    "groups.a_rows": (True,),
    "groups.d_rows": (True,),
    "problem": problems((1, 64, 700, 8192, [1, 64], [128, 4096]), (768, 4096, 7168), (512, 2048, 7168)),
    "check.shapes": ([[256, 512, 384]], [[208, 200, 304]], [[13, 416, 3088]], [[512, 256, 640]]),
}
OF_GROUPS = tuple(path for path in LAYERS if path.startswith("groups."))
NO_GROUPS: Stated = dict.fromkeys(OF_GROUPS, ())
PLAIN_TYPES: Stated = {
    "operands.a.dtype": ("bf16", "bf16", "fp16"),
    "operands.d.dtype": ("bf16", "fp16", "fp32"),
}
GATE: Stated = {
    "epilogue.accumulators": (["gate", "up"],),
    "epilogue.d": GATED,
    "epilogue.columns": ("blocks", "blocks", "interleaved"),
}
EIGHT_BITS: Stated = {
    "operands.a.dtype": ("e4m3", "e4m3", "e5m2"),
    "operands.b.dtype": ("e4m3", "e4m3", "e5m2"),
    "tile.k": (64, 128, 128, 256, 512),
}
SCALED: Stated = {
    **EIGHT_BITS,
    "operands.a.scale": scales("fp32_1x128", "fp32_1x128", "ue8m0_1x128", *FORMATS),
    "operands.b.scale": scales("fp32_128x128", "fp32_128x128", "fp32_1x128", "ue8m0_128x128", *FORMATS),
    "operands.d.dtype": ("bf16", "bf16", "fp16", "fp32", "e4m3"),
}
OUTPUT_SCALES: Stated = {
    "operands.d.dtype": ("e4m3",),
    "operands.d.scale": scales("fp32_1x128", "fp32_1x128", "ue8m0_1x128", "fp32_128x128"),
}
OF_ROWS: Stated = {
    "groups.kind": ("m_offsets", "m_offsets", "m_masked"),
    "groups.count": COUNTS,
    "groups.broadcast": (),
}
ROWS_ALONE: Stated = {**OF_ROWS, "groups.a_rows": (), "groups.d_rows": ()}
OPEN: tuple[str, ...] = ("tile.m", "tile.n", "tile.k", "cluster.m", "cluster.n", "buffering.stages")
"""Fields that kinds of open specs leave to the planner."""
LAYER_KINDS: Kinds = (
    ("groups of rows", {**ROWS_ALONE, **PLAIN_TYPES}),
    (
        "open groups of rows",
        {**ROWS_ALONE, **PLAIN_TYPES, **dict.fromkeys(OPEN, ()), "problem": LAYERS["problem"]},
    ),
    ("groups with operands", {**OF_ROWS, "epilogue.d": EXPRESSIONS}),
    ("gated groups", {**OF_ROWS, **PLAIN_TYPES, **GATE}),
    (
        "gated groups that save",
        {**ROWS_ALONE, **PLAIN_TYPES, **GATE, "epilogue.save": (["gate", "up"],), "epilogue.d": GATED[:4]},
    ),
    (
        "rows by an index",
        {
            **PLAIN_TYPES,
            "groups.kind": ("m_offsets",),
            "groups.count": COUNTS,
            "groups.a_rows": (True, False),
        },
    ),
    (
        "batches",
        {
            "groups.kind": ("batched",),
            "groups.count": (*COUNTS, 1000, 4096),
            "groups.skew": (),
            "groups.a_rows": (),
            "groups.d_rows": (),
        },
    ),
    (
        "groups of K",
        {
            "groups.kind": ("k_offsets",),
            "groups.count": COUNTS,
            "operands.a.major": ("mn", "mn", "mn", "k"),
            "operands.b.major": ("mn", "mn", "mn", "k"),
            "groups.broadcast": (),
            "groups.a_rows": (),
            "groups.d_rows": (),
        },
    ),
    ("gates", {**NO_GROUPS, **GATE}),
    (
        "open gates",
        {**NO_GROUPS, **GATE, **PLAIN_TYPES, **dict.fromkeys(OPEN, ()), "problem": LAYERS["problem"]},
    ),
    ("gates that save", {**NO_GROUPS, **GATE, **PLAIN_TYPES, "epilogue.save": (["gate", "up"],)}),
    (
        "backwards of gates",
        {
            **PLAIN_TYPES,
            "operands.c.dtype": ("bf16", "bf16", "fp16"),
            "epilogue.c": (["gate", "up"],),
            "epilogue.d": BACKWARDS,
            "epilogue.columns": ("blocks", "interleaved"),
            "groups.kind": ("m_offsets", "m_masked", "batched"),
            "groups.count": COUNTS,
        },
    ),
    ("expressions", {**NO_GROUPS, "epilogue.d": EXPRESSIONS}),
    ("scales of blocks", {**NO_GROUPS, **SCALED}),
    (
        "open scales of blocks",
        {**NO_GROUPS, **SCALED, **dict.fromkeys(OPEN, ()), "problem": LAYERS["problem"]},
    ),
    ("scaled groups", {**ROWS_ALONE, **SCALED}),
    ("scaled gates", {**NO_GROUPS, **SCALED, **GATE}),
    ("scaled gates of groups", {**ROWS_ALONE, **SCALED, **GATE}),
    ("scaled groups of K", {**SCALED, "groups.kind": ("k_offsets",), "groups.count": COUNTS}),
    ("scales of D", {**NO_GROUPS, **OUTPUT_SCALES}),
    ("scales of a gated D", {**NO_GROUPS, **SCALED, **GATE, **OUTPUT_SCALES}),
    ("scales of D in groups", {**ROWS_ALONE, **SCALED, **OUTPUT_SCALES}),
)
"""Kernels of which each is drawn as often; a kind without a value for a field does not state the field."""
