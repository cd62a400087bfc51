"""Warnings about legal plans: few registers, idle SMs, few waves, searches that are sampled or not ranked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemmgen.errors import Diagnostic
from gemmgen.plan.decisions import FIELDS, pinned, searched
from gemmgen.plan.fix import clause, written
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Violation, altered, counted, decisions_of, judge
from gemmgen.plan.search import MOST_CONFIGURATIONS
from gemmgen.plan.verdicts import NOT_CONFIRMED, verdict_of
from gemmgen.planner.attempts import in_order
from gemmgen.planner.families import family_for, family_of
from gemmgen.spec import SpecFile

FEW_WAVES = 0.5
"""Below which more than half of the programs that the GPU could hold have no tile."""


def warnings(source: SpecFile, plan: Kernel) -> tuple[Diagnostic, ...]:
    """Return the warnings of a legal plan: registers, idle SMs, searches that are sampled or not ranked."""
    found = [*_short_of_registers(plan), *_idle(plan), *_sampled(source), *_unranked(source, plan)]
    return tuple(replace(each.diagnosed(source), severity="warning") for each in in_order(found, source))


def _short_of_registers(plan: Kernel) -> Iterator[Violation]:
    """Yield a warning for each role that is expected to take more registers than it has.

    The planner proposes such a kernel only if a spec leaves it no other. The compiler's verdict, if there is
    one, takes the place of the expectation.
    """
    if verdict_of(plan) is None:
        for found in judge(plan, family_for(plan).expectations):
            yield replace(found, fix=clause(NOT_CONFIRMED))


def _idle(plan: Kernel) -> Iterator[Violation]:
    gpu = plan.gpu
    programs = plan.resident_programs // plan.occupancy
    if idle := gpu.sm_count - programs * plan.cluster_size:
        yield Violation(
            "idle-sms",
            "cluster.m" if plan.cluster_m >= plan.cluster_n else "cluster.n",
            f"{programs} clusters of {plan.cluster_m} x {plan.cluster_n} CTAs run at a time",
            f"which leaves {idle} of the {gpu.sm_count} SMs of an {gpu.name} without work",
            clause("smaller clusters leave fewer SMs idle"),
        )
    for i, shape in enumerate(plan.request.bench_shapes):
        if (waves := plan.waves(shape)) < FEW_WAVES:
            yield Violation(
                "few-waves",
                f"bench.shapes.{i}",
                f"{waves:.2f} waves of tiles",
                f"{1 - waves:.0%} of the programs that the {gpu.name} holds have no tile of this problem",
                clause("use smaller tiles or split K to fill the GPU"),
            )


def _sampled(source: SpecFile) -> Iterator[Violation]:
    search = source.spec.search
    if (size := family_of(source).space.size(source)) > MOST_CONFIGURATIONS:
        yield Violation(
            "large-search",
            f"search.{next(iter(search))}" if search else "",
            f"{size:,} combinations",
            f"{MOST_CONFIGURATIONS:,} of them were tried, evenly spread over all",
            clause("state more fields, or search fewer values, to try all"),
        )


def _unranked(source: SpecFile, plan: Kernel) -> Iterator[Violation]:
    """Yield a warning for each searched field that no cost of the plan or its alternatives reads."""
    family, wanted = family_of(source), searched(source.spec)
    known = set[str]()
    for name, values in wanted.items():
        for value in values:
            kernel = altered(plan, **{name: value})
            for shape in source.request.planned_shapes:
                known |= decisions_of(kernel, lambda traced, shape=shape: family.cost(traced, shape))
    if "stages" not in {*pinned(source.spec), *wanted}:
        known |= family.space.stores.keys()  # buffers of D leave fewer stages, which the cost knows
    paths = {name: path for path, name in FIELDS.items()}
    for name, values in wanted.items():
        if name not in known and len(values) > 1:
            path = paths[name]
            chosen = written(getattr(plan, name))
            yield Violation(
                "unranked-search",
                f"search.{path}",
                f"{counted(len(values), 'value')} that the cost model does not tell apart",
                f"the plan has {chosen}, the legal value that is nearest to the planner's own choice",
                clause(f"time the values, with gemmgen tune or bench, and state the best for {path}"),
            )
