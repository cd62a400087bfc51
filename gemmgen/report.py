"""What the command line says of a stage's result, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gemmgen.product import Product

if TYPE_CHECKING:
    from gemmgen.lower import Resources
    from gemmgen.simulate.specs import Simulation


def resources_text(resources: Resources) -> str:
    """Say what the compiler measured; that it equals the plan has been checked."""
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    requests = ", ".join(map(str, resources.setmaxnreg))
    registers = f"{requests} registers per thread, in the roles and before they start"
    rows = {
        "shared memory": f"{resources.smem_bytes:,} bytes, as planned",
        "warps": f"{resources.warps}",
        "instruction": ", ".join(resources.mmas),
        "setmaxnreg": registers if requests else "none: all warps do the same",
        "multicast": f"{resources.multicast_loads} loads",
        "spills": f"{spilled} bytes, {resources.stack_bytes} bytes of stack",
    }
    return "\n".join(["measured by the compiler", *(f"  {name:<16} {value}" for name, value in rows.items())])


def simulation_text(simulation: Simulation) -> str:
    """Say what was run, and what that cannot show."""
    notes = [f"note: {note}" for note in simulation.notes]
    return "\n  ".join([f"{simulation.spec}: {simulation}", *map(str, simulation.launches), *notes])


def spec_row(product: Product, module: str) -> dict[str, object]:
    """Return what a list of specs shows of one: what it computes, how, and the state of its module."""
    plan, problem = product.plan, product.plan.problem
    return {
        "spec": product.source.stem,
        "dtypes": f"{problem.a.dtype.name} x {problem.b.dtype.name} -> {problem.d.name}",
        "tile": f"{plan.cta_tile_m}x{plan.cta_tile_n}x{plan.cta_tile_k}",
        "cluster": f"{plan.cluster_m}x{plan.cluster_n}",
        "stages": plan.stages,
        "module": module,
        "title": problem.title,
    }


def columns(rows: Sequence[dict[str, object]]) -> list[str]:
    """Align rows of equal keys under their names."""
    if not rows:
        return ["no specs under specs/"]
    table = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
