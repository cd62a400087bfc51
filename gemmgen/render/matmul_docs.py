"""The docstring of a module's `matmul`: the formula, the tensors that it takes, and its limits."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from gemmgen.plan.axes import axes_in_memory, axes_of, shown
from gemmgen.problem import Gradient, gradients_of
from gemmgen.problem.epilogue import meaning_of
from gemmgen.render.launching import LaunchView
from gemmgen.render.overview import Formula
from gemmgen.render.side import Sides
from gemmgen.render.spelling import LINE_LENGTH

PACKED = ", two elements a byte, the one of even k in its lower half"
"""The words about an operand with elements of 4 bits."""


@dataclass(frozen=True)
class MatmulDocs(LaunchView):
    """The docstring of one plan's `matmul` as its template sees it."""

    sides: Sides = field(kw_only=True)
    """The sides of the plan's features."""

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """The gradients that the backward multiplies; empty without a backward."""
        return gradients_of(self.plan.problem)

    @property
    def no_backward(self) -> str:
        """The words of a docstring for a module without a backward."""
        return "" if self.gradients else "; no backward"

    @property
    def argument_docs(self) -> str:
        """The lines of the docstring's argument section."""
        return self.docs_of_arguments(workspace=self.workspace)

    def docs_of_arguments(self, *, workspace: bool) -> str:
        """Return the lines of a docstring's argument section, with or without the workspace."""
        inputs = sorted(self.inputs, key="tensor_scale".__eq__)  # the factor of all of D comes last
        names = (*inputs, *(("workspace",) if workspace else ()), "out", *self.written)
        docs = [dict(self._docs), *(side.docs for side in self.sides)]
        return "\n".join(
            textwrap.fill(
                f"{name}: {''.join(each.get(name, '') for each in docs)}.",
                width=LINE_LENGTH,
                initial_indent=" " * 8,
                subsequent_indent=" " * 12,
                break_on_hyphens=False,
            )
            for name in names
        )

    @property
    def _docs(self) -> Iterator[tuple[str, str]]:
        """The names of parameters that no feature has, each with the words about it."""
        problem = self.plan.problem
        for name, order in (("a", self._order_of_a), ("b", self._order_of_b)):
            step = self.plan.architecture.tma_padded_alignment_bytes
            padded = f"; rows at multiples of {step} bytes, K one of {self.k_multiple}"
            yield name, f"{self._typed(name)}, {order}{padded if name in self.padded else ''}"
        if problem.c:
            yield "c", f"{self._typed('c')}, {'rows' if problem.d_blocks > 1 else 'N'} contiguous"
        for name in self.vectors:
            yield name, f"{self._typed(name)}, contiguous: {meaning_of(problem.epilogue, name)}"
        if problem.scalar:
            meaning = meaning_of(problem.epilogue, "tensor_scale")
            yield "tensor_scale", f"one element, torch.float32: {meaning}"
        order = "rows as in c" if problem.d_blocks > 1 else "N contiguous"
        own = f"in memory of its own{', or c' if self.plan.access.d_may_be_c else ''}"
        yield "out", f"{self._typed('d')}, {order}, {own}; if None, a new view of padded rows"

    @property
    def _order_of_a(self) -> str:
        """The words about the order of A in memory."""
        if self.plan.problem.a.major == "mn":
            return f"M contiguous: the transposed view of a tensor {self._in_memory('a')}"
        return f"K contiguous{PACKED if self.packs('a') else ''}"

    @property
    def _order_of_b(self) -> str:
        """The words about the order of B in memory."""
        if self.plan.problem.b.major == "mn":
            return "N contiguous"
        stored = self._in_memory("b")
        if self.packs("a") and self.packs("b"):
            return f"K contiguous, as ``weight.T`` of a weight {stored} is; packed as a is"
        turned = "mT" if len(axes_of(self.plan.problem, self.plan.argument("b"))) > 2 else "T"
        view = f"the transposed view of a tensor {stored} (``weight.{turned}``)"
        return f"K contiguous: {view}{PACKED if self.packs('b') else ''}"

    def _typed(self, name: str) -> str:
        """Return the axes of an argument of the kernel as a caller passes it, and its type."""
        argument = self.plan.argument(name)
        return f"{shown(axes_of(self.plan.problem, argument))}, {argument.dtype.torch}"

    def _in_memory(self, name: str) -> str:
        """Return the axes of an argument of the kernel as it lies in memory."""
        return shown(axes_in_memory(self.plan.problem, self.plan.argument(name)))

    @property
    def summary(self) -> str:
        """The first line of the docstring of `matmul`."""
        formula = Formula(self.plan.request)
        steps = ", as the module's docstring has it" if formula.has_epilogue else ""
        a, b = ("(a * a_scale)", "(b * b_scale)") if self.scales else ("a", "b")
        if self.plan.problem.groups and not steps:
            return f"Return a @ b of each group of {'K' if self.plan.problem.groups.divides_k else 'rows'}."
        saved = ", and the rounded sums of the accumulators" * self.plan.problem.saves
        return f"Return {formula.of(a, b, 'c')}{steps}{saved}."

    @property
    def alignment(self) -> str:
        """The alignment that `matmul` requires, as a sentence without its end."""
        if self.plan.problem.copies_misaligned:
            return "Tensors not aligned to 16 bytes are copied each call"
        return "Addresses and row strides are multiples of 16 bytes"
