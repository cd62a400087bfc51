"""A kernel of any family in words, for its module's docstrings."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass

from gemmgen.plan.kernel import Kernel
from gemmgen.problem import Request
from gemmgen.problem.epilogue import Epilogue, described, listed_steps, written
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.side import Sides
from gemmgen.render.walks import walk_of

COUNTS = {2: "two", 3: "three", 4: "four"}


def counted(count: int) -> str:
    """Return a small number in words."""
    return COUNTS.get(count, str(count))


def formula(request: Request, a: str, b: str, c: str) -> str:
    """Return what D is in terms of these operands."""
    epilogue = request.matmul.epilogue
    if not epilogue.is_chain:
        return f"epilogue({a} @ {b})"
    factor = {1.0: "", -1.0: "-"}.get(epilogue.alpha, f"{epilogue.alpha:g} * ")
    text = f"{factor}{a} @ {b}"
    if epilogue.beta and not request.lists_c:
        sign, factor = ("-" if epilogue.beta < 0 else "+"), abs(epilogue.beta)
        text += f" {sign} {'' if factor == 1 else f'{factor:g} * '}{c}"
    return f"epilogue({text})" if listed_steps(epilogue, lists_c=request.lists_c) else text


def epilogue_sentence(request: Request) -> str:
    """Return the steps that the formula calls the epilogue, as a sentence after a space; may be empty."""
    epilogue = request.matmul.epilogue
    if not epilogue.is_chain:
        sums = "acc"
        if epilogue.c_blocks:
            return _sentence_of_blocks(epilogue)
        if request.matmul.gated:
            first, second = epilogue.accumulators
            sums = f"{first}, of the first N columns of B, and {second}, of the other N"
            if request.matmul.interleaved:
                sums = f"{first}, of the even columns of B, and {second}, of the odd ones"
        saved = " The rounded sums are stored beside D, as a matrix [M, 2N] in the order of B." * bool(
            epilogue.saved
        )
        return f" The epilogue, of the sums {sums}: {written(epilogue.value)}.{saved}"
    steps = listed_steps(epilogue, lists_c=request.lists_c)
    order = ", in order" if len(steps) > 1 else ""
    return f" The epilogue{order}: {', '.join(map(described, steps))}." if steps else ""


def _sentence_of_blocks(epilogue: Epilogue) -> str:
    """Return the matrices in C and the values of the matrices in D, as sentences after a space."""
    first, second = epilogue.c_blocks
    where = f"{first}, the first N columns of C, and {second}, the other N"
    if epilogue.interleaved:
        where = f"{first}, the even columns of C, and {second}, the odd ones"
    values = " and ".join(map(written, epilogue.values))
    return f" The epilogue, of the sums acc and of {where}: D has {values} in their places."


def groups_sentence(request: Request) -> str:
    """Return how the rows of A, or K, are divided, as a sentence after a space; empty without groups."""
    if (groups := request.matmul.groups) is None:
        return ""
    if groups.divides_k:
        return (
            " K is divided into G groups, one after the other. Each group has its own D, the product of its "
            "columns of A and its rows of B; offs [G] has the end of each along K."
        )
    if groups.broadcast == "a":
        return " Each of the G groups multiplies the same A with its own B."
    if groups.broadcast == "b":
        return " Each of the G groups is multiplied with the same B."
    if groups.counts is None:
        return " Each of the G groups is multiplied with its own B."
    if groups.apart:
        return " Each of the G groups is multiplied with its own B; rows [G] has the number of its rows."
    if request.matmul.gathers_a:
        return (
            " Row r of the product is of row a_rows[r] of A. The rows of the product form G groups, one "
            "after the other, and each group is multiplied with its own B; offs [G] has the row after the "
            "last one of each."
        )
    scattered = " Row r of the product is stored to row d_rows[r] of D." * request.matmul.scatters_d
    return (
        " The rows of A form G groups, one after the other, and each group is multiplied with its own B; "
        f"offs [G] has the row after the last one of each.{scattered}"
    )


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
    def factors(self) -> tuple[str, str]:
        """The factors of the product with their shapes."""
        groups = self.plan.problem.groups
        first_a, first_b = ("G, " if groups and groups.stacks(each) else "" for each in ("a", "b"))
        rows = "T" if self.plan.problem.gathers_a else "M"
        return self._scaled(f"A[{first_a}{rows}, K]", f"B[{first_b}K, {self._b_columns}]")

    def _scaled(self, a: str, b: str) -> tuple[str, str]:
        """Return factors of the product, times their scales if they have any."""
        factors = {"a": a, "b": b}
        scaled = (name for name in ("a", "b") if self.plan.problem.operand(name).scale)
        factors |= {name: f"({factors[name]} * {name}_scale)" for name in scaled}
        return factors["a"], factors["b"]

    @property
    def _d_shape(self) -> str:
        """The extents of D, as text."""
        groups = self.plan.problem.groups
        if self.plan.problem.scatters_d:
            return "[R, N]"
        columns = f"{self.plan.problem.d_blocks}N" if self.plan.problem.d_blocks > 1 else "N"
        return f"[{'G, ' * bool(groups and groups.stacks('d'))}M, {columns}]"

    @property
    def _b_columns(self) -> str:
        """The columns of B, as text."""
        return "2N" if self.plan.problem.gated else "N"

    @property
    def short_factors(self) -> tuple[str, str]:
        """The factors of the product."""
        return self._scaled("A", "B")

    @property
    def more_inputs(self) -> tuple[str, ...]:
        """The further arguments with a descriptor, after B."""
        return ()

    @property
    def each_part(self) -> str:
        """How many descriptors B has, if it is not one."""
        return " for each part" if self.plan.composed else ""

    @abstractmethod
    def describe(self) -> str:
        """Say how the kernel goes about it."""

    @property
    def walk(self) -> str:
        """How many programs walk over tiles of D, as a sentence."""
        size, count = self.plan.cluster_size, self.plan.occupancy
        place = "SM" if size == 1 else f"cluster of {size} SMs"
        subject = "One program" if count == 1 else f"{counted(count).capitalize()} programs"
        return f"{subject} per {place} walk{'s' * (count == 1)} over {self.walked}."

    @property
    def walked(self) -> str:
        """The work items that programs walk over, in words."""
        return walk_of(self.plan).walked.format(splits=self.plan.splits_per_tile)

    @property
    def structure(self) -> str:
        """How the kernel goes about it, in one paragraph."""
        sentences = (sentence for side in self.sides for sentence in side.sentences)
        return textwrap.fill(" ".join((self.describe(), *sentences)), width=105)

    @property
    def formula_paragraph(self) -> str:
        """Formula, place and types, wrapped."""
        architecture = self.plan.architecture.name
        product = formula(self.plan.request, *self.factors, f"C{self._d_shape}")
        text = f"D{self._d_shape} = {product} on {self.generation} ({architecture}): {self.dtypes}."
        groups = groups_sentence(self.plan.request)
        return textwrap.fill(text + groups + epilogue_sentence(self.plan.request), width=105)

    @property
    def kernel(self) -> str:
        """The kernel's docstring, with the quotes that end it."""
        problem, access, columns = self.plan.problem, self.plan.access, self._b_columns
        alongs = [(name, OPERATIONS[name].along.upper()) for name in problem.vectors]
        matrices = f"as [{problem.d_blocks}, M, N]" if problem.d_in_blocks else self._d_shape
        matrices = "[M, N]" if problem.groups else matrices
        stored = [
            "A [M, K]" if problem.a.major == "k" else "A stored as [K, M]",
            (f"B stored as [{columns}, K]" if problem.b.major == "k" else f"B [K, {columns}]")
            + self.each_part,
            *self.more_inputs,
            *([f"C {matrices}"] if problem.c else []),
            *(f"{name} [{columns if along == 'N' else along}]" for name, along in alongs),
        ]
        product = f"D = {formula(self.plan.request, *self.short_factors, 'C')}"
        saved = f", and the sums {'as [2, M, N]' if problem.in_blocks else '[M, 2N]'}" * problem.saves
        d = f", D {matrices}{saved}." if saved else f", and D {matrices}."
        descriptors = f"the descriptors are over {', '.join(stored)}{d}"
        if groups := problem.groups:
            rows = "G * M" if groups.apart else "M"
            has_formula = problem.gated or problem.c is not None
            kind = "" if problem.gated else f" of {'K' if groups.divides_k else 'rows'}"
            product = f"{product if has_formula else 'D = A @ B'} for each group{kind}"
            a = "A stored as [G, K, M]" if access.has_box_axis("a") else f"A [{rows}, K]"
            b = f"B [G, K, {columns}]" if access.has_box_axis("b") else f"B stored as [G * {columns}, K]"
            if groups.broadcast:
                first_a, first_b = (groups.first_axis(each) for each in ("a", "b"))
                a = f"A [{first_a}, M, K]" if problem.a.major == "k" else f"A stored as [{first_a}, K, M]"
                b = f"B [{first_b}, K, {columns}]"
                b = f"B stored as [{first_b}, {columns}, K]" if problem.b.major == "k" else b
            if access.loads_k_from_any_row:
                a, b = "boxes of A stored as [K, M]", "of B [K, N]"
            elif groups.divides_k:
                a, b = "A [M, K], B stored as [N, K]", ", ".join(self.more_inputs)
            elif access.scales_groups_of_rows:
                b = ", ".join((b, *self.more_inputs))
            beside = "C and D" if problem.c and access.d_may_be_c else "D"
            beside += " and the sums" * problem.saves
            boxes = f"{'' if groups.divides_k else 'boxes '}of {beside}"
            if access.reads_c_of_others:
                b += f", C {f'as [2, {rows}, N]' if problem.d_in_blocks else f'[{rows}, 2N]'}"
            descriptors = f"the descriptors are over {a}, {b}, and {boxes}."
            if problem.gathers_a:
                descriptors = (
                    f"the descriptors are over A [T, K], which has its extents alone, {b}, and {boxes}."
                )
            if problem.scatters_d:
                descriptors = f"the descriptors are over {a}, {b}, and D [R, N], which has its extents alone."
        if self.plan.reduces_apart:
            product = "Multiply parts of K, and leave the sums of each for the kernel that adds them up"
            descriptors = f"the descriptors are over {' and '.join(stored[:2])}."
        if len(line := f'    """{product}; {descriptors}"""') <= 110:
            return line
        body = textwrap.fill(
            descriptors[0].upper() + descriptors[1:],
            width=104,
            initial_indent="    ",
            subsequent_indent="    ",
        )
        return f'    """{product}.\n\n{body}\n    """'
