"""One Hopper plan as its templates see it: constants, arguments, work items, partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.epilogue_storage import EpilogueStorage
from gemmgen.plan.storage import numbered
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.problem.operations import BLOCK_SCALES
from gemmgen.render.kernel import (
    DESCRIPTOR,
    SHARED,
    Field,
    KernelView,
)
from gemmgen.render.places import Constant, Function, Place
from gemmgen.render.spelling import argument_name
from gemmgen.render.wgmma.device_parts import DeviceParts
from gemmgen.render.wgmma.k_loop import KLoop
from gemmgen.render.wgmma.layouts import HopperLayouts
from gemmgen.render.wgmma.overview import HopperOverview
from gemmgen.render.wgmma.stage import Stage, row_of

EACH_PART = "  # one for each part of a tile's columns"
"""The comment after a field that may be a tuple."""


@dataclass(frozen=True)
class HopperView(KernelView):
    """One Hopper plan as the templates see it; every choice of a part is made here."""

    plan: WgmmaKernel

    @cached_property
    def layouts(self) -> HopperLayouts:
        """How tensors lie in memory and registers."""
        return HopperLayouts(self.plan)

    @cached_property
    def overview(self) -> HopperOverview:
        """The kernel in words."""
        return HopperOverview(self.plan, self.sides)

    @cached_property
    def k_loop(self) -> KLoop:
        """The loop that multiplies."""
        return KLoop(self.plan, next((each for side in self.sides if (each := side.issue_mmas)), ""))

    @cached_property
    def stage(self) -> Stage:
        """The loads of a K step."""
        return Stage(self.plan)

    @property
    def _functions(self) -> Iterator[Function]:
        """The templates of functions that no feature has, callees first in each section."""
        return DeviceParts(self.plan, self.walk, self.epilogue, self.order, self.k_loop).functions

    @property
    def _names(self) -> Iterator[tuple[str, str]]:
        """Pairs of a module and a name that kernels import without any feature."""
        yield from (("hopper", each) for each in ("mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait"))
        # Threads write to shared memory what TMA then reads, or read what TMA then overwrites.
        if self.epilogue.store.by_tma or self.plan.mma.reads_left:
            yield "hopper", "fence_async_shared"
        if self.epilogue.steps.divides:
            yield "cuda", "libdevice"

    @property
    def _constants(self) -> Iterator[Constant]:
        """The constants that no feature has."""
        plan = self.plan
        yield Constant(Place.TILE, "PROGRAM_TILE_M", plan.program_tile_m)
        yield Constant(Place.TILE, "PROGRAM_TILE_N", plan.program_tile_n)
        yield Constant(Place.STEP, "PROGRAM_TILE_K", plan.cta_tile_k, self.k_loop.words_of_step)
        if plan.consumers > 1:
            yield Constant(Place.PROGRAM, "CONSUMERS", plan.consumers)
        if plan.row_shares > 1:
            each = f"{plan.cta_consumer_tile_m} rows in each CTA" if plan.cluster_m > 1 else ""
            yield Constant(Place.PROGRAM, "CONSUMER_TILE_M", plan.consumer_tile_m, each)
        if not plan.synchronous:
            yield Constant(Place.PROGRAM, "STAGES", plan.stages, "tiles of A and of B in flight")
        yield from self.epilogue.constants
        yield from self._order_constants

    @property
    def args(self) -> tuple[Field, ...]:
        """The fields of the aggregate that device functions are passed."""
        plan, resources = self.plan, self.plan.resources
        barriers = (resources.load_ready, *resources.load_empty, resources.mma_turn)
        scales = [name for name in BLOCK_SCALES if resources.of(name)]
        return (
            *self._tensors,
            self._ring("a_smem", [buffer.name for buffer in resources.a]),
            _several("b_smem", [buffer.name for buffer in resources.b], SHARED, EACH_PART),
            *(self._ring(f"{name}_smem", [each.name for each in resources.of(name)]) for name in scales),
            *(Field(barrier.name, SHARED, barrier.name) for barrier in barriers if barrier),
            *((self._own,) if plan.specialized and resources.epilogues else ()),
            *((self._saved,) if plan.specialized and plan.problem.saves else ()),
            *self._counts(),
        )

    @property
    def _tensors(self) -> Iterator[Field]:
        """The fields of tensors: of each one its descriptor, or its address if threads access it."""
        given = self.plan.kernel_arguments
        addresses = {argument.tensor: argument for argument in given if argument.kind == "address"}
        parts = [argument_name(argument) for argument in given if argument.tensor == "b"]
        for argument in given:
            if argument.name == "b":
                yield _several("b_desc", parts, DESCRIPTOR, EACH_PART)
            elif argument.kind == "scalar" and not self.plan.specialized:
                continue  # the kernel reads it itself
            elif argument.tensor != "b" and argument.kind != "address":
                yield self._tensor(addresses.get(argument.tensor, argument))

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
        if self.epilogue.loads.exist:
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
        return self.epilogue.loads.exist and not self.divides_k

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
        return self.epilogue.parts.storing.sums

    @property
    def first_row(self) -> str:
        """The first row of a consumer."""
        return row_of(self.plan, "consumer")

    @property
    def own_value(self) -> str:
        """The buffers of a consumer alone, as arguments of the store."""
        return self.of_own(self.epilogue.store.own)

    def of_own(self, own: str) -> str:
        """Return a consumer's own value of a field."""
        if not self.plan.specialized:
            return own
        return f"args.{own}[consumer]" if self.plan.consumers > 1 else f"args.{own}"

    @property
    def store_arguments(self) -> tuple[str, ...]:
        """The arguments of the call that stores a tile."""
        sums = self.k_loop.as_tile(self.sums)
        saved = (self.of_own("saved_smem"),) if self.plan.problem.saves else ()
        first = ("args", self.own_value, *saved, self.first_row, self.first_column, sums)
        facts = (f"tile.{name}" for name in self.epilogue.store.facts)
        return (*first, *facts, *self.epilogue.store.passed_on)


def _several(name: str, values: list[str], kind: str, comment: str) -> Field:
    """Return the field of a value, or of a tuple where there are several."""
    if len(values) == 1:
        return Field(name, kind, values[0])
    return Field(name, "gl.tuple", f"({', '.join(values)})", comment)
