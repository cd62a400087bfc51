"""The public function of a module: what it takes, checks and says."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen import triton_api
from gemmgen.hardware import DType
from gemmgen.plan.decisions import gradient_stem
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument, tensor_of
from gemmgen.problem import Gradient, Operand, gradients_of
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.overview import LINE_LENGTH, extent_name, fit, formula, layout_name

TMA_UNIT_BYTES = 16
"""TMA writes rows in units of these; addresses and row strides are multiples of it."""


@dataclass(frozen=True)
class Wrapper:
    """Any plan's wrapper as its template sees it."""

    plan: Kernel

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """What the backward multiplies; nothing where there is none."""
        return gradients_of(self.plan.problem)

    @property
    def no_backward(self) -> str:
        """What a module without a backward says of that."""
        return "" if self.gradients else "; no backward"

    def backward_paragraph(self, stem: str) -> str:
        """Return which modules compute the gradients of a module of this name, wrapped."""
        if not self.gradients:
            return ""
        modules = " and ".join(gradient_stem(stem, gradient.operand) for gradient in self.gradients)
        text = f"The gradients of A and B come from the modules {modules}, imported from beside this one."
        return f"\n\n{textwrap.fill(text, width=105)}"

    @property
    def gradient_module(self) -> str:
        """The name of an operand's gradient's module, in a formatted string of the module."""
        return gradient_stem("{__name__}", "{name}")

    @property
    def standard_imports(self) -> str:
        """The imports of Python's own modules."""
        threads = "\nfrom threading import get_ident" * self.plan.reduces_apart
        importing = "\nimport importlib" * bool(self.gradients)
        warning = "\nimport warnings" * (not self.plan.deterministic)
        return f"import functools{importing}{warning}{threads}"

    @property
    def faults_of_autograd(self) -> str:
        """The part with faults of tensors that autograd follows."""
        return f"faults_autograd{'_backward' * bool(self.gradients)}.py.j2"

    @property
    def operator(self) -> str:
        """The part that registers the operator."""
        return f"operator{'_backward' * bool(self.gradients)}.py.j2"

    @property
    def return_gradients(self) -> str:
        """The statement that returns the gradients of all that is read."""
        gradients = [*self._multiplied_gradients(), *self._summed_gradients()]
        line = f"return {', '.join(gradients)}"
        return line if 4 + len(line) <= LINE_LENGTH else f"return {fit('(', gradients, ')', indent=4)}"

    def _multiplied_gradients(self) -> Iterator[str]:
        """Yield the gradients of A and of B: each matrix is read as it is or as its transposed view."""
        names = {"a": "a", "b": "b", "d": "grad"}
        for gradient in self.gradients:
            left, right, made = (".T" * turned for turned in gradient.transposed)
            factors = [
                names[factor] + turned for factor, turned in zip(gradient.factors, (left, right), strict=True)
            ]
            (other,) = (factor for factor in gradient.factors if factor != "d")
            yield f"None if {other} is None else of_{gradient.operand}({', '.join(factors)}){made}"

    def _summed_gradients(self) -> Iterator[str]:
        """Yield the gradients of what is added to A @ B."""
        problem = self.plan.problem
        beta = f" * {problem.beta!r}" * (problem.beta != 1 and not problem.residual)
        sums = {"row": "grad.sum(1)", "column": "grad.sum(0)"}
        for number, name in enumerate(self.extras, start=2):
            summed = f"grad{beta}" if name == "c" else sums[OPERATIONS[name].operand]
            yield f"{summed} if ctx.needs_input_grad[{number}] else None"

    @property
    def lay_out_gradient(self) -> str:
        """The statements that make a gradient of D one that the kernels take, by a copy where it is not."""
        if self.plan.problem.copies_misaligned:
            return "grad = grad.contiguous()  # an expanded one overlaps itself"
        extents = f"m, n, columns = *grad.shape, -(-grad.shape[1] // {self.out_unit}) * {self.out_unit}"
        misplaced = f"grad.stride() != (columns, 1) or grad.storage_offset() % {self.out_unit}"
        copy = "    grad = grad.new_empty((m, columns))[:, :n].copy_(grad)"
        return "\n    ".join((extents, f"if {misplaced}:  # expanded, or misaligned", copy))

    @property
    def vanishes(self) -> bool:
        """Whether D is zero where A @ B is, whatever else the kernel reads.

        A block-scaled kernel takes no K of 0, of which there are no scales: a finite factor keeps its zeros.
        """
        problem = self.plan.problem
        return problem.c is None and all(
            (op.function and op.keeps_zero) or (self.scales and op.operand == "scalar")
            for op in problem.operations
        )

    @property
    def multiplies_zeros(self) -> bool:
        """Whether a K of 0 has a D to compute; block-scaled operands of none, without scales, are refused."""
        return not self.vanishes and not self.scales

    def _of_kind(self, kind: str) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.plan.arguments if argument.kind == kind)

    @property
    def scales(self) -> tuple[str, ...]:
        """The arguments that are scales of blocks."""
        return self._of_kind("block_scales")

    @property
    def extras(self) -> tuple[str, ...]:
        """The keyword arguments beside `out`, in the order of the kernel's."""
        names = (argument.name for argument in self.plan.arguments if argument.kind != "workspace")
        return tuple(name for name in names if tensor_of(name) not in ("a", "b", "d"))

    @property
    def further_parts(self) -> tuple[str, ...]:
        """The arguments that are B again, each with the box of a further part of its tiles."""
        return tuple(
            argument.name for argument in self.plan.arguments if tensor_of(argument.name) != argument.name
        )

    def operand(self, name: str) -> Operand:
        """Return the operand called ``a`` or ``b``, also by the name of its scales."""
        return self.plan.problem.a if name in ("a", "a_scale") else self.plan.problem.b

    def vector(self, name: str) -> int:
        """Return the elements of K that share one of these scales."""
        scale = self.operand(name).scale
        assert scale is not None  # asked for block-scaled operands only
        return scale.vector

    @property
    def vectors(self) -> tuple[str, ...]:
        """The arguments that are vectors."""
        return self._of_kind("vector")

    def dtype(self, name: str) -> DType:
        """Return an argument's element type."""
        return self.plan.argument(name).dtype

    def define(self) -> str:
        """Return the head of `matmul`, whose docstring has all types: it has them where there is room."""
        extras = [f"{name}: Tensor" for name in self.extras]
        workspace = ["workspace: tuple | None = None"] if self.workspace else []
        typed = ["a: Tensor", "b: Tensor", "*", *extras, *workspace, "out: Tensor | None = None"]
        head = fit("def matmul(", typed, ") -> Tensor:")
        if "\n" not in head:
            return head
        plain = ["a", "b", "*", *self.extras, *["workspace=None"] * self.workspace, "out=None"]
        return fit("def matmul(", plain, ") -> Tensor:")

    @property
    def define_run(self) -> str:
        """The head of what `matmul` and the operator call."""
        workspace = ["workspace: tuple = ()"] if self.workspace else []
        apart = ["apart=False"] if self.keeps_memory else []
        arguments = ["*inputs: Tensor", *workspace, "out: Tensor | None = None", *apart, "hooks=HOOKS"]
        head = fit("def _matmul(", arguments, ") -> Tensor | None:")
        if "\n" not in head:
            return head
        untyped = [argument.replace(": Tensor | None = ", "=") for argument in arguments]
        return fit("def _matmul(", untyped, ") -> Tensor | None:")

    @property
    def launch(self) -> Iterator[str]:
        """The statements that launch the kernels that an earlier call prepared."""
        if self.plan.reduces_apart:
            yield "for launch, rest in kept:"
            yield "    launch(stream, *rest)"
        else:
            stream = "stream" if self.workspace else "_C._cuda_getCurrentRawStream(key[0])"
            yield f"launch({stream}, *rest)"

    @property
    def find_mode(self) -> str:
        """The statements that find the modes that a launch is kept for, of one block."""
        where = "index, apart" if self.keeps_memory else "_C._cuda_getDevice()"
        line = f"mode = {where}, *hooked, forward_ad._current_level, _C.is_grad_enabled()"
        if self.plan.deterministic:
            return line
        refusing = "mode = *mode, _C._get_deterministic_algorithms()  # that mode refuses this kernel"
        return f"{line}\n        {refusing}"

    @property
    def replayable(self) -> str:
        """How a key begins if its launch may be kept: no hooks, no forward AD, no memory of its own."""
        return "[:3] == (device.index, False, -1)" if self.keeps_memory else "[:2] == (device.index, -1)"

    @property
    def traced(self) -> str:
        """What the operator calls.

        Inductor runs what it will record into a graph once before, on a stream of its own and in the graph's
        memory, of which nothing may be kept. So on a stream that is not the default one, what a stream keeps
        is apart: of one call.
        """
        return "functools.partial(_matmul, apart=True)" if self.keeps_memory else "_matmul"

    def find_operator(self, stem: str) -> Iterator[str]:
        """Return the statements that find what is kept of the operator of a module of this name."""
        kept = 'KEPT = vars(torch.ops.gemmgen).setdefault("kept", {}).setdefault'
        line = f'{kept}(NAME := "{stem}", [])'
        if len(line) <= LINE_LENGTH:
            yield line
        else:
            yield f'NAME = "{stem}"'
            yield f"{kept}(NAME, [])"

    @property
    def has_another_schema(self) -> str:
        """The condition that an operator of this name, if there is one, has other arguments.

        It is then defined anew, and what torch holds of the old one is dropped with it.
        """
        read = self._kept(f'READ := "{self.schema}"')
        line = f"if KEPT[1:2] != [{read}]:"
        if len(line) <= LINE_LENGTH:
            return line
        others = str(("out", *self.further_parts)).replace("'", '"')
        condition = f"not in {others}" if self.further_parts else '!= "out"'
        names = f'f"Tensor {{name}}" for name in ARGUMENTS if name {condition}'
        read = self._kept(f'READ := ", ".join({names})')
        return f"if KEPT[1:2] != [{read}]:"

    def _kept(self, read: str) -> str:
        """Return what is kept of an operator that reads this: one with a backward is another one."""
        return f'({read}, "backward")' if self.gradients else read

    @property
    def keep_newest(self) -> str:
        """The statement that lets the operator call this module."""
        says = "the operator, defined once, calls the newest"
        line = f"KEPT[:2] = {self.traced}, {self._kept('READ')}"
        short = f"{line}  # {says}"
        return short if len(short) <= LINE_LENGTH else f"# {says[0].upper()}{says[1:]}.\n{line}"

    @property
    def given_briefly(self) -> str:
        """What the operator takes but for `out`, as a call has it: the names, or a tuple of all of them."""
        return self.given if 4 + len(self._run_with(self.given)) <= LINE_LENGTH else "*given"

    @property
    def run(self) -> str:
        """The statement that runs what was found; what writes into `out` returns nothing."""
        return self._run_with(self.given_briefly)

    @staticmethod
    def _run_with(given: str) -> str:
        return f"return run({given}) if out is None else run({given}, out=out) or out"

    @property
    def find_seen(self) -> str:
        """The statements that say whether torch is to see the operator, of one block.

        It is while torch traces, in a mode, and for a tensor that has a dispatch of its own.
        """
        keep = f"given = {self.given}\n    " * (self.given_briefly == "*given")
        types = ", ".join(f"type({name})" for name in (*self.given.split(", "), "out"))
        types = f"*map(type, ({self.given_briefly}, out))" if keep else types
        modes, dispatch = "seen = is_compiling() or count_modes()", f"HAS_DISPATCH({types})"
        line = f"{modes} or {dispatch}"
        return keep + (line if 4 + len(line) <= LINE_LENGTH else f"{modes}\n    seen = seen or {dispatch}")

    def dispatch(self, stem: str) -> Iterator[str]:
        """Return the statements of `matmul` in a module of this name."""
        yield self.find_seen
        if self.gradients:
            yield "learns = torch.is_grad_enabled() and not _C._are_functorch_transforms_active()"
            yield f"seen = seen or (learns and _C._any_requires_grad({self.given_briefly}))"
        line = f"run = torch.ops.gemmgen.{stem} if seen else _matmul"
        yield (
            line
            if 4 + len(line) <= LINE_LENGTH
            else "run = getattr(torch.ops.gemmgen, NAME) if seen else _matmul"
        )
        if self.workspace:
            yield "run = functools.partial(run, workspace=workspace) if workspace and not seen else run"
        yield self.run

    @property
    def tensors(self) -> str:
        """All tensors of a call."""
        inputs = "*inputs, *workspace" if self.workspace else "*inputs"
        return (
            f"{'(*inputs, *workspace)' if self.workspace else 'inputs'} if out is None else ({inputs}, out)"
        )

    @property
    def workspace_places(self) -> str:
        """What else a prepared launch is kept by: where its stream's workspace is, if none is given."""
        return ", *own[1]" * self.workspace

    @property
    def places(self) -> str:
        """The same, once the last arguments are these addresses."""
        return ", *arguments[-2:]" * self.workspace

    @property
    def workspace(self) -> bool:
        """Whether calls leave in memory what later ones rely on: counters, and sums that are added to.

        What programs leave for a second kernel of the call is of no use to a later one.
        """
        return bool(self._of_kind("workspace")) and not self.plan.reduces_apart

    @property
    def keeps_memory(self) -> bool:
        """Whether a stream keeps memory for its calls: a workspace, or sums for a second kernel.

        Those are one thread's: the launches of two calls from two threads may come in any order.
        """
        return bool(self._of_kind("workspace"))

    @property
    def make_memory(self) -> str:
        """The function that makes what a stream keeps: a workspace with its addresses, or a thread's sums."""
        if self.workspace:
            return "lambda _, *of: (w := make_workspace(*of), [t.data_ptr() for t in w])"
        dtype = self.plan.problem.accumulator.torch
        return f"lambda _, __, size, of: torch.empty(size, dtype={dtype}, device=of)"

    @property
    def _counters_of_tile(self) -> int:
        """Counters of a tile: each consumer that has rows of its own counts the parts of them."""
        return self.plan.counting_partitions or 1

    @property
    def _per_consumer(self) -> str:
        """The counters of a tile, as a factor behind others."""
        return "" if self._counters_of_tile == 1 else " * CONSUMERS.value"

    @property
    def counters(self) -> str:
        """The extents of the counters."""
        if self.plan.divides_last_wave:
            return "tiles" if self._counters_of_tile == 1 else "(tiles, CONSUMERS.value)"
        return "tiles" if self._counters_of_tile == 1 else "(*tiles, CONSUMERS.value)"

    @property
    def counters_lacking(self) -> str:
        """Whether a workspace has fewer counters than a call needs."""
        needed = "min(tiles, PROGRAMS.value)" if self.plan.divides_last_wave else "tiles"
        return f"arguments[-1].numel() < {needed}{self._per_consumer}"

    @property
    def partials(self) -> str:
        """How many sums each element of D has, as a factor; or each place of a piece of a tile."""
        if self.plan.divides_last_wave:
            return "" if self._counters_of_tile == 1 else "CONSUMERS.value * "
        return "SPLITS.value * " if self.plan.restored == ("counters",) else ""

    def make_sums(self, places: str) -> Iterator[str]:
        """Return the statements that make memory for so many sums, and return it with the counters."""
        count, dtype = f"{self.partials}SUMS.value * {places}", self.plan.problem.accumulator.torch
        line = f"return torch.{self.sums_are}({{}}, dtype={dtype}, device=device), counters"
        if 4 + len(line.format(count)) > LINE_LENGTH:
            yield f"sums = {count}"
            count = "sums"
        yield line.format(count)

    @property
    def sums_are(self) -> str:
        """What torch makes the sums from: those that programs add to begin at zero."""
        return "empty" if self.plan.restored == ("counters",) else "zeros"

    @property
    def scale_torch(self) -> str:
        """The element type of the scales, of A's and of B's."""
        return self.dtype("a_scale").torch

    @property
    def scale_name(self) -> str:
        """The constant that holds it."""
        return self.dtype("a_scale").name.upper()

    @property
    def define_scale(self) -> str:
        """The constants that hold it, and what TMA moves such scales as."""
        if self.scales_are_bytes:
            dtype = self.scale_torch
            return (
                f"{self.scale_name}, MOVED = {dtype}, {{{dtype}: torch.uint8}}  # Triton has no type for it"
            )
        return f"{self.scale_name} = {self.scale_torch}"

    @property
    def scales_are_bytes(self) -> bool:
        """Whether TMA moves scales as bytes: Triton has no type for powers of two."""
        return self.dtype("a_scale").coded

    @property
    def table(self) -> Iterator[str]:
        """Each argument in the kernel's order: its dtype, its axes, its box and the box's layout."""
        for argument in self.plan.arguments:
            if argument.kind == "workspace":
                continue  # which `make_workspace` makes
            dtype = self.scale_name if argument.kind == "block_scales" else argument.dtype.torch
            entry = (dtype, f'"{self._axes(argument)}"', *self._box(argument.name))
            head = f'"{passed_as(argument.name)}": '
            yield head + fit("(", entry, "),", indent=4 + len(head), margin=4)

    def _box(self, name: str) -> tuple[str, str]:
        """Return what TMA moves of an argument at a time, and its layout; None of what is read by address."""
        buffer = next((buffer for buffer in self.plan.shared_buffers if buffer.operand == name), None)
        if buffer is None:
            return "None", "None"
        extents = (f"{extent_name(e)}.value" if e.measure else str(e.size) for e in buffer.shape)
        return f"[{', '.join(extents)}]", f"{layout_name(buffer, self.plan.shared_buffers)}.value"

    def _axes(self, argument: Argument) -> str:
        """Return the axes of an argument, a letter each: of scales those of their rows, of one element 1."""
        if argument.kind == "scalar":
            return "1"
        if argument.along:
            return argument.along.upper()
        operands = {"a": f"M{self._k_axis('a')}", "b": f"{self._k_axis('b')}N"}
        return operands.get(tensor_of(argument.name), "MN")

    def _k_axis(self, name: str) -> str:
        """Return the axis of an operand that runs along K: P of one that has two elements in a byte."""
        return "P" if self.packs(name) else "K"

    @property
    def table_meaning(self) -> str:
        """What its columns are."""
        packed = "; P bytes hold K elements" if self.packs("a") or self.packs("b") else ""
        parts = "; B for each part of its tiles" if self.further_parts else ""
        return f"dtype, axes, TMA box, and the box's layout in shared memory{packed}{parts}"

    @property
    def transposed(self) -> tuple[str, ...]:
        """The matrices that are passed as the transposed views of what lies in memory row by row."""
        problem = self.plan.problem
        a = ("a",) if problem.a.major == "mn" else ()
        b = ("b", *self.further_parts) if problem.b.major == "k" else ()
        return (*a, *b)

    def packs(self, name: str) -> bool:
        """Whether two elements of an operand share a byte."""
        return self.operand(name).dtype.elements_per_byte > 1

    @property
    def padded(self) -> tuple[str, ...]:
        """The operands whose 4-bit elements take a byte each in shared memory."""
        return tuple(name for name in ("a", "b") if self.operand(name).padded)

    @property
    def k_multiple(self) -> int:
        """What K must be a multiple of."""
        return self.plan.problem.k_multiple

    @property
    def check_inputs(self) -> Iterator[str]:
        """The statements that check what is read first: B again for each further part of its tiles."""
        head, tail = (
            "arguments = [*map(_argument, ARGUMENTS, ",
            f", [known := {self.known}] * len(ARGUMENTS))]",
        )
        parts = "inputs[1], " * len(self.further_parts)
        inputs = (
            f"(*inputs[:2], {parts}*inputs[2:])" if self.extras else f"(*inputs, {parts.removesuffix(', ')})"
        )
        inputs = inputs if parts else "inputs"
        if 4 + len(head + inputs + tail) > LINE_LENGTH:
            yield f"read = {inputs}"
            inputs = "read"
        yield head + inputs + tail

    @property
    def given(self) -> str:
        """What the operator takes but for `out`."""
        return ", ".join(("a", "b", *self.extras))

    @property
    def schema(self) -> str:
        """The same as torch's schemas have it."""
        return ", ".join(f"Tensor {name}" for name in ("a", "b", *self.extras))

    @property
    def d_dtype(self) -> str:
        """The dtype of D as a further argument of what allocates it like A, where it is another one."""
        problem = self.plan.problem
        return f", dtype={problem.d.torch}" * (problem.d.torch != problem.a.dtype.torch)

    @property
    def grid(self) -> Iterator[str]:
        """The statements that say how many programs run."""
        programs = self.programs if self.plan.persistent else "tiles"
        if self.plan.splits_per_tile > 1:
            programs = programs.replace("tiles", "tiles * SPLITS.value")
        if self.plan.divides_last_wave:
            programs = programs.replace("tiles", "tiles * -(-k // PROGRAM_TILE_K.value)")
        sm_count = "gpu.multi_processor_count"
        line = f"grid = {programs.replace('sm_count', sm_count)}, 1, 1"
        if 4 + len(line) > LINE_LENGTH:
            yield f"sm_count = {sm_count}"
            line = f"grid = {programs}, 1, 1"
        yield line

    @property
    def known(self) -> str:
        """What is known before any argument is: an axis of one element, and no copies yet."""
        scalar = ['"1": 1'] if self.plan.problem.scalar else []
        copies = ['"copies": {}'] if self.plan.problem.copies_misaligned else []
        return f"{{{', '.join(scalar + copies)}}}"

    @property
    def extents(self) -> str:
        """M, N and K, from the axes of A and B."""
        all_packed = self.packs("a") and self.packs("b")
        k = '2 * known["P"]' if all_packed else 'known["K"]'
        return f'known["M"], known["N"], {k}'

    @property
    def scale_columns(self) -> str:
        """How many scales a row has, by the K of A: that of B is held against it later."""
        vector = self.vector("a_scale")
        return (
            f'-(-known.get("P", 0) // {vector // 2})'
            if self.packs("a")
            else f'-(-known.get("K", 0) // {vector})'
        )

    @property
    def argument_type(self) -> str:
        """What is made of an argument."""
        read = self.plan.problem.scalar or self.plan.reduces_apart
        none = " | None" * (self.map != "map_matrix.py.j2" or not self.plan.reduces_apart)
        return f"{'Tensor | ' * read}TensorDescriptor{none}"

    @property
    def argument_summary(self) -> str:
        """What is done to an argument."""
        scalar = ", but for a scalar" * self.plan.problem.scalar
        memory = ", if it has memory" * (not scalar)
        return f"Check an argument and describe it to TMA{scalar}{memory}"

    @property
    def passed(self) -> str:
        """What the kernel takes of an argument, None without memory; a long line broken as formatted."""
        parts = [self.described, "if address > 0", "else None"]
        if self.plan.reduces_apart:
            parts = ["tensor", "if not box", f"else {self.described}", *parts[1:]]
        elif self.plan.problem.scalar:
            parts = ["tensor", 'if axes == "1"', f"else {self.described}", *parts[1:]]
        line = " ".join(parts)
        if len("    return " + line) <= LINE_LENGTH:
            return line
        return "\n".join(["(", *(f"        {part}" for part in parts), "    )"])

    @property
    def described(self) -> str:
        """The tensor map of an argument."""
        return f"TensorDescriptor(tensor{'.view(MOVED.get(dtype, dtype))' * self.moves}, *lies)"

    @property
    def moves(self) -> bool:
        """Whether TMA moves scales as another type than they are stored with."""
        return bool(self.scales and self.scales_are_bytes)

    @property
    def look(self) -> Iterator[str]:
        """The statements that look at an argument, with the step through its axes as they lie in memory."""
        turn = f"-1 if {self.is_transposed} else 1" if self.transposed else "1"
        whole = (
            '(tensor.numel(),) if axes == "1" else tensor.shape'
            if self.plan.problem.scalar
            else "tensor.shape"
        )
        step = f"(step := {self.padded_step})" if self.padded else self.step
        values = {
            "device": "tensor.device",
            "turn": turn,
            "whole": whole,
            "unit": f"{step} // dtype.itemsize",
        }
        apart: list[str] = []
        while 4 + len(line := f"{', '.join(values)} = {', '.join(values.values())}") > LINE_LENGTH:
            longest = max(values, key=lambda name: len(values[name]))
            apart.append(f"{longest} = {values.pop(longest)}")
        yield from (line, *apart)

    @property
    def nowhere(self) -> int:
        """The address of what is not described: no fault of TMA's, nor one of memory."""
        return -self.plan.architecture.tma_padded_alignment_bytes if self.padded else -TMA_UNIT_BYTES

    @property
    def if_described(self) -> str:
        """A condition of faults of addresses: a scalar may lie anywhere."""
        return "box and " * self.plan.problem.scalar

    @property
    def faults_of_places(self) -> str:
        """The part with faults of addresses and strides; what is read by address is aligned too."""
        read = "_read" * (self.plan.problem.scalar and self.plan.reduces_apart)
        return f"faults_places{read}.py.j2"

    @property
    def or_none(self) -> str:
        """What a box may be besides a list: a scalar has none."""
        return " or ()" * self.plan.problem.scalar

    @property
    def if_misaligned(self) -> str:
        """Whether TMA cannot stride over an argument; it does not over a scalar."""
        fault = "address % 16 or row_stride % unit"
        return f"box and ({fault})" if self.plan.problem.scalar else fault

    @property
    def kernels(self) -> str:
        """How many kernels a call launches: one, or a second one that adds up sums and stores D."""
        return "two" if self.plan.reduces_apart else "one"

    @property
    def append_out(self) -> str:
        """The statement that appends D to the arguments, and the numbers that a second kernel takes."""
        if not self.plan.reduces_apart:
            return 'arguments.append(_argument("out", d, known))'
        c = "inputs[2].stride(0), " * bool(self.plan.problem.c)
        return f'arguments += _argument("out", d, known), {c}d.stride(0), m, n'

    @property
    def replayed(self) -> str:
        """The part that looks for a launch that was prepared, or for both of a call."""
        return f"replayed_{self.kernels}.py.j2"

    @property
    def points(self) -> bool:
        """Whether the kernel reads some of its arguments by their addresses alone."""
        return self.plan.problem.scalar or self.workspace

    @property
    def shape_faults(self) -> str:
        """The part that holds a shape against the axes."""
        return f"shape_faults{'_scales' * bool(self.scales)}.py.j2"

    @property
    def _misaligned(self) -> str:
        """What becomes of tensors over whose rows TMA cannot stride, as the names of parts have it."""
        return "copied" if self.plan.problem.copies_misaligned else "refused"

    @property
    def limits_of_tensors(self) -> str:
        """The part that says where tensors may lie."""
        return f"limits_{self._misaligned}.py.j2"

    @property
    def output(self) -> str:
        """The part that finds memory for D."""
        return f"output_{self._misaligned}.py.j2"

    @property
    def stored(self) -> str:
        """An argument as the matrix that lies in memory; a vector is one row."""
        text = "tensor.T if turn < 0 else tensor" if self.transposed else "tensor"
        return f"torch.atleast_2d({text})" if self.vectors else text

    @property
    def copy_as_passed(self) -> str:
        """The copy of an argument's memory with the axes of the argument."""
        text = "copy.T if turn < 0 else copy" if self.transposed else "copy"
        return f"({text}).view_as(tensor)" if self.vectors else text

    @property
    def made(self) -> str:
        """An argument, its copy and the copy as passed, broken as the formatter breaks a long line."""
        parts = [self.stored, "copy", self.copy_as_passed]
        line = ", ".join(parts)
        if len("        made = " + line) <= LINE_LENGTH:
            return line
        return "\n".join(["(", *(f"            {part}," for part in parts), "        )"])

    @property
    def conditions(self) -> tuple[str, ...]:
        """The parts of `matmul` between its inputs and its output, which few modules have."""
        parts = ["single_tile"] if self.plan.schedule_kind == "single_tile" else []
        parts += ["mixed_k"] if self.packs("a") != self.packs("b") else []
        parts += ["packed"] if self.scales else []
        parts += ["zero_k"] * self.multiplies_zeros
        parts += ["deterministic"] * (not self.plan.deterministic)
        return tuple(f"condition_{part}.py.j2" for part in parts)

    @property
    def functions(self) -> tuple[str, ...]:
        """The parts with functions, in order."""
        return tuple(
            f"{part}.py.j2"
            for part in (
                "matmul",
                "run",
                *(["backward"] if self.gradients else []),
                *(["pack_scales"] if self.scales else []),
                *([f"workspace{'_stream_k' * self.plan.divides_last_wave}"] if self.workspace else []),
                *(["align"] if self.plan.problem.copies_misaligned else []),
                "argument",
                "check_output",
            )
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """All parts that only some wrappers have."""
        chosen = (self.limits_of_tensors, self.output)
        chosen += (self.shape_faults, self.map)
        return (*self.conditions, *self.functions, *chosen)

    @property
    def step(self) -> str:
        """What a matrix's address and row stride are multiples of: more for an operand that TMA pads."""
        return "step" if self.padded else str(TMA_UNIT_BYTES)

    @property
    def alignment(self) -> str:
        """The same in a message."""
        return "{step}" if self.padded else self.step

    @property
    def padded_step(self) -> str:
        """The same as an expression, where it depends on the operand."""
        padded = self.plan.architecture.tma_padded_alignment_bytes
        return f'{padded} if name == "{self.padded[0]}" else {TMA_UNIT_BYTES}'

    @property
    def map(self) -> str:
        """The part that makes a tensor map."""
        if self.rounds:
            return "map_tf32.py.j2"
        others = self.vectors or self.scales or self.plan.problem.scalar
        return f"map_{'matrix' if self.plan.reduces_apart or not others else 'any'}.py.j2"

    @property
    def mapped_if(self) -> str:
        """The condition of a map of a matrix, and what is passed without one."""
        return "box and address > 0 else tensor" if self.plan.reduces_apart else "address > 0 else None"

    @property
    def found_k(self) -> str:
        """The K of A and that of B where one of them packs it, in a message."""
        packed, whole = "{2 * known['P']}", "{k}"
        return f"{packed} and {whole}" if self.packs("a") else f"{whole} and {packed}"

    @property
    def tiles(self) -> str:
        """The tiles of D."""
        if self.plan.schedule_kind == "single_tile":
            return "1"
        if (together := self.plan.tiles_together) > 1:
            along_n = f"-(-n // ({together} * PROGRAM_TILE_N.value)) * {together}"
            return f"-(-m // PROGRAM_TILE_M.value) * {along_n}"
        return "-(-m // PROGRAM_TILE_M.value) * -(-n // PROGRAM_TILE_N.value)"

    @property
    def out_unit(self) -> int:
        """The elements of D that TMA writes at a time."""
        return TMA_UNIT_BYTES // self.plan.problem.d.bytes

    @property
    def padded_n(self) -> str:
        """The extent of a row of D that TMA can write, padded."""
        return f"-(-n // {self.out_unit}) * {self.out_unit}"

    @property
    def padded_known_n(self) -> str:
        """The same, of an N that has no name yet."""
        return self.padded_n.replace("n", 'known["N"]')

    @property
    def triton(self) -> str:
        """The versions of Triton that a module takes."""
        return triton_api.SUPPORTED

    @property
    def argument_docs(self) -> str:
        """The lines of the docstring's argument section."""
        problem = self.plan.problem
        a = "K contiguous"
        if problem.a.major == "mn":
            a = "M contiguous: the transposed view of a K x M tensor"
        b = "K contiguous: the transposed view of an N x K tensor (``weight.T``)"
        if problem.b.major == "mn":
            b = "N contiguous"
        packed = ", two elements a byte, the one of even k in its lower half"
        a_shape, a = ("[M, K / 2]", a + packed) if self.packs("a") else ("[M, K]", a)
        b_shape, b = ("[K / 2, N]", b + packed) if self.packs("b") else ("[K, N]", b)
        if self.packs("a") and self.packs("b"):
            b = "K contiguous, as ``weight.T`` of an N x K weight is; packed as a is"
        step = self.plan.architecture.tma_padded_alignment_bytes
        alignment = f"; rows at multiples of {step} bytes, K one of {self.k_multiple}"
        a, b = (doc + alignment * (name in self.padded) for name, doc in (("a", a), ("b", b)))
        contract = "read while the kernel ahead in the stream may still run, which must not write it"
        early = {name: f"; {contract}" * (self.plan.read_early == name) for name in ("a", "b")}
        docs = [
            f"a: {a_shape}, {problem.a.dtype.torch}, {a}{early['a']}.",
            f"b: {b_shape}, {problem.b.dtype.torch}, {b}{early['b']}.",
        ]
        if self.scales:
            vector = self.vector("a_scale")
            source = f"of {vector} of K; or packed by `pack_scales`"
            docs.append(f"a_scale, b_scale: [M or N, ceil(K / {vector})], {self.scale_torch}, {source}.")
        if problem.c:
            docs.append(f"c: [M, N], {problem.c.torch}, N contiguous.")
        for name in self.vectors:
            extent = self._axes(self.plan.argument(name))
            meaning = OPERATIONS[name].meaning
            docs.append(f"{name}: [{extent}], {self.dtype(name).torch}, contiguous: {meaning}.")
        if problem.scalar:
            docs.append("tensor_scale: one element, torch.float32: a factor for all of D.")
        own = f"in memory of its own{', or c' * bool(problem.c)}; else a view of padded rows"
        if self.workspace:
            docs.append(
                "workspace: of `make_workspace`, for calls one after the other; each stream's own by default."
            )
        docs.append(f"out: [M, N], {problem.d.torch}, N contiguous, {own}.")
        return "\n".join(
            textwrap.fill(
                doc,
                width=LINE_LENGTH,
                initial_indent=" " * 8,
                subsequent_indent=" " * 12,
                break_on_hyphens=False,
            )
            for doc in docs
        )

    @property
    def summary(self) -> str:
        """What `matmul` returns."""
        steps = ", as the module's docstring has it" if self.plan.problem.ops else ""
        a, b = ("(a * a_scale)", "(b * b_scale)") if self.scales else ("a", "b")
        return f"Return {formula(self.plan.problem, a, b, 'c')}{steps}."

    @property
    def limits(self) -> str:
        """The extents that a kernel for a single tile takes."""
        plan = self.plan
        return f"M, N and K up to {plan.cta_tile_m}, {plan.cta_tile_n} and {plan.cta_tile_k}"

    @property
    def launch_options(self) -> str:
        """The options of a launch, as a dict's text."""
        plan = self.plan
        options = {"num_warps": plan.default_warps, "num_ctas": plan.cluster_size}
        if plan.launch_register_limit:
            options["maxnreg"] = plan.launch_register_limit
        if plan.dependent:
            options["launch_pdl"] = True
        options["enable_fp_fusion"] = True
        return str(options).replace("'", '"')

    @property
    def define_launch_options(self) -> str:
        """The constants that hold them, and what they are."""
        line = f"LAUNCH_OPTIONS = {self.launch_options}"
        short = f"{line}  # Triton warns of unset FP fusion"
        text = short if len(short) <= LINE_LENGTH else f"# {self.launch_options_meaning}\n{line}"
        if not self.plan.reduces_apart:
            return text
        options = {"num_warps": self.plan.reduction_warps, "launch_pdl": True, "enable_fp_fusion": True}
        return f"{text}\nREDUCTION_OPTIONS = {options}".replace("'", '"')

    @property
    def launch_options_meaning(self) -> str:
        """What they are, in lines of a comment."""
        plan = self.plan
        options = f"Warps of {'the first partition' if plan.specialized else 'a CTA'}, CTAs per cluster"
        if plan.launch_register_limit:
            options += f", registers for {plan.occupancy} per SM"
        if plan.dependent:
            options += ", dependent launch"
        lines = textwrap.wrap(f"{options}; Triton warns of unset FP fusion.", width=LINE_LENGTH - len("# "))
        return "\n# ".join(lines)

    @property
    def programs(self) -> str:
        """How many programs run: one for each tile, or as many as the SMs hold."""
        plan = self.plan
        resident = "sm_count"
        if plan.cluster_size > 1:
            resident = f"sm_count // {plan.cluster_size}"
        elif plan.occupancy > 1:
            resident = f"sm_count * {plan.occupancy}"
        if plan.cluster_size > 2 and self._lacking:
            resident = f"{resident}, {plan.gpu.clusters_of_four}"
        if self.plan.divides_last_wave:
            resident = f"{resident}, PROGRAMS.value"
        return f"min(tiles, {resident})"

    @property
    def residency_comment(self) -> str:
        """Why not every SM has a program, where that is so."""
        if self.plan.cluster_size <= 2:
            return ""
        if not self._lacking:
            return "    # Clusters lie within GPCs: whether they hold as many was not measured.\n"
        return (
            "    # Clusters lie within GPCs, some of which lack SMs: an H200 holds "
            f"{self.plan.gpu.clusters_of_four} of four CTAs.\n"
            "    # One program more would begin when the others end, and double the kernel's time.\n"
        )

    @property
    def _lacking(self) -> bool:
        """Whether the GPU is known to hold fewer clusters of four CTAs than it has SMs for."""
        gpu = self.plan.gpu
        return gpu.clusters_of_four < gpu.sm_count // 4

    @property
    def zero_k(self) -> int:
        """The K of zeros: rows of K are a whole unit of TMA long, where there are no columns of K."""
        problem = self.plan.problem
        return TMA_UNIT_BYTES if (problem.a.major, problem.b.major) == ("k", "k") else 1

    @property
    def zeros(self) -> str:
        """Zeros in the place of the operands, and what else `matmul` takes."""
        a, b = (f"inputs[{i}].new_zeros" for i in range(2))
        narrow = "[:, :1]" * (self.zero_k == 1)
        problem = self.plan.problem
        zero_a = f"{a}((1, m)).T" if problem.a.major == "mn" else f"{a}((m, {TMA_UNIT_BYTES})){narrow}"
        zero_b = f"{b}((1, n))" if problem.b.major == "mn" else f"{b}((n, {TMA_UNIT_BYTES})){narrow}.T"
        return f"{zero_a}, {zero_b}, *inputs[2:]"

    @property
    def multiply_zeros(self) -> Iterator[str]:
        """The statements that call it once more, with zeros, and in no workspace that was given."""
        rest = "out=out, apart=apart" if self.keeps_memory else "out=out"
        call = f"return _matmul({self.zeros}, {rest})"
        if 8 + len(call) > LINE_LENGTH:
            yield f"inputs = {self.zeros}"
            call = f"return _matmul(*inputs, {rest})"
        yield call

    @property
    def rounds(self) -> bool:
        """Whether A and B are fp32 matrices, of which the tensor cores use a part."""
        return bool(self.plan.problem.a.dtype.in_memory)

    @property
    def rounded(self) -> str:
        """The names of those matrices, as a tuple's text."""
        return str(("a", "b", *self.further_parts)).replace("'", '"')

    @property
    def is_transposed(self) -> str:
        """Whether the matrix called `name` is one of those."""
        names = self.transposed
        return f'name == "{names[0]}"' if len(names) == 1 else f"name in {names}".replace("'", '"')

    @property
    def max_overhang(self) -> int:
        """Elements by which a tile's last coordinate can exceed an extent."""
        plan = self.plan
        columns = plan.program_tile_n * plan.tiles_together
        return max(plan.program_tile_m, columns, plan.cta_tile_k * plan.splits_per_tile)

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor."""
        return divmod(self.plan.architecture.compute_capability, 10)


def passed_as(name: str) -> str:
    """Return the name under which `matmul` takes what the kernel has under this one."""
    return "out" if name == "d" else name
