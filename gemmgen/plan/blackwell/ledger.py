"""The sections of a Blackwell plan's ledger that other kernels do not have in this form."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.plan.blackwell.bounds import smem_limit
from gemmgen.plan.blackwell.plan import Tcgen05Plan
from gemmgen.plan.blackwell.tiles import ANSWERS
from gemmgen.plan.sections import Entry, Section, cluster_meaning, memory_section, order_entries
from gemmgen.target import TCGEN05


def kernel(plan: Tcgen05Plan) -> Section:
    """Return what the kernel is."""
    _, n, k = plan.mma_shape
    bytes_per_stage = f"{plan.a_tile_bytes:,} of A + {plan.b_tile_bytes:,} of B bytes per stage"
    if plan.block_scaled:
        bytes_per_stage += f" + {plan.a_scale_tile_bytes:,} + {plan.b_scale_tile_bytes:,} of scales"
    pair = "of two CTAs" if plan.paired else "of one CTA"
    instruction = f"{plan.mma_kind}, n {n}, k {k}, {pair}, per K step"
    return Section(
        f"kernel for {plan.problem.gpu.name} ({plan.architecture.name})",
        (
            Entry("CTA tile m", plan.cta_tile_m, "rows", "each a lane of tensor memory"),
            Entry("CTA tile n", plan.cta_tile_n, "columns", f"stored as {plan.subtiles} x {plan.subtile_n}"),
            Entry("CTA tile k", plan.cta_tile_k, "elements", bytes_per_stage),
            Entry("cluster", plan.cluster_size, "CTAs", cluster_meaning(plan)),
            Entry("stages", plan.stages, "tiles", f"{plan.stages * plan.cta_tile_k} of K in flight"),
            Entry("accumulators", plan.accumulators, "tiles", "of sums in tensor memory"),
            Entry("instructions", plan.mmas_per_step, "tcgen05", instruction),
            *order_entries(plan),
            Entry("intensity", round(plan.l2_flops_per_byte, 1), "FLOP/B", "of a program's tile towards L2"),
        ),
    )


def shared_memory(plan: Tcgen05Plan) -> Section:
    """Return what a CTA has in shared memory."""
    return memory_section(plan, _buffers(plan), smem_limit(plan))


def _buffers(plan: Tcgen05Plan) -> Iterator[Entry]:
    problem = plan.problem
    a, b = (f"{operand.dtype.name}{' padded' * operand.padded}" for operand in (problem.a, problem.b))
    scale_columns = (plan.scale_columns(problem.a), plan.scale_columns(problem.b))
    tiles = {
        "a": f"{plan.stages} x {plan.cta_tile_m} x {plan.cta_tile_k} {a}",
        "b": f"{plan.stages} x {plan.cta_b_columns} x {plan.cta_tile_k} {b}",
        "a_scale": f"{plan.stages} x {plan.cta_tile_m} x {scale_columns[0]}",
        "b_scale": f"{plan.stages} x {plan.cta_tile_n} x {scale_columns[1]}",
        "d": f"{plan.epilogue_buffers} x {plan.cta_tile_m} x {plan.subtile_n} {problem.d.name}",
        "clc": f"{ANSWERS} x {TCGEN05.answer_bytes} bytes of launch control",
    }
    for buffer in plan.shared_buffers:
        swizzle = f", swizzle {buffer.swizzle_bytes}" if buffer.swizzle_bytes else ""
        yield Entry(buffer.name, buffer.bytes, "bytes", tiles[buffer.operand] + swizzle)


def tensor_memory(plan: Tcgen05Plan) -> Section:
    """Return what a CTA has in tensor memory."""
    buffers = plan.tensor_memory.buffers
    entries = tuple(Entry(buffer.name, buffer.columns, "columns", buffer.derivation) for buffer in buffers)
    limit = f"allocated of {TCGEN05.tmem_columns}, in powers of two"
    return Section("tensor memory per CTA", entries, Entry("total", plan.tmem_columns, "columns", limit))


def registers(plan: Tcgen05Plan) -> Section:
    """Return how the roles share the register file."""
    pool = plan.register_pool
    entries = tuple(
        Entry(
            role.name,
            pool.default_registers if i == 0 else role.registers,
            "registers",
            f"per thread, {role.warps} warp{'s' * (role.warps > 1)}",
        )
        for i, role in enumerate(plan.partitions)
    )
    launched = pool.launch_registers * plan.threads
    file = plan.architecture.registers_per_sm
    shares = f"{plan.threads} threads x {pool.launch_registers}, {file:,} per SM"
    return Section("registers", entries, Entry("total", launched, "registers", shares))


def operations(plan: Tcgen05Plan) -> Section:
    """Return what is in the code, each loop's body once; the compiler's figures must be the same."""
    entries = (Entry(name, count, "in code", "") for name, count in plan.operations.items() if count)
    return Section("operations", tuple(entries))
