"""Rules of CTAs, their warps, and the tile that instructions and consumers share."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import WGMMA
from gemmgen.hardware.architecture import is_power_of_two, power_of_two_below
from gemmgen.hardware.elements import FP8
from gemmgen.plan.rule import Consulted, Finding, Rule, counted, nearest, rule
from gemmgen.plan.shared_rules import MAX_CLUSTER, group_width, minor_dimension, odd_extents
from gemmgen.plan.wgmma.bounds import most_consumers, threads_of
from gemmgen.plan.wgmma.resources import WgmmaKernel

MAX_OCCUPANCY = 3
"""A third CTA of one warpgroup still has room for an accumulator of 64 x 256, a fourth has not."""
MAX_TILE_M = 2_048
"""[gluon] TMA loads at most 256 rows at a time: at 4,096 rows, 16 loads a step, producers of 24 and 32
registers spill; at 2,048 none does.
"""

# --- CTAs and warps


@rule("schedule-kind")
def schedule_kind(plan: WgmmaKernel) -> Iterator[Finding]:
    """Roles of their own pay off over many tiles, and are generated for those only."""
    if plan.specialized and not plan.persistent:
        kind = plan.schedule_kind.replace("_", " ")
        yield Finding(
            "warp_specialization.kind",
            f"{plan.specialization} consumers in a {kind} schedule",
            "a producer of its own keeps loads going from tile to tile, and such a program has but one",
            "use none, or persistent for schedule.kind",
        )


@rule("cluster-shape")
def cluster_shape(plan: WgmmaKernel) -> Iterator[Finding]:
    """A program is a power of two of CTAs, up to four, and several of them have producers to share tiles."""
    sides = (plan.cluster_m, plan.cluster_n)
    possible = [is_power_of_two(ctas) and ctas <= MAX_CLUSTER for ctas in sides]
    for i, field in enumerate("mn"):
        ctas, beside = sides[i], sides[1 - i] if possible[1 - i] else 1
        if not plan.specialized and ctas > 1:
            yield Finding(
                f"cluster.{field}",
                f"{ctas:,} CTAs along {field.upper()} without warp specialization",
                "only producers of their own wait for the consumers of other CTAs before a multicast",
                "use 1",
            )
        elif not possible[i]:
            below = power_of_two_below(ctas)
            yield Finding(
                f"cluster.{field}",
                f"{ctas:,} CTAs along {field.upper()}",
                f"a cluster has a power of two of CTAs along M and along N, and at most {MAX_CLUSTER} in all",
                nearest(below, 2 * below, high=MAX_CLUSTER // beside),
            )
        elif all(possible) and plan.cluster_size > MAX_CLUSTER and i == sides.index(max(sides)):
            yield Finding(
                f"cluster.{field}",
                f"{ctas} of {plan.cluster_m} x {plan.cluster_n} CTAs along {field.upper()}",
                f"a cluster has at most {MAX_CLUSTER} in all",
                f"use at most {MAX_CLUSTER // beside}",
            )


@rule("warp-layout")
def warp_layout(plan: WgmmaKernel) -> Iterator[Finding]:
    """A consumer is whole warpgroups, each of four warps along M: Gluon accepts others, which are wrong."""
    warpgroup = plan.architecture.warps_per_warpgroup
    if plan.warps_m not in (warpgroup, 2 * warpgroup):
        yield Finding(
            "warps.m",
            f"{counted(plan.warps_m, 'warp')} along M",
            "the four warps of a warpgroup hold 16 rows each of an instruction, and a consumer has one or "
            "two warpgroups",
            f"use {warpgroup} or {2 * warpgroup}" if plan.warps_n == 1 else f"use {warpgroup}",
        )
    most = 1 if plan.warps_m == 2 * warpgroup else 2
    if plan.warps_n > most:
        yield Finding(
            "warps.n",
            f"{plan.warps_m:,} x {plan.warps_n:,} warps",
            f"a consumer has {warpgroup} or {2 * warpgroup}, and at least {warpgroup} of them along M",
            f"use at most {most}",
        )


@rule("consumer-count", consults=[warp_layout])
def consumer_count(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """The consumers share the tile's rows in power-of-two parts, and their CTA has threads for them all."""
    field, most = "warp_specialization.consumers", max(1, most_consumers(plan))
    if not plan.specialized:
        if plan.consumers != 1:
            found = f"{plan.consumers:,} consumers without warp specialization"
            yield Finding(field, found, "then all warps do the same, and are one", "use 1")
    elif plan.ping_pong and plan.consumers != 2:
        yield Finding(
            field,
            f"{counted(plan.consumers, 'consumer')} in ping-pong",
            "two take turns, one at the tensor cores and one at its epilogue",
            "use 2",
        )
    elif plan.consumers > most and not consulted.broken(warp_layout):
        threads, limit = threads_of(plan, plan.consumers), plan.architecture.threads_per_cta
        yield Finding(
            field,
            f"{plan.consumers:,} consumers and the producer are {threads:,} threads",
            f"a CTA has at most {limit:,}",
            f"use at most {power_of_two_below(most)}",
        )
    elif not is_power_of_two(plan.consumers):
        below = power_of_two_below(plan.consumers)
        yield Finding(
            field,
            f"{plan.consumers} consumers",
            "this version generates kernels whose number of consumers is a power of two",
            nearest(below, 2 * below, high=power_of_two_below(most)),
        )


CONSUMERS = (consumer_count, warp_layout)
"""Where these are kept, consumers have warps of their own."""


@rule("occupancy")
def occupancy(plan: WgmmaKernel) -> Iterator[Finding]:
    """At most three CTAs share an SM, and those of a cluster have one each."""
    most = 1 if plan.cluster_size > 1 else MAX_OCCUPANCY
    if plan.occupancy > most:
        limit = f"this version generates kernels for at most {MAX_OCCUPANCY}"
        if most == 1:
            limit = f"a {plan.cluster_m} x {plan.cluster_n} cluster has its CTAs one on each SM"
        yield Finding("occupancy", f"{plan.occupancy:,} CTAs on each SM", limit, f"use at most {most}")


# --- the tile


def least_rows(plan: WgmmaKernel) -> int:
    """Return the fewest rows of a tile of which every warp of every consumer has its own 16."""
    return plan.row_shares * plan.warps_m * WGMMA.rows_per_warp


def least_columns(plan: WgmmaKernel) -> int:
    """Return the fewest columns of a tile of which every warp has an instruction's."""
    return plan.warps_n * WGMMA.n_min


def narrowest_subtile(plan: WgmmaKernel) -> int:
    """Return the fewest columns of which TMA can move a row of C and of D."""
    dtypes = (plan.problem.d, *((plan.problem.c,) if plan.problem.c else ()))
    return max(plan.architecture.tma_alignment_bytes // dtype.bytes for dtype in dtypes)


@rule("tile-power-of-two", consults=CONSUMERS)
def tile_power_of_two(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """Every block extent in Gluon is a power of two."""
    rows, columns = least_rows(plan), least_columns(plan)
    if consulted.broken(*CONSUMERS):
        rows, columns = WGMMA.m, WGMMA.n_min
    widest = plan.cta_tile_n if is_power_of_two(plan.cta_tile_n) else WGMMA.n_max
    yield from odd_extents(
        (
            ("tile.m", plan.cta_tile_m, rows, MAX_TILE_M),
            ("tile.n", plan.cta_tile_n, columns, WGMMA.n_max),
            ("tile.k", plan.cta_tile_k, plan.mma_shape[2], None),
            ("epilogue.subtile_n", plan.subtile_n, max(WGMMA.n_min, narrowest_subtile(plan)), widest),
        )
    )


@rule("consumer-rows", after=[tile_power_of_two.at("tile.m"), *CONSUMERS])
def consumer_rows(plan: WgmmaKernel) -> Iterator[Finding]:
    """Every warp of a consumer has its own 16 rows of the tile: Gluon lets warps repeat others' work."""
    rows = WGMMA.rows_per_warp * plan.warps_m
    if plan.cta_tile_m < least_rows(plan):
        share = "for a lone consumer" if plan.consumers == 1 else "for each consumer"
        if plan.row_shares > 1:
            share = f"give {plan.row_shares} consumers {plan.cta_consumer_tile_m} each"
        yield Finding(
            "tile.m",
            f"{plan.cta_tile_m} rows {share}",
            f"the {plan.warps_m} warps of a consumer take {rows}, {WGMMA.rows_per_warp} each",
            f"use at least {least_rows(plan)}",
        )


@rule("tile-rows", after=[tile_power_of_two.at("tile.m")])
def tile_rows(plan: WgmmaKernel) -> Iterator[Finding]:
    """The producer, which issues a load per 256 rows, has registers for the coordinates of them all."""
    if plan.cta_tile_m > MAX_TILE_M:
        yield Finding(
            "tile.m",
            f"a tile of {plan.cta_tile_m:,} rows",
            f"beyond {MAX_TILE_M:,} the TMA loads of a K step take more registers than a producer may have",
            f"use at most {MAX_TILE_M}",
        )


@rule("mma-n", after=[tile_power_of_two.at("tile.n"), warp_layout])
def mma_n(plan: WgmmaKernel) -> Iterator[Finding]:
    """The tile is as wide as an instruction, and the instruction one that Gluon has."""
    share = plan.cta_tile_n // plan.warps_n
    narrowest = least_columns(plan)
    if plan.cta_tile_n < narrowest:
        yield Finding(
            "tile.n",
            f"a tile of {plan.cta_tile_n} columns",
            f"the narrowest wgmma has n = {WGMMA.n_min}"
            + (f", for each of {plan.warps_n} warps along N" if plan.warps_n > 1 else ""),
            f"use at least {narrowest}",
        )
    elif not is_power_of_two(plan.mma_n) or not WGMMA.n_min <= plan.mma_n <= plan.widest_mma_n:
        below = power_of_two_below(plan.mma_n)
        high = min(share, plan.widest_mma_n)
        yield Finding(
            "mma.n",
            f"an instruction of {plan.mma_n:,} columns",
            f"of those for {plan.problem.a.dtype.name} Gluon has the powers of two from {WGMMA.n_min} to "
            f"{plan.widest_mma_n}",
            nearest(below, 2 * below, low=WGMMA.n_min, high=high),
        )
    elif plan.mma_n > share:
        yield Finding(
            "mma.n",
            f"an instruction of {plan.mma_n} columns",
            f"the warps of a consumer have {share} each along N",
            f"use at most {share}",
        )


@rule("mma-k", after=[tile_power_of_two.at("tile.k")])
def mma_k(plan: WgmmaKernel) -> Iterator[Finding]:
    """A K step is at least one instruction deep."""
    k = plan.mma_shape[2]
    if plan.cta_tile_k < k:
        yield Finding(
            "tile.k",
            f"a K step of {plan.cta_tile_k} elements",
            f"a wgmma of {plan.problem.a.dtype.name} takes k = {k}",
            f"use at least {k}",
        )


EXTENTS = (
    tile_power_of_two.at("tile.m", "tile.n", "tile.k"),
    *CONSUMERS,
    consumer_rows,
    mma_n.at("tile.n"),
    mma_k,
)
"""Where these are kept, consumers can share the tile: else its parts have no true sizes."""
TILE = (*EXTENTS, tile_rows, mma_n)
"""Where these are kept, instructions can too: else no sum over the tile is true."""


@rule("promotion")
def promotion(plan: WgmmaKernel) -> Iterator[Finding]:
    """Only sums of 8-bit floats are promoted, after each K step."""
    if not plan.promote_k:
        return
    field, a = "mma.promote_k", plan.problem.a.dtype.name
    if a not in FP8 or plan.problem.accumulator.name != "fp32":
        yield Finding(
            field,
            f"sums of {plan.promote_k:,} products of {a} in {plan.problem.accumulator.name}",
            "promotion is for 8-bit floats added up in fp32, of which wgmma keeps fewer bits",
            "leave it out, or use e4m3 or e5m2 operands and fp32",
        )
    elif plan.promote_k != plan.cta_tile_k:
        yield Finding(
            field,
            f"promotion after {plan.promote_k:,} of K",
            f"sums are promoted after each K step, of {plan.cta_tile_k}",
            f"use {plan.cta_tile_k}",
        )
    elif plan.outstanding_mmas:
        yield Finding(
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA with promotion",
            "a sum is promoted when it has retired, before the next one starts",
            "use 0",
        )
    elif plan.schedule_kind == "single_tile":
        yield Finding(
            field,
            f"promotion after {plan.promote_k} of K",
            "a kernel of a single tile has one K step",
            "leave it out, or use a tiled or persistent schedule",
        )


TILE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    schedule_kind,
    cluster_shape,
    consumer_count,
    warp_layout,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    consumer_rows,
    tile_rows,
    mma_n,
    mma_k,
    promotion,
)
