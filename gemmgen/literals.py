"""A value as a literal, or as text that cannot leave its place: in Python, C, HTML, SVG and on a terminal.

All templates have these as filters. Text without quotes, backslashes and characters that cannot be printed
comes back as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from types import MappingProxyType
from typing import Final

_C_COMMENT_BREAK = re.compile(r"(?<=\*)(?=/)|(?<=/)(?=\*)|(?<=\?)(?=\?[=/'()!<>-])")
"""Where two letters together would end or begin a comment, or be part of a trigraph."""


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return text in one line, with Python's escapes for characters that cannot be printed, e.g. ``\x1b``.

    These are line breaks, control characters, which a terminal would obey, characters that reverse the
    direction of text, spaces of other widths, and halves of surrogate pairs, which stand for bytes that are
    not UTF-8. With `lines`, line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        letter if letter.isprintable() or letter in kept else letter.encode("unicode_escape").decode()
        for letter in text
    )


def python_literal(value: object) -> str:
    """Return the Python literal of a text, in double quotes, or of a finite number or None.

    Raises TypeError for a value of another type, and for a number that Python has no literal of.
    """
    if isinstance(value, str):
        return f'"{_inside_quotes(value)}"'
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    raise TypeError(f"there is no literal of {value!r}")


def python_tuple(values: Iterable[object]) -> str:
    """Return the Python literal of a tuple of values that have one; raises TypeError as `python_literal`."""
    items = [python_literal(value) for value in values]
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def docstring_text(text: str) -> str:
    """Return lines of text for a docstring in double quotes, which then reads as the text does."""
    return "\n".join(_inside_quotes(line) for line in text.split("\n"))


def comment_text(text: str) -> str:
    """Return a text for a comment that ends with its line."""
    return visible(text)


def c_comment_text(text: str) -> str:
    """Return text for one line of a C comment, which it neither ends nor makes a compiler warn about.

    ``*/``, ``/*`` and trigraphs get a space inside. A character that cannot be printed, such as a line break
    or one that reverses the direction of text, becomes a space. A backslash at the end, which would join the
    next line to this one, gets a full stop behind it.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text).rstrip()
    apart = _C_COMMENT_BREAK.sub(" ", printable)
    return f"{apart}." if apart.endswith("\\") else apart


def markup(text: str) -> str:
    """Return a text for an element or an attribute of HTML and SVG: no tag, no entity, no quote."""
    return escape(visible(text))


def _inside_quotes(text: str) -> str:
    """Return a text between double quotes of Python: with escapes for quotes, backslashes, and no print."""
    return visible(text.replace("\\", "\\\\").replace('"', '\\"'))


def only_visible(value: object) -> object:
    """Return a value that a template writes; raise ValueError for a text that has more than printed lines.

    It is the last guard of a template of code: a text that passed no filter ends the rendering.
    """
    if isinstance(value, str) and not value.replace("\n", "").isprintable():
        raise ValueError(f"a template writes {value!r} as it is: it has to pass one of {', '.join(FILTERS)}")
    return value


FILTERS: Final[Mapping[str, Callable[..., str]]] = MappingProxyType(
    {
        "literal": python_literal,
        "docstring": docstring_text,
        "comment": comment_text,
        "c_comment": c_comment_text,
    }
)
"""By the names that templates have for them."""
