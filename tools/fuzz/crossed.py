"""Values of random specs in which each kind of groups meets each kind of epilogue and of scales.

`layers` has what a person would write. These are drawn to be refused, and tests follow the advice that they
get.
"""

from __future__ import annotations

from gemmgen.features.not_together import NOT_TOGETHER
from gemmgen.plan.not_together import Trait
from gemmgen.plan.wgmma.resources import WgmmaKernel
from tools.fuzz.tables import HOPPER, HOPPER_DTYPES
from tools.fuzz.values import Kinds, Stated

KINDS_OF_GROUPS = ("m_offsets", "m_masked", "batched", "k_offsets")
SCALE_FORMATS = (
    "fp32_1x128", "fp32_128x128", "ue8m0_1x128", "ue8m0_128x128", "ue8m0_1x32", "mxfp8", "mxfp4", "nvfp4",
)  # fmt: skip
GROUPS: Stated = {
    "groups.count": (1, 8, 8, 16, 64, 513),
    "groups.skew": (0.0, 0.5),
    "groups.shares": ([1, 2, 3, 4, 5, 6, 7, 8], [1, 1], [0, 0]),
    "groups.broadcast": ("a", "b"),
    "groups.a_rows": (True, False),
    "groups.d_rows": (True, False),
}
"""Fields of groups, of which a spec states some beside their kind."""
GATE: Stated = {
    "epilogue.accumulators": (["gate", "up"],),
    "epilogue.columns": ("blocks", "interleaved"),
    "epilogue.d": (
        "silu(gate) * up",
        "gelu_tanh(gate + column_bias) * (up + column_bias)",
        "silu(gate * row_scale) * (up * row_scale)",
        "silu(gate) * up + c",
        "silu(gate + column_bias) * up",
        "silu(gate) * up * gate",
    ),
    "epilogue.ops": (),
    "epilogue.alpha": (),
    "epilogue.beta": (),
}
SCALES = tuple({"format": name} for name in SCALE_FORMATS)
EPILOGUES: dict[str, Stated] = {
    "listed": {},
    "expression": {
        "epilogue.d": (
            "silu(acc * row_scale) + c",
            "acc + column_bias",
            "acc * acc",
            "2 * acc + row_bias + row_bias",
            "relu(acc) * silu(acc)",
        ),
        "epilogue.ops": (),
        "epilogue.alpha": (),
        "epilogue.beta": (),
    },
    "gate": GATE,
    "saved sums": {**GATE, "epilogue.save": (["gate", "up"], ["up", "gate"])},
    "gradient of a gate": {
        "epilogue.c": (["gate", "up"],),
        "epilogue.columns": ("blocks", "interleaved"),
        "epilogue.d": (["acc * up", "acc * silu(gate)"], ["acc * up", "acc * up"]),
        "operands.c.dtype": ("bf16", "bf16", "fp32"),
        "epilogue.ops": (),
        "epilogue.alpha": (),
        "epilogue.beta": (),
    },
    "scales": {
        "operands.a.dtype": ("e4m3", "e4m3", "e5m2", "bf16", "e2m1"),
        "operands.a.scale": SCALES,
        "operands.b.scale": SCALES,
    },
    "scales of a gate": {
        **GATE,
        "operands.a.dtype": ("e4m3", "e5m2"),
        "operands.a.scale": SCALES[:5],
        "operands.b.scale": SCALES[:5],
    },
    "scales of D": {
        "operands.d.dtype": ("e4m3", "e4m3", "e5m2", "bf16"),
        "operands.d.scale": (*SCALES[:5], {"format": "fp32_1x128", "vector": 256}),
    },
}
EVERY: Stated = {
    **HOPPER,
    **GROUPS,
    "operands.a.dtype": HOPPER_DTYPES,
    "mma.swap_ab": (True, False),
    "backward": (True,),
}
"""Fields of Hopper kernels of all kinds."""
STATING: dict[str, Stated] = {
    "groups": {"groups.kind": KINDS_OF_GROUPS, "groups.count": GROUPS["groups.count"]},
    "epilogue.d": GATE,
    "epilogue.columns": GATE,
    "epilogue.c": EPILOGUES["gradient of a gate"],
    "epilogue.save": EPILOGUES["saved sums"],
    "operands.b.dtype": {
        "operands.a.dtype": ("bf16", "bf16", "bf16", "fp16", "e4m3"),
        "operands.b.dtype": ("int4", "int4", "e2m1", "int8", "e4m3"),
        "operands.b.scale": tuple(
            {"format": name}
            for name in ("bf16_1x128", "bf16_zero_1x64", "bf16_1x32", "fp16_1x128", "mxfp4", "nvfp4")
        ),
        "mma.swap_ab": (True, True, False),
    },
    "operands.a.scale": EPILOGUES["scales"],
    "operands.b.scale": EPILOGUES["scales"],
    "operands.d.scale": EPILOGUES["scales of D"],
    "tile.staggered": {"tile.staggered": (True,), "tile.n": (144, 160, 192, 224, 272)},
    "dependent_launch.early": {"dependent_launch": HOPPER["dependent_launch"]},
}
"""Fields that state a capability together with the field that a message names."""


def stated_by(trait: Trait[WgmmaKernel]) -> Stated:
    """Return fields with values that may state a trait."""
    section = trait.field.partition(".")[0]
    found = {path: values for path, values in EVERY.items() if path.startswith(trait.field) and values}
    return {**STATING.get(section, {}), **found, **STATING.get(trait.field, {})}


CROSSED_TABLES: dict[str, tuple[Stated, Kinds]] = {
    "pairs": (
        EVERY,
        tuple(
            (f"{row.one.name} with {row.other.name}", {**stated_by(row.one), **stated_by(row.other)})
            for row in NOT_TOGETHER
        ),
    ),
    "crossed": (
        {
            **EVERY,
            "groups.count": (),
            "target": ("h100", "h100", "h200", "b200"),
        },
        tuple(
            (
                f"{epilogue} of {kind or 'one A and B'}",
                {**fields, "groups.kind": (kind,), "groups.count": GROUPS["groups.count"]}
                if kind
                else {**fields, **dict.fromkeys(GROUPS, ())},
            )
            for kind in (*KINDS_OF_GROUPS, "")
            for epilogue, fields in EPILOGUES.items()
        ),
    ),
}
"""Fields and kinds in the form of `tables.TABLES`.

``pairs`` states both sides of each pair that no kernel has together.
"""
