"""A Blackwell kernel as a value: what is in memory, which barriers hand it over, which roles there are.

And how far a decision can go while the others stay as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

from gemmgen.hardware import SCALE_COLUMNS, SCALE_ROWS, TCGEN05
from gemmgen.plan.kernel import Entry, EpilogueStorage, Kernel, epilogue_arguments, epilogue_storage
from gemmgen.plan.roles import K_STEPS, TILES_M, TILES_N, Argument, Count, Partition, Passed
from gemmgen.plan.storage import (
    CTA_SCOPE,
    PAIR_SCOPE,
    Barrier,
    Extent,
    Ring,
    Scope,
    SharedBuffer,
    TensorBuffer,
    TensorMemory,
)
from gemmgen.plan.sum_order import SumOrder
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
        """What a role is passed of it."""
        return (self.responses, self.ready, self.empty)


@dataclass(frozen=True)
class Tcgen05Resources:
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
        """That of A."""
        return self.of("a")

    @property
    def b(self) -> SharedBuffer:
        """That of B."""
        return self.of("b")

    @property
    def scales(self) -> tuple[SharedBuffer, ...]:
        """Those of the scales of A and of B, where blocks have scales."""
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
        """What is in tensor memory, in the order in which the kernel allocates it."""
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
    tmem_scales: tuple[TensorBuffer, ...] = ()
    if kernel.block_scaled:
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

    Who walks over tiles of its own counts them all; to find one in lines, those of a line are enough.
    """
    counts = {"m": TILES_M, "n": TILES_N}
    dimensions = kernel.placing_dimensions if kernel.launch_control else ("m", "n")
    return tuple(counts[dimension] for dimension in dimensions)


# --- buffers


def _tmem_scales(kernel: Tcgen05Geometry, name: str, operand: Operand, rows: int) -> TensorBuffer:
    """Return the scales of one K step: 4 bytes a column and lane, copied to each of the four warps' lanes."""
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


@dataclass(frozen=True, kw_only=True)
class Tcgen05Kernel(Tcgen05Geometry, Kernel):
    """A Blackwell kernel: its decisions, and all that it is made of."""

    @property
    def mma_name(self) -> str:
        """The instruction as PTX spells it."""
        return f"cta_group::{self.cta_group}.kind::{self.mma_kind}"

    @property
    def sum_order(self) -> SumOrder:
        """In which order the products of one element of D are added up: K has one part.

        That pairs and single CTAs, and instructions of 64 and of 128 rows, add up alike inside of an
        instruction was not measured.
        """
        return SumOrder(self.problem.accumulator.name, self.mma_k)

    @cached_property
    def resources(self) -> Tcgen05Resources:
        """The buffers and barriers by what they are for."""
        return resources_of(self)

    @cached_property
    def shared_buffers(self) -> tuple[SharedBuffer, ...]:
        """The tiles in shared memory, in the order in which the kernel allocates them."""
        return self.resources.buffers

    @cached_property
    def barriers(self) -> tuple[Barrier, ...]:
        """The mbarriers, in the order in which the kernel allocates them."""
        return self.resources.barriers

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
        """Those of the epilogue."""
        return self.epilogue_warps

    @property
    def worker_shares(self) -> tuple[tuple[int, int], ...]:
        """Warps and registers per thread of each role but the epilogue: a warp each, with equal registers."""
        return ((1, self.worker_registers),) * (self.roles - 1)

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """All roles; the first is the default partition, which keeps the kernel's own warps."""
        return partitions_of(self, self.resources, self.arguments)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that the kernel is launched with, in order."""
        problem = self.problem
        d = Argument("d", "matrix", problem.d)
        return (*self.stage.arguments, *epilogue_arguments(problem), d)

    # --- what a ledger says of it

    @property
    def summary(self) -> tuple[Entry, ...]:
        """The decisions with what they mean in this kernel."""
        _, n, k = self.mma_shape
        pair = "of two CTAs" if self.paired else "of one CTA"
        instruction = f"{self.mma_kind}, n {n}, k {k}, {pair}, per K step"
        return (
            Entry("CTA tile m", self.cta_tile_m, "rows", "each a lane of tensor memory"),
            Entry("CTA tile n", self.cta_tile_n, "columns", f"stored as {self.subtiles} x {self.subtile_n}"),
            Entry("CTA tile k", self.cta_tile_k, "elements", self.stage.words),
            self.cluster_entry,
            Entry("stages", self.stages, "tiles", f"{self.stages * self.cta_tile_k} of K in flight"),
            Entry("accumulators", self.accumulators, "tiles", "of sums in tensor memory"),
            Entry("instructions", self.mmas_per_step, "tcgen05", instruction),
        )


# --- how far a decision can go while the others stay as they are

STEP_REGISTERS = ((15, 24), (20, 32), (24, 56), (28, 72), (32, 144))
"""Registers per worker thread by the most MMAs and copies of scales of a K step that compile with them.

[gluon] 16 MMAs of most kinds, and 8 of mxfp4 with 12 copies, compile with 24 registers, and 16 of e5m2 by
pairs spill 4 bytes there; 8 of nvfp4 with 16 copies spill with 32, 16 of mxfp8 with 8 with 48 and with 12
with 56, 32 dense ones with 128, and in a cluster of four with 136. Schedules and clusters differ by 8 at
most. Longer steps need more than they gain.
"""

FEW_LOADS = 12
"""TMA loads in a K step for which a load warp needs no more registers: those across rows of K, or, on a
Hilbert curve, all.

[gluon] 24 loads across, of bf16 swizzled over 32 bytes, spill with 40 registers and compile with 56. Along K,
32 loads compile with 24; on a curve 18 loads, 16 of them along K, spill with 48 and compile with 56.
"""
REGISTERS_OF_MANY_LOADS = 56
REGISTERS_OF_CURVE = 32
"""Of a load warp on a Hilbert curve.

[gluon] With 24 most kernels compile. The warp keeps sums of the extents for the others, and what those do
decides: pairs with scales and boxes of A narrower than a row spill, and with erf lone CTAs with scales and
pairs by launch control. In other orders these compile.
"""

# --- the tile


def least_rows(plan: Tcgen05Kernel) -> int:
    """Return the fewest rows of a CTA's tile: 64 take no pair, and no scales, of which 128 lie together."""
    return SCALE_ROWS if plan.paired or plan.block_scaled else TCGEN05.m[0]


def least_columns(plan: Tcgen05Kernel) -> int:
    """Return the fewest columns of an instruction, or of those whose scales lie together.

    [gluon] Triton compiles narrower instructions in silence; those for scales it refuses.
    """
    if plan.block_scaled:
        return SCALE_ROWS
    if plan.paired:
        return TCGEN05.n_min_pair
    return TCGEN05.n_min if plan.cta_tile_m > TCGEN05.m[0] else TCGEN05.n_min_64_rows


def least_step(plan: Tcgen05Kernel) -> int:
    """Return the fewest elements of a K step: an instruction's, or a block of scales.

    That of formats beside padded elements is as long as a box of those.
    """
    operands = (plan.problem.a, plan.problem.b)
    vectors = [SCALE_COLUMNS * operand.scale.format.vector for operand in operands if operand.scale]
    return max([plan.mma_k, *vectors])


# --- registers


def step_operations(plan: Tcgen05Kernel) -> int:
    """Return the MMAs and copies of scales of a K step, all of whose addresses the MMA warp keeps."""
    return plan.mmas_per_step + plan.scale_copies


def loads_across(plan: Tcgen05Kernel) -> int:
    """Return the TMA loads of a K step across rows of K: each has a coordinate of its own along them."""
    operands = (("a", plan.problem.a), ("b", plan.problem.b))
    return sum(plan.loads(name) for name, operand in operands if operand.major == "mn")


def operand_loads(plan: Tcgen05Kernel) -> int:
    """Return the TMA loads of A and B for a K step."""
    return plan.loads("a") + plan.loads("b")


def mma_registers(plan: Tcgen05Kernel) -> int:
    """Return the registers per thread of the MMA warp, the most that were measured for longer steps."""
    operations = step_operations(plan)
    return next((needed for most, needed in STEP_REGISTERS if operations <= most), STEP_REGISTERS[-1][1])


def load_registers(plan: Tcgen05Kernel) -> int:
    """Return the registers per thread of the load warp."""
    curved = plan.order == "hilbert"
    if loads_across(plan) > FEW_LOADS or (curved and operand_loads(plan) > FEW_LOADS):
        return REGISTERS_OF_MANY_LOADS
    if curved:
        return REGISTERS_OF_CURVE
    return plan.architecture.setmaxnreg_min


def needed_worker_registers(plan: Tcgen05Kernel) -> int:
    """Return the registers per thread that all workers compile with."""
    return max(mma_registers(plan), load_registers(plan))


def most_sums(plan: Tcgen05Kernel) -> int:
    """Return the most sums of a sub-tile that a thread of the epilogue can have at a time.

    [gluon] With 256, a row's of so many columns, kernels compile that convert them to 16 or 8 bits, behind a
    factor or ReLU too; fp32 spills, as do other activations, and a factor before ReLU. C and any row or
    column operand spill, too. With 128 all compile, but with other activations than ReLU some whose tiles are
    found in groups, on a curve or in a snake: those of fp32, those with erf, those with C, and two operations
    and more; with 64 they do.
    """
    problem, steps, c = plan.problem, plan.problem.steps, plan.problem.c is not None
    reads = c or bool(problem.vectors)
    smooth = {op.register_class for op in problem.operations if op.smooth}
    if smooth and (c or problem.d.bits == 32 or "erf" in smooth or len(steps) > 1):
        return 64
    sloped = any(op.function and op.parameters for op in problem.operations)
    most = smooth or sloped or reads or problem.d.bits == 32 or len(steps) > 1
    return 128 if most else 256


def sums(plan: Tcgen05Kernel) -> int:
    """Return the sums of a sub-tile that a thread of the epilogue has."""
    threads = plan.default_warps * plan.architecture.threads_per_warp
    return plan.cta_tile_m * plan.subtile_n // threads


# --- tensor memory


def scale_columns(plan: Tcgen05Kernel) -> int:
    """Return the columns of tensor memory that are not the accumulators'."""
    return plan.tensor_memory.columns - plan.accumulators * plan.cta_tile_n


def most_accumulators(plan: Tcgen05Kernel) -> int:
    """Return the most accumulators that fit beside the scales, 0 if not even one does."""
    return max(0, TCGEN05.tmem_columns - scale_columns(plan)) // plan.cta_tile_n


# --- shared memory


def smem_limit(plan: Tcgen05Kernel) -> int:
    """Return the bytes of shared memory that a CTA can have, alone on its SM."""
    return plan.architecture.smem_bytes_per_cta


def fits(plan: Tcgen05Kernel) -> bool:
    """Whether a CTA's shared memory holds all that the plan puts there."""
    limit = smem_limit(plan)
    return plan.stages * plan.stage_bytes <= limit and plan.smem_bytes <= limit  # the ring is soon added up


def most_stages(plan: Tcgen05Kernel) -> int:
    """Return the most stages that fit, 0 if not even one does."""
    limit = smem_limit(plan)
    depths = range(1, limit // max(1, plan.stage_bytes) + 1)
    return bisect_right(depths, limit, key=partial(plan.shared_memory.bytes_with, "stages"))
