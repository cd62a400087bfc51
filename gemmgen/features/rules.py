"""The rules of all features: a table for each family of kernels, in the order of its reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from gemmgen.features.not_together import RULES
from gemmgen.features.registry import REPORTED, sides
from gemmgen.plan.rule import Rule

RulesByMma = Mapping[str, tuple[Rule[Any], ...]]

_OF_FEATURES: Final = tuple(cast("RulesByMma", side.RULES) for side in sides("rules", REPORTED))

FEATURE_RULES: Final[RulesByMma] = {
    "wgmma": (*(rule for each in _OF_FEATURES for rule in each.get("wgmma", ())), *RULES),
    "tcgen05": tuple(rule for each in _OF_FEATURES for rule in each.get("tcgen05", ())),
}
"""The rules of features by the instruction of the family."""
