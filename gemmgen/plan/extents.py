"""Powers of two and multiples, in which extents come."""

from __future__ import annotations


def is_power_of_two(value: int) -> bool:
    """Whether Gluon accepts a block extent."""
    return value > 0 and value & (value - 1) == 0


def power_of_two_below(value: int) -> int:
    """Return the largest power of two that is at most `value`."""
    return 1 << (value.bit_length() - 1)


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `value`."""
    return -(-value // step) * step
