"""Rules of a Blackwell kernel's resources: registers, shared memory, rings, tensor memory."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.hardware import TCGEN05
from gemmgen.plan.capacity import fits, largest_that_fits, over_capacity, stages_that_fit
from gemmgen.plan.fix import Fix, at_least, at_most, either, use
from gemmgen.plan.rule import Consulted, Finding, Rule, altered, counted, keeps, rule
from gemmgen.plan.shared_rules import inexpressible_request, misfit_buffers, narrowest_subtile
from gemmgen.plan.tcgen05.bounds import (
    FEW_LOADS,
    STEP_REGISTERS,
    loads_across,
    mma_registers,
    most_accumulators,
    most_sums,
    needed_worker_registers,
    operand_loads,
    scale_columns,
    step_operations,
    sums,
)
from gemmgen.plan.tcgen05.resources import Tcgen05Kernel
from gemmgen.plan.tcgen05.tile_rules import (
    TILE,
    cluster_shape,
    named,
    operand_major,
    tile_columns,
    tile_power_of_two,
    tile_rows,
)


@rule("operand-swizzle", after=[*TILE, operand_major, cluster_shape])
def operand_swizzle(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A and B are swizzled, no wider than their rows, and padded elements as wide as can be."""
    widths = plan.architecture.tma_swizzle_bytes
    for (name, operand), swizzle, row in zip(
        named(plan), (plan.a_swizzle_bytes, plan.b_swizzle_bytes), (plan.a_row, plan.b_row), strict=True
    ):
        row_bytes = row * operand.smem_bits // 8
        legal = [width for width in (widths[:1] if operand.padded else widths) if width <= row_bytes]
        if swizzle in legal:
            continue
        if not legal:
            extent = "k" if operand.major == "k" else {"a": "m", "b": "n"}[name]
            tile = {"k": plan.cta_tile_k, "m": plan.cta_tile_m, "n": plan.cta_tile_n}[extent]
            yield Finding(
                f"tile.{extent}",
                f"rows of {row} elements, {row_bytes} bytes, in the tiles of {name.upper()}",
                f"the tensor cores read operands that are swizzled over at least {widths[-1]} bytes",
                at_least(tile * widths[-1] // row_bytes),
            )
            continue
        found = f"a swizzle of {swizzle:,} bytes"
        limit = (
            f"operands are swizzled over {either(widths)} bytes, of at most the {row_bytes} of a tile's row"
        )
        if operand.padded:
            limit = f"TMA pads 4-bit elements only with one of {widths[0]}"
        yield Finding(f"operands.{name}.swizzle", found, limit, use(*legal))


# --- the epilogue


@rule(
    "epilogue-subtile",
    subject="store",
    # A cluster of fewer CTAs may store the tile in parts.
    after=[tile_power_of_two.at("tile.n", "epilogue.subtile_n"), cluster_shape],
)
def epilogue_subtile(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """A sub-tile is part of a tile's columns that TMA can move."""
    field, narrowest = "epilogue.subtile_n", narrowest_subtile(plan)
    if plan.subtile_n > plan.cta_tile_n:
        limit, fix = f"the tile has {plan.cta_tile_n}", at_most(plan.cta_tile_n)
    elif plan.subtile_n < plan.cta_tile_n and plan.cluster_n > 1:
        limit = "a slice of an accumulator would part the columns of one CTA of the cluster from another's"
        fix = use(plan.cta_tile_n)
    elif plan.subtile_n < narrowest:
        field = field if plan.cta_tile_n >= narrowest else "tile.n"
        alignment = plan.architecture.tma_alignment_bytes
        dtypes = (plan.problem.d, *((plan.problem.c,) if plan.problem.c else ()))
        shortest = min(dtypes, key=lambda dtype: dtype.bits).name
        limit = f"TMA moves at least {alignment} bytes of a row of {shortest}"
        fix = at_least(narrowest)
    else:
        return
    yield Finding(field, f"sub-tiles of {plan.subtile_n:,} columns", limit, fix)


@rule(
    "epilogue-registers",
    subject="store",
    after=[
        tile_power_of_two.at("epilogue.subtile_n"),
        cluster_shape,
        tile_rows,
        tile_columns,
        epilogue_subtile,
    ],
)
def epilogue_registers(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """The sums of a sub-tile, and the values computed from them, fit into registers."""
    held, most = sums(plan), most_sums(plan)
    if held <= most:
        return
    steps = f" after {', '.join(plan.problem.steps)}" if plan.problem.steps else ""
    yield Finding(
        "epilogue.subtile_n" if plan.cluster_n == 1 else "tile.n",
        f"sub-tiles of {plan.subtile_n} columns",
        f"an epilogue thread spills {held} sums that become {plan.problem.d.name}{steps}",
        at_most(plan.subtile_n * most // held),
    )


@rule(
    "epilogue-buffers",
    subject="store",
    after=[tile_power_of_two.at("tile.n", "epilogue.subtile_n"), epilogue_subtile],
)
def epilogue_buffers(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """Each epilogue buffer has a sub-tile of every tile, so that the ring starts anew with the tile."""
    yield from misfit_buffers(plan)


# --- capacity


@rule("tmem-capacity", after=TILE)
def tmem_capacity(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """All accumulators and scales fit into tensor memory: otherwise Triton silently compiles a trap."""
    if plan.tensor_memory.columns <= TCGEN05.tmem_columns:
        return
    if not (most := most_accumulators(plan)):
        return  # a K step with so many scales does not fit into shared memory either
    scales = scale_columns(plan)
    beside = f" and scales in {scales:,}" if scales else ""
    yield Finding(
        "buffering.accumulators",
        f"{counted(plan.accumulators, 'accumulator')} of {plan.cta_tile_n} columns{beside} need "
        f"{plan.tensor_memory.columns:,}",
        f"tensor memory has {TCGEN05.tmem_columns}, and Triton compiles what needs more to a trap in silence",
        at_most(most),
    )


SMALLER_TILE = (*TILE, epilogue_subtile, epilogue_buffers)
"""Rules that a smaller tile has to keep when advice proposes it."""


@rule(
    "smem-capacity",
    subject="store",
    after=[
        *TILE,
        tile_power_of_two,
        cluster_shape,
        epilogue_subtile,
        epilogue_buffers,
        # A cluster along N stores a tile whole: with as many columns as threads have registers for, C and D
        # leave memory for a stage, and so a shorter K step or fewer buffers are always enough.
        epilogue_registers.at("tile.n"),
    ],
    consults=[operand_swizzle],
)
def smem_capacity(plan: Tcgen05Kernel, consulted: Consulted) -> Iterator[Finding]:
    """All buffers, barriers and compiler state fit into a CTA's shared memory."""
    # The barriers of more accumulators than there can be are not what takes the memory.
    plan = altered(plan, accumulators=min(plan.accumulators, max(1, most_accumulators(plan))))
    if fits(plan):
        return
    yield from over_capacity(
        plan,
        least=1,
        most=stages_that_fit(plan),
        unbounded=consulted.broken(operand_swizzle),  # alignment has no bound
        smaller_tile=_smaller_tile,
    )


def _smaller_tile(plan: Tcgen05Kernel) -> tuple[str, Fix]:
    """Return the field that has to shrink for a plan with a single stage to fit, and the fix for it.

    The fix names the largest value that does it. Where no field will do alone, the others are taken at
    their smallest.
    """
    one_buffer = altered(plan, epilogue_buffers=1)
    narrow = one_buffer if plan.cluster_n > 1 else altered(one_buffer, subtile_n=narrowest_subtile(plan))
    attempts = (
        (plan, "epilogue_buffers", "buffering.epilogue"),
        (plan, "subtile_n", "epilogue.subtile_n"),
        (plan, "cta_tile_k", "tile.k"),
        (one_buffer, "subtile_n", "epilogue.subtile_n"),
        (narrow, "cta_tile_k", "tile.k"),
    )
    return largest_that_fits(attempts, legal=lambda smaller: keeps(smaller, SMALLER_TILE))


STEP = (*TILE, operand_swizzle)
"""Where these are kept, the MMAs and loads of a K step can be counted."""


@rule("register-granularity", consults=STEP)
def register_granularity(plan: Tcgen05Kernel, consulted: Consulted) -> Iterator[Finding]:
    """A register request is a number that ``setmaxnreg`` can express: others are silently changed."""
    least = None if consulted.broken(*STEP) else needed_worker_registers(plan)
    yield from inexpressible_request(plan.architecture, "worker", plan.worker_registers, least=least)


@rule("worker-registers", after=[*STEP, register_granularity])
def worker_registers(plan: Tcgen05Kernel) -> Iterator[Finding]:
    """The workers have registers for the addresses of every MMA, copy of scales and load of a K step."""
    operations, (most, registers) = step_operations(plan), STEP_REGISTERS[-1]
    copies = f" and {plan.scale_copies} copies of scales" if plan.scale_copies else ""
    found = f"{counted(plan.mmas_per_step, 'MMA')}{copies} a K step"
    if operations > most and stages_that_fit(plan):
        step = plan.cta_tile_k
        while step_operations(altered(plan, cta_tile_k=step)) > most:
            step //= 2
        yield Finding(
            "tile.k",
            f"{found} of {plan.cta_tile_k:,} elements",
            f"the addresses of more than {most} take more than {registers} registers of the MMA warp",
            at_most(step),
        )
    elif operations <= most and plan.worker_registers < (needed := needed_worker_registers(plan)):
        taken = f"{found} take {needed} of the MMA warp"
        if mma_registers(plan) < needed:
            taken = f"{_loads(plan)} {needed} of the load warp"
        yield Finding(
            "warp_specialization.registers.worker",
            f"{plan.worker_registers} registers per worker thread",
            taken,
            at_least(needed),
        )


def _loads(plan: Tcgen05Kernel) -> str:
    """Name what makes the load warp need more than the fewest registers, and the verb."""
    across, loads = loads_across(plan), operand_loads(plan)
    if across > FEW_LOADS:
        return f"{across} TMA loads a K step across rows of K take"
    if loads > FEW_LOADS:
        return f"a Hilbert curve and {loads} TMA loads a K step take"
    return "a Hilbert curve takes"


RESOURCE_RULES: tuple[Rule[Tcgen05Kernel], ...] = (
    register_granularity,
    worker_registers,
    operand_swizzle,
    tmem_capacity,
    smem_capacity,
    epilogue_subtile,
    epilogue_registers,
    epilogue_buffers,
)
