"""The plug-in of gemmgen that vLLM loads in each of its processes: the entry point ``vllm.general_plugins``.

It imports nothing of vLLM unless GEMMGEN_VLLM names a file of kernels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from gemmgen.integrations.experts import Experts

VARIABLE: Final = "GEMMGEN_VLLM"
"""The environment variable with the path of the file that says which modules to use."""


def register() -> None:
    """Read the file that GEMMGEN_VLLM names, and put its kernels before vLLM's own.

    The file has JSON with names of modules, each part optional: ``{"fp8_blocks": NAME, "experts": {"up":
    NAME, "down": NAME, "few_rows": {"4": [NAME, NAME]}}}``.

    Raises ValueError for a file that cannot be read or has other names, and for modules that compute anything
    else; ImportError for a module that is not there. Nothing is put anywhere then.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        unknown = {*found} - {"fp8_blocks", "experts"}
        of_experts: dict[str, Any] = found.get("experts") or {}
        unknown |= {*of_experts} - {"up", "down", "few_rows"}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{VARIABLE} must name a file of JSON, found {path}: {error}") from None
    if unknown or (of_experts and not {"up", "down"} <= {*of_experts}):
        raise ValueError(
            f"{path} must have fp8_blocks and experts with up, down and few_rows, found {', '.join(found)}"
        )
    import_module("gemmgen.integrations.vllm").plug_in(
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
