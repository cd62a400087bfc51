"""What a kernel allocates in shared memory, as statements and the comments that explain them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.storage import Barrier, SharedBuffer
from gemmgen.render.fit import fit

RING_INDICES = {
    "STAGES": "stage",
    "EPILOGUE_BUFFERS": "buffer",
    "CONSUMERS": "consumer",
    "ACCUMULATORS": "slot",
    "ANSWERS": "slot",
}
"""The loop variable over each kind of ring."""


@dataclass(frozen=True)
class AllocationView:
    """The shared memory of one plan as its template sees it: lines of the kernel's body."""

    plan: KernelPlan

    @property
    def buffers(self) -> Iterator[str]:
        """The allocation of each ring of tiles."""
        return map(self._buffer, self.plan.shared_buffers)

    @staticmethod
    def _buffer(buffer: SharedBuffer) -> str:
        extents = f"[{', '.join(buffer.shape)}]"
        dtype = "gl.int64" if buffer.operand == "clc" else f"{buffer.operand}_desc.dtype"
        arguments = (dtype, extents, f"{buffer.operand.upper()}_LAYOUT")
        return fit(f"{buffer.name} = gl.allocate_shared_memory(", arguments, ")", indent=4, margin=0)

    @property
    def barriers(self) -> Iterator[str]:
        """The allocation of each ring of barriers, under a comment for all of the same meaning."""
        explained = False
        for meaning, group in groupby(self.plan.barriers, key=lambda barrier: barrier.meaning):
            alike = tuple(group)
            text = f"{' and '.join(barrier.name for barrier in alike)}, {meaning}."
            if alike[0].paired:
                text += (
                    f" It is in the pair's first CTA; each CTA counts: {alike[0].arrivals} arrivals in all."
                )
            if alike[0].groups:
                text += self._group_meaning(alike[0], explained)
                explained = True
            yield textwrap.fill(text, width=104, initial_indent="# ", subsequent_indent="# ")
            yield from map(self._barrier, alike)

    @staticmethod
    def _group_meaning(barrier: Barrier, explained: bool) -> str:
        """Say where a barrier is that CTAs share, and how it counts."""
        arrivals = f"Each CTA of the group counts: {barrier.arrivals} arrivals in all."
        if explained:
            return f" {arrivals}"
        return (
            f" There is one for each group of CTAs that share {barrier.shared}, in the group's first: a basis"
            f" [0] maps a CTA to the barrier of its neighbour. {arrivals}"
        )

    @staticmethod
    def _barrier(barrier: Barrier) -> str:
        if barrier.groups:
            bases = [list(basis) for basis in barrier.bases]
            arguments = (
                "gl.int64",
                f"[{barrier.ring}, {barrier.groups}]",
                f"mbarrier.MBarrierLayout({bases})",
            )
            return fit(f"{barrier.name} = gl.allocate_shared_memory(", arguments, ")", indent=4, margin=0)
        batch = (f"batch={barrier.ring}",) if barrier.ring else ()
        pair = ("two_ctas=True",) if barrier.paired else ()
        return f"{barrier.name} = mbarrier.allocate_mbarrier({', '.join(batch + pair)})"

    @property
    def initializations(self) -> Iterator[str]:
        """The statements that initialize the barriers, ring by ring."""
        for ring in dict.fromkeys(barrier.ring for barrier in self.plan.barriers):
            of_ring = [barrier for barrier in self.plan.barriers if barrier.ring == ring]
            if ring:
                index = RING_INDICES[ring]
                yield f"for {index} in gl.static_range({ring}):"
                for barrier in of_ring:
                    yield f"    mbarrier.init({barrier.name}.index({index}), count={barrier.arrives})"
            else:
                for barrier in of_ring:
                    yield f"mbarrier.init({barrier.name}, count={barrier.arrives})"
