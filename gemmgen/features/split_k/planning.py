"""The side of split-K in planning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gemmgen.features.split_k.split_cost import splits_ns
from gemmgen.hardware.elements import DTYPES
from gemmgen.plan.entry import Entry
from gemmgen.plan.planning import ArgumentPlace, EntrySection, Planning, PlanningByMma, RegisterUse, Row
from gemmgen.plan.roles import Argument
from gemmgen.plan.sum_order import SumOrder
from gemmgen.plan.timing import Stream
from gemmgen.plan.wgmma.bounds import ROLE_REGISTERS
from gemmgen.plan.wgmma.resources import WgmmaKernel

ORDERED_SUM_REGISTERS: Final = 72
"""Registers to add up the sums of other programs in order: a consumer reads several at a time."""


def partial_bytes(plan: WgmmaKernel) -> int:
    """Return the bytes of the sums of a tile that programs leave in memory."""
    tile = plan.program_tile_m * plan.program_tile_n
    return plan.partials * tile * plan.problem.accumulator.bytes


class SplitKPlanning(Planning[WgmmaKernel]):
    """The sums that programs of a Hopper kernel leave each other."""

    def arguments(self, plan: WgmmaKernel) -> Iterator[tuple[ArgumentPlace, Argument]]:
        """Yield the memory of the sums, and of the counts of parts that are multiplied."""
        if plan.splits > 1:
            restored = plan.reduction == "atomic"
            dtype = plan.problem.accumulator
            yield ArgumentPlace.WORKSPACE, Argument("partials", "workspace", dtype, restored=restored)
        if plan.counts_parts:
            yield ArgumentPlace.WORKSPACE, Argument("counters", "workspace", DTYPES["int32"], restored=True)

    def registers(self, plan: WgmmaKernel, use: RegisterUse) -> int:
        """Return the registers to add up sums of other programs, and to find parts of K in a producer."""
        if use is RegisterUse.PRODUCER and plan.splits > 1:
            return ROLE_REGISTERS
        adds_up = use is RegisterUse.KEPT and plan.splits > 1 and plan.reduction == "ordered"
        return ORDERED_SUM_REGISTERS if adds_up else 0

    def sum_order(self, plan: WgmmaKernel, order: SumOrder) -> SumOrder:
        """Return the order of sums of parts of K, and of the sums of all parts."""
        if plan.splits == 1:
            return order
        return replace(
            order,
            parts=plan.reduction,
            splits=plan.splits,
            split_step=plan.cta_tile_k,
            side_by_side=plan.splits_side_by_side if plan.reduces_apart else 1,
        )

    def timed(self, plan: WgmmaKernel, row: Row) -> Row:
        """Return the row with the time to add up the sums of a tile."""
        if plan.splits == 1 or not isinstance(row, Stream):
            return row
        time = splits_ns(plan)
        row = row._replace(sums=time.once, sums_of_program=time.of_program)
        return row._replace(next_round=row.next_round + time.of_round) if time.of_round else row

    def entries(self, plan: WgmmaKernel) -> Iterator[tuple[EntrySection, Entry]]:
        """Yield a line about the division of K among programs."""
        if plan.splits == 1:
            return
        programs = "that programs take one by one" if plan.specialized else "a program each"
        partials = f"of K, {programs}; {partial_bytes(plan):,} bytes of sums in memory for each tile"
        yield EntrySection.DECISIONS, Entry("splits", plan.splits, "parts", partials)


SIDES: PlanningByMma = {"wgmma": (SplitKPlanning(),)}
