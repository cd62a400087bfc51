"""How a diagnostic lists, quotes and shortens words, its own or a user's."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence


def listing(words: Sequence[str], conjunction: str) -> str:
    """Return words as a sentence lists them: ``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the end of a message that offers the closest known word, or nothing where none is close."""
    closest = difflib.get_close_matches(word.lower(), known, n=1)
    return f"; did you mean {closest[0]}?" if closest else ""


def quoted(text: str) -> str:
    """Return text in double quotes, shortened, with everything that a terminal would not show escaped."""
    text = shortened(text)
    return json.dumps(text, ensure_ascii=not text.isprintable())


def shortened(text: str, limit: int = 40) -> str:
    """Return text cut to a number of characters, the last of them an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
