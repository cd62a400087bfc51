"""The side of saved sums in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.plan.axes import axes_of, shown
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.side import Rendering, SidesByMma


@dataclass(frozen=True)
class SavedSums(Rendering):
    """The sums that a Hopper kernel stores beside D."""

    plan: WgmmaKernel
    name = "saved"

    @property
    def applies(self) -> bool:
        """True if the kernel saves its sums."""
        return self.plan.problem.saves

    @property
    def constants(self) -> Iterator[Constant]:
        """The columns, or the buffers, through which sums are stored."""
        plan, problem = self.plan, self.plan.problem
        names = " and ".join(problem.epilogue.saved)
        if problem.interleaved:
            columns = plan.saved_n * plan.cluster_n
            meaning = f"columns of sums that are saved at a time: of {names} in turn"
            yield Constant(Place.SUBTILES, "SAVED_COLUMNS", columns, meaning)
        else:
            slots = problem.b_blocks * plan.epilogue_buffers
            meaning = f"buffers of sums that are saved: one for each of {names}"
            yield Constant(Place.SUBTILES, "SAVED_SLOTS", slots, meaning)

    @property
    def functions(self) -> Iterator[Function]:
        """The function that joins sums in turn, and the function of the host that makes their memory."""
        if self.plan.problem.interleaved:
            yield Function(Section.OPERANDS, "wgmma/in_turn")
        yield Function(Section.MEMORY, "wrapper/new_saved")

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return an epilogue that stores sums beside D."""
        of_sums = 1 if self.takes_turns else self.plan.problem.b_blocks
        storing = replace(
            parts.storing,
            converts="shared/store/convert_saved",
            divides="shared/store/store_saved",
            stores=1 + of_sums,
        )
        return replace(parts, storing=storing)

    @property
    def docs(self) -> dict[str, str]:
        """The extents and the order of the sums."""
        shape = shown(axes_of(self.plan.problem, self.plan.argument("saved")))
        order = "as wide as B, in the order of its columns: the sums before the epilogue"
        return {"saved": f"{shape}, {self.plan.problem.d.torch}, {order}; if None, new memory"}

    # --- expressions of templates

    @property
    def rows(self) -> str:
        """The extents of the sums before their columns, by the tensors of a call."""
        if self.plan.problem.gathers_a:
            return "len(a_rows)"
        groups = self.plan.problem.groups
        return "b.shape[0], a.shape[-2]" if groups and groups.broadcast == "a" else "*a.shape[:-1]"

    @property
    def takes_turns(self) -> bool:
        """True if the sums of all accumulators are one matrix, whose columns take turns."""
        return self.plan.problem.interleaved

    @property
    def column(self) -> str:
        """The first column of a tile in that matrix."""
        return f"{self.plan.problem.b_blocks} * column"

    @property
    def of_slot(self) -> str:
        """The index of a slot of a buffer; empty if there is one."""
        return ".index(slot)" if self.plan.epilogue_buffers > 1 else ""

    def slot(self, number: int) -> str:
        """Return the index of the buffer for the sums of an accumulator by its number."""
        first = f"{self.plan.problem.b_blocks} * slot"
        return f"{first} + {number}" if number else first


SIDES: SidesByMma = {"wgmma": (SavedSums,)}
