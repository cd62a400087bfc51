"""Each kind of kernel that promises batch invariance, as the sections of a spec that leaves tiles open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gemmgen.product import Product, make
from gemmgen.spec import SpecFile
from gemmgen.spec.model import spec_of

Sections = dict[str, Any]

ROWS: Final = (1, 2, 3, 7, 16, 33, 64, 127, 192, 300, 768, 4096)
"""M of the batches: what servers see, powers of two and others, and both sides of a tile's edge."""


def of(dtype: str, d: str | None = None, *, scale: str | None = None, **sections: Any) -> Sections:
    """Return a spec's sections, less its title and its promise."""
    operand = {"dtype": dtype} | ({"scale": {"format": scale}} if scale else {})
    matrices = {"a": operand, "b": operand, "d": {"dtype": d or "bf16"}}
    target = "b200" if scale else "h200"
    return {"target": target, **sections, "operands": matrices | sections.get("operands", {})}


def roles(kind: str, **more: Any) -> Sections:
    return {"warp_specialization": {"kind": kind}, **more}


def split(parts: int, step: int, **more: Any) -> Sections:
    """K in so many parts, of whole steps."""
    return {
        **more,
        "tile": {"k": step, **more.get("tile", {})},
        "schedule": {"splits": parts, **more.get("schedule", {})},
    }


PARALLEL: Final = {"reduction": "parallel"}
HOPPER: Final[Mapping[str, Sections]] = {
    "bf16": of("bf16"),
    "fp16": of("fp16", "fp16"),
    "fp16_summed_in_fp16": of("fp16", "fp16", accumulator="fp16"),
    "tf32": of("tf32", "fp32"),
    "e4m3": of("e4m3"),
    "int8": of("int8", "int32"),
    "epilogue": of("bf16", epilogue={"alpha": 0.5, "ops": ["column_bias", "gelu_tanh"]}),
    "cooperative": of("bf16", **roles("cooperative")),
    "ping_pong": of("bf16", **roles("ping_pong")),
    "exchanged": of("bf16", mma={"rows": "n"}),
    "exchanged_roles": of("bf16", **roles("ping_pong", mma={"rows": "n"})),
    "tiled": of("bf16", schedule={"kind": "tiled"}, mma={"rows": "m"}),
    "blocked": of("bf16", schedule={"kind": "tiled"}, mma={"rows": "m"}, buffering={"stages": 1}),
    "persistent_without_roles": of("bf16", **roles("none", schedule={"kind": "persistent"})),
    "composed": of("bf16", tile={"n": 192}, **roles("cooperative")),
    "three_consumers": of("bf16", tile={"m": 192, "n": 128}, **roles("cooperative")),
    "staggered": of("e4m3", tile={"m": 128, "n": 192, "staggered": True}),
    "a_from_registers": of("bf16", operands={"a": {"dtype": "bf16", "source": "registers"}}),
    "cluster": of("bf16", cluster={"m": 2, "n": 2}),
    "misaligned": of("bf16", operands={"misaligned": "copy"}),
    "dependent": of("bf16", dependent_launch={"early": "b"}),
    "promoted": of("e4m3", mma={"promote_k": 128}),
    "promoted_parts": of("e4m3", mma={"promote_k": 128}, tile={"n": 96}),
    "split_tiled": of("bf16", **split(4, 64, schedule={"kind": "tiled"}, mma={"rows": "m"})),
    "split_exchanged": of("bf16", **split(8, 64, mma={"rows": "n"})),
    "split_persistent": of("bf16", **split(7, 64, **roles("cooperative"))),
    "split_cluster": of("bf16", **split(3, 64, cluster={"m": 2, "n": 2})),
    "split_promoted": of("e4m3", **split(3, 128, mma={"promote_k": 128})),
    "split_summed_in_fp16": of("fp16", "fp16", accumulator="fp16", **split(5, 64)),
    "second_kernel_3": of("bf16", **split(3, 64, schedule=PARALLEL)),
    "second_kernel_15": of("bf16", **split(15, 64, schedule=PARALLEL)),
    "second_kernel_24": of(
        "fp16",
        "fp16",
        accumulator="fp16",
        search={"tile.m": [128, 192]},
        **split(24, 64, tile={"n": 256}, mma={"rows": "m"}, schedule=PARALLEL),
    ),
    "second_kernel_40": of("bf16", search={"tile.m": [64, 256]}, **split(40, 64, schedule=PARALLEL)),
    "int8_as_they_come": of("int8", "int32", **split(4, 128, schedule={"reduction": "atomic"})),
}
"""Of Hopper; K is divided nowhere but where the name says so."""
BLACKWELL: Final[Mapping[str, Sections]] = {
    "b200_bf16": of("bf16") | {"target": "b200"},
    "b200_one_cta": of("bf16", cluster={"m": 1}) | {"target": "b200"},
    "b200_cluster": of("bf16", cluster={"m": 2, "n": 2}) | {"target": "b200"},
    "b200_launch_control": of("e4m3", schedule={"kind": "launch_control"}) | {"target": "b200"},
    "b200_mxfp8": of("e4m3", scale="mxfp8"),
    "b200_nvfp4": of("e2m1", scale="nvfp4"),
}
KINDS: Final[Mapping[str, Sections]] = {**HOPPER, **BLACKWELL}


def source_of(kind: str, shape: tuple[int, int, int], **more: Any) -> SpecFile:
    """Return the batch-invariant spec of a kind, for a problem [M, N, K]."""
    problem = dict(zip("mnk", shape, strict=True))
    data = {"title": kind, "batch_invariant": True, "problem": problem, **KINDS[kind], **more}
    spec = spec_of(data)
    assert spec, kind
    return SpecFile(spec, path=f"{kind}.yaml", stem=kind, sha256="0" * 64, positions={}, key_positions={})


def product_of(kind: str, shape: tuple[int, int, int], directory: Path) -> Product:
    """Return what follows from that spec, which is written to a file of the directory."""
    path = directory / f"{kind}_{shape[0]}.yaml"
    spec = source_of(kind, shape).spec
    path.write_text(json.dumps(spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)))
    return make(path)
