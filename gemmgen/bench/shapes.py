"""Problem shapes as users give them: a list on the command line, or a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Shape

SUFFIXES: Final = (".yaml", ".yml", ".json")


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the shapes [M, N, K], each once, in the order given.

    ``text`` is ``MxNxK,MxNxK`` or the path of a YAML or JSON file, which holds either a list of [M, N, K] or
    a suite: named lists of them, and optionally ``llm_m``, a list of M, with ``llm_nk``, named lists of
    [N, K], each of which is taken with every M.

    Raises GemmgenError (``bad-shapes``).
    """
    if text.lower().endswith(SUFFIXES):
        shapes = tuple(_document_shapes(_load(text), text))
    else:
        shapes = tuple(_inline_shape(part.strip(), text) for part in text.split(","))
    if not shapes:
        raise _error(text, "there is no shape in it")
    return tuple(dict.fromkeys(shapes))


def _inline_shape(part: str, text: str) -> Shape:
    match = re.fullmatch(r"([1-9][0-9]{0,9})x([1-9][0-9]{0,9})x([1-9][0-9]{0,9})", part)
    if match is None:
        expected = "write MxNxK,MxNxK or the path of a .yaml, .yml or .json file"
        raise _error("--shapes", f"`{part}` in `{text}` is no shape; {expected}")
    m, n, k = map(int, match.groups())
    return m, n, k


def _load(path: str) -> object:
    yaml: Any = YAML(typ="safe", pure=True)  # JSON is YAML
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, f"cannot read the shapes: {error}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        mark: Any = getattr(error, "problem_mark", None)
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        message = f"not YAML: {getattr(error, 'problem', None) or type(error).__name__}"
        raise GemmgenError([Diagnostic(path, "bad-shapes", message, line=line, column=column)]) from error


def _document_shapes(document: object, path: str) -> Iterator[Shape]:
    if isinstance(document, list):
        yield from _list_shapes(cast("list[object]", document), path, "")
    elif isinstance(document, dict):
        suite = cast("dict[object, object]", document)
        if ("llm_m" in suite) != ("llm_nk" in suite):
            raise _error(path, "`llm_m` and `llm_nk` need each other")
        for name, value in suite.items():
            if name == "llm_nk":
                yield from _crossed(suite["llm_m"], value, path)
            elif name != "llm_m":
                yield from _list_shapes(value, path, str(name))
    else:
        raise _error(path, "neither a list of [M, N, K] nor a suite of named lists")


def _list_shapes(value: object, path: str, field: str) -> Iterator[Shape]:
    for index, element in enumerate(_list(value, path, field)):
        m, n, k = _extents(element, "MNK", path, f"{field}.{index}" if field else str(index))
        yield m, n, k


def _crossed(llm_m: object, llm_nk: object, path: str) -> Iterator[Shape]:
    """Yield every layer [N, K] of every model with every M."""
    if not isinstance(llm_nk, dict):
        raise _error(path, "must be named lists of [N, K]", "llm_nk")
    rows = _extents(_list(llm_m, path, "llm_m"), "", path, "llm_m")
    for model, layers in cast("dict[object, object]", llm_nk).items():
        field = f"llm_nk.{model}"
        for index, layer in enumerate(_list(layers, path, field)):
            n, k = _extents(layer, "NK", path, f"{field}.{index}")
            yield from ((m, n, k) for m in rows)


def _list(value: object, path: str, field: str) -> list[object]:
    if not isinstance(value, list):
        raise _error(path, "must be a list", field)
    return cast("list[object]", value)


def _extents(value: object, names: str, path: str, field: str) -> list[int]:
    """Return positive integers, one for each of ``names`` where there are any."""
    extents = _list(value, path, field)
    expected = f"[{', '.join(names)}]" if names else "a list"
    if names and len(extents) != len(names):
        raise _error(path, f"must be {expected}, has {len(extents)} numbers", field)
    numbers = [extent for extent in extents if type(extent) is int and extent > 0]
    if len(numbers) != len(extents):
        raise _error(path, f"must be {expected} of positive integers", field)
    return numbers


def _error(path: str, message: str, field: str | None = None) -> GemmgenError:
    return GemmgenError([Diagnostic(path, "bad-shapes", message, field=field or None)])
