"""A Blackwell kernel as a value: its memory, its barriers and its roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gemmgen.plan.entry import Entry
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.roles import Partition
from gemmgen.plan.storage import TensorMemory
from gemmgen.plan.sum_order import SumOrder
from gemmgen.plan.tcgen05.buffers import Tcgen05Resources, partitions_of, resources_of
from gemmgen.plan.tcgen05.geometry import CLC_RESPONSES, Tcgen05Geometry


@dataclass(frozen=True, kw_only=True)
class Tcgen05Kernel(Tcgen05Geometry, Kernel):
    """A Blackwell kernel: its decisions, and all that it is made of."""

    @property
    def mma_name(self) -> str:
        """The instruction as PTX spells it."""
        return f"cta_group::{self.cta_group}.kind::{self.mma_kind}"

    @property
    def sum_order(self) -> SumOrder:
        """The order in which the products of one element of D are added up: K has one part.

        It was not measured if pairs and single CTAs, or instructions of 64 and 128 rows, add up alike inside
        an instruction.
        """
        return SumOrder(self.problem.accumulator.name, self.mma_k)

    @cached_property
    def resources(self) -> Tcgen05Resources:
        """The buffers and barriers, by their purpose."""
        return resources_of(self)

    @cached_property
    def tensor_memory(self) -> TensorMemory:
        """Every column of a CTA's tensor memory."""
        return TensorMemory(self.resources.tensor_buffers)

    @property
    def operations(self) -> Mapping[str, int]:
        """How often each operation is in the code.

        A K step: a wait for an empty stage, an announcement of its bytes, its loads; a wait for them, the
        copies of scales, the MMAs, and one commit that frees the stage. A tile: a wait for an accumulator and
        a commit that hands it over; a wait for it, the stores, and an arrival that frees it; for each part of
        C, and for all vectors, an announcement, the loads and a wait. Launch control: a wait for every role,
        its arrival, and the scheduler's wait, announcement and request.
        """
        asked = int(self.launch_control)
        readers = asked * len(self.partitions)
        return {
            "tcgen05.mma": self.mmas_per_step,
            "tcgen05.cp": self.scale_copies,
            "tcgen05.commit": 2,
            "TMA load": sum(map(self.loads, self.stage.tensors)) + self.epilogue_loads,
            "TMA store": self.stores,
            "mbarrier wait": 4 + self.awaited_loads + readers + asked,
            "mbarrier arrive": 1 + readers,
            "mbarrier expect": 1 + self.awaited_loads + asked,
            "launch control": asked,
        }

    @property
    def tiles_to_wrap(self) -> int:
        """Tiles of one program in which every ring that turns with the tile comes round twice and goes on."""
        return 3 * max(self.accumulators, CLC_RESPONSES if self.launch_control else 1)

    # --- partitions

    @property
    def default_warps(self) -> int:
        """Warps of the epilogue."""
        return self.epilogue_warps

    @property
    def worker_shares(self) -> tuple[tuple[int, int], ...]:
        """Warps and registers per thread of each role but the epilogue: a warp each, with equal registers."""
        return ((1, self.worker_registers),) * (self.roles - 1)

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """All roles; the first is the default partition, which keeps the kernel's own warps."""
        return partitions_of(self, self.resources, self.arguments)

    # --- what a ledger says of it

    @property
    def kind(self) -> tuple[str, ...]:
        """The kind of kernel in the field's terms: its programs, its warps, and the CTAs of an MMA."""
        schedule = (
            "dynamic persistent (cluster launch control)" if self.launch_control else "static persistent"
        )
        return schedule, "warp-specialized", "2-CTA MMAs" if self.paired else "1-CTA MMAs"

    @property
    def summary(self) -> tuple[Entry, ...]:
        """The decisions of the kernel, each with its consequence."""
        _, n, k = self.mma_shape
        pair = "of two CTAs" if self.paired else "of one CTA"
        instruction = f"{self.mma_kind}, n {n}, k {k}, {pair}, per K step"
        return (
            Entry("CTA tile m", self.cta_tile_m, "rows", "each a lane of tensor memory"),
            Entry("CTA tile n", self.cta_tile_n, "columns", f"stored {self.subtile_n} at a time"),
            Entry("CTA tile k", self.cta_tile_k, "elements", self.stage.words),
            self.cluster_entry,
            Entry("stages", self.stages, "tiles", f"{self.stages * self.cta_tile_k} of K in flight"),
            Entry("accumulators", self.accumulators, "tiles", "of sums in tensor memory"),
            Entry("instructions", self.mmas_per_step, "tcgen05", instruction),
        )
