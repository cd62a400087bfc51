"""What was checked of a kernel on one shape, what was found, and whether that is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemmgen.problem.shape import Shape, shape_text


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
