"""Pictures of plans that commands write as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gemmgen.cli.reporting import write
from gemmgen.plan.rule import counted

if TYPE_CHECKING:
    from gemmgen.product import Product


def write_pictures(products: Iterable[Product], directory: Path | None) -> list[str]:
    """Draw the plan of each product as an SVG, and return the lines to print about these files."""
    if directory is None:
        return []
    from gemmgen import pictures

    count = 0
    directory.mkdir(parents=True, exist_ok=True)
    for product in products:
        write(directory / f"{product.source.stem}.svg", pictures.svg(product))
        count += 1
    return [f"wrote {directory}: {counted(count, 'picture')}, one for each kernel"]
