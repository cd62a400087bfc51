"""What the templates of Hopper kernels need to know: which parts, which fields, which names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.hardware import WGMMA
from gemmgen.plan.kernel import EpilogueStorage, numbered
from gemmgen.plan.roles import tensor_of
from gemmgen.plan.storage import Extent, SharedBuffer
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.plan.wgmma.resources import FRAGMENT_ROWS, FRAGMENT_SUMS, VECTOR_SUMS
from gemmgen.problem.operations import OPERATIONS
from gemmgen.render.epilogue import EpilogueView, ReadingEpilogueView
from gemmgen.render.kernel import (
    DESCRIPTOR,
    SCALAR,
    SHARED,
    Construction,
    Field,
    KernelLayouts,
    KernelView,
    OperandLoad,
)
from gemmgen.render.overview import HopperOverview, argument_name, extent_name, fit, fit_sum
from gemmgen.render.wrapper import TMA_UNIT_BYTES

GLUON_NVIDIA = "triton.experimental.gluon.language.nvidia"


@dataclass(frozen=True)
class Part:
    """How a module spells what is of a part of a tile's columns."""

    number: int | None
    """None of a plain tile's only one."""
    column_of: str = "tile.column"
    """Where the first of the parts begins that lie side by side with it."""
    first: int = 0
    """The number of that one."""

    @property
    def layout(self) -> str:
        """The constant that holds the layout of its sums."""
        return numbered("ACCUMULATOR_LAYOUT", self.number)

    @property
    def columns(self) -> str:
        """The constant that holds its columns."""
        return "PROGRAM_TILE_N" if self.number is None else f"PART_N_{self.number}"

    @property
    def column(self) -> str:
        """Where it begins."""
        return " + ".join((self.column_of, *(f"PART_N_{i}" for i in range(self.first, self.number or 0))))

    def of(self, field: str) -> str:
        """Return its element of a field of the arguments, of which there is one for each part."""
        return f"args.{field}" if self.number is None else f"args.{field}[{self.number}]"


def parts_of(plan: WgmmaKernel) -> tuple[Part, ...]:
    """Return the parts of a plan's tile."""
    count = len(plan.column_parts)
    if plan.staggered:
        common = (Part(number, "common_column(tile.column)") for number in range(count - 1))
        return (*common, Part(count - 1, "own_column(tile.column)", count - 1))
    return tuple(map(Part, range(count))) if plan.composed else (Part(None),)


@dataclass(frozen=True)
class HopperLayouts(KernelLayouts):
    """The layout constants of one Hopper plan."""

    plan: WgmmaKernel

    @property
    def definitions(self) -> Iterator[str]:
        """Each constant's definition, in the order in which operands are named."""
        plan, problem = self.plan, self.plan.problem
        a_axes, b_axes = (0, 1) if problem.a.major == "k" else (1, 0), (0 if problem.b.major == "k" else 1)
        yield self._shared("A", plan.a_swizzle_bytes, problem.a.dtype, plan.bases(a_axes[0], None))
        buffers = plan.resources.b
        for part in buffers:
            if part is buffers[0] or part.swizzle_bytes != buffers[0].swizzle_bytes:
                name = part.operand.upper()
                yield self._shared(name, part.swizzle_bytes, problem.b.dtype, plan.bases(None, b_axes))
        if plan.reduces_apart:
            yield "# L2 keeps A and B no longer than it must: the second kernel reads the sums out of it."
            policy = 'FractionalEvictionPolicy("evict_first", 1.0)'
            yield f"READ_ONCE = gl.constexpr(CachePolicy(l2={policy}))"
            yield f"SUMS_LAYOUT = gl.constexpr({ReductionView(plan).sums_layout})"
        else:
            yield from self._epilogue
        for part, shape in zip(parts_of(plan), plan.mma_shapes, strict=True):
            yield self._accumulator(part.layout, shape)
        if plan.a_source == "registers":
            k_width = 32 // problem.a.dtype.bits  # elements of a row that a thread holds side by side
            names = [numbered("A_REGISTER_LAYOUT", part.number) for part in parts_of(plan)]
            for name, part in zip(names, parts_of(plan), strict=True):
                arguments = ["operand_index=0", f"parent={part.layout}", f"k_width={k_width}"]
                yield self._constant(name, "gl.DotOperandLayout", arguments, [])
            if plan.composed:
                yield f"A_REGISTER_LAYOUTS = gl.constexpr(({', '.join(names)}))"

    def _accumulator(self, name: str, mma_shape: tuple[int, int, int]) -> str:
        """Return an accumulator's layout; Gluon's instruction shape is one warp's, of 16 rows."""
        _, n, k = mma_shape
        arguments = [
            "version=[3, 0]",
            f"warps_per_cta={list(self.plan.warps_across)}",
            f"instr_shape=[{WGMMA.rows_per_warp}, {n}, {k}]",
        ]
        bases = self.plan.bases(1, 0) if self.plan.swap_ab else self.plan.bases(0, 1)
        return self._constant(name, "gl.NVMMADistributedLayout", arguments, bases)


@dataclass(frozen=True)
class HopperView(KernelView):
    """One Hopper plan as the templates see it; every choice of a part is made here."""

    plan: WgmmaKernel

    @cached_property
    def layouts(self) -> HopperLayouts:
        """How tensors lie in memory and registers."""
        return HopperLayouts(self.plan)

    @cached_property
    def epilogue(self) -> EpilogueView:
        """What lies between accumulator and store."""
        return (ReadingEpilogueView if self.plan.reduces_apart else EpilogueView)(self.plan)

    @cached_property
    def reduction(self) -> ReductionView:
        """The kernel that adds up the sums of parts of K, where there is one."""
        return ReductionView(self.plan)

    @cached_property
    def overview(self) -> HopperOverview:
        """The kernel in words."""
        return HopperOverview(self.plan)

    # --- parts

    @property
    def parts(self) -> tuple[str, ...]:
        """The templates of the module's device code, callees first."""
        plan = self.plan
        parts = ["shared/args"]
        if self.epilogue.loads:
            parts.insert(0, "shared/buffers")
        if plan.problem.copies_misaligned:
            parts.insert(0, "shared/copy_kernel")
        if not plan.synchronous:
            parts.append("wgmma/ring_position_ping_pong" if plan.ping_pong else "shared/ring_position")
        parts += self._walk
        parts += ["wgmma/staggered"] * plan.staggered
        if plan.specialized:
            parts.append("wgmma/fill_stage" if plan.read_early else self._load_stage)
            parts.append(f"wgmma/producer{self._producer}")
            parts += ["wgmma/release"] * bool(plan.multicast)
        elif not plan.synchronous:
            if not plan.persistent:
                parts.append("wgmma/loads_tiled")
            early = "_early" * bool(plan.read_early)
            parts += [self._load_stage] * (not plan.read_early)
            parts.append(f"wgmma/load_next_{plan.schedule_kind}{early}")
        parts += ["wgmma/read_a"] * (plan.a_source == "registers")
        parts += ["wgmma/wait_for"] * self.waits_for_one
        parts += [f"wgmma/issue_mmas/{self._count_of_lanes}", f"wgmma/k_loop/{self._k_loop}"]
        if not plan.reduces_apart:
            parts += self._epilogue_parts
        if plan.shares_tiles:
            parts += self._sum_parts
        if plan.specialized:
            parts.append(f"wgmma/consumer{'_ping_pong' * plan.ping_pong}")
        parts.append(self._kernel)
        if plan.reduces_apart:
            origin = f"wgmma/piece_origin{self._of_cluster}"
            parts += ["wgmma/reduction_args", *self.epilogue.functions, origin, "wgmma/reduction_kernel"]
        return tuple(f"{part}.py.j2" for part in parts)

    @property
    def _walk(self) -> Iterator[str]:
        """The parts that say what a program computes, and where its tiles lie."""
        yield "walks/tile"
        if self.plan.schedule_kind == "single_tile":
            return
        yield self.order
        if self.walks_steps:
            yield "walks/steps"
        yield f"walks/{self._items}"

    @property
    def _items(self) -> str:
        """The walk: which work items a program has, and which tile and K steps are an item."""
        plan = self.plan
        if plan.divides_last_wave:
            return "stream_k"
        if plan.sorts_parts_by_gpc:
            return "by_gpc"
        whose = "static" if plan.persistent else "one"
        return f"{whose}_split" if self.divides_k else whose

    @property
    def walks_steps(self) -> bool:
        """Whether a module has the K steps of a work item as a value."""
        return self.plan.specialized or (not self.plan.persistent and not self.plan.synchronous)

    @property
    def _sum_parts(self) -> Iterator[str]:
        """The parts by which programs leave each other sums."""
        yield f"wgmma/register_order{self._of_cluster}"
        if not self.plan.reduces_apart:
            yield f"wgmma/accumulator_order{self._of_cluster}"
        yield "wgmma/sum_addresses"
        how = "stream_k" if self.plan.divides_last_wave else self.plan.reduction
        yield "wgmma/leave_sums" if self.plan.reduces_apart else f"wgmma/reduction_{how}"

    @property
    def _of_cluster(self) -> str:
        """The ending of parts that know of CTAs which divide an accumulator's columns."""
        return "_cluster" if self._column_ctas > 1 else ""

    @property
    def _column_ctas(self) -> int:
        """CTAs of a cluster that divide an accumulator's columns."""
        return self.plan.cluster_m if self.plan.swap_ab else self.plan.cluster_n

    @property
    def _producer(self) -> str:
        return f"_early{'_multicast' * bool(self.plan.multicast)}" if self.plan.read_early else ""

    @property
    def _load_stage(self) -> str:
        return f"wgmma/loads/stage{'_multicast' * bool(self.plan.multicast)}"

    @property
    def _kernel(self) -> str:
        if self.plan.specialized:
            return "shared/kernel_specialized"
        return f"wgmma/kernel_{'synchronous' if self.plan.synchronous else self.plan.schedule_kind}"

    @property
    def _count_of_lanes(self) -> str:
        return "several" if self.plan.composed else "one"

    @property
    def _k_loop(self) -> str:
        plan = self.plan
        if plan.synchronous:
            return "single_tile" if plan.schedule_kind == "single_tile" else "synchronous"
        if plan.promote_k:
            return "in_order"
        if plan.fragments > 1:
            return "prefetched"
        return "overlapped" if plan.outstanding_mmas else "in_order"

    @property
    def _epilogue_parts(self) -> Iterator[str]:
        plan = self.plan
        yield from self.epilogue.functions
        splits = max(self.epilogue.counts_of_parts) > 1
        if splits:
            yield "wgmma/halves"
        if plan.composed and splits:
            yield "wgmma/split_parts"
        elif plan.subtiles > 2:
            yield "wgmma/split_columns"
        yield from self.epilogue.store_parts

    @property
    def hopper_imports(self) -> str:
        """The statements that import Gluon's functions for Hopper."""
        names = ("mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait")
        apart = self.plan.reduces_apart
        policies = (
            f"from {GLUON_NVIDIA}.ampere import CachePolicy, FractionalEvictionPolicy\n" if apart else ""
        )
        if apart and self.plan.a_source == "shared":  # no thread uses shared memory
            return f"{policies}from {GLUON_NVIDIA}.hopper import {', '.join(names)}"
        lines = "".join(f"    {name},\n" for name in ("fence_async_shared", *names))
        return f"{policies}from {GLUON_NVIDIA}.hopper import (\n{lines})"

    @property
    def cuda_names(self) -> str:
        """What the module takes from Triton's functions for CUDA."""
        launch = ["gdc_launch_dependents"] * self.triggers + ["gdc_wait"]
        apart = ["gdc_launch_dependents", "gdc_wait"] * self.plan.reduces_apart
        names = launch if self.plan.dependent else apart
        names += ["libdevice"] * self.epilogue.divides
        return ", ".join(names)

    # --- constants

    @property
    def constants(self) -> Iterator[tuple[str, object, str]]:
        """The name, value and meaning of each constant."""
        plan = self.plan
        yield "PROGRAM_TILE_M", plan.program_tile_m, ""
        yield "PROGRAM_TILE_N", plan.program_tile_n, ""
        if plan.composed:
            meanings = ("columns of a tile's parts: each has tiles of B, MMAs and sums of its own", "", "")
            for part, columns, meaning in zip(self.columns, plan.column_parts, meanings, strict=False):
                yield part.columns, columns * plan.cluster_n, meaning
            own = "of consumer 0; the other one has all but the last" if plan.staggered else ""
            yield "PARTS", len(self.columns), own
            if plan.staggered:
                meaning = "columns that one consumer has more than a tile, and the other one less"
                yield "STAGGER_N", plan.stagger_n, meaning
        yield "PROGRAM_TILE_K", plan.cta_tile_k, ""
        if plan.consumers > 1:
            yield "CONSUMERS", plan.consumers, ""
        if plan.row_shares > 1:
            each = f"{plan.cta_consumer_tile_m} rows in each CTA" if plan.cluster_m > 1 else ""
            yield "CONSUMER_TILE_M", plan.consumer_tile_m, each
        if not plan.synchronous:
            yield "STAGES", plan.stages, "tiles of A and of B in flight"
        if plan.divides_last_wave:
            yield "PROGRAMS", plan.most_programs, "at most: the workspace has places for the sums of so many"
            yield "LEAST_STEPS", plan.least_steps, "of K that a program's share of divided tiles has"
            yield "LEAST_SAVED", plan.least_saved_steps, "of them, by programs that share what chunks leave"
            yield from self._sum_constants
        if self.divides_k:
            each = "that programs take one by one" if plan.specialized else "each a program's"
            yield "SPLITS", plan.splits, f"parts of K, {each}"
            yield from self._sum_constants
            if (order := plan.gpu.launch_order) and plan.sorts_parts_by_gpc:
                yield "CLUSTERS_AHEAD", order.ahead, "that start first, and keep their numbers"
                yield (
                    "GPCS",
                    order.gpcs,
                    "that start one cluster each by turns, as measured on an H200 and an H100",
                )
                full = order.gpcs * order.full_turns
                yield (
                    "CLUSTERS_OF_ALL_GPCS",
                    full,
                    f"that start so; then GPC 0 is full, and the other {order.gpcs - 1} go on",
                )
            if plan.reduces_apart:
                yield from self.reduction.constants
            if plan.reduction == "ordered" and plan.splits_at_once < plan.splits:
                yield (
                    "SPLITS_AT_ONCE",
                    plan.splits_at_once,
                    "of which the sums are read together",
                )
        vectors = (OPERATIONS[vector].along for vector in plan.problem.vectors)
        if plan.composed and "n" in vectors:
            meaning = "columns that are loaded of a column operand: a power of two"
            yield "VECTOR_N", plan.vector_columns * plan.cluster_n, meaning
        if not plan.reduces_apart:
            yield from self.epilogue.subtile_constants
        yield from self.epilogue.constants
        yield from self.order_constants

    @property
    def _sum_constants(self) -> Iterator[tuple[str, object, str]]:
        """What is known of the sums that programs leave each other."""
        own = "of each consumer's rows of a tile" if self.plan.row_shares > 1 else "of a tile"
        yield "SUMS", self.plan.consumer_tile_m * self.plan.program_tile_n, own
        if self._column_ctas > 1:
            yield "COLUMN_CTAS", self._column_ctas, "that divide the columns of an accumulator"

    # --- arguments

    @property
    def args(self) -> tuple[Field, ...]:
        """The fields of the aggregate that device functions are passed."""
        plan, resources, problem = self.plan, self.plan.resources, self.plan.problem
        c, scalar = ("c",) if problem.c else (), ("tensor_scale",) if plan.specialized else ()
        barriers = (resources.load_ready, *resources.load_empty, resources.mma_turn)
        b = [argument_name(plan.argument(buffer.operand)) for buffer in resources.b]
        each = "  # one for each part of a tile's columns"
        return (
            *self._descriptors("a"),
            _several("b_desc", b, DESCRIPTOR, each),
            *self._descriptors(*c, *problem.vectors, *scalar, "d", *self._workspace),
            self._ring("a_smem", [buffer.name for buffer in resources.a]),
            _several("b_smem", [buffer.name for buffer in resources.b], SHARED, each),
            *(Field(barrier.name, SHARED, barrier.name) for barrier in barriers if barrier),
            *((self._own,) if plan.specialized and resources.epilogues else ()),
            *self._counts(),
        )

    @property
    def _workspace(self) -> tuple[str, ...]:
        """The arguments in which programs leave each other sums."""
        return tuple(argument.name for argument in self.plan.arguments if argument.kind == "workspace")

    @property
    def _k_span(self) -> str:
        """What of K the programs of one tile multiply in a step: a part of each split."""
        return f"SPLITS * {self._k_tile}" if self.divides_k else self._k_tile

    @staticmethod
    def _ring(name: str, names: list[str], kind: str = SHARED) -> Field:
        """Return the field of what a consumer may have of its own."""
        return _several(name, names, kind, "  # one for each consumer")

    @property
    def _own(self) -> Field:
        """What a consumer's epilogue has of its own: its buffers, or the one that it stores D through."""
        consumers = self.plan.resources.consumers
        if self.epilogue.loads:
            names = [numbered("buffers", consumer.number) for consumer in consumers]
            return self._ring("buffers", names, "Buffers")
        return self._ring("d_smem", [own.d.name for own in self.plan.resources.epilogues])

    @property
    def epilogues(self) -> tuple[tuple[int | None, EpilogueStorage], ...]:
        """That of each consumer."""
        consumers = self.plan.resources.consumers
        return tuple((each.number, each.epilogue) for each in consumers if each.epilogue)

    # --- loads

    @property
    def divides_k(self) -> bool:
        """Whether several programs share a tile's K."""
        return self.plan.splits > 1

    @property
    def early_load(self) -> OperandLoad:
        """How the operand is loaded whose first loads do not wait for the kernel ahead."""
        return self.loads[self.plan.read_early == "b"]

    @property
    def late_load(self) -> OperandLoad:
        """How the other one is."""
        return self.loads[self.plan.read_early != "b"]

    @staticmethod
    def call_fill(load: OperandLoad) -> str:
        """Return the call that loads a K step's tiles of an operand."""
        return f"fill_{load.operand}(args, tile, k_step, ring)"

    def fill(self, load: OperandLoad) -> str:
        """Return the statements that load a K step's tiles of an operand, in a function of its own."""
        if load.shares == 1:
            return self.load_statements(load, margin=4)
        return (
            "for i in gl.static_range(CONSUMERS):\n"
            "        a_tile = args.a_smem[i].index(ring.stage)\n"
            f"        {self.load_share(margin=8)}"
        )

    @property
    def await_groups(self) -> str:
        """The statements that await the consumers of all CTAs that share a tile."""
        waits = (
            f"mbarrier.wait(args.{operand}_multicast_empty.index(ring.stage), ring.phase)"
            for operand in self.plan.multicast
        )
        return f"\n{' ' * 16}".join(waits)

    @property
    def loads_epilogue_first(self) -> bool:
        """Whether a tile's C and vectors are loaded before its K loop: of splits, the last one loads them."""
        return self.epilogue.loads and not self.plan.shares_tiles

    def of_consumer(self, number: str) -> str:
        """Return the number of a consumer's part of what has this number: all of it, if it is a lone one."""
        return f"{number} * CONSUMERS + consumer" if self.plan.consumers > 1 else number

    @property
    def count_piece(self) -> str:
        """The statement that counts a piece of a tile."""
        counter = f"args.counters_ptr + {self.of_consumer('divided')}"
        return fit("arrived = gl.atomic_add(", (counter, "1", 'sem="acq_rel"', 'scope="gpu"'), ")", indent=4)

    @property
    def call_is_last(self) -> str:
        """The call that leaves the sums of a split, which an atomic reduction does not tell apart."""
        splits = (self.item_split,) if self.plan.reduction == "ordered" else ()
        return f"is_last({', '.join(('args', self.of_consumer(self.item_tile), *splits, 'accumulator'))})"

    @property
    def place(self) -> str:
        """The part that finds the tile of a program that has one."""
        if self.plan.schedule_kind == "single_tile":
            return "walks/place_only.py.j2"
        which = "part" if self.plan.reduces_apart else "split" if self.divides_k else "whole"
        return f"walks/place_{which}.py.j2"

    @property
    def tiles(self) -> str:
        """What makes the `Tiles` of a role that has several."""
        if self.plan.divides_last_wave:
            return "Tiles(divide(args))"
        return "Tiles(args, args.tiles_m * args.tiles_n)" if self.plan.sorts_parts_by_gpc else "Tiles(args)"

    @property
    def item(self) -> str:
        """The name of what a role has of a work item: its number, or the piece of a tile that it is."""
        return "piece" if self.plan.divides_last_wave else "item"

    @property
    def item_steps(self) -> str:
        """The K steps of a work item: where each has all of its tile's, they depend on no number."""
        return f"tiles.steps({self.item})" if self.plan.shares_tiles else "tiles.steps()"

    @property
    def first_steps(self) -> str:
        """Those of a program's first one."""
        return "tiles.steps(tiles.first())" if self.divides_k else "tiles.steps()"

    @property
    def item_tile(self) -> str:
        """The number of a split's tile."""
        return "tiles.tile(item)" if self.plan.persistent else "tiles.tile"

    @property
    def item_split(self) -> str:
        """The number of a split in its tile."""
        return "tiles.split(item)" if self.plan.persistent else "tiles.split"

    @property
    def places_early(self) -> bool:
        """Whether a tile is found before its K loop: loads in the loop, or of the epilogue, need it."""
        plan = self.plan
        if not plan.specialized or plan.ping_pong or plan.divides_last_wave:
            return True
        return self.loads_epilogue_first

    @property
    def finish(self) -> str:
        """The part that makes D of the sums of a work item, or leaves them for who does."""
        if self.plan.divides_last_wave:
            return "wgmma/finish/last_piece.py.j2"
        how = "leave" if self.plan.reduces_apart else "last_split" if self.divides_k else "store"
        return f"wgmma/finish/{how}.py.j2"

    @property
    def prologue(self) -> str:
        """The part that starts a tiled program's first loads."""
        kind = "_early" if self.plan.read_early else "_waiting" if self.plan.dependent else ""
        return f"wgmma/prologue{kind}.py.j2"

    @property
    def triggers(self) -> bool:
        """Whether a program says when the kernel behind may start; else that may when all programs end."""
        return self.plan.dependent and self.plan.trigger == "loads"

    @property
    def reads_scalar_first(self) -> bool:
        """Whether a factor in global memory is read before anything else."""
        return self.plan.problem.scalar and not self.plan.dependent and not self.divides_k

    @property
    def partial_extents(self) -> tuple[str, str]:
        """The constants that hold the extents of an accumulator."""
        rows, columns = self._rows, "PROGRAM_TILE_N"
        return (columns, rows) if self.plan.swap_ab else (rows, columns)

    @property
    def expect_loads(self) -> str:
        """The statement that awaits the bytes of a stage."""
        a = "args.a_desc.nbytes_per_cta"
        b = (f"{part.of('b_desc')}.nbytes_per_cta" for part in self.columns)
        bytes_of = [f"CONSUMERS * {a}" if self.plan.row_shares > 1 else a, *b]
        return fit_sum("mbarrier.expect(", "ready", bytes_of, indent=self._load_indent)

    @property
    def _load_indent(self) -> int:
        """Columns before what loads a stage: in a function, or in a branch of one."""
        return 4 if self.plan.specialized or not self.plan.read_early else 8

    @property
    def slot(self) -> str:
        """What says which stage is loaded: a producer has a place in the ring."""
        return "ring" if self.plan.specialized else "stage"

    @property
    def stage(self) -> str:
        """The stage that is loaded."""
        return "ring.stage" if self.plan.specialized else "stage"

    @property
    def loads(self) -> tuple[OperandLoad, ...]:
        """A, then B, as one stage loads them."""
        plan, problem = self.plan, self.plan.problem
        k = "0" if plan.schedule_kind == "single_tile" else "k"

        def load(operand: str, major: str, place: str, shares: int) -> OperandLoad:
            coordinates = f"[{place}, {k}]" if major == "k" else f"[{k}, {place}]"
            return OperandLoad(
                operand, coordinates, operand in plan.multicast, shares, "READ_ONCE" * plan.reduces_apart
            )

        return (
            load("a", problem.a.major, self.row_of("i"), plan.row_shares),
            load("b", problem.b.major, "tile.column", 1),
        )

    def load_statements(self, load: OperandLoad, margin: int = 0) -> str:
        """Return the statements that load an operand's tile; lines but the first are indented by `margin`."""
        parts = self.columns if load.operand == "b" else (Part(None),)
        statements: list[str] = []
        for part in parts:
            coordinates = load.coordinates.replace("tile.column", part.column)
            tile = f"{part.of(f'{load.operand}_smem')}.index({self.stage})"
            arguments = [part.of(f"{load.operand}_desc"), coordinates, "ready", tile, *load.options]
            statements.append(fit("tma.async_load(", arguments, ")", indent=self._load_indent, margin=margin))
        return f"\n{' ' * margin}".join(statements)

    def load_share(self, margin: int) -> str:
        """Return the statement that loads a consumer's tile of A; lines but the first are indented."""
        load = self.loads[0]
        arguments = ["args.a_desc", load.coordinates, "ready", "a_tile", *load.options]
        return fit("tma.async_load(", arguments, ")", indent=self._load_indent + 4, margin=margin)

    @property
    def a_coordinates(self) -> str:
        """Where a K step's tile of A begins."""
        return self.loads[0].coordinates

    @property
    def b_coordinates(self) -> str:
        """Where a K step's tile of B begins."""
        return self.loads[1].coordinates

    @property
    def multicast_tiles(self) -> str:
        """What CTAs of a cluster share, behind an article."""
        return ", and several a ".join(f"tile of {operand.upper()}" for operand in self.plan.multicast)

    @property
    def release_barriers(self) -> tuple[str, ...]:
        """The barriers on which a stage is released."""
        return tuple(barrier.name for barrier in self.plan.resources.load_empty)

    def release(self, stage: str) -> str:
        """Return the statement that gives a stage back to the producers that fill it."""
        if self.plan.multicast:
            return f"release(args, {stage})"
        return f"mbarrier.arrive(args.load_empty.index({stage}))"

    # --- the K loop

    @property
    def multiplied(self) -> str:
        """What a K loop multiplies, in words."""
        return "a piece" if self.plan.divides_last_wave else "one tile"

    @property
    def lanes(self) -> str:
        """The template of what a K loop does with the sums of each part of a tile's columns."""
        return f"wgmma/lanes/{'staggered' if self.plan.staggered else self._count_of_lanes}.py.j2"

    @property
    def accumulate(self) -> str:
        """The template of how the products of a K step are added to the sums of a tile."""
        return f"wgmma/accumulate/{'promoted' if self.plan.promote_k else 'direct'}.py.j2"

    @property
    def feed(self) -> str:
        """The template of what a K loop does with a stage that it has read."""
        return f"wgmma/feed/{'producer' if self.plan.specialized else 'refill'}.py.j2"

    @property
    def mma_tiles(self) -> str:
        """The instruction's operands: A as [M, K] and B as [K, N], or B as [N, K] and A as [K, M]."""
        a, b = self.plan.problem.a.major, self.plan.problem.b.major
        if self.plan.swap_ab:
            return f"{_turned('b_tile', b == 'mn')}, {_turned('a_tile', a == 'k')}"
        in_registers = "a_part" if self.plan.composed else "a_tile"
        left = in_registers if self.plan.a_source == "registers" else _turned("a_tile", a == "mn")
        return f"{left}, {_turned('b_tile', b == 'k')}"

    @property
    def a_rows(self) -> str:
        """A K step's tile of A in shared memory, as [M, K]."""
        return _turned("a_smem", self.plan.problem.a.major == "mn")

    @property
    def a_register_layout(self) -> str:
        """The constant that holds the layout in which A is read into registers."""
        return numbered("A_REGISTER_LAYOUT", self.columns[0].number)

    @property
    def columns(self) -> tuple[Part, ...]:
        """The parts of a tile's columns."""
        return parts_of(self.plan)

    @property
    def sums(self) -> str:
        """The sums of a tile, or of all its parts."""
        return self.epilogue.sums

    @property

    @property
    def tiles_read(self) -> str:
        """What the MMAs of a K step read in shared memory, in words."""
        return "B's tiles" if self.plan.a_source == "registers" else "their tiles"

    @property
    def mma_sums(self) -> str:
        """What the MMAs of a K step add to, or the sums of their own that are promoted."""
        plural = "s" * self.plan.composed
        return f"{'step' if self.plan.promote_k else 'accumulator'}{plural}"

    @property
    def mma_options(self) -> str:
        """The last arguments of an MMA: one that is promoted begins with zero."""
        return "use_acc=False, " * bool(self.plan.promote_k) + "is_async=True"

    @property
    def from_zero(self) -> str:
        """What is said of such an MMA."""
        return ", a sum from zero" * bool(self.plan.promote_k)

    @property
    def reads_a(self) -> bool:
        """Whether the function that issues MMAs reads their A into registers, and no step before it has."""
        return self.plan.a_source == "registers" and self._k_loop != "prefetched"

    @property
    def a_of_step(self) -> str:
        """What that function has of A: a tile that it reads, or one that the MMAs do."""
        return "a_smem" if self.reads_a else "a_tile"

    @property
    def parts_parameter(self) -> str:
        """How many parts a consumer has, where consumers differ in that."""
        return ", parts: gl.constexpr" if self.plan.staggered else ""

    @property
    def parts_argument(self) -> str:
        """The same in a call: the second consumer has all parts but the last one."""
        return ", parts=PARTS - consumer" if self.plan.staggered else ""

    @property
    def waits_for_one(self) -> bool:
        """Whether a consumer has a single part where the other one has two."""
        return self.plan.staggered and len(self.columns) == 2

    def count_of(self, parts: str) -> str:
        """Return how many parts the tuple of a consumer has that is called so."""
        return f"len({parts})" if self.plan.staggered else "PARTS"

    @property
    def zeros(self) -> str:
        """An accumulator of nothing, of a tile that is not composed."""
        return self.zeros_of(Part(None))

    def zeros_of(self, part: Part) -> str:
        """Return an accumulator of nothing for a part of a tile."""
        dtype, (rows, columns) = self.plan.problem.accumulator.gluon, self.partial_extents
        columns = columns if part.number is None else part.columns
        return f"gl.zeros(({rows}, {columns}), {dtype}, {part.layout})"

    @property
    def add_splits(self) -> str:
        """The loop that adds up the sums of all splits, as many at once as registers hold."""
        of_split = "sums += gl.load(addresses + {} * SUMS{})"
        if self.plan.splits_at_once == self.plan.splits:
            return f"for split in gl.static_range(SPLITS):\n        {of_split.format('split', '')}"
        whole = self.plan.splits % self.plan.splits_at_once == 0
        rest = "" if whole else ", mask=first + i < SPLITS, other=0"  # of the last group
        return (
            "for first in range(0, SPLITS, SPLITS_AT_ONCE):\n"
            "        for i in gl.static_range(SPLITS_AT_ONCE):\n"
            f"            {of_split.format('(first + i)', rest)}"
        )

    @property
    def accumulated(self) -> str:
        """The accumulator as a tile of D."""
        return _turned("accumulator", self.plan.swap_ab)

    @property
    def _rows(self) -> str:
        """The constant that holds the rows of a consumer's tile."""
        resources = self.plan.resources
        return extent_name(_rows_of(resources.a[0], self.plan.problem.a.major == "k"))

    # --- the epilogue

    @property
    def first_row(self) -> str:
        """Where a consumer's rows begin."""
        return self.row_of("consumer")

    def row_of(self, consumer: str) -> str:
        """Return where the rows begin of a consumer that has this number."""
        if self.plan.staggered:
            return f"consumer_row(tile, {consumer})"
        return f"tile.row + {consumer} * CONSUMER_TILE_M" if self.plan.row_shares > 1 else "tile.row"

    @property
    def first_column(self) -> str:
        """Where the columns of its tile begin."""
        return "tile.column"

    @property
    def own_value(self) -> str:
        """What a consumer has of its own, where its tile is stored."""
        own = self.epilogue.own
        if not self.plan.specialized:
            return own
        return f"args.{own}[consumer]" if self.plan.consumers > 1 else f"args.{own}"

    def call_store(self) -> str:
        """Return the call that stores a tile, as one that shares its tiles does under a condition."""
        sums = self.sums if self.plan.composed else self.accumulated
        items = ("args", self.own_value, self.first_row, self.first_column, sums)
        loops = self.plan.specialized or self.plan.persistent
        indent, margin = 8 if loops else 4, 4
        if self.plan.shares_tiles:
            indent, margin = indent + 4, 8
        return fit("store(", (*items, *self.epilogue.passed_on), ")", indent=indent, margin=margin)

    # --- partitions

    @property
    def consumer_parameter(self) -> str:
        """The number of a consumer, where there are several."""
        return ", consumer: gl.constexpr" if self.plan.consumers > 1 else ""

    @property
    def consumer_argument(self) -> str:
        """The number of a consumer in a call, where there are several."""
        return ", consumer" if self.plan.consumers > 1 else ""

    @property
    def share(self) -> str:
        """What selects a consumer's tiles of A."""
        return "[consumer]" if self.plan.row_shares > 1 else ""

    @property
    def consumer_summary(self) -> str:
        """The consumer's role in a sentence."""
        if self.plan.reduces_apart:
            who = "The consumer" if self.plan.consumers == 1 else "One of the consumers"
            return f"{who}: multiply parts of tiles, and leave their sums."
        if self.plan.shares_tiles:
            if self.plan.consumers == 1:
                return "The consumer: multiply parts of tiles, and store the tiles that it completes."
            return "One of the consumers: multiply parts of tiles, store its rows of those that it completes."
        if self.plan.consumers == 1:
            return "The consumer: multiply and store every tile."
        return "One of the consumer warpgroups: multiply and store its rows of every tile."


@dataclass(frozen=True)
class ReductionView:
    """The kernel that adds up the sums of parts of K as its templates see it."""

    plan: WgmmaKernel

    @property
    def constants(self) -> Iterator[tuple[str, object, str]]:
        """The name, value and meaning of its constants."""
        plan = self.plan
        m, n = FRAGMENT_ROWS, plan.piece_sums // FRAGMENT_ROWS
        sums = plan.program_tile_m * plan.program_tile_n
        yield "TILE_SUMS", sums, "of a part of a tile"
        yield "FRAGMENT_ROWS", FRAGMENT_ROWS, "of an accumulator, which a warp has in groups of 8 columns"
        yield "FRAGMENT_SUMS", FRAGMENT_SUMS, "of such a group"
        yield "PIECE_SUMS", plan.piece_sums, "of a tile, which a program of the second kernel adds up"
        yield "PIECES", sums // plan.piece_sums, "of a tile"
        yield "PIECE_M", n if plan.swap_ab else m, ""
        yield "PIECE_N", m if plan.swap_ab else n, ""
        if plan.splits_side_by_side > 1:
            yield "SPLITS_SIDE_BY_SIDE", plan.splits_side_by_side, "whose sums are read by different threads"

    @property
    def rows(self) -> str:
        """The constant that holds the rows of an accumulator, over all CTAs."""
        return self._extents[0]

    @property
    def columns(self) -> str:
        """Its columns in one CTA."""
        return self._extents[1]

    @property
    def _extents(self) -> tuple[str, str]:
        view = HopperView(self.plan)
        rows, columns = view.partial_extents
        ctas = self.plan.cluster_m if self.plan.swap_ab else self.plan.cluster_n
        return rows, f"({columns} // COLUMN_CTAS)" if ctas > 1 else columns

    @property
    def row_of_fragments(self) -> str:
        """The sums of 16 rows of an accumulator in one CTA."""
        return f"({self.columns} * FRAGMENT_ROWS)"

    def turned(self, row: str, column: str) -> str:
        """Return an accumulator's row and column as those of D."""
        return f"{column}, {row}" if self.plan.swap_ab else f"{row}, {column}"

    @property
    def piece_order(self) -> str:
        """The order of a fragment's dimensions in a piece of D: an accumulator's rows, then its columns."""
        rows, columns = "3, 1", "0, 2, 4"
        return f"({self.turned(rows, columns)})"

    @property
    def _read(self) -> tuple[str, ...]:
        """The tensors that the epilogue reads."""
        kinds = ("matrix", "vector", "scalar")
        own = (each.name for each in self.plan.arguments if each.kind in kinds)
        return tuple(name for name in own if tensor_of(name) not in ("a", "b", "d"))

    @property
    def _strides(self) -> tuple[str, ...]:
        return ("c_stride",) if self.plan.problem.c else ()

    @property
    def numbers(self) -> str:
        """The parameters that no compilation depends on."""
        return str(("m", "n", *self._strides, "d_stride")).replace("'", '"')

    def define_kernel(self) -> str:
        """Return the kernel's head."""
        read = [f"{name}_ptr" for name in self._read]
        strides = (f"{name}: gl.int64" for name in (*self._strides, "d_stride"))
        names = ["partials_ptr", *read, "d_ptr", *strides, "m", "n"]
        return fit("def reduction_kernel(", names, "):")

    @property
    def meaning(self) -> str:
        """What its arguments are, in words."""
        strides = "D's rows are `d_stride` elements apart"
        if self._strides:
            strides = "C's rows are `c_stride` elements apart, D's `d_stride`"
        return f"{strides}."

    @property
    def args(self) -> tuple[Field, ...]:
        """The fields of the aggregate that its device functions are passed."""
        read = (f"{name}_ptr" for name in self._read if name != "tensor_scale")
        extents = ("m", "n") if self.plan.problem.c or self.plan.problem.vectors else ()
        tiles = {"tiles_m": "gl.cdiv(m, PROGRAM_TILE_M)", "tiles_n": "gl.cdiv(n, PROGRAM_TILE_N)"}
        placing = [f"tiles_{dimension}" for dimension in self.plan.placing_dimensions]
        return (
            *(Field(name, SCALAR, name) for name in (*read, *self._strides, *extents)),
            *(Field(name, SCALAR, f"{name}={tiles[name]}") for name in placing),
        )

    @property
    def construction(self) -> Construction:
        """The statement that makes it."""
        return Construction("args", "ReductionArgs", self.args)

    @property
    def sums_layout(self) -> str:
        """The layout of the sums that a program reads at once: of one split, or of splits side by side."""
        plan = self.plan
        lanes, splits = plan.architecture.threads_per_warp, plan.splits_side_by_side
        if splits == 1:
            return f"gl.BlockedLayout([{VECTOR_SUMS}], [{lanes}], [{plan.reduction_warps}], [0])"
        warps = [splits, plan.reduction_warps // splits]
        return f"gl.BlockedLayout([1, {VECTOR_SUMS}], [1, {lanes}], {warps}, [1, 0])"

    @property
    def reading(self) -> str:
        """Whether a thread reads the sums of all splits, or others read some of them at the same time."""
        return "in_turn" if self.plan.splits_side_by_side == 1 else "side_by_side"

    @property
    def storing(self) -> str:
        """How a thread stores: neighbours of a row are together, unless the operands are exchanged."""
        return "single" if self.plan.swap_ab else "pairs"

    @property
    def all_sums(self) -> str:
        """The sums of all splits, in the order of registers."""
        return "sums" if self.plan.splits_side_by_side == 1 else "gl.sum(sums, axis=0)"

    @property
    def add_splits(self) -> str:
        """The statement that adds the sums of splits side by side; of the last ones some may be missing."""
        whole = self.plan.splits % self.plan.splits_side_by_side == 0
        mask = "" if whole else ", mask=(behind + split < SPLITS)[:, None], other=0"
        return f"sums += gl.load(addresses + behind * TILE_SUMS{mask})"

    @property
    def d_unit(self) -> int:
        """Elements of D in 16 bytes."""
        return TMA_UNIT_BYTES // self.plan.problem.d.bytes

    @property
    def c_unit(self) -> int:
        """Elements of C in 16 bytes."""
        c = self.plan.problem.c
        return TMA_UNIT_BYTES // c.bytes if c else 0


def _rows_of(buffer: SharedBuffer, k_major: bool) -> Extent:
    """Return the rows of A in a buffer of it."""
    return buffer.shape[0 if k_major else 1]


def _turned(name: str, is_turned: bool) -> str:
    """Return a tensor, or its transposed view, in which no element moves."""
    return f"{name}.permute((1, 0))" if is_turned else name


def _several(name: str, values: list[str], kind: str, comment: str) -> Field:
    """Return the field of a value, or of a tuple where there are several."""
    if len(values) == 1:
        return Field(name, kind, values[0])
    return Field(name, "gl.tuple", f"({', '.join(values)})", comment)
