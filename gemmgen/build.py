"""All stages from a spec to a written module, in one step that either happens or does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gemmgen.lower import Resources, disassemble, lower
from gemmgen.plan.ledger import Ledger, ledger
from gemmgen.product import make, write


@dataclass(frozen=True)
class Built:
    """A written module and what was learned on the way."""

    spec: str
    module: Path
    ledger: Ledger
    resources: Resources | None
    """What the compiler measured; None if it was not asked."""
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
        }


def build(spec: Path, out: Path, *, emit: Sequence[str] = (), lowering: bool = True) -> Built:
    """Generate, compile and write the module of one spec under `out`, with the artifacts of `emit` beside it.

    Raises:
        GemmgenError: A stage refuses the spec; then nothing has been written.
    """
    product = make(spec)
    source = product.source
    artifacts: dict[str, bytes] = {}
    resources = None
    if lowering:
        lowered = lower(product.module, product.plan, path=source.path, stem=source.stem)
        resources = lowered.resources
        artifacts = {
            stage: disassemble(lowered.artifacts["cubin"]) if stage == "sass" else lowered.artifacts[stage]
            for stage in emit
        }
    module = write(product, out, artifacts)
    emitted = tuple(module.with_suffix(f".{stage}") for stage in artifacts)
    return Built(source.path, module, ledger(product.plan), resources, emitted)
