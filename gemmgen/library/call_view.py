"""The functions of a library that see tensors or sizes of a call, as the template of the package has them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gemmgen.library.assemble import Library
from gemmgen.library.call_sizes import CALL_SIZES, CallSizes
from gemmgen.literals import python_literal
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument
from gemmgen.problem.groups import Groups
from gemmgen.render.spelling import LINE_LENGTH, fit
from gemmgen.render.wrapper import Wrapper

EXTENT_NAMES: Final = {"G": "groups", "1": "1"}
"""Variables of the extents whose axes have other letters."""
NEXT: Final = "\n    "
"""Between two statements of a function."""
EXPECTED_M: Final = "expected_m: int | None = None"
"""The parameter with the rows that a group has in the mean."""
EXPECTED_M_DOC: Final = (
    "expected_m: Rows of a group in the mean, by which the kernel is chosen; if None, from no row to M."
)


@dataclass(frozen=True)
class CallView:
    """The calls of a library as its template sees them."""

    library: Library
    pack: str = ""
    """The namespace of the operators of a pack that has the library's kernels; empty without a pack."""

    @property
    def namespace(self) -> str:
        """The namespace of its operator in torch."""
        return self.pack or "gemmgen"

    @property
    def plan(self) -> Kernel:
        """The plan of the first kernel, which computes what all do."""
        return self.library.members[0].product.plan

    @cached_property
    def wrapper(self) -> Wrapper:
        """The public function of its module."""
        return Wrapper(self.plan)

    @property
    def groups(self) -> Groups | None:
        """The groups of all kernels, with the number that they are planned for; None without groups."""
        return self.plan.problem.groups

    @property
    def call(self) -> CallSizes:
        """The expressions of the sizes of a call."""
        return CALL_SIZES[self.groups.of if self.groups else None]

    @property
    def blocks(self) -> int:
        """The columns of B for each column of D."""
        return self.plan.problem.b_blocks

    @property
    def read_sizes(self) -> str:
        """The statement that reads M, N and K, and the number of groups, from the tensors of a call."""
        m, columns, *rest = self.call.sizes
        n = f"{columns} // {self.blocks}" if self.blocks > 1 else columns
        return f"sizes = {', '.join((m, n, *rest))}"

    @property
    def read_operator_sizes(self) -> str:
        """The statements that read the same from the A and B of the operator."""
        return f"{self.call.read_by_operator}{f'{NEXT}n //= {self.blocks}' * (self.blocks > 1)}"

    @property
    def find_columns(self) -> str:
        """The statements of `can_implement` that make N of B's columns, as lines; empty if B has N."""
        if self.blocks == 1:
            return ""
        wanted = f"b must have {self.blocks} N columns, N for each sum of an element of D, found {{n}}"
        lines = [
            f"    if n % {self.blocks}:",
            f'        return False, f"{wanted}"',
            f"    n //= {self.blocks}",
        ]
        if (multiple := self.plan.problem.n_multiple) > 1:
            why = f"N must be a multiple of {multiple}, found {{n}}"
            lines += [f"    if n % {multiple}:", f'        return False, f"{why}"']
        return "".join(f"{line}\n" for line in lines)

    # --- choices

    @cached_property
    def unordered(self) -> tuple[str, ...]:
        """The names of the kernels that add up sums in any order."""
        return tuple(member.stem for member in self.library.members if not member.product.plan.deterministic)

    @property
    def _define_unordered(self) -> str:
        return fit("UNORDERED = {", [python_literal(stem) for stem in self.unordered], "}")

    @property
    def key(self) -> str:
        """The key of a choice; torch's deterministic mode is part of it if it excludes unordered kernels."""
        mode = ("torch.are_deterministic_algorithms_enabled()",) * bool(self.unordered)
        return ", ".join(("a.shape", "b.shape", *self.call.key, "a.get_device()", *mode))

    @property
    def key_in_words(self) -> str:
        """The comment on the dict of choices, without the number sign."""
        names = ["the shapes of a and b", *self.call.key, *["the mode"] * bool(self.unordered)]
        return f"by {', '.join(names)} and a's device: what the `matmul` of a kernel calls"

    @property
    def chosen_by(self) -> str:
        """The arguments that a choice depends on."""
        return ", ".join(("a", "b", *self.call.chosen_by))

    @property
    def are_tensors(self) -> str:
        """The condition that the tensors are tensors whose shapes a choice depends on."""
        if "offs" in self.call.chosen_by:
            return "all(isinstance(each, Tensor) for each in (a, b, offs))"
        return "isinstance(a, Tensor) and isinstance(b, Tensor)"

    @property
    def define_chosen(self) -> str:
        """The head of the function that chooses for tensors."""
        kinds = {"expected_m": "int | None"}
        rest = [f"{name}: {kinds.get(name, 'Tensor')}" for name in self.call.chosen_by]
        return fit("def _chosen(", ["a: Tensor", "b: Tensor", *rest], ") -> Callable:")

    @property
    def hint(self) -> str:
        """A further argument of `choose` after the sizes."""
        return ", expected_m" * self.call.expects_rows

    @property
    def sizes(self) -> str:
        """The variables of the sizes by which a kernel is chosen."""
        return f"m, n, k{', groups' * bool(self.groups)}{self.hint}"

    @property
    def _size_parameters(self) -> list[str]:
        parameters = ["m: int", "n: int", "k: int"]
        if self.groups:
            parameters.append(f"groups: int = {self.groups.count}")
        return [*parameters, *[EXPECTED_M] * self.call.expects_rows]

    @property
    def define_choose(self) -> str:
        """The head of `choose`."""
        return fit("def choose(", [*self._size_parameters, "*", "gpu: str | None = None"], ") -> Choice:")

    @property
    def define_explain(self) -> str:
        """The head of `explain`."""
        return fit("def explain(", [*self._size_parameters, "*", "gpu: str | None = None"], ") -> str:")

    @property
    def define_warmup(self) -> str:
        """The head of `warmup`."""
        device = 'device: torch.device | str = "cuda"'
        shapes = "shapes: Iterable[tuple[int, int, int]]"
        return fit("def warmup(", [shapes, "*", *self._size_parameters[3:], device], ") -> None:")

    @property
    def define_can_implement(self) -> str:
        """The head of `can_implement`."""
        parameters = [
            "a_shape: Sequence[int]",
            "b_shape: Sequence[int]",
            f"a_dtype: torch.dtype = {self.a_torch}",
            f"b_dtype: torch.dtype = {self.b_torch}",
        ]
        more = [*self._groups_of_call, *[EXPECTED_M] * self.call.expects_rows]
        return fit("def can_implement(", parameters + ["*"] * bool(more) + more, ") -> tuple[bool, str]:")

    @property
    def _groups_of_call(self) -> list[str]:
        """The parameter of `can_implement` with the number of groups, unless A or B has it."""
        hidden = self.groups is not None and not self.groups.stacks("b")
        return [f"groups: int = {self.groups.count}"] if self.groups and hidden else []

    @property
    def check_sizes(self) -> str:
        """The statements that check a problem, and scale it to the planned number of groups."""
        check = "_check_sizes(m, n, k)"
        if not self.groups:
            return check
        return f"{check}\n    m, n, k = GROUPS.resized((m, n, k), groups{self.hint})"

    @property
    def import_groups(self) -> str:
        """The import of the class of groups, in a line of its own; empty without groups."""
        return "\nfrom .groups import Groups" if self.groups else ""

    @property
    def computes(self) -> str:
        """The statement of COMPUTES: the inputs, the epilogue, and the elements that share a scale."""
        items = [f'"inputs": ({self.operator_inputs})', f'"epilogue": {self.wrapper.epilogue}']
        problem = self.plan.problem
        if problem.a.scale is None or problem.b.scale is None:
            return f"COMPUTES = {{{', '.join(items)}}}"
        items += [
            f'"scale_vector": {problem.a.scale.vector}',
            f'"scale_columns": {problem.b.scale.format.rows}',
        ]
        return fit("COMPUTES = {", [*items, f'"out_dtype": {self.d_torch}'], "}")

    @property
    def scale_functions(self) -> tuple[str, ...]:
        """The templates of functions for scales of blocks; empty without them."""
        return ("library/arrange_scales.py.j2",) * (self.plan.problem.a.scale is not None)

    @property
    def more_constants(self) -> str:
        """The constants of unordered kernels and of groups, in lines of their own; empty without both."""
        lines: list[str] = []
        if self.unordered:
            reason = "torch.use_deterministic_algorithms(True) excludes them."
            lines += [f"# Kernels that add up sums in any order: {reason}", self._define_unordered]
        if self.groups:
            groups = f"Groups({python_literal(self.groups.of)}, {self.groups.count})"
            lines.append(f"GROUPS = {groups}  # for which TABLE is, and the rule")
        return "".join(f"\n{line}" for line in lines)

    @property
    def shaped_inputs(self) -> str:
        """A and B with their types and dimensions, as a tuple's text."""
        pairs = zip("ab", (self.a_torch, self.b_torch), self.call.dimensions, strict=True)
        rows = [f'("{name}", {name}, {dtype}, {dimensions})' for name, dtype, dimensions in pairs]
        return fit("(", rows, ")", indent=len("    for name, tensor, dtype, dimensions in "), margin=4)

    @property
    def size_docs(self) -> str:
        """The paragraph about M and the number of groups in the docstring of `choose`; may be empty."""
        if not self.groups:
            return ""
        of = "K" if self.groups.divides_k else "rows"
        text = f"M is {self.call.m}. The kernel is the one for {self.groups.count} groups of as many {of} in"
        text += " the mean, to which M, or K, of another number of groups is scaled."
        if self.call.expects_rows:
            text += " Groups are expected to have from no row to M, or `expected_m` in the mean."
        filled = textwrap.fill(text, LINE_LENGTH - 5, initial_indent="    ", subsequent_indent="    ")
        return f"\n\n{filled}"

    @property
    def in_groups(self) -> str:
        """Words of an explanation about the groups for which the table is."""
        return f" in {self.groups.count} groups" if self.groups else ""

    @property
    def forecast(self) -> str:
        """The class of the expected times."""
        return "GroupForecast" if self.groups else "Forecast"

    @property
    def forecast_module(self) -> str:
        """The part of the package with this class."""
        return "group_forecast" if self.groups else "forecast"

    @property
    def division(self) -> str:
        """A further argument of the class: the groups of a problem."""
        return ", division=GROUPS" if self.groups else ""

    # --- functions of tensors

    def _define(self, name: str, rest: list[str], returns: str = "Tensor") -> str:
        """Return the head of a function of A and B, what else it takes, and `out`."""
        arguments = ["a: Tensor", "b: Tensor", *rest, "out: Tensor | None = None"]
        return fit(f"def {name}(", arguments, f") -> {returns}:")

    @property
    def _extras(self) -> list[str]:
        return [f"{extra}: Tensor" for extra in self.wrapper.extras]

    @property
    def _expected(self) -> list[str]:
        return [EXPECTED_M] * self.call.expects_rows

    @property
    def define(self) -> str:
        """The head of `matmul`."""
        return self._define("matmul", ["*", *self._extras, *self._expected])

    @property
    def define_traced(self) -> str:
        """The head of the function that calls the operator."""
        inputs = "*inputs: Tensor | int | None" if self._expected else "*inputs: Tensor"
        return f"def _traced({inputs}, out: Tensor | None = None) -> Tensor:"

    @property
    def define_run(self) -> str:
        """Head of the operator's function, with the arguments of the kernels' functions."""
        arguments = ["a: Tensor", "b: Tensor", *self._extras, *self._expected, "*"]
        arguments += ["out: Tensor | None = None"]
        return fit("def _run(", arguments, ") -> Tensor | None:")

    @property
    def define_shaped(self) -> str:
        """Head of the operator's function for tensors without memory."""
        if "offs" in self.call.chosen_by:
            return self._define("_shaped", ["offs: Tensor", "*"], "Tensor | None")
        rest = "*_: object" if self._expected else "*_: Tensor" if self._extras else "*"
        return self._define("_shaped", [rest], "Tensor | None")

    @property
    def inputs(self) -> str:
        """Tensors that it reads, in the order of the operator."""
        return ", ".join(("a", "b", *self.wrapper.extras))

    @property
    def traced_inputs(self) -> str:
        """The arguments of the operator."""
        return self.inputs + ", expected_m" * self.call.expects_rows

    @property
    def operator_inputs(self) -> str:
        """Names of the tensors that it reads, as a tuple."""
        return ", ".join(map(python_literal, ("a", "b", *self.wrapper.extras)))

    @property
    def define_operator(self) -> str:
        """The call that registers the operator."""
        hint = ["int? expected_m=None"] * self.call.expects_rows
        inputs = ", ".join(map(python_literal, ("a", "b", *self.wrapper.extras, *hint)))
        arguments = ["operator_name(__name__)", f"({inputs})", "_run", "_shaped", "count_flops=_count_flops"]
        arguments += [f"namespace={python_literal(self.pack)}"] if self.pack else []
        return fit("define_operator(", arguments, ")")

    @property
    def summary(self) -> str:
        """Description of the result."""
        return self.wrapper.summary

    @property
    def argument_docs(self) -> str:
        """Documentation of the kernels' arguments, without the memory for parts of K."""
        docs = self.wrapper.docs_of_arguments(workspace=False)
        return f"{docs}\n        {EXPECTED_M_DOC}" if self.call.expects_rows else docs

    @property
    def empty_inputs(self) -> Iterator[str]:
        """Yield expressions of the inputs for a shape, which lie in memory as the kernels read them.

        All groups are empty: a kernel may write any row that is of a group.
        """
        for name in self.wrapper.inputs:
            argument = self.plan.argument(name)
            keyword = "" if name in ("a", "b") else f"{name}="
            made = self._empty(argument)
            if name in self.wrapper.scales:  # rows of blocks begin at multiples of 16 bytes
                made = f'arrange_scales("{name}", {made})'
            yield f"{keyword}{made}"
        if self.call.expects_rows:
            yield "expected_m=expected_m"

    def _empty(self, argument: Argument) -> str:
        """Return the expression of a tensor without values, or of the counts of groups without rows."""
        axes, turn = self.wrapper.axes_of(argument), ""
        if argument.name in self.wrapper.transposed:
            axes, turn = f"{axes[:-2]}{axes[-1]}{axes[-2]}", ".mT" if len(axes) > 2 else ".T"
        names = EXTENT_NAMES | {"W": f"{self.blocks} * n"} | self._extents_of_scales
        extents = ", ".join(names.get(axis, axis.lower()) for axis in axes)
        made = "zeros" if argument.kind == "groups" else "empty"
        return f"torch.{made}({extents}, dtype={argument.dtype.torch}, device=device){turn}"

    @property
    def _extents_of_scales(self) -> dict[str, str]:
        """The extents of scales of blocks by the letters of their axes: B along K, C along B's columns."""
        problem = self.plan.problem
        if problem.a.scale is None or problem.b.scale is None:
            return {}
        columns = f"{self.blocks} * n" if self.blocks > 1 else "n"
        rows_of_b = problem.b.scale.format.rows
        return {"B": f"-(-k // {problem.a.scale.vector})", "C": f"-(-{columns} // {rows_of_b})"}

    @property
    def a_torch(self) -> str:
        """The element type of A."""
        return self.plan.problem.a.dtype.torch

    @property
    def b_torch(self) -> str:
        """The element type of B."""
        return self.plan.problem.b.dtype.torch

    @property
    def d_torch(self) -> str:
        """The element type of D."""
        return self.plan.problem.d.torch

    # --- shapes that it takes

    @property
    def can_implement(self) -> str:
        """The template of the body of `can_implement`."""
        return f"library/can_implement{'_groups' * bool(self.groups)}.py.j2"

    @property
    def axes(self) -> tuple[str, str]:
        """The axes of A and of B as they are passed, a letter each."""
        return self.wrapper.axes_of(self.plan.argument("a")), self.wrapper.axes_of(self.plan.argument("b"))

    @property
    def known_extents(self) -> str:
        """The extents of a problem of groups that neither A nor B has."""
        return '{"G": groups}' if self._groups_of_call else "{}"

    @property
    def most_groups(self) -> str:
        """Most groups of a call; only their rows in memory may be limited."""
        return str(self.plan.group_slots or "MAX_EXTENT")

    @property
    def rows_in_memory(self) -> str:
        """The largest number of rows of all groups in one matrix, as TMA counts them."""
        found = dict[str, None]()
        for name in ("a", "b", "d"):
            axes = self.wrapper.axes_of(self.plan.argument(name))
            if axes[0] == "G":
                axis = axes[-1 if name in self.wrapper.transposed else -2]
                found["n" if axis == "W" else axis.lower()] = None  # n of B, as the check has it
        names = ", ".join(found)
        return f"groups * max({names})" if len(found) > 1 else f"groups * {names}"

    @property
    def rows_of_units(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield whose rows must be whole units: operand, the extent along them, its variable, the unit."""
        problem = self.plan.problem
        if problem.copies_misaligned:
            return
        found: dict[tuple[str, int], list[str]] = {}
        for name, operand, other in (("a", problem.a, "m"), ("b", problem.b, "n")):
            extent = "k" if operand.major == "k" else other
            found.setdefault((extent, 16 * 8 // operand.dtype.bits), []).append(name)
        for (extent, unit), names in found.items():
            blocks = f"{self.blocks} " * (extent == "n" and self.blocks > 1)  # n of B, as the check has it
            yield " and ".join(names), f"{blocks}{extent.upper()}", extent, unit
