"""Every check of a kernel, and whether it passed."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.problem.check import Check


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
