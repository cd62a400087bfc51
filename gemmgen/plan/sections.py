"""The sections of a ledger: amounts with their units, and those that every kernel has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from gemmgen.plan.plan import KernelPlan


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


def order_entries(plan: KernelPlan) -> tuple[Entry, ...]:
    """Return the entry of the order of tiles, where there are several."""
    if plan.schedule_kind == "single_tile":
        return ()
    lines = {"row": "rows of tiles", "hilbert": "tiles along a square's side"}
    walked = lines.get(plan.order, f"{'rows' if plan.minor == 'm' else 'columns'} of tiles walked together")
    return (Entry("order", plan.width, "tiles", f"{plan.order}: {walked}"),)


SHARED = {"b_scale": "B's scales"}
"""What of an operand is shared, where that is not its tile."""


def cluster_meaning(plan: KernelPlan) -> str:
    """Say how a cluster lies, and what its CTAs share."""
    shared = " and ".join(SHARED.get(operand, operand.upper()) for operand in plan.multicast)
    return f"{plan.cluster_m} x {plan.cluster_n}" + (
        f", {shared} loaded once and multicast" if shared else ""
    )


def memory_section(plan: KernelPlan, buffers: Iterable[Entry], limit: int) -> Section:
    """Return the section of a CTA's shared memory, of which so many bytes can be had."""
    memory = plan.shared_memory
    barriers = (
        Entry(b.name, b.bytes, "bytes", f"{b.depth} mbarrier{'s' * (b.depth > 1)}") for b in memory.barriers
    )
    captures = f"{len(memory.captures)} values handed to the workers"
    compiler = (
        Entry("captures", memory.capture_bytes, "bytes", captures),
        Entry("worker state", memory.worker_state_bytes, "bytes", f"of {memory.worker_warps} worker warps"),
    )
    padding = Entry("padding", memory.padding_bytes, "bytes", "alignment")
    share = "one CTA" if plan.occupancy == 1 else f"{plan.occupancy} CTAs"
    total = Entry(
        "total", plan.smem_bytes, "bytes", f"{plan.smem_bytes / limit:.1%} of {limit:,}: {share} per SM"
    )
    entries = (*buffers, *barriers, *(compiler if plan.specialized else ()), padding)
    return Section("shared memory per CTA", entries, total)


def barriers_section(plan: KernelPlan) -> Section:
    """Return the section of barriers: what each awaits, and what that means."""
    entries = (Entry(bar.name, bar.arrivals, "arrivals", bar.meaning) for bar in plan.barriers)
    return Section("barriers", tuple(entries))


def _section_text(section: Section) -> str:
    entries = (*section.entries, section.total) if section.total else section.entries
    lines = [f"  {e.name:<16} {e.amount:>10,} {e.unit:<10} {e.derivation}".rstrip() for e in entries]
    return "\n".join([section.title, *lines])
