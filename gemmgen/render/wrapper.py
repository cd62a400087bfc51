"""The public function of a module: what it takes, checks and says."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemmgen import triton_api
from gemmgen.hardware import DType
from gemmgen.literals import python_literal
from gemmgen.plan.decisions import gradient_stem
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument
from gemmgen.problem import Gradient, Operand, gradients_of
from gemmgen.problem.epilogue import described, keeps_zeros, listed_steps, meaning_of
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.overview import LINE_LENGTH, epilogue_sentence, extent_name, fit, formula, layout_name

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
        return "import importlib\nimport warnings" if self.gradients else "import warnings"

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
            pairs = zip(gradient.factors, (left, right), strict=True)
            factors = [names[factor] + turned for factor, turned in pairs]
            (other,) = (factor for factor in gradient.factors if factor != "d")
            yield f"None if {other} is None else of_{gradient.operand}({', '.join(factors)}){made}"

    def _summed_gradients(self) -> Iterator[str]:
        """Yield the gradients of what is added to A @ B."""
        factor = self.plan.problem.epilogue.beta
        beta = f" * {factor!r}" * (factor not in (0.0, 1.0))
        sums = {"row": "grad.sum(1)", "column": "grad.sum(0)"}
        for number, name in enumerate(self.extras, start=2):
            summed = f"grad{beta}" if name == "c" else sums[OPERATIONS[name].operand]
            yield f"{summed} if ctx.needs_input_grad[{number}] else None"

    @property
    def vanishes(self) -> bool:
        """Whether D is zero where A @ B is, whatever else the kernel reads.

        A block-scaled kernel takes no K of 0, of which there are no scales: a finite factor keeps its zeros.
        """
        return keeps_zeros(self.plan.problem.epilogue, finite_scalars=bool(self.scales))

    def _of_kind(self, kind: str) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.plan.arguments if argument.kind == kind)

    @property
    def scales(self) -> tuple[str, ...]:
        """The arguments that are scales of blocks."""
        return self._of_kind("block_scales")

    @property
    def extras(self) -> tuple[str, ...]:
        """The keyword arguments beside `out`, in the order of the kernel's."""
        others = (each for each in self.plan.arguments if each.tensor not in ("a", "b", "d"))
        return tuple(argument.name for argument in others if argument.kind != "workspace")

    @property
    def further_parts(self) -> tuple[str, ...]:
        """The arguments that are B again, each with the box of a further part of its tiles."""
        return tuple(argument.name for argument in self.plan.arguments if argument.part is not None)

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

    @property
    def workspace(self) -> bool:
        """Whether calls leave in memory what later ones rely on: counters, and sums that are added to.

        What programs leave for a second kernel of the call is of no use to a later one.
        """
        return bool(self._of_kind("workspace")) and not self.plan.reduces_apart

    @property
    def _counters_of_tile(self) -> int:
        """Counters of a tile: each consumer that has rows of its own counts the parts of them."""
        return self.plan.counting_partitions or 1

    @property
    def counters(self) -> str:
        """The extents of the counters."""
        if self.plan.divides_last_wave:
            return "tiles" if self._counters_of_tile == 1 else "(tiles, CONSUMERS.value)"
        return "tiles" if self._counters_of_tile == 1 else "(*tiles, CONSUMERS.value)"

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
        return operands.get(argument.tensor, "MN")

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
    def k_multiple(self) -> int:
        """What K must be a multiple of."""
        return self.plan.problem.k_multiple

    @property
    def d_dtype(self) -> str:
        """The dtype of D as a further argument of what allocates it like A, where it is another one."""
        problem = self.plan.problem
        return f", dtype={problem.d.torch}" * (problem.d.torch != problem.a.dtype.torch)

    @property
    def tiles(self) -> str:
        """The tiles of D."""
        if self.plan.schedule_kind == "single_tile":
            return "1"
        along_m = "triton.cdiv(m, PROGRAM_TILE_M.value)"
        if (together := self.plan.tiles_together) > 1:
            return f"{along_m} * triton.cdiv(n, {together} * PROGRAM_TILE_N.value) * {together}"
        return f"{along_m} * triton.cdiv(n, PROGRAM_TILE_N.value)"

    @property
    def out_unit(self) -> int:
        """The elements of D that TMA writes at a time."""
        return TMA_UNIT_BYTES // self.plan.problem.d.bytes

    @property
    def padded_n(self) -> str:
        """The extent of a row of D that TMA can write, padded."""
        return f"-(-n // {self.out_unit}) * {self.out_unit}"

    @property
    def triton(self) -> str:
        """The versions of Triton that a module takes."""
        return triton_api.SUPPORTED

    @property
    def argument_docs(self) -> str:
        """The lines of the docstring's argument section."""
        return self.docs_of_arguments(workspace=self.workspace)

    def docs_of_arguments(self, *, workspace: bool) -> str:
        """Return the lines of a docstring's argument section, with or without the workspace."""
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
            meaning = meaning_of(problem.epilogue, name)
            docs.append(f"{name}: [{extent}], {self.dtype(name).torch}, contiguous: {meaning}.")
        if problem.scalar:
            meaning = meaning_of(problem.epilogue, "tensor_scale")
            docs.append(f"tensor_scale: one element, torch.float32: {meaning}.")
        own = f"in memory of its own{', or c' * bool(problem.c)}; else a view of padded rows"
        if workspace:
            docs.append("workspace: from `make_workspace`, for a call at a time; each stream's by default.")
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
        steps = ", as the module's docstring has it" if epilogue_sentence(self.plan.request) else ""
        a, b = ("(a * a_scale)", "(b * b_scale)") if self.scales else ("a", "b")
        return f"Return {formula(self.plan.request, a, b, 'c')}{steps}."

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
        options += ", dependent launch" * plan.dependent
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
            resident = f"{resident}, MAX_PROGRAMS.value"
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
    def rounds(self) -> bool:
        """Whether A and B are fp32 matrices, of which the tensor cores use a part."""
        return bool(self.plan.problem.a.dtype.in_memory)

    @property
    def rounded(self) -> str:
        """The names of those matrices, as a tuple's text."""
        return str(("a", "b", *self.further_parts)).replace("'", '"')

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

    def define(self, name: str) -> str:
        """Return the head of `matmul`, or of the function that does the same without the launcher."""
        inputs = [f"{each}: Tensor" for each in self.inputs]
        inputs.insert(2 if name == "matmul" else len(inputs), "*")
        workspace = ["workspace: tuple | None = None"] if self.workspace else []
        return fit(f"def {name}(", [*inputs, *workspace, "out: Tensor | None = None"], ") -> Tensor:")

    @property
    def passed_on(self) -> str:
        """The arguments that `matmul` passes on."""
        return ", ".join((*self.inputs, *["workspace=workspace"] * self.workspace, "out=out"))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that are read, in the operator's order."""
        return ("a", "b", *self.extras)

    @property
    def memory(self) -> tuple[str, ...]:
        """The further arguments of a launch: memory for sums of parts of K, and counters."""
        if self.plan.reduces_apart:
            return ("sums",)
        return self._of_kind("workspace")

    @property
    def define_launch(self) -> str:
        """The head of the function that launches the kernels."""
        taken = [f"{name}: Tensor" for name in (*self.inputs, "out", *self.memory)]
        head = fit("def launch(", taken, ") -> list:")
        return (
            head
            if "\n" not in head
            else fit("def launch(", [*self.inputs, "out", *self.memory], ") -> list:")
        )

    def _lying(self, name: str) -> str:
        """Return an argument of the kernel as it lies in memory, in the order of its descriptor."""
        argument = self.plan.argument(name)
        tensor = passed_as(argument.tensor)
        if name in self.transposed:
            return f"{tensor}.T"
        viewed = argument.kind == "block_scales" and self.scales_are_bytes
        return f"{tensor}.view(torch.uint8)" if viewed else tensor

    @property
    def tensors(self) -> str:
        """The tensors of the table, each as it lies in memory; memory for sums is behind them."""
        names = [argument.name for argument in self.plan.arguments if argument.kind != "workspace"]
        return ", ".join(map(self._lying, names))

    @property
    def factors(self) -> str:
        """A and B, each as it lies in memory."""
        return f"{self._lying('a')}, {self._lying('b')}"

    @property
    def added(self) -> str:
        """The arguments of the kernel that adds up the sums of parts of K."""
        strides = [f"{name}.stride(0)" for name in ("c",) if self.plan.problem.c]
        return ", ".join(("sums", *self.extras, "out", *strides, "out.stride(0)", "m", "n"))

    @property
    def describe(self) -> str:
        """The part that describes tensors to TMA: all, all but those read by address, or fp32 ones."""
        some = self.plan.problem.scalar and not self.plan.reduces_apart
        if self.rounds:
            return f"describe_tf32{'_some' * some}.py.j2"
        return f"describe_{'some' if some else 'maps'}.py.j2"

    @property
    def describes_all(self) -> bool:
        """All tensors of the table are described, or A and B alone: a second kernel reads the others."""
        return not self.plan.reduces_apart

    @property
    def append_memory(self) -> str:
        """The statement that appends memory for sums to the arguments."""
        return f"arguments += {', '.join(self.memory)}"

    @property
    def find_extents(self) -> str:
        """The statements that find the number of tiles."""
        if self.plan.schedule_kind == "single_tile":
            return "tiles = 1"
        k = ", k" * self.plan.divides_last_wave
        extents = f"(m{k}), n = a.shape, b.shape[1]" if k else "m, n = a.shape[0], b.shape[1]"
        return f"{extents}\n    tiles = {self.tiles}"

    @property
    def grid(self) -> str:
        """The number of programs."""
        programs = self.programs if self.plan.persistent else "tiles"
        if self.plan.splits_per_tile > 1:
            programs = programs.replace("tiles", "tiles * SPLITS.value")
        if self.plan.divides_last_wave:
            programs = programs.replace("tiles", "tiles * triton.cdiv(k, PROGRAM_TILE_K.value)")
        return programs

    @property
    def reads_sm_count(self) -> bool:
        """The number of programs depends on the GPU."""
        return "sm_count" in self.grid

    @property
    def define_scale(self) -> str:
        """The constant that holds the element type of scales."""
        return f"{self.scale_name} = {self.scale_torch}"

    @property
    def transposed_matrices(self) -> str:
        """The names of the transposed matrices, as a tuple's text."""
        return _literal([name for name in self.transposed if name in ("a", "b")])

    @property
    def epilogue(self) -> str:
        """The steps between A @ B and D, as a tuple."""
        request, epilogue = self.plan.request, self.plan.problem.epilogue
        scaled = ["alpha"] * (epilogue.alpha != 1) + ["c"] * (bool(epilogue.beta) and not request.lists_c)
        found = listed_steps(epilogue, lists_c=request.lists_c)
        steps = [*scaled, *(step.name if step.operation else described(step) for step in found)]
        if len(steps) < 2:
            return _literal(steps)
        return fit(
            "(", [python_literal(step) for step in steps], ")", indent=len('    "epilogue": '), margin=4
        )

    @property
    def facts(self) -> Iterator[str]:
        """The rows of COMPUTES: what a caller may ask of a module without a launch."""
        plan = self.plan
        yield f'"inputs": {_literal(self.inputs)},'
        yield f'"epilogue": {self.epilogue},'
        yield f'"capability": {self.compute_capability},'
        overhang = f"2**31 - {self.max_overhang}"
        yield f'"max_extent": {overhang},  # TMA coordinates are 32-bit, and a tile may overhang the matrix'
        if plan.schedule_kind == "single_tile":
            sizes = plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k
            yield f'"single_tile": {sizes},'
        if not plan.deterministic:
            yield '"deterministic": False,  # programs add up sums in any order'
        if not self.vanishes:
            yield '"vanishes": False,  # with a K of 0, D is what the epilogue makes of zeros'
        if self.scales:
            yield f'"scale_vector": {self.vector("a_scale")},  # elements of K that share a scale'
        if self.packs("a") != self.packs("b"):
            yield f'"k_multiple": {self.k_multiple},  # TMA pads as many elements of 4 bits at a time'
        if self.padded:
            padded = ", ".join(
                f'"{name}": {plan.architecture.tma_padded_alignment_bytes}' for name in self.padded
            )
            yield f'"alignment": {{{padded}}},  # bytes, of operands that TMA pads'

    @property
    def padded(self) -> tuple[str, ...]:
        """The operands whose 4-bit elements take a byte each in shared memory."""
        return tuple(name for name in ("a", "b") if self.operand(name).padded)

    @property
    def least_step(self) -> int:
        """The bytes that addresses and row strides are multiples of, of all tensors."""
        return self.plan.architecture.tma_padded_alignment_bytes if self.padded else TMA_UNIT_BYTES

    @property
    def extents(self) -> str:
        """The part that finds M, N and K by the shapes of A and B, and checks them."""
        if self.plan.schedule_kind == "single_tile":
            return "extents_single_tile.py.j2"
        packed = [name for name in ("a", "b") if self.packs(name)]
        kinds = {0: "whole", 1: f"packed_{''.join(packed)}", 2: "packed"}
        return f"extents_{kinds[len(packed)]}.py.j2"

    @property
    def rows(self) -> str:
        """The name, the rows in memory and the extents of each input that is no scale of blocks."""
        loop = "    for name, rows, *shape in "
        rows = [self._row(name) for name in self.inputs if name not in self.scales]
        line = ", ".join(rows)
        return (
            line if len(f"{loop}{line}:") <= LINE_LENGTH else fit("(", rows, ")", indent=len(loop), margin=4)
        )

    def _row(self, name: str) -> str:
        """Return the name, the rows in memory and the extents of an argument, as a tuple's text."""
        argument = self.plan.argument(name)
        axes = self._axes(argument)
        half = "packed_k" if self.packs("a") and self.packs("b") else "k // 2"
        letters = reversed(axes) if name in self.transposed else axes
        extents = ", ".join({"P": half}.get(letter, letter.lower()) for letter in letters)
        rows = f"{name}.reshape(-1)" if argument.kind == "scalar" else self._lying(name)
        return f'("{name}", {rows}, {extents})'

    @property
    def packs_scales(self) -> tuple[str, ...]:
        """The part that checks and packs scales of blocks, if there are any."""
        return ("wrapper/plain_scales.py.j2",) * bool(self.scales)

    @property
    def launched(self) -> str:
        """The call that launches in the function that needs no launcher; it makes its own workspace."""
        memory = ["*make_sums(count_sums(m, n), a.device)"] * self.plan.reduces_apart
        memory += ["*make_workspace(m, n, a.device)"] * self.workspace
        return fit("launch(", [*self.inputs, "d", *memory], ")", indent=8)

    @property
    def make_host(self) -> str:
        """The call that makes the launcher of the module."""
        options = [f"transposed={self.transposed_matrices}"]
        options += ["make_workspace=make_workspace"] * self.workspace
        options += ["make_sums=make_sums", "count_sums=count_sums"] * self.plan.reduces_apart
        options += ["pack_scales=pack_scales"] * bool(self.scales)
        options += ["copy=copy"] * self.plan.problem.copies_misaligned
        options += ["backward=(keep, backward)"] * bool(self.gradients)
        arguments = ["__name__", "ARGUMENTS", "COMPUTES", "launch", *options]
        return fit("Host(", arguments, ")", indent=len("    call = "), margin=4)

    @property
    def limits_of_tensors(self) -> str:
        """The part that says where tensors may lie."""
        return f"limits_{'copied' if self.plan.problem.copies_misaligned else 'refused'}.py.j2"

    @property
    def functions(self) -> tuple[str, ...]:
        """The parts with functions, in order."""
        chosen = {
            "matmul": True,
            f"launch_{'two' if self.plan.reduces_apart else 'one'}": True,
            "plain": True,
            "sums": self.plan.reduces_apart,
            f"workspace{'_stream_k' * self.plan.divides_last_wave}": self.workspace,
            "pack_scales": bool(self.scales),
            "copy": self.plan.problem.copies_misaligned,
            "backward": bool(self.gradients),
        }
        return tuple(f"{part}.py.j2" for part, is_there in chosen.items() if is_there)

    @property
    def parts(self) -> tuple[str, ...]:
        """All parts that only some wrappers have."""
        return (*self.functions, self.limits_of_tensors, self.describe)


def passed_as(name: str) -> str:
    """Return the name under which `matmul` takes what the kernel has under this one."""
    return "out" if name == "d" else name


def _literal(names: Sequence[str]) -> str:
    """Return the text of a tuple of names."""
    return "(" + ", ".join(map(python_literal, names)) + ("," if len(names) == 1 else "") + ")"
