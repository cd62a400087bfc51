"""The families of kernels: which one plans a spec, and which one made a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from gemmgen.features.planning import SIDES
from gemmgen.features.rules import FEATURE_RULES
from gemmgen.plan.decisions import FIELDS, statements
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import Family
from gemmgen.plan.tcgen05.family import TCGEN05_FAMILY
from gemmgen.plan.wgmma.family import WGMMA_FAMILY
from gemmgen.spec import SpecFile

FAMILIES = {
    mma: replace(
        family,
        rules=(*family.rules, *FEATURE_RULES[mma]),
        space=family.space.with_sides(SIDES[mma]),
    )
    for mma, family in cast(
        "Mapping[str, Family[Kernel]]",
        {"wgmma": WGMMA_FAMILY, "tcgen05": TCGEN05_FAMILY},
    ).items()
}
"""Each family by its instruction, with the rules and the sides of all features.

The cast is safe: a family is only given kernels that it made.
"""


def family_of(source: SpecFile) -> Family[Kernel]:
    """Return the family of a spec's target."""
    return FAMILIES[source.request.gpu.architecture.mma]


def family_for(kernel: Kernel) -> Family[Kernel]:
    """Return the family that made a kernel."""
    return FAMILIES[kernel.architecture.mma]


def field_values(plan: Kernel) -> dict[str, int | str | None]:
    """Return each field that a spec of this target can pin, by its path, with the planned value.

    The value is None if the kernel has nothing that the field would say: a spec leaves such a field out.
    """
    decisions, found = family_for(plan).decisions, statements(plan)
    return {path: found.get(path) for path, name in FIELDS.items() if name in decisions}
