"""Extents of a problem as a kernel reads them from the descriptors of its matrices."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.kernel import Kernel


@dataclass(frozen=True)
class DescribedExtents:
    """The expressions of M, N, K and the number of groups in one plan's kernel."""

    plan: Kernel

    @property
    def extents_of_d(self) -> tuple[str, str]:
        """M and N by D's descriptor, or by the descriptors of A and B if another kernel stores D."""
        if groups := self.plan.problem.groups:
            if groups.divides_k:
                return self._rows_of_d, "d_desc.shape[2]"
            boxes = f"d_desc.shape[{int(self.plan.problem.d_in_blocks)}]"
            rows = f"{boxes} - 1" if self.plan.problem.gathers_a else "a_desc.shape[0]"
            return self._rows_of_group if groups.apart else rows, self._columns_of_group
        if (blocks := self.plan.problem.d_blocks) > 1:
            if self.plan.problem.d_in_blocks:
                return "d_desc.shape[1]", "d_desc.shape[2]"
            return "d_desc.shape[0]", f"d_desc.shape[1] // {blocks}"
        if any(argument.tensor == "d" for argument in self.plan.kernel_arguments):
            return "d_desc.shape[0]", "d_desc.shape[1]"
        a, b = self.plan.problem.a.major, self.plan.problem.b.major
        return f"a_desc.shape[{int(a == 'mn')}]", f"b_desc.shape[{int(b == 'mn')}]"

    @property
    def _rows_of_d(self) -> str:
        """M of groups of K, by A's descriptor: of boxes of rows of K, or of a matrix [M, K]."""
        return "a_desc.shape[2]" if self.plan.access.has_box_axis("a") else "a_desc.shape[0]"

    @property
    def _rows_of_group(self) -> str:
        """M of groups that lie apart, by A's descriptor and the number of groups."""
        problem = self.plan.problem
        if self.plan.access.has_box_axis("a"):
            return f"a_desc.shape[{1 if problem.a.major == 'k' else 2}]"
        groups = self.groups if self.plan.access.has_box_axis("b") else f"({self.groups})"
        return f"a_desc.shape[0] // {groups}"

    @property
    def groups(self) -> str:
        """The number of groups, by the rows of B as it is stored and D's columns, or by the boxes of D."""
        problem = self.plan.problem
        if problem.groups and problem.groups.divides_k:
            return f"(d_desc.shape[0] - 1) // {self._rows_of_d}"
        if problem.groups and problem.groups.broadcast == "b":
            return "a_desc.shape[0]"
        if self.plan.access.has_box_axis("b"):
            return "b_desc.shape[0]"
        blocks, n = problem.b_blocks, self._columns_of_group
        columns = f"{blocks} * {n}" if blocks > 1 else n
        return f"b_desc.shape[0] // {f'({columns})' if ' ' in columns else columns}"

    @property
    def _columns_of_group(self) -> str:
        """N of groups of rows, by D's descriptor: of boxes, or of a matrix."""
        problem = self.plan.problem
        columns = f"d_desc.shape[{1 + self.plan.access.leading_axes('d')}]"
        return f"{columns} // {problem.d_blocks}" if problem.d_blocks > 1 and problem.interleaved else columns

    @property
    def k(self) -> str:
        """K, as A's descriptor has it."""
        problem = self.plan.problem
        if problem.groups and problem.groups.divides_k and self.plan.access.has_box_axis("a"):
            return "a_desc.shape[0]"  # of boxes that begin with each row
        return f"a_desc.shape[{(problem.a.major == 'k') + self.plan.access.has_box_axis('a')}]"
