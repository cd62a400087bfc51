"""The program in C that tests an exported kernel: it fills tensors, computes D, and compares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import DTYPES, DType
from gemmgen.hardware.elements import LEAST_SCALED
from gemmgen.plan.roles import Argument
from gemmgen.problem import Matmul
from gemmgen.problem.epilogue import ATOM_RANK, OPEN_RANK, Call, Load, Spelled, Spelling, bracketed
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.aot.block_scales import BY_ADDRESS, OUTPUT, Scales
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


def column_among(problem: Matmul, accumulator: str) -> str:
    """Return the column of B of an accumulator for a column of D, in C."""
    number = problem.epilogue.accumulators.index(accumulator) if accumulator else 0
    if problem.interleaved:
        return f"{problem.b_blocks} * column{f' + {number}' * bool(number)}"
    blocks = f"{number} * " * (number > 1)
    return f"{blocks}p->n + column" if number else "column"


def columns_of_b(problem: Matmul) -> str:
    """Return the number of columns of B, in C."""
    return f"{problem.b_blocks} * p->n" if problem.gated else "p->n"


class DoublePrecision(Spelling):
    """How the test program writes an epilogue, for one element of D."""

    def __init__(self, problem: Matmul) -> None:
        """Take the matmul that the epilogue is of."""
        self.problem = problem

    def accumulator(self, name: str) -> Spelled:
        """Return the variable of an accumulator's sum: its name may be a word of C."""
        return f"sum_of_{name}", ATOM_RANK

    def load(self, load: Load) -> Spelled:
        """Return the number of a tensor."""
        place = PLACES[load.operand]
        if load.operand == "column":
            place = column_among(self.problem, load.accumulator) if load.accumulator else place
            if self.problem.groups:
                columns = columns_of_b(self.problem) if load.accumulator else "p->n"
                place = f"group * {columns} + {place}"
        return f"p->{load.tensor}.numbers[{place}]", ATOM_RANK

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
        filled = (argument for argument in self._test_arguments if argument.kind != "groups")
        dtypes = {argument.dtype.name: argument.dtype for argument in filled}
        return tuple(map(Element, dtypes.values()))

    @property
    def test_outputs(self) -> tuple[Element, ...]:
        """The element types that the test program reads: D's, and of its scales."""
        outputs = (argument for argument in self._test_arguments if argument.kind == OUTPUT)
        dtypes = (self.plan.problem.d, *(argument.dtype for argument in outputs))
        return tuple(map(Element, {dtype.name: dtype for dtype in dtypes}.values()))

    @property
    def written_tensors(self) -> str:
        """The addresses of the tensors that the kernel writes, as an initializer's text."""
        scales = [argument.name for argument in self._test_arguments if argument.kind == OUTPUT]
        return ", ".join(f"&p.{name}" for name in ("d", *scales))

    @property
    def test_floats(self) -> bool:
        """Any of the element types is a float."""
        return any(not element.dtype.integer for element in self.test_inputs)

    @property
    def test_tensors(self) -> Iterator[str]:
        """The statements that make the tensors."""
        for argument in self._test_arguments:
            if argument.kind == "groups":
                yield f"{argument.name} = counted(p.counts);"
                continue
            extents = ("1",) if argument.kind == "scalar" else self._all_extents(argument)
            rows, columns = ("1", *extents)[-2:]
            unit = "1" if argument.dtype.integer else "0.25"
            gap = 0 if argument.kind in BY_ADDRESS else 1
            given = f"{rows}, {columns}, {argument.dtype.bytes}, {gap}, {unit}, put_{argument.dtype.name}"
            yield f"{argument.name} = filled({given});"

    @property
    def test_arguments(self) -> Iterator[str]:
        """The members of the launcher's arguments."""
        for argument in self._test_arguments:
            name = argument.name
            value = f"p.{name}.address"
            yield (
                f".{name} = {{{value}, p.{name}.row_stride}},"
                if argument.kind in ("matrix", "block_scales")
                else f".{name} = {value},"
            )

    @property
    def a_index(self) -> str:
        """The index of A[row, i] among the numbers of A."""
        if self.plan.problem.a.major == "k":
            row = "row % p->m" if self.groups and self.groups.divides_k else "row"
            return f"{row} * p->k + i"
        if self.groups is None:
            return "i * p->m + row"
        return f"{'i' if self.groups.divides_k else '(group * p->k + i)'} * p->m + row % p->m"

    def _b_index(self, accumulator: str) -> str:
        """Return the index of B[i, column] among the numbers of B, of the columns of an accumulator."""
        problem = self.plan.problem
        stacked = self.groups is not None and self.groups.stacks("b")
        column, columns = column_among(problem, accumulator), columns_of_b(problem)
        if problem.b.major != "k":
            return f"{'(group * p->k + i)' if stacked else 'i'} * {columns} + {column}"
        if stacked:
            return f"(group * {columns} + {column}) * p->k + i"
        return f"{column if column == 'column' else f'({column})'} * p->k + i"

    @property
    def sums(self) -> tuple[str, ...]:
        """The variables of the sums of an element of D."""
        if not self.plan.problem.gated:
            return ("value",)
        spelling = DoublePrecision(self.plan.problem)
        return tuple(spelling.accumulator(name)[0] for name in self.plan.problem.epilogue.accumulators)

    @property
    def zero_sums(self) -> str:
        """The declaration of these variables."""
        return f"double {', '.join(f'{name} = 0' for name in self.sums)};"

    @property
    def add_products(self) -> Iterator[str]:
        """The statements that add the products of one index along K to the sums."""
        of_a = f"p->a.numbers[{self.a_index}]"
        scaled = self.plan.problem.scales_sums
        if not self.plan.problem.gated and not scaled:
            yield f"value += {of_a} * p->b.numbers[{self._b_index('')}];"
            return
        yield f"const double factor = {of_a}{self._scale('a', '')};"
        accumulators = self.plan.problem.epilogue.accumulators if self.plan.problem.gated else ("",)
        for variable, name in zip(self.sums, accumulators, strict=True):
            yield f"{variable} += factor * p->b.numbers[{self._b_index(name)}]{self._scale('b', name)};"

    def _scale(self, operand: str, accumulator: str) -> str:
        """Return the factor of the scale of an element of A, or of B of an accumulator; may be empty."""
        if not self.plan.problem.scales_sums:
            return ""
        scales = self.scales(self.plan.argument(f"{operand}_scale"))
        assert scales is not None
        column = column_among(self.plan.problem, accumulator)
        return f" * p->{scales.argument.name}.numbers[{scales.index(self._row_in_group, column, 'i')}]"

    @property
    def _row_in_group(self) -> str:
        """The row of an element of D in its matrix of A and of scales."""
        return "row % p->m" if self.groups and self.groups.stacks("d") else "row"

    @property
    def d_scale_place(self) -> str:
        """The place of a scale of D among the elements in memory, of the block that begins at a column."""
        return self._d_scales.index(self._row_in_group, "first", "", stride="row_stride")

    @property
    def has_group(self) -> str:
        """The further condition that the row of D of a scale is of a group, by its block and its place."""
        if not self.groups:
            return ""
        first_row = "block / (p->d_scale.rows / GROUPS) * p->m + " * self.plan.problem.stacks_d_scales
        return f" && group_of(p, {first_row}place) >= 0"

    @property
    def _d_scales(self) -> Scales:
        scales = self.scales(next(each for each in self.plan.arguments if each.kind == OUTPUT))
        assert scales is not None
        return scales

    @property
    def d_scale_columns(self) -> int:
        """The columns of D that share a scale."""
        return self._d_scales.block_n

    @property
    def scale_tolerance(self) -> str:
        """Largest relative error of a scale of D: of its quotient, and of epilogue functions."""
        return repr(2.0**-20 + sum(operation.error for operation in self.plan.problem.operations))

    @property
    def largest_d(self) -> str:
        """The largest number of D's type, to which a scale takes the largest magnitude of its block."""
        return repr(float(self.plan.problem.d.largest))

    @property
    def least_scaled(self) -> str:
        """The least magnitude that a scale takes to that number."""
        return repr(LEAST_SCALED)

    @property
    def factor_of_d(self) -> str:
        """The factor of an element of D, as text: its scale, or nothing."""
        if not self.plan.problem.d_scale:
            return ""
        place = self._d_scales.index(self._row_in_group, "column", "", stride="row_stride")
        return f" * get_{self._d_scales.argument.dtype.name}(p->d_scale.elements, {place})"

    @property
    def wrong_scales(self) -> str:
        """The statement that counts wrong scales of D, after others in a line; empty without scales of D."""
        return " + wrong_scales(&p)" * bool(self.plan.problem.d_scale)

    @property
    def overwritten_scales(self) -> str:
        """The number of bytes beside scales of D that were written, as a further summand; may be empty."""
        return " + overwritten_scales(&p)" * bool(self.plan.problem.d_scale)

    @property
    def first_k(self) -> str:
        """The first index along K of a row's group."""
        return "group > 0 ? p->counts[group - 1] : 0" if self.groups and self.groups.divides_k else "0"

    @property
    def end_k(self) -> str:
        """The index after the last one along K of a row's group."""
        return "p->counts[group]" if self.groups and self.groups.divides_k else "p->k"

    @property
    def find_group(self) -> tuple[str, ...]:
        """The statements that return the group of a row of D; -1 stands for a row of no group."""
        groups = self.groups
        if groups is None:
            return ()
        if not groups.apart and not groups.divides_k:
            return (
                "for (int64_t group = 0; group < GROUPS; group++)",
                "    if (row < p->counts[group])",
                "        return group;",
                "return -1;",
            )
        if groups.of == "m_masked":
            return (
                "const int64_t group = row / p->m;",
                "return row % p->m < p->counts[group] ? group : -1;",
            )
        return ("return row / p->m;",)

    @property
    def counts(self) -> str:
        """The numbers that divide a problem into groups: one is empty, and some rows, or some K, are left."""
        groups = self.groups
        assert groups is not None
        if groups.of == "m_masked":
            return "{m, 0, (m + 1) / 2}"
        if groups.divides_k and self.plan.problem.a.scale:  # groups begin with a block of scales
            block = self.plan.problem.a.scale.vector
            half = f"k / {2 * block} * {block}"
            return f"{{{half}, {half}, (k - 1) / {block} * {block}}}"
        extent = "k" if groups.divides_k else "m"
        return f"{{{extent} / 3, {extent} / 3, {extent} > 2 ? {extent} - 2 : {extent}}}"

    @property
    def counts_of_problem(self) -> str:
        """The member with these numbers, in the initializer of a problem; empty if nothing counts."""
        return f", .counts = {self.counts}" if self.groups and self.groups.counts else ""

    @property
    def number_of_groups(self) -> str:
        """The constant with the number of groups, after other constants."""
        return ", GROUPS = 3" if self.groups else ""

    @property
    def all_rows_of_problem(self) -> str:
        """The rows of D of a problem."""
        return "GROUPS * p->m" if self.groups and self.groups.stacks("d") else "p->m"

    @property
    def beside_d(self) -> str:
        """Where nothing may be written, in words."""
        return "between D's rows, and in rows of no group" if self.leaves_rows else "between D's rows"

    @property
    def first_unused_byte(self) -> str:
        """The first byte of a row that may not be written."""
        return "group_of(p, row) < 0 ? 0 : used_bytes" if self.leaves_rows else "used_bytes"

    @property
    def steps(self) -> Iterator[str]:
        """The statements of the epilogue, with the sums in ``value``."""
        declared, problem = set(self.sums), self.plan.problem
        for statement in statements(problem.epilogue, DoublePrecision(problem), "value"):
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
        plan, unit = self.plan, self.column_unit
        count = 1 if plan.schedule_kind == "single_tile" else 2
        m, n, k = (
            plan.program_tile_m * count,
            plan.program_tile_n * count,
            plan.cta_tile_k * plan.splits * count,
        )
        if self.groups and self.groups.divides_k and plan.problem.scales_sums:
            k *= 2  # groups of whole blocks, one of them empty, and a block of no group
        ragged = (m - 3, max(unit, n - unit), max(1, k - 8))
        return tuple(f"{{{', '.join(map(str, shape))}}}" for shape in ((m, n, k), ragged))
