"""Break a bracketed list as the project's formatter does, so that no emitted line has to be rewritten."""

from __future__ import annotations

from collections.abc import Sequence

LINE_LENGTH = 110  # of pyproject.toml, section [tool.ruff]


def fit(head: str, items: Sequence[str], tail: str, *, indent: int = 0, margin: int | None = None) -> str:
    """Return ``head`` + comma-separated items + ``tail`` in as few lines as the line length allows.

    ``head`` ends with the opening bracket and ``tail`` begins with the closing one. The text starts behind
    `indent` columns that the caller has already written. An item may have lines of its own, which are
    indented by one level more than `indent`. Further lines are indented by `margin` columns, as many as
    `indent` if left out: none where a template indents the whole block.
    """
    margin = indent if margin is None else margin
    outer, inner = " " * margin, " " * (margin + 4)
    joined = ", ".join(items)
    if "\n" not in joined and indent + len(head + joined + tail) <= LINE_LENGTH:
        return head + joined + tail
    display = head[-1] in "[{" or head == "("  # of a list, dict or tuple: one item a line, once it is broken
    fits = "\n" not in joined and indent + 4 + len(joined) <= LINE_LENGTH
    if len(items) == 1 or (fits and not display):
        return f"{head}\n{inner}{joined}\n{outer}{tail}"
    lines = "".join(f"{inner}{item},\n" for item in items)
    return f"{head}\n{lines}{outer}{tail}"
