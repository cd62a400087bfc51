"""What this machine has, and which stages can run on it."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

from gemmgen import __version__
from gemmgen.target import GPUS

TRITON_RANGE = "3.9"
"""The Triton release whose lowering the plan predicts to the byte."""


@dataclass(frozen=True)
class Doctor:
    """Versions, the GPU, and for every stage whether it runs here or why not."""

    versions: dict[str, str]
    gpu: str
    stages: dict[str, str]

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {"versions": self.versions, "gpu": self.gpu, "stages": self.stages}


def examine() -> Doctor:
    """Look at the installed packages and at the GPU."""
    packages = ("triton", "torch", "pydantic", "jinja2", "ruamel.yaml", "typer", "rich", "matplotlib")
    versions = {"gemmgen": __version__, "python": platform.python_version()}
    versions |= {package: _version(package) for package in packages}
    gpu, capability = _gpu()
    lowering = "yes"
    if not versions["triton"].startswith(TRITON_RANGE + "."):
        lowering = f"no: needs triton {TRITON_RANGE}, found {versions['triton']}"
    targets = [
        name for name, product in GPUS.items() if product.architecture.compute_capability == capability
    ]
    device = f"yes, of specs for {' and '.join(targets)}"
    if not targets:
        device = f"no: needs a Hopper or Blackwell GPU (compute capability 9.0 or 10.0), found {gpu}"
    elif lowering != "yes":
        device = lowering
    return Doctor(
        versions,
        gpu,
        {"plan, check, schema, list": "yes", "build, lower, simulate": lowering, "test, bench": device},
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpu() -> tuple[str, int | None]:
    """Return the current GPU's name and its compute capability, major * 10 + minor."""
    try:
        import torch
    except ImportError:
        return "unknown (torch is not installed)", None
    if not torch.cuda.is_available():
        return "no GPU", None
    major, minor = torch.cuda.get_device_capability()
    return torch.cuda.get_device_name(), 10 * major + minor
