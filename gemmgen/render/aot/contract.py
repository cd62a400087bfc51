"""The header of an exported kernel: the contract in words, and the structure of a caller's arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.literals import c_comment_text
from gemmgen.plan.axes import extents_in_memory, is_transposed
from gemmgen.plan.roles import Argument
from gemmgen.problem.epilogue import meaning_of
from gemmgen.render.aot.facts import LaunchFacts
from gemmgen.render.side import Sides
from gemmgen.render.wgmma.overview import HopperOverview


@dataclass(frozen=True)
class ArgumentMember:
    """A member of the structure of a caller's arguments."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Contract:
    """The contract of one exported kernel with its callers."""

    facts: LaunchFacts
    sides: Sides
    """The sides of the plan's features."""

    @property
    def title(self) -> str:
        """The spec's title, for the comment that it stands in."""
        return c_comment_text(f"{self.facts.plan.request.title.rstrip('.')}.")

    @property
    def overview(self) -> HopperOverview:
        """The kernel in words."""
        return HopperOverview(self.facts.plan, self.sides)

    @property
    def has_scales_by_address(self) -> bool:
        """True if threads read or write scales by their address."""
        return any(each.scaled and each.is_addressed for each in self.facts.plan.arguments)

    @property
    def most_groups(self) -> str:
        """The greatest number of groups, in words."""
        return f"{self.facts.plan.group_slots:,}" if self.facts.plan.group_slots else "any number"

    @property
    def extents(self) -> str:
        """The members that are extents, which come first."""
        return "m, n, k, groups" if self.facts.most_groups else "m, n, k"

    @property
    def members(self) -> Iterator[ArgumentMember]:
        """The members after the extents, in the kernel's order."""
        for argument in self.facts.plan.arguments:
            if argument.part is None and argument.kind != "workspace":
                matrix = not argument.is_addressed and argument.kind != "vector"
                yield ArgumentMember(
                    argument.name, "gemmgen_matrix" if matrix else "CUdeviceptr", self._meaning(argument)
                )
        if self.facts.workspace:
            yield ArgumentMember("workspace", "gemmgen_workspace", "for partial sums")

    def _meaning(self, argument: Argument) -> str:
        """Return the extents, the element type and the meaning of a tensor in memory."""
        name, dtype = argument.name, argument.dtype.name
        if argument.kind == "groups":
            return f"G {dtype}: {self._meaning_of_counts}"
        if argument.kind == "scalar":
            return f"one {dtype}: {meaning_of(self.facts.plan.problem.epilogue, name)}"
        *rows, columns = (extent.words for extent in extents_in_memory(self.facts.plan.problem, argument))
        if not rows:
            return f"{columns} {dtype}: {meaning_of(self.facts.plan.problem.epilogue, name)}"
        matrix = f"{rows[0]} rows of {columns} {dtype}"
        if scaled := argument.scaled:
            scales = f"{matrix}: the scales of {scaled.upper()}"
            return f"{scales}, which the kernel writes" if scaled == "d" else scales
        turned = is_transposed(self.facts.plan.problem, argument)
        return f"{matrix}; {name.upper()} is its transposed view" if turned else matrix

    @property
    def _meaning_of_counts(self) -> str:
        """Meaning of the tensor that divides rows, or K, into groups."""
        groups = self.facts.plan.problem.groups
        assert groups is not None
        if groups.divides_k:
            return "the end of each group along K, in rising order"
        return "the rows of each group" if groups.apart else "the end of each group's rows, in rising order"
