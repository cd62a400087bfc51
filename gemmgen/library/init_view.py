"""The module that a library is imported as: its docstring, and `matmul` with the tensors of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.features.rendering import sides_of
from gemmgen.library.assemble import Library
from gemmgen.library.kernel_table import expects_rows
from gemmgen.plan.axes import Axis, axes_of
from gemmgen.plan.kernel import Kernel
from gemmgen.render.overview import Formula
from gemmgen.render.spelling import fit
from gemmgen.render.wrapper import Wrapper


@dataclass(frozen=True)
class InitView:
    """A library as its template sees it."""

    library: Library
    namespace: str = ""
    """The namespace of the operators of a pack that has the library's kernels; empty without a pack."""

    @property
    def plan(self) -> Kernel:
        """The plan of the first kernel, which computes what all do."""
        return self.library.members[0].product.plan

    @cached_property
    def wrapper(self) -> Wrapper:
        """The public function of its module."""
        return Wrapper(self.plan, sides=sides_of(self.plan))

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return f"Matmuls of all shapes: {self.library.description}."

    @property
    def formula(self) -> Formula:
        """The formula of the result."""
        return Formula(self.plan.request)

    @property
    def types(self) -> str:
        """The formula with the extents and the types of all matrices."""
        problem = self.plan.problem
        a, b, d = (f"{name.upper()}[{', '.join(self._extents_of(name))}]" for name in "abd")
        a_type, b_type = problem.a.dtype.name, problem.b.dtype.name
        if problem.a.scale and problem.b.scale:
            a, b = f"({a} * a_scale)", f"({b} * b_scale)"
            a_type += problem.a.scale.words
            b_type += problem.b.scale.words
        product = self.formula.of(a, b, "C[M, N]")
        return f"{d} = {product}: A {a_type}, B {b_type}, D {problem.d.name}."

    def _extents_of(self, name: str) -> Iterator[str]:
        """Return the extents of a matrix as in the formula of a module: G groups."""
        axes = axes_of(self.plan.problem, self.plan.argument(name))
        return ("G" if axis is Axis.GROUPS else axis for axis in axes)

    @property
    def basis(self) -> str:
        """The basis of the choice of a kernel."""
        shapes = {row[:3] for rows in self.library.measured.values() for row in rows}
        kernels = (
            f"one of {len(self.library.members)} kernels" if len(self.library.members) > 1 else "its kernel"
        )
        text = f"`matmul` takes for each shape {kernels}, each a module that the spec of its name generates."
        if not shapes:
            return f"{text} Nothing was measured: the planner's rule chooses."
        return f"{text} They were chosen by what was measured on {self.library.gpu} at {len(shapes)} shapes."

    @property
    def needs(self) -> str:
        """The packages that the library needs."""
        return "torch alone" if self.namespace else f"torch and Triton {self.wrapper.triton.name}"

    @property
    def define_matmul(self) -> str:
        """The head of `matmul`."""
        tensors = [f"{name}: Tensor" for name in self.wrapper.extras]
        hint = ["expected_m: int | None = None"] * expects_rows(self.plan)
        parameters = ["a: Tensor", "b: Tensor", "*", *tensors, *hint, "out: Tensor | None = None"]
        return fit("def matmul(", parameters, ") -> Tensor:")

    @property
    def passed(self) -> str:
        """The arguments that `matmul` passes on."""
        hint = ["expected_m=expected_m"] * expects_rows(self.plan)
        return ", ".join((*self.wrapper.inputs, "out=out", *hint))

    @property
    def expects_rows(self) -> bool:
        """True if a call may say how many rows a group has in the mean."""
        return expects_rows(self.plan)
