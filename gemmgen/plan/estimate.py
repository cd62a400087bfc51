"""What a plan is expected to take: the form in which every family's cost model says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """What a plan is expected to take for a problem: a figure to rank by, no promise."""

    terms: dict[str, float]
    """Cycles of an SM by cause: the ideal, and what is lost on top of it."""
    l2_bytes: int
    """Bytes of A, B and C that programs load; of a multicast tile once for all CTAs that share it."""
    dram_bytes: int
    """Fewest bytes from and to DRAM: each matrix and vector once."""
    dram_seconds: float
    hz: float

    @property
    def cycles(self) -> float:
        """Cycles of an SM, all terms; infinite for a cluster of more CTAs than the GPU has SMs."""
        return sum(self.terms.values())

    @property
    def seconds(self) -> float:
        """The time of the SMs, or that of DRAM where it is the longer one."""
        return max(self.cycles / self.hz, self.dram_seconds)
