"""The module of a pack as its template sees it: the host side alone, whose kernels are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmgen.plan.kernel import Kernel
from gemmgen.render.kernel import KernelView
from gemmgen.render.overview import KernelOverview
from gemmgen.render.wrapper import Wrapper


@dataclass(frozen=True)
class PackedView:
    """One module of a pack."""

    kernel: KernelView
    stem: str
    """The name of the module, and of the file with the facts of its kernels."""
    namespace: str
    """The namespace of its operator in torch."""
    kernels: tuple[str, ...]
    """The names of its compiled kernels."""

    @property
    def plan(self) -> Kernel:
        """The plan of the module."""
        return self.kernel.plan

    @property
    def overview(self) -> KernelOverview:
        """The kernel in words."""
        return self.kernel.overview

    @property
    def wrapper(self) -> Wrapper:
        """The module's public function."""
        return replace(self.kernel.wrapper, is_packed=True)

    @property
    def title(self) -> str:
        """The spec's title as a docstring's first line."""
        return self.kernel.title

    @property
    def constants(self) -> Iterator[tuple[str, object, str]]:
        """The name, value and meaning of each constant of the kernel."""
        return self.kernel.constants

    @property
    def make_host(self) -> str:
        """The call that makes the launcher of the module."""
        return self.wrapper.make_packed_host(self.stem, self.namespace)
