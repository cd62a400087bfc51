"""The program in C that tests an exported kernel: it fills tensors, computes D, and compares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import DTYPES, DType
from gemmgen.plan.roles import Argument
from gemmgen.problem.epilogue import ATOM_RANK, OPEN_RANK, Call, Load, Spelled, Spelling, bracketed
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.described import DescribedTensors
from gemmgen.render.statements import statements

C_TYPES = {8: "uint8_t", 16: "uint16_t", 32: "uint32_t"}
PLACES = {"scalar": "0", "row": "row", "column": "column", "matrix": "row * p->n + column"}
"""Where the number of a tensor that an element of D takes is among its numbers."""


def float_bits(dtype: DType) -> tuple[int, int]:
    """Return the bits of exponent and significand of a float as it lies in memory."""
    stored = DTYPES[dtype.in_memory or dtype.name]
    assert stored.significand is not None
    return stored.bits - stored.significand, stored.significand - 1


class DoublePrecision(Spelling):
    """How the test program writes an epilogue, for one element of D."""

    def load(self, load: Load) -> Spelled:
        """Return the number of a tensor."""
        return f"p->{load.tensor}.numbers[{PLACES[load.operand]}]", ATOM_RANK

    def number(self, value: float) -> Spelled:
        """Return a number of type double."""
        return repr(value), super().number(value)[1]

    def activation(self, call: Call, argument: Spelled) -> Spelled:
        """Return the formula of an activation."""
        parameters = {each.name: repr(each.value) for each in call.parameters}
        return OPERATIONS[call.op].c.format(x=bracketed(argument, ATOM_RANK), **parameters), OPEN_RANK


@dataclass(frozen=True)
class Element:
    """An element type as the test program writes and reads it."""

    dtype: DType

    @property
    def name(self) -> str:
        """As a spec has it."""
        return self.dtype.name

    @property
    def c_type(self) -> str:
        """The C type that holds the bits of an element."""
        return f"int{self.dtype.bits}_t" if self.dtype.integer else C_TYPES[self.dtype.bits]

    @property
    def encoded(self) -> str:
        """The element that stands for ``number``."""
        if self.dtype.integer:
            return f"({self.c_type})number"
        exponent, significand = float_bits(self.dtype)
        return f"({self.c_type})encoded(number, {exponent}, {significand})"

    @property
    def decoded(self) -> str:
        """The number that an element stands for."""
        element = f"((const {self.c_type} *)elements)[index]"
        if self.dtype.integer:
            return element
        exponent, significand = float_bits(self.dtype)
        return f"decoded({element}, {exponent}, {significand})"


@dataclass(frozen=True)
class TestProgram(DescribedTensors):
    """The test program of one Hopper plan's launcher as its template sees it."""

    @property
    def _test_arguments(self) -> tuple[Argument, ...]:
        """The tensors that a caller passes."""
        own = (argument for argument in self.plan.arguments if argument.part is None)
        return tuple(argument for argument in own if argument.kind != "workspace")

    @property
    def test_names(self) -> tuple[str, ...]:
        """The names of these tensors."""
        return tuple(argument.name for argument in self._test_arguments)

    @property
    def tensor_names(self) -> str:
        """The names of these tensors, in a declaration."""
        return ", ".join(self.test_names)

    @property
    def test_inputs(self) -> tuple[Element, ...]:
        """The element types that the test program writes, D's among them."""
        dtypes = {argument.dtype.name: argument.dtype for argument in self._test_arguments}
        return tuple(map(Element, dtypes.values()))

    @property
    def test_floats(self) -> bool:
        """Any of the element types is a float."""
        return any(not element.dtype.integer for element in self.test_inputs)

    @property
    def decoded_d(self) -> str:
        """The expression of the number that an element of D stands for."""
        return Element(self.plan.problem.d).decoded

    @property
    def test_tensors(self) -> Iterator[str]:
        """The statements that make the tensors."""
        for argument in self._test_arguments:
            extents = ("1",) if argument.kind == "scalar" else self._extents(argument)
            rows, columns = ("1", *extents)[-2:]
            unit = "1" if argument.dtype.integer else "0.25"
            given = f"{rows}, {columns}, {argument.dtype.bytes}, {unit}, put_{argument.dtype.name}"
            yield f"{argument.name} = filled({given});"

    @property
    def test_arguments(self) -> Iterator[str]:
        """The members of the launcher's arguments."""
        for argument in self._test_arguments:
            name = argument.name
            value = f"p.{name}.address"
            yield (
                f".{name} = {{{value}, p.{name}.row_stride}},"
                if argument.kind == "matrix"
                else f".{name} = {value},"
            )

    @property
    def a_index(self) -> str:
        """The index of A[row, i] among the numbers of A."""
        return "row * p->k + i" if self.plan.problem.a.major == "k" else "i * p->m + row"

    @property
    def b_index(self) -> str:
        """The index of B[i, column] among the numbers of B."""
        return "column * p->k + i" if self.plan.problem.b.major == "k" else "i * p->n + column"

    @property
    def steps(self) -> Iterator[str]:
        """The statements of the epilogue, with the sums in ``value``."""
        declared = {"value"}
        for statement in statements(self.plan.problem.epilogue, DoublePrecision(), "value"):
            yield f"{'double ' * (statement.variable not in declared)}{statement};"
            declared.add(statement.variable)

    @property
    def tolerance(self) -> str:
        """Largest relative error of an element of D: its rounding, and the error of epilogue functions."""
        problem = self.plan.problem
        return repr((problem.d.tolerance or 0.0) + sum(operation.error for operation in problem.operations))

    @property
    def shapes(self) -> tuple[str, ...]:
        """The default problems of the test program: one of whole tiles, one of ragged tiles."""
        plan, unit = self.plan, self.out_unit
        count = 1 if plan.schedule_kind == "single_tile" else 2
        m, n, k = (
            plan.program_tile_m * count,
            plan.program_tile_n * count,
            plan.cta_tile_k * plan.splits * count,
        )
        ragged = (m - 3, max(unit, n - unit), max(1, k - 8))
        return tuple(f"{{{', '.join(map(str, shape))}}}" for shape in ((m, n, k), ragged))
