"""The header of an exported kernel: the contract in words, and the structure of a caller's arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.literals import c_comment_text
from gemmgen.plan.axes import extents_in_memory, is_transposed
from gemmgen.plan.roles import Argument
from gemmgen.problem.epilogue import meaning_of
from gemmgen.render.aot.facts import LaunchFacts
from gemmgen.render.side import Sides
from gemmgen.render.wgmma.overview import HopperOverview
from gemmgen.render.wrapper import Wrapper

WIDTH = 110


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
    def lines(self) -> Iterator[str]:
        """The contract in lines of a comment, each with the blank in front."""
        overview = HopperOverview(self.facts.plan, self.sides)
        paragraphs = (
            overview.formula_paragraph,
            overview.structure,
            self._memory,
            self._early,
            self._workspace,
        )
        for number, paragraph in enumerate(filter(None, paragraphs)):
            if number:
                yield ""
            for line in textwrap.wrap(" ".join(paragraph.split()), width=WIDTH - 3):
                yield f" {line}"

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
            written = ", which the kernel writes" * (scaled == "d")
            return f"{matrix}: the scales of {scaled.upper()}{written}"
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

    @property
    def _memory(self) -> str:
        major, minor = self.facts.capability
        return (
            f"All matrices lie in the memory of one GPU of compute capability {major}.{minor}, row by "
            "row. Addresses, and the distances of rows, are multiples of 16 bytes; a row of D is a whole "
            f"number of them{self._columns}. {self._extents_in_words} are from 0 to "
            f"{self.facts.max_extent:,}{self._k_limit}.{self._single_tile}{self._groups}{self._scales} "
            "D shares no memory with what is read. Of the host's memory only the structures below are read."
        )

    @property
    def _columns(self) -> str:
        """The number that N is a multiple of, in words."""
        unit = self.facts.column_unit
        if unit == self.facts.out_unit:
            return f", so N is a multiple of {unit}"
        if self.facts.shares_scales:
            return f", and N is a multiple of {unit}, the columns that share a scale"
        return f", and so is a row of a block of B, so N is a multiple of {unit}"

    @property
    def _extents_in_words(self) -> str:
        return "M, 2N and K" if self.facts.plan.problem.gated else "M, N and K"

    @property
    def _k_limit(self) -> str:
        return f", K at least 1: {self.facts.k_rule}" if self.facts.k_rule else ""

    @property
    def _groups(self) -> str:
        if not self.facts.most_groups:
            return ""
        most = f"{self.facts.plan.group_slots:,}" if self.facts.plan.group_slots else "any number"
        return f" There are up to {most} groups; their matrices, and their vectors, follow one another."

    @property
    def _scales(self) -> str:
        """Where rows of scales begin that are passed by their address, in words."""
        if not any(each.scaled and each.is_addressed for each in self.facts.plan.arguments):
            return ""
        return (
            " Rows of scales that are passed as an address begin every multiple of 16 bytes, without a gap."
        )

    @property
    def _single_tile(self) -> str:
        limits = Wrapper(self.facts.plan, sides=self.sides).limits
        return f" It takes {limits}." if self.facts.plan.schedule_kind == "single_tile" else ""

    @property
    def _early(self) -> str:
        early = self.facts.plan.read_early
        if early is None:
            return ""
        return (
            "The kernel may start before the one ahead of it in the stream has ended (programmatic dependent "
            f"launch), and then reads {early.upper()} at once: the kernel ahead must not write it."
        )

    @property
    def _workspace(self) -> str:
        if not self.facts.workspace:
            return ""
        return (
            "Programs leave each other sums in a workspace: memory of the caller's that is set to zero once, "
            "and that every call leaves ready for the next one. Calls that may run at the same time have one "
            f"each. One for M x N serves smaller problems too.{self._order_of_sums}"
        )

    @property
    def _order_of_sums(self) -> str:
        if self.facts.plan.deterministic:
            return ""
        return " Sums are added in the order in which they come: the last bits of D differ from call to call."
