"""The ledger of a plan: what it spends of each resource, entry by entry, and what that buys."""

from __future__ import annotations

import math
from collections.abc import Callable

from gemmgen.plan.blackwell import ledger as blackwell
from gemmgen.plan.blackwell.cost import estimate as tcgen05_estimate
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.estimate import Estimate
from gemmgen.plan.hopper.bounds import smem_limit
from gemmgen.plan.hopper.cost import estimate
from gemmgen.plan.hopper.plan import WgmmaPlan
from gemmgen.plan.plan import KernelPlan
from gemmgen.plan.problem import Shape
from gemmgen.plan.sections import (
    SHARED,
    Entry,
    Ledger,
    Section,
    barriers_section,
    cluster_meaning,
    memory_section,
    order_entries,
)

__all__ = ["Entry", "Ledger", "Section", "ledger"]

Estimator = Callable[..., Estimate]
"""Returns what a plan is expected to take for a shape."""


def ledger(plan: KernelPlan) -> Ledger:
    """Return the ledger of a legal plan."""
    if isinstance(plan, Tcgen05Plan):
        own = (blackwell.kernel(plan), blackwell.shared_memory(plan), blackwell.tensor_memory(plan))
        own = (*own, blackwell.registers(plan), blackwell.operations(plan))
        return Ledger((*own, barriers_section(plan), *_problems(plan, tcgen05_estimate)))
    assert isinstance(plan, WgmmaPlan)
    own = (_kernel(plan), _shared_memory(plan), _registers(plan))
    return Ledger((*own, barriers_section(plan), *_problems(plan, estimate)))


def _kernel(plan: WgmmaPlan) -> Section:
    bytes_per_stage = f"{plan.a_tile_bytes:,} of A + {plan.b_tile_bytes:,} of B bytes per stage"
    shares = f"{plan.row_shares} x {plan.cta_consumer_tile_m} by consumer"
    if plan.row_shares == 1:
        shares = "all of them of each consumer" if plan.consumers > 1 else "all of one consumer"
    return Section(
        f"kernel for {plan.problem.gpu.name} ({plan.architecture.name})",
        (
            Entry("CTA tile m", plan.cta_tile_m, "rows", shares),
            Entry("CTA tile n", plan.cta_tile_n, "columns", f"stored as {plan.subtiles} x {plan.subtile_n}"),
            Entry("CTA tile k", plan.cta_tile_k, "elements", bytes_per_stage),
            Entry("cluster", plan.cluster_size, "CTAs", cluster_meaning(plan)),
            Entry("occupancy", plan.occupancy, "CTAs", f"per SM, whose shared memory holds {_fitting(plan)}"),
            Entry("stages", plan.stages, "tiles", f"{plan.stages * plan.cta_tile_k} of K in flight"),
            Entry("outstanding", plan.outstanding_mmas, "MMAs", "older MMAs that run while a step is issued"),
            Entry("instructions", plan.mmas_per_step, "wgmma", f"{plan.mma_name} per warpgroup and K step"),
            *order_entries(plan),
            Entry("intensity", round(plan.l2_flops_per_byte, 1), "FLOP/B", "of a program's tile towards L2"),
        ),
    )


def _fitting(plan: WgmmaPlan) -> int:
    """Return the CTAs for which an SM has shared memory, whatever else they need."""
    architecture = plan.architecture
    return architecture.smem_bytes_per_sm // (plan.smem_bytes + architecture.smem_reserved_bytes_per_cta)


def _shared_memory(plan: WgmmaPlan) -> Section:
    memory, problem = plan.shared_memory, plan.problem
    tiles = {
        "a": (plan.stages, plan.cta_consumer_tile_m, plan.cta_tile_k, problem.a.dtype),
        "b": (plan.stages, plan.cta_tile_n, plan.cta_tile_k, problem.b.dtype),
        "c": (plan.epilogue_buffers, plan.cta_consumer_tile_m, plan.subtile_n, problem.c),
        "d": (plan.epilogue_buffers, plan.cta_consumer_tile_m, plan.subtile_n, problem.d),
    }
    buffers: list[Entry] = []
    for buffer in memory.buffers:
        if buffer.operand in tiles:
            depth, height, width, dtype = tiles[buffer.operand]
            assert dtype is not None  # a plan without C has no buffer for it
            derivation = f"{depth} x {height} x {width} {dtype.name}, swizzle {buffer.swizzle_bytes}"
        else:
            dtype = problem.vector_dtype(buffer.operand)
            derivation = f"{buffer.bytes // dtype.bytes} {dtype.name}"
        buffers.append(Entry(buffer.name, buffer.bytes, "bytes", derivation))
    return memory_section(plan, buffers, smem_limit(plan))


def _registers(plan: WgmmaPlan) -> Section:
    pool = plan.register_pool
    partitions = plan.partitions if plan.specialized else plan.consumer_partitions
    most = "" if plan.specialized else "at most, "
    entries = [
        Entry(
            partition.name,
            pool.default_registers if i == 0 and plan.specialized else partition.registers,
            "registers",
            f"{most}per thread, {partition.warps} warp{'s' * (partition.warps > 1)}",
        )
        for i, partition in enumerate(partitions)
    ]
    share = plan.accumulator_registers / plan.consumer_registers
    entries.append(
        Entry("accumulator", plan.accumulator_registers, "registers", f"{share:.0%} of a consumer thread's")
    )
    if plan.operand_registers:
        entries.append(
            Entry("A", plan.operand_registers, "registers", "a K step of a consumer thread's rows")
        )
    launched = pool.launch_registers * plan.threads
    file = plan.architecture.registers_per_sm
    total = Entry(
        "total", launched, "registers", f"{plan.threads} threads x {pool.launch_registers}, {file:,} per SM"
    )
    return Section("registers", tuple(entries), total)


def _problems(plan: KernelPlan, estimate: Estimator) -> tuple[Section, ...]:
    return tuple(_problem(plan, shape, estimate(plan, shape)) for shape in plan.problem.bench_shapes)


def _problem(plan: KernelPlan, shape: Shape, found: Estimate) -> Section:
    m, n, k = shape
    tiles_m, tiles_n = plan.tiles(shape)
    waves = plan.waves(shape)
    return Section(
        f"problem {m} x {n} x {k}",
        (
            Entry(
                "tiles",
                tiles_m * tiles_n,
                "tiles",
                f"{tiles_m} x {tiles_n} for {plan.resident_programs} programs",
            ),
            Entry("waves", round(waves, 2), "waves", f"{waves / -(-waves // 1):.1%} of the SM time is used"),
            _bound(plan, shape, found),
            Entry("from L2", round(found.l2_bytes / 1e9, 2), "GB", _l2_reads(plan, found)),
            Entry("time", round(found.seconds * 1e6, 1), "us", _shares(found)),
        ),
    )


def _bound(plan: KernelPlan, shape: Shape, found: Estimate) -> Entry:
    """Return the operations per byte of DRAM, through which all matrices and vectors go once."""
    gpu, bits = plan.problem.gpu, plan.problem.a.dtype.bits
    intensity, ridge = 2 * math.prod(shape) / found.dram_bytes, gpu.ridge_flops_per_byte(bits)
    bound = "tensor cores" if intensity > ridge else "DRAM"
    meaning = f"towards DRAM: bound by {bound}, with the ridge at {ridge:.1f}"
    return Entry("intensity", round(intensity, 1), "FLOP/B", meaning)


def _l2_reads(plan: KernelPlan, found: Estimate) -> str:
    reads = " and ".join(SHARED.get(operand, operand.upper()) for operand in plan.multicast)
    shared = f", {reads} once for all CTAs of a cluster" if reads else ""
    return f"{found.l2_bytes / found.dram_bytes:.1f} times what DRAM moves at least{shared}"


def _shares(found: Estimate) -> str:
    """Say of what a predicted time is the sum, of its largest three terms."""
    if found.dram_seconds > found.cycles / found.hz:
        return "predicted, only to rank by: as long as DRAM takes"
    shares = sorted(((cycles / found.cycles, cause) for cause, cycles in found.terms.items()), reverse=True)
    named = ", ".join(f"{share:.0%} {cause}" for share, cause in shares[:3])
    return f"predicted, only to rank by: {named}"
