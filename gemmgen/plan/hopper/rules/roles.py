"""Rules of CTAs and their warps: clusters, consumers, schedules."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.extents import is_power_of_two, power_of_two_below
from gemmgen.plan.hopper.bounds import most_consumers, threads_of
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.rules.roles import MAX_CLUSTER
from gemmgen.plan.rules.rule import breaks, counted, nearest, rule_id

MAX_OCCUPANCY = 3
"""A third CTA of one warpgroup still has room for an accumulator of 64 x 256, a fourth has not."""


def schedule_kind(plan: WgmmaPlan) -> Iterator[Violation]:
    """Roles of their own pay off over many tiles, and are generated for those only."""
    if plan.specialized and not plan.persistent:
        kind = plan.schedule_kind.replace("_", " ")
        yield Violation(
            rule_id(schedule_kind),
            "warp_specialization.kind",
            f"{plan.specialization} consumers in a {kind} schedule",
            "a producer of its own keeps loads going from tile to tile, and such a program has but one",
            "use none, or persistent for schedule.kind",
        )


def cluster_shape(plan: WgmmaPlan) -> Iterator[Violation]:
    """A program is a power of two of CTAs, up to four, and several of them have producers to share tiles."""
    sides = (plan.cluster_m, plan.cluster_n)
    possible = [is_power_of_two(ctas) and ctas <= MAX_CLUSTER for ctas in sides]
    for i, field in enumerate("mn"):
        ctas, beside = sides[i], sides[1 - i] if possible[1 - i] else 1
        if not plan.specialized and ctas > 1:
            yield Violation(
                rule_id(cluster_shape),
                f"cluster.{field}",
                f"{ctas:,} CTAs along {field.upper()} without warp specialization",
                "only producers of their own wait for the consumers of other CTAs before a multicast",
                "use 1",
            )
        elif not possible[i]:
            below = power_of_two_below(ctas)
            yield Violation(
                rule_id(cluster_shape),
                f"cluster.{field}",
                f"{ctas:,} CTAs along {field.upper()}",
                f"a cluster has a power of two of CTAs along M and along N, and at most {MAX_CLUSTER} in all",
                nearest(below, 2 * below, high=MAX_CLUSTER // beside),
            )
        elif all(possible) and plan.cluster_size > MAX_CLUSTER and i == sides.index(max(sides)):
            yield Violation(
                rule_id(cluster_shape),
                f"cluster.{field}",
                f"{ctas} of {plan.cluster_m} x {plan.cluster_n} CTAs along {field.upper()}",
                f"a cluster has at most {MAX_CLUSTER} in all",
                f"use at most {MAX_CLUSTER // beside}",
            )


def consumer_count(plan: WgmmaPlan) -> Iterator[Violation]:
    """The consumers share the tile's rows in power-of-two parts, and their CTA has threads for them all."""
    field, most = "warp_specialization.consumers", max(1, most_consumers(plan))
    if not plan.specialized:
        if plan.consumers != 1:
            yield Violation(
                rule_id(consumer_count),
                field,
                f"{plan.consumers:,} consumers without warp specialization",
                "then all warps do the same, and are one",
                "use 1",
            )
    elif plan.ping_pong and plan.consumers != 2:
        yield Violation(
            rule_id(consumer_count),
            field,
            f"{counted(plan.consumers, 'consumer')} in ping-pong",
            "two take turns, one at the tensor cores and one at its epilogue",
            "use 2",
        )
    elif plan.consumers > most and not breaks(plan, warp_layout):
        threads, limit = threads_of(plan, plan.consumers), plan.architecture.threads_per_cta
        yield Violation(
            rule_id(consumer_count),
            field,
            f"{plan.consumers:,} consumers and the producer are {threads:,} threads",
            f"a CTA has at most {limit:,}",
            f"use at most {power_of_two_below(most)}",
        )
    elif not is_power_of_two(plan.consumers):
        below = power_of_two_below(plan.consumers)
        yield Violation(
            rule_id(consumer_count),
            field,
            f"{plan.consumers} consumers",
            "this version generates kernels whose number of consumers is a power of two",
            nearest(below, 2 * below, high=power_of_two_below(most)),
        )


def warp_layout(plan: WgmmaPlan) -> Iterator[Violation]:
    """A consumer is whole warpgroups, each of four warps along M: Gluon accepts others, which are wrong."""
    warpgroup = plan.architecture.warps_per_warpgroup
    if plan.warps_m not in (warpgroup, 2 * warpgroup):
        yield Violation(
            rule_id(warp_layout),
            "warps.m",
            f"{counted(plan.warps_m, 'warp')} along M",
            "the four warps of a warpgroup hold 16 rows each of an instruction, and a consumer has one or "
            "two warpgroups",
            f"use {warpgroup} or {2 * warpgroup}" if plan.warps_n == 1 else f"use {warpgroup}",
        )
    most = 1 if plan.warps_m == 2 * warpgroup else 2
    if plan.warps_n > most:
        yield Violation(
            rule_id(warp_layout),
            "warps.n",
            f"{plan.warps_m:,} x {plan.warps_n:,} warps",
            f"a consumer has {warpgroup} or {2 * warpgroup}, and at least {warpgroup} of them along M",
            f"use at most {most}",
        )


def occupancy(plan: WgmmaPlan) -> Iterator[Violation]:
    """At most three CTAs share an SM, and those of a cluster have one each."""
    most = 1 if plan.cluster_size > 1 else MAX_OCCUPANCY
    if plan.occupancy > most:
        threads = f"a {plan.cluster_m} x {plan.cluster_n} cluster" if most == 1 else "this version"
        limit = "its CTAs one on each SM" if most == 1 else f"kernels for at most {MAX_OCCUPANCY}"
        yield Violation(
            rule_id(occupancy),
            "occupancy",
            f"{plan.occupancy:,} CTAs on each SM",
            f"{threads} {'has' if most == 1 else 'generates'} {limit}",
            f"use at most {most}",
        )
