"""The modules that stand for all others in tests: together they have every line of every template.

``python -m tools.cover`` chooses them one by one and writes ``tests/cover.json``: each is the module with the
most lines of templates that those before it lack, and once they have all, with the most pairs of templates.
A fault in a line of a template shows in a module that has the line, and a fault of two templates that do not
fit together in a module that is made of both. Lines are counted in each branch and macro that is rendered: a
module can have a template without its other branch. A line counts once more for each form of its expressions:
``{{ ", mask=inside" * condition }}`` has a branch too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any, Final

from gemmgen.cli.reporting import say
from gemmgen.literals import only_visible
from gemmgen.product import make, write_files
from gemmgen.render import templates_folder

ROOT: Final = Path(__file__).parents[1]
COVER: Final = ROOT / "tests" / "cover.json"
"""The committed choice."""
FOLDERS: Final = (ROOT / "specs", ROOT / "generated", ROOT / "tests" / "pairs" / "specs")
"""Where specs are: those that a person would start from, those of gradients, and all others."""
MODULES: Final = 76
"""Modules that are chosen."""

ALSO: Final = {
    "h100_fp16_gated_interleaved_bias_cluster1x2": "a load of several lines within stage_multicast.py.j2",
}
"""Modules without which a planted fault was found by `make nightly` alone, with what they have."""

Line = tuple[str, int, str]
"""The name of a template, a line of the Python function that Jinja makes of it or of a macro of it, and the
form of the text that the line yields: an expression may be empty, and have one line or several."""


@contextmanager
def noting() -> Generator[set[Line]]:
    """Note the lines of templates that are rendered, for as long as the context lasts."""
    found: set[Line] = set()
    folder = f"{templates_folder()}/"

    def note(frame: FrameType, form: str) -> None:
        found.add((frame.f_code.co_filename.removeprefix(folder), frame.f_lineno, form))

    def of_template(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            note(frame, "")
        return of_template

    def of_call(frame: FrameType, _event: str, _: object) -> Any:
        code, caller = frame.f_code, frame.f_back
        if code is only_visible.__code__:  # Jinja passes it the value of each expression
            if caller and caller.f_code.co_filename.startswith(folder):
                note(caller, _form(frame.f_locals[code.co_varnames[0]]))
            return None
        # The module of a template is executed once, when it is first used.
        rendered = code.co_filename.startswith(folder) and code.co_name != "<module>"
        return of_template if rendered else None

    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        yield found
    finally:
        sys.settrace(before)


def _form(value: object) -> str:
    """Return the form of a text: empty, one line, or several lines."""
    return "none" if not value else "lines" if "\n" in str(value).rstrip("\n") else "line"


def lines_by_module() -> dict[str, frozenset[Line]]:
    """Return the lines of templates that each committed module is made of, by the module's name."""
    found: dict[str, frozenset[Line]] = {}
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.yaml")):
        with noting() as lines:
            make(path)
        found[path.stem] = frozenset(lines)
    return found


def templates_of(lines: Iterable[Line]) -> frozenset[str]:
    """Return the names of the templates that have these lines."""
    return frozenset(template for template, *_ in lines)


def pairs_of(lines: Iterable[Line]) -> frozenset[tuple[str, ...]]:
    """Return the pairs of the templates that have these lines."""
    return frozenset(combinations(sorted(templates_of(lines)), 2))


def chosen(lines: Mapping[str, frozenset[Line]], most: int) -> list[str]:
    """Return the names of modules that have all lines, and then as many pairs of templates as they can.

    They are more than `most` only if every line needs it.
    """
    covering = _greedy(lines, lambda name: lines[name], len(lines), [name for name in ALSO if name in lines])
    pairs = {name: pairs_of(each) for name, each in lines.items()}
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
    argparse.ArgumentParser(
        prog="python -m tools.cover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    lines = lines_by_module()
    modules = chosen(lines, MODULES)
    write_files({COVER: (json.dumps(sorted(modules), indent=2) + "\n").encode()})
    pairs = [
        frozenset[tuple[str, ...]]().union(*(pairs_of(lines[name]) for name in names))
        for names in (modules, lines)
    ]
    say(
        f"{len(modules)} of {len(lines)} modules have all {len(frozenset[Line]().union(*lines.values())):,} "
        f"lines of templates and {len(pairs[0]):,} of {len(pairs[1]):,} pairs of templates"
    )


if __name__ == "__main__":
    main()
