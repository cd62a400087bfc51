"""A kernel of any family in words, for its module's docstrings."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass

from gemmgen.plan.axes import Axis, axes_of
from gemmgen.plan.kernel import Kernel
from gemmgen.problem import Request
from gemmgen.problem.epilogue import Epilogue, described, listed_steps, written
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.side import Sides
from gemmgen.render.walks import walk_of

EXTENTS = {Axis.GROUPS: "G", Axis.A_ROWS: "T", Axis.D_ROWS: "R", Axis.HALF_K: "K"}
"""How a formula has extents that are not named after their axes."""
COUNTS = {2: "two", 3: "three", 4: "four"}


def counted(count: int) -> str:
    """Return a small number in words."""
    return COUNTS.get(count, str(count))


@dataclass(frozen=True)
class Formula:
    """The formula of D, and the steps that it calls the epilogue."""

    request: Request

    @property
    def epilogue(self) -> Epilogue:
        """The epilogue of the matmul."""
        return self.request.matmul.epilogue

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of an epilogue that is a list of steps, in words."""
        if not self.epilogue.is_chain:
            return ()
        return tuple(map(described, listed_steps(self.epilogue, lists_c=self.request.lists_c)))

    @property
    def values(self) -> tuple[str, ...]:
        """The expressions of an epilogue that is none: one for each matrix in D."""
        return tuple(map(written, self.epilogue.values))

    @property
    def has_epilogue(self) -> bool:
        """True if the formula calls something the epilogue."""
        return bool(self.steps) or not self.epilogue.is_chain

    def of(self, a: str, b: str, c: str) -> str:
        """Return what D is in terms of these operands."""
        epilogue = self.epilogue
        if not epilogue.is_chain:
            return f"epilogue({a} @ {b})"
        factor = {1.0: "", -1.0: "-"}.get(epilogue.alpha, f"{epilogue.alpha:g} * ")
        text = f"{factor}{a} @ {b}"
        if epilogue.beta and not self.request.lists_c:
            sign, factor = ("-" if epilogue.beta < 0 else "+"), abs(epilogue.beta)
            text += f" {sign} {'' if factor == 1 else f'{factor:g} * '}{c}"
        return f"epilogue({text})" if self.steps else text


@dataclass(frozen=True)
class KernelOverview(ABC):
    """The words about any kernel that a reader needs before the code."""

    plan: Kernel
    sides: Sides
    """The sides of the plan's features."""

    @property
    @abstractmethod
    def generation(self) -> str:
        """The GPUs that the kernel is for."""

    @property
    @abstractmethod
    def dtypes(self) -> str:
        """The element types of all matrices, and of the accumulator."""

    @property
    def kind(self) -> str:
        """The kind of kernel in the field's terms."""
        return ", ".join(self.plan.kind)

    @property
    @abstractmethod
    def resources(self) -> tuple[tuple[str, str], ...]:
        """The resources of the kernel: name and amount."""

    @property
    def _threads(self) -> str:
        """The threads of a CTA, with the idle warps that Triton adds to a partial warpgroup of workers."""
        plan = self.plan
        pool = plan.register_pool
        warps = pool.default_warps + sum(count for count, _ in pool.workers)
        idle = pool.total_warps - warps
        rest = f": {warps} warps, and {idle} that fill the last warpgroup" if idle else ""
        return f"{plan.threads} per CTA{rest}"

    @property
    def formula(self) -> Formula:
        """The formula of D."""
        return Formula(self.plan.request)

    @property
    def product(self) -> str:
        """The formula in terms of operands with their extents."""
        a, b, d = (self.extents(name) for name in ("a", "b", "d"))
        return self.formula.of(*self._scaled(f"A[{a}]", f"B[{b}]"), f"C[{d}]")

    @property
    def short_product(self) -> str:
        """The formula in terms of operands."""
        return self.formula.of(*self._scaled("A", "B"), "C")

    def extents(self, name: str) -> str:
        """Return the extents of a matrix, which are of K elements too where two share a byte."""
        axes = axes_of(self.plan.problem, self.plan.argument(name))
        return ", ".join(EXTENTS.get(axis, axis) for axis in axes if axis is not Axis.ONE)

    def _scaled(self, a: str, b: str) -> tuple[str, str]:
        """Return factors of the product, times their scales if they have any."""
        problem = self.plan.problem
        return f"({a} * a_scale)" if problem.a.scale else a, f"({b} * b_scale)" if problem.b.scale else b

    @property
    def vectors(self) -> tuple[tuple[str, str], ...]:
        """The row and column operands, each with the dimension along which it lies."""
        return tuple((name, OPERATIONS[name].along) for name in self.plan.problem.vectors)

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """The further arguments with a descriptor, after B."""
        return ()

    @abstractmethod
    def describe(self) -> str:
        """Say how the kernel goes about it."""

    @property
    def walk(self) -> str:
        """How many programs walk over tiles of D, as a sentence."""
        size, count = self.plan.cluster_size, self.plan.occupancy
        place = "SM" if size == 1 else f"cluster of {size} SMs"
        subject = "One program" if count == 1 else f"{counted(count).capitalize()} programs"
        verb = "walks" if count == 1 else "walk"
        return f"{subject} per {place} {verb} over {self.walked}."

    @property
    def walked(self) -> str:
        """The work items that programs walk over, in words."""
        return walk_of(self.plan).walked.format(splits=self.plan.splits_per_tile)

    @property
    def structure(self) -> str:
        """How the kernel goes about it, in one paragraph."""
        sentences = (sentence for side in self.sides for sentence in side.sentences)
        return textwrap.fill(" ".join((self.describe(), *sentences)), width=105)
