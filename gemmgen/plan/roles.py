"""The roles of a kernel's warps: what each is passed, and how Triton 3.9 divides registers among them.

The division was derived from about 30 lowered configurations; ``tests/test_lower.py`` compares it with the
``setmaxnreg`` of every committed module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal

from gemmgen.hardware import TRITON, Architecture
from gemmgen.hardware.elements import DType
from gemmgen.plan.storage import (
    Barrier,
    SharedBuffer,
    TensorBuffer,
    numbered,
)


@dataclass(frozen=True)
class RegisterPool:
    """The default partition's warps and its workers as (warps, requested registers per thread)."""

    architecture: Architecture
    default_warps: int
    workers: tuple[tuple[int, int], ...]
    occupancy: int = 1
    """CTAs that share the register file."""

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Registers per thread of each group of four worker warps: ``setmaxnreg`` acts on a warpgroup.

        Workers are packed largest first; a group takes the highest request of its members.
        """
        size = self.architecture.warps_per_warpgroup
        requests = sorted(self.workers, reverse=True)
        warps = [registers for count, registers in requests for _ in range(count)]
        return tuple(max(warps[i : i + size]) for i in range(0, len(warps), size))

    @property
    def total_warps(self) -> int:
        """Warps per CTA; the last worker group is padded to four."""
        return self.default_warps + self.architecture.warps_per_warpgroup * len(self.groups)

    def _floor(self, registers: int) -> int:
        """Round down to what ``setmaxnreg`` can express."""
        return (
            registers // self.architecture.setmaxnreg_granularity * self.architecture.setmaxnreg_granularity
        )

    @property
    def launch_registers(self) -> int:
        """Registers per thread with which the kernel starts: an equal share of the SM's file."""
        threads = self.total_warps * self.architecture.threads_per_warp * self.occupancy
        share = self._floor(self.architecture.registers_per_sm // threads)
        return min(self.architecture.setmaxnreg_max, share)

    @property
    def setup_registers(self) -> tuple[int, int]:
        """Registers per thread of the default partition and of the workers while no partition runs.

        The default partition then runs the kernel's own code, with all that it can use; the workers wait.
        """
        worker_warps = self.total_warps - self.default_warps
        pool = self.launch_registers * self.total_warps
        rest = pool - self.architecture.setmaxnreg_max * self.default_warps
        waiting = max(self.architecture.setmaxnreg_min, self._floor(rest // worker_warps))
        default = self._floor((pool - waiting * worker_warps) // self.default_warps)
        return min(self.architecture.setmaxnreg_max, default), waiting

    @property
    def handed_over(self) -> bool:
        """True if partitions have other registers than those with which the kernel starts.

        Otherwise no role requests registers: to return registers and to get others takes time at both ends.
        [gluon] If the launch is limited, as for several CTAs on an SM, Triton requests registers
        nevertheless.
        """
        shares = {*self.groups, self.default_registers}
        return bool(self.workers) and (self.occupancy > 1 or shares != {self.launch_registers})

    @property
    def requests(self) -> tuple[int, ...]:
        """The distinct register counts in the kernel's ``setmaxnreg``, ascending; none without a request."""
        if not self.handed_over:
            return ()
        return tuple(sorted({*self.groups, self.default_registers, *self.setup_registers}))

    @property
    def default_registers(self) -> int:
        """Registers per thread that the workers leave to the default partition."""
        pool = self.launch_registers * self.total_warps
        taken = self.architecture.warps_per_warpgroup * sum(self.groups)
        return min(self.architecture.setmaxnreg_max, self._floor((pool - taken) // self.default_warps))


@cache
def balanced_consumer_registers(
    architecture: Architecture,
    consumers: int,
    consumer_warps: int,
    producer_registers: int,
    occupancy: int = 1,
) -> int:
    """Return the most registers per thread that every consumer can have at the same time.

    The default partition's share falls as its sibling's request rises, so the largest request that it
    still matches is the balance.
    """
    step, top = architecture.setmaxnreg_granularity, architecture.setmaxnreg_max
    for registers in range(top, architecture.setmaxnreg_min, -step):
        workers = ((consumer_warps, registers),) * (consumers - 1) + ((1, producer_registers),)
        pool = RegisterPool(architecture, consumer_warps, workers, occupancy)
        if pool.default_registers >= registers:
            return registers
    return architecture.setmaxnreg_min


SCALED: dict[str, Literal["a", "b", "d"]] = {"a_scale": "a", "b_scale": "b", "d_scale": "d"}
"""The matrices with scales of blocks, by the tensors of their scales."""


@dataclass(frozen=True)
class Argument:
    """A tensor that the kernel is launched with."""

    tensor: str
    """The tensor of the argument: ``a``, ``bias`` or ``partials``, for example."""
    kind: Literal[
        "matrix",
        "block_scales",
        "tile_scales",
        "vector",
        "group_vector",
        "scalar",
        "groups",
        "row_index",
        "address",
        "d_scales",
        "workspace",
    ]
    """An ``address`` is that of a matrix whose descriptor is an argument too: threads access it, and the
    descriptor has its extents.
    """
    dtype: DType
    along: Literal["m", "n"] | None = None
    """The dimension of D along which a vector has its elements, or block scales their rows."""
    part: int | None = None
    """Which further part of the tensor's tiles it describes; None for the first one, or all."""
    restored: bool = field(default=False, repr=False)
    """True if a launch leaves the tensor as it finds it, and relies on that."""

    @property
    def name(self) -> str:
        """The tensor, with the number of a further part; an address has a name beside its descriptor's."""
        return f"{self.tensor}_address" if self.kind == "address" else numbered(self.tensor, self.part)

    @property
    def is_addressed(self) -> bool:
        """True if it is passed by its address; others have a descriptor, by which TMA moves them."""
        return self.kind not in ("matrix", "block_scales", "vector")

    @property
    def scaled(self) -> Literal["a", "b", "d"] | None:
        """The matrix for whose blocks it has scales; None if it is another tensor."""
        return SCALED.get(self.tensor)

    @property
    def capture_bytes(self) -> int:
        """Bytes of its descriptor, or of its address, where a worker partition is passed it."""
        return TRITON.pointer_capture_bytes


@dataclass(frozen=True)
class Count:
    """A number that the kernel computes from the extents of its arguments."""

    name: Literal[
        "m",
        "n",
        "k",
        "groups",
        "tiles_m",
        "tiles_n",
        "last_row",
        "k_steps",
        "rows_of_a",
        "a_stride",
        "rows_of_d",
        "d_stride",
    ]
    bytes: int = TRITON.scalar_capture_bytes

    @property
    def capture_bytes(self) -> int:
        """Bytes that it takes where a worker partition is passed it."""
        return self.bytes


M, N, K, GROUPS = Count("m"), Count("n"), Count("k"), Count("groups")
TILES_M, TILES_N, K_STEPS = Count("tiles_m"), Count("tiles_n"), Count("k_steps")
LAST_ROW = Count("last_row")
ROWS_OF_A, A_STRIDE = Count("rows_of_a"), Count("a_stride", TRITON.stride_capture_bytes)
ROWS_OF_D, D_STRIDE = Count("rows_of_d"), Count("d_stride", TRITON.stride_capture_bytes)
Passed = Argument | SharedBuffer | Barrier | TensorBuffer | Count
"""A value that the kernel passes to a partition."""


@dataclass(frozen=True)
class Partition:
    """One role of a CTA's warps: a device function that they run from start to end."""

    role: Literal["consumer", "producer", "epilogue", "mma", "load", "scheduler"]
    warps: int
    registers: int
    """Registers per thread."""
    passes: tuple[Passed, ...]
    """The values that the kernel passes, in order."""
    number: int | None = None
    """Which of several partitions with the same role it is."""

    @property
    def name(self) -> str:
        """The role, with a number where several have it."""
        return self.role if self.number is None else f"{self.role}_{self.number}"


def captures(workers: Iterable[Partition]) -> tuple[Passed, ...]:
    """Return the values that the kernel passes to its workers through shared memory, each once."""
    # By its name, under which a partition gets it: to hash a buffer takes as long as to make one.
    return tuple({value.name: value for worker in workers for value in worker.passes}.values())
