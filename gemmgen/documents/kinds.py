"""Which values a member of a document can have, beyond its type: texts, names, extents and times.

A dataclass names them as the types of its members, and ``decode`` holds a document to them. In Python they
are ``str``, ``int`` and ``float``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

MOST_EXTENT: Final = 2**31 - 256
"""The largest M, N and K: TMA coordinates have 32 bits, and a tile may overhang the matrix."""
LEAST_SECONDS: Final = 1e-9
"""A cycle of a GPU: nothing that is launched takes less."""
MOST_SECONDS: Final = 1e6
LONGEST_LINE: Final = 100_000
"""Characters of a text in one line: the profiler's names of kernels have thousands."""


@dataclass(frozen=True)
class Kind:
    """Which values of a type a member can have."""

    accepts: Callable[[Any], bool]
    """Return whether a value of the right type is of this kind."""
    expected: str
    """In words, behind `must be`."""


def matching(pattern: str, expected: str) -> Kind:
    """Return the kind of the texts that a regular expression matches as a whole."""
    compiled = re.compile(pattern)

    def accepts(text: str) -> bool:
        return compiled.fullmatch(text) is not None

    return Kind(accepts, expected)


def between(least: float, most: float, expected: str) -> Kind:
    """Return the kind of the numbers from the least to the most."""

    def accepts(number: float) -> bool:
        return least <= number <= most

    return Kind(accepts, expected)


def _is_line(text: str) -> bool:
    return text.isprintable() and len(text) <= LONGEST_LINE


def _are_lines(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def _is_file_name(text: str) -> bool:
    return _is_line(text) and not {*text} & {*"/\\"} and text not in ("", ".", "..")


LINE: Final = Kind(_is_line, "one line of printable text")
"""The most characters of a text without a kind of its own."""
Lines = Annotated[str, Kind(_are_lines, "lines of printable text")]
GpuName = Annotated[
    str,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9 ._/()+,:@#-]{0,99}",
        "the name of a GPU: letters, digits, spaces and none of the marks that code begins or ends with",
    ),
]
Sha256 = Annotated[str, matching("[0-9a-f]{64}", "64 hexadecimal digits")]
FileName = Annotated[str, Kind(_is_file_name, "the name of a file without its folder")]
Extent = Annotated[int, between(1, MOST_EXTENT, f"from 1 to {MOST_EXTENT:,}")]
Extents = tuple[Extent, Extent, Extent]
"""M, N and K."""
Count = Annotated[int, between(1, 2**53, "a number from 1")]
GroupCount = Annotated[int, between(1, 2**16, "from 1 to 65,536 groups")]
"""The number of groups in a call: each has numbers of its own, so another program must not state more."""
Seconds = Annotated[
    float, between(LEAST_SECONDS, MOST_SECONDS, f"seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
]
Microseconds = Annotated[
    float,
    between(LEAST_SECONDS * 1e6, MOST_SECONDS * 1e6, f"microseconds from {LEAST_SECONDS * 1e6:g}"),
]
Share = Annotated[float, between(0, 1e30, "a number from 0")]
"""An error divided by its scale."""
Rate = Annotated[float, between(1, 1e24, "a rate from 1 to 1e24 a second")]
