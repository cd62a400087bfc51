"""The roles of a Hopper plan's warps, and what each of them is passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmgen.plan.roles import Partition

if TYPE_CHECKING:
    from gemmgen.plan.hopper.plan import WgmmaPlan

SCHEDULE = ("tiles_m", "tiles_n", "k_steps")
"""The scalars from which a partition derives its tiles and K steps."""


def release_barriers(plan: WgmmaPlan) -> tuple[str, ...]:
    """Return the barriers on which a consumer releases a stage to producers."""
    return ("load_empty", *(f"{operand}_multicast_empty" for operand in plan.multicast))


def epilogue_inputs(plan: WgmmaPlan, consumer: int = 0) -> tuple[str, ...]:
    """Return what the epilogue reads besides the accumulator: sources, buffers, barriers, in this order."""
    vectors, own = plan.problem.vectors, ("c",) if plan.problem.c else ()
    descriptors = tuple(f"{name}_desc" for name in (*own, *vectors))
    scalar = ("tensor_scale_ptr",) if plan.problem.scalar else ()
    buffers = tuple(plan.per_consumer(f"{name}_smem")[consumer] for name in (*own, *vectors))
    ready = tuple(plan.per_consumer(f"{name}_ready")[consumer] for name in own)
    ready += (plan.per_consumer("vectors_ready")[consumer],) if vectors else ()
    return (*descriptors, *scalar, *buffers, *ready)


def consumer_partitions(plan: WgmmaPlan) -> tuple[Partition, ...]:
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


def producer_partition(plan: WgmmaPlan) -> Partition:
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
