"""A line of a ledger."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One line: an amount with its unit, and how it comes about."""

    name: str
    amount: float
    unit: str
    derivation: str
