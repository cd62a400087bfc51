"""Where the bits of an element are a number in a 16-bit float."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmgen.hardware import DType

E4M3_BIAS = 7
"""[fp8] The bias of the exponent of e4m3."""


@dataclass(frozen=True)
class CodePlace:
    """The place of an element in the bits of a float, where its bits are the number times a power of two.

    An integer is stored plus its middle, 8 or 128. Its highest bit is the lowest of the exponent: a code
    below the middle is a subnormal number, and the normal numbers from there on follow at the same distance.
    Exponent and mantissa of an e4m3 stay side by side, also where it is subnormal.
    """

    element: DType
    dtype: DType

    @property
    def bits(self) -> int:
        """Bits of a code: of an e4m3, all but its sign."""
        return self.element.bits if self.element.integer else self.element.bits - 1

    @property
    def _significand(self) -> int:
        assert self.dtype.significand is not None
        return self.dtype.significand

    @property
    def _bias(self) -> int:
        """The bias of the exponent of the float."""
        _, exponent = math.frexp(self.dtype.largest)
        return exponent - 1

    @property
    def bit(self) -> int:
        """The bit of the float at which the code begins."""
        if self.element.integer:
            return self._significand - self.bits
        assert self.element.significand is not None
        return self._significand - self.element.significand

    @property
    def power(self) -> int:
        """The power of two that the number is multiplied by there."""
        if self.element.integer:
            return 2 - self._bias - self.bits
        return E4M3_BIAS - self._bias

    @property
    def limit(self) -> float:
        """The least scale that, over this power, is too large for the float."""
        return 2.0 ** (self._bias + 1 + self.power)

    @property
    def mask(self) -> str:
        """The bits of both codes of a word whose halves are two floats."""
        return f"0x{((1 << self.bits) - 1 << self.bit) * 0x10001:08X}"

    @property
    def less_middle(self) -> str:
        """The bits of less the middle times the power, in both halves of a word: the least normal number."""
        return f"0x{(0x8000 | 1 << self._significand - 1) * 0x10001:08X}"

    def shift(self, register: str, begin: int) -> str:
        """Return the instruction that brings codes from a bit of each half to their place; empty for none."""
        left = self.bit - begin
        if not left:
            return ""
        return f"shl.b32 code, {register}, {left};" if left > 0 else f"shr.u32 code, {register}, {-left};"
