"""Rules of CTAs: clusters, how many share an SM."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.errors import Violation
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.extents import is_power_of_two, power_of_two_below
from gemmgen.plan.rules.roles import MAX_CLUSTER
from gemmgen.plan.rules.rule import counted, nearest, rule_id


def cluster_shape(plan: Tcgen05Plan) -> Iterator[Violation]:
    """Several CTAs of a program are pairs along M, of which two share tiles where nothing is scaled."""
    m, n = plan.cluster_m, plan.cluster_n
    most = 2 if plan.block_scaled else MAX_CLUSTER
    possible = [is_power_of_two(ctas) and ctas <= MAX_CLUSTER for ctas in (m, n)]
    beside_m, beside_n = n if possible[1] else 1, m if possible[0] else 1
    highest = (max(1, most // beside_m), most // beside_n if beside_n > 1 and not plan.block_scaled else 1)
    for field, ctas, is_possible, high in zip("mn", (m, n), possible, highest, strict=True):
        if not is_possible:
            below = power_of_two_below(ctas)
            yield Violation(
                rule_id(cluster_shape),
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
        who = "a block-scaled kernel has at most one pair of CTAs" if plan.block_scaled else "a cluster has"
        limit = who if plan.block_scaled else f"{who} at most {most} CTAs in all"
        fix = most // (n if field == "m" else m)
    else:
        return
    yield Violation(
        rule_id(cluster_shape),
        f"cluster.{field}",
        f"{m} x {n} CTAs" if m > 1 and n > 1 else f"{m * n} CTAs along {field.upper()}",
        limit,
        "use 1" if fix == 1 else f"use at most {fix}",
    )


def occupancy(plan: Tcgen05Plan) -> Iterator[Violation]:
    """A CTA has its SM alone: one may use all of tensor memory, and its registers are the whole file."""
    if plan.occupancy > 1:
        yield Violation(
            rule_id(occupancy),
            "occupancy",
            f"{counted(plan.occupancy, 'CTA')} on each SM",
            f"the {plan.threads} threads of one start with all of its registers",
            "use 1",
        )
