"""The side of the scales of D in rendering."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.hardware.elements import LEAST_SCALED, MOST_SCALED
from gemmgen.plan.axes import axes_of, shown
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import BlockScale
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.side import Rendering, SidesByMma

MANTISSA_BITS = 23
"""[ieee] Bits of the mantissa of an fp32 number, which are below its exponent."""


def spelled(number: float) -> str:
    """Return a number in Python, as the project's formatter has it."""
    return repr(number).replace("e+", "e")


@dataclass(frozen=True)
class OutputScales(Rendering):
    """The scales of D that a Hopper kernel computes as it quantizes a sub-tile."""

    plan: WgmmaKernel
    name = "output_scales"

    @property
    def applies(self) -> bool:
        """True if the kernel computes scales of D."""
        return self.plan.problem.d_scale is not None

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
    def constants(self) -> Iterator[Constant]:
        """The columns of a scale, and the numbers that a scale is computed with."""
        d = self.plan.problem.d
        yield Constant(Place.STORE, "D_SCALE_COLUMNS", self._scale.vector, "of D that share a scale")
        if not self.are_powers_of_two:
            yield Constant(Place.STORE, "D_LARGEST", d.largest, f"the largest number of {d.name}")
        meaning = "2**-100: smaller magnitudes do not lower a scale"
        yield Constant(Place.STORE, "LEAST_SCALED", spelled(LEAST_SCALED), meaning)
        meaning = "2**127: greater magnitudes, and infinities, saturate"
        yield Constant(Place.STORE, "MOST_SCALED", spelled(MOST_SCALED), meaning)
        if self.are_powers_of_two:
            fraction, exponent = math.frexp(d.largest)  # in [0.5, 1), of twice the mantissa
            mantissa = round((2 * fraction - 1) * 2**MANTISSA_BITS)
            largest = f"{d.largest:g}, the largest number of {d.name}"
            yield Constant(Place.STORE, "D_EXPONENT", exponent - 1, f"of {largest}")
            meaning = f"carries a mantissa above that of {d.largest:g} into the exponent"
            yield Constant(Place.STORE, "D_CARRY", 2**MANTISSA_BITS - 1 - mantissa, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The function of the host that makes memory for the scales."""
        yield Function(Section.MEMORY, "wrapper/new_scales")

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return an epilogue that computes and stores scales of a tile before it converts the tile."""
        return replace(parts, storing=replace(parts.storing, adjusts="shared/store/scales_of_d.py.j2"))

    @property
    def docs(self) -> dict[str, str]:
        """The extents and the memory of the scales of D."""
        problem, access, columns = self.plan.problem, self.plan.access, self._scale.vector
        shape = shown((*axes_of(problem, self.plan.argument("d"))[:-1], f"N / {columns}"))
        words = (
            f"{shape}, {self._scale.dtype.torch}, M contiguous, blocks of N one after the other at multiples "
            "of 16 bytes: the a_scale of a matmul whose A is D; if None, a new tensor"
        )
        # The words on scales of B of a gate have said which N there is.
        says_n = problem.gated and access.has_tile_scales
        return {"out_scale": words if says_n else f"{words}. N is a multiple of {columns}"}


SIDES: SidesByMma = {"wgmma": (OutputScales,)}
