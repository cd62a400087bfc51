"""The side of swap-AB in rendering."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.side import Rendering, SidesByMma


@dataclass(frozen=True)
class SwapAb(Rendering):
    """The exchange of A and B in the instruction of a Hopper plan."""

    plan: WgmmaKernel
    name = "swap_ab"

    @property
    def applies(self) -> bool:
        """True if A and B are exchanged."""
        return self.plan.swap_ab

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence about the sums of such a kernel."""
        return (
            "The rows of B are wgmma's rows and those of A its columns: its sums are D's tile transposed.",
        )


SIDES: SidesByMma = {"wgmma": (SwapAb,)}
