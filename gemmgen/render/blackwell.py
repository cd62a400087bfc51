"""The view of the templates of Blackwell kernels: parts, fields, names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.hardware import TCGEN05
from gemmgen.plan.epilogue_storage import EpilogueStorage
from gemmgen.plan.storage import Extent, SharedBuffer
from gemmgen.plan.tcgen05 import Tcgen05Kernel
from gemmgen.plan.tcgen05.geometry import CLC_RESPONSES
from gemmgen.problem import Operand
from gemmgen.render.blackwell_overview import BlackwellOverview
from gemmgen.render.kernel import SHARED, Field, KernelLayouts, KernelView, OperandLoad
from gemmgen.render.places import Constant, Function, Place, Section
from gemmgen.render.spelling import extent_name, fit

TENSOR_MEMORY = "tensor_memory_descriptor"
SCALE_BLOCK_EXTENTS = ("SCALE_LINES", "SCALE_LINE_BYTES")
"""The constants that hold the extents of a block of scales in shared memory."""


@dataclass(frozen=True)
class BlackwellLayouts(KernelLayouts):
    """The layout constants of one Blackwell plan."""

    plan: Tcgen05Kernel

    @property
    def definitions(self) -> Iterator[str]:
        """Each constant's definition, in the order in which operands are named."""
        plan, problem = self.plan, self.plan.problem
        a_axis, b_axis = 0 if problem.a.major == "k" else 1, 0 if problem.b.major == "k" else 1
        yield self._operand("A", problem.a, plan.a_swizzle_bytes, plan.bases(a_axis, None))
        yield self._operand("B", problem.b, plan.b_swizzle_bytes, plan.b_bases(b_axis))
        if plan.resources.scales:
            yield self._scales("A", plan.bases(1, None, rank=5))
            yield self._scales("B", plan.bases(None, 1, rank=5))
        yield from self._epilogue
        yield self._accumulator()
        if plan.resources.tmem_scales:
            yield self._constant("A_SCALE_TMEM_LAYOUT", "TensorMemoryScalesLayout", [], plan.bases(0, None))
            yield self._constant("B_SCALE_TMEM_LAYOUT", "TensorMemoryScalesLayout", [], plan.bases(None, 0))
        if plan.launch_control:
            bases = plan.bases(None, None, rank=1)
            arguments = ["vec=1", "per_phase=1", "max_phase=1", "order=[0]"]
            yield self._constant("CLC_LAYOUT", "gl.SwizzledSharedLayout", arguments, bases)

    def _operand(self, name: str, operand: Operand, swizzle_bytes: int, bases: list[list[int]]) -> str:
        bits = max(8, operand.dtype.bits)
        arguments = [f"swizzle_byte_width={swizzle_bytes}", f"element_bitwidth={bits}", "rank=2"]
        if operand.padded:
            arguments.append("fp4_padded=True")
        return self._constant(f"{name}_LAYOUT", "gl.NVMMASharedLayout", arguments, bases)

    def _scales(self, name: str, bases: list[list[int]]) -> str:
        arguments = ["swizzle_byte_width=0", "element_bitwidth=8", "rank=5"]
        return self._constant(f"{name}_SCALE_LAYOUT", "gl.NVMMASharedLayout", arguments, bases)

    def _accumulator(self) -> str:
        """Return the accumulator's layout; its block is what one CTA holds, one column of 32 bits a sum."""
        plan = self.plan
        arguments = [f"block=[{plan.cta_tile_m}, {plan.cta_tile_n}]", "col_stride=1"]
        bases = plan.bases(0, 1)
        pair = ["two_ctas=True"] if plan.paired else []
        arguments += [f"cga_layout={bases}"] if bases else []
        return self._constant("ACCUMULATOR_LAYOUT", "TensorMemoryLayout", [*arguments, *pair], [])


@dataclass(frozen=True)
class BlackwellView(KernelView):
    """One Blackwell plan as the templates see it; every choice of a part is made here."""

    plan: Tcgen05Kernel

    @cached_property
    def layouts(self) -> BlackwellLayouts:
        """How tensors lie in memory."""
        return BlackwellLayouts(self.plan)

    @cached_property
    def overview(self) -> BlackwellOverview:
        """The kernel in words."""
        return BlackwellOverview(self.plan, self.sides)

    # --- parts

    @property
    def _functions(self) -> Iterator[Function]:
        """The templates of functions that no feature has, callees first in each section."""
        if self.epilogue.loads.exist:
            yield Function(Section.ARGUMENTS, "shared/buffers")
        yield Function(Section.ARGUMENTS, "shared/args")
        yield Function(Section.ARGUMENTS, "tcgen05/ring_position")
        tiles = (self.walk.template,) if self.walk.template else ()
        for template in ("walks/tile", *self.order, *tiles):
            yield Function(Section.WALK, template)
        if self.plan.launch_control:
            yield Function(Section.WALK, "tcgen05/scheduler_partition")
        yield Function(Section.LOAD, "tcgen05/load_tile")
        yield Function(Section.LOAD, "tcgen05/load_partition")
        yield Function(Section.MULTIPLY, "tcgen05/multiply")
        yield Function(Section.MULTIPLY, "tcgen05/mma_partition")
        yield from self.epilogue.functions
        yield Function(Section.KERNEL, "tcgen05/epilogue_partition")
        yield Function(Section.KERNEL, "shared/kernel_specialized")

    # --- work items

    @property
    def divides_k(self) -> bool:
        """True if several programs share a tile's K."""
        return False

    # --- accumulators

    @property
    def _ring_of_sums(self) -> bool:
        """True if there are several accumulators, used in turn: their barriers have a phase for each lap."""
        return self.plan.accumulators > 1

    @property
    def phase_of_sums(self) -> str:
        """The phase of the barriers of a tile's accumulator."""
        return "sums.phase" if self._ring_of_sums else "phase"

    def of_sums(self, name: str) -> str:
        """Return the element of a ring of accumulators, or of their barriers, that belongs to a tile."""
        return f"args.{name}.index(sums.slot)" if self._ring_of_sums else f"args.{name}"

    @property
    def has_phase_of_operands(self) -> bool:
        """True if the epilogue's operands have a phase of their own, as they do with several accumulators."""
        return self.epilogue.loads.phased and self._ring_of_sums

    @property
    def _names(self) -> Iterator[tuple[str, str]]:
        """Pairs of a module and a name that kernels import without any feature."""
        multiply = "tcgen05_mma_scaled" if self.plan.resources.tmem_scales else "tcgen05_mma"
        names = ("TensorMemoryLayout", "allocate_tensor_memory", "fence_async_shared", "mbarrier")
        for name in (*names, "tcgen05_commit", multiply, TENSOR_MEMORY, "tma"):
            yield "blackwell", name
        if self.plan.launch_control:
            yield "blackwell", "clc"
        if self.epilogue.steps.divides:
            yield "cuda", "libdevice"

    @property
    def _constants(self) -> Iterator[Constant]:
        """The constants that no feature has."""
        plan = self.plan
        yield Constant(Place.TILE, "PROGRAM_TILE_M", plan.program_tile_m)
        yield Constant(Place.TILE, "PROGRAM_TILE_N", plan.program_tile_n)
        for extent in dict.fromkeys(self._k_tile_of(name) for name in ("a", "b")):
            packed = f"bytes of {plan.cta_tile_k} elements of 4 bits"
            meaning = packed if extent.measure == "packed_tile_k" else ""
            yield Constant(Place.STEP, extent_name(extent), extent.size, meaning)
        yield Constant(Place.PROGRAM, "STAGES", plan.stages, "K steps in flight")
        if plan.accumulators > 1:
            meaning = "tiles of sums: one is stored while the next is summed"
            yield Constant(Place.PROGRAM, "ACCUMULATORS", plan.accumulators, meaning)
        if plan.launch_control:
            meaning = "one is read while the next is requested"
            yield Constant(Place.PROGRAM, "CLC_RESPONSES", CLC_RESPONSES, meaning)
            yield Constant(Place.PROGRAM, "CLC_RESPONSE_BYTES", TCGEN05.response_bytes)
            yield Constant(Place.PROGRAM, "ROLES", plan.roles, "partitions, all of which read every response")
        yield from self.epilogue.constants
        yield from self._order_constants

    # --- arguments

    @property
    def args(self) -> tuple[Field, ...]:
        """The fields of the aggregate that device functions are passed."""
        resources, plan = self.plan.resources, self.plan
        loading, storage = self.epilogue.loads.exist, resources.epilogue
        own = (*storage.buffers, *storage.barriers) if loading else ()
        buffers = (buffer for buffer in plan.shared_buffers if buffer not in own)
        barriers = (barrier for barrier in plan.barriers if barrier not in own)
        return (
            *map(self._tensor, plan.arguments),
            *(Field(buffer.name, SHARED, buffer.name) for buffer in buffers),
            *(Field(buffer.name, TENSOR_MEMORY, buffer.name) for buffer in resources.tensor_buffers),
            *(Field(barrier.name, SHARED, barrier.name) for barrier in barriers),
            *((Field("buffers", "Buffers", "buffers"),) if loading else ()),
            *self._counts(),
        )

    @property
    def epilogues(self) -> tuple[tuple[int | None, EpilogueStorage], ...]:
        """The only one."""
        return ((None, self.plan.resources.epilogue),)

    # --- loads

    def _k_tile_of(self, operand: str) -> Extent:
        """Return the extent along K of an operand's tile."""
        resources, problem = self.plan.resources, self.plan.problem
        buffer, matrix = (resources.a, problem.a) if operand == "a" else (resources.b, problem.b)
        return buffer.shape[1 if matrix.major == "k" else 0]

    @property
    def k_extents(self) -> tuple[str, str]:
        """The constants that hold the extents along K of the tiles of A and of B."""
        return extent_name(self._k_tile_of("a")), extent_name(self._k_tile_of("b"))

    @property
    def loads(self) -> Iterator[OperandLoad]:
        """How a stage loads A and B, and their scales."""
        problem = self.plan.problem
        for name, operand, place in (("a", problem.a, "tile.row"), ("b", problem.b, "tile.column")):
            k = "packed_k" if self._k_tile_of(name).measure == "packed_tile_k" else "k"
            coordinates = f"[{place}, {k}]" if operand.major == "k" else f"[{k}, {place}]"
            yield OperandLoad(name, coordinates, name in self.plan.multicast)
        for name in ("a", "b") if self.plan.resources.scales else ():
            scale = f"{name}_scale"
            yield OperandLoad(scale, f"[0, {name}_block, k_block, 0, 0]", scale in self.plan.multicast)

    @property
    def bytes_expected(self) -> Iterator[str]:
        """The terms of the bytes of a stage."""
        return (f"args.{load.operand}_desc.nbytes_per_cta" for load in self.loads)

    # --- the epilogue

    @property
    def store_arguments(self) -> tuple[str, ...]:
        """The arguments of the call that stores a tile."""
        own = (self.own_value,) if self.epilogue.loads.exist else ()
        sums = (self.of_sums(self.plan.resources.accumulator.name), self.of_sums("accumulator_empty"))
        return ("args", *own, self.first_row, self.first_column, *sums, *self.epilogue.store.passed_on)

    # --- memory

    def _extents(self, buffer: SharedBuffer) -> tuple[str, ...]:
        """Return the extents of a buffer by their constants, the extents of a block of scales included."""
        names = super()._extents(buffer)
        return (*names[:-2], *SCALE_BLOCK_EXTENTS) if buffer in self.plan.resources.scales else names

    @property
    def tensor_memory(self) -> Iterator[str]:
        """The allocations of tensor memory, as statements."""
        plan = self.plan
        ring = ("ACCUMULATORS",) if plan.accumulators > 1 else ()
        extents = f"[{', '.join((*ring, 'PROGRAM_TILE_M', 'PROGRAM_TILE_N'))}]"
        arguments = ("gl.float32", extents, "ACCUMULATOR_LAYOUT")
        yield self._tensor_buffer(plan.resources.accumulator.name, arguments)
        operands = (("a_scale", "PROGRAM_TILE_M"), ("b_scale", "PROGRAM_TILE_N"))
        for buffer, (name, rows) in zip(plan.resources.tmem_scales, operands, strict=False):
            arguments = (
                f"{name}_desc.dtype",
                f"[{rows}, SCALE_COLUMNS * SCALE_BLOCKS_K]",
                f"{name.upper()}_TMEM_LAYOUT",
            )
            yield self._tensor_buffer(buffer.name, arguments)

    @staticmethod
    def _tensor_buffer(name: str, arguments: tuple[str, ...]) -> str:
        return fit(f"{name} = allocate_tensor_memory(", arguments, ")", indent=4)
