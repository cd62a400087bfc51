"""The side of programmatic dependent launch in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render.side import Rendering, SidesByMma


@dataclass(frozen=True)
class DependentKernel(Rendering):
    """A Hopper kernel that starts before the kernel ahead of it has ended."""

    plan: WgmmaKernel
    name = "dependent_launch"

    @property
    def applies(self) -> bool:
        """True if the kernel is launched so."""
        return self.plan.dependent

    @property
    def imported(self) -> Iterator[tuple[str, str]]:
        """The wait for the kernel ahead, and the signal to the next kernel if programs give it."""
        yield "cuda", "gdc_wait"
        if self.plan.trigger == "loads":
            yield "cuda", "gdc_launch_dependents"

    @property
    def sentences(self) -> Iterator[str]:
        """A sentence about the work of the kernel before the kernel ahead has ended."""
        starts = "It starts while the kernel ahead of it may still run"
        if early := self.plan.read_early:
            first = f"loads its first tiles of {early.upper()}"
            yield f"{starts}, {first}, and waits for that one's end before all else."
        else:
            yield f"{starts}, and reads and writes after its end."

    @property
    def docs(self) -> dict[str, str]:
        """The condition on the operand that is read early."""
        condition = "; read while the kernel ahead in the stream may still run, which must not write it"
        return {self.plan.read_early: condition} if self.plan.read_early else {}


SIDES: SidesByMma = {"wgmma": (DependentKernel,)}
