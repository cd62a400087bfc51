"""What every template needs to know of a plan in words: calls, heads of functions, partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.roles import Partition
from gemmgen.render.allocation import AllocationView
from gemmgen.render.epilogue import EpilogueView
from gemmgen.render.fit import LINE_LENGTH, fit
from gemmgen.render.order import OrderView
from gemmgen.render.overview import KernelOverview


@dataclass(frozen=True)
class KernelView(ABC):
    """One plan as the templates of all kernels see it."""

    plan: KernelPlan

    @cached_property
    def allocation(self) -> AllocationView:
        """What the kernel allocates."""
        return AllocationView(self.plan)

    @cached_property
    def epilogue(self) -> EpilogueView:
        """What lies between accumulator and store."""
        return EpilogueView(self.plan)

    @cached_property
    def order(self) -> OrderView:
        """How tiles follow one another."""
        return OrderView(self.plan)

    @cached_property
    @abstractmethod
    def overview(self) -> KernelOverview:
        """The kernel in words."""

    @property
    def title(self) -> str:
        """The spec's title as a docstring's first line."""
        return self.plan.problem.title.rstrip(".") + "."

    # --- functions and calls

    def define(self, name: str, arguments: tuple[str, ...]) -> str:
        """Return a function's head."""
        return fit(f"def {name}(", arguments, "):")

    def call(self, name: str, arguments: tuple[str, ...], *, indent: int, **passed: str) -> str:
        """Return a call that passes each argument under its own name, or what `passed` says."""
        items = [self._passed(argument, passed) for argument in arguments]
        return fit(f"{name}(", items, ")", indent=indent)

    @staticmethod
    def _passed(argument: str, passed: dict[str, str]) -> str:
        name = argument.partition(":")[0]
        return passed.get(name, name)

    def find_tile(self, tile: str, indent: int) -> str:
        """Return the statement that places a tile."""
        return fit("row, column = tile_origin(", (tile, *self.order.arguments), ")", indent=indent)

    def define_kernel(self) -> str:
        """Return the kernel's head and docstring."""
        head = fit("def matmul_kernel(", self.plan.kernel_arguments, "):")
        return f"@gluon.jit\n{head}\n{self.overview.kernel}"

    # --- partitions

    def partition_entry(self, partition: Partition, indent: int) -> str:
        """Return a partition as ``gl.warp_specialize`` takes it: the function and what it is passed."""
        arguments = fit("(", partition.arguments, ")", indent=indent + 4)
        entry = f"({partition.function}, {arguments})"
        if "\n" not in entry and indent + len(entry + ",") <= LINE_LENGTH:
            return entry
        margin = " " * indent
        return f"(\n{margin}    {partition.function},\n{margin}    {arguments},\n{margin})"

    @property
    def worker_warps(self) -> str:
        """Warps of each worker partition."""
        return str([worker.warps for worker in self.plan.workers])

    @property
    def worker_registers(self) -> str:
        """Registers per thread of each worker partition."""
        return str([worker.registers for worker in self.plan.workers])
