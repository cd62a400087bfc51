"""The roles of a plan's warps, and what each of them is passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmgen.plan.storage import Capture

if TYPE_CHECKING:
    from gemmgen.plan.kernel import KernelPlan
    from gemmgen.plan.plan import Plan

SCHEDULE = ("tiles_m", "tiles_n", "k_steps")
"""The scalars from which a partition derives its tiles and K steps."""


@dataclass(frozen=True)
class Partition:
    """One role of a CTA's warps: a device function that they run from start to end."""

    name: str
    function: str
    warps: int
    registers: int
    """Registers per thread."""
    arguments: tuple[str, ...]
    """What the kernel passes, in order."""


def release_barriers(plan: Plan) -> tuple[str, ...]:
    """Return the barriers on which a consumer releases a stage to producers."""
    return ("load_empty", *(f"{operand}_multicast_empty" for operand in plan.multicast))


def epilogue_inputs(plan: Plan, consumer: int = 0) -> tuple[str, ...]:
    """Return what the epilogue reads besides the accumulator: sources, buffers, barriers, in this order."""
    vectors, own = plan.problem.vectors, ("c",) if plan.problem.c else ()
    descriptors = tuple(f"{name}_desc" for name in (*own, *vectors))
    scalar = ("tensor_scale_ptr",) if plan.problem.scalar else ()
    buffers = tuple(plan.per_consumer(f"{name}_smem")[consumer] for name in (*own, *vectors))
    ready = tuple(plan.per_consumer(f"{name}_ready")[consumer] for name in own)
    ready += (plan.per_consumer("vectors_ready")[consumer],) if vectors else ()
    return (*descriptors, *scalar, *buffers, *ready)


def consumer_partitions(plan: Plan) -> tuple[Partition, ...]:
    """Return a partition for each consumer."""
    a_smem = plan.per_share("a_smem")
    return tuple(
        Partition(
            name=name,
            function="consumer_partition",
            warps=plan.consumer_warps,
            registers=plan.consumer_registers,
            arguments=(
                *(() if plan.consumers == 1 else (str(i),)),
                "d_desc",
                a_smem[i % len(a_smem)],
                "b_smem",
                d_smem,
                "load_ready",
                *release_barriers(plan),
                *(("mma_turn",) if plan.ping_pong else ()),
                *epilogue_inputs(plan, i),
                *SCHEDULE,
            ),
        )
        for i, (name, d_smem) in enumerate(zip(*map(plan.per_consumer, ("consumer", "d_smem")), strict=True))
    )


def producer_partition(plan: Plan) -> Partition:
    """Return the warp that issues every load of A and B."""
    return Partition(
        name="producer",
        function="producer_partition",
        warps=1,
        registers=plan.producer_registers,
        arguments=(
            "a_desc",
            "b_desc",
            *plan.per_share("a_smem"),
            "b_smem",
            "load_ready",
            *release_barriers(plan),
            *SCHEDULE,
        ),
    )


def captures(plan: KernelPlan) -> tuple[Capture, ...]:
    """Return what the kernel hands to its workers through shared memory: each value once."""
    ranks = {buffer.name: len(buffer.shape) for buffer in plan.shared_buffers}
    ranks |= {bar.name: 2 if bar.ring else 1 for bar in plan.barriers}
    ranks |= {buffer.name: 0 for buffer in plan.tensor_memory.buffers}
    names = dict.fromkeys(name for worker in plan.workers for name in worker.arguments)
    return tuple(Capture.of(name, ranks) for name in names if not name.isdecimal())
