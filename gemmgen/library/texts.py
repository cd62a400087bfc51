"""The files of a library as texts: what chooses and calls, its kernels with their specs, and its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from gemmgen.files import read_text
from gemmgen.launcher_file import launcher_texts, library_texts
from gemmgen.library.assemble import Library
from gemmgen.library.init_view import InitView
from gemmgen.library.kernel_table import table_of
from gemmgen.library.manifest import LIBRARY_FORMAT, MANIFEST, TABLE, module_file, spec_file
from gemmgen.plan import cards, forecast, group_forecast, timing
from gemmgen.problem import groups
from gemmgen.render import render_template

COPIED: Final = (forecast, group_forecast, groups, timing, cards)
"""The modules of gemmgen that gemmgen_table.py imports: each library has copies of them."""


def rendered(library: Library) -> dict[str, str]:
    """Return the package by the names of its files; the manifest, which has the hashes, comes last."""
    found = choosing(library)
    for member in library.members:
        found[module_file(member.stem)] = member.product.module
        found[spec_file(member.stem)] = member.spec
    return found | {MANIFEST: _manifest(library, found)}


def choosing(library: Library, namespace: str = "") -> dict[str, str]:
    """Return the files around the kernels; of a pack, with the namespace of its operators."""
    view = InitView(library, namespace)
    return {
        "__init__.py": render_template("library/init.py.j2", view=view, library_format=LIBRARY_FORMAT),
        TABLE: _document(table_of(library)),
        **library_texts(),
        **{_file(module).name: read_text(_file(module)) for module in COPIED},
        **launcher_texts(),
    }


def _file(module: ModuleType) -> Path:
    return Path(str(module.__file__))


def _manifest(library: Library, files: Mapping[str, str]) -> str:
    """Return the text of the manifest."""
    return _document(
        {
            "gemmgen": {"library_format": LIBRARY_FORMAT},
            "name": library.name,
            "problem": asdict(library.problem),
            "description": library.description,
            "sources": [list(source) for source in library.sources],
            "sha256": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()},
        }
    )


def _document(members: Mapping[str, Any]) -> str:
    """Return a document as JSON, with a line for each row, so that differences can be read."""
    return "".join(_parts(members, depth=0)) + "\n"


def _parts(value: object, depth: int) -> Iterator[str]:
    """Yield the text of a value: members of the document, and whatever has lists or mappings, have lines."""
    items: list[tuple[str, object]] = []
    if isinstance(value, dict):
        named = cast("dict[str, object]", value)
        items = [(f"{json.dumps(name)}: ", item) for name, item in named.items()]
    elif isinstance(value, list):
        items = [("", item) for item in cast("list[object]", value)]
    is_flat = not any(isinstance(item, list | dict) for _, item in items)
    if len(items) < 2 or (is_flat and depth > 1):
        yield json.dumps(value)
        return
    first, last = "{}" if isinstance(value, dict) else "[]"
    for number, (head, item) in enumerate(items):
        yield f"{',' if number else first}\n{'  ' * (depth + 1)}{head}"
        yield from _parts(item, depth + 1)
    yield f"\n{'  ' * depth}{last}"
