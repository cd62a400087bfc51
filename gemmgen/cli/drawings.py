"""Pictures that commands write as files."""

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
class PlanPicture:
    """File for the picture of a plan; None if it is not drawn."""

    svg: Path | None

    def refuse(self, specs: Sequence[Path]) -> None:
        """Raise BadParameter for several specs or for a file that cannot be written."""
        _refuse({"--svg": self.svg}, "a picture shows one spec" if len(specs) > 1 else None)

    def write(self, products: Sequence[Product]) -> None:
        """Draw the plan of each product."""
        if self.svg is None:
            return
        from gemmgen import pictures

        for product in products:
            write(self.svg, pictures.svg(product))


def _refuse(files: Mapping[str, Path | None], problem: str | None) -> None:
    """Raise BadParameter for the first option with a file if there is a problem, or if it is unwritable."""
    for option, path in files.items():
        if path and (why := problem or unwritable(path)):
            raise typer.BadParameter(why, param_hint=option)


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
