"""Which templates make the device code of a Hopper module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.epilogue import EpilogueView
from gemmgen.render.places import Function, Section
from gemmgen.render.walks import Walk
from gemmgen.render.wgmma.k_loop import KLoop


@dataclass(frozen=True)
class DeviceParts:
    """The templates of one plan's device code."""

    plan: WgmmaKernel
    walk: Walk
    epilogue: EpilogueView
    order: tuple[str, ...]
    """The one that places a tile."""
    k_loop: KLoop

    @property
    def functions(self) -> Iterator[Function]:
        """The templates of functions that no feature has, callees first in each section."""
        for section, templates in (
            (Section.ARGUMENTS, self._arguments),
            (Section.WALK, self._walk_parts),
            (Section.LOAD, self._loads),
            (Section.READ, ("wgmma/read_left",) if self.k_loop.reads_left else ()),
            (Section.MULTIPLY, self.k_loop.functions),
        ):
            yield from (Function(section, template) for template in templates)
        yield from self.epilogue.functions
        if self.plan.specialized:
            yield Function(Section.KERNEL, "wgmma/consumer")
        yield Function(Section.KERNEL, self._kernel)

    @property
    def _arguments(self) -> Iterator[str]:
        """The templates of aggregates of arguments, and of views of buffers as boxes."""
        problem = self.plan.problem
        if self.epilogue.loads.exist:
            yield "shared/buffers"
        yield "shared/args"
        moved = {"a": True, "b": True, "b_scale": True, "c": problem.c, "d": True, "saved": problem.saves}
        leading = {self.plan.access.leading_axes(name) for name, exists in moved.items() if exists}
        if 1 in leading:
            yield "shared/store/as_box"
        if 2 in leading:
            yield "shared/store/as_block"
        if not self.plan.synchronous:
            yield "shared/ring_position"

    @property
    def _loads(self) -> Iterator[str]:
        """The templates that load the stages of a ring."""
        plan = self.plan
        if plan.specialized:
            yield "wgmma/fill_stage" if plan.read_early else self._load_stage
            yield "wgmma/producer_early" if plan.read_early else "wgmma/producer"
            if plan.multicast:
                yield "wgmma/release"
        elif plan.persistent:
            yield self._load_stage
            yield "wgmma/load_next_persistent"
        elif not plan.synchronous:
            yield "wgmma/loads_tiled"
            if plan.read_early:
                yield "wgmma/load_next_tiled_early"
            else:
                yield self._load_stage
                yield "wgmma/load_next_tiled"

    @property
    def _load_stage(self) -> str:
        """The template that loads the tiles of a K step."""
        if self.plan.problem.gathers_a:
            return "wgmma/loads/stage_gather"
        return "wgmma/loads/stage_multicast" if self.plan.multicast else "wgmma/loads/stage"

    @property
    def _walk_parts(self) -> Iterator[str]:
        """The templates that define the work items of a program and find their tiles."""
        yield "walks/tile"
        if not self.plan.group_slots and self.plan.schedule_kind != "single_tile":
            yield from self.order
        if self.walk.steps:
            yield "walks/steps"
        if self.walk.template:
            yield self.walk.template

    @property
    def _kernel(self) -> str:
        """The template of the kernel itself."""
        if self.plan.specialized:
            return "shared/kernel_specialized"
        if self.plan.synchronous:
            return "wgmma/kernel_synchronous"
        return "wgmma/kernel_persistent" if self.plan.persistent else "wgmma/kernel_tiled"
