"""Rules of CTAs and warps: roles and their schedule, clusters, consumers, warps over a tile, occupancy."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.fix import at_most, either, use
from gemmgen.plan.rule import Consulted, Finding, counted, rule
from gemmgen.plan.shared_rules import cluster_shapes, oversized_cluster
from gemmgen.plan.wgmma.bounds import most_consumers, threads_of
from gemmgen.plan.wgmma.resources import WgmmaKernel

MAX_CLUSTER = 4
"""CTAs of a program. 8 are portable and simulate clean, but how many such clusters an H100 holds at a time
was not measured: a persistent kernel launches as many programs, and takes twice as long with one too many.
"""
CLUSTERS = cluster_shapes(MAX_CLUSTER)
MAX_OCCUPANCY = 4
"""A third CTA of one warpgroup still has room for an accumulator of 64 x 256, a fourth does not."""


@rule("schedule-kind")
def schedule_kind(plan: WgmmaKernel) -> Iterator[Finding]:
    """Roles require a persistent schedule: with one tile their code is the persistent kernel's."""
    if plan.specialized and not plan.persistent:
        kind = plan.schedule_kind.replace("_", " ")
        yield Finding(
            "warp_specialization.kind",
            f"{plan.specialization} consumers in a {kind} schedule",
            "a producer of its own loads the next tile while one is stored, and such a program has none",
            use("none") | use("persistent", field="schedule.kind"),
        )


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
    """A consumer has 4 or 8 warps along the instruction's rows: Gluon computes wrong sums with others."""
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


CONSUMER_COUNTS = (1, 2, 3, 4)
"""Numbers of consumers that share a tile's rows; three take three quarters as many registers as four can
have.
"""


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
            f"a kernel has {either(CONSUMER_COUNTS)}",
            at_most(max(CONSUMER_COUNTS)),
        )


CONSUMERS = (consumer_count, warp_layout)
"""Where these are kept, consumers have warps of their own."""


@rule("occupancy")
def occupancy(plan: WgmmaKernel) -> Iterator[Finding]:
    """At most four CTAs share an SM, and each CTA of a cluster has an SM of its own."""
    most = 1 if plan.cluster_size > 1 else MAX_OCCUPANCY
    if plan.occupancy > most:
        limit = f"what a thread needs beside its sums was measured with up to {MAX_OCCUPANCY}"
        if most == 1:
            limit = f"a {plan.cluster_m} x {plan.cluster_n} cluster has its CTAs one on each SM"
        yield Finding("occupancy", f"{plan.occupancy:,} CTAs on each SM", limit, at_most(most))
