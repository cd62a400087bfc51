"""The families of kernels that can be planned, by the matrix instruction of their architecture."""

from __future__ import annotations

from gemmgen.plan.blackwell.family import BLACKWELL_FAMILY
from gemmgen.plan.family import Family
from gemmgen.plan.hopper.family import HOPPER_FAMILY
from gemmgen.spec import Spec
from gemmgen.target import GPUS

FAMILIES = {"wgmma": HOPPER_FAMILY, "tcgen05": BLACKWELL_FAMILY}
"""Each family by its instruction."""


def family_of(spec: Spec) -> Family:
    """Return the family of a spec's target."""
    return FAMILIES[GPUS[spec.target].architecture.mma]
