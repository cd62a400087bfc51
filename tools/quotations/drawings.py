"""The pictures of docs that are drawn from plans and from records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gemmgen import pictures
from gemmgen.product import make
from tools.rendered import ROOT

PICTURE = ROOT / "docs" / "speed.svg"
"""The picture of the rows of SHOWN, which `gemmgen.bench.plot` draws."""
DRAWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "plan_memory": ("h100_bf16", ("shared_memory", "registers")),
    "plan_order": ("h100_bf16", ("ring", "tile_order")),
}
"""The pictures of docs/pictures.md: the spec of each, and the names of its drawings."""


def drawn() -> dict[Path, str]:
    """Return the pictures of plans by their files."""
    return {
        ROOT / "docs" / f"{name}.svg": pictures.svg(make(ROOT / "specs" / f"{stem}.yaml"), names)
        for name, (stem, names) in DRAWN.items()
    }
