"""The view of the templates of all kernels: arguments, allocations, tile orders, partitions."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from gemmgen.hardware import DType
from gemmgen.plan.decisions import LINES
from gemmgen.plan.epilogue_storage import EpilogueStorage
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Argument
from gemmgen.plan.storage import Barrier, Extent, SharedBuffer, numbered
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.described_extents import DescribedExtents
from gemmgen.render.epilogue import EpilogueParts, EpilogueView
from gemmgen.render.epilogue_changes import changed_parts
from gemmgen.render.overview import KernelOverview
from gemmgen.render.places import Constant, Function, Place, Section, in_order
from gemmgen.render.side import Sides
from gemmgen.render.spelling import (
    LINE_LENGTH,
    MEASURES,
    RING_INDICES,
    argument_name,
    arrivals_name,
    extent_name,
    fit,
    layout_name,
)
from gemmgen.render.walks import Walk, walk_of
from gemmgen.render.wrapper import Wrapper

GLUON_NVIDIA = "triton.experimental.gluon.language.nvidia"
DESCRIPTOR = "tma.tensor_descriptor"
SHARED = "gl.shared_memory_descriptor"
SCALAR = "gl.tensor"


@dataclass(frozen=True)
class Field:
    """A field of an aggregate, and the expression that makes it."""

    name: str
    type: str
    value: str
    comment: str = ""
    """The comment after its declaration."""


def last_row(plan: Kernel, m: str) -> Field:
    """Return the field with the first row of the last tile of a column of tiles, of a D with `m` rows."""
    multiple = plan.access.m_place_multiple
    end = m if multiple == 1 else f"gl.cdiv({m}, {multiple}) * {multiple}"
    ends = "with D" if multiple == 1 else f"up to {multiple - 1} rows after D"
    comment = f"  # of the last tile, which ends {ends}: TMA is slow outside of A"
    return Field("last_row", SCALAR, f"last_row=gl.maximum({end} - PROGRAM_TILE_M, 0)", comment)


@dataclass(frozen=True)
class Construction:
    """The statement that makes an aggregate."""

    name: str
    constructor: str
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        values = [field.value for field in self.fields]
        return fit(f"{self.name} = {self.constructor}(", values, ")", indent=4)


@dataclass(frozen=True)
class OperandLoad:
    """How a K step loads A or B."""

    operand: str
    coordinates: str
    multicast: bool
    shares: int = 1
    """Tiles of it, one for each consumer's rows."""
    policy: str = ""
    """The constant that says how long L2 keeps it, if it is not as long as anything else."""

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments for a multicast, and for the time that L2 keeps the data."""
        policy = (f"cache_policy={self.policy}",) if self.policy else ()
        return (*(("multicast=True",) if self.multicast else ()), *policy)


@dataclass(frozen=True)
class KernelLayouts:
    """How any kernel spells its layouts."""

    plan: Kernel

    @property
    def _epilogue(self) -> Iterator[str]:
        """The layouts of the epilogue's operands, and of D."""
        plan, problem = self.plan, self.plan.problem
        if problem.c:
            yield from self._of_boxes("C", plan.c_swizzle_bytes, problem.c)
        for vector in self.plan.access.tma_vectors:
            bases = plan.bases(*((0, None) if OPERATIONS[vector].along == "m" else (None, 0)), rank=1)
            yield self._shared(vector.upper(), 0, problem.vector_dtype(vector), bases, rank=1)
        yield from self._of_boxes("D", plan.d_swizzle_bytes, problem.d)
        if problem.saves:
            yield from self._of_boxes("SAVED", plan.saved_swizzle_bytes, problem.d)
        if problem.scatters_d:
            columns, warps = min(plan.subtile_n, plan.cta_columns), plan.default_warps
            yield self.of_rows("D", plan.d_unit, columns, warps)

    def _of_boxes(self, name: str, swizzle_bytes: int, dtype: DType) -> Iterator[str]:
        """Yield the layout of sub-tiles of C or D, and that of boxes if their descriptor has more axes."""
        yield self._shared(name, swizzle_bytes, dtype, self.plan.bases(0, 1))
        if leading := self.plan.access.leading_axes(name.lower()):
            bases = self.plan.bases(leading, leading + 1, rank=leading + 2)
            yield self._shared(f"{name}_BOX", swizzle_bytes, dtype, bases, rank=leading + 2)

    def of_rows(self, matrix: str, unit: int, columns: int, warps: int) -> str:
        """Return the layout of rows in which threads that follow one another have units of a row."""
        lanes = self.plan.architecture.threads_per_warp
        across = min(lanes, max(1, columns // unit))
        arguments = [f"[1, {unit}]", f"[{lanes // across}, {across}]", f"[{warps}, 1]", "[1, 0]"]
        return self._constant(f"{matrix}_ROWS_LAYOUT", "gl.BlockedLayout", arguments, [])

    def _shared(
        self, name: str, swizzle_bytes: int, dtype: DType, bases: list[list[int]], rank: int = 2
    ) -> str:
        arguments = [
            f"swizzle_byte_width={swizzle_bytes}",
            f"element_bitwidth={max(8, dtype.bits)}",
            f"rank={rank}",
        ]
        return self._constant(f"{name}_LAYOUT", "gl.NVMMASharedLayout", arguments, bases)

    def _constant(self, name: str, constructor: str, arguments: list[str], bases: list[list[int]]) -> str:
        arguments = [*arguments, f"cga_layout={bases}"] if bases else arguments
        line = fit(f"{name} = gl.constexpr({constructor}(", arguments, "))")
        if "\n" not in line:
            return line
        return fit(f"{name} = gl.constexpr(", [fit(f"{constructor}(", arguments, ")", indent=4)], ")")


@dataclass(frozen=True)
class KernelView(ABC):
    """One plan as the templates of all kernels see it."""

    plan: Kernel
    sides: Sides
    """The sides of the plan's features."""

    @cached_property
    def epilogue(self) -> EpilogueView:
        """The epilogue, between accumulator and store, with the changes of all features."""
        return EpilogueView(self.plan, changed_parts(EpilogueParts.of(self.plan), self.sides))

    @cached_property
    @abstractmethod
    def overview(self) -> KernelOverview:
        """The kernel in words."""

    @cached_property
    def wrapper(self) -> Wrapper:
        """The module's public function."""
        return Wrapper(self.plan, sides=self.sides)

    @cached_property
    def walk(self) -> Walk:
        """The row of `WALKS` that holds for the kernel."""
        return walk_of(self.plan)

    @property
    def parts(self) -> Iterator[str]:
        """The templates of the module's device code, callees first."""
        found = in_order(self._functions, (side.functions for side in self.sides))
        device = (each.template for each in found if each.section < Section.MATMUL)
        return (f"{template}.py.j2" for template in dict.fromkeys(device))

    @property
    @abstractmethod
    def _functions(self) -> Iterable[Function]:
        """The templates of functions that no feature has, callees first in each section."""

    @cached_property
    def _imported(self) -> dict[str, list[str]]:
        """The imported names by their modules, both sorted."""
        pairs = sorted(
            {*self._names, *(pair for side in self.sides for pair in side.imported)},
            key=lambda pair: (pair[0], pair[1][0].islower(), pair[1]),
        )
        return {
            module: [name for _, name in alike] for module, alike in groupby(pairs, key=lambda pair: pair[0])
        }

    @property
    @abstractmethod
    def _names(self) -> Iterable[tuple[str, str]]:
        """Pairs of a module and a name that kernels import without any feature (`Rendering.imported`)."""

    @property
    def imports(self) -> Iterator[str]:
        """The statements that import from Gluon, on a line each or with a line for each name."""
        for module, names in self._imported.items():
            if module == "cuda":
                continue
            head = f"from {GLUON_NVIDIA}.{module} import "
            line = f"{head}{', '.join(names)}"
            several = "".join(f"    {name},\n" for name in names)
            yield line if len(line) <= LINE_LENGTH else f"{head}(\n{several})"

    @property
    def cuda_names(self) -> str:
        """The names that a module imports from Triton's functions for CUDA, as text; may be empty."""
        return ", ".join(self._imported.get("cuda", ()))

    @property
    def title(self) -> str:
        """The spec's title as a docstring's first line."""
        return self.plan.request.title.rstrip(".") + "."

    # --- constants

    @property
    def constants(self) -> Iterator[tuple[str, object, str]]:
        """The name, value and meaning of each constant."""
        found = in_order(self._constants, (side.constants for side in self.sides))
        return ((each.name, each.value, each.meaning) for each in found)

    @property
    @abstractmethod
    def _constants(self) -> Iterable[Constant]:
        """The constants that no feature has."""

    @property
    def _order_constants(self) -> Iterator[Constant]:
        """The constants that the order of tiles needs."""
        width, along_m = self.plan.width, self.plan.minor == "m"
        if self.plan.schedule_kind == "single_tile" or self.plan.order in LINES:
            return
        if self.plan.order == "hilbert":
            meaning = "tiles along each side of a square that the curve fills, for L2"
            yield Constant(Place.ORDER, "SQUARE_TILES", width, meaning)
            yield Constant(Place.ORDER, "SQUARE_HALVINGS", width.bit_length() - 1, "log2(SQUARE_TILES)")
            return
        lines = "rows" if along_m else "columns"
        group = "GROUP_TILES_M" if along_m else "GROUP_TILES_N"
        yield Constant(Place.ORDER, group, width, f"{lines} of tiles that are walked together, for L2")

    @property
    def order(self) -> tuple[str, ...]:
        """The parts that place a tile by its number."""
        if self.plan.problem.groups:
            return ("walks/within_batch",)
        curve = ("shared/hilbert",) if self.plan.order == "hilbert" else ()
        return (*curve, "shared/tile_origin")

    def first_row_of(self, tile_row: str) -> str:
        """Return the first row of a tile in a row of tiles: the last row of tiles may end with D."""
        row = f"{tile_row} * PROGRAM_TILE_M"
        return f"gl.minimum({row}, args.last_row)" if self.plan.last_tile_ends_with_d else row

    # --- the kernel and its arguments

    def define_kernel(self) -> str:
        """Return the kernel's head."""
        return fit(
            "def matmul_kernel(", [argument_name(argument) for argument in self.plan.kernel_arguments], "):"
        )

    @property
    @abstractmethod
    def args(self) -> tuple[Field, ...]:
        """The fields of the aggregate that device functions are passed."""

    @property
    @abstractmethod
    def epilogues(self) -> tuple[tuple[int | None, EpilogueStorage], ...]:
        """The memory of each epilogue with the number of its consumer; None for a lone one."""

    @property
    def buffers(self) -> tuple[Field, ...]:
        """The fields of the aggregate of an epilogue that loads: the same names for all."""
        (_, storage), *_ = self.epilogues
        return self._buffers(storage)

    @staticmethod
    def _buffers(storage: EpilogueStorage) -> tuple[Field, ...]:
        values = (
            ("c_smem", storage.c),
            *((f"{vector.operand}_smem", vector) for vector in storage.vectors),
            ("c_ready", storage.c_ready),
            ("vectors_ready", storage.vectors_ready),
            ("d_smem", storage.d),
        )
        return tuple(Field(name, SHARED, value.name) for name, value in values if value)

    @property
    def constructions(self) -> tuple[Construction, ...]:
        """The aggregates that the kernel makes, in order."""
        loading = self.epilogues if self.epilogue.loads.exist else ()
        buffers = (
            Construction(numbered("buffers", number), "Buffers", self._buffers(storage))
            for number, storage in loading
        )
        return (*buffers, Construction("args", "Args", self.args))

    @property
    def counts(self) -> tuple[str, ...]:
        """The numbers of tiles and K steps that device functions use."""
        if self.plan.schedule_kind == "single_tile":
            return ()
        problem, access = self.plan.problem, self.plan.access
        n = ("n",) if access.places_b_by_n or access.places_columns_by_n or problem.d_scale else ()
        if groups := problem.groups:
            if groups.divides_k:
                return ("m", "k", "groups", "tiles_m", "tiles_n")
            walked = ("groups",) if self.plan.persistent else ()
            if problem.scatters_d:
                n = ("n", "rows_of_d", "d_stride")
            if problem.gathers_a:
                n = (*n, "k", "rows_of_a", "a_stride")
            tiles = ("tiles_m", "tiles_n") if groups.counts is None else ("tiles_n",)
            return ("m", *n, *walked, *tiles, "k_steps")
        dimensions = ("m", "n") if self.plan.persistent else self.plan.placing_dimensions
        last = ("last_row",) if self.plan.last_tile_ends_with_d else ()
        m = ("m",) if problem.d_scale else ()
        return (*m, *n, *map("tiles_{}".format, dimensions), *last, "k_steps")

    @staticmethod
    def _tensor(argument: Argument) -> Field:
        """Return the field of a tensor's descriptor or of its address."""
        name = argument_name(argument)
        return Field(name, SCALAR if name.endswith("_ptr") else DESCRIPTOR, name)

    def _counts(self) -> Iterator[Field]:
        described = DescribedExtents(self.plan)
        (m, n), k = described.extents_of_d, described.k
        extents = {
            "m": m,
            "n": n,
            "k": k,
            "groups": described.groups,
            "rows_of_a": "a_desc.shape[0]",
            "a_stride": "a_desc.strides[0]",
            "rows_of_d": "d_desc.shape[0]",
            "d_stride": "d_desc.strides[0]",
            "tiles_m": f"gl.cdiv({m}, PROGRAM_TILE_M)",
            "tiles_n": f"gl.cdiv({n}, PROGRAM_TILE_N)",
            "k_steps": f"gl.cdiv({k}, {self._k_span})",
        }
        if (together := self.plan.tiles_together) > 1:
            extents["tiles_n"] = f"{together} * gl.cdiv({n}, {together} * PROGRAM_TILE_N)"
        return (
            last_row(self.plan, m) if name == "last_row" else Field(name, SCALAR, f"{name}={extents[name]}")
            for name in self.counts
        )

    @property
    def _k_span(self) -> str:
        """The K that the programs of one tile multiply in a step."""
        return self._k_tile

    @property
    def _k_tile(self) -> str:
        """The constant that holds as much of it as a K step."""
        a = next(buffer for buffer in self.plan.shared_buffers if buffer.operand == "a")
        return extent_name(a.shape[1 if self.plan.problem.a.major == "k" else 0])

    # --- the epilogue's operands

    @property
    def first_row(self) -> str:
        """The first row of an epilogue's tile."""
        return "tile.row"

    @property
    def first_column(self) -> str:
        """The first column of an epilogue's tile."""
        return "tile.column"

    @property
    def own_value(self) -> str:
        """The buffers of an epilogue alone."""
        return f"args.{self.epilogue.store.own}"

    @property
    def vector_origin(self) -> str:
        """The first elements of the row and column operands of an epilogue's tile."""
        return self.epilogue.loads.vector_origin(self.first_row, self.first_column)

    def load_of_c(self, number: str) -> str:
        """Return the call that starts to load a sub-tile of C; without a number, the whole tile."""
        place = self.epilogue.loads.place_of_c(self.first_row, self.first_column, "tile.")
        arguments = ["args", self.own_value, *place, *filter(None, (number,))]
        in_loops = self.plan.persistent + (self.epilogue.loads.starts_c == "ring")
        margin = 4 * (self.epilogue.loads.starts_c == "ring")
        return fit("load_c(", arguments, ")", indent=4 + 4 * in_loops, margin=margin)

    # --- allocations

    @property
    def allocations(self) -> Iterator[str]:
        """The statements that allocate memory and initialize barriers."""
        yield from self.tensor_memory
        yield from map(self._buffer, self.plan.shared_buffers)
        yield from self._allocated_barriers
        yield from self._initializations

    @property
    def tensor_memory(self) -> Iterator[str]:
        """The allocations of tensor memory."""
        return iter(())

    def _extents(self, buffer: SharedBuffer) -> tuple[str, ...]:
        """Return the extents of a buffer, each as the module writes it."""
        return tuple(map(extent_name, buffer.extents))

    def _buffer(self, buffer: SharedBuffer) -> str:
        extents = f"[{', '.join(self._extents(buffer))}]"
        dtype = "gl.int64" if buffer.operand == "clc" else f"{buffer.operand}_desc.dtype"
        arguments = (dtype, extents, layout_name(buffer, self.plan.shared_buffers))
        return fit(f"{buffer.name} = gl.allocate_shared_memory(", arguments, ")", indent=4)

    @property
    def _allocated_barriers(self) -> Iterator[str]:
        """The allocation of each ring of barriers, under a comment for all of the same meaning."""
        explained = False
        for meaning, group in groupby(self.plan.barriers, key=lambda barrier: barrier.meaning):
            alike = tuple(group)
            scope, arrivals = alike[0].scope, alike[0].arrivals
            text = f"{' and '.join(barrier.name for barrier in alike)}, {meaning}."
            if scope.pair:
                text += " It is in the pair's first CTA, on which both arrive: Triton doubles its "
                text += f"count, to {arrivals} arrivals in all."
            if scope.groups and not explained:
                text += f" There is one for each group of CTAs that share {scope.shared}, in the group's "
                text += "first: a basis [0] maps a CTA to the barrier of its neighbour."
            if scope.groups:
                text += f" All CTAs of the group arrive: {arrivals} arrivals in all."
                explained = True
            yield from (f"# {line}" for line in textwrap.wrap(text, width=102))
            yield from map(self._barrier, alike)

    @staticmethod
    def _barrier(barrier: Barrier) -> str:
        ring, scope = barrier.ring, barrier.scope
        if scope.groups:
            bases = [list(basis) for basis in scope.bases]
            extents = f"[{extent_name(ring.slots)}, {scope.groups}]"
            arguments = ("gl.int64", extents, f"mbarrier.MBarrierLayout({bases})")
            return fit(f"{barrier.name} = gl.allocate_shared_memory(", arguments, ")", indent=4)
        batch = (f"batch={extent_name(ring.slots)}",) if ring.indexed else ()
        pair = ("two_ctas=True",) if scope.pair else ()
        return f"{barrier.name} = mbarrier.allocate_mbarrier({', '.join(batch + pair)})"

    @property
    def _initializations(self) -> Iterator[str]:
        """The statements that initialize the barriers, ring by ring."""
        for slots in dict.fromkeys(map(_slots_of, self.plan.barriers)):
            of_ring = [barrier for barrier in self.plan.barriers if _slots_of(barrier) == slots]
            if slots and slots.measure:
                index = RING_INDICES[slots.measure]
                yield f"for {index} in gl.static_range({MEASURES[slots.measure]}):"
                for barrier in of_ring:
                    yield f"    mbarrier.init({barrier.name}.index({index}), count={arrivals_name(barrier)})"
            else:
                for barrier in of_ring:
                    yield f"mbarrier.init({barrier.name}, count={arrivals_name(barrier)})"

    # --- partitions

    @property
    def partitions(self) -> str:
        """The functions that start together, each with its arguments."""
        roles = (
            (role.role, "" if role.number is None else f" {role.number}") for role in self.plan.partitions
        )
        entries = [f"({role}_partition, (args,{number}))" for role, number in roles]
        return fit("[", entries, "]", indent=8)

    @property
    def worker_warps(self) -> str:
        """Warps of each worker partition."""
        return str([worker.warps for worker in self.plan.workers])

    @property
    def worker_registers(self) -> str:
        """Registers per thread of each worker partition."""
        return str([worker.registers for worker in self.plan.workers])


def _slots_of(barrier: Barrier) -> Extent | None:
    """Return the slots of a barrier that is found by an index, None of a single one."""
    return barrier.ring.slots if barrier.ring.indexed else None
