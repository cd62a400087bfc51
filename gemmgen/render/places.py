"""Places of constants and functions in a module: they put what features add among what all kernels have."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, auto
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, TypeVar


class Place(IntEnum):
    """Places of constants in a module, from top to bottom."""

    TILE = auto()
    """Extents of a tile of D."""
    STEP = auto()
    """Extents of a K step, and of its blocks."""
    PROGRAM = auto()
    """Numbers of consumers and stages."""
    WORK = auto()
    """Numbers of groups, and of parts of K."""
    OPERANDS = auto()
    """Extents of row and column operands."""
    SUBTILES = auto()
    """Extents of a part of a tile that is stored at a time."""
    STORE = auto()
    """Buffers, and numbers of a conversion."""
    NUMBERS = auto()
    """Numbers of the epilogue."""
    UNITS = auto()
    """Elements that a thread moves at a time."""
    ORDER = auto()
    """Numbers of the rasterization order."""


class Section(IntEnum):
    """Sections of a module's functions, callees first; those from `MATMUL` on run on the host."""

    COPY = auto()
    """Kernels that run before the kernel that multiplies."""
    ARGUMENTS = auto()
    """Aggregates of arguments, and views of buffers."""
    WALK = auto()
    """Tiles of a program."""
    LOAD = auto()
    """Loads of A and B."""
    READ = auto()
    """Reads of a stage into registers."""
    MULTIPLY = auto()
    """The K loop."""
    OPERANDS = auto()
    """Loads of an epilogue's operands, and functions that an epilogue calls."""
    EPILOGUE = auto()
    """The epilogue's formula."""
    SPLIT = auto()
    """Divisions of an accumulator into sub-tiles."""
    STORE = auto()
    """Conversion and store."""
    SUMS = auto()
    """Exchange of sums between programs."""
    KERNEL = auto()
    """Partitions of the kernel, and the kernel."""
    ARGUMENTS_AFTERWARDS = auto()
    """Aggregates of arguments of kernels that run after the kernel that multiplies."""
    AFTERWARDS = auto()
    """Kernels that run after the kernel that multiplies."""
    MATMUL = auto()
    """`matmul`, and functions that describe tensors."""
    LAUNCH = auto()
    """The launch."""
    MEMORY = auto()
    """Functions that make and arrange tensors of a call."""
    BACKWARD = auto()
    """The backward."""


class Constant(NamedTuple):
    """A constant of a module."""

    place: Place
    name: str
    value: object
    meaning: str = ""


class Function(NamedTuple):
    """A template with functions of a module."""

    section: Section
    template: str
    """Its name below ``templates/``, without the ending."""
    passed: tuple[str, ...] = ()
    """The functions of it that the launcher takes as arguments of these names."""


Placed = TypeVar("Placed", Constant, Function)


def in_order(own: Iterable[Placed], of_sides: Iterable[Iterable[Placed]]) -> list[Placed]:
    """Return constants or functions by their places; in each place, the kernel's own come before others."""
    return sorted(chain(own, *of_sides), key=itemgetter(0))
