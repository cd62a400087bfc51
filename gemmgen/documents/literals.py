"""A value as a literal, or as a text that cannot end the place it is written into: Python, C, HTML and SVG.

All templates have these as filters. Text without quotes, backslashes and characters that are not printed
comes back as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from html import escape
from types import MappingProxyType
from typing import Final


def visible(text: str) -> str:
    """Return a text in one line, in which escapes as those of Python stand for all that is not printed.

    Those are line breaks, control characters, marks of direction, and the halves of characters that no file
    can hold.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def python_literal(value: object) -> str:
    """Return the Python literal of a text, in double quotes, or of a finite number or None.

    Raises TypeError for a value of another type, and for a number that Python has no literal of.
    """
    if isinstance(value, str):
        return f'"{_inside_quotes(value)}"'
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    raise TypeError(f"there is no literal of {value!r}")


def docstring_text(text: str) -> str:
    """Return lines of text for a docstring in double quotes, which then reads as the text does."""
    return "\n".join(_inside_quotes(line) for line in text.split("\n"))


def comment_text(text: str) -> str:
    """Return a text for a comment that ends with its line."""
    return visible(text)


def c_comment_text(text: str) -> str:
    """Return a text for a comment of C, which it can neither end nor begin once more."""
    return visible(text).replace("*/", "* /").replace("/*", "/ *")


def markup(text: str) -> str:
    """Return a text for an element or an attribute of HTML and SVG: no tag, no entity, no quote."""
    return escape(visible(text))


def script_json(value: object) -> str:
    """Return JSON for a script element of HTML: no text in it can end the element."""
    return json.dumps(value).replace("<", "\\u003c")


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
        "script_json": script_json,
    }
)
"""By the names that templates have for them."""
