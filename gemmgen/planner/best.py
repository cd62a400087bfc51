"""The best legal plan of a spec: configurations in the order of their lower bounds, until none can win."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gemmgen.plan.decisions import pinned, searched
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.rule import Rule
from gemmgen.plan.search import MOST_CONFIGURATIONS, Configuration, Family, Nogoods
from gemmgen.plan.verdicts import COMPILER_RULE
from gemmgen.spec import SpecFile

Tick = Callable[[int, int], None]
"""Progress callback: it is called with the number of examined combinations and the total."""


def ignore_progress(_: int, __: int) -> None:
    """Tell nobody."""


def cheapest_plan(source: SpecFile, family: Family[Kernel], tick: Tick) -> Kernel | None:
    """Return the best plan that keeps all expectations of a proposal, or else the best legal plan.

    None if no combination is legal.
    """
    nogoods = Nogoods(family.cautious_rules, pinned(source.spec))
    best = _best_by(nogoods, source, family, tick)
    if best is not None or nogoods.refusing.isdisjoint(family.expectations):
        return best
    return _best_by(Nogoods(family.rules, pinned(source.spec)), source, family, tick)


def _best_by(nogoods: Nogoods[Kernel], source: SpecFile, family: Family[Kernel], tick: Tick) -> Kernel | None:
    """Return the best plan for a spec that keeps the rules of a new search, None if no combination does.

    Of plans with equal costs the one nearest to the family's own choices wins, then the one that is tried
    first.
    """
    shapes, wanted = source.request.planned_shapes, searched(source.spec)
    bounded: list[tuple[tuple[float, ...], Configuration[Kernel]]] = []
    total = min(family.space.size(source), MOST_CONFIGURATIONS)
    for done, found in enumerate(family.space.configurations(source)):
        tick(done, total)
        if not bounded:  # what the spec states is judged before others are looked at
            nogoods.refuse(next(found.kernels()))
        if nogoods.everything:
            return None
        if not nogoods.knows(found.decisions):
            bounded.append((family.cost_over(found.lower_bound, shapes), found))
    best: tuple[tuple[float, ...], tuple[int, float], int, Kernel] | None = None
    passed_over: list[Iterator[Kernel]] = []
    for number in sorted(range(len(bounded)), key=lambda number: bounded[number][0]):
        bound, configuration = bounded[number]
        if best is not None and bound > best[0]:
            break  # no later configuration is as cheap
        if nogoods.everything:
            break
        if nogoods.knows(configuration.decisions) or configuration.overfull:
            continue
        kernels = configuration.kernels()
        for kernel in kernels:
            broken: Rule[Kernel] | None = None
            for plan in register_divisions(kernel, configuration):
                cost = family.cost_over(plan, shapes)
                ranked = cost, family.space.preference_distance(plan, wanted), number
                if best is not None and (cost > best[0] or ranked >= best[:3]):
                    break
                if not (broken := nogoods.refuse(plan)):
                    best = (*ranked, plan)
                if broken is None or broken.id != COMPILER_RULE:
                    break
            if broken is not None and broken.subject != "store":
                passed_over.append(kernels)
                break
    if best is None and not nogoods.everything:
        return _first_stored(passed_over, nogoods)
    return best[3] if best else None


def register_divisions(kernel: Kernel, configuration: Configuration[Kernel]) -> Iterator[Kernel]:
    """Yield a kernel, and then the same with other registers for its roles."""
    yield kernel
    yield from configuration.space.redivided(kernel, configuration.decisions)


MOST_STORED_OTHERWISE = 300
"""Kernels that are judged, the cheapest first, where none is legal with its first way to store D."""


def _first_stored(passed_over: Iterable[Iterator[Kernel]], nogoods: Nogoods[Kernel]) -> Kernel | None:
    """Return the first legal one of other ways to store D, None if there is none among those that are judged.

    Registers, which are no matter of storing D, can be too few for a whole tile of it and enough for a part.
    """
    most = nogoods.judged + MOST_STORED_OTHERWISE
    for kernels in passed_over:
        for plan in kernels:
            if nogoods.everything or nogoods.judged > most:
                return None
            if not nogoods.refuse(plan):
                return plan
    return None
