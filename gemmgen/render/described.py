"""The tensors of an exported kernel as its launcher in C describes them to TMA, and its parameters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.hardware import DType
from gemmgen.plan.roles import Argument
from gemmgen.plan.storage import SharedBuffer
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem.groups import Groups
from gemmgen.render.aot.block_scales import BY_ADDRESS, Scales, scales_of
from gemmgen.render.arguments import TMA_UNIT_BYTES
from gemmgen.render.spelling import fit
from gemmgen.render.wrapper import Wrapper

TENSOR_MAP_BYTES = 128  # [cuda] sizeof(CUtensorMap)
TENSOR_MAP_ALIGNMENT_BYTES = 64  # [gluon] of the parameter; cuda.h may ask for more where it is a variable
TMA_BOX_MOST = 256  # [cuda] elements of a box along each dimension
SWIZZLES = {0: ("NONE", 0), 32: ("32B", 1), 64: ("64B", 2), 128: ("128B", 3)}
"""[cuda] The driver's name and number of a swizzle, by its bytes."""
MAP_TYPES = {
    "bf16": ("BFLOAT16", 9),
    "fp16": ("FLOAT16", 6),
    "fp32": ("FLOAT32", 7),
    "tf32": ("TFLOAT32", 7),
    "int32": ("INT32", 3),
}
"""[cuda] The driver's names and numbers of element types with 16 and more bits; A and B of tf32
are fp32 in memory, which TMA rounds as it loads them."""
MAP_TYPE_OF_BYTES = ("UINT8", 0)
"""[cuda] Its type for elements of 8 bits, which TMA copies as they are."""
WIDTH = 110


def map_type(dtype: DType) -> tuple[str, int]:
    """Return the driver's name and number of an element type."""
    return MAP_TYPE_OF_BYTES if dtype.bits == 8 else MAP_TYPES[dtype.name]


@dataclass(frozen=True)
class Parameter:
    """One parameter of the kernel: the driver gets its address."""

    expression: str
    bytes: int
    alignment: int


@dataclass(frozen=True)
class Boxes:
    """Boxes of rows as the third dimension of a descriptor: D of groups, and operands that groups divide.

    The numbers are expressions in C.
    """

    count: str
    rows: str
    """Rows of a box."""
    apart: str
    """Rows from the beginning of a box to that of the next: boxes overlap if it is less than `rows`."""
    ahead: str = "0"
    """Rows ahead of the tensor at which the first box begins."""


@dataclass(frozen=True)
class Described:
    """A tensor that TMA moves, as the launcher describes it."""

    argument: Argument
    passed: str
    """The name in messages and in the caller's arguments: B for all parts of a tile's columns."""
    swizzle_bytes: int
    box: tuple[int, ...]
    """One CTA's, the contiguous dimension last."""
    extents: tuple[str, ...]
    """Its rows and columns as they lie in memory, or a vector's elements; in terms of m, n, k and groups."""
    boxes: Boxes | None = None
    """The third dimension of its descriptor; None if it has at most two."""

    @property
    def constant(self) -> str:
        """The constant of the facts that are known before a launch."""
        return self.argument.name.upper()

    @property
    def type(self) -> str:
        """The driver's constant for the type of its elements."""
        return f"CU_TENSOR_MAP_DATA_TYPE_{map_type(self.argument.dtype)[0]}"

    @property
    def type_number(self) -> int:
        """The number of that type, without the rounding to tf32."""
        return map_type(self.argument.dtype)[1]

    @property
    def swizzle(self) -> str:
        """The driver's constant for its swizzle."""
        return f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[self.swizzle_bytes][0]}"

    @property
    def swizzle_number(self) -> int:
        """The number of that swizzle."""
        return SWIZZLES[self.swizzle_bytes][1]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in memory."""
        return self.argument.dtype.bytes

    @property
    def box_text(self) -> str:
        """Its box, the contiguous dimension first, as TMA counts."""
        return f"{{{', '.join(map(str, reversed(self.box)))}}}"

    @property
    def is_vector(self) -> bool:
        """True if the tensor has one dimension."""
        return len(self.extents) == 1

    @property
    def describe(self) -> str:
        """The call that checks and describes it."""
        kind = "vector" if self.is_vector else "boxes" if self.boxes else "matrix"
        boxes = self.boxes
        numbers = (*self.extents, *((boxes.count, boxes.rows, boxes.apart, boxes.ahead) if boxes else ()))
        given = (
            "kernel",
            f"&{self.constant}",
            f"arguments->{self.passed}",
            *numbers,
            f"&{self.argument.name}",
        )
        return fit(f"describe_{kind}(", given, ")", indent=len("    status = "), margin=8)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the kernel for this tensor: the map, each extent, and each stride."""
        members = (("rows", "columns"), ("row_stride", "stride"))
        if self.is_vector:
            members = (("extent",), ("stride",))
        if self.boxes:
            members = (("boxes", "rows", "columns"), ("box_stride", "row_stride", "stride"))
        name = self.argument.name
        return (
            Parameter(f"&{name}.map", TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT_BYTES),
            *(Parameter(f"&{name}.{extent}", 4, 4) for extent in members[0]),
            *(Parameter(f"&{name}.{stride}", 8, 8) for stride in members[1]),
        )


@dataclass(frozen=True)
class DescribedTensors:
    """The tensors and parameters of one Hopper plan's launcher."""

    plan: WgmmaKernel
    stem: str
    cubin: bytes

    def _axes(self, argument: Argument) -> tuple[str, ...]:
        """Return the dimensions of the rows and columns of a tensor in memory, or that of a vector."""
        if argument.kind == "block_scales":
            return ("blocks of k", str(argument.along))
        if argument.along:
            return (argument.along,)
        problem = self.plan.problem
        stored = {
            "a": ("m", "k") if problem.a.major == "k" else ("k", "m"),
            "b": ("n", "k") if problem.b.major == "k" else ("k", "n"),
        }
        return stored.get(argument.tensor, ("m", "n"))

    def _extents(self, argument: Argument) -> tuple[str, ...]:
        """Return two C expressions: the rows and columns of a tensor in memory, or a vector's elements.

        B, and a vector along its columns, have a column for each accumulator of a column of D.
        """
        parted = argument.tensor == "b" or argument.name in self.plan.problem.parted_vectors
        columns = f"{self.plan.problem.b_blocks} * n" if parted and self.plan.problem.gated else "n"
        return tuple(columns if axis == "n" else axis for axis in self._axes(argument))

    def _all_extents(self, argument: Argument) -> tuple[str, ...]:
        """Return the rows of all groups and the columns of a tensor, or the elements of a vector, in C.

        The matrices of groups follow one another, as do the vectors of groups.
        """
        if scales := self.scales(argument):
            return scales.extents
        *rows, last = self._extents(argument)
        axes = self._wrapper.axes_of(argument)
        if self.plan.problem.groups is None or axes[0] != "G" or axes == "G":
            return (*rows, last)
        return (f"groups * {rows[0]}", last) if rows else (f"groups * {last}",)

    def _boxes(self, argument: Argument, buffer: SharedBuffer) -> Boxes | None:
        """Return the third dimension of the descriptor of a tensor; None if it has none."""
        groups = self.plan.problem.groups
        tensor = argument.tensor
        if groups is None or argument.kind == "block_scales":
            return None
        rows = str((buffer.loaded_shape or buffer.shape)[0].size)
        if tensor == "d":
            return Boxes(f"{self._all_extents(argument)[0]} + 1", rows, "1", rows)
        if not self.plan.problem.has_box_axis(tensor):
            return None
        if groups.divides_k:
            return Boxes("k", rows, "1")
        of_group = self._extents(argument)[0]
        return Boxes("groups", of_group, of_group)

    def _box(self, buffer: SharedBuffer, argument: Argument) -> tuple[int, ...]:
        """Return the box of one TMA instruction of a CTA: at most a swizzle span of a row."""
        ctas = {"m": self.plan.cluster_m, "n": self.plan.cluster_n}
        moved, axes = buffer.loaded_shape or buffer.shape, self._axes(argument)
        shares = [extent.size // ctas.get(axis, 1) for extent, axis in zip(moved, axes, strict=True)]
        span = buffer.swizzle_bytes // argument.dtype.bytes or TMA_BOX_MOST
        boxed = (1,) if self._boxes(argument, buffer) else ()
        return (*boxed, *(min(share, TMA_BOX_MOST) for share in shares[:-1]), min(shares[-1], span))

    @property
    def tensors(self) -> tuple[Described, ...]:
        """The tensors that TMA moves, in the kernel's order."""
        buffers = {buffer.operand: buffer for buffer in reversed(self.plan.shared_buffers)}
        return tuple(
            Described(
                argument=argument,
                passed=argument.tensor,
                swizzle_bytes=buffers[argument.name].swizzle_bytes,
                box=self._box(buffers[argument.name], argument),
                extents=self._all_extents(argument),
                boxes=self._boxes(argument, buffers[argument.name]),
            )
            for argument in self.plan.arguments
            if argument.name in buffers and argument.kind not in BY_ADDRESS
        )

    def scales(self, argument: Argument) -> Scales | None:
        """Return the scales of blocks in an argument; None if it has none."""
        return scales_of(self.plan, argument)

    @property
    def vectors(self) -> tuple[Described, ...]:
        """The tensors of one dimension."""
        return tuple(tensor for tensor in self.tensors if tensor.is_vector)

    @property
    def has_matrices(self) -> bool:
        """True if a descriptor has two dimensions."""
        return any(not (tensor.is_vector or tensor.boxes) for tensor in self.tensors)

    @property
    def parameters(self) -> Iterator[Parameter]:
        """All parameters of the kernel, in order; the last two are for scratch memory of Triton."""
        tensors = {tensor.argument: tensor for tensor in self.tensors}
        for argument in self.plan.arguments:
            if argument in tensors:
                yield from tensors[argument].parameters
            else:
                yield Parameter(f"&{argument.name}", 8, 8)
        yield Parameter("&no_scratch", 8, 8)
        yield Parameter("&no_scratch", 8, 8)

    @property
    def parameter_lines(self) -> list[str]:
        """The addresses of the parameters, in lines of an initializer."""
        text = ", ".join(parameter.expression for parameter in self.parameters)
        return textwrap.wrap(f"{text},", width=WIDTH - 8)

    @property
    def locals(self) -> Iterator[str]:
        """The declarations of the variables that hold the parameters."""
        kinds: dict[str, list[str]] = {}
        for tensor in self.tensors:
            kind = "Vector" if tensor.is_vector else "Boxes" if tensor.boxes else "Matrix"
            kinds.setdefault(kind, []).append(tensor.argument.name)
        for kind in ("Matrix", "Boxes", "Vector"):
            if kind in kinds:
                yield f"Passed{kind} {', '.join(kinds[kind])};"
        for name, _, _ in self.addressed:
            yield f"CUdeviceptr {name} = arguments->{name};"
        if self.plan.shares_tiles:
            behind = "counter_bytes(arguments->workspace.counters)"
            yield f"CUdeviceptr partials = arguments->workspace.address + {behind};"
            yield "CUdeviceptr counters = arguments->workspace.address;"
        yield "CUdeviceptr no_scratch = 0;"

    @property
    def addressed(self) -> Iterator[tuple[str, int, str]]:
        """The tensors that threads read: the name, bytes of an element, and words for its elements."""
        for argument in self.plan.arguments:
            if argument.kind in ("scalar", "groups", "group_vector"):
                numbers = "a float" if argument.kind == "scalar" else f"{argument.dtype.name} numbers"
                yield argument.name, argument.dtype.bytes, numbers
            elif argument.kind in BY_ADDRESS:
                yield argument.name, TMA_UNIT_BYTES, f"{argument.dtype.name} numbers, a multiple of 16"

    @property
    def groups(self) -> Groups | None:
        """The groups of a problem; None without groups."""
        return self.plan.problem.groups

    @property
    def leaves_rows(self) -> bool:
        """True if rows of no group stay as they are, also if K is 0."""
        return self.groups is not None and self.groups.counts is not None and not self.groups.divides_k

    @property
    def vanishes(self) -> bool:
        """D is zero if A @ B is."""
        return self._wrapper.vanishes and not self.leaves_rows

    @property
    def all_rows(self) -> str:
        """The rows of D in memory, as an expression in C."""
        return self._all_extents(self.plan.argument("d"))[0]

    @property
    def _wrapper(self) -> Wrapper:
        return Wrapper(self.plan)

    @property
    def out_unit(self) -> int:
        """The number that the columns of D are a multiple of."""
        return self._wrapper.out_unit

    @property
    def column_unit(self) -> int:
        """The number that N is a multiple of: D is stored, and a second block of B begins, at 16 bytes."""
        return max(self.out_unit, self.plan.problem.n_multiple)

    @property
    def column_words(self) -> str:
        """The reason for that number, in a message about D."""
        if self.column_unit == self.out_unit:
            return "d must have rows of whole 16-byte units"
        why = "at which a block of b begins"
        if self.plan.problem.d_scale or self.plan.problem.has_tile_scales:
            why = "which share a scale"
        return f"d must have a multiple of {self.column_unit} columns, {why}"

    @property
    def checked_columns(self) -> str:
        """The name and the number of the columns of a B, as arguments in C."""
        blocks = f"{self.plan.problem.b_blocks} * " * self.plan.problem.gated
        return f'"{blocks.replace("*", "x")}n", {blocks}n'

    @property
    def limits(self) -> str:
        """The extents that a kernel for a single tile takes."""
        return self._wrapper.limits

    @property
    def max_extent(self) -> int:
        """The largest M, N and K."""
        return 2**31 - self._wrapper.max_overhang
