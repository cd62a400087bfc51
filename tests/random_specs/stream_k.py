"""Random Hopper specs whose last wave is divided by K steps, and some with what does not go with that."""

from __future__ import annotations

from random_specs import few_rows
from random_specs.fields import HUGE, Field, random_text

CHANGED = {
    field.path: field
    for field in (
        Field("target", ("h100", "h200"), required=True),
        Field("mma.rows", ("m", "m", "m", "n"), required=True),
        Field("warp_specialization.kind", ("cooperative",), ("none", "ping_pong"), required=True),
        Field("schedule.kind", ("persistent",), ("tiled", "single_tile"), required=True),
        Field("schedule.splits", (1,), (2, 7, HUGE)),
        Field("schedule.reduction", ("ordered",), ("atomic",)),
        Field("occupancy", (1,), (2, 3)),
        Field("bench.shapes", ([[1024, 2304, 4096]], [[300, 776, 1032]], [[16, 2112, 7168]]), ()),
    )
}
FIELDS = (
    *(CHANGED.get(field.path, field) for field in few_rows.FIELDS if field.path != "dependent_launch"),
    Field("schedule.last_wave", ("stream_k",), required=True),
)


def spec_text(seed: int) -> str:
    """Return the text of the spec of a seed."""
    return random_text(seed, FIELDS, few_rows.RECONCILIATIONS)
