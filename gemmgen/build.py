"""All stages from a spec to a written module, in one step that happens or does not; what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from gemmgen import triton_api
from gemmgen.errors import GemmgenError
from gemmgen.lower import Lowered, Resources, lower
from gemmgen.plan.ledger import Ledger, ledger
from gemmgen.product import Product, make, write
from gemmgen.triton_api import disassemble

if TYPE_CHECKING:
    from gemmgen.lower import Resources
    from gemmgen.verify.simulation import Simulation


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


ONE_SIMULATION = Lock()
"""A simulation forks, and no other thread may then be inside torch."""


@dataclass(frozen=True)
class Built:
    """A written module and what was learned on the way."""

    spec: str
    module: Path
    ledger: Ledger
    resources: Resources | None
    """What the compiler measured; None if it was not asked."""
    simulation: Simulation | None
    """What the CPU simulator saw; None if it was not asked."""
    artifacts: tuple[Path, ...]
    """What was emitted beside the module."""

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "spec": self.spec,
            "module": self.module.as_posix(),
            "artifacts": [path.as_posix() for path in self.artifacts],
            "ledger": self.ledger.as_dict(),
            "resources": asdict(self.resources) if self.resources else None,
            "simulation": self.simulation.as_dict() if self.simulation else None,
        }


def build(
    spec: Path, out: Path, *, emit: Sequence[str] = (), lowering: bool = True, simulation: bool = True
) -> Built:
    """Generate, compile, simulate and write one spec's module under `out`, with the artifacts of `emit`.

    Without `lowering` there is no simulation either: it needs the same compiler.

    Raises:
        GemmgenError: A stage refuses the spec or finds a fault; then nothing has been written.
    """
    product = make(spec)
    lowered, simulated = _prove(product, simulation=simulation) if lowering else (None, None)
    artifacts: dict[str, bytes] = {}
    if lowered:
        artifacts = {
            stage: disassemble(lowered.artifacts["cubin"]) if stage == "sass" else lowered.artifacts[stage]
            for stage in emit
        }
    module = write(product, out, artifacts)
    emitted = tuple(module.with_suffix(f".{stage}") for stage in artifacts)
    resources = lowered.resources if lowered else None
    return Built(product.source.path, module, ledger(product.plan), resources, simulated, emitted)


def _prove(product: Product, *, simulation: bool) -> tuple[Lowered, Simulation | None]:
    """Compile and simulate a module at the same time: the compiler is a process of its own."""
    source = product.source
    with ThreadPoolExecutor(2) as pool:
        lowered = pool.submit(lower, product.module, product.plan, path=source.path, stem=source.stem)
        simulated = pool.submit(_simulate, product) if simulation else None
        # The compiler's word first: what it refuses cannot be simulated either.
        return lowered.result(), simulated.result() if simulated else None


def _simulate(product: Product) -> Simulation:
    """Run the module under the few schedules that a build has time for."""
    with ONE_SIMULATION:
        # Before anything below imports parts of it, in another order than the thread that compiles.
        triton_api.load()
        from gemmgen.verify.simulation import (
            ring_launch,
            simulate_product,  # torch takes a second: only where needed
        )

        simulated = simulate_product(product, (ring_launch(product.plan),))
    if simulated.problems:
        raise GemmgenError(simulated.diagnostics)
    return simulated
