"""Which values a member of a document can have, beyond its type: texts, names, extents and times.

A dataclass names them as the types of its members, and Pydantic holds a document to them
(``gemmgen/json_files.py``). In Python they are ``str``, ``int`` and ``float``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MOST_EXTENT: Final = 2**31 - 256
"""The largest M, N and K: TMA coordinates have 32 bits, and a tile may overhang the matrix."""
LEAST_SECONDS: Final = 1e-9
"""A cycle of a GPU: nothing that is launched takes less."""
MOST_SECONDS: Final = 1e6
MOST_MAGNITUDE: Final = 2.0**100
"""The largest number of a kind without a limit of its own: products of a few such numbers are finite."""
LONGEST_LINE: Final = 100_000
"""Characters of a text in one line: the profiler's names of kernels have thousands."""


def shown(value: object) -> str:
    """Return a value as JSON in ASCII, its end left out if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass(frozen=True)
class Kind:
    """Which values of a type a member can have: metadata of an annotation, which Pydantic calls."""

    accepts: Callable[[Any], bool]
    """Return whether a value of the right type is of this kind."""
    expected: str
    """In words, behind `must be`."""

    def check(self, value: object) -> object:
        """Return a value of this kind; raise ValueError for another one."""
        if not self.accepts(value):
            raise ValueError(f"must be {self.expected}, not {shown(value)}")
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _checked(self.check, source, handler)


@dataclass(frozen=True)
class Version:
    """The one version of a format that this gemmgen reads.

    As the first member of a dataclass, it is the first to be refused in a document of another version.
    """

    read: int

    def check(self, found: int) -> int:
        """Return the version that is read; raise ValueError for another one."""
        if found != self.read:
            raise ValueError(f"is {shown(found)}; this gemmgen reads {self.read}")
        return found

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _checked(self.check, source, handler)


def _checked(check: Callable[[Any], object], source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return Pydantic's schema of a type whose values a function checks."""
    from pydantic_core import core_schema  # only where a document is read: to import it takes a while

    return core_schema.no_info_after_validator_function(check, handler(source))


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


OneLine = Annotated[str, Kind(_is_line, "one line of printable text")]
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
Share = Annotated[float, between(0, MOST_MAGNITUDE, "a number from 0")]
"""An error divided by its scale."""
Multiple = Annotated[float, between(1e-9, MOST_MAGNITUDE, "a number above 0")]
Reading = Annotated[float, between(-MOST_MAGNITUDE, MOST_MAGNITUDE, f"a number up to {MOST_MAGNITUDE:g}")]
"""A value of a sensor: a clock, a power or a temperature."""
Rate = Annotated[float, between(1, 1e24, "a rate from 1 to 1e24 a second")]
