"""Text of a user, made safe for the place that it is put in."""

from __future__ import annotations

import re

_C_COMMENT_BREAK = re.compile(r"(?<=\*)(?=/)|(?<=/)(?=\*)|(?<=\?)(?=\?[=/'()!<>-])")
"""Where two letters together would end or begin a comment, or be part of a trigraph."""


def c_comment_text(text: str) -> str:
    """Return text for one line of a C comment, which it neither ends nor makes a compiler warn about.

    ``*/``, ``/*`` and trigraphs get a space inside. A character that cannot be printed, such as a line break
    or one that reverses the direction of text, becomes a space. A backslash at the end, which would join the
    next line to this one, gets a full stop behind it.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text).rstrip()
    apart = _C_COMMENT_BREAK.sub(" ", printable)
    return f"{apart}." if apart.endswith("\\") else apart


def terminal_text(text: str, *, lines: bool = False) -> str:
    r"""Return text for a terminal, with Python's escapes for what a terminal would obey, e.g. ``\x1b``.

    These are all characters that cannot be printed: control characters, those that reverse the direction of
    text, spaces of other widths, and halves of surrogate pairs, which stand for bytes that are not UTF-8.
    With `lines`, line breaks and tabs stay.
    """
    kept = "\n\t" if lines else ""
    return "".join(
        letter if letter.isprintable() or letter in kept else letter.encode("unicode_escape").decode()
        for letter in text
    )
