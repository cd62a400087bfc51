"""A machine that follows advice: it changes a refused spec as its diagnostics say, and plans it again.

``python tests/advice.py`` follows the advice of every invalid spec and of 2,000 random refused ones, and
prints how many rounds they took; it fails where advice goes in a circle or does not end in two rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from gemmgen.errors import Advice, Diagnostic, GemmgenError
from gemmgen.planner import plan_spec
from gemmgen.spec import load_spec, parse_spec
from gemmgen.spec.spelling import RENAMED
from tools.fuzz import draft, tables

ROOT = Path(__file__).parent.parent
MOST_ROUNDS = 2
TARGETS = tuple(tables.TABLES)
"""Of random specs by turns."""


@dataclass(frozen=True)
class Followed:
    """What following the advice of a spec came to."""

    rounds: int
    """Changes until there was a legal plan."""
    changes: int
    """Fields that the first round changed."""
    fault: str = ""
    """Why it did not end; empty if it did."""


def changed(data: Mapping[str, Any], advice: Advice) -> dict[str, Any]:
    """A spec's data with the values that advice names; None leaves a field out, or an item of a list.

    A field that the spec has under an earlier name is written anew under its name of today.
    """
    result = deepcopy(dict(data))
    for path, value in reversed(advice):
        head, _, rest = path.partition(".")
        *steps, last = [head, rest] if head == "search" else path.split(".")
        section: Any = result
        for step in steps:
            section = section[int(step)] if step.isdecimal() else section.setdefault(step, {})
        key: Any = int(last) if last.isdecimal() else last
        for renamed in RENAMED:
            if path == renamed.path:
                section.pop(renamed.earlier_key, None)
        if value is not None:
            section[key] = [*value] if isinstance(value, tuple) else value
        elif last.isdecimal() or last in section:
            del section[key]
    return result


def asked(found: Sequence[Diagnostic]) -> Advice:
    """What diagnostics advise together, the items of a list in their order."""
    fields = {path: value for diagnostic in found for path, value in diagnostic.advice}
    return tuple(sorted(fields.items(), key=lambda pair: [step.zfill(9) for step in pair[0].split(".")]))


def follow(path: Path) -> Followed | None:
    """Follow the advice of a spec to its end; None if it is legal, or no rule refuses it."""
    with tempfile.TemporaryDirectory() as directory:
        return _follow(path, Path(directory))


def _follow(path: Path, directory: Path) -> Followed | None:
    data: dict[str, Any] | None = None
    seen: set[str] = set()
    changes = 0
    for rounds in range(MOST_ROUNDS + 1):
        try:
            source = load_spec(path)
        except GemmgenError as error:
            return Followed(rounds, changes, f"no spec: {error}") if rounds else None
        try:
            plan_spec(source)
        except GemmgenError as error:
            found = error.diagnostics
        else:
            return Followed(rounds, changes) if rounds else None
        text = "\n".join(map(str, found))
        if text in seen:
            return Followed(rounds, changes, f"a circle: {text}")
        seen.add(text)
        if not all(diagnostic.advice for diagnostic in found):
            return Followed(rounds, changes, f"no advice: {text}")
        if rounds == MOST_ROUNDS:
            return Followed(rounds, changes, f"no end: {text}")
        if data is None:
            data = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
        assert data is not None
        advice = asked(found)
        gone = tuple(f"{field}." for field, value in advice if value is None)
        if any(field.startswith(gone) and value is not None for field, value in advice):
            return Followed(rounds, changes, f"a field of what is left out has a value: {text}")
        data = changed(data, advice)
        changes = changes or len(advice)
        path = directory / path.name
        path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in data.items()))
    raise AssertionError("the last round returns")


def invalid_specs() -> list[Path]:
    """The specs that tests refuse, by a rule or a choice."""
    return sorted(path for name in ("rules", "blackwell", "choices") for path in invalid(name))


def invalid(name: str) -> Iterator[Path]:
    """Those of one directory."""
    return (ROOT / "tests" / "invalid" / name).glob("*.yaml")


def refused_specs(directory: Path, seed: int, numbers: Iterable[int]) -> Iterator[tuple[int, Path]]:
    """Random specs that a rule refuses, each with its number: the last one on the way to a legal spec.

    Those of a seed and a number are the same each time.
    """
    for number in numbers:
        _, refused = draft.drawn(TARGETS[number % len(TARGETS)], seed, number)
        if refused is not None:
            path = directory / f"random_{number}.yaml"
            path.write_text(draft.spec_text(refused))
            yield number, path


def layer_specs(directory: Path, seed: int, numbers: Iterable[int]) -> Iterator[tuple[int, Path]]:
    """Random refused specs with groups, gates, saved sums, scales and rows by index, each with its number.

    Each is as it was drawn, or up to five rounds closer to a legal spec. Some therefore have many faults, and
    others have one. Equal seeds and numbers give equal specs.
    """
    for number in numbers:
        drawn = islice(draft.drafts("crossed", seed, number), 1 + number % 6)
        *_, last = (each for each in drawn if each.refused)
        path = directory / f"crossed_{number}.yaml"
        path.write_text(draft.spec_text(last.values))
        yield number, path


def illegal_alternatives(path: Path) -> list[str]:
    """Changes that the messages about a spec name and that rules refuse, alone and with all other advice."""
    try:
        source = load_spec(path)
    except GemmgenError:  # it is no spec
        return []
    try:
        plan_spec(source)
    except GemmgenError as error:
        found = error.diagnostics
    else:
        return []
    data = YAML(typ="safe", pure=True).load(path)  # pyright: ignore[reportUnknownMemberType]
    wrong: list[str] = []
    for diagnostic in found:
        others = asked([other for other in found if other is not diagnostic])
        for steps in diagnostic.fix:
            alone = tuple((step.field, step.value) for step in steps)
            if not any(_is_legal(data, change, path) for change in (alone, (*others, *alone))):
                wrong.append(f"{diagnostic.field}: {alone}")
    return wrong


def _is_legal(data: Mapping[str, Any], change: Advice, path: Path) -> bool:
    changes = dict(change)
    ordered = sorted(changes.items(), key=lambda pair: [step.zfill(9) for step in pair[0].split(".")])
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in changed(data, tuple(ordered)).items())
    try:
        plan_spec(parse_spec(text.encode(), path.stem))
    except GemmgenError:
        return False
    return True


def main() -> None:
    """Print what following all advice came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--specs", type=int, default=2000, metavar="N", help="random refused specs")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of all of them")
    args = parser.parse_args()
    results: list[tuple[str, Followed]] = []
    for path in invalid_specs():
        if found := follow(path):
            results.append((path.relative_to(ROOT).as_posix(), found))
    of_tests = len(results)
    last = 0
    with tempfile.TemporaryDirectory() as directory:
        for number, path in refused_specs(Path(directory), args.seed, count()):
            if found := follow(path):
                results.append((f"number {number}", found))
                last = number
            if len(results) == of_tests + args.specs:
                break
    faults = [(name, found) for name, found in results if found.fault]
    for name, found in faults:
        sys.stderr.write(f"{name}: {found.fault}\n")
    figures = {
        "invalid_specs": of_tests,
        "random_refused_specs": len(results) - of_tests,
        "seed": args.seed,
        "numbers": [0, last],
        "rounds": dict(sorted(Counter(found.rounds for _, found in results if not found.fault).items())),
        "fields_changed": dict(sorted(Counter(min(found.changes, 9) for _, found in results).items())),
        "without_end": len(faults),
    }
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
