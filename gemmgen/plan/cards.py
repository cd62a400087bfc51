"""The rates of a GPU by the name that CUDA gives it, or of an instance of MIG, which is a part of a GPU."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .timing import Card, part_of

COMPUTE_SLICES, MEMORY_SLICES = 7, 8
"""Slices of a GPU that MIG divides: "3g.40gb" has three of the seven for computing, and as many of the eight
memory slices as 40 GB are.
"""
SMS_OF_SLICE = 16
"""SMs of a slice of a GPU of 132 SMs, by ``nvidia-smi mig -lgip``, in instances of one, two and four slices;
three slices have 60.
"""
INSTANCE = re.compile(r"\bMIG (\d)g\.(\d+)gb")


class Product(NamedTuple):
    """A card that kernels run on."""

    device: str  # a regular expression for the name that CUDA gives it
    memory_gb: int
    card: Card


def card_of(device: str | None, own: Card, products: Sequence[Product], sm_count: int | None = None) -> Card:
    """Return the rates of a GPU: of the first product of its name, else `own`, scaled by the number of SMs.

    `sm_count` is the device's own figure, None if the device is not at hand. An instance of MIG has the
    bandwidth of its memory slices.
    """
    name = device or ""
    memory_gb, card = next(
        ((memory_gb, card) for pattern, memory_gb, card in products if re.search(pattern, name)), (0, own)
    )
    instance = INSTANCE.search(name)
    if not instance:
        return part_of(card, sm_count or card.sm_count, 1.0)
    slices, gigabytes = map(int, instance.groups())
    whole = slices >= COMPUTE_SLICES
    by_name = card.sm_count if whole else slices * SMS_OF_SLICE * card.sm_count // 132
    memory = max(1, round(MEMORY_SLICES * gigabytes / memory_gb)) if memory_gb else slices
    return part_of(card, sm_count or by_name, min(1.0, memory / MEMORY_SLICES))
