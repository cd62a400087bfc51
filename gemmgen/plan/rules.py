"""The constraints of a Hopper plan: one pure function each, all of them in ``RULES``.

A rule yields a violation for every spec field that breaks it, with the numbers and the nearest legal value.
Its id is its name with dashes. A rule judges one thing and stays silent where another rule speaks: a value
that is no power of two is reported once, not by every rule that divides by it.

Limits marked [gluon] were found by lowering kernels on both sides of them; ``tests/test_random_specs.py``
keeps looking for a spec that is accepted and does not compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gemmgen.errors import Violation
from gemmgen.plan.bounds import (
    fits,
    is_power_of_two,
    most_consumer_registers,
    most_consumers,
    most_stages,
    needed_registers,
    power_of_two_below,
    round_up,
    threads_of,
    working_registers,
)
from gemmgen.plan.plan import Plan
from gemmgen.target import GPUS, WGMMA

Rule = Callable[[Plan], Iterator[Violation]]

MAX_TILE_M = 2_048
"""[gluon] TMA loads at most 256 rows at a time: at 4,096 rows, 16 loads a step, producers of 24 and 32
registers spill; at 2,048 none does.
"""
MAX_WIDTH = 4_096
"""[derived] The tiles of a group are counted in 32 bits: this leaves N 2**19 tiles, 4 million columns."""


def rule_id(rule: Rule) -> str:
    """Return the id under which a rule's violations are reported."""
    return rule.__name__.replace("_", "-")


def nearest(below: int, above: int, *, low: int = 1, high: int | None = None) -> str:
    """Name the legal values around an illegal one, of which those outside `low` to `high` are none."""
    inside = (max(low, value if high is None else min(value, high)) for value in (below, above))
    return f"use {' or '.join(map(str, dict.fromkeys(inside)))}"


def breaks(plan: Plan, *rules: Rule) -> bool:
    """Whether a plan violates one of the rules, on which another rule relies."""
    return any(True for rule in rules for _ in rule(plan))


# --- the problem


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


def shape_alignment(plan: Plan) -> Iterator[Violation]:
    """The rows of a contiguous A and B of a listed problem are multiples of what TMA can stride."""
    step = plan.gpu.architecture.tma_alignment_bytes // plan.a_dtype.bytes
    for section, shapes in (("check", plan.check_shapes), ("bench", plan.bench_shapes)):
        for i, (_, _, k) in enumerate(shapes):
            if k % step:
                yield Violation(
                    rule_id(shape_alignment),
                    f"{section}.shapes.{i}.2",
                    f"K = {k:,} gives contiguous rows of {k * plan.a_dtype.bytes:,} bytes",
                    f"TMA strides in multiples of {plan.gpu.architecture.tma_alignment_bytes}",
                    nearest(k // step * step, round_up(k, step), low=step),
                )


# --- the CTAs and their warps


def cluster_shape(plan: Plan) -> Iterator[Violation]:
    """A program is one CTA, or two along M that share B."""
    for field, ctas, most in (("m", plan.cluster_m, 2), ("n", plan.cluster_n, 1)):
        if ctas > most:
            yield Violation(
                rule_id(cluster_shape),
                f"cluster.{field}",
                f"{ctas:,} CTAs along {field.upper()}",
                "this version generates clusters of 1 x 1 and 2 x 1 CTAs",
                nearest(1, most),
            )


def consumer_count(plan: Plan) -> Iterator[Violation]:
    """The consumers share the tile's rows in power-of-two parts, and their CTA has threads for them all."""
    field, most = "warp_specialization.consumers", most_consumers(plan)
    if plan.consumers > most:
        threads, limit = threads_of(plan, plan.consumers), plan.gpu.architecture.threads_per_cta
        yield Violation(
            rule_id(consumer_count),
            field,
            f"{plan.consumers:,} consumers and the producer are {threads:,} threads",
            f"a CTA has at most {limit:,}",
            f"use at most {power_of_two_below(most)}",
        )
    elif not is_power_of_two(plan.consumers):
        below = power_of_two_below(plan.consumers)
        yield Violation(
            rule_id(consumer_count),
            field,
            f"{plan.consumers} consumers",
            "this version generates kernels whose number of consumers is a power of two",
            nearest(below, 2 * below, high=power_of_two_below(most)),
        )


# --- the tile


def tile_power_of_two(plan: Plan) -> Iterator[Violation]:
    """Every block extent in Gluon is a power of two."""
    extents = (
        ("tile.m", plan.cta_tile_m, WGMMA.m, MAX_TILE_M),
        ("tile.n", plan.cta_tile_n, WGMMA.n_min, WGMMA.n_max),
        ("tile.k", plan.cta_tile_k, plan.mma_shape[2], None),
        ("epilogue.subtile_n", plan.subtile_n, WGMMA.n_min, WGMMA.n_max),
    )
    for field, extent, low, high in extents:
        if not is_power_of_two(extent):
            below = power_of_two_below(extent)
            yield Violation(
                rule_id(tile_power_of_two),
                field,
                f"{extent:,} is no power of two",
                "Gluon's block extents are powers of two",
                nearest(below, 2 * below, low=low, high=high),
            )


def consumer_rows(plan: Plan) -> Iterator[Violation]:
    """Every warp of a consumer has its own 16 rows of the tile: Gluon lets warps repeat others' work."""
    if not is_power_of_two(plan.cta_tile_m) or breaks(plan, consumer_count):
        return
    rows = WGMMA.rows_per_warp * plan.consumer_warps
    if plan.cta_consumer_tile_m < rows:
        share = f"give {plan.consumers} consumers {plan.cta_consumer_tile_m} each"
        yield Violation(
            rule_id(consumer_rows),
            "tile.m",
            f"{plan.cta_tile_m} rows {share if plan.consumers > 1 else 'for a lone consumer'}",
            f"the {plan.consumer_warps} warps of a consumer take {rows}, {WGMMA.rows_per_warp} each",
            f"use at least {plan.consumers * rows}",
        )


def tile_rows(plan: Plan) -> Iterator[Violation]:
    """The producer, which issues a load per 256 rows, has registers for the coordinates of them all."""
    if plan.cta_tile_m > MAX_TILE_M and is_power_of_two(plan.cta_tile_m):
        yield Violation(
            rule_id(tile_rows),
            "tile.m",
            f"a tile of {plan.cta_tile_m:,} rows",
            f"beyond {MAX_TILE_M:,} the TMA loads of a K step take more registers than a producer may have",
            f"use at most {MAX_TILE_M}",
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


def group_width(plan: Plan) -> Iterator[Violation]:
    """The tiles of a group fit into the 32-bit integers that count them."""
    if plan.width > MAX_WIDTH:
        yield Violation(
            rule_id(group_width),
            "schedule.width",
            f"groups of {plan.width:,} rows of tiles",
            f"their tiles are counted in 32 bits, which hold those of {MAX_WIDTH:,}",
            f"use at most {MAX_WIDTH}",
        )


def breaks_tile(plan: Plan) -> bool:
    """Whether the tile is none that instructions and consumers can share: then no sum over it is true."""
    extents = (plan.cta_tile_m, plan.cta_tile_n, plan.cta_tile_k)
    rules = (consumer_count, consumer_rows, tile_rows, mma_n, mma_k)
    return not all(map(is_power_of_two, extents)) or breaks(plan, *rules)


# --- registers


def register_granularity(plan: Plan) -> Iterator[Violation]:
    """A register request is one that ``setmaxnreg`` can express: others are rounded or dropped in silence."""
    architecture = plan.gpu.architecture
    step, low, high = (
        architecture.setmaxnreg_granularity,
        architecture.setmaxnreg_min,
        architecture.setmaxnreg_max,
    )

    def expressible(registers: int) -> bool:
        return registers % step == 0 and low <= registers <= high

    requests = [("producer", plan.producer_registers, high)]
    if plan.consumers > 1:  # a lone consumer makes no request
        most = most_consumer_registers(plan) if expressible(plan.producer_registers) else high
        requests.append(("consumer", plan.consumer_registers, most))
    for role, registers, most in requests:
        if not expressible(registers):
            yield Violation(
                rule_id(register_granularity),
                f"warp_specialization.registers.{role}",
                f"{registers:,} registers per {role} thread",
                f"setmaxnreg takes multiples of {step} from {low} to {high}",
                nearest(registers // step * step, round_up(registers, step), low=low, high=most),
            )


def register_pool(plan: Plan) -> Iterator[Violation]:
    """The first consumer, which gets what the workers leave, has as many registers as are asked for."""
    if breaks(plan, consumer_count, register_granularity):
        return
    pool = plan.register_pool
    field, registers = "warp_specialization.registers.consumer", pool.launch_registers * plan.threads
    if plan.consumers == 1 and pool.default_registers != plan.consumer_registers:
        yield Violation(
            rule_id(register_pool),
            field,
            f"{plan.consumer_registers} registers per thread of a lone consumer",
            f"it gets all that the producer leaves of {registers:,}, {pool.default_registers} per thread",
            f"use {pool.default_registers}",
        )
    elif pool.default_registers < plan.consumer_registers:
        yield Violation(
            rule_id(register_pool),
            field,
            f"{plan.consumer_registers} per consumer and {plan.producer_registers} per producer thread "
            f"leave the first consumer {max(pool.default_registers, 0)}",
            f"the {plan.threads} threads share {registers:,} registers",
            f"use at most {most_consumer_registers(plan)}",
        )


def accumulator_registers(plan: Plan) -> Iterator[Violation]:
    """The consumers' accumulators fit into the registers of an SM: spilled ones would serialize the MMAs."""
    if breaks_tile(plan) or breaks(plan, register_granularity):
        return
    most = most_consumer_registers(plan)
    if needed_registers(plan) <= most:
        return
    accumulator, working, narrowest = plan.accumulator_registers, working_registers(plan), WGMMA.n_min
    room = most - working
    if plan.cta_tile_n > narrowest:
        columns = power_of_two_below(plan.cta_tile_n * room // accumulator)
        field, largest = "tile.n", max(columns, narrowest)
    else:
        field, largest = "tile.m", power_of_two_below(plan.cta_tile_m * room // accumulator)
    yield Violation(
        rule_id(accumulator_registers),
        field,
        f"an accumulator of {plan.cta_consumer_tile_m} x {plan.cta_tile_n} takes {accumulator} registers of "
        f"each consumer thread",
        f"{most} less {working} to work with leave {room}",
        f"use at most {largest}",
    )


def consumer_registers(plan: Plan) -> Iterator[Violation]:
    """A consumer asks for enough registers to hold its accumulator and to work with it."""
    if breaks_tile(plan) or breaks(plan, register_granularity, accumulator_registers):
        return
    needed = needed_registers(plan)
    if plan.consumers > 1 and needed > plan.consumer_registers:  # a lone consumer gets what there is
        yield Violation(
            rule_id(consumer_registers),
            "warp_specialization.registers.consumer",
            f"{plan.consumer_registers} registers per consumer thread",
            f"an accumulator of {plan.cta_consumer_tile_m} x {plan.cta_tile_n} takes "
            f"{plan.accumulator_registers}, and the kernel {working_registers(plan)} more to work with",
            f"use at least {needed}",
        )


# --- shared memory


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
    if breaks_tile(plan) or breaks(plan, accumulator_registers, epilogue_subtile, epilogue_buffers):
        return
    if not is_power_of_two(plan.subtile_n) or fits(plan):
        return
    if stages := most_stages(plan):
        field, largest = "buffering.stages", stages
        found = f"{plan.stages:,} stages of {plan.stage_bytes:,} bytes and the epilogue need"
    else:
        field, largest = _smaller_tile(plan)
        found = f"even a single stage of {plan.stage_bytes:,} bytes and the epilogue need"
        plan = replace(plan, stages=1)
    yield Violation(
        rule_id(smem_capacity),
        field,
        f"{found} {plan.smem_bytes:,} bytes",
        f"the limit is {plan.gpu.architecture.smem_bytes_per_cta:,}",
        f"use at most {largest}",
    )


def _smaller_tile(plan: Plan) -> tuple[str, int]:
    """Return the field that has to shrink for a single stage to fit, and its largest value that does it.

    Where no field will do alone, the others are taken at their smallest.
    """
    single = replace(plan, stages=1)
    one_buffer = replace(single, epilogue_buffers=1)
    for base, name, field in (
        (single, "epilogue_buffers", "buffering.epilogue"),
        (single, "subtile_n", "epilogue.subtile_n"),
        (single, "cta_tile_k", "tile.k"),
        (one_buffer, "subtile_n", "epilogue.subtile_n"),
        (replace(one_buffer, subtile_n=WGMMA.n_min), "cta_tile_k", "tile.k"),
    ):
        value: int = getattr(plan, name)
        while value > 1:
            value //= 2
            smaller = replace(base, **{name: value})
            if breaks(smaller, mma_k, epilogue_subtile, epilogue_buffers):
                break
            if fits(smaller):
                return field, value
    raise AssertionError("an accumulator that fits into registers leaves a stage of k = 16 enough memory")


# --- the epilogue


def epilogue_subtile(plan: Plan) -> Iterator[Violation]:
    """A sub-tile is part of the tile, and no narrower than what four threads hold of an accumulator's row.

    That is also enough for TMA, whose shortest rows are of 16 bytes.
    """
    if not is_power_of_two(plan.cta_tile_n) or not is_power_of_two(plan.subtile_n):
        return
    if plan.subtile_n > plan.cta_tile_n:
        yield Violation(
            rule_id(epilogue_subtile),
            "epilogue.subtile_n",
            f"sub-tiles of {plan.subtile_n} columns",
            f"the tile has {plan.cta_tile_n}",
            f"use at most {plan.cta_tile_n}",
        )
    elif plan.subtile_n < WGMMA.n_min <= plan.cta_tile_n:
        yield Violation(
            rule_id(epilogue_subtile),
            "epilogue.subtile_n",
            f"sub-tiles of {plan.subtile_n} columns",
            f"four threads hold {WGMMA.n_min} columns of an accumulator's row, and no split may part them",
            f"use at least {WGMMA.n_min}",
        )


def epilogue_buffers(plan: Plan) -> Iterator[Violation]:
    """Each epilogue buffer has a sub-tile of every tile, so that the ring starts anew with the tile."""
    if not (is_power_of_two(plan.cta_tile_n) and is_power_of_two(plan.subtile_n)):
        return
    if breaks(plan, epilogue_subtile):
        return
    if plan.epilogue_buffers > plan.subtiles or plan.subtiles % plan.epilogue_buffers:
        subtiles = "a tile stored whole" if plan.subtiles == 1 else f"the {plan.subtiles} sub-tiles of a tile"
        below = power_of_two_below(plan.epilogue_buffers)
        yield Violation(
            rule_id(epilogue_buffers),
            "buffering.epilogue",
            f"{plan.epilogue_buffers} buffers for {subtiles}",
            "a tile uses each buffer equally often, or the next one would overwrite what a store still reads",
            nearest(below, 2 * below, high=plan.subtiles),
        )


RULES: tuple[Rule, ...] = (
    target_architecture,
    operand_dtypes,
    operand_major,
    shape_alignment,
    cluster_shape,
    consumer_count,
    tile_power_of_two,
    consumer_rows,
    tile_rows,
    mma_n,
    mma_k,
    group_width,
    register_granularity,
    register_pool,
    accumulator_registers,
    consumer_registers,
    ring_depth,
    smem_capacity,
    epilogue_subtile,
    epilogue_buffers,
)


def judge(plan: Plan) -> tuple[Violation, ...]:
    """Return every violation of every rule; a plan without one is legal."""
    return tuple(violation for rule in RULES for violation in rule(plan))
