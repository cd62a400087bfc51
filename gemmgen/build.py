"""All stages from a spec to a written module, in one step that either happens or does not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from gemmgen.errors import GemmgenError
from gemmgen.lower import Lowered, Resources, disassemble, lower
from gemmgen.plan.ledger import Ledger, ledger
from gemmgen.product import Product, make, write

if TYPE_CHECKING:
    from gemmgen.simulate.specs import Simulation

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
        from gemmgen.simulate.launches import ring_launch  # torch takes a second: only where it is needed
        from gemmgen.simulate.specs import simulate

        simulated = simulate(product, (ring_launch(product.plan),))
    if simulated.problems:
        raise GemmgenError(simulated.diagnostics)
    return simulated
