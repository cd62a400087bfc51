"""The values that fields of random specs are drawn from, by target and by kind of kernel."""

from __future__ import annotations

from tools.fuzz.layers import LAYER_KINDS, LAYERS
from tools.fuzz.values import Kinds, Stated, Values

HUGE = 2**31 - 1

OPS: tuple[list[object], ...] = (
    ["relu"],
    ["silu"],
    ["gelu_tanh"],
    ["gelu_erf"],
    [{"leaky_relu": {"slope": 0.125}}],
    ["tensor_scale"],
    ["tensor_scale", "relu"],
    ["relu", "tensor_scale", "gelu_erf"],
)
"""Operations of every target."""
ROW_AND_COLUMN_OPS: tuple[list[object], ...] = (
    ["column_bias"],
    ["row_scale", "column_scale"],
    ["row_bias", "gelu_erf"],
    ["residual"],
    ["residual", "relu"],
    ["residual", "silu"],
    ["row_scale", "column_scale", "column_bias", "silu"],
    ["tensor_scale", "row_scale", "column_scale", "row_bias", "column_bias", "residual", "gelu_tanh"],
    ["tensor_scale", "gelu_erf", "residual", "column_scale", "silu", "relu", "row_bias", "gelu_tanh"],
)
GATES = (
    "silu(gate) * up",
    "silu(gate) * up",
    "gelu_tanh(gate) * up",
    "gelu_erf(gate) * up",
    "leaky_relu(gate, slope=0.125) * up",
    "0.5 * silu(2 * gate) * up",
    "gelu_tanh(gate) + up",
    "relu(silu(gate) * up)",
    "silu(gate * tensor_scale) * (up * tensor_scale)",
    "silu(gate * row_scale * tensor_scale) * (up * row_scale * tensor_scale)",
    "silu(gate * row_scale + row_bias) * (up * row_scale)",
)
"""Epilogues of the accumulators ``gate`` and ``up``."""
WILD_GATES = (
    "silu(gate)",
    "silu(gate) * up * gate",
    "silu(gate) * up * c",
    "silu(gate * column_scale) * up",
    "silu(gate + column_bias) * (up + column_bias)",
    "silu(gate) * up * up",
    "silu(acc) * up",
)
SHAPES = ([[256, 512, 384]], [[32, 64, 16]], [[512, 608, 640]], [[13, 416, 3088]])
REGISTERS = tuple(range(24, 257, 8))

SHARED: Stated = {
    "operands.a.major": ("k", "mn"),
    "operands.b.major": ("k", "mn"),
    "operands.a.swizzle": (32, 64, 128),
    "operands.b.swizzle": (32, 64, 128),
    "operands.misaligned": ("refuse", "copy"),
    "tile.m": (64, 128, 128, 256),
    "tile.n": (8, 16, 32, 64, 128, 128, 256, 256),
    "tile.k": (16, 32, 64, 64, 128, 128, 256, 512),
    "cluster.m": (1, 1, 1, 2, 2, 4),
    "cluster.n": (1, 1, 1, 2, 4),
    "buffering.stages": (1, 2, 3, 4, 5, 6, 8, 12),
    "buffering.epilogue": (1, 1, 2, 4),
    "schedule.order": ("row", "column", "grouped", "snake", "hilbert"),
    "schedule.minor": ("m", "n"),
    "schedule.width": (1, 2, 3, 8, 16, 100),
    "epilogue.alpha": (0.5, -1.0),
    "epilogue.ops": OPS,
    "epilogue.subtile_n": (8, 16, 32, 64, 128, 256),
    "check.shapes": SHAPES,
    "bench.shapes": ([[8192, 8192, 8192]], [[64, 4096, 4096]], [[512, 6144, 4096]], [[300, 776, 1032]]),
}
WILD: Stated = {
    "tile.m": (1, 8, 48, 96, 512, 4096, HUGE),
    "tile.n": (4, 20, 120, 257, 512, HUGE),
    "tile.k": (8, 48, 1024, HUGE),
    "cluster.m": (3, 8, 16),
    "cluster.n": (3, 8),
    "buffering.stages": (60, HUGE),
    "buffering.epilogue": (3, 6, 64),
    "schedule.width": (4097, HUGE),
    "occupancy": (4, HUGE),
    "operands.a.swizzle": (1, 16, 256),
    "operands.b.swizzle": (0, 16, 256),
    "epilogue.alpha": (0.0, 1e300),
    "epilogue.ops": (["relu", "relu"], ["silu", "tensor_scale", "silu"]),
    "epilogue.subtile_n": (1, 4, 24, 512),
    "epilogue.d": WILD_GATES,
}
"""Values that are legal hardly anywhere."""

HOPPER_DTYPES = ("bf16", "bf16", "fp16", "tf32", "e4m3", "e5m2", "int8")
HOPPER: Stated = {
    **SHARED,
    "target": ("h100", "h200"),
    "operands.a.dtype": HOPPER_DTYPES,
    "operands.b.dtype": HOPPER_DTYPES,
    "operands.c.dtype": ("bf16", "fp16", "fp32"),
    "operands.d.dtype": ("bf16", "bf16", "fp16", "fp32", "e4m3", "e5m2", "int8", "int32"),
    "operands.a.source": ("shared", "shared", "registers"),
    "accumulator": ("fp32", "fp32", "fp16"),
    "mma.n": (8, 16, 32, 64, 128, 256),
    "mma.promote_k": (32, 64, 128),
    "warps.m": (4, 4, 8),
    "warps.n": (1, 1, 2),
    "buffering.outstanding_mmas": (0, 1),
    "warp_specialization.kind": ("none", "cooperative", "cooperative", "ping_pong"),
    "warp_specialization.consumers": (1, 2, 2, 3, 4),
    "warp_specialization.registers.producer": (24, 32, 40, 56),
    "warp_specialization.registers.consumer": REGISTERS,
    "schedule.kind": ("tiled", "persistent", "persistent"),
    "schedule.splits": (2, 3, 4, 7),
    "schedule.reduction": ("ordered", "atomic", "parallel"),
    "dependent_launch": (
        {"early": "a"},
        {"early": "b"},
        {"early": "a", "trigger": "loads"},
        {"early": "b", "trigger": "end"},
        {"early": "nothing"},
        {"early": "nothing", "trigger": "end"},
    ),
    "occupancy": (1, 1, 2, 3),
    "deterministic": (True,),
    "batch_invariant": (True,),
    "epilogue.beta": (-1.0, 2.0),
    "epilogue.ops": (*OPS, *ROW_AND_COLUMN_OPS, *ROW_AND_COLUMN_OPS),
}
HOPPER_KINDS: Kinds = (
    ("plain", {}),
    ("plain", {}),
    ("ping-pong", {"warp_specialization.kind": ("ping_pong",), "schedule.kind": ("persistent",)}),
    (
        "few rows",
        {
            "mma.rows": ("n",),
            "schedule.kind": ("tiled", "tiled", "persistent"),
            "tile.m": (8, 16, 32, 64),
            "tile.n": (64, 128, 256),
            "warps.m": (1, 1, 2),
            "warps.n": (4, 4, 8),
            "warp_specialization.consumers": (1,),
            "tile.k": (64, 128, 256),
        },
    ),
    ("split K", {"schedule.splits": (2, 3, 5, 8, 12), "schedule.kind": ("tiled", "persistent")}),
    (
        "composed",
        {
            "tile.n": (24, 40, 48, 80, 96, 112, 144, 160, 176, 192, 192, 208, 224, 272, 288, 320, 384),
            "tile.m": (64, 128, 192, 192, 256),
            "warp_specialization.kind": ("cooperative", "ping_pong"),
            "warp_specialization.consumers": (1, 2, 3),
            "schedule.kind": ("persistent",),
            "cluster.n": (1,),
            "epilogue.subtile_n": (8, 16, 32, 64),
            "tile.staggered": (False, False, True),
        },
    ),
    (
        "A in registers",
        {"operands.a.source": ("registers",), "tile.k": (16, 32, 64, 64, 128), "tile.m": (64, 128)},
    ),
    (
        "promoted",
        {
            "operands.a.dtype": ("e4m3", "e5m2"),
            "operands.b.dtype": ("e4m3", "e5m2"),
            "mma.promote_k": (32, 64, 128, 128),
            "accumulator": ("fp32",),
            "tile.n": (16, 32, 64, 128),
        },
    ),
    ("long steps", {"tile.k": (128, 256, 256, 512), "tile.m": (128, 256, 512), "tile.n": (16, 32, 64, 128)}),
    ("clusters", {"cluster.m": (1, 2, 4), "cluster.n": (1, 2, 4), "schedule.kind": ("persistent",)}),
    (
        "one tile",
        {
            "schedule.kind": ("single_tile",),
            "warp_specialization.kind": ("none",),
            "check.shapes": SHAPES[1:2],
        },
    ),
    ("copies", {"operands.misaligned": ("copy",)}),
    (
        "gated",
        {
            "epilogue.accumulators": (["gate", "up"],),
            "epilogue.d": GATES,
            "operands.b.major": ("k", "k", "k", "mn"),
            "operands.c.dtype": (),
            "epilogue.ops": (),
            "epilogue.alpha": (),
            "epilogue.beta": (),
            "tile.n": (8, 16, 32, 64, 128, 128, 256, 256),
        },
    ),
)
"""Kernels of which each is drawn as often, with values of their own for some fields, which they state.

A kind without a value for a field does not state the field.
"""

SCALED = (
    ("e4m3", "mxfp8", "e4m3", "mxfp8"),
    ("e5m2", "mxfp8", "e4m3", "mxfp8"),
    ("e2m1", "mxfp4", "e2m1", "mxfp4"),
    ("e2m1", "nvfp4", "e2m1", "nvfp4"),
    ("e4m3", "mxfp8", "e2m1", "mxfp4"),
    ("e2m1", "mxfp4", "e5m2", "mxfp8"),
)
"""The types and the formats of A and of B."""
BLACKWELL_DTYPES = ("bf16", "bf16", "fp16", "tf32", "e4m3", "e5m2")
BLACKWELL: Stated = {
    **SHARED,
    "target": ("b200",),
    "operands.a.dtype": BLACKWELL_DTYPES,
    "operands.b.dtype": BLACKWELL_DTYPES,
    "operands.d.dtype": ("bf16", "bf16", "fp16", "fp32", "e4m3", "e5m2"),
    "buffering.accumulators": (1, 1, 2, 2, 3, 4),
    "warp_specialization.registers.worker": (24, 24, 32, 40, 48, 64),
    "schedule.kind": ("persistent", "launch_control"),
}
BLACKWELL_KINDS: Kinds = (
    ("plain", {}),
    ("plain", {}),
    ("pairs", {"cluster.m": (2, 4), "cluster.n": (1, 1, 2)}),
    ("launch control", {"schedule.kind": ("launch_control",)}),
    *(
        (
            f"{a_format} by {b_format}",
            {
                "operands.a.dtype": (a,),
                "operands.b.dtype": (b,),
                "operands.a.scale": ({"format": a_format},),
                "operands.b.scale": ({"format": b_format},),
                "tile.k": (128, 256, 256, 512),
                "cluster.m": (1, 2, 2),
                "cluster.n": (1,),
            },
        )
        for a, a_format, b, b_format in SCALED
    ),
)
TABLES = {
    "sm90": (HOPPER, HOPPER_KINDS),
    "sm100": (BLACKWELL, BLACKWELL_KINDS),
    "layers": (LAYERS, LAYER_KINDS),
}
"""Fields and kinds of random specs: of dense Hopper kernels, of Blackwell ones, and of layers on Hopper."""
REQUIRED = (
    *("target", "operands.a.dtype", "operands.b.dtype", "operands.d.dtype"),
    *("groups.kind", "groups.count"),
)
"""Fields that a spec has, or that a section has which is stated."""
PLAIN: Values = {
    "operands.a.dtype": "bf16",
    "operands.b.dtype": "bf16",
    "operands.d.dtype": "bf16",
    "tile.m": 128,
    "tile.n": 64,
    "tile.k": 64,
}
"""What fields of a finding are reset to, if it is still one then; what is not here is left out."""
