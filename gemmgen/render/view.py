"""What a template needs to know of a plan in words: which parts, which argument lists, which comments."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from gemmgen.plan.dtype import DType
from gemmgen.plan.plan import Partition, Plan
from gemmgen.plan.storage import Barrier, SharedBuffer
from gemmgen.render.fit import LINE_LENGTH, fit
from gemmgen.target import WGMMA

COUNT_WORDS = {
    1: "one consumer of two warpgroups",
    2: "two consumer warpgroups",
    4: "four consumer warpgroups",
}


@dataclass(frozen=True)
class View:
    """One plan as the templates see it; every choice of a part is made here."""

    plan: Plan

    # --- parts

    @property
    def device_functions(self) -> tuple[str, ...]:
        """The parts of the module's device code, callees first."""
        plan = self.plan
        return (
            f"tile_order_{plan.order}.py.j2",
            "producer_multicast.py.j2" if plan.multicast else "producer.py.j2",
            "release_multicast.py.j2" if plan.multicast else "release.py.j2",
            "multiply_overlapped.py.j2" if plan.outstanding_mmas else "multiply_in_order.py.j2",
            "store_subtiled.py.j2" if plan.subtiles > 1 else "store_whole.py.j2",
            "consumer.py.j2",
        )

    # --- words

    @property
    def title(self) -> str:
        """The spec's title as a docstring's first line."""
        return self.plan.title.rstrip(".") + "."

    @property
    def overview(self) -> str:
        """The kernel in one paragraph, wrapped for the module's docstring."""
        plan = self.plan
        program = "SM" if plan.cluster_size == 1 else f"cluster of {plan.cluster_size} SMs"
        consumers = COUNT_WORDS.get(plan.consumers, f"{plan.consumers} consumer warpgroups")
        verbs = ("multiplies", "stores") if plan.consumers == 1 else ("multiply", "store")
        loads = "loads tiles of A and B through TMA"
        if plan.multicast:
            loads = "loads tiles of A, and the lead CTA's also B for both by multicast, through TMA"
        return textwrap.fill(
            f"One program per {program} walks over tiles of D. In each CTA one producer warp {loads} "
            f"into a ring of shared-memory stages; {consumers} "
            f"{verbs[0]} them with wgmma, and {verbs[1]} D through TMA while the loads of the next tile "
            f"are already in flight.",
            width=100,
        )

    @property
    def consumer_summary(self) -> str:
        """The consumer's role in a sentence."""
        if self.plan.consumers == 1:
            return "Both consumer warpgroups: multiply and store every tile."
        return "One of the consumer warpgroups: multiply and store its rows of every tile."

    @property
    def consumer_tile_comment(self) -> str:
        """How a consumer's rows lie in its program's."""
        plan = self.plan
        if plan.cluster_size > 1:
            return f"  # {plan.cta_consumer_tile_m} rows in each CTA"
        return ""

    def arrivals_comment(self, barrier: Barrier) -> str:
        """Say whose arrivals a barrier counts."""
        if barrier.cluster_wide:
            return f"  # counted once per CTA: {barrier.arrivals} arrivals"
        return ""

    # --- signatures and calls

    @property
    def release_arguments(self) -> str:
        """The barriers on which a stage is released."""
        return ", ".join(self.plan.release_arguments)

    @property
    def multiply_arguments(self) -> tuple[str, ...]:
        """What the K loop of a tile needs."""
        return ("a_smem", "b_smem", "load_ready", *self.plan.release_arguments, "first_load", "k_steps")

    def define_multiply(self) -> str:
        """Return the head of the K loop's function."""
        return fit("def multiply(", self.multiply_arguments, "):")

    def call_multiply(self, indent: int) -> str:
        """Return the consumer's call of the K loop."""
        return fit("accumulator = multiply(", self.multiply_arguments, ")", indent=indent)

    def define_consumer(self) -> str:
        """Return the head of the consumer's function: parameters without the number of the consumer."""
        parameters = [
            re.sub(r"_smem_\d+$", "_smem", name) for name in self.plan.consumer_partitions[0].arguments
        ]
        named = ["consumer: gl.constexpr" if name.isdecimal() else name for name in parameters]
        return fit("def consumer_partition(", named, "):")

    def define_producer(self) -> str:
        """Return the head of the producer's function."""
        return fit("def producer_partition(", self.plan.producer_partition.arguments, "):")

    def partition_entry(self, partition: Partition, indent: int) -> str:
        """Return a partition as ``gl.warp_specialize`` takes it: the function and what it is passed."""
        arguments = fit("(", partition.arguments, ")", indent=indent + 4)
        entry = f"({partition.function}, {arguments})"
        if "\n" not in entry and indent + len(entry + ",") <= LINE_LENGTH:
            return entry
        margin = " " * indent
        return f"(\n{margin}    {partition.function},\n{margin}    {arguments},\n{margin})"

    def allocate(self, buffer: SharedBuffer, indent: int) -> str:
        """Return the allocation of a ring of tiles."""
        arguments = (
            f"{buffer.operand}_desc.dtype",
            f"[{', '.join(buffer.shape)}]",
            f"{buffer.operand.upper()}_LAYOUT",
        )
        return fit(f"{buffer.name} = gl.allocate_shared_memory(", arguments, ")", indent=indent)

    @property
    def consumer_row(self) -> str:
        """The offset of a consumer's rows, inside its partition."""
        return " + consumer * CONSUMER_TILE_M" if self.plan.consumers > 1 else ""

    def row_offset(self, consumer: int) -> str:
        """Return the offset of a consumer's rows where its number is known."""
        return ("", " + CONSUMER_TILE_M")[consumer] if consumer < 2 else f" + {consumer} * CONSUMER_TILE_M"

    @property
    def worker_warps(self) -> str:
        """Warps of each worker partition."""
        return str([worker.warps for worker in self.plan.workers])

    @property
    def worker_registers(self) -> str:
        """Registers per thread of each worker partition."""
        return str([worker.registers for worker in self.plan.workers])

    # --- layouts

    def define_shared_layout(self, operand: str) -> str:
        """Return the layout of an operand's tiles: a program's CTAs divide the rows of A and D, not of B."""
        plan = self.plan
        swizzle_bytes, dtype, bases = {
            "a": (plan.a_swizzle_bytes, plan.a_dtype, plan.m_bases),
            "b": (plan.b_swizzle_bytes, plan.b_dtype, plan.shared_bases),
            "d": (plan.d_swizzle_bytes, plan.d_dtype, plan.m_bases),
        }[operand]
        arguments = [f"swizzle_byte_width={swizzle_bytes}", f"element_bitwidth={dtype.bits}", "rank=2"]
        return self._constant(f"{operand.upper()}_LAYOUT", "gl.NVMMASharedLayout", arguments, bases)

    def define_accumulator_layout(self) -> str:
        """Return the accumulator's layout; Gluon's instruction shape is one warp's, of 16 rows."""
        _, n, k = self.plan.mma_shape
        arguments = [
            "version=[3, 0]",
            f"warps_per_cta=[{self.plan.consumer_warps}, 1]",
            f"instr_shape=[{WGMMA.rows_per_warp}, {n}, {k}]",
        ]
        return self._constant("ACCUMULATOR_LAYOUT", "gl.NVMMADistributedLayout", arguments, self.plan.m_bases)

    def _constant(self, name: str, constructor: str, arguments: list[str], bases: list[list[int]]) -> str:
        arguments = [*arguments, f"cga_layout={bases}"] if bases else arguments
        line = fit(f"{name} = gl.constexpr({constructor}(", arguments, "))")
        if "\n" not in line:
            return line
        return fit(f"{name} = gl.constexpr(", [fit(f"{constructor}(", arguments, ")", indent=4)], ")")

    @property
    def lead_bases(self) -> str:
        """CGA bases that map every CTA's barrier to the lead CTA's."""
        return str([[0] for _ in self.plan.m_bases])

    # --- wrapper

    @property
    def boxes(self) -> tuple[tuple[str, str, str, str], ...]:
        """Each argument of `matmul` with its operand and the names of its TMA box's extents."""
        columns = "SUBTILE_N" if self.plan.subtiles > 1 else "PROGRAM_TILE_N"
        return (
            ("a", "a", "CONSUMER_TILE_M", "PROGRAM_TILE_K"),
            ("b", "b", "PROGRAM_TILE_N", "PROGRAM_TILE_K"),
            ("out", "d", "CONSUMER_TILE_M", columns),
        )

    def torch_dtype(self, operand: str) -> str:
        """Return an operand's torch dtype."""
        return self._dtype(operand).torch

    def triton_dtype(self, operand: str) -> str:
        """Return an operand's dtype as a Triton signature spells it."""
        return self._dtype(operand).name

    def _dtype(self, operand: str) -> DType:
        return {"a": self.plan.a_dtype, "b": self.plan.b_dtype, "d": self.plan.d_dtype}[operand]

    @property
    def max_overhang(self) -> int:
        """Elements by which a tile's last coordinate can exceed an extent."""
        return max(self.plan.program_tile_m, self.plan.program_tile_n, self.plan.cta_tile_k)

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor."""
        return divmod(self.plan.gpu.architecture.compute_capability, 10)
