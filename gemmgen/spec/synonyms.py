"""What other libraries call the choices of a spec: the hint behind a word that is none of them."""

from __future__ import annotations

from collections.abc import Sequence

from gemmgen.spec.words import did_you_mean, listing

SYNONYMS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("float16", "f16", "half"): ("fp16",),
    ("bfloat16", "bfloat"): ("bf16",),
    ("fp32", "float32", "f32", "float", "single"): ("fp32", "tf32"),
    ("tf32", "tfloat32"): ("tf32", "fp32"),
    ("fp8", "float8", "f8"): ("e4m3", "e5m2"),
    ("fp8_e4m3", "fp8e4m3", "float8_e4m3", "float8_e4m3fn", "f8e4m3fn", "e4m3fn"): ("e4m3",),
    ("fp8_e5m2", "fp8e5m2", "float8_e5m2", "f8e5m2"): ("e5m2",),
    ("fp4", "float4", "f4", "float4_e2m1fn_x2", "float4_e2m1", "e2m1fn", "nvfp4", "mxfp4"): ("e2m1",),
    ("mx", "mxfp"): ("mxfp8", "mxfp4"),
    ("nv",): ("nvfp4",),
    ("e8m0", "float8_e8m0fnu", "f8e8m0", "e8m0fnu"): ("ue8m0",),
    ("unpadded",): ("packed",),
    ("clc", "cluster_launch_control"): ("launch_control",),
    ("static", "static_persistent"): ("persistent",),
    ("i8", "s8", "char"): ("int8",),
    ("i32", "s32", "int"): ("int32",),
    ("m", "n", "m_major", "n_major"): ("mn",),
    ("k_major",): ("k",),
    ("pingpong",): ("ping_pong",),
    ("planar", "planar_snake"): ("snake",),
    ("bias",): ("row_bias", "column_bias"),
    ("scale",): ("tensor_scale", "row_scale", "column_scale"),
    ("gelu",): ("gelu_tanh", "gelu_erf"),
    ("swish",): ("silu",),
    ("add", "c"): ("residual",),
}
"""Words, and the choices that they may mean, of which a field has some."""
UNSIGNED = ("uint8", "u8", "byte")
"""[gluon] Triton 3.9 lowers these to the instruction of signed integers, without a word."""


def meant(word: str, choices: Sequence[str]) -> str:
    """Return the end of a message that offers what a word stands for, or the choice closest to it."""
    name = word.lower().removeprefix("torch.").replace("-", "_").replace(" ", "_")
    if name in UNSIGNED and "int8" in choices:
        return "; Triton 3.9 multiplies unsigned integers as if they were signed, so use int8"
    for words, stands_for in SYNONYMS.items():
        known = [choice for choice in stands_for if choice in choices]
        if name in words and known:
            return f"; did you mean {listing(known, 'or')}?"
    return did_you_mean(name, choices)
