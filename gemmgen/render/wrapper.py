"""The public function of a module: what it takes, checks and says."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen import triton_api
from gemmgen.hardware import DType
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument, tensor_of
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem import Operand
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.overview import LINE_LENGTH, extent_name, fit, formula, layout_name

TMA_UNIT_BYTES = 16
"""TMA writes rows in units of these; addresses and row strides are multiples of it."""


@dataclass(frozen=True)
class Wrapper:
    """Any plan's wrapper as its template sees it."""

    plan: Kernel

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
        """Return the head of `matmul`."""
        extras = [f"{name}: Tensor" for name in self.extras]
        workspace = ["workspace: tuple[Tensor, Tensor] | None = None"] if self.workspace else []
        arguments = ["a: Tensor", "b: Tensor", "*", *extras, *workspace, "out: Tensor | None = None"]
        return fit("def matmul(", arguments, ") -> Tensor:")

    @property
    def workspace(self) -> bool:
        """Whether programs leave each other sums in memory."""
        return bool(self._of_kind("workspace"))

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
    def work(self) -> str:
        """What `matmul` calls the amount of work by which programs are launched, or that is counted."""
        return "tiles" if self.plan.divides_last_wave else "parts"

    @property
    def amount_of_work(self) -> str:
        """How much that is."""
        return self.tiles if self.plan.divides_last_wave else f"{self.tiles} * SPLITS.value"

    @property
    def counters_lacking(self) -> str:
        """Whether a workspace has fewer counters than a call needs."""
        if self.plan.divides_last_wave:
            return f"arguments[-1].numel() < min(tiles, PROGRAMS.value){self._per_consumer}"
        return f"arguments[-1].numel() * SPLITS.value < parts{self._per_consumer}"

    @property
    def launched(self) -> str:
        """That of which a program has one at least."""
        if self.plan.divides_last_wave:
            return "tiles * -(-k // PROGRAM_TILE_K.value)"
        return "parts" if self.workspace else self.tiles

    @property
    def partials(self) -> str:
        """How many sums each element of D has, as a factor; or each place of a piece of a tile."""
        if self.plan.divides_last_wave:
            return "" if self._counters_of_tile == 1 else "CONSUMERS.value * "
        return "SPLITS.value * " if self.plan.restored == ("counters",) else ""

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
        if argument.kind == "workspace":
            return ""
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
        return f"Each argument: dtype, axes, TMA box, and the box's layout in shared memory{packed}{parts}."

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
    def inputs(self) -> str:
        """What `matmul` checks first, as a tuple's text."""
        return f"({', '.join(('a', 'b', *map(tensor_of, self.further_parts), *self.extras))})"

    @property
    def replays(self) -> bool:
        """Whether later calls replay the launch of an earlier one: of kernels that take A, B and D alone."""
        problem = self.plan.problem
        return not (self.extras or self.workspace or problem.copies_misaligned)

    @property
    def style(self) -> str:
        """The part that has all behind the tables."""
        return "replayed.py.j2" if self.replays else "checked.py.j2"

    @property
    def imported(self) -> str:
        """The part with the imports."""
        return f"imports_{'replayed' if self.replays else 'checked'}.py.j2"

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
    def replayed_map(self) -> str:
        """The part that makes a tensor map of A, B or D."""
        return f"replayed_{'tf32' if self.rounds else 'matrix'}.py.j2"

    @property
    def replayed_grid(self) -> str:
        """The statement that says how many programs run."""
        programs = self.programs if self.plan.persistent else "tiles"
        sm_count = "torch.cuda.get_device_properties(device).multi_processor_count"
        return f"{self.residency_comment}    grid = {programs.replace('sm_count', sm_count)}, 1, 1"

    @property
    def known(self) -> str:
        """What is known before any argument is: an axis of one element, and no copies yet."""
        scalar = ['"1": 1'] if self.plan.problem.scalar else []
        copies = ['"copies": {}'] if self.plan.problem.copies_misaligned else []
        return f"{{{', '.join(scalar + copies)}}}"

    @property
    def known_meaning(self) -> str:
        """What else it holds."""
        copies = ", and copies by id" if self.plan.problem.copies_misaligned else ""
        return f"the extent of each axis, {'' if copies else 'and '}a's device{copies}"

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
        return f'-(-known["P"] // {vector // 2})' if self.packs("a") else f'-(-known["K"] // {vector})'

    @property
    def argument_type(self) -> str:
        """What is made of an argument."""
        return "Tensor | TensorDescriptor | None" if self.plan.problem.scalar else "TensorDescriptor | None"

    @property
    def argument_summary(self) -> str:
        """What is done to an argument."""
        return f"Check an argument and describe it to TMA{', but for a scalar' * self.plan.problem.scalar}"

    @property
    def passed(self) -> str:
        """What the kernel takes."""
        shape = "tensor.shape" if self.scales else "shape"
        descriptor = f"_descriptor(name, tensor.data_ptr(), {shape}, tensor.stride())"
        return f'tensor if axes == "1" else {descriptor}' if self.plan.problem.scalar else descriptor

    @property
    def shape(self) -> str:
        """The shape of an argument; a scalar may have any number of dimensions."""
        scalar = self.plan.problem.scalar
        return '(tensor.numel(),) if axes == "1" else tensor.shape' if scalar else "tensor.shape"

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
    def passing(self) -> str:
        """The part that says what the kernel takes of an argument."""
        return f"passing_{self._misaligned}.py.j2"

    @property
    def launching(self) -> str:
        """The part that launches the kernel, and what copies before and behind it."""
        return f"launching_{self._misaligned}.py.j2"

    @property
    def undescribed(self) -> str:
        """What TMA is not told of, and what of a second time."""
        if self.plan.problem.copies_misaligned:
            return (
                f"unless {'' if self.vectors else 'it is '}empty or misaligned; later calls find it described"
            )
        return "unless it is empty; a second call finds it described"

    def _turned(self, plain: str, turned: str) -> str:
        """Return one text for a matrix as it lies in memory, and another one for a transposed view."""
        return f"{turned} if {self.is_transposed} else {plain}" if self.transposed else plain

    @property
    def stored(self) -> str:
        """An argument as the matrix that lies in memory; a vector is one row."""
        text = self._turned("tensor", "tensor.T")
        return f"torch.atleast_2d({text})" if self.vectors else text

    @property
    def copy_as_passed(self) -> str:
        """The copy of an argument's memory with the axes of the argument."""
        return self._turned("copy", "copy.T")

    @property
    def aligned(self) -> str:
        """An argument's copy as `matmul` takes it."""
        return f"copies[0][2]{'.view_as(tensor)' * bool(self.vectors)}"

    @property
    def conditions(self) -> tuple[str, ...]:
        """The parts of `matmul` between its inputs and its output, which few modules have."""
        parts = ["single_tile"] if self.plan.schedule_kind == "single_tile" else []
        parts += ["mixed_k"] if self.packs("a") != self.packs("b") else []
        parts += ["zero_k"] * self.multiplies_zeros
        return tuple(f"condition_{part}.py.j2" for part in parts)

    @property
    def functions(self) -> tuple[str, ...]:
        """The parts behind `matmul`, but for the launch."""
        return tuple(
            f"{part}.py.j2"
            for part in (
                *(["pack_scales"] if self.scales else []),
                *([f"workspace{self._workspace_kind}"] if self.workspace else []),
                *(["align"] if self.plan.problem.copies_misaligned else []),
                "argument",
                "descriptor",
            )
        )

    @property
    def _workspace_kind(self) -> str:
        """The ending of the part that makes a workspace."""
        return "_parallel" * self.plan.reduces_apart or "_stream_k" * self.plan.divides_last_wave

    @property
    def parts(self) -> tuple[str, ...]:
        """All parts that only some wrappers have."""
        chosen = (self.limits_of_tensors, self.output, self.passing, self.launching)
        chosen += (self.shape_faults, self.map)
        return (*self.conditions, *self.functions, *chosen)

    @property
    def described(self) -> str:
        """What a tensor map is made for."""
        if self.vectors and self.scales:
            return "an argument"
        return f"a matrix{' or a vector' if self.vectors else ' or packed scales' if self.scales else ''}"

    @property
    def rows_and_columns(self) -> str:
        """The extents and strides of what lies in memory row by row; a vector is one row."""
        return "(1, *shape)[-2:], (0, *strides)[-2:]" if self.vectors else "shape, strides"

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
        kind = "tf32" if self.rounds else "matrix"
        vectors = "_or_vector" * (bool(self.vectors) or self.rounds)
        return f"map_{kind}{vectors}{'_or_scales' * bool(self.scales)}.py.j2"

    @property
    def found_k(self) -> str:
        """The K of A and that of B where one of them packs it, in a message."""
        packed, whole = "{2 * known['P']}", "{k}"
        return f"{packed} and {whole}" if self.packs("a") else f"{whole} and {packed}"

    @property
    def compiled_meaning(self) -> str:
        """What is kept of a first launch."""
        return "by device: the kernel, and how many SMs there are" if self.plan.persistent else "by device"

    @property
    def tiles(self) -> str:
        """The tiles of D."""
        if self.plan.schedule_kind == "single_tile":
            return "1"
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
        step = self.plan.architecture.tma_padded_alignment_bytes
        alignment = f"; rows at multiples of {step} bytes, K one of {self.k_multiple}"
        a, b = (doc + alignment * (name in self.padded) for name, doc in (("a", a), ("b", b)))
        contract = "read while the kernel ahead in the stream may still run, which must not write it"
        early = {name: f"; {contract}" * (self.plan.read_early == name) for name in ("a", "b")}
        docs = [
            f"a: {a_shape}, {problem.a.dtype.torch}, {a}{early['a']}.",
            f"b: {b_shape}, {problem.b.dtype.torch}, {b}{early['b']}.",
        ]
        for name in self.scales:
            vector = self.vector(name)
            shape = f"[{self._axes(self.plan.argument(name))}, ceil(K / {vector})]"
            source = f"one for {vector} of K; or what `pack_scales` returns"
            docs.append(f"{name}: {shape}, {self.scale_torch}, {source}.")
        if problem.c:
            docs.append(f"c: [M, N], {problem.c.torch}, N contiguous.")
        for name in self.vectors:
            extent = self._axes(self.plan.argument(name))
            meaning = OPERATIONS[name].meaning
            docs.append(f"{name}: [{extent}], {self.dtype(name).torch}, contiguous: {meaning}.")
        if problem.scalar:
            docs.append("tensor_scale: one element, torch.float32: a factor for all of D.")
        own = "in memory of its own; allocated if not given"
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
        if isinstance(self.plan, WgmmaKernel) and self.plan.reduces_apart:
            options = {"num_warps": self.plan.reduction_warps, "launch_pdl": True, "enable_fp_fusion": True}
            return f"{self._main_options}\nREDUCTION_OPTIONS = {options}".replace("'", '"')
        return self._main_options

    @property
    def _main_options(self) -> str:
        line = f"LAUNCH_OPTIONS = {self.launch_options}"
        meaning = self.launch_options_meaning
        short = f"{line}  # Triton warns of unset FP fusion"
        return short if self.replays and len(short) <= LINE_LENGTH else f"# {meaning}\n{line}"

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
            resident = f"{resident}, {plan.problem.gpu.clusters_of_four}"
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
            f"{self.plan.problem.gpu.clusters_of_four} of four CTAs.\n"
            "    # One program more would begin when the others end, and double the kernel's time.\n"
        )

    @property
    def _lacking(self) -> bool:
        """Whether the GPU is known to hold fewer clusters of four CTAs than it has SMs for."""
        gpu = self.plan.problem.gpu
        return gpu.clusters_of_four < gpu.sm_count // 4

    @property
    def zero_k(self) -> int:
        """The K of zeros: rows of K are a whole unit of TMA long, where there are no columns of K."""
        problem = self.plan.problem
        return TMA_UNIT_BYTES if (problem.a.major, problem.b.major) == ("k", "k") else 1

    @property
    def zero_a(self) -> str:
        """An A of zeros, for a K of 0."""
        if self.plan.problem.a.major == "mn":
            return "a.new_zeros((1, m)).T"
        return f"a.new_zeros((m, {TMA_UNIT_BYTES}))" + "[:, :1]" * (self.zero_k == 1)

    @property
    def zero_b(self) -> str:
        """A B of zeros."""
        if self.plan.problem.b.major == "mn":
            return "b.new_zeros((1, n))"
        return f"b.new_zeros((n, {TMA_UNIT_BYTES}))" + "[:, :1]" * (self.zero_k == 1) + ".T"

    @property
    def describe_zeros(self) -> str:
        """The statement that puts them in the place of the operands, of B for each part of a tile."""
        names = ("a", "b", *self.further_parts)
        each = [f'_argument("{name}", {tensor_of(name)}, {{}})' for name in names]
        line = f"arguments[:{len(names)}] = {', '.join(each)}"
        if 8 + len(line) <= LINE_LENGTH:
            return line
        items = "".join(f"            {item},\n" for item in each)
        return f"arguments[:{len(names)}] = (\n{items}        )"

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
        return max(plan.program_tile_m, plan.program_tile_n, plan.cta_tile_k * plan.splits_per_tile)

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor."""
        return divmod(self.plan.architecture.compute_capability, 10)


def passed_as(name: str) -> str:
    """Return the name under which `matmul` takes what the kernel has under this one."""
    return "out" if name == "d" else name
