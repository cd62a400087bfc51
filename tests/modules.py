"""The committed specs and their modules.

Those that a person would want are under specs/ and generated/, the others, which complete the coverage, under
tests/pairs. Whatever is asserted of the ones is asserted of the others: `SPECS` and `GENERATED` hold both.
They hold gradients too, whose specs lie beside the modules.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gemmgen.product import Product, make

ROOT = Path(__file__).parent.parent
PLACES = (
    (ROOT / "specs", ROOT / "generated"),
    (ROOT / "tests" / "pairs" / "specs", ROOT / "tests" / "pairs" / "generated"),
)
"""Directories of specs, each with the directory of their modules."""


def _specs(directory: Path) -> tuple[Path, ...]:
    return tuple(sorted(directory.glob("*.yaml")))


_DIRECTORIES = {
    spec.stem: (directory, generated)
    for specs, generated in PLACES
    for directory in (specs, generated)
    for spec in _specs(directory)
}
WANTED = _specs(ROOT / "specs")
"""The specs that a person would want."""
SPECS = tuple(_DIRECTORIES[stem][0] / f"{stem}.yaml" for stem in sorted(_DIRECTORIES))
HOPPER_SPECS = tuple(spec for spec in SPECS if spec.stem.startswith("h100_"))
BLACKWELL_SPECS = tuple(spec for spec in SPECS if spec.stem.startswith("b200_"))


def spec_file(stem: str) -> Path:
    """Where the committed spec of this name is."""
    return _DIRECTORIES[stem][0] / f"{stem}.yaml"


def module_file(stem: str) -> Path:
    """Where the committed module of this name is."""
    return _DIRECTORIES[stem][1] / f"{stem}.py"


GENERATED = tuple(module_file(spec.stem) for spec in SPECS)


@cache
def made(path: Path) -> Product:
    """What follows from a committed spec, derived once in each process."""
    return make(path)
