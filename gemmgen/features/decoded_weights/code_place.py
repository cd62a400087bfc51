"""Where the four bits of an integer are a number in a 16-bit float."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gemmgen.hardware import DType

CODE_BITS: Final = 4
PAIRS: Final = 4
"""Pairs of codes in a word; each half of it has the codes of one pair at multiples of four bits."""


@dataclass(frozen=True)
class CodePlace:
    """The place of a code in the bits of a float, where its bits are the number times a power of two.

    Its highest bit is the lowest of the exponent: a code below 8 is a subnormal number, and one from 8 on the
    normal numbers that follow it at the same distance.
    """

    dtype: DType

    @property
    def bit(self) -> int:
        """The bit of the float at which the code begins: its other three bits are the mantissa's highest."""
        assert self.dtype.significand is not None
        return self.dtype.significand - CODE_BITS

    @property
    def power(self) -> int:
        """The power of two that a code is multiplied by, as its highest bit stands for the least exponent."""
        _, exponent = math.frexp(self.dtype.largest)
        return -exponent - 1

    @property
    def mask(self) -> str:
        """The bits of both codes of a word whose halves are two floats."""
        return f"0x{(0xF << self.bit) * 0x10001:08X}"

    @property
    def less_eight(self) -> str:
        """The bits of -8 times the power of two in both halves of a word: the least normal number."""
        assert self.dtype.significand is not None
        return f"0x{(0x8000 | 1 << self.dtype.significand - 1) * 0x10001:08X}"

    @property
    def shifts(self) -> tuple[str, ...]:
        """The instruction that brings each pair of a word to its place, before the word; empty for none."""
        lefts = [self.bit - CODE_BITS * pair for pair in range(PAIRS)]
        return tuple(self._shift(left) for left in lefts)

    @staticmethod
    def _shift(left: int) -> str:
        if not left:
            return ""
        return f"shl.b32 code, $4, {left};" if left > 0 else f"shr.u32 code, $4, {-left};"
