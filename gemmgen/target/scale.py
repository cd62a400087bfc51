"""Formats of block-scaled operands: which elements share which scale, as data.

Sources, cited by their tag:

* [ocp] OCP Microscaling Formats (MX) Specification 1.0.
* [ptx] PTX ISA 9.0, section ``tcgen05.mma``, block scaling.
* [gluon] Triton 3.9.0, measured by lowering.
"""

from __future__ import annotations

from dataclasses import dataclass

SCALE_ROWS = 128
"""[ptx] Rows whose scales lie together in the packed layout: 4 groups of 32 lanes."""
SCALE_COLUMNS = 4
"""[ptx] Scales of a row that lie together: one word of tensor memory."""
PADDED_K = 128
"""[ptx] Elements that one box of padded fp4 has along K, and of which K is a multiple."""


@dataclass(frozen=True)
class ScaleFormat:
    """One scale for each row of an operand and each ``vector`` elements of K."""

    name: str
    elements: tuple[str, ...]
    """Element types, by their names in a spec."""
    vector: int
    dtype: str
    """Of the scales."""


SCALE_FORMATS = {
    scale.name: scale
    for scale in (
        ScaleFormat("mxfp8", elements=("e4m3", "e5m2"), vector=32, dtype="ue8m0"),  # [ocp]
        ScaleFormat("mxfp4", elements=("e2m1",), vector=32, dtype="ue8m0"),  # [ocp]
        ScaleFormat("nvfp4", elements=("e2m1",), vector=16, dtype="e4m3"),  # [ptx] block16 of mxf4nvf4
    )
}
MMA_KINDS = {
    ("mxfp8", "mxfp8"): "mxf8f6f4.block_scale.block32",
    ("mxfp8", "mxfp4"): "mxf8f6f4.block_scale.block32",
    ("mxfp4", "mxfp8"): "mxf8f6f4.block_scale.block32",
    ("mxfp4", "mxfp4"): "mxf4.block_scale.block32",
    ("nvfp4", "nvfp4"): "mxf4nvf4.block_scale.block16",
}
"""[ptx] The kind of ``tcgen05.mma`` that multiplies an A of one format with a B of another."""
