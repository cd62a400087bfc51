"""Python source text: its statements, and whether it alone decides what its kernels compile to."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from functools import lru_cache

MOST_PARSES = 10
"""Tries to parse a text beside other threads: it fails once in about 200."""

STANDARD = {"__future__", "dataclasses", "functools", "math", "types", "typing", "warnings"}
SELF_CONTAINED = frozenset(STANDARD | {"torch", "triton", "gemmgen_launch"})
"""Packages that a file may import without a change to its kernels; the launcher has host code only."""

GRADIENTS = 'importlib.import_module(f"{__name__}_grad_{name}")'
"""The import by which a generated module finds the modules of its gradients, on the host."""


def parsed(source: str) -> ast.Module:
    """Parse Python, also while other threads do.

    Python 3.11 counts the depth of all threads' trees together, so that a parse during which another begins
    or ends can find the wrong depth, which it raises as a SystemError: the next one does not.

    Raises:
        SyntaxError, ValueError: It is no Python.
    """
    for _ in range(MOST_PARSES):
        with contextlib.suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)


_IMPORT = re.compile(r"\bimport\b")
_PLAIN_IMPORT = re.compile(
    r"\s*(?:import (\w+)[\w.]*(?: as \w+)?"
    r"|from (?:\.(?=gemmgen_launch\b))?(\w+)[\w.]* import (?:\(|[\w, ]+))(?:  #.*)?"
)


@lru_cache(maxsize=16)
def is_self_contained(source: str) -> bool:
    """Return whether a text alone decides its kernels: it imports only `SELF_CONTAINED` and `GRADIENTS`."""
    # To parse takes ten milliseconds, and most files import only in lines that are a statement each.
    joined = source.replace("\\\n", " ").splitlines()
    lines = [_PLAIN_IMPORT.fullmatch(line) for line in joined if _IMPORT.search(line)]
    if lines and all(line is not None and (line[1] or line[2]) in SELF_CONTAINED for line in lines):
        return True
    try:
        tree = parsed(source)
    except (ValueError, SyntaxError):
        return False
    imported: list[str] = []
    for node in statements(tree):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported.append(node.module or "" if node.level == 0 or node.module == "gemmgen_launch" else "")
    allowed = {*SELF_CONTAINED, *["importlib"] * (GRADIENTS in source and source.count("importlib") == 2)}
    return all(name.partition(".")[0] in allowed for name in imported)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield each node of a tree that is or can contain a statement, outer ones first.

    Expressions, most of a tree, contain no statements.
    """
    for part in ast.iter_child_nodes(tree):
        if not isinstance(part, ast.expr):
            yield part
            yield from statements(part)
