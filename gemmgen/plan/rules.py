"""The constraints of a Hopper plan: one pure function each, all of them in ``RULES``.

A rule yields a violation for every spec field that breaks it, with the numbers and the nearest legal value.
Its id is its name with dashes. A rule judges one thing and stays silent where another rule speaks: a value
that is no power of two is reported once, not by every rule that divides by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gemmgen.errors import Violation
from gemmgen.plan.plan import Plan
from gemmgen.plan.registers import balanced_consumer_registers
from gemmgen.target import GPUS, WGMMA

Rule = Callable[[Plan], Iterator[Violation]]

CONSUMER_WORKING_REGISTERS = 40
"""Registers that a consumer thread needs beside its accumulator: addresses, phases, converted elements.

[gluon] lowered on both sides of the limit, see ``tests/test_lower.py``.
"""


def rule_id(rule: Rule) -> str:
    """Return the id under which a rule's violations are reported."""
    return rule.__name__.replace("_", "-")


def is_power_of_two(value: int) -> bool:
    """Whether Gluon accepts a block extent."""
    return value > 0 and value & (value - 1) == 0


def power_of_two_below(value: int) -> int:
    """Return the largest power of two that is at most `value`."""
    return 1 << (value.bit_length() - 1)


def nearest_powers(value: int) -> str:
    """Name the powers of two around a value."""
    below = power_of_two_below(value)
    return f"use {below} or {2 * below}"


def target_architecture(plan: Plan) -> Iterator[Violation]:
    """The target has the matrix instruction that this family is made of."""
    if plan.gpu.architecture.mma != "wgmma":
        hopper = " or ".join(name for name, gpu in GPUS.items() if gpu.architecture.mma == "wgmma")
        yield Violation(
            rule_id(target_architecture),
            "target",
            f"{plan.gpu.name} is {plan.gpu.architecture.name}, which has {plan.gpu.architecture.mma}",
            "this version generates wgmma kernels for sm_90a",
            f"use {hopper}",
        )


def operand_dtypes(plan: Plan) -> Iterator[Violation]:
    """Wgmma multiplies equal 16-bit types only."""
    if plan.a_dtype != plan.b_dtype:
        yield Violation(
            rule_id(operand_dtypes),
            "operands.b.dtype",
            f"B is {plan.b_dtype.name} and A is {plan.a_dtype.name}",
            "wgmma multiplies 16-bit operands of one type",
            f"use {plan.a_dtype.name}",
        )


def operand_major(plan: Plan) -> Iterator[Violation]:
    """Both operands are contiguous along K."""
    for name, major in (("a", plan.a_major), ("b", plan.b_major)):
        if major != "k":
            stored = {"a": "A is M-contiguous", "b": "B is N-contiguous"}[name]
            yield Violation(
                rule_id(operand_major),
                f"operands.{name}.major",
                stored,
                "this version generates kernels whose operands are both K-major",
                "use k, or store the transpose",
            )


def tile_power_of_two(plan: Plan) -> Iterator[Violation]:
    """Every block extent in Gluon is a power of two."""
    extents = {
        "tile.m": plan.cta_tile_m,
        "tile.n": plan.cta_tile_n,
        "tile.k": plan.cta_tile_k,
        "epilogue.subtile_n": plan.subtile_n,
    }
    for field, extent in extents.items():
        if not is_power_of_two(extent):
            yield Violation(
                rule_id(tile_power_of_two),
                field,
                f"{extent} is no power of two",
                "Gluon's block extents are powers of two",
                nearest_powers(extent),
            )


def consumer_rows(plan: Plan) -> Iterator[Violation]:
    """Every warp of a consumer has its own 16 rows of the tile, and consumers have equal shares."""
    if not is_power_of_two(plan.cta_tile_m):
        return
    if not is_power_of_two(plan.consumers):
        yield Violation(
            rule_id(consumer_rows),
            "warp_specialization.consumers",
            f"{plan.consumers} consumers cannot share {plan.cta_tile_m} rows in power-of-two parts",
            "Gluon's block extents are powers of two",
            nearest_powers(plan.consumers),
        )
        return
    rows_needed = WGMMA.rows_per_warp * plan.consumer_warps
    if plan.cta_consumer_tile_m < rows_needed:
        yield Violation(
            rule_id(consumer_rows),
            "tile.m",
            f"{plan.cta_tile_m} rows leave each of {plan.consumers} consumers {plan.cta_consumer_tile_m}",
            f"the {plan.consumer_warps} warps of a consumer take {rows_needed}, {WGMMA.rows_per_warp} each",
            f"use at least {plan.consumers * rows_needed}",
        )


def mma_n(plan: Plan) -> Iterator[Violation]:
    """The tile is at least as wide as the narrowest instruction."""
    if plan.cta_tile_n < WGMMA.n_min and is_power_of_two(plan.cta_tile_n):
        yield Violation(
            rule_id(mma_n),
            "tile.n",
            f"a tile of {plan.cta_tile_n} columns",
            f"the narrowest wgmma has n = {WGMMA.n_min}",
            f"use at least {WGMMA.n_min}",
        )


def mma_k(plan: Plan) -> Iterator[Violation]:
    """A K step is at least one instruction deep."""
    k = plan.mma_shape[2]
    if plan.cta_tile_k < k and is_power_of_two(plan.cta_tile_k):
        yield Violation(
            rule_id(mma_k),
            "tile.k",
            f"a K step of {plan.cta_tile_k} elements",
            f"a wgmma of {plan.a_dtype.name} takes k = {k}",
            f"use at least {k}",
        )


def cluster_shape(plan: Plan) -> Iterator[Violation]:
    """A program is one CTA, or two along M that share B."""
    if plan.cluster_m > 2:
        yield Violation(
            rule_id(cluster_shape),
            "cluster.m",
            f"{plan.cluster_m} CTAs along M",
            "this version generates clusters of 1 x 1 and 2 x 1 CTAs",
            "use 1 or 2",
        )
    if plan.cluster_n > 1:
        yield Violation(
            rule_id(cluster_shape),
            "cluster.n",
            f"{plan.cluster_n} CTAs along N",
            "this version generates clusters of 1 x 1 and 2 x 1 CTAs",
            "use 1",
        )


def threads(plan: Plan) -> Iterator[Violation]:
    """A CTA has at most 1,024 threads, those that pad the producer's warpgroup included."""
    limit = plan.gpu.architecture.threads_per_cta
    if plan.threads > limit:
        fewer = next(n for n in (4, 2, 1) if replace(plan, consumers=n).threads <= limit)
        yield Violation(
            rule_id(threads),
            "warp_specialization.consumers",
            f"{plan.consumers} consumers and the producer need {plan.threads:,} threads",
            f"the limit is {limit:,} per CTA",
            f"use at most {fewer}",
        )


def register_granularity(plan: Plan) -> Iterator[Violation]:
    """A register request is one that ``setmaxnreg`` can express: others are rounded or dropped in silence."""
    architecture = plan.gpu.architecture
    step, low, high = (
        architecture.setmaxnreg_granularity,
        architecture.setmaxnreg_min,
        architecture.setmaxnreg_max,
    )
    for role, registers in (("producer", plan.producer_registers), ("consumer", plan.consumer_registers)):
        if registers % step or not low <= registers <= high:
            legal = min(max(registers // step * step, low), high)
            yield Violation(
                rule_id(register_granularity),
                f"warp_specialization.registers.{role}",
                f"{registers} registers per {role} thread",
                f"setmaxnreg takes multiples of {step} from {low} to {high}",
                f"use {legal}",
            )


def register_pool(plan: Plan) -> Iterator[Violation]:
    """The first consumer, which gets what the workers leave, has as many registers as the others."""
    if any(True for _ in register_granularity(plan)) or any(True for _ in threads(plan)):
        return
    pool = plan.register_pool
    if pool.default_registers < plan.consumer_registers:
        legal = balanced_consumer_registers(
            plan.gpu.architecture, plan.consumers, plan.consumer_warps, plan.producer_registers
        )
        yield Violation(
            rule_id(register_pool),
            "warp_specialization.registers.consumer",
            f"{plan.consumer_registers} per consumer and {plan.producer_registers} per producer thread "
            f"leave the first consumer {max(pool.default_registers, 0)}",
            f"the {plan.threads} threads share {pool.launch_registers * plan.threads:,} registers",
            f"use at most {legal}",
        )


def accumulator_registers(plan: Plan) -> Iterator[Violation]:
    """The accumulator leaves a consumer registers to work with; a spill would serialize the MMAs."""
    room = plan.consumer_registers - CONSUMER_WORKING_REGISTERS
    if plan.accumulator_registers > room:
        columns = plan.cta_tile_n * room // plan.accumulator_registers
        yield Violation(
            rule_id(accumulator_registers),
            "tile.n",
            f"an accumulator of {plan.cta_consumer_tile_m} x {plan.cta_tile_n} takes "
            f"{plan.accumulator_registers} registers of each consumer thread",
            f"{plan.consumer_registers} less {CONSUMER_WORKING_REGISTERS} to work with leave {room}",
            f"use at most {power_of_two_below(columns)}" if columns > 0 else "raise registers.consumer",
        )


def ring_depth(plan: Plan) -> Iterator[Violation]:
    """A stage is free to load into while outstanding MMAs read theirs; else both sides wait forever."""
    if plan.stages <= plan.outstanding_mmas:
        yield Violation(
            rule_id(ring_depth),
            "buffering.stages",
            f"{plan.stages} stage with {plan.outstanding_mmas} outstanding MMA",
            "the MMA in flight keeps its stage until the next one is issued, which needs a stage of its own",
            f"use at least {plan.outstanding_mmas + 1}",
        )


def smem_capacity(plan: Plan) -> Iterator[Violation]:
    """All buffers, barriers and compiler state fit into a CTA's shared memory."""
    limit = plan.gpu.architecture.smem_bytes_per_cta
    if plan.smem_bytes <= limit:
        return
    fitting = next((n for n in range(plan.stages, 0, -1) if replace(plan, stages=n).smem_bytes <= limit), 0)
    yield Violation(
        rule_id(smem_capacity),
        "buffering.stages",
        f"{plan.stages} stages of {plan.stage_bytes:,} bytes and the epilogue need {plan.smem_bytes:,} bytes",
        f"the limit is {limit:,}",
        f"use at most {fitting}"
        if fitting
        else "even one stage does not fit: use a smaller tile or epilogue.subtile_n",
    )


def epilogue_subtile(plan: Plan) -> Iterator[Violation]:
    """A sub-tile is not wider than the tile."""
    if plan.subtile_n > plan.cta_tile_n:
        yield Violation(
            rule_id(epilogue_subtile),
            "epilogue.subtile_n",
            f"sub-tiles of {plan.subtile_n} columns",
            f"the tile has {plan.cta_tile_n}",
            f"use at most {plan.cta_tile_n}",
        )


def tma_box(plan: Plan) -> Iterator[Violation]:
    """The rows of a stored sub-tile are as long as TMA's shortest: the driver refuses others at launch."""
    shortest = plan.gpu.architecture.tma_alignment_bytes
    row_bytes = plan.subtile_n * plan.d_dtype.bytes
    if row_bytes < shortest and is_power_of_two(plan.subtile_n):
        yield Violation(
            rule_id(tma_box),
            "epilogue.subtile_n",
            f"sub-tile rows of {plan.subtile_n} {plan.d_dtype.name} are {row_bytes} bytes",
            f"TMA stores rows of at least {shortest} bytes",
            f"use at least {shortest // plan.d_dtype.bytes}",
        )


def epilogue_buffers(plan: Plan) -> Iterator[Violation]:
    """Each epilogue buffer has a sub-tile of every tile, so that the ring starts anew with the tile."""
    if plan.epilogue_buffers > plan.subtiles or plan.subtiles % plan.epilogue_buffers:
        yield Violation(
            rule_id(epilogue_buffers),
            "buffering.epilogue",
            f"{plan.epilogue_buffers} buffers for {plan.subtiles} sub-tiles of {plan.subtile_n} columns",
            "every tile uses each buffer equally often",
            f"use {power_of_two_below(min(plan.epilogue_buffers, plan.subtiles))}",
        )


def shape_alignment(plan: Plan) -> Iterator[Violation]:
    """The rows of a contiguous A and B of a listed problem are multiples of what TMA can stride."""
    step = plan.gpu.architecture.tma_alignment_bytes // plan.a_dtype.bytes
    for section, shapes in (("check", plan.check_shapes), ("bench", plan.bench_shapes)):
        for i, (_, _, k) in enumerate(shapes):
            if k % step:
                yield Violation(
                    rule_id(shape_alignment),
                    f"{section}.shapes.{i}.2",
                    f"K = {k} gives contiguous rows of {k * plan.a_dtype.bytes:,} bytes",
                    f"TMA strides multiples of {plan.gpu.architecture.tma_alignment_bytes}",
                    f"use {max(k // step * step, step)} or {-(-k // step) * step}"
                    if k > step
                    else f"use {step}",
                )


RULES: tuple[Rule, ...] = (
    target_architecture,
    operand_dtypes,
    operand_major,
    tile_power_of_two,
    consumer_rows,
    mma_n,
    mma_k,
    cluster_shape,
    threads,
    register_granularity,
    register_pool,
    accumulator_registers,
    ring_depth,
    smem_capacity,
    epilogue_subtile,
    tma_box,
    epilogue_buffers,
    shape_alignment,
)


def judge(plan: Plan) -> tuple[Violation, ...]:
    """Return every violation of every rule; a plan without one is legal."""
    return tuple(violation for rule in RULES for violation in rule(plan))
