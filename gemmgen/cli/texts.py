"""Results as text: the measured resources of a kernel, a simulation, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmgen.lower import Resources
    from gemmgen.plan.kernel import Kernel
    from gemmgen.verify.simulation import Simulation


def resources_text(resources: Resources, plan: Kernel) -> str:
    """Return the resources that the compiler measured as text; they equal the plan's."""
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    requests = ", ".join(map(str, resources.setmaxnreg))
    if requests:
        registers = f"{requests} registers per thread, in the roles and before they start"
    elif plan.specialized:
        registers = f"none: every role keeps the {plan.register_pool.launch_registers} of the launch"
    else:
        registers = "none: all warps do the same"
    rows = {
        "shared memory": f"{resources.smem_bytes:,} bytes, as planned",
        "warps": f"{resources.warps}",
        "instruction": ", ".join(resources.mmas),
        "setmaxnreg": registers,
        "multicast": f"{resources.multicast_loads} loads",
        "spills": f"{spilled} bytes, {resources.stack_bytes} bytes of stack",
    }
    return "\n".join(["measured by the compiler", *(f"  {name:<16} {value}" for name, value in rows.items())])


def simulation_text(simulation: Simulation) -> str:
    """Return the launches of a simulation and the limits of its evidence as text."""
    notes = [f"note: {note}" for note in simulation.notes]
    return "\n  ".join([f"{simulation.spec}: {simulation}", *simulation.launched, *notes])


def columns(rows: Sequence[dict[str, object]]) -> list[str]:
    """Return rows of equal keys as aligned lines, the first one of their names; no lines without rows."""
    if not rows:
        return []
    table = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
