"""How a Hopper module computes the scales of D: its constants, and templates by the type of the scales."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware.elements import LEAST_SCALED, MOST_SCALED
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import BlockScale

MANTISSA_BITS = 23
"""[ieee] Bits of the mantissa of an fp32 number, which are below its exponent."""


def spelled(number: float) -> str:
    """Return a number in Python, as the project's formatter has it."""
    return repr(number).replace("e+", "e")


@dataclass(frozen=True)
class OutputScales:
    """The scales of D of one plan as the template that quantizes a sub-tile sees them."""

    plan: WgmmaKernel

    @property
    def _scale(self) -> BlockScale:
        """The scales of D, of a plan that has them."""
        assert self.plan.problem.d_scale is not None
        return self.plan.problem.d_scale

    @property
    def are_powers_of_two(self) -> bool:
        """True if a scale is a power of two, the least one that is large enough, and no quotient."""
        return self._scale.dtype.coded

    @property
    def constants(self) -> Iterator[tuple[str, object, str]]:
        """The name, value and meaning of each constant; none without scales of D."""
        if self.plan.problem.d_scale is None:
            return
        d = self.plan.problem.d
        yield "D_SCALE_COLUMNS", self._scale.vector, "of D that share a scale"
        if not self.are_powers_of_two:
            yield "D_LARGEST", d.largest, f"the largest number of {d.name}"
        yield "LEAST_SCALED", spelled(LEAST_SCALED), "2**-100: smaller magnitudes do not lower a scale"
        yield "MOST_SCALED", spelled(MOST_SCALED), "2**127: greater magnitudes, and infinities, saturate"
        if self.are_powers_of_two:
            fraction, exponent = math.frexp(d.largest)  # in [0.5, 1), of twice the mantissa
            mantissa = round((2 * fraction - 1) * 2**MANTISSA_BITS)
            largest = f"{d.largest:g}, the largest number of {d.name}"
            yield "D_EXPONENT", exponent - 1, f"of {largest}"
            meaning = f"carries a mantissa above that of {d.largest:g} into the exponent"
            yield "D_CARRY", 2**MANTISSA_BITS - 1 - mantissa, meaning
