"""The side of rows by index in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.places import Constant, Place
from gemmgen.render.side import KEPT, Rendering, SidesByMma


@dataclass(frozen=True)
class RowsByIndex(Rendering):
    """Rows of A that a Hopper kernel gathers, or rows of D that it scatters."""

    plan: WgmmaKernel
    name = "rows_by_index"

    @property
    def applies(self) -> bool:
        """True if the kernel gathers or scatters rows."""
        return self.plan.problem.gathers_a or self.plan.problem.scatters_d

    @property
    def constants(self) -> Iterator[Constant]:
        """The elements that a thread moves at a time."""
        if self.plan.problem.scatters_d:
            meaning = "elements of D in 16 bytes, which a thread stores at a time"
            yield Constant(Place.UNITS, "D_UNIT", self.plan.d_unit, meaning)
        if self.plan.problem.gathers_a:
            meaning = "elements of A in 16 bytes, which a thread copies at a time"
            yield Constant(Place.UNITS, "A_UNIT", self.plan.a_unit, meaning)

    @property
    def imported(self) -> Iterator[tuple[str, str]]:
        """The copies of a row by threads."""
        if self.plan.problem.gathers_a:
            yield "ampere", "async_copy"

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return an epilogue in which threads store rows of D, if they are scattered."""
        if not self.plan.problem.scatters_d:
            return parts
        return replace(parts, storing=replace(parts.storing, converts="shared/store/scatter", by="threads"))

    @property
    def facts(self) -> Iterator[str]:
        """The multiple that K is of if threads copy rows of A, unless B has a larger one."""
        unit = self.plan.a_unit
        if self.plan.problem.gathers_a and self.plan.access.k_multiple == unit:
            yield f'"k_multiple": {unit},  # threads copy rows of A in units of 16 bytes'

    @property
    def docs(self) -> dict[str, str]:
        """The indices of rows, and the multiple that K is of if threads copy rows of A."""
        if self.plan.problem.gathers_a:
            of_zeros = "or of zeros if the index is outside of A"
            return {
                "a": f"; K is a multiple of {self.plan.access.k_multiple}",
                "a_rows": f"[M], torch.int32: the row of A that each row of the product is of, {of_zeros}",
            }
        return {
            "out": " for M rows",
            "d_rows": "[M], torch.int32: the row of D in which each row of the product is stored. A row with "
            "an index outside of D is dropped. Of several rows with one index, D has elements of any. Rows "
            f"without one {KEPT}",
        }


SIDES: SidesByMma = {"wgmma": (RowsByIndex,)}
