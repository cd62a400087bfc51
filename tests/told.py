"""Diagnostics of the invalid specs as data: their words may change, and what they say may not.

    python tests/told.py

writes ``diagnostics.json`` of each folder under tests/invalid anew; review what changed. The full texts of
some forty specs stay beside them as ``.txt``: they are the style sheet of diagnostics.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.planner import plan_spec
from gemmgen.spec import load_spec

ROOT = Path(__file__).parent.parent
INVALID = ROOT / "tests" / "invalid"
FILE = "diagnostics.json"
NUMBER = re.compile(r"(?<![\w.\-])\d+(?:\.\d+)?(?![\w\-])")
"""A number that stands alone: "16-bit", "fp8" and "64x256" are words."""

Told = list[dict[str, Any]]


def data_of(diagnostics: tuple[Diagnostic, ...]) -> Told:
    """Return what diagnostics say, without their words: rule, field, place, numbers, advice and fixes."""
    found = [
        {
            "code": each.code,
            "field": each.field,
            "place": [each.line, each.column],
            "severity": each.severity,
            "numbers": sorted(set(NUMBER.findall(each.message.replace(",", ""))), key=by_value),
            "advice": dict(each.advice),
            "fix": [[[step.field, step.bound, step.value] for step in steps] for steps in each.fix],
        }
        for each in diagnostics
    ]
    return json.loads(json.dumps(found))


def by_value(number: str) -> tuple[float, str]:
    """Return the key by which numbers are sorted: 1 comes before 1.0."""
    return float(number), number


@cache
def committed(folder: str) -> dict[str, Told]:
    """Return what is committed of a folder under tests/invalid, by the names of its specs."""
    return json.loads((INVALID / folder / FILE).read_text(encoding="utf-8"))


def texts(folder: str) -> list[str]:
    """Return the names of a folder's specs whose full text is committed."""
    return sorted(path.stem for path in (INVALID / folder).glob("*.txt"))


def diagnostics(path: Path) -> tuple[Diagnostic, ...]:
    """Return what the loader and the planner say of a spec; nothing if it is legal."""
    try:
        plan_spec(load_spec(path))
    except GemmgenError as error:
        return error.diagnostics
    return ()


def refusal(call: Callable[[], object]) -> Diagnostic:
    """Return the one diagnostic that a call ends with."""
    with pytest.raises(GemmgenError) as caught:
        call()
    (found,) = caught.value.diagnostics
    return found


def main() -> None:
    """Write the data of every folder."""
    os.chdir(ROOT)
    for folder in sorted(path for path in INVALID.iterdir() if path.is_dir()):
        specs = sorted(folder.relative_to(ROOT).glob("*.yaml"))
        made = {spec.stem: data_of(diagnostics(spec)) for spec in specs}
        lines = ",\n".join(
            f" {json.dumps(stem)}: [\n" + ",\n".join(f"  {json.dumps(each)}" for each in told) + "\n ]"
            for stem, told in made.items()
        )
        (folder / FILE).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
