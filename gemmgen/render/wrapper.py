"""The host part of a module: `matmul`, its launch, the backward, and the call that makes its launcher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import TRITON
from gemmgen.hardware.triton_releases import TritonRelease
from gemmgen.plan.decisions import gradient_stem
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.matmul_docs import MatmulDocs
from gemmgen.render.places import Function, Section, in_order
from gemmgen.render.spelling import LINE_LENGTH, fit

DESCRIPTIONS = ("boxes", "blocks", "boxes_of_blocks")
"""The parts with functions that describe matrices as boxes of rows, as blocks of columns, or both."""


@dataclass(frozen=True)
class Wrapper(MatmulDocs):
    """Any plan's wrapper as its template sees it."""

    def gradient_modules(self, stem: str) -> tuple[str, ...]:
        """Return the modules that compute the gradients of a module of this name."""
        return tuple(gradient_stem(stem, gradient.operand) for gradient in self.gradients)

    @property
    def gradient_module(self) -> str:
        """The name of an operand's gradient's module, in a formatted string of the module."""
        return gradient_stem("{__name__}", "{name}")

    @property
    def return_gradients(self) -> str:
        """The statement that returns the gradient of each input."""
        gradients = ["grad_a", "grad_b", *self._other_gradients()]
        line = f"return {', '.join(gradients)}"
        return line if 4 + len(line) <= LINE_LENGTH else f"return {fit('(', gradients, ')', indent=4)}"

    @property
    def define_gradients(self) -> Iterator[str]:
        """The statements that multiply the gradients of A and B from matrices or their transposed views."""
        names = {"a": "a", "b": "b", "d": "grad"}
        for gradient in self.gradients:
            matrices = (*gradient.factors, gradient.operand)
            pairs = zip(matrices, gradient.transposed, strict=True)
            *turns, made = (gradient.turn(matrix, transposed=turned) for matrix, turned in pairs)
            factors = [names[factor] + turn for factor, turn in zip(gradient.factors, turns, strict=True)]
            if self.counts:
                factors.append(f"{self.counts}={self.counts}")
            (other,) = (factor for factor in gradient.factors if factor != "d")
            over_zeros = "call.multiply_over_zeros(" if gradient.leaves_rows else ""
            multiply = f"{over_zeros}matmul_for_{gradient.operand}{', ' if over_zeros else '('}"
            product = f"{multiply}{', '.join(factors)}){made}"
            yield f"grad_{gradient.operand} = None if {other} is None else {product}"

    @property
    def counts(self) -> str:
        """The tensor that divides rows into groups, which a backward keeps; empty without one."""
        groups = self.plan.problem.groups
        return groups.counts or "" if groups else ""

    def _other_gradients(self) -> Iterator[str]:
        """Yield the gradients of the inputs but A and B; the ends of groups have none."""
        factor = self.plan.problem.epilogue.beta
        beta = "" if factor in (0.0, 1.0) else f" * {factor!r}"
        sums = {"row": "grad.sum(1)", "column": "grad.sum(0)"}
        for number, name in enumerate(self.extras, start=2):
            if name == self.counts:
                yield "None"
                continue
            summed = f"grad{beta}" if name == "c" else sums[OPERATIONS[name].operand]
            yield f"{summed} if ctx.needs_input_grad[{number}] else None"

    @property
    def triton(self) -> TritonRelease:
        """The release of Triton that a module was verified with."""
        return TRITON

    @property
    def define_matmul(self) -> str:
        """The head of `matmul`."""
        a, b, *others = (f"{each}: Tensor" for each in self.inputs)
        outputs = (f"{each}: Tensor | None = None" for each in ("out", *self.written))
        parameters = [a, b, "*", *others, *self._parameter_workspace, *outputs]
        returned = "tuple[Tensor, Tensor]" if self.written else "Tensor"
        return fit("def matmul(", parameters, f") -> {returned}:")

    @property
    def _parameter_workspace(self) -> tuple[str, ...]:
        """The parameter of a caller's workspace; empty for a module whose calls need none."""
        return ("workspace: tuple | None = None",) if self.workspace else ()

    @property
    def passed_on(self) -> tuple[str, ...]:
        """The arguments that `matmul` passes on."""
        workspace = ("workspace=workspace",) if self.workspace else ()
        return (*self.inputs, *self.written, *workspace, "out=out")

    @property
    def sizing(self) -> tuple[str, ...]:
        """The tensors by whose extents memory for tensors beside D is made."""
        return ("a", "b", "a_rows") if self.plan.problem.gathers_a else ("a", "b")

    def turned(self, tensor: str, transposed: str) -> str:
        """Return the expression that turns scales as a caller has them to scales as they lie, and back."""
        names = [name for name in self.scales if name in self.transposed]
        of_one = f' if name == "{names[0]}" else {tensor}' if len(names) == 1 else ""
        return f"{tensor}.{transposed}{of_one}"

    @property
    def make_host(self) -> str:
        """The call that makes the launcher of the module."""
        return fit("Host(", ["__name__", *self._host_arguments], ")", indent=len("    call = "), margin=4)

    def make_packed_host(self, stem: str, namespace: str) -> str:
        """Return the call that makes the launcher of a packed module, with an operator in a namespace."""
        arguments = [f'"{stem}"', *self._host_arguments, f'namespace="{namespace}"', "is_compiled=True"]
        return fit("Host(", arguments, ")", indent=len("call = "), margin=0)

    @property
    def _host_arguments(self) -> list[str]:
        """The arguments after the name, of the call that makes the launcher of the module."""
        options = [f"transposed={self.transposed_matrices}"]
        options += [f"{name}={name}" for function in self._functions for name in function.passed]
        if self.gradients:
            options.append("backward=(keep, backward)")
        return ["ARGUMENTS", "TMA", "COMPUTES", "launch", *options]

    @property
    def computes(self) -> Iterator[str]:
        """The rows of COMPUTES: the kernel's own, then each row of a feature."""
        yield from self.facts
        for side in self.sides:
            yield from side.facts

    @property
    def _descriptions(self) -> set[str]:
        """The functions that describe C, D and saved sums, where Triton's own does not."""
        moved = (each.tensor for each in self.plan.arguments if each.tensor in ("c", "d", "saved"))
        return {*map(self.plan.access.describing_function, moved)}

    @property
    def functions(self) -> Iterator[str]:
        """The templates of the functions of the host, in order."""
        return (f"{each.template}.py.j2" for each in self._functions)

    @property
    def _functions(self) -> list[Function]:
        """The functions of the host, in order."""
        found = in_order(self._own_functions, (side.functions for side in self.sides))
        return [each for each in found if each.section >= Section.MATMUL]

    @property
    def _own_functions(self) -> Iterator[Function]:
        """The functions of the host that no feature has."""
        yield Function(Section.MATMUL, "wrapper/matmul")
        if self.plan.access.stores_boxes:
            yield Function(Section.MATMUL, "wrapper/ahead")
        for name in DESCRIPTIONS:
            if f"describe_{name}" in self._descriptions:
                yield Function(Section.MATMUL, f"wrapper/{name}")
        if self.plan.access.loads_k_from_any_row:
            yield Function(Section.MATMUL, "wrapper/boxes_of_k")
        yield Function(Section.LAUNCH, "wrapper/launch")
        if self.gradients:
            yield Function(Section.BACKWARD, "wrapper/backward")
