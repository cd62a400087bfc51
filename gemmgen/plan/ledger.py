"""The ledger of a plan: what it spends of each resource, entry by entry, and what that buys."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from gemmgen.plan.bounds import smem_limit
from gemmgen.plan.cost import Estimate, estimate
from gemmgen.plan.plan import Plan
from gemmgen.plan.problem import Shape


@dataclass(frozen=True)
class Entry:
    """One line: an amount with its unit, and how it comes about."""

    name: str
    amount: float
    unit: str
    derivation: str


@dataclass(frozen=True)
class Section:
    """The entries of one resource and, where it has one, its limit."""

    title: str
    entries: tuple[Entry, ...]
    total: Entry | None = None


@dataclass(frozen=True)
class Ledger:
    """All sections of one plan."""

    sections: tuple[Section, ...]

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """Return aligned lines; amounts to the right, derivations behind them."""
        return "\n\n".join(_section_text(section) for section in self.sections)


def ledger(plan: Plan) -> Ledger:
    """Return the ledger of a legal plan."""
    return Ledger((_kernel(plan), _shared_memory(plan), _registers(plan), _barriers(plan), *_problems(plan)))


def _kernel(plan: Plan) -> Section:
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
            Entry("cluster", plan.cluster_size, "CTAs", _cluster(plan)),
            Entry("occupancy", plan.occupancy, "CTAs", f"per SM, whose shared memory holds {_fitting(plan)}"),
            Entry("stages", plan.stages, "tiles", f"{plan.stages * plan.cta_tile_k} of K in flight"),
            Entry("outstanding", plan.outstanding_mmas, "MMAs", "older MMAs that run while a step is issued"),
            Entry("instructions", plan.mmas_per_step, "wgmma", f"{plan.mma_name} per warpgroup and K step"),
            *_order(plan),
            Entry("intensity", round(plan.l2_flops_per_byte, 1), "FLOP/B", "of a program's tile towards L2"),
        ),
    )


def _fitting(plan: Plan) -> int:
    """Return the CTAs for which an SM has shared memory, whatever else they need."""
    architecture = plan.architecture
    return architecture.smem_bytes_per_sm // (plan.smem_bytes + architecture.smem_reserved_bytes_per_cta)


def _order(plan: Plan) -> tuple[Entry, ...]:
    if plan.schedule_kind == "single_tile":
        return ()
    lines = {"row": "rows of tiles", "hilbert": "tiles along a square's side"}
    walked = lines.get(plan.order, f"{'rows' if plan.minor == 'm' else 'columns'} of tiles walked together")
    return (Entry("order", plan.width, "tiles", f"{plan.order}: {walked}"),)


def _cluster(plan: Plan) -> str:
    shared = " and ".join(operand.upper() for operand in plan.multicast)
    return f"{plan.cluster_m} x {plan.cluster_n}" + (
        f", {shared} loaded once and multicast" if shared else ""
    )


def _shared_memory(plan: Plan) -> Section:
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
    barriers = (
        Entry(b.name, b.bytes, "bytes", f"{b.depth} mbarrier{'s' * (b.depth > 1)}") for b in memory.barriers
    )
    captures = f"{len(memory.captures)} values handed to the workers"
    compiler = (
        Entry("captures", memory.capture_bytes, "bytes", captures),
        Entry("worker state", memory.worker_state_bytes, "bytes", f"of {memory.worker_warps} worker warps"),
    )
    padding = Entry("padding", memory.padding_bytes, "bytes", "alignment")
    limit = smem_limit(plan)
    share = "one CTA" if plan.occupancy == 1 else f"{plan.occupancy} CTAs"
    total = Entry(
        "total", plan.smem_bytes, "bytes", f"{plan.smem_bytes / limit:.1%} of {limit:,}: {share} per SM"
    )
    entries = (*buffers, *barriers, *(compiler if plan.specialized else ()), padding)
    return Section("shared memory per CTA", entries, total)


def _registers(plan: Plan) -> Section:
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


def _barriers(plan: Plan) -> Section:
    entries = (Entry(bar.name, bar.arrivals, "arrivals", bar.meaning) for bar in plan.barriers)
    return Section("barriers", tuple(entries))


def _problems(plan: Plan) -> tuple[Section, ...]:
    return tuple(_problem(plan, shape) for shape in plan.problem.bench_shapes)


def _problem(plan: Plan, shape: Shape) -> Section:
    m, n, k = shape
    tiles_m, tiles_n = plan.tiles(shape)
    waves = plan.waves(shape)
    found = estimate(plan, shape)
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


def _bound(plan: Plan, shape: Shape, found: Estimate) -> Entry:
    """Return the operations per byte of DRAM, through which all matrices and vectors go once."""
    gpu, bits = plan.problem.gpu, plan.problem.a.dtype.bits
    intensity, ridge = 2 * math.prod(shape) / found.dram_bytes, gpu.ridge_flops_per_byte(bits)
    bound = "tensor cores" if intensity > ridge else "DRAM"
    meaning = f"towards DRAM: bound by {bound}, with the ridge at {ridge:.1f}"
    return Entry("intensity", round(intensity, 1), "FLOP/B", meaning)


def _l2_reads(plan: Plan, found: Estimate) -> str:
    reads = " and ".join(operand.upper() for operand in plan.multicast)
    shared = f", {reads} once for all CTAs of a cluster" if reads else ""
    return f"{found.l2_bytes / found.dram_bytes:.1f} times what DRAM moves at least{shared}"


def _shares(found: Estimate) -> str:
    """Say of what a predicted time is the sum, of its largest three terms."""
    if found.dram_seconds > found.cycles / found.hz:
        return "predicted, only to rank by: as long as DRAM takes"
    shares = sorted(((cycles / found.cycles, cause) for cause, cycles in found.terms.items()), reverse=True)
    named = ", ".join(f"{share:.0%} {cause}" for share, cause in shares[:3])
    return f"predicted, only to rank by: {named}"


def _section_text(section: Section) -> str:
    entries = (*section.entries, section.total) if section.total else section.entries
    lines = [f"  {e.name:<16} {e.amount:>10,} {e.unit:<10} {e.derivation}".rstrip() for e in entries]
    return "\n".join([section.title, *lines])
