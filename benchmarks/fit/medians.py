"""Observations in files: the record of a suite, and the table of medians that the fit needs of one.

``python -m benchmarks.fit.medians RECORD.jsonl TABLE.json`` makes a table of a record of
``gemmgen bench --suite``. A table has the specs of its kernels. The specs of a record are files in the
folder ``specs`` beside it. ``python -m benchmarks.fit.medians TABLE.json FOLDER`` writes the specs of the
kernels of a table, and a suite of its shapes: ``gemmgen bench FOLDER/*.yaml --suite
FOLDER/suite/shapes.yaml`` measures them again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.fit.observations import PINNED, SpecObservation
from gemmgen.bench.result_log import KernelEntry, Result, ResultLog
from gemmgen.plan.kernel import Kernel
from gemmgen.planner import plan_spec
from gemmgen.spec import Spec, SpecFile, load_spec, parse_recorded
from gemmgen.spec.model import stated
from gemmgen.spec.spelling import without_gone

Pins = dict[str, Any]
"""Values that a spec states, by the paths of their fields."""
UNTIMED: Final = ("title", "bench", "problem", "search")
"""Sections of a spec that do not change the kernel which its other sections state."""


def observations(path: Path) -> Iterator[SpecObservation]:
    """Yield an observation for each kernel on each shape of a table (``.json``) or a suite's record."""
    return _of_table(path) if path.suffix == ".json" else _of_record(path)


# --- tables


def _of_table(path: Path) -> Iterator[SpecObservation]:
    table = json.loads(path.read_text(encoding="utf-8"))
    sources = {
        name: SpecFile.of(Spec.model_validate(_data_of(table["problems"][kernel["of"]] | kernel["pins"])))
        for name, kernel in table["kernels"].items()
    }
    planned = {name: plan_spec(source) for name, source in sources.items()}
    for row in table["times"]:
        baseline_us = row["baseline_us"]
        for name, us in row["us"].items():
            kernel = table["kernels"][name]
            yield SpecObservation(
                tuple(row["shape"]),
                planned[name],
                us / 1e6,
                baseline_us / 1e6,
                contest=sources[name].contest,
                spec=name if kernel["rival"] == PINNED else kernel["rival"],
                rival=kernel["rival"],
            )


def unpack(table: Path, folder: Path) -> None:
    """Write the specs of a table's kernels into a folder, and a suite of its shapes into ``suite`` there."""
    found = json.loads(table.read_text(encoding="utf-8"))
    (folder / "suite").mkdir(parents=True)
    for name, kernel in found["kernels"].items():
        data = _data_of(found["problems"][kernel["of"]] | kernel["pins"])
        (folder / f"{name.replace(' ', '_')}.yaml").write_text(f"{json.dumps(data)}\n", encoding="utf-8")
    dtypes = {pins["operands.a.dtype"] for pins in found["problems"].values()}
    shapes = [row["shape"] for row in found["times"]]
    suite = {"title": table.stem, "dtypes": sorted(dtypes), "families": {"all": {"shapes": shapes}}}
    (folder / "suite" / "shapes.yaml").write_text(f"{json.dumps(suite)}\n", encoding="utf-8")


def _data_of(pins: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain data of the spec that states these values."""
    data: dict[str, Any] = {"title": "a kernel of a record"}
    for path, value in without_gone(pins).items():
        *sections, name = path.split(".")
        place = data
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return data


def _pins(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _pins(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def table_of(record: Path) -> str:
    """Return the table of a suite's record as JSON, a kernel or a shape in each line."""
    log = ResultLog.opened(record)
    names: dict[str, str] = {}
    kernels: dict[str, tuple[str, str, Pins]] = {}
    for name, entry in log.kernels.items():
        stem = entry.subject.name
        source = _source_of(record, entry)
        rival = stem if _is_open(record, stem) else PINNED
        names[name] = stem if rival == PINNED else f"{stem} {len(kernels)}"
        data = {key: value for key, value in stated(source.spec).items() if key not in UNTIMED}
        kernels[names[name]] = source.description, rival, dict(_pins(data))
    problems = {
        problem: {
            path: value
            for path, value in next(pins for of, _, pins in kernels.values() if of == problem).items()
            if all(pins.get(path) == value for of, _, pins in kernels.values() if of == problem)
        }
        for problem in {of for of, _, _ in kernels.values()}
    }
    entries = {
        name: {
            "of": of,
            "rival": rival,
            "pins": {path: value for path, value in pins.items() if path not in problems[of]},
        }
        for name, (of, rival, pins) in kernels.items()
    }
    times = [
        {
            "shape": line.shape,
            "baseline_us": _us(line.observed(line.kernels[0]).baseline_seconds),
            "us": {names[arm.kernel]: _us(line.observed(arm).seconds) for arm in line.kernels},
        }
        for line in log.current()
        if isinstance(line, Result) and line.kernels
    ]
    session = log.sessions[-1]
    machine = session.environment
    head = {
        "record": record.name,
        "date": session.date,
        "gpu": machine.gpu,
        "torch": machine.torch,
        "triton": machine.triton,
        "baselines": [facts.baseline for facts in log.contests.values()],
    }
    parts = [*(f'"{key}": {json.dumps(value)}' for key, value in head.items())]
    parts += [_lines("problems", problems), _lines("kernels", entries)]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in times)
    parts.append(f'"times": [\n{rows}\n]')
    return "{" + ",\n".join(parts) + "}\n"


def _lines(name: str, values: Mapping[str, Any]) -> str:
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f'"{name}": {{\n{rows}\n}}'


def _us(seconds: float) -> float:
    return float(f"{seconds * 1e6:.6g}")


# --- records of suites


def _of_record(path: Path) -> Iterator[SpecObservation]:
    log = ResultLog.opened(path)
    for line in log.current():
        if isinstance(line, Result):
            for arm in line.kernels:
                entry = log.kernels[arm.kernel]
                stem, found = entry.subject.name, line.observed(arm)
                yield SpecObservation(
                    found.shape,
                    _planned(path, entry),
                    found.seconds,
                    found.baseline_seconds,
                    contest=line.contest,
                    spec=stem,
                    rival=stem if _is_open(path, stem) else PINNED,
                )


@cache
def _file_of(record: Path, stem: str) -> SpecFile:
    """Return the spec of this stem; raises FileNotFoundError if the record has no such spec beside it."""
    path = record.parent / "specs" / f"{stem}.yaml"
    if not path.exists():
        raise FileNotFoundError(f"{record} needs the spec {path}")
    return load_spec(path)


@cache
def _is_open(record: Path, stem: str) -> bool:
    """Return True if a spec leaves its tile to the planner, which then chose kernels for each shape."""
    return _file_of(record, stem).spec.tile.m is None


@cache
def _source_of(record: Path, entry: KernelEntry) -> SpecFile:
    """Return the spec that states the kernel of an entry of a record."""
    if entry.spec is None:
        return _file_of(record, entry.subject.name)
    return parse_recorded(entry.spec, entry.subject.name)


@cache
def _planned(record: Path, entry: KernelEntry) -> Kernel:
    return plan_spec(_source_of(record, entry))


def main() -> None:
    """Write the table of a record, or the specs of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path, metavar="RECORD|TABLE")
    parser.add_argument("out", type=Path, metavar="TABLE|FOLDER")
    given = parser.parse_args()
    if given.source.suffix == ".json":
        unpack(given.source, given.out)
    else:
        given.out.write_text(table_of(given.source), encoding="utf-8")


if __name__ == "__main__":
    main()
