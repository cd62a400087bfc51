"""Gluon kernels on the CPU as they are compiled: numbers, races and deadlocks, named by line; no GPU.

`simulate` is a launch in the simulator, written as it is written for a GPU. The simulator needs torch and
Triton alone and knows nothing of specs; ``gemmgen.verify`` runs the modules of specs in it.

torch is imported with the first name that is taken from here: the plugin of pytest lies in this package, and
must cost nothing where nobody asks for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluonsim.execution import run
    from gluonsim.findings import Finding, GemmgenError, Kind, Severity
    from gluonsim.launch import gpu_of_target, simulate
    from gluonsim.policies import POLICIES
    from gluonsim.progress import Progress
    from gluonsim.result import Result
    from gluonsim.timeline import Trace

__all__ = [
    "POLICIES",
    "Finding",
    "GemmgenError",
    "Kind",
    "Progress",
    "Result",
    "Severity",
    "Trace",
    "gpu_of_target",
    "run",
    "simulate",
]

_MODULES = {
    "POLICIES": "gluonsim.policies",
    "Finding": "gluonsim.findings",
    "GemmgenError": "gluonsim.findings",
    "Kind": "gluonsim.findings",
    "Progress": "gluonsim.progress",
    "Result": "gluonsim.result",
    "Severity": "gluonsim.findings",
    "Trace": "gluonsim.timeline",
    "gpu_of_target": "gluonsim.launch",
    "run": "gluonsim.execution",
    "simulate": "gluonsim.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
