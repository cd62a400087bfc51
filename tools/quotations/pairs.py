"""The block of pairs of capabilities that no Hopper kernel has together."""

from __future__ import annotations

from gemmgen.features.not_together import NOT_TOGETHER


def not_together_block() -> str:
    """Return the pairs as a table: two capabilities, the field of the first one, and the reason."""
    rows = [
        f"| {row.one.name} | `{row.one.field}` | {row.other.name} | {row.limit.removeprefix('but ')} |"
        for row in NOT_TOGETHER
    ]
    return "\n".join(["| capability | field | not with | why |", "|---|---|---|---|", *rows, ""])
