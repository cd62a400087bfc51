"""A kernel as a value: its decisions, and everything that follows from them, each computed once.

All kernels share TMA in and out, tiles of D, a ring of stages and a schedule. A kernel can be illegal: the
rules say whether it is. So everything is defined for any positive decisions, and nothing judges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.entry import Entry
from gemmgen.plan.epilogue_storage import epilogue_arguments
from gemmgen.plan.planning import ArgumentPlace, EntrySection, RegisterUse
from gemmgen.plan.roles import Argument, Partition, RegisterPool, captures
from gemmgen.plan.sizes import Geometry
from gemmgen.plan.stage import in_words
from gemmgen.plan.storage import Barrier, KernelResources, SharedBuffer, SharedMemory, TensorMemory
from gemmgen.plan.sum_order import SumOrder


@dataclass(frozen=True, kw_only=True)
class Kernel(Geometry, ABC):
    """A kernel: the decisions for a problem, and all that it is made of, as values."""

    @property
    @abstractmethod
    def mma_name(self) -> str:
        """The matrix instruction in PTX, with the parts that the plan decides."""

    @property
    def mma_names(self) -> tuple[str, ...]:
        """The names of all matrix instructions of the kernel, as `mma_name` has one."""
        return (self.mma_name,)

    @property
    def mma_types(self) -> tuple[str, ...]:
        """The element types that PTX spells in the instruction, where a descriptor does not hold them."""
        return ()

    @property
    @abstractmethod
    def sum_order(self) -> SumOrder:
        """In which order the products of one element of D are added up."""

    @property
    def operations(self) -> Mapping[str, int]:
        """The number of times that each promised operation is in the code."""
        return {}

    @cached_property
    @abstractmethod
    def resources(self) -> KernelResources:
        """The buffers and barriers, by their purpose."""

    @cached_property
    def shared_buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in shared memory, in the order in which the kernel allocates them."""
        return self.resources.buffers

    @cached_property
    def barriers(self) -> tuple[Barrier, ...]:
        """The mbarriers, in the order in which the kernel allocates them."""
        return self.resources.barriers

    @cached_property
    def shared_memory(self) -> SharedMemory:
        """Every byte of a CTA's shared memory, laid out as the compiler does it."""
        captured = captures(self.workers)
        return SharedMemory(
            buffers=self.shared_buffers,
            barriers=self.barriers,
            capture_bytes=sum(value.capture_bytes for value in captured),
            captures=len(captured),
            worker_warps=self.total_warps - self.default_warps,
            counting_partitions=self.counting_partitions,
            counts_in_cluster=self.cluster_size > 1,
        )

    @property
    def reduction_warps(self) -> int:
        """Warps of one of its programs, 0 where there is no such kernel."""
        return 0

    @property
    def reduction_smem_bytes(self) -> int | None:
        """Bytes of shared memory of the kernel that adds up the sums of parts of K, None without one."""
        return None

    @property
    def restored(self) -> tuple[str, ...]:
        """The arguments that a launch leaves as it finds them, and relies on that."""
        return tuple(argument.name for argument in self.arguments if argument.restored)

    @property
    def counting_partitions(self) -> int:
        """Partitions that count in global memory."""
        return 0

    @cached_property
    def smem_bytes(self) -> int:
        """Bytes of shared memory per CTA, to the byte the compiler's figure."""
        return self.shared_memory.total_bytes

    @cached_property
    def tensor_memory(self) -> TensorMemory:
        """Every column of a CTA's tensor memory, which not every kernel has."""
        return TensorMemory()

    @property
    def tmem_columns(self) -> int:
        """Columns of tensor memory per CTA as the compiler allocates them."""
        return self.tensor_memory.allocated_columns

    @property
    @abstractmethod
    def tiles_to_wrap(self) -> int:
        """Tiles of one program in which every ring that turns with the tile comes round twice and goes on."""

    # --- partitions

    @cached_property
    @abstractmethod
    def partitions(self) -> tuple[Partition, ...]:
        """All roles; the first is the default partition, which keeps the kernel's own warps."""

    @property
    @abstractmethod
    def default_warps(self) -> int:
        """Warps of the default partition."""

    @property
    def workers(self) -> tuple[Partition, ...]:
        """The partitions that run on warps of their own."""
        return self.partitions[1:] if self.specialized else ()

    @property
    @abstractmethod
    def worker_shares(self) -> tuple[tuple[int, int], ...]:
        """Warps of each of these, in order, and their registers per thread: no buffer decides them."""

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that the module's kernels are launched with, in order."""
        of_side, problem = self.arguments_of_sides, self.problem
        return (
            *(*self.stage.arguments, *of_side[ArgumentPlace.LOADED]),
            *(*epilogue_arguments(problem), *of_side[ArgumentPlace.READ]),
            *(Argument("d", "matrix", problem.d), *of_side[ArgumentPlace.STORED]),
            *of_side[ArgumentPlace.WORKSPACE],
        )

    @cached_property
    def arguments_of_sides(self) -> Mapping[ArgumentPlace, Sequence[Argument]]:
        """The arguments that features add, by their places."""
        found: dict[ArgumentPlace, list[Argument]] = {place: [] for place in ArgumentPlace}
        for side in self.sides:
            for place, argument in side.arguments(self):
                found[place].append(argument)
        return found

    @cached_property
    def kernel_arguments(self) -> tuple[Argument, ...]:
        """The arguments of the kernel that multiplies: fewer than all if the module has a second kernel."""
        return self.arguments

    def argument(self, name: str) -> Argument:
        """Return the argument of this name."""
        return next(argument for argument in self.arguments if argument.name == name)

    # --- what a ledger says of the kernel itself

    @property
    @abstractmethod
    def kind(self) -> tuple[str, ...]:
        """The kind of kernel in the field's terms, as ``persistent``, ``warp-specialized (ping-pong)``."""

    @property
    @abstractmethod
    def summary(self) -> tuple[Entry, ...]:
        """The decisions of the kernel, each with its consequence."""

    def entries_of_sides(self, section: EntrySection) -> Iterator[Entry]:
        """Yield the lines that features add to a section."""
        for side in self.sides:
            yield from (entry for of, entry in side.entries(self) if of is section)

    @property
    def cluster_entry(self) -> Entry:
        """How a cluster lies, and what its CTAs share."""
        shared = f", {self.shared_operands} loaded once and multicast" if self.multicast else ""
        return Entry("cluster", self.cluster_size, "CTAs", f"{self.cluster_m} x {self.cluster_n}{shared}")

    @property
    def shared_operands(self) -> str:
        """The operands that CTAs share by multicast: ``A and B``."""
        return in_words(self.stage.multicast)

    @property
    def register_entries(self) -> tuple[Entry, ...]:
        """Registers of threads by contents; empty if the kernel does not know them."""
        return ()

    # --- registers

    def registers_of_sides(self, use: RegisterUse) -> int:
        """Return the registers of a thread that features take for one use."""
        taken = [side.registers(self, use) for side in self.sides]
        return max(taken, default=0) if use is RegisterUse.EPILOGUE else sum(taken)

    @cached_property
    def register_pool(self) -> RegisterPool:
        """How the compiler divides the SM's register file among the partitions."""
        return RegisterPool(
            architecture=self.architecture,
            default_warps=self.default_warps,
            workers=self.worker_shares,
            occupancy=self.occupancy,
        )

    @property
    def total_warps(self) -> int:
        """Warps per CTA, with those that only pad a worker group."""
        return self.register_pool.total_warps

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.total_warps * self.architecture.threads_per_warp

    @property
    def launch_register_limit(self) -> int | None:
        """Registers per thread that the launch must not exceed for the planned CTAs to share an SM."""
        return self.register_pool.launch_registers if self.occupancy > 1 else None

    @property
    def ptxas_notes(self) -> tuple[str, ...]:
        """The notes that ptxas is known to give."""
        return ()
