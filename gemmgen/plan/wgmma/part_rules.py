"""Rules of tiles whose columns are several powers of two: composed and staggered ones."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import WGMMA
from gemmgen.hardware.gpus import is_power_of_two, power_of_two_below
from gemmgen.plan.fix import hint, leave_out, use
from gemmgen.plan.rule import Consulted, Finding, altered, rule
from gemmgen.plan.wgmma.bounds import expected_registers, most_consumer_registers
from gemmgen.plan.wgmma.extent_rules import adds_up, sum_of_parts, tile_power_of_two
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.plan.wgmma.warp_rules import CONSUMERS


def plain_widths(plan: WgmmaKernel) -> tuple[int, ...]:
    """Return the powers of two around a composed tile's columns; the wider one if its sums have registers."""
    below = power_of_two_below(plan.cta_tile_n)
    wider = altered(plan, cta_tile_n=2 * below, a_source="shared")
    return (below, 2 * below) if expected_registers(wider) <= most_consumer_registers(wider) else (below,)


@rule("composed-tile")
def composed_tile(plan: WgmmaKernel) -> Iterator[Finding]:
    """Tiles of several parts require roles or a tiled schedule; each part is whole in a CTA and a warp."""
    if not plan.composed or not adds_up(plan):
        return
    columns, widths = f"a tile of {sum_of_parts(plan)} columns", plain_widths(plan)
    if plan.swap_ab:
        rows = use(False, field="mma.swap_ab")
        if not plan.specialized:
            rows &= use("cooperative", "ping_pong", field="warp_specialization.kind")
        limit = "the tile's columns are then the instruction's rows, and parts divide only its columns"
        yield Finding("tile.n", f"{columns} with swap-AB", limit, use(*widths) | rows)
        return
    if not plan.specialized and plan.schedule_kind != "tiled":
        where = "" if plan.persistent else ", in a persistent schedule"
        yield Finding(
            "tile.n",
            f"{columns} without warp specialization in a {plan.schedule_kind} schedule",
            "such a tile needs warp specialization or a tiled schedule",
            use(*widths) | hint(f"a kind of warp specialization{where}"),
        )
        return
    if not plan.specialized:
        roles = hint("a kind of warp specialization, in a persistent schedule")
        if plan.a_source == "registers":
            limit = "without warp specialization, such a tile needs A in shared memory"
            found = f"A in registers for {columns}"
            yield Finding("operands.a.source", found, limit, use("shared") | roles)
        if plan.promote_k:
            limit = "promotion of such a tile needs warp specialization"
            found = f"sums promoted after {plan.promote_k} of K for {columns}"
            yield Finding("mma.promote_k", found, limit, leave_out() | roles)
        if plan.read_early:
            limit = "early loads of such a tile need warp specialization"
            fix = use(*widths) | use("nothing", field="dependent_launch.early")
            yield Finding("tile.n", f"{columns} with {plan.early_launch}", limit, fix)


def _staggered_widths(plan: WgmmaKernel) -> list[int]:
    """Return the widths around a power of two that can be staggered and whose sums have registers."""
    below = 3 * plan.cta_tile_n // 4
    wider = (altered(plan, cta_tile_n=columns) for columns in (below, 2 * below) if columns > WGMMA.n_min)
    return [each.cta_tile_n for each in wider if expected_registers(each) <= most_consumer_registers(each)]


@rule("staggered-tile", after=[composed_tile, *CONSUMERS], consults=[tile_power_of_two.at("tile.n")])
def staggered_tile(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """A staggered tile has two cooperative consumers, and an epilogue that loads nothing."""
    if not plan.staggered or consulted.broken(tile_power_of_two.at("tile.n")):
        return
    field, columns = "tile.staggered", f"a staggered tile of {plan.cta_tile_n} columns"
    if plan.specialization != "cooperative" or plan.consumers != 2:
        kind = "without warp specialization"
        if plan.ping_pong:
            kind = "for ping-pong consumers"
        elif plan.specialized:
            kind = f"for {plan.consumers} consumer{'s' * (plan.consumers > 1)}"
        yield Finding(
            field,
            f"{columns} {kind}",
            "two cooperative consumers share a tile, and one has more columns than the other",
            leave_out()
            | use(2, field="warp_specialization.consumers")
            & use("cooperative", field="warp_specialization.kind"),
        )
    elif is_power_of_two(plan.cta_tile_n):
        yield Finding(
            field,
            f"{columns}, a power of two",
            "one consumer has the narrowest of several parts for both",
            leave_out() | use(*_staggered_widths(plan), field="tile.n"),
        )
    elif plan.a_source == "registers":
        limit = "staggered tiles need A in shared memory"
        if plan.problem.a.major == "mn" and plan.problem.a.dtype.bits != 16:  # not in shared memory
            found = f"{columns} with an M-contiguous A of {plan.problem.a.dtype.bits} bits"
            yield Finding(field, found, limit, leave_out())
        else:
            fix = use("shared") | leave_out("tile.staggered")
            yield Finding("operands.a.source", f"A in registers for {columns}", limit, fix)
    elif plan.problem.c is not None or plan.problem.vectors:
        read = "C" if plan.problem.c is not None else " and ".join(plan.problem.vectors)
        yield Finding(
            field,
            f"{columns} with {read}",
            "staggered tiles need an epilogue that loads nothing",
            leave_out(),
        )
