"""The pictures of docs that are drawn from plans, from a simulation, and from records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gemmgen import pictures
from gemmgen.problem import Shape
from gemmgen.product import make
from tools.rendered import ROOT

PICTURE = ROOT / "docs" / "speed.svg"
"""The picture of the rows of SHOWN, which `gemmgen.bench.plot` draws."""
PIPELINE = ROOT / "docs" / "pipeline.svg"
PIPELINE_SPEC = ROOT / "specs" / "h100_bf16.yaml"
PIPELINE_SHAPE: Shape = (256, 512, 384)
"""Tiles of six K steps: two laps of the four stages show the end of a tile, and the beginning of the next."""
DRAWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "plan_memory": ("h100_bf16", ("shared_memory", "registers")),
    "plan_order": ("h100_bf16", ("ring", "tile_order")),
}
"""The pictures of docs/pictures.md: the spec of each, and the names of its drawings."""


def pipeline() -> str:
    """Return the picture of a module's pipeline, as the simulator ran it."""
    from gemmgen.verify.launches import Launch
    from gemmgen.verify.simulation import simulate_product  # torch, which the pages do not need

    launch = Launch(PIPELINE_SHAPE, programs=1, inputs="integers", schedules=("lazy",))
    return simulate_product(make(PIPELINE_SPEC), [launch]).svg()


def drawn() -> dict[Path, str]:
    """Return the pictures of plans by their files."""
    return {
        ROOT / "docs" / f"{name}.svg": pictures.svg(make(ROOT / "specs" / f"{stem}.yaml"), names)
        for name, (stem, names) in DRAWN.items()
    }
