"""The ledger of a plan: what it spends of each resource, entry by entry, and what that buys."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gemmgen.plan.plan import Plan


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
    bytes_per_stage = f"{plan.a_tile_bytes:,} of A + {plan.b_tile_bytes:,} of B"
    mmas = plan.cta_consumer_tile_m * plan.cta_tile_n // (plan.mma_shape[0] * plan.mma_shape[1])
    per_step = mmas * plan.cta_tile_k // plan.mma_shape[2]
    return Section(
        f"kernel for {plan.problem.gpu.name} ({plan.architecture.name})",
        (
            Entry(
                "CTA tile m",
                plan.cta_tile_m,
                "rows",
                f"{plan.consumers} x {plan.cta_consumer_tile_m} by consumer",
            ),
            Entry("CTA tile n", plan.cta_tile_n, "columns", f"stored as {plan.subtiles} x {plan.subtile_n}"),
            Entry("CTA tile k", plan.cta_tile_k, "elements", f"{bytes_per_stage} bytes per stage"),
            Entry(
                "cluster",
                plan.cluster_size,
                "CTAs",
                f"{plan.cluster_m} x {plan.cluster_n}" + _multicast(plan),
            ),
            Entry("stages", plan.stages, "tiles", f"{plan.stages * plan.cta_tile_k} of K in flight"),
            Entry("outstanding", plan.outstanding_mmas, "MMAs", "older MMAs that run while a step is issued"),
            Entry("instructions", per_step, "wgmma", f"{plan.mma_name} per warpgroup and K step"),
            Entry("order", plan.width, "tiles", f"{plan.order}: rows of tiles walked together"),
            Entry("intensity", round(plan.l2_flops_per_byte, 1), "FLOP/B", "of a program's tile towards L2"),
        ),
    )


def _multicast(plan: Plan) -> str:
    return ", B loaded once and multicast" if plan.multicast else ""


def _shared_memory(plan: Plan) -> Section:
    memory = plan.shared_memory
    rows = {
        "a": (plan.cta_consumer_tile_m, plan.cta_tile_k, plan.problem.a.dtype, plan.stages, plan.a_swizzle_bytes),
        "b": (plan.cta_tile_n, plan.cta_tile_k, plan.problem.b.dtype, plan.stages, plan.b_swizzle_bytes),
        "d": (
            plan.cta_consumer_tile_m,
            plan.subtile_n,
            plan.problem.d,
            plan.epilogue_buffers,
            plan.d_swizzle_bytes,
        ),
    }
    buffers: list[Entry] = []
    for buffer in memory.buffers:
        height, width, dtype, depth, swizzle = rows[buffer.operand]
        derivation = f"{depth} x {height} x {width} {dtype.name}, swizzle {swizzle}"
        buffers.append(Entry(buffer.name, buffer.bytes, "bytes", derivation))
    barriers = (Entry(b.name, b.bytes, "bytes", f"{b.stages} mbarriers") for b in memory.barriers)
    compiler = (
        Entry(
            "captures", memory.capture_bytes, "bytes", f"{len(memory.captures)} values handed to the workers"
        ),
        Entry("worker state", memory.worker_state_bytes, "bytes", f"of {memory.worker_warps} worker warps"),
        Entry("padding", memory.padding_bytes, "bytes", "alignment to 16 bytes"),
    )
    limit = plan.architecture.smem_bytes_per_cta
    total = Entry(
        "total", plan.smem_bytes, "bytes", f"{plan.smem_bytes / limit:.1%} of {limit:,}: one CTA per SM"
    )
    return Section("shared memory per CTA", (*buffers, *barriers, *compiler), total)


def _registers(plan: Plan) -> Section:
    pool = plan.register_pool
    entries = [
        Entry(
            partition.name,
            pool.default_registers if i == 0 else partition.registers,
            "registers",
            f"per thread, {partition.warps} warp{'s' * (partition.warps > 1)}",
        )
        for i, partition in enumerate(plan.partitions)
    ]
    share = plan.accumulator_registers / plan.consumer_registers
    entries.append(
        Entry("accumulator", plan.accumulator_registers, "registers", f"{share:.0%} of a consumer thread's")
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


def _problem(plan: Plan, shape: tuple[int, int, int]) -> Section:
    m, n, k = shape
    tiles_m, tiles_n = plan.tiles(shape)
    waves = plan.waves(shape)
    flops = 2 * m * n * k
    moved = (m * k) * plan.problem.a.dtype.bytes + (n * k) * plan.problem.b.dtype.bytes + (m * n) * plan.problem.d.bytes
    bound = "tensor cores" if flops / moved > plan.problem.gpu.ridge_flops_per_byte else "DRAM"
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
            Entry("intensity", round(flops / moved, 1), "FLOP/B", f"towards DRAM: bound by {bound}"),
        ),
    )


def _section_text(section: Section) -> str:
    entries = (*section.entries, section.total) if section.total else section.entries
    lines = [f"  {e.name:<16} {e.amount:>10,} {e.unit:<10} {e.derivation}".rstrip() for e in entries]
    return "\n".join([section.title, *lines])
