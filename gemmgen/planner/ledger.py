"""The ledger of a kernel: entries of each resource that it uses, and of its expected time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from gemmgen.hardware import TCGEN05
from gemmgen.plan.decisions import FIELDS
from gemmgen.plan.entry import Entry
from gemmgen.plan.kernel import Kernel
from gemmgen.plan.search import Estimate
from gemmgen.planner import family_for
from gemmgen.problem import Groups, Ranges, Shape, shape_text
from gemmgen.problem.group_sizes import GroupSizes

__all__ = ["Difference", "Entry", "Ledger", "LedgerSection", "differences", "differences_text", "ledger"]


@dataclass(frozen=True)
class LedgerSection:
    """The entries of one resource and, where it has one, its limit."""

    title: str
    entries: tuple[Entry, ...]
    total: Entry | None = None

    def as_text(self) -> str:
        """Return aligned lines; amounts to the right, derivations behind them."""
        entries = (*self.entries, self.total) if self.total else self.entries
        lines = [f"  {e.name:<16} {e.amount:>10,} {e.unit:<10} {e.derivation}".rstrip() for e in entries]
        return "\n".join([self.title, *lines])


@dataclass(frozen=True)
class Ledger:
    """All sections of one kernel."""

    sections: tuple[LedgerSection, ...]

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """Return the sections, an empty line between them."""
        return "\n\n".join(section.as_text() for section in self.sections)


def ledger(kernel: Kernel) -> Ledger:
    """Return the ledger of a legal kernel."""
    sections = [_kernel(kernel), _shared_memory(kernel)]
    if kernel.tensor_memory.buffers:
        sections.append(_tensor_memory(kernel))
    sections.append(_registers(kernel))
    if kernel.operations:
        sections.append(_operations(kernel))
    sections.append(_barriers(kernel))
    estimate = family_for(kernel).estimate
    if ranges := kernel.request.ranges:
        sections.append(_planned_for(kernel, ranges, estimate))
    if kernel.problem.groups:
        sections.extend(_groups(kernel, kernel.problem.groups))
    problems = (_problem(kernel, shape, estimate(kernel, shape)) for shape in kernel.request.bench_shapes)
    return Ledger((*sections, *problems))


# --- two kernels


@dataclass(frozen=True)
class Difference:
    """One thing in which two plans differ; None if one of them has no such thing."""

    name: str
    """The path of a field, or a section of the ledger with an entry."""
    first: object
    second: object


def differences(first: Kernel, second: Kernel) -> tuple[Difference, ...]:
    """Return the differences of two plans: decisions by the fields that state them, then the rest."""
    pairs = [(path, getattr(first, name, None), getattr(second, name, None)) for path, name in FIELDS.items()]
    one, other = _amounts(ledger(first)), _amounts(ledger(second))
    pairs += [(name, one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])]
    return tuple(Difference(*pair) for pair in pairs if pair[1] != pair[2])


def _amounts(account: Ledger) -> dict[str, object]:
    """Return the amounts of a ledger by section and entry; of the kernel itself they are decisions."""
    return {
        f"{section.title}: {entry.name}": entry.amount
        for section in account.sections[1:]
        for entry in (*section.entries, *((section.total,) if section.total else ()))
    }


def differences_text(found: Sequence[Difference], first: str, second: str) -> str:
    """Return an aligned table of the differences, with a column for each of two specs."""
    if not found:
        return f"{first} and {second} have the same plan"
    rows = [("", first, second), *((each.name, _cell(each.first), _cell(each.second)) for each in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {one:>{widths[1]}}  {other:>{widths[2]}}" for name, one, other in rows
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


# --- the kernel


def _kernel(kernel: Kernel) -> LedgerSection:
    intensity = Entry(
        "intensity",
        round(kernel.l2_flops_per_byte, 1),
        "FLOP/B",
        "of a program's tile, by bytes read from L2",
    )
    kind = ", ".join((*kernel.kind, *kernel.problem.kind))
    return LedgerSection(
        f"kernel for {kernel.gpu.name} ({kernel.architecture.name}): {kind}",
        (*kernel.summary, *_order(kernel), intensity),
    )


def _order(kernel: Kernel) -> tuple[Entry, ...]:
    """Return the entry of the order of tiles, where there are several."""
    if kernel.schedule_kind == "single_tile":
        return ()
    lines = {
        "row": "rows of tiles",
        "column": "columns of tiles",
        "hilbert": "tiles along a square's side",
    }
    grouped = f"{'rows' if kernel.minor == 'm' else 'columns'} of tiles in a group"
    return (Entry("order", kernel.width, "tiles", f"{kernel.order}: {lines.get(kernel.order, grouped)}"),)


# --- its resources


def _shared_memory(kernel: Kernel) -> LedgerSection:
    memory, limit = kernel.shared_memory, kernel.smem_limit_bytes
    buffers = (Entry(buffer.name, buffer.bytes, "bytes", buffer.contents) for buffer in memory.buffers)
    barriers = (
        Entry(b.name, b.bytes, "bytes", f"{b.ring.depth} mbarrier{'s' * (b.ring.depth > 1)}")
        for b in memory.barriers
    )
    captures = f"{memory.captures} values passed to the workers"
    compiler = (
        Entry("captures", memory.capture_bytes, "bytes", captures),
        Entry("worker state", memory.worker_state_bytes, "bytes", f"of {memory.worker_warps} worker warps"),
    )
    if memory.cluster_barrier_bytes:
        meaning = f"where the CTAs of {memory.counting_partitions} counting partitions meet"
        compiler += (Entry("cluster barriers", memory.cluster_barrier_bytes, "bytes", meaning),)
    padding = Entry("padding", memory.padding_bytes, "bytes", "alignment")
    share = "one CTA" if kernel.occupancy == 1 else f"{kernel.occupancy} CTAs"
    used = f"{kernel.smem_bytes / limit:.1%} of {limit:,}: {share} per SM"
    total = Entry("total", kernel.smem_bytes, "bytes", used)
    entries = (*buffers, *barriers, *(compiler if kernel.specialized else ()), padding)
    return LedgerSection("shared memory per CTA", entries, total)


def _tensor_memory(kernel: Kernel) -> LedgerSection:
    buffers = kernel.tensor_memory.buffers
    entries = tuple(Entry(buffer.name, buffer.columns, "columns", buffer.contents) for buffer in buffers)
    limit = f"allocated of {TCGEN05.tmem_columns}, in powers of two"
    return LedgerSection(
        "tensor memory per CTA", entries, Entry("total", kernel.tmem_columns, "columns", limit)
    )


def _registers(kernel: Kernel) -> LedgerSection:
    pool = kernel.register_pool
    partitions = kernel.partitions if kernel.specialized else kernel.partitions[:1]
    most = "" if kernel.specialized else "at most, "
    roles = (
        Entry(
            partition.name,
            pool.default_registers if i == 0 and kernel.specialized else partition.registers,
            "registers",
            f"{most}per thread, {partition.warps} warp{'s' * (partition.warps > 1)}",
        )
        for i, partition in enumerate(partitions)
    )
    launched, file = pool.launch_registers * kernel.threads, kernel.architecture.registers_per_sm
    shares = f"{kernel.threads} threads x {pool.launch_registers}, {file:,} per SM"
    total = Entry("total", launched, "registers", shares)
    return LedgerSection("registers", (*roles, *kernel.register_entries), total)


def _operations(kernel: Kernel) -> LedgerSection:
    """Return the operations in the code, each loop's body once; the compiler's figures must be the same."""
    entries = (Entry(name, count, "in code", "") for name, count in kernel.operations.items() if count)
    return LedgerSection("operations", tuple(entries))


def _barriers(kernel: Kernel) -> LedgerSection:
    """Return what each barrier awaits, and what that means."""
    entries = (Entry(bar.name, bar.arrivals, "arrivals", bar.meaning) for bar in kernel.barriers)
    return LedgerSection("barriers", tuple(entries))


# --- problems


def _groups(kernel: Kernel, groups: Groups) -> Iterator[LedgerSection]:
    """Yield how each M, or K, of planned and timed problems is divided into groups, unless there is none."""
    shapes = (*kernel.request.planned_shapes, *kernel.request.bench_shapes)
    of_extents = {groups.extent_of(shape): GroupSizes.planned(groups, shape) for shape in shapes}
    axis = "K" if groups.divides_k else "M"
    entries = tuple(
        Entry(f"{axis} = {extent}", sizes.mean, sizes.unit, sizes.spread)
        for extent, sizes in of_extents.items()
    )
    if entries:
        yield LedgerSection(f"{groups.count:,} groups ({groups.of})", entries)


def _planned_for(
    kernel: Kernel, ranges: Ranges, estimate: Callable[[Kernel, Shape], Estimate]
) -> LedgerSection:
    """Return the expected times of the problems for which open decisions were made."""
    found = {shape: estimate(kernel, shape) for shape in kernel.request.planned_shapes}
    entries = (
        Entry(shape_text(shape), round(each.seconds * 1e6, 1), "us", _shares(each))
        for shape, each in found.items()
    )
    return LedgerSection(f"planned for {ranges}", tuple(entries))


def _problem(kernel: Kernel, shape: Shape, found: Estimate) -> LedgerSection:
    m, n, k = shape
    tiles_m, tiles_n = kernel.tiles(shape)
    waves = kernel.waves(shape)
    placed = f"{tiles_m} x {tiles_n} for {kernel.resident_programs} programs"
    return LedgerSection(
        f"problem {m} x {n} x {k}",
        (
            Entry("tiles", tiles_m * tiles_n, "tiles", placed),
            Entry("waves", round(waves, 2), "waves", f"{waves / -(-waves // 1):.1%} of the SM time is used"),
            _bound(kernel, shape, found),
            Entry("from L2", round(found.l2_bytes / 1e9, 2), "GB", _l2_reads(kernel, found)),
            Entry("time", round(found.seconds * 1e6, 1), "us", _shares(found)),
        ),
    )


def _bound(kernel: Kernel, shape: Shape, found: Estimate) -> Entry:
    """Return the operations per byte of DRAM, through which all matrices and vectors go once."""
    gpu, bits = kernel.gpu, kernel.problem.a.multiplied.bits
    flops = kernel.problem.flops(shape)
    intensity, ridge = flops / found.dram_bytes, gpu.ridge_flops_per_byte(bits)
    bound = "tensor cores" if intensity > ridge else "DRAM"
    meaning = f"by bytes of DRAM: bound by {bound}, the ridge is at {ridge:.1f}"
    return Entry("intensity", round(intensity, 1), "FLOP/B", meaning)


def _l2_reads(kernel: Kernel, found: Estimate) -> str:
    shared = f", {kernel.shared_operands} once for all CTAs of a cluster" if kernel.multicast else ""
    return f"{found.l2_bytes / found.dram_bytes:.1f} times the least traffic of DRAM{shared}"


def _shares(found: Estimate) -> str:
    """Return the largest three terms of a predicted time in words."""
    if found.seconds > found.cycles / found.hz:
        limit = "DRAM" if found.dram_seconds == found.seconds else "the tensor cores' peak rate"
        return f"predicted, to rank kernels only: as long as {limit} takes"
    shares = sorted(((cycles / found.cycles, cause) for cause, cycles in found.terms.items()), reverse=True)
    named = ", ".join(f"{share:.0%} {cause}" for share, cause in shares[:3])
    return f"predicted, to rank kernels only: {named}"
