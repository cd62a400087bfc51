"""The shapes that every kernel is verified on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gemmgen.verify.verification import Shape

ACCEPTANCE_SHAPES: Final[Mapping[Shape, str]] = MappingProxyType(
    {
        (8192, 8192, 8192): "many tiles for each program, a long K: phases, scheduling, accumulation",
        (208, 416, 304): "multiples of 16 that no tile divides: each edge of the result is a partial tile",
        (2000, 1000, 2000): "several programs, partial tiles on every edge, a partial last K step",
        (1, 8, 16): "the least: one row of eight columns, and a K that is a fraction of one step",
        (64, 64, 64): "less than one tile, and fewer K steps than the ring has stages",
        (4095, 4097, 4104): "odd M and N: rows of D that the wrapper must pad, and refuse as an ``out``",
        (300, 776, 392): "no power of two above 8 divides N or K, and M ends inside a warp's rows",
    }
)
"""[M, N, K] and what each is there to break."""

LARGE_SHAPE: Final[Shape] = (65536, 33024, 64)
"""[M, N, K] with 2,164,260,864 elements of D, which a 32-bit index cannot count (2**31 is 2,147,483,648).

K is one step, so the work is small: 4.3 GB of D in 16 bits and 8.7 GB in fp32, with B and one chunk of the
reference beside it.
"""
