"""The buffers, barriers and roles of a Blackwell kernel, as values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from gemmgen.hardware import TCGEN05
from gemmgen.plan.epilogue_storage import EpilogueStorage, epilogue_storage
from gemmgen.plan.roles import K_STEPS, TILES_M, TILES_N, Argument, Count, Partition, Passed
from gemmgen.plan.storage import (
    CTA_SCOPE,
    PAIR_SCOPE,
    Barrier,
    Extent,
    KernelResources,
    Ring,
    Scope,
    SharedBuffer,
    TensorBuffer,
)
from gemmgen.plan.tcgen05.geometry import CLC_RESPONSES, Tcgen05Geometry
from gemmgen.problem import Operand


@dataclass(frozen=True)
class LaunchControl:
    """Where the responses of cluster launch control arrive, from which every role learns the next tile."""

    responses: SharedBuffer
    ready: Barrier
    empty: Barrier

    @property
    def values(self) -> tuple[Passed, ...]:
        """The values that a role is passed."""
        return (self.responses, self.ready, self.empty)


@dataclass(frozen=True)
class Tcgen05Resources(KernelResources):
    """The buffers and barriers of one kernel."""

    tiles: tuple[SharedBuffer, ...]
    """The ring, a buffer for each payload of a stage."""
    epilogue: EpilogueStorage
    accumulator: TensorBuffer
    tmem_scales: tuple[TensorBuffer, ...]
    load_empty: Barrier
    load_ready: Barrier
    accumulator_empty: Barrier
    accumulator_ready: Barrier
    launch_control: LaunchControl | None

    @property
    def a(self) -> SharedBuffer:
        """The buffer of A."""
        return self.of("a")

    @property
    def b(self) -> SharedBuffer:
        """The buffer of B."""
        return self.of("b")

    @property
    def scales(self) -> tuple[SharedBuffer, ...]:
        """The buffers of the scales of A and B; empty without block scales."""
        return tuple(buffer for buffer in self.tiles if buffer.tensor not in ("a", "b"))

    def of(self, tensor: str) -> SharedBuffer:
        """Return the buffer of the ring that has a tensor's tiles."""
        return next(buffer for buffer in self.tiles if buffer.tensor == tensor)

    @property
    def buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in the order in which the kernel allocates them."""
        responses = (self.launch_control.responses,) if self.launch_control else ()
        return (*self.tiles, *self.epilogue.buffers, *responses)

    @property
    def tensor_buffers(self) -> tuple[TensorBuffer, ...]:
        """The buffers in tensor memory, in the order in which the kernel allocates them."""
        return (self.accumulator, *self.tmem_scales)

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """The barriers in the order in which the kernel allocates them."""
        control = self.launch_control
        claims = (control.ready, control.empty) if control else ()
        stages, sums = (self.load_empty, self.load_ready), (self.accumulator_empty, self.accumulator_ready)
        return (*stages, *sums, *self.epilogue.barriers, *claims)


def resources_of(kernel: Tcgen05Geometry) -> Tcgen05Resources:
    """Return the buffers and barriers of a kernel."""
    stages = Ring(Extent(kernel.stages, "stages"))
    sums = Ring(Extent(kernel.accumulators, "accumulators"), indexed=kernel.accumulators > 1)
    problem, scope = kernel.problem, PAIR_SCOPE if kernel.paired else CTA_SCOPE
    both = ", in both CTAs" if kernel.paired else ""
    tmem_scales = (
        _tmem_scales(kernel, "a_scale_tmem", problem.a, kernel.cta_tile_m),
        _tmem_scales(kernel, "b_scale_tmem", problem.b, kernel.cta_tile_n),
    )
    readers, who = kernel.stage_readers, "pairs" if kernel.paired else "CTAs"
    read = (
        f"the MMAs of all {who} that it fills have read the stage"
        if readers > 1
        else "the stage has been read"
    )
    return Tcgen05Resources(
        tiles=tuple(chain.from_iterable(each.buffers(stages) for each in kernel.stage.payloads)),
        epilogue=epilogue_storage(kernel, Extent(kernel.program_tile_m, "tile_m")),
        accumulator=TensorBuffer(
            "accumulators" if kernel.accumulators > 1 else "accumulator",
            # A column holds a number of 32 bits in each of 128 lanes; 64 rows leave half of the lanes idle.
            kernel.accumulators * kernel.cta_tile_n,
            f"{kernel.accumulators} x {kernel.cta_tile_n} columns of fp32",
        ),
        tmem_scales=tuple(buffer for buffer in tmem_scales if buffer.columns),
        load_empty=Barrier("load_empty", stages, f"tensor cores to the load warp: {read}", readers),
        load_ready=Barrier(
            "load_ready", stages, f"TMA to the MMA warp: the stage holds its tiles{both}", scope=scope
        ),
        accumulator_empty=Barrier(
            "accumulator_empty", sums, f"epilogue to the MMA warp: the sums have been read{both}", scope=scope
        ),
        accumulator_ready=Barrier(
            "accumulator_ready", sums, "tensor cores to the epilogue: the sums of a tile are complete"
        ),
        launch_control=_launch_control(kernel) if kernel.launch_control else None,
    )


def partitions_of(
    kernel: Tcgen05Geometry, resources: Tcgen05Resources, arguments: tuple[Argument, ...]
) -> tuple[Partition, ...]:
    """Return a partition for each role: the epilogue first, which keeps the kernel's own warps."""
    loaded = tuple(argument for argument in arguments if argument.tensor in kernel.stage.tensors)
    own = tuple(argument for argument in arguments if argument not in loaded)
    claims = resources.launch_control.values if resources.launch_control else ()
    handover = (resources.accumulator_empty, resources.accumulator_ready)
    stages = resources.tiles
    stage_barriers = (resources.load_empty, resources.load_ready)
    # Without launch control the MMA warp counts its tiles; with it, it asks like everyone else.
    counts = () if kernel.launch_control else tile_counts(kernel)
    buffers = (resources.epilogue.d, *resources.epilogue.loaded)
    epilogue = (*own, resources.accumulator, *buffers, *handover, *claims)
    mma = (*stages, *resources.tmem_scales, resources.accumulator, *stage_barriers, *handover, *claims)
    load = (*loaded, *stages, *stage_barriers, *claims, *tile_counts(kernel), K_STEPS)
    most = kernel.architecture.setmaxnreg_max
    roles = [
        Partition("epilogue", kernel.epilogue_warps, most, (*epilogue, *tile_counts(kernel))),
        Partition("mma", 1, kernel.worker_registers, (*mma, *counts, K_STEPS)),
        Partition("load", 1, kernel.worker_registers, load),
    ]
    if kernel.launch_control:
        roles.append(Partition("scheduler", 1, kernel.worker_registers, claims))
    return tuple(roles)


def tile_counts(kernel: Tcgen05Geometry) -> tuple[Count, ...]:
    """Return the numbers of tiles that roles are passed.

    A program that walks over tiles needs both counts; to find one tile in an order of lines, the count of a
    line is enough.
    """
    counts = {"m": TILES_M, "n": TILES_N}
    dimensions = kernel.placing_dimensions if kernel.launch_control else ("m", "n")
    return tuple(counts[dimension] for dimension in dimensions)


def _tmem_scales(kernel: Tcgen05Geometry, name: str, operand: Operand, rows: int) -> TensorBuffer:
    """Return the scales of one K step: 4 bytes a column and lane, copied to each of the four warps' lanes.

    An operand without scales takes no column.
    """
    columns = kernel.scale_columns(operand)
    used = rows * columns // TCGEN05.scale_bytes_per_column
    return TensorBuffer(name, used, f"{rows} x {columns} scales of 8 bits")


def _launch_control(kernel: Tcgen05Geometry) -> LaunchControl:
    """Return where the responses of launch control arrive: one is read while the next is requested."""
    ring = Ring(Extent(CLC_RESPONSES, "clc_responses"))
    response_bytes, ctas = TCGEN05.response_bytes, kernel.cluster_size
    return LaunchControl(
        responses=SharedBuffer(
            "clc_responses",
            "clc",
            (Extent(2),),
            CLC_RESPONSES * response_bytes,
            f"{CLC_RESPONSES} x {response_bytes} bytes of launch control",
            ring,
            alignment=16,
        ),
        ready=Barrier("clc_ready", ring, "launch control to all roles: the response has arrived"),
        empty=Barrier(
            "clc_empty",
            ring,
            "all roles, of every CTA, to the scheduler: the response has been read",
            kernel.roles,
            "roles",
            Scope(
                ctas,
                groups=1 if ctas > 1 else 0,
                bases=((0,),) * (ctas.bit_length() - 1),
                shared="a response",
            ),
        ),
    )
