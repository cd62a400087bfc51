"""The side of misaligned tensors in rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemmgen.render.places import Function, Section
from gemmgen.render.side import Rendering, SidesByMma


@dataclass(frozen=True)
class Misaligned(Rendering):
    """Copies of operands that TMA cannot read in place, in a module of any family."""

    name = "misaligned"

    @property
    def applies(self) -> bool:
        """True if the module copies misaligned tensors."""
        return self.plan.problem.copies_misaligned

    @property
    def functions(self) -> Iterator[Function]:
        """The kernel that copies, and the function of the host that launches it."""
        yield Function(Section.COPY, "shared/copy_kernel")
        yield Function(Section.MEMORY, "wrapper/copy", passed=("copy",))


SIDES: SidesByMma = {"wgmma": (Misaligned,), "tcgen05": (Misaligned,)}
