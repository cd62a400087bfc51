"""The errors of Triton's compiler, as messages with places."""

from __future__ import annotations

import re
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any


@dataclass(frozen=True)
class Complaint:
    """An error of the compiler about a kernel."""

    text: str
    """The message, in one line."""
    places: tuple[tuple[str, int], ...]
    """Files and 1-based lines: the wrong statement, then the calls that lead there; may be empty."""


def complaint(error: BaseException, printed: str) -> Complaint:
    """Return the message and places of an error, from the printed text if a later stage raised it."""
    from triton.compiler.errors import CompilationError  # pyright: ignore[reportMissingTypeStubs]

    places: list[tuple[str, int]] = []
    cause: BaseException | None = error
    while isinstance(cause, CompilationError):  # from the kernel to the function that is wrong
        error, cause = cause, cause.__cause__
        places[:0] = _places_of(error)
    told = _PRINTED.search(printed)
    if told and not places:
        return Complaint(" ".join(told["text"].split()), ((told["file"], int(told["line"])),))
    text = getattr(error, "error_message", None) or str(error)
    if type(error) is not CompilationError:
        text = f"{type(error).__name__}: {text}"
    return Complaint(" ".join(text.split()), tuple(places))


_PRINTED = re.compile(
    r"^(?:loc\(\")?(?P<file>[^\":\n]+)\"?:(?P<line>\d+):\d+\)?: error: "
    r"(?P<text>.*(?:\n(?!\s|.*: (?:error|warning|note|remark): ).+)*)",
    re.MULTILINE,
)
"""How MLIR prints an error that has a place: the source line below it is indented."""


def _places_of(error: Any) -> list[tuple[str, int]]:
    """Return the line that an error is about: it has its function's text, and its traceback the function."""
    visitors = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    visited = (getattr(visitor, "jit_fn", None) for visitor in visitors)
    functions = [function for function in visited if function is not None and function.src == error.src]
    line: int | None = getattr(error.node, "lineno", None)
    if not functions or line is None:
        return []
    return [(functions[-1].file_name, functions[-1].def_file_line_number + line - 1)]
