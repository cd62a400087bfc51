"""Rules of what a kernel computes, of CTAs, their warps, and the tile that consumers share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.hardware import WGMMA
from gemmgen.hardware.elements import FP8, WGMMA_ACCUMULATORS, DType, outputs_of
from gemmgen.hardware.gpus import is_power_of_two, power_of_two_below
from gemmgen.plan.fix import OWN, Fix, at_least, at_most, either, hint, leave_out, nearest, use
from gemmgen.plan.rule import Consulted, Finding, Part, Rule, altered, counted, rule
from gemmgen.plan.shared_rules import (
    Rows,
    cluster_shapes,
    epilogue_expression,
    epilogue_factors,
    epilogue_ops,
    group_width,
    minor_dimension,
    narrowest_subtile,
    odd_extents,
    oversized_cluster,
    unaligned_shapes,
    unequal_types,
)
from gemmgen.plan.wgmma.bounds import expected_registers, most_consumer_registers, most_consumers, threads_of
from gemmgen.plan.wgmma.resources import WgmmaKernel
from gemmgen.spec.words import MmaRows


@rule("operand-dtypes", subject="problem")
def operand_dtypes(plan: WgmmaKernel) -> Iterator[Finding]:
    """Wgmma multiplies equal types, and the two 8-bit floats in any mix."""
    yield from unequal_types(plan.problem, "wgmma")


@rule("accumulator-dtype", subject="problem")
def accumulator_dtype(plan: WgmmaKernel) -> Iterator[Finding]:
    """The accumulator is one that the instruction has."""
    a, accumulator = plan.problem.a.dtype.name, plan.problem.accumulator.name
    if accumulator not in WGMMA_ACCUMULATORS[a]:
        yield Finding(
            "accumulator",
            f"products of {a} added up in {accumulator}",
            f"wgmma adds them up in {either(WGMMA_ACCUMULATORS[a])}",
            use(*WGMMA_ACCUMULATORS[a]),
        )


@rule("output-dtype", subject="problem")
def output_dtype(plan: WgmmaKernel) -> Iterator[Finding]:
    """D has a type to which the accumulator, and what is computed of it, can be converted."""
    problem = plan.problem
    accumulator, d = problem.accumulator.name, problem.d.name
    outputs = outputs_of(accumulator)
    if d not in outputs:
        yield Finding(
            "operands.d.dtype",
            f"D is {d} and its products are added up in {accumulator}",
            f"an {accumulator} accumulator becomes {either(outputs)}",
            use(*outputs),
        )
    elif d == "int32" and problem.transforms:
        yield Finding(
            "operands.d.dtype",
            "D is int32 behind an epilogue that computes",
            "it does so in fp32, whose 24 bits of mantissa do not hold every int32",
            use(*(name for name in outputs if name != "int32")),
        )


@rule("operand-major")
def operand_major(plan: WgmmaKernel) -> Iterator[Finding]:
    """Shared memory holds operands of 16 bits either way, and others along K only."""
    problem = plan.problem
    if problem.a.major == "mn" and problem.a.dtype.bits != 16 and plan.a_source == "shared":
        yield Finding(
            "operands.a.major",
            f"A is M-contiguous, of {problem.a.dtype.bits} bits",
            "wgmma reads only 16-bit operands across their rows in shared memory",
            use("k") | use("registers", field="operands.a.source"),
        )
    if problem.b.major == "mn" and problem.b.dtype.bits != 16:
        yield Finding(
            "operands.b.major",
            f"B is N-contiguous, of {problem.b.dtype.bits} bits",
            "wgmma reads only 16-bit operands across their rows in shared memory, and B from nowhere else",
            use("k", note="B stored as [N, K]"),
        )


@rule("shape-alignment", subject="problem")
def shape_alignment(plan: WgmmaKernel) -> Iterator[Finding]:
    """The rows of a contiguous A, B and C of a listed problem are multiples of what TMA can stride."""
    problem, alignment = plan.problem, plan.architecture.tma_alignment_bytes

    def rows(matrix: str, axis: int, dtype: DType) -> Rows:
        return Rows(
            matrix,
            axis,
            alignment // dtype.bytes,
            lambda extent: f"{extent * dtype.bytes:,} bytes",
            f"TMA strides in multiples of {alignment}",
        )

    matrices = [
        rows("A", 2 if problem.a.major == "k" else 0, problem.a.dtype),
        rows("B", 2 if problem.b.major == "k" else 1, problem.b.dtype),
    ]
    if problem.c:
        matrices.append(rows("C", 1, problem.c))
    yield from unaligned_shapes(plan.request, matrices, copyable=plan.read_early is None)


@rule("single-tile-shapes")
def single_tile_shapes(plan: WgmmaKernel) -> Iterator[Finding]:
    """A problem that is listed for a kernel of a single tile is no larger than the tile."""
    if plan.schedule_kind != "single_tile":
        return
    tile = (plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k)
    for field, axis, extent in plan.request.stated_extents():
        if extent > tile[axis]:
            yield Finding(
                field,
                f"{'MNK'[axis]} = {extent:,}",
                f"a kernel of a single tile computes at most {tile[axis]}",
                at_most(tile[axis]),
            )


TYPE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    operand_dtypes,
    accumulator_dtype,
    output_dtype,
    operand_major,
    shape_alignment,
    single_tile_shapes,
)
OPERATION_RULES: tuple[Rule[WgmmaKernel], ...] = (epilogue_ops, epilogue_factors, epilogue_expression)


MAX_CLUSTER = 4
"""CTAs of a program. 8 are portable and simulate clean, but how many such clusters an H100 holds at a time
was not measured: a persistent kernel launches as many programs, and takes twice as long with one too many.
"""
CLUSTERS = cluster_shapes(MAX_CLUSTER)
MAX_OCCUPANCY = 3
"""A third CTA of one warpgroup still has room for an accumulator of 64 x 256, a fourth has not."""
MAX_TILE_M = 2_048
"""[gluon] TMA loads at most 256 rows at a time: at 4,096 rows, 16 loads a step, producers of 24 and 32
registers spill; at 2,048 none does.
"""
MOST_PARTS = 3
"""Of a tile's columns: each reads A from shared memory again, and four would cost more than they fill."""

# --- CTAs and warps


@rule("schedule-kind")
def schedule_kind(plan: WgmmaKernel) -> Iterator[Finding]:
    """Roles of their own are for programs of many tiles: with one their code is the persistent kernel's."""
    if plan.specialized and not plan.persistent:
        kind = plan.schedule_kind.replace("_", " ")
        yield Finding(
            "warp_specialization.kind",
            f"{plan.specialization} consumers in a {kind} schedule",
            "a producer of its own loads the next tile while one is stored, and such a program has none",
            use("none") | use("persistent", field="schedule.kind"),
        )


MAX_SPLITS = 64
"""One program after the other adds its sums to a tile's, or one adds up those of all."""


@rule("splits")
def splits(plan: WgmmaKernel) -> Iterator[Finding]:
    """K is divided where a program loads ahead, and its consumers count together the parts of a tile."""
    if plan.splits == 1:
        return
    field, found = "schedule.splits", f"{plan.splits:,} parts of K"
    one = _whole_k(plan)
    if plan.schedule_kind == "single_tile":
        limit = "all of K is one step there"
        fix = one | use("tiled", "persistent", field="schedule.kind")
        yield Finding(field, f"{found} in a single tile schedule", limit, fix)
        return
    if plan.persistent and not plan.specialized:
        limit = "a persistent program of this version takes parts of K if it has a producer of its own"
        fix = one | use("tiled", field="schedule.kind")
        yield Finding(field, f"{found} without warp specialization", limit, fix)
    elif plan.ping_pong:
        limit = "this version divides K for consumers that share a tile"
        fix = _sharing_a_tile(plan) | _whole_k(plan, field)
        yield Finding("warp_specialization.kind", f"ping_pong and {found}", limit, fix)
    elif plan.synchronous:
        limit = "this version divides K for kernels that load ahead"
        yield Finding("buffering.stages", f"1 stage and {found}", limit, at_least(2))
    if plan.problem.accumulator.integer and plan.reduction == "ordered" and plan.occupancy == MAX_OCCUPANCY:
        # [gluon] Of 11, 12, 13, 17 and 19 parts with 16 sums a thread some spill 4 to 36 bytes, whatever is
        # read together; of floating-point numbers, and with two CTAs, none does.
        limit = f"the registers of {MAX_OCCUPANCY} CTAs hold no sums of integers on their way from memory"
        fix = at_most(MAX_OCCUPANCY - 1) | use("atomic", field="schedule.reduction")
        yield Finding("occupancy", f"{plan.occupancy} CTAs on each SM and {found}", limit, fix)
    if plan.splits > MAX_SPLITS:
        limit = f"the sums of at most {MAX_SPLITS} parts are added up to a tile"
        yield Finding(field, found, limit, at_most(MAX_SPLITS))


def _whole_k(plan: WgmmaKernel, field: str = OWN) -> Fix:
    """Return the fix that leaves K undivided; a reduction that only several parts of K have goes too."""
    one = use(1, field=field)
    return one if plan.reduction == "ordered" else one & leave_out("schedule.reduction")


def _sharing_a_tile(plan: WgmmaKernel) -> Fix:
    """Return the fix of the kind of warp specialization that lets consumers share a tile."""
    cooperative = use("cooperative")
    # Several would divide the tile's rows, which are the instruction's columns with swap-AB.
    return cooperative & use(1, field="warp_specialization.consumers") if plan.swap_ab else cooperative


@rule("last-wave")
def last_wave(plan: WgmmaKernel) -> Iterator[Finding]:
    """The last wave is divided among programs with a producer of their own, whose consumers share a tile."""
    if not plan.divides_last_wave:
        return
    field = "schedule.last_wave"
    whole, cooperative = use("whole", field=field), use("cooperative", field="warp_specialization.kind")
    if not plan.persistent:
        kind = plan.schedule_kind.replace("_", " ")
        limit = "a program of one tile has no later wave"
        fix = use("whole") | use("persistent", field="schedule.kind") & cooperative
        yield Finding(field, f"stream_k in a {kind} schedule", limit, fix)
        return
    if not plan.specialized:
        limit = "a persistent program of this version takes parts of tiles if it has a producer of its own"
        fix = use("whole") | cooperative
        yield Finding(field, "stream_k without warp specialization", limit, fix)
    elif plan.ping_pong:
        limit = "this version divides tiles for consumers that share one"
        fix = _sharing_a_tile(plan) | whole
        yield Finding("warp_specialization.kind", "ping_pong and stream_k", limit, fix)
    if plan.occupancy > 1:
        limit = "this version divides tiles among programs that have an SM each"
        yield Finding("occupancy", f"{plan.occupancy:,} CTAs on each SM and stream_k", limit, use(1) | whole)
    if plan.read_early:
        limit = "a piece of a tile begins with other K steps than the first, which are loaded early"
        fix = use("whole") | use("nothing", field="dependent_launch.early")
        yield Finding(field, f"stream_k with {plan.early_launch}", limit, fix)
    if plan.splits > 1:
        limit = "the last wave is of whole tiles, not of parts"
        found = f"{plan.splits:,} parts of K and stream_k"
        yield Finding("schedule.splits", found, limit, _whole_k(plan) | whole)


ARTICLES = {"atomic": "an", "parallel": "a"}


@rule("reduction")
def reduction(plan: WgmmaKernel) -> Iterator[Finding]:
    """Sums are added up as they come, or by a second kernel, only where there are several."""
    if plan.reduction == "ordered" or plan.splits > 1:
        return
    found = f"{ARTICLES[plan.reduction]} {plan.reduction} reduction"
    if plan.divides_last_wave:
        yield Finding(
            "schedule.reduction",
            f"{found} with stream_k",
            "this version adds up the sums of a tile's pieces in their order",
            leave_out(),
        )
        return
    problem = plan.problem
    refused = (problem.deterministic or problem.batch_invariant) and not problem.accumulator.integer
    refused &= plan.reduction == "atomic"
    several = at_least(2, "schedule.splits")
    if plan.persistent:
        several &= use("cooperative", field="warp_specialization.kind")
    yield Finding(
        "schedule.reduction",
        f"{found} of 1 part of K",
        "one program has all of a tile's sums, and adds nothing up",
        leave_out() if refused or plan.schedule_kind == "single_tile" else leave_out() | several,
    )


@rule("same-bits", after=[reduction])
def same_bits(plan: WgmmaKernel) -> Iterator[Finding]:
    """A D that must have the same bits in every run is of sums that are added up in a fixed order."""
    problem = plan.problem
    if plan.divides_last_wave and problem.batch_invariant and not problem.accumulator.integer:
        yield Finding(
            "schedule.last_wave",
            "stream_k for a batch-invariant kernel",
            "where the sums of a tile are parted depends on how many tiles there are, so on M",
            use("whole"),
        )
    if plan.deterministic or not (problem.deterministic or problem.batch_invariant):
        return
    asked = "deterministic" if problem.deterministic else "batch-invariant"
    yield Finding(
        "schedule.reduction",
        f"an atomic reduction for a {asked} kernel",
        "floating-point sums that are added up as they come differ from run to run",
        use("ordered"),
    )


@rule("parallel-reduction", after=[reduction])
def parallel_reduction(plan: WgmmaKernel) -> Iterator[Finding]:
    """The kernel that adds up sums starts behind one that waits for all ahead, and stores D by pieces."""
    if not plan.reduces_apart:
        return
    if plan.dependent:
        yield Finding(
            "schedule.reduction",
            f"a parallel reduction with {plan.early_launch}",
            "the sums of the call before may still be read then"
            if plan.read_early
            else "this version starts a pair of kernels only behind all that is ahead",
            use("ordered") | leave_out("dependent_launch"),
        )
    if plan.problem.copies_misaligned:
        yield Finding(
            "schedule.reduction",
            "a parallel reduction with copies of misaligned tensors",
            "this version copies for kernels that store D themselves",
            use("ordered") | use("refuse", field="operands.misaligned"),
        )
    if plan.subtile_n != plan.cta_tile_n:
        yield Finding(
            "epilogue.subtile_n",
            f"sub-tiles of {plan.subtile_n} columns and a parallel reduction",
            "the kernel that adds up the sums stores D, and has no sub-tiles",
            use(plan.cta_tile_n) | use("ordered", field="schedule.reduction"),
        )


@rule("dependent-launch")
def dependent_launch(plan: WgmmaKernel) -> Iterator[Finding]:
    """A kernel that starts early has its first loads ahead of all else: a program's own, or a producer's."""
    if not plan.dependent or plan.specialized:
        return
    found = plan.early_launch
    limit = "this version starts kernels early whose programs have a producer, or one tile and load ahead"
    if plan.schedule_kind != "tiled":
        kind = plan.schedule_kind.replace("_", " ")
        fix = use("tiled")
        if plan.persistent:
            fix |= use("cooperative", field="warp_specialization.kind")
        fix |= leave_out("dependent_launch")
        yield Finding("schedule.kind", f"{found} in a {kind} schedule", limit, fix)
    elif plan.synchronous:
        yield Finding("buffering.stages", f"1 stage and {found}", limit, at_least(2))


@rule("cluster-shape")
def cluster_shape(plan: WgmmaKernel) -> Iterator[Finding]:
    """A program is a power of two of CTAs, up to four, and several of them have producers to share tiles."""
    if plan.specialized:
        why = "how many larger ones run at a time was not measured"
        yield from oversized_cluster(plan, CLUSTERS, why=why)
        return
    for field, ctas in (("m", plan.cluster_m), ("n", plan.cluster_n)):
        if ctas > 1:
            yield Finding(
                f"cluster.{field}",
                f"{ctas:,} CTAs along {field.upper()} without warp specialization",
                "only producers of their own wait for the consumers of other CTAs before a multicast",
                use(1),
            )


@rule("warp-layout")
def warp_layout(plan: WgmmaKernel) -> Iterator[Finding]:
    """A consumer is warpgroups of four warps down an instruction: Gluon accepts others, which are wrong."""
    warpgroup = plan.architecture.warps_per_warpgroup
    (down, along), rows = plan.warps_across, plan.mma_axis
    if down not in (warpgroup, 2 * warpgroup):
        yield Finding(
            f"warps.{rows}",
            f"{counted(down, 'warp')} along {rows.upper()}",
            "the four warps of a warpgroup hold 16 rows each of an instruction, and a consumer has one or "
            "two warpgroups",
            use(warpgroup, 2 * warpgroup) if along == 1 else use(warpgroup),
        )
    most = 1 if down == 2 * warpgroup else 2
    if along > most:
        yield Finding(
            f"warps.{plan.mma.right.axis}",
            f"{plan.warps_m:,} x {plan.warps_n:,} warps",
            f"a consumer has {warpgroup} or {2 * warpgroup}, and at least {warpgroup} of them along "
            f"{rows.upper()}",
            at_most(most),
        )


@rule("swap-ab")
def swap_ab(plan: WgmmaKernel) -> Iterator[Finding]:
    """With swap-AB both operands are in shared memory, and consumers do not divide a tile's rows."""
    if not plan.swap_ab:
        return
    if plan.mma.right.source == "registers":
        yield Finding(
            "operands.a.source",
            "A from registers with swap-AB",
            "the instruction's left operand is then B, and wgmma reads only its left one from registers",
            use("shared") | use(False, field="mma.swap_ab"),
        )
    if plan.row_shares > 1:
        yield Finding(
            "warp_specialization.consumers",
            f"{plan.consumers} cooperative consumers with swap-AB",
            "cooperative consumers split M, which is the instruction's N after swap_ab",
            use(1) if plan.shares_tiles else use(1) | use("ping_pong", field="warp_specialization.kind"),
        )


CONSUMER_COUNTS = (1, 2, 3, 4)
"""Of those that share a tile's rows; three take three quarters as many registers as four can have."""


@rule("consumer-count", consults=[warp_layout])
def consumer_count(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """The consumers share the tile's rows evenly, and their CTA has threads for them all."""
    field, most = "warp_specialization.consumers", max(1, most_consumers(plan))
    if not plan.specialized:
        if plan.consumers != 1:
            found = f"{plan.consumers:,} consumers without warp specialization"
            yield Finding(field, found, "then all warps do the same, and are one", use(1))
    elif plan.ping_pong and plan.consumers != 2:
        yield Finding(
            field,
            f"{counted(plan.consumers, 'consumer')} in ping-pong",
            "two take turns, one at the tensor cores and one at its epilogue",
            use(2),
        )
    elif plan.consumers > most and not consulted.broken(warp_layout):
        threads, limit = threads_of(plan, plan.consumers), plan.architecture.threads_per_cta
        yield Finding(
            field,
            f"{plan.consumers:,} consumers and the producer are {threads:,} threads",
            f"a CTA has at most {limit:,}",
            at_most(max(count for count in CONSUMER_COUNTS if count <= most)),
        )
    elif plan.consumers not in CONSUMER_COUNTS:
        yield Finding(
            field,
            f"{plan.consumers} consumers",
            f"this version generates kernels of {either(CONSUMER_COUNTS)}",
            at_most(max(CONSUMER_COUNTS)),
        )


CONSUMERS = (consumer_count, warp_layout)
"""Where these are kept, consumers have warps of their own."""


@rule("occupancy")
def occupancy(plan: WgmmaKernel) -> Iterator[Finding]:
    """At most three CTAs share an SM, and those of a cluster have one each."""
    most = 1 if plan.cluster_size > 1 else MAX_OCCUPANCY
    if plan.occupancy > most:
        limit = f"what a thread needs beside its sums was measured with up to {MAX_OCCUPANCY}"
        if most == 1:
            limit = f"a {plan.cluster_m} x {plan.cluster_n} cluster has its CTAs one on each SM"
        yield Finding("occupancy", f"{plan.occupancy:,} CTAs on each SM", limit, at_most(most))


# --- the tile


def least_rows(plan: WgmmaKernel) -> int:
    """Return the fewest rows of an instruction's tile of which each warp of each consumer has its own 16."""
    return plan.row_shares * plan.warps_across[0] * WGMMA.rows_per_warp


def least_columns(plan: WgmmaKernel) -> int:
    """Return the fewest columns of an instruction's tile of which every warp has one instruction's."""
    return plan.warps_across[1] * WGMMA.n_min


def mma_tile(plan: WgmmaKernel) -> tuple[int, int]:
    """Return the extents of a CTA's tile along the rows and along the columns of the instruction."""
    return plan.mma.across(plan.cta_tile_m, plan.cta_tile_n)


def least_tile(plan: WgmmaKernel) -> tuple[int, int]:
    """Return the fewest rows and columns of a tile of D that its warps can share."""
    return plan.mma.of_d(least_rows(plan), least_columns(plan))


@rule("tile-power-of-two", consults=CONSUMERS)
def tile_power_of_two(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """Every block extent in Gluon is a power of two: a consumer's rows, and each part of the columns."""
    rows, columns = least_tile(plan)
    thirds = plan.row_shares == 3
    if consulted.broken(*CONSUMERS):
        rows, columns = plan.mma.of_d(WGMMA.m, WGMMA.n_min)
        thirds = False
    widest = plan.column_parts[-1] if adds_up(plan) else WGMMA.n_max
    most = plan.mma.of_d(MAX_TILE_M, WGMMA.n_max)
    if thirds and not (plan.cta_tile_m % 3 == 0 and is_power_of_two(plan.cta_tile_m // 3)):
        below = 3 * power_of_two_below(max(1, plan.cta_tile_m // 3))
        yield Finding(
            "tile.m",
            f"{plan.cta_tile_m:,} rows for 3 consumers",
            "each has a block of them, and Gluon's block extents are powers of two",
            nearest(below, 2 * below, low=rows, high=3 * power_of_two_below(MAX_TILE_M // 3)),
        )
    if not adds_up(plan):
        yield _odd_columns(plan, columns, most[1])
    for found in odd_extents(
        (
            *(() if thirds else (("tile.m", plan.cta_tile_m, rows, most[0]),)),
            ("tile.k", plan.cta_tile_k, plan.mma_shape[2], None),
            ("epilogue.subtile_n", plan.subtile_n, max(WGMMA.n_min, narrowest_subtile(plan)), widest),
        )
    ):
        shared = found.field == "tile.m" and plan.specialization == "cooperative" and not plan.swap_ab
        if shared and plan.cta_tile_m % (3 * WGMMA.m) == 0 and is_power_of_two(plan.cta_tile_m // 3):
            yield replace(found, fix=found.fix | use(3, field="warp_specialization.consumers"))
        else:
            yield found


def adds_up(plan: WgmmaKernel) -> bool:
    """Whether a tile's columns are a power of two, or a sum of few that are wide enough for instructions."""
    return is_power_of_two(plan.cta_tile_n) or _is_sum(plan.cta_tile_n, WGMMA.n_min)


def _is_sum(columns: int, narrowest: int) -> bool:
    return columns.bit_count() <= MOST_PARTS and columns % narrowest == 0


def sum_of_parts(plan: WgmmaKernel) -> str:
    """Return a composed tile's columns as the sum that they are."""
    if plan.staggered:
        return f"{plan.cta_tile_n} ({plan.cta_widest_n} and {plan.cta_widest_n - 2 * plan.stagger_n})"
    return f"{plan.cta_tile_n} = {' + '.join(map(str, plan.column_parts))}"


def sums_around(columns: int, narrowest: int) -> tuple[int, int]:
    """Return the nearest widths below and above that a composed tile with such parts can have."""
    below = next((n for n in range(columns, 0, -1) if _is_sum(n, narrowest)), narrowest)
    above = next(n for n in range(columns, 4 * columns + narrowest) if _is_sum(n, narrowest))
    return below, above


def _odd_columns(plan: WgmmaKernel, low: int, high: int) -> Finding:
    """Return what is wrong with the columns of a tile that are no sum of parts."""
    limit = "Gluon's block extents are powers of two"
    if not plan.specialized or plan.swap_ab:
        below = power_of_two_below(plan.cta_tile_n)
        found = f"{plan.cta_tile_n:,} is no power of two"
        return Finding("tile.n", found, limit, nearest(below, 2 * below, low=low, high=high))
    found = f"{plan.cta_tile_n:,} is no sum of at most {MOST_PARTS} powers of two from {WGMMA.n_min} on"
    high = sum(high >> halvings for halvings in range(MOST_PARTS))
    fix = nearest(*sums_around(min(plan.cta_tile_n, high), WGMMA.n_min), low=low, high=high)
    return Finding("tile.n", found, f"{limit}, and a tile has no more parts", fix)


def _plain_widths(plan: WgmmaKernel) -> tuple[int, ...]:
    """Return the powers of two around a composed tile's columns; the wider one if its sums have registers."""
    below = power_of_two_below(plan.cta_tile_n)
    wider = altered(plan, cta_tile_n=2 * below, a_source="shared")
    return (below, 2 * below) if expected_registers(wider) <= most_consumer_registers(wider) else (below,)


@rule("composed-tile")
def composed_tile(plan: WgmmaKernel) -> Iterator[Finding]:
    """Parts of a tile are for roles, or for tiled programs; each is whole in a CTA and a warp."""
    if not plan.composed or not adds_up(plan):
        return
    columns, widths = f"a tile of {sum_of_parts(plan)} columns", _plain_widths(plan)
    if plan.swap_ab:
        rows = use(False, field="mma.swap_ab")
        if not plan.specialized:
            rows &= use("cooperative", "ping_pong", field="warp_specialization.kind")
        limit = "parts divide the instruction's columns, which are M after swap_ab"
        yield Finding("tile.n", f"{columns} with swap-AB", limit, use(*widths) | rows)
        return
    if not plan.specialized and plan.schedule_kind != "tiled":
        where = "" if plan.persistent else ", in a persistent schedule"
        yield Finding(
            "tile.n",
            f"{columns} without warp specialization in a {plan.schedule_kind} schedule",
            "this version composes the tiles of roles, and of tiled programs",
            use(*widths) | hint(f"a kind of warp specialization{where}"),
        )
        return
    if not plan.specialized:
        roles = hint("a kind of warp specialization, in a persistent schedule")
        if plan.a_source == "registers":
            limit = "without roles this version reads the A of parts from shared memory"
            found = f"A in registers for {columns}"
            yield Finding("operands.a.source", found, limit, use("shared") | roles)
        if plan.promote_k:
            limit = "without roles this version adds up the sums of parts in the tensor cores alone"
            found = f"sums promoted after {plan.promote_k} of K for {columns}"
            yield Finding("mma.promote_k", found, limit, leave_out() | roles)
        if plan.read_early:
            limit = "without roles this version loads no operand of parts early"
            fix = use(*widths) | use("nothing", field="dependent_launch.early")
            yield Finding("tile.n", f"{columns} with {plan.early_launch}", limit, fix)
    stored = "it is stored in sub-tiles, which would part the columns of one"
    if plan.cluster_n > 1:
        found = f"{columns} in each of {plan.cluster_n} CTAs along N"
        yield Finding("cluster.n", found, f"{stored} CTA from another's", use(1))
    if plan.warps_n > 1:
        found = f"{columns} for {plan.warps_n} warps along N"
        yield Finding("warps.n", found, f"{stored} warp from another's", use(1))
    if plan.splits > 1:
        yield Finding(
            "schedule.splits",
            f"{plan.splits} parts of K for {columns}",
            "this version adds up the sums of splits for tiles of one part",
            use(1) | use(*widths, field="tile.n"),
        )
    if plan.divides_last_wave:
        yield Finding(
            "schedule.last_wave",
            f"stream_k for {columns}",
            "this version adds up the sums of pieces for tiles of one part",
            use("whole") | use(*widths, field="tile.n"),
        )


def _staggered_widths(plan: WgmmaKernel) -> list[int]:
    """Return the widths around a power of two that can be staggered and whose sums have registers."""
    below = 3 * plan.cta_tile_n // 4
    wider = (altered(plan, cta_tile_n=columns) for columns in (below, 2 * below) if columns > WGMMA.n_min)
    return [each.cta_tile_n for each in wider if expected_registers(each) <= most_consumer_registers(each)]


@rule("staggered-tile", after=[composed_tile, *CONSUMERS], consults=[tile_power_of_two.at("tile.n")])
def staggered_tile(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """Two consumers that share a tile's rows have unequal columns of it, and store their sums alone."""
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
            "two cooperative consumers share a tile of which one has more columns than the other",
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
    elif plan.cluster_size > 1:
        extent = "cluster.m" if plan.cluster_m > 1 else "cluster.n"
        yield Finding(
            extent,
            f"{plan.cluster_size} CTAs that share staggered tiles",
            "this version staggers the tiles of single CTAs",
            use(1) | leave_out("tile.staggered"),
        )
    elif plan.a_source == "registers":
        limit = "this version multiplies unequal columns by an A in shared memory"
        if plan.problem.a.major == "mn" and plan.problem.a.dtype.bits != 16:  # not in shared memory
            found = f"{columns} with an M-contiguous A of {plan.problem.a.dtype.bits} bits"
            yield Finding(field, found, limit, leave_out())
        else:
            fix = use("shared") | leave_out("tile.staggered")
            yield Finding("operands.a.source", f"A in registers for {columns}", limit, fix)
    elif plan.promote_k:
        limit = "this version adds up the sums of unequal columns in the tensor cores alone"
        found = f"sums promoted after {plan.promote_k} of K for {columns}"
        yield Finding("mma.promote_k", found, limit, leave_out() | leave_out("tile.staggered"))
    elif plan.problem.c is not None or plan.problem.vectors:
        read = "C" if plan.problem.c is not None else " and ".join(plan.problem.vectors)
        yield Finding(
            field,
            f"{columns} with {read}",
            "this version loads no operand of the epilogue for consumers of unequal columns",
            leave_out(),
        )


ODD_SIDES = (tile_power_of_two.at("tile.m"), tile_power_of_two.at("tile.n"))


def odd_side(axis: MmaRows) -> Part[WgmmaKernel]:
    """Return the finding that the tile's extent along M or N is no power of two."""
    return ODD_SIDES["mn".index(axis)]


@rule("consumer-rows", after=CONSUMERS, consults=ODD_SIDES)
def consumer_rows(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """Every warp of a consumer has its own 16 rows of the tile: Gluon lets warps repeat others' work."""
    warps, extent = plan.warps_across[0], mma_tile(plan)[0]
    rows = WGMMA.rows_per_warp * warps
    if extent < least_rows(plan) and not consulted.broken(odd_side(plan.mma_axis)):
        share = "for a lone consumer" if plan.consumers == 1 else "for each consumer"
        if plan.row_shares > 1:
            share = f"give {plan.row_shares} consumers {plan.cta_consumer_tile_m} each"
        yield Finding(
            f"tile.{plan.mma_axis}",
            f"{extent} {plan.mma.left.lines} {share}",
            f"the {warps} warps of a consumer take {rows}, {WGMMA.rows_per_warp} each",
            at_least(least_rows(plan)),
        )


@rule("tile-rows", consults=ODD_SIDES)
def tile_rows(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """The producer, which issues a load per 256 rows, has registers for the coordinates of them all."""
    rows = mma_tile(plan)[0]
    if rows > MAX_TILE_M and not consulted.broken(odd_side(plan.mma_axis)):
        yield Finding(
            f"tile.{plan.mma_axis}",
            f"a tile of {rows:,} {plan.mma.left.lines}",
            f"beyond {MAX_TILE_M:,} the TMA loads of a K step take more registers than a producer may have",
            at_most(MAX_TILE_M),
        )


@rule("mma-n", after=[warp_layout], consults=ODD_SIDES)
def mma_n(plan: WgmmaKernel, consulted: Consulted) -> Iterator[Finding]:
    """The tile is as wide as an instruction, and the instruction one that Gluon has."""
    if consulted.broken(odd_side(plan.mma.right.axis)):
        return
    columns, warps, axis = plan.mma_parts[0], plan.warps_across[1], plan.mma.right.axis.upper()
    share = columns // warps
    narrowest = least_columns(plan)
    if columns < narrowest:
        yield Finding(
            f"tile.{plan.mma.right.axis}",
            f"a tile of {columns} {plan.mma.right.lines}",
            f"the narrowest wgmma has n = {WGMMA.n_min}"
            + (f", for each of {warps} warps along {axis}" if warps > 1 else ""),
            at_least(narrowest),
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
            f"the warps of a consumer have {share} each along {axis}",
            at_most(share),
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
            at_least(k),
        )


EXTENTS = (
    tile_power_of_two.at("tile.m", "tile.n", "tile.k"),
    composed_tile,
    *CONSUMERS,
    consumer_rows,
    mma_n.at("tile.m", "tile.n"),
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
            leave_out() | hint("e4m3 or e5m2 operands and fp32"),
        )
    elif plan.promote_k != plan.cta_tile_k:
        yield Finding(
            field,
            f"promotion after {plan.promote_k:,} of K",
            f"sums are promoted after each K step, of {plan.cta_tile_k}",
            use(plan.cta_tile_k),
        )
    elif plan.outstanding_mmas:
        yield Finding(
            "buffering.outstanding_mmas",
            f"{plan.outstanding_mmas} outstanding MMA with promotion",
            "a sum is promoted when it has retired, before the next one starts",
            use(0),
        )
    elif plan.schedule_kind == "single_tile":
        yield Finding(
            field,
            f"promotion after {plan.promote_k} of K",
            "a kernel of a single tile has one K step",
            leave_out() | hint("a tiled or persistent schedule"),
        )


TILE_RULES: tuple[Rule[WgmmaKernel], ...] = (
    schedule_kind,
    splits,
    last_wave,
    reduction,
    parallel_reduction,
    same_bits,
    dependent_launch,
    cluster_shape,
    consumer_count,
    warp_layout,
    swap_ab,
    occupancy,
    group_width,
    minor_dimension,
    tile_power_of_two,
    composed_tile,
    staggered_tile,
    consumer_rows,
    tile_rows,
    mma_n,
    mma_k,
    promotion,
)
