"""The features by the names of their folders: a new feature is registered here, and nowhere else.

A side is a module of the folder that is named after its stage, as ``gates/rendering.py``. The table of a
stage imports the sides of this stage alone, so what only judges rules imports no torch and no Jinja.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final, Literal

from gemmgen import features

Stage = Literal["checking", "exporting", "library", "not_together", "planning", "rendering", "rules"]

FEATURES: Final = (
    "promotion",
    "decoded_weights",
    "block_scales",
    "c_operand",
    "batch_invariance",
    "output_scales",
    "composed_tiles",
    "gates",
    "saved_sums",
    "split_k",
    "groups",
    "rows_by_index",
    "misaligned",
    "swap_ab",
    "dependent_launch",
)
"""The features in the order of their sentences, constants and checks.

Features of the multiplication come first, then features of a tile and its sums, of the rows of whole
matrices, and of the launch. A feature stands after each feature whose rows of D it moves, whose predicted
time it replaces, or whose parameters it has more words about.
"""

REPORTED_FIRST: Final = ("groups", "rows_by_index", "gates", "saved_sums")
"""Features whose rules report ahead of all others: a spec is written for one of these, and they decide which
other features it can have.
"""

REPORTED: Final = (*REPORTED_FIRST, *(name for name in FEATURES if name not in REPORTED_FIRST))
"""All features in the order of reports."""


def sides(stage: Stage, names: tuple[str, ...] = FEATURES) -> Iterator[ModuleType]:
    """Yield the sides that features have in a stage, in the order of the names."""
    for name in names:
        module = f"{features.__name__}.{name}.{stage}"
        if find_spec(module):
            yield import_module(module)
