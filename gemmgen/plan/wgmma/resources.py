"""A Hopper kernel as a value: its memory, its roles, and the properties that follow from both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.entry import Entry
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.planning import ArgumentPlace, EntrySection, RegisterUse
from gemmgen.plan.roles import Argument, Partition
from gemmgen.plan.sum_order import SumOrder
from gemmgen.plan.wgmma.buffers import WgmmaResources, partitions_of, resources_of
from gemmgen.plan.wgmma.geometry import WgmmaGeometry

FRAGMENT_ROWS = 16
"""Rows of a fragment of an accumulator, which one warp holds."""
FRAGMENT_SUMS = 128
"""Sums of a fragment, 16 rows of 8 columns, which lie together in the order of registers."""
VECTOR_SUMS = 4
"""Sums that a thread reads at once: 16 bytes."""
SPLITS_OF_THREAD = 8
"""Splits whose sums one thread of the kernel that adds up reads, at most.

On an H200, at the five shapes of the suite of long K, 8 took the least time or 2 % more, among 4, 8, 16 and
32.
"""
MOST_PIECE_SUMS = 2048
"""Sums of D that a program of that kernel adds up, at most; a CTA has threads for the sums of two splits."""


@dataclass(frozen=True, kw_only=True)
class WgmmaKernel(WgmmaGeometry, Kernel):
    """A Hopper kernel: its decisions, and all that it is made of."""

    @property
    def mma_name(self) -> str:
        """The instruction as PTX spells its shape."""
        m, n, k = self.mma_shape
        return f"m{m}n{n}k{k}"

    @property
    def mma_names(self) -> tuple[str, ...]:
        """The instructions as PTX spells their shapes: one for each part of the tile."""
        return tuple(f"m{m}n{n}k{k}" for m, n, k in dict.fromkeys(self.mma_shapes))

    @property
    def mma_types(self) -> tuple[str, ...]:
        """The types of the accumulator and of the instruction's operands, left and right."""
        left, right = self.mma.across(self.problem.a.multiplied, self.problem.b.multiplied)
        return (self.problem.accumulator.ptx, left.ptx, right.ptx)

    @property
    def sum_order(self) -> SumOrder:
        """In which order the products of one element of D are added up.

        Integers have one sum in any order, so all their kernels have one order.
        """
        accumulator = self.problem.accumulator
        if accumulator.integer:
            return SumOrder(accumulator.name)
        order = SumOrder(accumulator.name, self.mma_k)
        for side in self.sides:
            order = side.sum_order(self, order)
        return order

    @cached_property
    def resources(self) -> WgmmaResources:
        """The buffers and barriers, by their purpose."""
        return resources_of(self)

    @property
    def tiles_to_wrap(self) -> int:
        """Tiles of one program in which every ring that turns with the tile comes round twice and goes on."""
        takers = self.consumers if self.ping_pong else 1
        return takers * (2 * self.epilogue_buffers + 1)

    # --- partitions

    @property
    def default_warps(self) -> int:
        """Warps of one consumer; the first consumer is the default partition."""
        return self.consumer_warps

    @property
    def worker_shares(self) -> tuple[tuple[int, int], ...]:
        """Warps and registers per thread of each consumer but the first, and of the producer."""
        if not self.specialized:
            return ()
        consumers = ((self.consumer_warps, self.consumer_registers),) * (self.consumers - 1)
        return (*consumers, (self.producer_warps, self.producer_registers))

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """All roles; the first is the default partition, the others are workers."""
        return partitions_of(self, self.resources, self.kernel_arguments)

    @property
    def counting_partitions(self) -> int:
        """Consumers that count the parts of a tile, which are beside others."""
        return self.consumers if self.specialized and self.counts_parts else 0

    @property
    def producer_partition(self) -> Partition:
        """The warp, or the warps, that issue every load of A and B."""
        return self.partitions[-1]

    @cached_property
    def kernel_arguments(self) -> tuple[Argument, ...]:
        """The arguments of the kernel that multiplies: all, or A, B and the sums for a second kernel."""
        if not self.reduces_apart:
            return self.arguments
        of_side = self.arguments_of_sides
        return (*self.stage.arguments, *of_side[ArgumentPlace.LOADED], *of_side[ArgumentPlace.WORKSPACE])

    # --- registers

    @property
    def accumulator_elements(self) -> int:
        """Sums of a consumer thread, of the widest consumer."""
        threads = self.consumer_warps * self.architecture.threads_per_warp
        return self.cta_consumer_tile_m * self.cta_widest_n // threads

    @property
    def accumulator_registers(self) -> int:
        """Registers per consumer thread that hold the accumulator, and sums that are added to it later."""
        return self.sum_registers + self.registers_of_sides(RegisterUse.SUMS)

    @property
    def sum_registers(self) -> int:
        """Registers per consumer thread that hold the sums of a tile."""
        return self.accumulator_elements * self.problem.accumulator.bits // 32

    @property
    def fragments(self) -> int:
        """K steps of the left operand in registers: two where the next one is read while the MMAs of one run.

        On an H200 tiles of 128 x 144 and 128 x 160 for two consumers gained 7 and 8 % by two, and lost 4 and
        3 % by one; 192 x 96 for three, which have fewer registers, lost 7 % by two and gained 5 % by one:
        ``benchmarks/fit/h200_a_in_registers.json``. Threads that promote sums wait for them anyway.
        [gluon] A wait keeps no elements of 8 bits in registers.
        """
        ahead = self.composed and self.row_shares <= 2 and not self.promote_k
        wide = self.problem.operand(self.mma.left.tensor).multiplied.bits > 8
        return 2 if ahead and wide and self.mma.reads_left else 1

    @property
    def operand_k(self) -> int:
        """Elements of K of the left operand that are in registers at once: a step, or a part of it."""
        k = self.cta_tile_k
        for side in self.sides:
            k = side.operand_k(self, k)
        return k

    @property
    def operand_registers(self) -> int:
        """Registers per consumer thread that hold K steps of the left operand.

        The warps along the instruction's columns hold the same.
        """
        if not self.mma.reads_left:
            return 0
        threads = self.warps_across[0] * self.architecture.threads_per_warp
        elements = self.fragments * self.consumer_extents[0] * self.operand_k
        return elements * self.problem.operand(self.mma.left.tensor).multiplied.bytes // 4 // threads

    # --- the kernel that adds up the sums of parts of K

    @property
    def piece_sums(self) -> int:
        """Sums of D that each of its programs adds up: at most a split's share of a tile.

        So there are at least as many programs as in the other kernel. A CTA has threads for this number of
        sums of all splits that are read side by side. The sums are neighbours in the order of registers: 16
        rows of 8 columns, or several such.
        """
        rows, columns = self.consumer_extents
        share = rows * columns * self.row_shares // self.splits
        held = self.architecture.threads_per_cta * VECTOR_SUMS // self.splits_side_by_side
        most = min(FRAGMENT_ROWS * columns, MOST_PIECE_SUMS, held)
        return min(max(FRAGMENT_SUMS, 1 << (max(1, share).bit_length() - 1)), most)

    @property
    def splits_side_by_side(self) -> int:
        """Splits whose sums are read by different threads: eight splits for each thread, or fewer.

        The number decides the order in which the sums are added up. It follows from the number of splits
        alone, and not from the tile, which the planner chooses by M.
        """
        most = self.architecture.threads_per_cta * VECTOR_SUMS // FRAGMENT_SUMS
        return min(1 << (-(-self.splits // SPLITS_OF_THREAD) - 1).bit_length(), most)

    @property
    def reduction_warps(self) -> int:
        """Warps of one of its programs: a thread reads four sums at a time."""
        lanes = self.architecture.threads_per_warp
        return self.piece_sums * self.splits_side_by_side // (VECTOR_SUMS * lanes)

    @property
    def reduction_smem_bytes(self) -> int | None:
        """Bytes through which the compiler adds up what threads side by side have."""
        if not self.reduces_apart:
            return None
        splits = self.splits_side_by_side
        return splits * self.piece_sums * self.problem.accumulator.bytes if splits > 1 else 0

    @property
    def ptxas_notes(self) -> tuple[str, ...]:
        """The notes that ptxas is known to give: it serializes MMAs whose 16-bit sums Gluon unpacks.

        [gluon] It says that other instructions read them (C7514), and of 192 and more columns of ping-pong
        consumers with an MMA in flight that there are no registers for them (C7511), up to 232 registers.
        """
        return ("C7511", "C7514", "C7517") if self.problem.accumulator.bits == 16 else ()

    # --- what a ledger says of it

    @property
    def kind(self) -> tuple[str, ...]:
        """The kind of kernel in the field's terms: its programs, its warps, and how K is divided."""
        if self.schedule_kind == "single_tile":
            return ("single tile",)
        warps = "not pipelined" if self.synchronous else "pipelined"
        if self.specialized:
            pattern = self.specialization.replace("_", "-") if self.consumers > 1 else "one consumer"
            warps = f"warp-specialized ({pattern})"
        found = ["persistent" if self.persistent else "non-persistent", warps]
        if self.swap_ab:
            found.append("swap-AB")
        if self.splits > 1:
            found.append(f"split-K by {self.splits} ({self.reduction})")
        if self.dependent:
            found.append("PDL")
        return tuple(found)

    @property
    def summary(self) -> tuple[Entry, ...]:
        """The decisions of the kernel, each with its consequence."""
        shares = f"{self.cta_consumer_tile_m} for each of {self.row_shares} consumers"
        if self.row_shares == 1:
            shares = "all for each consumer" if self.consumers > 1 else "all for one consumer"
        of_b = f"of B for {self.cta_columns} of D, " * self.problem.gated
        return (
            Entry("CTA tile m", self.cta_tile_m, "rows", shares),
            Entry(
                "CTA tile n",
                self.cta_tile_n,
                "columns",
                f"{self._parts}{of_b}stored {self.subtile_n} at a time",
            ),
            Entry("CTA tile k", self.cta_tile_k, "elements", self.stage.words),
            self.cluster_entry,
            Entry(
                "occupancy", self.occupancy, "CTAs", f"per SM; its shared memory has room for {self._fitting}"
            ),
            Entry("stages", self.stages, "tiles", f"{self.stages * self.cta_tile_k} of K in flight"),
            Entry(
                "outstanding",
                self.outstanding_mmas,
                "MMAs",
                "of earlier K steps in flight while one is issued",
            ),
            *self.entries_of_sides(EntrySection.DECISIONS),
            Entry(
                "instructions",
                self.mmas_per_step,
                "wgmma",
                f"{' and '.join(self.mma_names)} per warpgroup{' of consumer 0' * self.staggered} and K step",
            ),
        )

    @property
    def partials(self) -> int:
        """Sums in memory of each element of D: of every split, or one that they all add to."""
        return 1 if self.reduction == "atomic" else self.splits

    @property
    def _parts(self) -> str:
        """The parts of a composed tile."""
        if not self.composed:
            return ""
        parts = " + ".join(map(str, self.column_parts))
        if not self.staggered:
            return f"in parts of {parts}, "
        return f"of one consumer {parts}, of the other {self.cta_widest_n - 2 * self.stagger_n}, "

    @property
    def _fitting(self) -> int:
        """CTAs for which an SM has shared memory, whatever else they need."""
        architecture = self.architecture
        each = self.smem_bytes + architecture.smem_reserved_bytes_per_cta
        return architecture.smem_bytes_per_sm // each

    @property
    def register_entries(self) -> tuple[Entry, ...]:
        """Registers of a consumer thread, by contents."""
        share = self.sum_registers / self.consumer_registers
        accumulator = f"{share:.0%} of a consumer thread's"
        entries = [Entry("accumulator", self.sum_registers, "registers", accumulator)]
        entries += self.entries_of_sides(EntrySection.REGISTERS)
        if self.operand_registers:
            left, steps = self.mma.left, "a K step" if self.fragments == 1 else "a K step, and the next one,"
            if self.operand_k < self.cta_tile_k:
                steps = f"{self.operand_k} of a K step"
            lines = f"{steps} of a consumer thread's {left.lines}"
            entries.append(Entry(left.tensor.upper(), self.operand_registers, "registers", lines))
        return tuple(entries)
