"""Which templates make the device code of a Hopper module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.epilogue import EpilogueView
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
    def names(self) -> tuple[str, ...]:
        """The templates of the module's device code, callees first."""
        plan = self.plan
        problem = plan.problem
        moved = ("d", *(("c",) * bool(problem.c)), *(("saved",) * problem.saves))
        leading = {*map(plan.access.leading_axes, ("a", "b", *moved))}
        parts = ["shared/args", *(("shared/store/as_box",) * (1 in leading))]
        parts += ["shared/store/as_block"] * (2 in leading)
        if self.epilogue.loads:
            parts.insert(0, "shared/buffers")
        if plan.problem.copies_misaligned:
            parts.insert(0, "shared/copy_kernel")
        if not plan.synchronous:
            parts.append("shared/ring_position")
        parts += self._walk_parts
        parts += ["wgmma/staggered"] * plan.staggered
        if plan.specialized:
            parts.append("wgmma/fill_stage" if plan.read_early else self._load_stage)
            parts.append(f"wgmma/producer{'_early' * bool(plan.read_early)}")
            parts += ["wgmma/release"] * bool(plan.multicast)
        elif not plan.synchronous:
            if not plan.persistent:
                parts.append("wgmma/loads_tiled")
            early = "_early" * bool(plan.read_early)
            parts += [self._load_stage] * (not plan.read_early)
            parts.append(f"wgmma/load_next_{plan.schedule_kind}{early}")
        parts += ["wgmma/read_a"] * (plan.a_source == "registers")
        parts += self.k_loop.scales.functions if plan.problem.scales_sums else ()
        parts += ["wgmma/wait_for"] * self.k_loop.waits_for_one
        parts += [f"wgmma/issue_mmas/{self.k_loop.mmas_of_step}", f"wgmma/k_loop/{self.k_loop.pace}"]
        if not plan.reduces_apart:
            parts += self._epilogue_parts
        if plan.splits > 1:
            parts += self._sum_parts
        if plan.specialized:
            parts.append("wgmma/consumer")
        parts.append(self._kernel)
        if plan.reduces_apart:
            parts += ["wgmma/reduction_args", *self.epilogue.functions]
            parts += ["wgmma/piece_origin", "wgmma/reduction_kernel"]
        return tuple(f"{part}.py.j2" for part in parts)

    @property
    def _walk_parts(self) -> Iterator[str]:
        """The templates that define the work items of a program and find their tiles."""
        yield "walks/tile"
        if not self.plan.group_slots and self.plan.schedule_kind != "single_tile":
            yield from self.order
        if self.walk.steps:
            yield "walks/steps"
        if self.walk.template:
            yield f"walks/{self.walk.template}"

    @property
    def _sum_parts(self) -> Iterator[str]:
        """The parts by which programs leave each other sums."""
        yield "wgmma/register_order"
        if not self.plan.reduces_apart:
            yield "wgmma/accumulator_order"
        yield "wgmma/sum_addresses"
        yield "wgmma/leave_sums" if self.plan.reduces_apart else f"wgmma/reduction_{self.plan.reduction}"

    @property
    def _load_stage(self) -> str:
        if self.plan.problem.gathers_a:
            return "wgmma/loads/stage_gather"
        return f"wgmma/loads/stage{'_multicast' * bool(self.plan.multicast)}"

    @property
    def _kernel(self) -> str:
        if self.plan.specialized:
            return "shared/kernel_specialized"
        return f"wgmma/kernel_{'synchronous' if self.plan.synchronous else self.plan.schedule_kind}"

    @property
    def _epilogue_parts(self) -> Iterator[str]:
        plan = self.plan
        yield from self.epilogue.functions
        splits = max(self.epilogue.counts_of_parts) > 1
        if plan.problem.interleaved and plan.problem.gated:
            yield "wgmma/even_and_odd"
        if splits or plan.problem.in_blocks:
            yield "wgmma/halves"
        if plan.composed and splits:
            yield "wgmma/split_parts"
        elif plan.subtiles > 2:
            yield "wgmma/split_columns"
        yield from self.epilogue.store_parts
