"""The modules that stand for all others in tests: together they are made of every template.

``python -m tools.cover`` chooses them one by one and writes ``tests/cover.json``: each is the module with the
most templates that those before it lack, and once they have all, with the most pairs of templates. A fault in
a template shows in a module that is made of it, and a fault of two templates that do not fit together in a
module that is made of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import jinja2

from gemmgen.cli.reporting import say
from gemmgen.product import make, write_files

ROOT: Final = Path(__file__).parents[1]
COVER: Final = ROOT / "tests" / "cover.json"
"""The committed choice."""
FOLDERS: Final = (ROOT / "specs", ROOT / "generated", ROOT / "tests" / "pairs" / "specs")
"""Where specs are: those that a person would start from, those of gradients, and all others."""
MODULES: Final = 64
"""Modules that are chosen."""


@contextmanager
def noting() -> Generator[set[str]]:
    """Note the names of the templates that are rendered, for as long as the context lasts."""
    found: set[str] = set()
    get_template = jinja2.Environment.get_template

    def noted(self: jinja2.Environment, name: Any, *others: Any, **named: Any) -> jinja2.Template:
        found.add(str(name))  # gemmgen's templates include each other by name
        return get_template(self, name, *others, **named)

    jinja2.Environment.get_template = noted
    try:
        yield found
    finally:
        jinja2.Environment.get_template = get_template


def templates_by_module() -> dict[str, frozenset[str]]:
    """Return the names of the templates that each committed module is made of, by the module's name."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.yaml")):
        with noting() as templates:
            make(path)
        found[path.stem] = frozenset(templates)
    return found


def chosen(templates: Mapping[str, frozenset[str]], most: int) -> list[str]:
    """Return the names of modules that cover all templates, and then as many pairs of them as they can.

    They are more than `most` only if every template needs it.
    """
    covering = _greedy(templates, lambda name: templates[name], len(templates))
    pairs = {name: frozenset(combinations(sorted(each), 2)) for name, each in templates.items()}
    return _greedy(pairs, lambda name: pairs[name], max(most, len(covering)), covering)


def _greedy(
    names: Iterable[str],
    parts: Callable[[str], frozenset[Any]],
    most: int,
    first: Iterable[str] = (),
) -> list[str]:
    """Return names, each the one with the most parts that those before it lack, until none has any."""
    found = list(first)
    covered = set[Any]().union(*map(parts, found))
    left = sorted(set(names) - set(found))
    while left and len(found) < most:
        best = max(left, key=lambda name: len(parts(name) - covered))
        if not parts(best) - covered:
            break
        found.append(best)
        covered |= parts(best)
        left.remove(best)
    return found


def main() -> None:
    """Choose the modules, write them, and print how much they cover."""
    templates = templates_by_module()
    modules = chosen(templates, MODULES)
    write_files({COVER: (json.dumps(sorted(modules), indent=2) + "\n").encode()})
    pairs = [
        set[tuple[str, str]]().union(*(combinations(sorted(templates[name]), 2) for name in names))
        for names in (modules, templates)
    ]
    say(
        f"{len(modules)} of {len(templates)} modules have all {len(set[str]().union(*templates.values()))} "
        f"templates and {len(pairs[0]):,} of {len(pairs[1]):,} pairs"
    )


if __name__ == "__main__":
    main()
