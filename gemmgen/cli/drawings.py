"""Pictures and pages that commands write as files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gemmgen.cli.reporting import unwritable, write
from gemmgen.plan.rule import counted

if TYPE_CHECKING:
    from gemmgen.product import Product
    from gemmgen.verify.simulation import Simulation
    from gluonsim import Result


@dataclass(frozen=True)
class Timeline:
    """Files for the timeline of a launch; a file that is None is not written."""

    trace: Path | None
    svg: Path | None

    def refuse(self, subjects: Sequence[str]) -> None:
        """Raise BadParameter for several subjects, or for a file that cannot be written."""
        files = {"--trace": self.trace, "--svg": self.svg}
        _refuse(files, "a timeline shows one spec or file" if len(subjects) > 1 else None)

    def write(self, simulated: Sequence[Simulation | Result]) -> None:
        """Write the files; last, because a refusal here must not cost the findings."""
        for first in simulated[:1]:
            if self.trace:
                write(self.trace, first.trace.as_json() + "\n")
            if self.svg:
                write(self.svg, first.svg())


@dataclass(frozen=True)
class PlanPictures:
    """Files for the pictures of a plan; a picture whose file is None is not drawn."""

    svg: Path | None
    html: Path | None

    def refuse(self, specs: Sequence[Path]) -> None:
        """Raise BadParameter for several specs or for a file that cannot be written."""
        files = {"--svg": self.svg, "--html": self.html}
        _refuse(files, "a picture shows one spec" if len(specs) > 1 else None)

    def write(self, products: Sequence[Product]) -> None:
        """Draw the plan of each product."""
        if not (self.svg or self.html):
            return
        from gemmgen import pictures

        for product in products:
            if self.svg:
                write(self.svg, pictures.svg(product))
            if self.html:
                write(self.html, pictures.page(product))


def _refuse(files: Mapping[str, Path | None], problem: str | None) -> None:
    """Raise BadParameter for the first option with a file if there is a problem, or if it is unwritable."""
    for option, path in files.items():
        if path and (why := problem or unwritable(path)):
            raise typer.BadParameter(why, param_hint=option)


def write_pages(products: Iterable[Product], directory: Path | None) -> list[str]:
    """Write a page of pictures for each plan, and return the lines to print about them."""
    if directory is None:
        return []
    from gemmgen import pictures

    count = 0
    directory.mkdir(parents=True, exist_ok=True)
    for product in products:
        write(directory / f"{product.source.stem}.html", pictures.page(product))
        count += 1
    return [f"wrote {directory}: {counted(count, 'page')} of pictures, one for each kernel"]
