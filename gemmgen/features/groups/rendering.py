"""The side of groups in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.features.groups.vector_reader import VectorReader
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Groups
from gemmgen.render.arguments import ArgumentTable
from gemmgen.render.epilogue import EpilogueParts
from gemmgen.render.places import Constant, Place
from gemmgen.render.side import KEPT, Rendering, SidesByMma
from gemmgen.render.spelling import fit
from gemmgen.render.tile_store import StoredRows


@dataclass(frozen=True)
class GroupedKernel(Rendering):
    """The groups of a Hopper plan."""

    plan: WgmmaKernel
    name = "groups"

    @property
    def applies(self) -> bool:
        """True if the matmul has groups."""
        return self.plan.problem.groups is not None

    @property
    def _groups(self) -> Groups:
        """The groups of a plan that has some."""
        assert self.plan.problem.groups is not None
        return self.plan.problem.groups

    @property
    def constants(self) -> Iterator[Constant]:
        """The number of groups that a kernel finds room for, if it divides rows."""
        if self.plan.group_slots:
            yield Constant(Place.WORK, "GROUP_SLOTS", self.plan.group_slots, "most groups of a call")

    def changed_epilogue(self, parts: EpilogueParts) -> EpilogueParts:
        """Return an epilogue in which threads read vectors, and which loads and stores rows of one group."""
        loads = replace(parts.loads, c_ends_with_group=not self.plan.access.reads_c_of_others)
        # TMA stores rows of a box of rows: the first coordinate is the box, the second one the row in it.
        rows = StoredRows(end="end", facts=("end",))
        readers, storing = (VectorReader(self.plan), *parts.readers), replace(parts.storing, rows=rows)
        return replace(parts, loads=loads, readers=readers, storing=storing)

    @property
    def docs(self) -> dict[str, str]:
        """The tensor that divides rows or K into groups, and words about tensors that groups change."""
        docs = dict[str, str]()
        if self._groups.broadcast:
            shared = "; all groups share it, also without the 1 or expanded to [groups, …]"
            docs[self._groups.broadcast] = shared
        if self._groups.counts:
            docs["saved"] = "; its rows of no group are treated as those of `out`"
            docs[self._groups.counts] = self._ends_along_k if self._groups.divides_k else self._rows
        return docs

    @property
    def _ends_along_k(self) -> str:
        """The words about the tensor that divides K into groups."""
        zero = "its D is zero" if ArgumentTable(self.plan).vanishes else "its sums are zero"
        words = f"A group may have no K: {zero}. K after the last end is ignored"
        if scale := self.plan.problem.a.scale:
            reason = f"{scale.vector} of K share a scale"
            words += f". An end that is no multiple of {scale.vector} counts as the next one: {reason}"
        return f"[groups], torch.int32: the end of each group along K, in rising order. {words}"

    @property
    def _rows(self) -> str:
        """The words about the tensor that divides rows into groups."""
        shape = f"[groups], torch.int32, up to {self.plan.group_slots} groups"
        if self._groups.apart:
            return f"{shape}: the number of rows of each. Other rows {KEPT}"
        words = f"{shape}: the row after the last one of each, in rising order. A group may have no row"
        return words if self.plan.problem.scatters_d else f"{words}. Rows of no group {KEPT}"

    @property
    def lanes(self) -> str:
        """The layout in which each warp of each CTA holds the rows of all groups."""
        bases = self.plan.bases(None, None, rank=1)
        last = [f"cga_layout={bases}"] if bases else []
        arguments = ["[GROUP_SLOTS // 32]", "[32]", "[gl.num_warps()]", "[0]", *last]
        return fit("gl.BlockedLayout(", arguments, ")", indent=4, margin=22)


SIDES: SidesByMma = {"wgmma": (GroupedKernel,)}
