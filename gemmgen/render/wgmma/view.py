"""One Hopper plan as its templates see it: constants, arguments, work items, partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.epilogue_storage import EpilogueStorage
from gemmgen.plan.storage import numbered
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem.operations import BLOCK_SCALES, OPERATIONS
from gemmgen.render.epilogue import EpilogueView, ReadingEpilogueView
from gemmgen.render.epilogue_of_groups import GroupEpilogueView
from gemmgen.render.kernel import (
    DESCRIPTOR,
    SHARED,
    Field,
    KernelView,
)
from gemmgen.render.spelling import argument_name, fit
from gemmgen.render.wgmma.device_parts import DeviceParts
from gemmgen.render.wgmma.k_loop import KLoop
from gemmgen.render.wgmma.lanes import turned
from gemmgen.render.wgmma.layouts import HopperLayouts
from gemmgen.render.wgmma.output_scales import OutputScales
from gemmgen.render.wgmma.overview import HopperOverview
from gemmgen.render.wgmma.reduction import ReductionView
from gemmgen.render.wgmma.scale_reads import RUN_STEPS
from gemmgen.render.wgmma.stage import Stage, row_of


@dataclass(frozen=True)
class HopperView(KernelView):
    """One Hopper plan as the templates see it; every choice of a part is made here."""

    plan: WgmmaKernel

    @property
    def lanes_of_groups(self) -> str:
        """The layout in which each warp of each CTA holds the rows of all groups."""
        bases = self.plan.bases(None, None, rank=1)
        last = [f"cga_layout={bases}"] if bases else []
        arguments = ["[GROUP_SLOTS // 32]", "[32]", "[gl.num_warps()]", "[0]", *last]
        return fit("gl.BlockedLayout(", arguments, ")", indent=4, margin=22)

    @cached_property
    def layouts(self) -> HopperLayouts:
        """How tensors lie in memory and registers."""
        return HopperLayouts(self.plan)

    @cached_property
    def epilogue(self) -> EpilogueView:
        """The epilogue, between accumulator and store."""
        if self.plan.reduces_apart:
            return ReadingEpilogueView(self.plan)
        return (GroupEpilogueView if self.plan.problem.groups else EpilogueView)(self.plan)

    @cached_property
    def reduction(self) -> ReductionView:
        """The kernel that adds up the sums of parts of K, where there is one."""
        return ReductionView(self.plan)

    @cached_property
    def overview(self) -> HopperOverview:
        """The kernel in words."""
        return HopperOverview(self.plan)

    @cached_property
    def k_loop(self) -> KLoop:
        """The loop that multiplies."""
        return KLoop(self.plan)

    @cached_property
    def stage(self) -> Stage:
        """The loads of a K step."""
        return Stage(self.plan)

    @property
    def output_scales(self) -> OutputScales:
        """The scales of D, if the kernel computes some."""
        return OutputScales(self.plan)

    @property
    def parts(self) -> tuple[str, ...]:
        """The templates of the module's device code, callees first."""
        return DeviceParts(self.plan, self.walk, self.epilogue, self.order, self.k_loop).names

    @property
    def gluon_names(self) -> dict[str, list[str]]:
        """The names that a module imports from Gluon's language for Hopper, by the language's module."""
        apart = self.plan.reduces_apart
        # Threads write to shared memory what TMA then reads, or read what TMA then overwrites.
        orders = self.plan.a_source == "registers" or self.plan.problem.scales_sums
        orders |= not (apart or self.plan.problem.scatters_d)
        policies = {"ampere": ["CachePolicy", "FractionalEvictionPolicy"]} if apart else {}
        fence = ["fence_async_shared"] * orders
        policies |= {"ampere": ["async_copy"]} if self.plan.problem.gathers_a else {}
        return {**policies, "hopper": [*fence, "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait"]}

    @property
    def cuda_names(self) -> str:
        """The names that a module imports from Triton's functions for CUDA, as text; may be empty."""
        launch = ["gdc_launch_dependents"] * self.triggers + ["gdc_wait"]
        apart = ["gdc_launch_dependents", "gdc_wait"] * self.plan.reduces_apart
        names = launch if self.plan.dependent else apart
        names += ["libdevice"] * self.epilogue.divides
        return ", ".join(names)

    @property
    def constants(self) -> Iterator[tuple[str, object, str]]:
        """The name, value and meaning of each constant."""
        plan = self.plan
        yield "PROGRAM_TILE_M", plan.program_tile_m, ""
        yield "PROGRAM_TILE_N", plan.program_tile_n, ""
        if plan.problem.gated:
            first, second = plan.problem.epilogue.accumulators
            meaning = f"columns of B and of sums: PROGRAM_TILE_N of {first}, then as many of {second}"
            if plan.problem.interleaved:
                meaning = f"columns of B and of sums: of {first} and {second} in turn, PROGRAM_TILE_N of each"
            yield "PRODUCT_TILE_N", plan.loaded_n, meaning
        if plan.composed:
            meanings = ("columns of a tile's parts: each has tiles of B, MMAs and sums of its own", "", "")
            for part, columns, meaning in zip(self.k_loop.columns, plan.column_parts, meanings, strict=False):
                yield part.columns, columns * plan.cluster_n, meaning
            own = "of consumer 0; the other one has all but the last" if plan.staggered else ""
            yield "PARTS", len(self.k_loop.columns), own
            if plan.staggered:
                meaning = "columns that one consumer has more than a tile, and the other one less"
                yield "STAGGER_N", plan.stagger_n, meaning
        block = ", the block of a scale" * (plan.problem.scales_sums and plan.step_blocks == 1)
        yield "PROGRAM_TILE_K", plan.cta_tile_k, f"of a K step{block}" if block else ""
        if plan.step_blocks > 1:
            yield "STEP_BLOCKS", plan.step_blocks, "blocks of a K step, each with scales of its own"
        if plan.step_blocks > 1 or (plan.has_tile_scales and self.k_loop.scales.by_block):
            yield "SCALE_K", plan.cta_tile_k // plan.step_blocks, "of K that share a scale"
        if plan.scales_in_flight:
            yield "RUN", RUN_STEPS, "K steps whose MMAs are issued beside those before"
        if plan.has_tile_scales and plan.problem.b.scale:
            yield "SCALE_COLUMNS", plan.problem.b.scale.format.rows, "of B that share a scale"
        if plan.access.scales_from_any_row:
            yield (
                "SCALE_ROWS",
                self.k_loop.scales.loaded_rows,
                "of A whose scales a stage has, also of rows ahead of a tile",
            )
        if plan.row_slabs > 1:
            meaning = "rows of a consumer that are multiplied at a time"
            yield "SLAB_M", plan.cta_consumer_tile_m // plan.row_slabs, meaning
        if plan.consumers > 1:
            yield "CONSUMERS", plan.consumers, ""
        if plan.row_shares > 1:
            each = f"{plan.cta_consumer_tile_m} rows in each CTA" if plan.cluster_m > 1 else ""
            yield "CONSUMER_TILE_M", plan.consumer_tile_m, each
        if not plan.synchronous:
            yield "STAGES", plan.stages, "tiles of A and of B in flight"
        if plan.group_slots:
            yield "GROUP_SLOTS", plan.group_slots, "most groups of a call"
        if self.divides_k:
            each = "that programs take one by one" if plan.specialized else "each a program's"
            yield "SPLITS", plan.splits, f"parts of K, {each}"
            yield from self._sum_constants
            if plan.reduces_apart:
                yield from self.reduction.constants
            if plan.reduction == "ordered" and plan.splits_at_once < plan.splits:
                yield (
                    "SPLITS_AT_ONCE",
                    plan.splits_at_once,
                    "of which the sums are read together",
                )
        vectors = (OPERATIONS[vector].along for vector in plan.access.tma_vectors)
        if plan.composed and "n" in vectors:
            meaning = "columns that are loaded of a column operand: a power of two"
            yield "VECTOR_N", plan.vector_columns * plan.cluster_n, meaning
        if not plan.reduces_apart:
            yield from self.epilogue.subtile_constants
        yield from self.output_scales.constants
        yield from self.epilogue.constants
        if plan.problem.gathers_a:
            yield "A_UNIT", plan.a_unit, "elements of A in 16 bytes, which a thread copies at a time"
        yield from self.order_constants

    @property
    def _sum_constants(self) -> Iterator[tuple[str, object, str]]:
        """The constants of the sums that programs leave each other."""
        own = "of a tile's rows that one consumer has" if self.plan.row_shares > 1 else "of a tile"
        yield "SUMS", self.plan.consumer_tile_m * self.plan.program_tile_n, own
        if self.column_ctas > 1:
            yield "COLUMN_CTAS", self.column_ctas, "that divide the columns of an accumulator"

    @property
    def args(self) -> tuple[Field, ...]:
        """The fields of the aggregate that device functions are passed."""
        plan, resources, problem = self.plan, self.plan.resources, self.plan.problem
        c, scalar = ("c",) if problem.c else (), ("tensor_scale",) if plan.specialized else ()
        barriers = (resources.load_ready, *resources.load_empty, resources.mma_turn)
        b = [argument_name(plan.argument(buffer.operand)) for buffer in resources.b]
        each = "  # one for each part of a tile's columns"
        scales = [name for name in BLOCK_SCALES if resources.of(name)]
        return (
            *self._descriptors("a_address" if problem.gathers_a else "a"),
            _several("b_desc", b, DESCRIPTOR, each),
            *self._descriptors(*(BLOCK_SCALES if problem.scales_sums else ())),
            *self._descriptors(*c, *problem.vectors, *scalar, *self._counts_of_groups),
            *self._descriptors("d_address" if problem.scatters_d else "d", "saved", "d_scale"),
            *self._descriptors(*self._workspace),
            self._ring("a_smem", [buffer.name for buffer in resources.a]),
            _several("b_smem", [buffer.name for buffer in resources.b], SHARED, each),
            *(self._ring(f"{name}_smem", [each.name for each in resources.of(name)]) for name in scales),
            *(Field(barrier.name, SHARED, barrier.name) for barrier in barriers if barrier),
            *((self._own,) if plan.specialized and resources.epilogues else ()),
            *((self._saved,) if plan.specialized and problem.saves else ()),
            *self._counts(),
        )

    @property
    def _counts_of_groups(self) -> tuple[str, ...]:
        """The arguments that divide rows into groups, and that are indices of rows."""
        kinds = ("groups", "row_index")
        return tuple(argument.name for argument in self.plan.arguments if argument.kind in kinds)

    @property
    def _workspace(self) -> tuple[str, ...]:
        """The arguments in which programs leave each other sums."""
        return tuple(argument.name for argument in self.plan.arguments if argument.kind == "workspace")

    @property
    def _k_span(self) -> str:
        """The K that the programs of one tile multiply in a step: a part of each split."""
        return f"SPLITS * {self._k_tile}" if self.divides_k else self._k_tile

    @staticmethod
    def _ring(name: str, names: list[str], kind: str = SHARED) -> Field:
        """Return the field of values that each consumer may have of its own."""
        return _several(name, names, kind, "  # one for each consumer")

    @property
    def _own(self) -> Field:
        """The buffers of a consumer's epilogue alone, or the one buffer that it stores D through."""
        consumers = self.plan.resources.consumers
        if self.epilogue.loads:
            names = [numbered("buffers", consumer.number) for consumer in consumers]
            return self._ring("buffers", names, "Buffers")
        return self._ring("d_smem", [own.d.name for own in self.plan.resources.epilogues])

    @property
    def _saved(self) -> Field:
        """The buffers through which consumers store their sums."""
        epilogues = self.plan.resources.epilogues
        return self._ring("saved_smem", [own.saved.name for own in epilogues if own.saved])

    @property
    def epilogues(self) -> tuple[tuple[int | None, EpilogueStorage], ...]:
        """The memory of each consumer's epilogue."""
        consumers = self.plan.resources.consumers
        return tuple((each.number, each.epilogue) for each in consumers if each.epilogue)

    @property
    def divides_k(self) -> bool:
        """True if several programs share a tile's K."""
        return self.plan.splits > 1

    @property
    def loads_epilogue_first(self) -> bool:
        """True if C and vectors are loaded before the K loop; else the last split loads them."""
        return self.epilogue.loads and not self.divides_k

    def of_consumer(self, number: str) -> str:
        """Return the number of a consumer's share of a numbered item; a lone consumer has the whole item."""
        return f"{number} * CONSUMERS + consumer" if self.plan.consumers > 1 else number

    @property
    def arguments_of_split(self) -> tuple[str, ...]:
        """The arguments of `is_last` for a split; an atomic reduction does not tell splits apart."""
        splits = (self.item_split,) if self.plan.reduction == "ordered" else ()
        return ("args", self.of_consumer(self.item_tile), *splits, "accumulator")

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
        """True if a tile is found before its K loop: loads in the loop, or of the epilogue, need it."""
        plan = self.plan
        if not plan.specialized or plan.ping_pong or plan.has_tile_scales:
            return True
        return self.loads_epilogue_first

    @property
    def triggers(self) -> bool:
        """True if a program says when the next kernel may start; else all programs end first."""
        return self.plan.dependent and self.plan.trigger == "loads"

    @property
    def reads_scalar(self) -> bool:
        """True if the kernel that multiplies also reads the factor in memory."""
        return self.plan.problem.scalar and not self.plan.reduces_apart

    @property
    def reads_scalar_first(self) -> bool:
        """True if a factor in global memory is read before anything else."""
        return self.plan.problem.scalar and not self.plan.dependent and not self.divides_k

    @property
    def sums(self) -> str:
        """The sums of a tile, or of all its parts."""
        return self.epilogue.sums

    @property
    def accumulated(self) -> str:
        """The accumulator as a tile of D."""
        return turned("accumulator", self.plan.swap_ab)

    @property
    def ends_amid_group(self) -> bool:
        """True if the last group of splits that are read together has fewer splits than the others."""
        return self.plan.splits % self.plan.splits_at_once != 0

    @property
    def column_ctas(self) -> int:
        """The CTAs of a cluster that divide an accumulator's columns."""
        return self.plan.cluster_m if self.plan.swap_ab else self.plan.cluster_n

    @property
    def first_row(self) -> str:
        """The first row of a consumer."""
        return row_of(self.plan, "consumer")

    @property
    def own_value(self) -> str:
        """The buffers of a consumer alone, as arguments of the store."""
        return self.of_own(self.epilogue.own)

    def of_own(self, own: str) -> str:
        """Return a consumer's own value of a field."""
        if not self.plan.specialized:
            return own
        return f"args.{own}[consumer]" if self.plan.consumers > 1 else f"args.{own}"

    @property
    def store_arguments(self) -> tuple[str, ...]:
        """The arguments of the call that stores a tile."""
        sums = self.sums if self.plan.composed else self.accumulated
        saved = (self.of_own("saved_smem"),) * self.plan.problem.saves
        first = ("args", self.own_value, *saved, self.first_row, self.first_column, sums)
        of_group = (f"tile.{name}" for name in self.epilogue.of_group)
        return (*first, *of_group, *self.epilogue.passed_on)

    @property
    def finish_indents(self) -> tuple[int, int]:
        """Columns before the last statements of a work item, and before such a statement in a branch."""
        return (8, 12) if self.plan.specialized or self.plan.persistent else (4, 8)

    @property
    def consumer_parameter(self) -> str:
        """The number of a consumer, where there are several."""
        return ", consumer: gl.constexpr" if self.plan.consumers > 1 else ""

    @property
    def consumer_summary(self) -> str:
        """The consumer's role in a sentence."""
        if self.plan.ping_pong:
            return "One of two consumers that take turns: multiply and store every other tile."
        if self.divides_k:
            who, stored = "The consumer", "the tiles"
            if self.plan.consumers > 1:
                who, stored = "One of the consumers", "its rows of the tiles"
            end = "leave their sums" if self.plan.reduces_apart else f"store {stored} that it completes"
            return f"{who}: multiply parts of tiles, and {end}."
        if self.plan.consumers == 1:
            return "The consumer: multiply and store every tile."
        return "One of the consumer warpgroups: multiply and store its rows of every tile."


def _several(name: str, values: list[str], kind: str, comment: str) -> Field:
    """Return the field of a value, or of a tuple where there are several."""
    if len(values) == 1:
        return Field(name, kind, values[0])
    return Field(name, "gl.tuple", f"({', '.join(values)})", comment)
