"""The capabilities that no Hopper kernel has together: a row for each pair, and the rules that read them."""

from __future__ import annotations

from typing import Final, cast

from gemmgen.features.registry import REPORTED, sides
from gemmgen.plan.not_together import NotTogether, rules_of
from gemmgen.plan.wgmma.resources import WgmmaKernel

Pairs = tuple[NotTogether[WgmmaKernel], ...]

NOT_TOGETHER: Final = tuple(
    row for side in sides("not_together", REPORTED) for row in cast("Pairs", side.NOT_TOGETHER)
)
"""Each pair; the message begins with the first trait, and names its field."""

RULES: Final = rules_of(NOT_TOGETHER)
"""The rules of the pairs."""
