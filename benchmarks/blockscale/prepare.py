"""Render the kernels that the planner ranks first for each shape of the suite; needs no GPU.

``python -m benchmarks.blockscale.prepare FOLDER`` writes the modules, their launcher and the index.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Final, cast

from ruamel.yaml import YAML

from benchmarks.grouped.prepare import Modules, emptied
from gemmgen.plan.planner import rank
from gemmgen.problem import Shape
from gemmgen.spec import SpecFile
from gemmgen.spec.model import spec_of

SUITE = Path(__file__).parents[1] / "suites" / "h200.yaml"
FAMILIES: Final = ("deepseek_v3", "squares")
"""Families of the suite whose shapes are timed."""
FIRST = 6
"""Kernels with block scales of each shape."""
FIRST_EARLY, MOST_EARLY_ROWS = 2, 128
"""Kernels of each shape of few rows that load their weights before the kernel ahead has ended."""
INDEX = "index.json"
"""The file beside the modules that has the shapes and the modules of each."""
ACTIVATIONS: Final = {"dtype": "e4m3", "scale": {"format": "fp32_1x128"}}
WEIGHTS: Final = {"dtype": "e4m3", "scale": {"format": "fp32_128x128"}}
PLAIN: Final = {"dtype": "e4m3"}
SCALED: Final = ("blocks", "early")
"""Arms whose kernels take scales of blocks."""
ARMS: Final[dict[str, dict[str, object]]] = {
    "blocks": {"operands": {"a": ACTIVATIONS, "b": WEIGHTS, "d": {"dtype": "bf16"}}},
    "early": {
        "operands": {"a": ACTIVATIONS, "b": WEIGHTS, "d": {"dtype": "bf16"}},
        "dependent_launch": {"early": "b", "trigger": "loads"},
    },
    "plain": {"operands": {"a": PLAIN, "b": PLAIN, "d": {"dtype": "bf16"}}},
}
"""Sections of a spec for each arm: scales of blocks, these with PDL, and none."""


@dataclass(frozen=True)
class Prepared:
    """A shape with the names of the modules of each arm, the planner's first choice first."""

    shape: Shape
    modules: dict[str, list[str]]
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """The decisions of each module in one line."""


def shapes() -> Iterator[Shape]:
    """Yield M, N and K of each problem of the families, each once."""
    suite = cast(Any, YAML(typ="safe", pure=True)).load(SUITE)
    for family in FAMILIES:
        found = suite["families"][family]
        yield from (tuple(shape) for shape in found.get("shapes", ()))
        yield from ((m, n, k) for n, k in found.get("nk", ()) for m in suite["m"])


def source_of(arm: str, shape: Shape, target: str) -> SpecFile:
    """Return the spec of an arm for a shape, with every other decision open."""
    problem = dict(zip("mnk", shape, strict=True))
    spec = spec_of({"title": f"e4m3 matmul, {arm}", "target": target, "problem": problem, **ARMS[arm]})
    if spec is None:
        raise ValueError(f"no spec has {ARMS[arm]}")
    return SpecFile.of(spec)


def prepared(folder: Path, shape: Shape, first: int, target: str) -> Prepared:
    """Write the modules of the kernels that the planner ranks first for a shape, and return their names."""
    modules, names = Modules(folder), dict[str, list[str]]()
    counts = {"blocks": first, "early": min(first, FIRST_EARLY) * (shape[0] <= MOST_EARLY_ROWS)}
    for arm in ARMS:
        if count := counts.get(arm, 1):
            plans = [each.plan for each in rank(source_of(arm, shape, target)).legal[:count]]
            names[arm] = [modules.stem_of(plan) for plan in plans]
    return Prepared(shape, names, modules.labels)


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=FIRST, help=f"kernels of each shape ({FIRST})")
    parser.add_argument("--target", default="h100", help="GPU that the kernels are planned for (h100)")
    parser.add_argument("--processes", type=int, default=2, help="processes that plan (2)")
    parser.add_argument("--most", type=int, help="shapes at most, evenly spread")
    given = parser.parse_args()
    folder, wanted = emptied(given.folder), list(dict.fromkeys(shapes()))
    if given.most:
        wanted = wanted[:: max(1, len(wanted) // given.most)]
    constant = repeat(given.first), repeat(given.target)
    with ProcessPoolExecutor(given.processes) as pool:
        found = list(pool.map(prepared, repeat(folder), wanted, *constant))
    labels = {stem: label for each in found for stem, label in each.labels.items()}
    points = [{"shape": each.shape, "modules": each.modules} for each in found]
    (folder / INDEX).write_text(json.dumps({"points": points, "labels": labels}, indent=1) + "\n")
    sys.stdout.write(f"{len(points)} shapes, {len(labels)} modules\n")


if __name__ == "__main__":
    main()
