"""What was checked of a kernel, what was found, and whether that is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

Shape = tuple[int, int, int]
"""[M, N, K] of D[M, N] = A[M, K] @ B[K, N]."""


def shape_text(shape: Shape) -> str:
    """Return the shape as users write it: ``8192x8192x512``."""
    return "x".join(str(extent) for extent in shape)


@dataclass(frozen=True)
class Check:
    """One number that was measured on one shape, and its limit."""

    shape: Shape
    what: str
    """The run and the quantity, e.g. ``strided: elements written outside``."""
    measured: float | None
    """None when the check raised or could not be run; ``detail`` says why."""
    limit: float
    """The largest measurement that passes."""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether there is a measurement and it is within the limit; NaN is not."""
        return self.measured is not None and self.measured <= self.limit

    def __str__(self) -> str:
        found = self.detail
        if self.measured is not None:
            found = f"{self.measured:.3g}, the limit is {self.limit:.3g}"
        return f"{shape_text(self.shape)} {self.what}: {found}"

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold; a measurement that is not finite becomes its name."""
        finite = self.measured is None or math.isfinite(self.measured)
        return {
            "shape": list(self.shape),
            "what": self.what,
            "measured": self.measured if finite else str(self.measured),
            "limit": self.limit,
            "passed": self.passed,
            "detail": self.detail,
        }


@dataclass(frozen=True)
class Verification:
    """Every check of one kernel on one device."""

    device: str
    """The GPU's product name."""
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether something was checked and all of it passed."""
        return bool(self.checks) and not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass, in the order in which they were made."""
        return tuple(check for check in self.checks if not check.passed)

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "device": self.device,
            "passed": self.passed,
            "checks": [check.as_dict() for check in self.checks],
        }
