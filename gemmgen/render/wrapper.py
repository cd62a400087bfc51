"""The public function of a module: what it takes, checks and says."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass

from gemmgen.plan.dtype import DTYPES, DType
from gemmgen.plan.hopper import WgmmaPlan
from gemmgen.plan.hopper.tiles import rows_name
from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.problem import Operand
from gemmgen.plan.storage import k_extent_name
from gemmgen.render.fit import fit
from gemmgen.render.overview import formula

VECTOR_MEANING = {
    "row_scale": "a factor for each row",
    "column_scale": "a factor for each column",
    "row_bias": "a summand for each row",
    "column_bias": "a summand for each column",
}


SCALES = ("a_scale", "b_scale")
"""The arguments of a block-scaled kernel that hold the scales of its operands."""


@dataclass(frozen=True)
class KernelWrapper(ABC):
    """Any plan's wrapper as its template sees it."""

    plan: KernelPlan

    @property
    @abstractmethod
    def rows(self) -> str:
        """The constant that holds the rows of A and of D that one box has."""

    @property
    @abstractmethod
    def vanishes(self) -> bool:
        """Whether D is zero where A @ B is."""

    @property
    def scales(self) -> tuple[str, ...]:
        """The arguments that are scales of blocks."""
        return SCALES if self.plan.problem.block_scaled else ()

    @property
    def extras(self) -> tuple[str, ...]:
        """The keyword arguments beside `out`, in the order of the kernel's."""
        problem = self.plan.problem
        scalar = ("tensor_scale",) if problem.scalar else ()
        return (*self.scales, *(("c",) if problem.c else ()), *problem.vectors, *scalar)

    def operand(self, name: str) -> Operand:
        """Return the operand called ``a`` or ``b``, also by the name of its scales."""
        return self.plan.problem.a if name.startswith("a") else self.plan.problem.b

    def vector(self, name: str) -> int:
        """Return the elements of K that share one of these scales."""
        scale = self.operand(name).scale
        assert scale is not None  # asked for block-scaled operands only
        return scale.vector

    @property
    def matrices(self) -> tuple[str, ...]:
        """The arguments that are matrices."""
        return ("a", "b", *(("c",) if self.plan.problem.c else ()), "out")

    @property
    def vectors(self) -> tuple[str, ...]:
        """The arguments that are vectors."""
        return self.plan.problem.vectors

    def dtype(self, name: str) -> DType:
        """Return an argument's element type."""
        problem = self.plan.problem
        matrices = {"a": problem.a.dtype, "b": problem.b.dtype, "c": problem.c, "out": problem.d}
        if name in matrices and (dtype := matrices[name]):
            return dtype
        if name in SCALES and (scale := self.operand(name).scale):
            return scale.dtype
        return DTYPES["fp32"] if name == "tensor_scale" else problem.vector_dtype(name)

    def define(self) -> str:
        """Return the head of `matmul`."""
        extras = [f"{name}: torch.Tensor" for name in self.extras]
        arguments = ["a: torch.Tensor", "b: torch.Tensor", "*", *extras, "out: torch.Tensor | None = None"]
        return fit("def matmul(", arguments, ") -> torch.Tensor:")

    @property
    def dtypes(self) -> str:
        """The constant that holds the torch dtypes."""
        names = ("a", "b", *self.extras, "out")
        return fit("DTYPES = {", [f'"{name}": {self.dtype(name).torch}' for name in names], "}")

    @property
    def boxes(self) -> tuple[tuple[str, str, str], ...]:
        """Each argument that TMA moves, with the extents of its box and the name of its layout."""
        problem, rows, columns = self.plan.problem, f"{self.rows}.value", "PROGRAM_TILE_N.value"
        stored = f"{'SUBTILE_N' if self.plan.subtiles > 1 else 'PROGRAM_TILE_N'}.value"
        a_k, b_k = (f"{k_extent_name(operand)}.value" for operand in (problem.a, problem.b))
        a = f"[{rows}, {a_k}]" if problem.a.major == "k" else f"[{a_k}, {rows}]"
        b = f"[{columns}, {b_k}]" if problem.b.major == "k" else f"[{b_k}, {columns}]"
        scales = tuple(
            (
                name,
                f"[1, {name.upper()}_BLOCKS.value, SCALE_BLOCKS_K.value, 2, 256]",
                f"{name.upper()}_LAYOUT",
            )
            for name in self.scales
        )
        c = ((("c", f"[{rows}, {stored}]", "C_LAYOUT"),)) if problem.c else ()
        vectors = tuple(
            (name, f"[{rows if name.startswith('row') else columns}]", f"{name.upper()}_LAYOUT")
            for name in self.vectors
        )
        d = ("out", f"[{rows}, {stored}]", "D_LAYOUT")
        return (("a", a, "A_LAYOUT"), ("b", b, "B_LAYOUT"), *scales, *c, *vectors, d)

    @property
    def transposed(self) -> tuple[str, ...]:
        """The matrices that are passed as the transposed views of what lies in memory row by row."""
        problem = self.plan.problem
        a, b = ("a",) if problem.a.major == "mn" else (), ("b",) if problem.b.major == "k" else ()
        return (*a, *b)

    def packs(self, name: str) -> bool:
        """Whether two elements of an operand share a byte."""
        return self.operand(name).dtype.elements_per_byte > 1

    @property
    def packed_operands(self) -> bool:
        """Whether an operand's extent along K is not K."""
        return self.packs("a") or self.packs("b")

    @property
    def packed(self) -> tuple[tuple[str, int], ...]:
        """Each operand with the elements of K that one of its own has."""
        return tuple((name, self.operand(name).dtype.elements_per_byte) for name in ("a", "b"))

    @property
    def padded(self) -> tuple[str, ...]:
        """The operands whose 4-bit elements take a byte each in shared memory."""
        return tuple(name for name in ("a", "b") if self.operand(name).padded)

    @property
    def alignment(self) -> str:
        """The expression of what the address and row stride of the matrix `name` are multiples of."""
        return "_alignment_bytes(name)" if self.padded else "TMA_ALIGNMENT_BYTES"

    @property
    def k_multiple(self) -> int:
        """What K must be a multiple of where that is more than the bytes of a row say."""
        return self.plan.problem.k_multiple if self.padded else 1

    @property
    def contiguity(self) -> tuple[tuple[str, str], ...]:
        """What each matrix's strides must be."""
        problem = self.plan.problem
        a = "K contiguous, stride(1) == 1"
        if problem.a.major == "mn":
            a = "M contiguous, stride(0) == 1: pass the transposed view of a K x M tensor"
        b = "K contiguous, stride(0) == 1: pass the transposed view of an N x K tensor"
        if problem.b.major == "mn":
            b = "N contiguous, stride(1) == 1"
        rows = "N contiguous, stride(1) == 1"
        return (("a", a), ("b", b), *((("c", rows),) if problem.c else ()), ("out", rows))

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
        docs = [
            f"a: {a_shape}, {problem.a.dtype.torch}, {a}.",
            f"b: {b_shape}, {problem.b.dtype.torch}, {b}.",
        ]
        for name in self.scales:
            is_b, vector = name.startswith("b"), self.vector(name)
            rows, line = ("N", "column of b") if is_b else ("M", "row of a")
            docs.append(
                f"{name}: [{rows}, ceil(K / {vector})], {self.dtype(name).torch}: a factor for each {line} "
                f"and {vector} elements of K; or what ``pack_scales`` makes of it."
            )
        if problem.c:
            docs.append(f"c: [M, N], {problem.c.torch}, N contiguous.")
        for name in self.vectors:
            extent = "M" if name.startswith("row") else "N"
            docs.append(f"{name}: [{extent}], {self.dtype(name).torch}, contiguous: {VECTOR_MEANING[name]}.")
        if problem.scalar:
            docs.append("tensor_scale: one element, torch.float32: a factor for all of D.")
        docs.append(
            f"out: [M, N], {problem.d.torch}, N contiguous, on the operands' device, sharing no memory with "
            "them; allocated if not given."
        )
        return "\n".join(
            textwrap.fill(doc, width=103, initial_indent=" " * 8, subsequent_indent=" " * 12) for doc in docs
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
        return f"M up to {plan.cta_tile_m}, N up to {plan.cta_tile_n}, K up to {plan.cta_tile_k}"

    @property
    def launch_options(self) -> tuple[tuple[str, object, str], ...]:
        """The options of a launch, each with its meaning."""
        plan = self.plan
        options: list[tuple[str, object, str]] = [
            (
                "num_warps",
                plan.default_warps,
                "of the first partition" if plan.specialized else "of each CTA",
            ),
            ("num_ctas", plan.cluster_size, "of a cluster"),
        ]
        if plan.launch_register_limit:
            together = f"so that {plan.occupancy} CTAs share an SM"
            options.append(("maxnreg", plan.launch_register_limit, together))
        fusion = "Triton 3.9 warns when it is left open"
        options.append(("enable_fp_fusion", True, fusion))
        return tuple(options)

    @property
    def signature(self) -> tuple[tuple[str, str], ...]:
        """Each kernel argument with the expression of its type."""

        def typed(argument: str) -> str:
            name = _passed_as(argument)
            triton = self.dtype(name).triton
            return f'"*{triton}"' if argument.endswith("_ptr") else f'_described("{name}", "{triton}")'

        return tuple((argument, typed(argument)) for argument in self.plan.kernel_arguments)

    @property
    def launch_arguments(self) -> tuple[str, ...]:
        """The expressions of the kernel's arguments for a call's tensors."""

        def expression(argument: str) -> str:
            name = _passed_as(argument)
            if argument.endswith("_ptr"):
                return name
            if name in self.vectors:
                return f'_vector_descriptor("{name}", {name}.data_ptr(), {name}.shape[0])'
            if name in self.scales:
                return f'_scale_descriptor("{name}", {name}.data_ptr(), *{name}.shape[1:3])'
            return (
                f'_descriptor("{name}", {name}.data_ptr(), *_rows("{name}", {name}.shape, {name}.stride()))'
            )

        return tuple(map(expression, self.plan.kernel_arguments))

    @property
    def any_arguments(self) -> tuple[str, ...]:
        """The expressions of arguments to compile for."""

        def expression(argument: str) -> str:
            name = _passed_as(argument)
            if argument.endswith("_ptr"):
                return f'torch.empty(1, dtype=DTYPES["{name}"], device=device)'
            if name in self.vectors:
                return f'_vector_descriptor("{name}", 0, 1)'
            if name in self.scales:
                return f'_scale_descriptor("{name}", 0, 1, 1)'
            return f'_descriptor("{name}", 0, 1, 1, TMA_ALIGNMENT_BYTES)'

        return tuple(map(expression, self.plan.kernel_arguments))

    @property
    def launch_call(self) -> str:
        """What the launch is passed."""
        return "arguments" if self.plan.schedule_kind == "single_tile" else "tiles, arguments"

    @property
    def launches_tiles(self) -> bool:
        """Whether there is a program for each tile."""
        return self.plan.schedule_kind in ("tiled", "launch_control")

    @property
    def resident_programs(self) -> str:
        """How many programs the SMs hold."""
        plan = self.plan
        if plan.cluster_size > 2 and self._lacking:
            return f"min(sm_count // {plan.cluster_size}, {plan.problem.gpu.clusters_of_four})"
        if plan.cluster_size > 1:
            return f"sm_count // {plan.cluster_size}"
        return "sm_count" if plan.occupancy == 1 else f"sm_count * {plan.occupancy}"

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
    def zero_a(self) -> str:
        """An A of zeros, for a K of 0."""
        if self.plan.problem.a.major == "k":
            return "a.new_zeros((m, k))"
        return "a.new_zeros((k, _aligned(m, a.itemsize)))[:, :m].T"

    @property
    def zero_b(self) -> str:
        """A B of zeros."""
        if self.plan.problem.b.major == "k":
            return "b.new_zeros((n, k)).T"
        return "b.new_zeros((k, _aligned(n, b.itemsize)))[:, :n]"

    @property
    def rounds(self) -> bool:
        """Whether A and B are fp32 matrices, of which the tensor cores use a part."""
        return self.plan.problem.a.dtype.name == "tf32"

    @property
    def is_transposed(self) -> str:
        """Whether the matrix called `name` is one of those."""
        names = self.transposed
        return f'name == "{names[0]}"' if len(names) == 1 else f"name in {names}".replace("'", '"')

    @property
    def rows_docstring(self) -> str:
        """The docstring of what reads a matrix's rows, and whose rows these are."""
        remarks = {
            "a": "a's rows are those of the K x M tensor",
            "b": "b's rows are those of the N x K tensor",
        }
        remarks = [remarks[name] for name in self.transposed]
        text = "Return the rows, columns and row stride that TMA is told"
        if len(remarks) < 2:
            return f'"""{"; ".join([text, *remarks])}."""'
        return f'"""{text}.\n\n    {remarks[0].capitalize()}, {remarks[1]}.\n    """'

    @property
    def max_overhang(self) -> int:
        """Elements by which a tile's last coordinate can exceed an extent."""
        return max(self.plan.program_tile_m, self.plan.program_tile_n, self.plan.cta_tile_k)

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor."""
        return divmod(self.plan.architecture.compute_capability, 10)


@dataclass(frozen=True)
class HopperWrapper(KernelWrapper):
    """A Hopper plan's wrapper."""

    plan: WgmmaPlan

    @property
    def rows(self) -> str:
        """The constant that holds the rows of A and of D that one box has."""
        return rows_name(self.plan)

    @property
    def vanishes(self) -> bool:
        """Whether D is zero where A @ B is."""
        return not self.plan.problem.transforms


def _passed_as(argument: str) -> str:
    """Return the name under which `matmul` takes what the kernel has under this one."""
    name = argument.removesuffix("_desc").removesuffix("_ptr")
    return "out" if name == "d" else name
