"""Rules of CTAs and their tile: what an instruction, a block of scales and tensor memory take."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import SCALE_COLUMNS, SCALE_ROWS, TCGEN05
from gemmgen.hardware.architecture import is_power_of_two, power_of_two_below
from gemmgen.plan.rule import Consulted, Finding, Rule, counted, nearest, rule
from gemmgen.plan.shared_rules import MAX_CLUSTER, group_width, minor_dimension, odd_extents
from gemmgen.plan.tcgen05.bounds import least_columns, least_rows, least_step
from gemmgen.plan.tcgen05.problem_rules import TYPES
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel

# --- CTAs


@rule("cluster-shape")
def cluster_shape(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """Several CTAs of a program are pairs along M, of which two share tiles where nothing is scaled."""
    m, n = plan.cluster_m, plan.cluster_n
    most = 2 if plan.block_scaled else MAX_CLUSTER
    possible = [is_power_of_two(ctas) and ctas <= MAX_CLUSTER for ctas in (m, n)]
    beside_m, beside_n = n if possible[1] else 1, m if possible[0] else 1
    highest = (max(1, most // beside_m), most // beside_n if beside_n > 1 and not plan.block_scaled else 1)
    for field, ctas, is_possible, high in zip("mn", (m, n), possible, highest, strict=True):
        if not is_possible:
            below = power_of_two_below(ctas)
            yield Finding(
                f"cluster.{field}",
                f"{ctas:,} CTAs along {field.upper()}",
                f"a cluster has a power of two of CTAs along M and along N, and at most {most} in all",
                nearest(below, 2 * below, high=high),
            )
    if not all(possible):
        return
    if plan.block_scaled and n > 1:
        field, limit, fix = "n", "block-scaled kernels share tiles within one pair of CTAs, along M", 1
    elif n > 1 and m == 1:
        field, limit, fix = "n", "this version shares tiles among pairs of CTAs, which lie along M", 1
    elif plan.cluster_size > most:
        field = "m" if m >= n else "n"
        limit = f"a cluster has at most {most} CTAs in all"
        if plan.block_scaled:
            limit = "a block-scaled kernel has at most one pair of CTAs"
        fix = most // (n if field == "m" else m)
    else:
        return
    yield Finding(
        f"cluster.{field}",
        f"{m} x {n} CTAs" if m > 1 and n > 1 else f"{m * n} CTAs along {field.upper()}",
        limit,
        "use 1" if fix == 1 else f"use at most {fix}",
    )


@rule("occupancy")
def occupancy(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A CTA has its SM alone: one may use all of tensor memory, and its threads start with all registers."""
    if plan.occupancy > 1:
        yield Finding(
            "occupancy",
            f"{counted(plan.occupancy, 'CTA')} on each SM",
            f"the {plan.threads} threads of one start with all of its registers",
            "use 1",
        )


# --- the tile


def narrowest_subtile(plan: Tcgen05Kernel) -> int:
    """Return the fewest columns of which TMA can move a row of D."""
    return plan.architecture.tma_alignment_bytes // plan.problem.d.bytes


@rule("tile-power-of-two", consults=TYPES)
def tile_power_of_two(plan: Tcgen05Kernel, consulted: Consulted) -> Iterator[Finding]:
    """Every block extent in Gluon is a power of two."""
    widest = plan.cta_tile_n if is_power_of_two(plan.cta_tile_n) else TCGEN05.n_max
    step = 1 if consulted.broken(*TYPES) else least_step(plan)
    yield from odd_extents(
        (
            ("tile.m", plan.cta_tile_m, least_rows(plan), TCGEN05.m[-1]),
            ("tile.n", plan.cta_tile_n, least_columns(plan), TCGEN05.n_max),
            ("tile.k", plan.cta_tile_k, step, None),
            ("epilogue.subtile_n", plan.subtile_n, narrowest_subtile(plan), widest),
        )
    )


@rule("tile-rows", after=[tile_power_of_two.at("tile.m")])
def tile_rows(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A CTA's rows are those of an instruction, and tensor memory has a lane for each of them."""
    rows, (fewest, most) = plan.cta_tile_m, TCGEN05.m
    if least_rows(plan) <= rows <= most:
        return
    if rows not in TCGEN05.m:
        limit = f"tcgen05.mma takes {fewest} or {most} in each CTA"
        bound = f"use at most {most}" if rows > most else f"use at least {least_rows(plan)}"
        fix = f"use {most}" if least_rows(plan) == most else bound
    elif plan.block_scaled:
        limit = f"tcgen05_mma_scaled does not support blockM={rows}: with scales a CTA has {SCALE_ROWS}"
        fix = f"use {SCALE_ROWS}"
    else:
        limit = f"of a pair of CTAs each has {most}: with {rows} the sums of both would share its lanes"
        fix = f"use {most}"
    yield Finding("tile.m", f"a tile of {rows:,} rows", limit, fix)


@rule("tile-columns", after=[tile_power_of_two.at("tile.n")])
def tile_columns(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A CTA's columns are those of one instruction, and with scales whole blocks of them."""
    columns, fewest = plan.cta_tile_n, least_columns(plan)
    if fewest <= columns <= TCGEN05.n_max:
        return
    fix = f"use at least {fewest}"
    if columns > TCGEN05.n_max:
        limit, fix = f"an instruction has at most {TCGEN05.n_max}", f"use at most {TCGEN05.n_max}"
    elif plan.block_scaled:
        limit = f"the scales of {SCALE_ROWS} lie together"
    else:
        whose = "a pair of CTAs" if plan.paired else f"{plan.cta_tile_m} rows"
        limit = (
            f"an instruction of {whose} has at least {fewest}, and Triton compiles narrower ones in silence"
        )
    yield Finding("tile.n", f"a tile of {columns:,} columns", limit, fix)


@rule("tile-step", after=[tile_power_of_two.at("tile.k"), *TYPES])
def tile_step(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A K step is an instruction deep and has whole blocks of scales; padded boxes need no more."""
    step, fewest = plan.cta_tile_k, least_step(plan)
    if step >= fewest:
        return
    vectors = [operand.scale.vector for operand in (plan.problem.a, plan.problem.b) if operand.scale]
    limit = f"an instruction of {plan.mma_name} takes k = {plan.mma_k}"
    if fewest > plan.mma_k:
        limit = f"{SCALE_COLUMNS} scales of a row lie together, each of {max(vectors)} elements"
    yield Finding("tile.k", f"a K step of {step} elements", limit, f"use at least {fewest}")


TILE = (
    tile_power_of_two.at("tile.m", "tile.n", "tile.k"),
    *TYPES,
    tile_rows,
    tile_columns,
    tile_step,
)
"""Where these are kept, an instruction takes the tile: else no sum over it is true."""

TILE_RULES: tuple[Rule[Tcgen05Kernel], ...] = (
    cluster_shape,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    tile_rows,
    tile_columns,
    tile_step,
)
