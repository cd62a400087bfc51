"""The facts of an exported kernel, by which the launcher in C checks arguments and launches it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gemmgen.hardware import DType
from gemmgen.launch_facts import KernelFacts, Passed
from gemmgen.plan.axes import Axis, AxisExtent, axes_in_memory, extents_in_memory
from gemmgen.plan.roles import Argument
from gemmgen.plan.storage import SharedBuffer
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.arguments import TMA_UNIT_BYTES
from gemmgen.render.launching import LaunchView
from gemmgen.render.spelling import argument_name
from gemmgen.triton_api import TensorMap

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
"""[cuda] Its type for elements of 8 bits and fewer, whose bytes TMA copies as they are."""

Passing = Literal["VECTOR", "MATRIX", "BOX_OF_GROUP", "BOX_AT_ROW", "BOX_BEFORE_ROW"]
"""How TMA sees a tensor: the names in gemmgen_launch.h."""


def map_type(dtype: DType) -> tuple[str, int]:
    """Return the driver's name and number of an element type."""
    return MAP_TYPE_OF_BYTES if dtype.bits <= 8 else MAP_TYPES[dtype.name]


@dataclass(frozen=True)
class Described:
    """A tensor that TMA moves."""

    argument: Argument
    passing: Passing
    rows: AxisExtent | None
    """None for a vector."""
    columns: AxisExtent
    swizzle_bytes: int
    box: tuple[int, ...]
    """The box of one instruction of a CTA, the contiguous dimension last."""
    box_rows: int = 0
    """Rows of a box in memory, if each begins or ends at any row; else 0."""

    @property
    def dimensions(self) -> int:
        """Dimensions of the descriptor."""
        return {"VECTOR": 1, "MATRIX": 2}.get(self.passing, 3)

    @property
    def type(self) -> tuple[str, int]:
        """The driver's name and number for the type of its elements."""
        return map_type(self.argument.dtype)

    @property
    def swizzle(self) -> tuple[str, int]:
        """The driver's name and number of its swizzle."""
        return SWIZZLES[self.swizzle_bytes]

    @property
    def driver_box(self) -> tuple[int, ...]:
        """Its box, the contiguous dimension first, as the driver counts."""
        return self.box[::-1]

    @property
    def passed(self) -> Passed:
        """The argument as the kernel gets it."""
        found = TensorMap(self.box, self.swizzle[1], self.type[1], self.argument.dtype.stored_bytes)
        return Passed(argument_name(self.argument), "map", found)


@dataclass(frozen=True)
class Pointer:
    """A tensor that threads access by its address, or a part of the workspace."""

    argument: Argument
    passing: Literal["POINTER", "PARTIAL_SUMS", "COUNTERS"]
    alignment: int = 0
    pointee: str = ""
    """Its elements in words."""

    @property
    def passed(self) -> Passed:
        """The argument as the kernel gets it: an address."""
        return Passed(argument_name(self.argument), "pointer")


@dataclass(frozen=True)
class Workspace:
    """Memory in which the programs of a launch leave each other sums."""

    consumers: int
    """Counters of a tile: one for each consumer."""
    sum_bytes: int
    """Bytes of the sums of a consumer's part of a tile."""
    sums_per_counter: int
    """Such sums for each counter."""


@dataclass(frozen=True)
class LaunchFacts:
    """The facts of one Hopper kernel whose cubin is compiled."""

    plan: WgmmaKernel
    stem: str
    cubin: bytes

    @property
    def capability(self) -> tuple[int, int]:
        """Major and minor compute capability of the GPUs that run the kernel."""
        return self._launch.compute_capability

    @property
    def cubin_digest(self) -> int:
        """The cubin's FNV-1a digest of 64 bits."""
        digest = 14695981039346656037
        for byte in self.cubin:
            digest = (digest ^ byte) * 1099511628211 % 2**64
        return digest

    # --- arguments

    @cached_property
    def tensors(self) -> tuple[Described, ...]:
        """The tensors that TMA moves, in the kernel's order."""
        return tuple(each for each in self.arguments if isinstance(each, Described))

    @cached_property
    def arguments(self) -> tuple[Described | Pointer, ...]:
        """The arguments of the kernel, in order."""
        buffers = {buffer.operand: buffer for buffer in reversed(self.plan.shared_buffers)}
        return tuple(self._argument(each, buffers.get(each.name)) for each in self.plan.arguments)

    @property
    def d(self) -> int:
        """The place of D among the arguments."""
        return [argument.tensor for argument in self.plan.arguments].index("d")

    @property
    def launch(self) -> KernelFacts:
        """The facts that the compiled kernel must have too."""
        plan = self.plan
        return KernelFacts(
            "matmul_kernel",
            tuple(argument.passed for argument in self.arguments),
            plan.threads,
            plan.smem_bytes,
            plan.cluster_size,
            is_dependent=plan.dependent,
        )

    def _argument(self, argument: Argument, buffer: SharedBuffer | None) -> Described | Pointer:
        if argument.kind == "workspace":
            return Pointer(argument, "COUNTERS" if argument.tensor == "counters" else "PARTIAL_SUMS")
        if argument.scaled and argument.is_addressed:
            words = f"{argument.dtype.name} numbers, a multiple of {TMA_UNIT_BYTES}"
            return Pointer(argument, "POINTER", TMA_UNIT_BYTES, words)
        if buffer is None:
            words = "a float" if argument.kind == "scalar" else f"{argument.dtype.name} numbers"
            return Pointer(argument, "POINTER", argument.dtype.stored_bytes, words)
        *rows, columns = extents_in_memory(self.plan.problem, argument)
        passing = self._passing(argument) if rows else "VECTOR"
        box = self._box(buffer, argument)
        if passing.startswith("BOX"):
            box = (1, *box)
        box_rows = _moved(buffer)[0] if passing in ("BOX_AT_ROW", "BOX_BEFORE_ROW") else 0
        first = rows[0] if rows else None
        return Described(argument, passing, first, columns, buffer.swizzle_bytes, box, box_rows)

    def _passing(self, argument: Argument) -> Passing:
        """Return how TMA sees a matrix: D of groups, and operands that groups divide, are boxes of rows."""
        groups = self.plan.problem.groups
        if groups is None or (argument.scaled and not self.plan.access.has_box_axis(argument.tensor)):
            return "MATRIX"
        if argument.tensor == "d":
            return "BOX_BEFORE_ROW"
        if not self.plan.access.has_box_axis(argument.tensor):
            return "MATRIX"
        return "BOX_AT_ROW" if groups.divides_k else "BOX_OF_GROUP"

    def _box(self, buffer: SharedBuffer, argument: Argument) -> tuple[int, ...]:
        """Return the box of one TMA instruction of a CTA: at most a swizzle span of a row."""
        along_n = self.plan.cluster_n
        ctas = {Axis.M: self.plan.cluster_m, Axis.N: along_n, Axis.TWO_N: along_n}
        axes = [each for each in axes_in_memory(self.plan.problem, argument) if each != Axis.GROUPS]
        shares = [size // ctas.get(axis, 1) for size, axis in zip(_moved(buffer), axes, strict=True)]
        span = buffer.swizzle_bytes // argument.dtype.stored_bytes or TMA_BOX_MOST
        return (*(min(share, TMA_BOX_MOST) for share in shares[:-1]), min(shares[-1], span))

    # --- what a call may have

    @property
    def max_extent(self) -> int:
        """The largest M, N and K."""
        return 2**31 - self._launch.max_overhang

    @property
    def most_groups(self) -> int:
        """The greatest number of groups; 0 without groups."""
        return 0 if self.plan.problem.groups is None else self.plan.group_slots or self.max_extent

    @property
    def out_unit(self) -> int:
        """The columns of D in 16 bytes."""
        return self.plan.d_unit

    @property
    def column_unit(self) -> int:
        """The number that N is a multiple of: D is stored, and a second block of B begins, at 16 bytes."""
        return max(self.out_unit, self.plan.access.n_multiple)

    @property
    def column_rule(self) -> str:
        """The reason for that number, in a message about D."""
        if self.column_unit == self.out_unit:
            return "d must have rows of whole 16-byte units"
        why = "at which a block of b begins"
        if self.shares_scales:
            why = "which share a scale"
        return f"d must have a multiple of {self.column_unit} columns, {why}"

    @property
    def shares_scales(self) -> bool:
        """True if N is a multiple of columns of D, or of B, that share a scale."""
        return self.plan.access.n_unit != "rows of TMA"

    @property
    def k_rule(self) -> str | None:
        """The reason for which a K of 0 is refused; None if D is zero then."""
        groups = self.plan.problem.groups
        if self.plan.problem.d_scale:
            return "the scales of D are not zero where A @ B is"
        if groups is not None and groups.counts is not None and not groups.divides_k:
            return "rows of no group stay as they are"
        return None if self._launch.vanishes else "D is not zero where A @ B is"

    # --- the grid

    @property
    def counts_rows_of_groups(self) -> bool:
        """True if groups are ranges of the rows of D, whose ends only the GPU knows."""
        groups = self.plan.problem.groups
        return groups is not None and not groups.stacks("d")

    @property
    def programs_per_sm(self) -> int:
        """Programs that an SM holds of a persistent kernel; with clusters, programs of a cluster's SMs."""
        return 1 if self.plan.cluster_size > 1 else self.plan.occupancy

    @property
    def most_programs(self) -> int:
        """The most programs of a persistent kernel on any GPU; 0 if only SMs limit them."""
        plan, gpu = self.plan, self.plan.gpu
        is_limited = plan.cluster_size > 2 and gpu.clusters_of_four < gpu.sm_count // 4
        return gpu.clusters_of_four if is_limited else 0

    @property
    def workspace(self) -> Workspace | None:
        """The memory for sums; None if the kernel needs none."""
        plan = self.plan
        if not self._launch.workspace:
            return None
        return Workspace(
            consumers=plan.counting_partitions or 1,
            sum_bytes=plan.consumer_tile_m * plan.program_tile_n * plan.problem.accumulator.bytes,
            sums_per_counter=plan.partials,
        )

    @property
    def _launch(self) -> LaunchView:
        return LaunchView(self.plan)


def _moved(buffer: SharedBuffer) -> tuple[int, ...]:
    """Return the rows and columns that a buffer takes in."""
    return tuple(extent.size for extent in buffer.loaded_shape or buffer.shape)
