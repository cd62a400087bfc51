"""The file that tells the plug-in of a server which modules to use, in vLLM and in SGLang."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gemmgen.integrations.experts import Experts
from gemmgen.integrations.kernels import Kernel


class ServerKernels(NamedTuple):
    """The kernels for a server; None for a part that stays the server's own."""

    fp8_blocks: Kernel | None
    """For linear layers with fp32 scales of blocks."""
    experts: Experts | None


def kernels_named_by(variable: str) -> ServerKernels | None:
    """Return the kernels of the file that an environment variable names; None without the variable.

    The file has JSON with names of modules, each part optional: ``{"fp8_blocks": NAME, "experts": {"up":
    NAME, "down": NAME, "few_rows": {"4": [NAME, NAME]}}}``.

    Raises ValueError for a file that cannot be read or has other names, and for experts that compute anything
    else; ImportError for a module that is not there.
    """
    path = os.environ.get(variable)
    if not path:
        return None
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        unknown = {*found} - {"fp8_blocks", "experts"}
        of_experts: dict[str, Any] = found.get("experts") or {}
        unknown |= {*of_experts} - {"up", "down", "few_rows"}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{variable} must name a file of JSON, found {path}: {error}") from None
    if unknown or (of_experts and not {"up", "down"} <= {*of_experts}):
        raise ValueError(
            f"{path} must have fp8_blocks and experts with up, down and few_rows, found {', '.join(found)}"
        )
    return ServerKernels(
        fp8_blocks=import_module(found["fp8_blocks"]) if found.get("fp8_blocks") else None,
        experts=_experts(of_experts) if of_experts else None,
    )


def _experts(found: Mapping[str, Any]) -> Experts:
    """Return the kernels of experts by the names of their modules."""
    few = {
        int(most): (import_module(up), import_module(down))
        for most, (up, down) in found.get("few_rows", {}).items()
    }
    return Experts(import_module(found["up"]), import_module(found["down"]), few_rows=few)
