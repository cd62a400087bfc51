"""Plant faults, judge each as both suites would, and record what each suite finds.

``python -m tools.planted [--faults N] [--seed S] [--record FILE]`` continues a record of the same seed. A
fault is not counted if it changes no code of a module and no plan, or if no module is made that it is about.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gemmgen.cli.reporting import say
from gemmgen.product import Product, make, write_files
from tools.cover import COVER, FOLDERS, noting, templates_of
from tools.planted.child import Modules, judged
from tools.planted.faults import ROOT, Fault, drawn
from tools.planted.judge import base_of
from tools.planted.table import COUNTED, outcome_of, rows, totals

RECORD: Final = ROOT / "tests" / "records" / "planted.json"
FAULTS: Final = 120
SECONDS: Final = 25
"""For the modules of the cover, and for all others, of a fault; then no further module is begun."""


def read_modules() -> Modules:
    """Make all modules without a fault."""
    products: dict[str, Product] = {}
    templates: dict[str, frozenset[str]] = {}
    for spec in sorted(path for folder in FOLDERS for path in folder.glob("*.yaml")):
        with noting() as lines:
            products[spec.stem] = make(spec)
        templates[spec.stem] = templates_of(lines)
    bases = {stem: base_of(Path(product.source.path), product) for stem, product in products.items()}
    return Modules(products, bases, templates, frozenset(json.loads(COVER.read_text(encoding="utf-8"))))


def entry_of(fault: Fault) -> dict[str, Any]:
    """Return what a record says of a fault before it is judged."""
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    before, after = fault.lines(text)
    place = {"file": fault.file, "line": fault.line(text), "operator": fault.operator}
    return {**place, "before": before, "after": after}


def _key(entry: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(entry[name] for name in ("file", "line", "operator", "before", "after"))


def _write(record: Path, seed: int, faults: list[dict[str, Any]]) -> None:
    text = json.dumps({"seed": seed, "totals": totals(faults), "faults": faults}, indent=1)
    write_files({record: f"{text}\n".encode()})


def main() -> None:
    """Plant faults until as many as wanted are counted."""
    parser = argparse.ArgumentParser(prog="python -m tools.planted", description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS, help="faults to count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()

    known: dict[tuple[object, ...], dict[str, Any]] = {}
    if options.record.exists():
        record = json.loads(options.record.read_text(encoding="utf-8"))
        if record["seed"] != options.seed:
            parser.error(f"{options.record} has the faults of seed {record['seed']}")
        known = {_key(each): each for each in record["faults"]}
    # What faulty modules compile to is of no use to others.
    os.environ["GEMMGEN_CACHE_DIR"] = str(ROOT / "build" / "planted")
    importlib.import_module("torch").set_num_threads(1)
    modules = read_modules()
    faults = drawn(options.seed)
    found: list[dict[str, Any]] = []
    while sum(each["outcome"] in COUNTED for each in found) < options.faults:
        fault = next(faults)
        entry = entry_of(fault)
        old = known.pop(_key(entry), None)
        if old:
            found.append(old)
            continue
        start = time.monotonic()
        entry |= outcome_of(*judged(fault, modules, SECONDS))
        found.append(entry)
        _write(options.record, options.seed, [*found, *known.values()])
        seconds = time.monotonic() - start
        say(f"{entry['outcome']}: {fault.file}:{entry['line']} {fault.operator}, {seconds:.1f} s")
    _write(options.record, options.seed, found)
    for row in rows(totals(found)):
        say(row)


if __name__ == "__main__":
    main()
