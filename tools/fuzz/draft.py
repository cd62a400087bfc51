"""A random spec: drawn field by field, and brought closer to what is legal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.kernel import Kernel
from gemmgen.planner import attempted
from gemmgen.processes.scratch import scratch
from gemmgen.spec import SpecFile, load_spec
from tools.fuzz.crossed import CROSSED_TABLES
from tools.fuzz.tables import REQUIRED, TABLES, WILD
from tools.fuzz.values import Kinds, Stated, Values

ROUNDS = 60
"""Of bringing a spec closer to what is legal; one that is still refused then stays as it is."""


@dataclass(frozen=True)
class Draft:
    """A spec on the way to a legal one."""

    values: Values
    refused: tuple[Diagnostic, ...]
    """Why it is not legal, without the search for advice that ends; empty if it is, or is a finding."""


def drawn(target: str, seed: int, number: int, kind: str = "") -> tuple[Values, Values | None]:
    """Return the values of a random spec, and those of the last refused spec on the way to it.

    The spec is legal unless `ROUNDS` rounds did not suffice. The second result is None if the values were
    legal as first drawn. With a `kind`, the spec is of this kind of kernels of the target.
    """
    *others, last = drafts(target, seed, number, kind)
    return last.values, others[-1].values if others else None


def drafts(target: str, seed: int, number: int, kind: str = "") -> Iterator[Draft]:
    """Yield a random spec as it is drawn, and then round by round closer to what is legal.

    The last one is legal, unless so many rounds did not do.
    """
    rng, (kind, own) = _kind(target, seed, number, kind)
    choices = {**_table(target)[0], **own}
    left_out, wild = rng.choice((0.2, 0.4, 0.6, 0.8)), rng.choice((0.0, 0.0, 0.03, 0.1))
    values: Values = {"title": f"{kind} {number} of seed {seed}"}
    for path, tame in choices.items():
        if tame and (path in REQUIRED or path in own or rng.random() > left_out):
            values[path] = rng.choice(WILD[path] if path in WILD and rng.random() < wild else tame)
    if "operands.b.dtype" not in own and rng.random() < 0.8:  # of types at random, few go together
        values["operands.b.dtype"] = values["operands.a.dtype"]
    for _ in range(ROUNDS):
        refused = _refused(values)
        yield Draft(dict(values), refused)
        if not refused:
            return
        _amend(values, [found.field or "" for found in refused], choices, rng)
    yield Draft(values, _refused(values))


def kind_of(target: str, seed: int, number: int) -> str:
    """Return the kind of kernel of a random spec."""
    return _kind(target, seed, number)[1][0]


def _kind(target: str, seed: int, number: int, kind: str = "") -> tuple[random.Random, tuple[str, Stated]]:
    """Return what a random spec is drawn with, and its kind with the values of its own.

    It is one of all kinds of the target, or of the rows of one `kind`.
    """
    rng = random.Random(f"{target} {seed} {number}")
    return rng, rng.choice([row for row in _table(target)[1] if not kind or row[0] == kind])


def _table(target: str) -> tuple[Stated, Kinds]:
    """Return the fields and the kinds of a table by its name."""
    return TABLES[target] if target in TABLES else CROSSED_TABLES[target]


def _refused(values: Values) -> tuple[Diagnostic, ...]:
    """Return why a spec is not legal; nothing if it is."""
    try:
        source = spec_of(values)
        found = attempted(source)
    except GemmgenError as error:
        return error.diagnostics
    except Exception:  # that is a finding, as the spec now is
        return ()
    return () if isinstance(found, Kernel) else tuple(violation.diagnosed(source) for violation in found)


def _amend(values: Values, blamed: Iterable[str], choices: Stated, rng: random.Random) -> None:
    """Draw the fields anew that are blamed, or leave them out; one at random if none of them is stated."""
    paths = {path for field in blamed for path in _stated(values, field)}
    optional = sorted(values.keys() - {*REQUIRED, "title"})
    for path in sorted(paths) or rng.sample(optional, min(1, len(optional))):
        if path in REQUIRED or (choices.get(path) and rng.random() < 0.5):
            values[path] = rng.choice(choices[path])
            if path == "operands.b.dtype" and rng.random() < 0.5:
                values[path] = values["operands.a.dtype"]
        else:
            values.pop(path, None)


def _stated(values: Values, field: str) -> Iterator[str]:
    """Yield the stated field that a diagnostic blames, or the one of which it blames a part."""
    while field:
        if field in values and field != "title":
            yield field
            return
        field = field.rpartition(".")[0]


def spec_text(values: Values) -> str:
    """Return values as the text of a spec."""
    sections: dict[str, Any] = {}
    for path, value in values.items():
        *steps, name = path.split(".")
        section = sections
        for step in steps:
            section = section.setdefault(step, {})
        section[name] = value
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sections.items())


def spec_of(values: Values) -> SpecFile:
    """Return the spec of values.

    Raises:
        GemmgenError: They are no spec.
    """
    with scratch() as directory:
        path = Path(directory) / "random_spec.yaml"
        path.write_text(spec_text(values), encoding="utf-8")
        return load_spec(path)
