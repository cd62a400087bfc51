"""Faults in the counter of programs that share a tile: what it orders, for whom, and how it is left."""

from __future__ import annotations

from collections.abc import Callable

from gluonsim import Kind
from mutants.mutant import Mutant

COUNTS = "arrived = gl.atomic_add("
WEAKENED = {
    "relaxed": ("acq_rel", "relaxed"),
    "only_releases": ("acq_rel", "release"),
    "only_acquires": ("acq_rel", "acquire"),
    "of_a_cta": ('"gpu"', '"cta"'),
}
"""What a count is said to order, and for whom."""


def faults_of_counter(
    prefix: str,
    plant: Callable[..., Mutant],
    count: str,
    reset: str,
    names: str = " ".join([*WEAKENED, "not_reset"]),
) -> dict[str, Mutant]:
    """Return the faults, named after a prefix: a weak count leaves the partial sums unordered."""
    made: dict[str, Mutant] = {}
    for name in names.split():
        if name == "not_reset":
            fault = plant(Kind.WORKSPACE_NOT_RESTORED, "counters_ptr", COUNTS, (reset, ""))
        else:
            tensor = "counters_ptr" if name == "of_a_cta" else "partials_ptr"
            fault = plant(Kind.WEAK_ATOMIC, tensor, COUNTS, (count, count.replace(*WEAKENED[name])))
        made[f"{prefix}_{name}"] = fault
    return made
