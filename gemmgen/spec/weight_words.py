"""Words about weights that threads decode which no spec has: of checkpoints, and of packing."""

from __future__ import annotations

from typing import Final, NamedTuple

from gemmgen.hardware.elements import SCALE_FORMATS
from gemmgen.spec.diagnostics import listing

PAGE: Final = "docs/spec/weights.md"
"""The page about such weights."""


class Checkpoint(NamedTuple):
    """The weights of the checkpoints of a library."""

    title: str
    kinds: tuple[tuple[str, bool], ...]
    """The types of B, each with True if a block has a zero point of its own."""
    functions: str
    """The functions of gemmgen.integrations.weights that read them."""


CHECKPOINTS: Final = {
    "gptq": Checkpoint("GPTQ", (("int4", False),), "from_gptq"),
    "awq": Checkpoint("AWQ", (("int4", True),), "from_awq"),
    "compressed_tensors": Checkpoint(
        "compressed-tensors",
        (("int4", False), ("int4", True), ("e2m1", False)),
        "from_compressed_tensors, from_mxfp4 or from_nvfp4",
    ),
}
"""Checkpoints by the word for them."""

OTHERS: Final = {
    "pack_weight": (
        "a function of each module whose threads decode B: it takes a weight and its scales, and returns b"
        f" and b_scale as matmul takes them; call it once, when weights are loaded ({PAGE})"
    ),
    "weights": (
        "weights of four or eight bits beside an A of 16 bits are a B that threads of Hopper kernels decode: "
        "operands.b.dtype is int4, e2m1, int8 or e4m3, beside operands.b.scale.format, and pack_weight of "
        f"the module packs it ({PAGE})"
    ),
}
"""Meanings of other words."""


def weight_meaning(name: str) -> str:
    """Return the meaning of a word in small letters, its parts joined by ``_``; empty if it has none here."""
    if name not in CHECKPOINTS:
        return OTHERS.get(name, "")
    found = CHECKPOINTS[name]
    kinds = "; ".join(
        f"operands.b.dtype: {element}{' with zero points' * has_zeros}, with operands.b.scale.format: "
        f"{listing(formats_of(element, has_zeros=has_zeros), 'or')}"
        for element, has_zeros in found.kinds
    )
    return (
        f"weights of {found.title}, which threads of Hopper kernels decode: {kinds}; {found.functions} of "
        f"gemmgen.integrations.weights reads them, and pack_weight of the module packs them ({PAGE})"
    )


def formats_of(element: str, *, has_zeros: bool) -> list[str]:
    """Return the names of the formats by which threads decode a type, with or without zero points."""
    rows = (row for row in SCALE_FORMATS.values() if "decode" in row.applied)
    return [row.name for row in rows if element in row.elements and row.zeros == has_zeros]
