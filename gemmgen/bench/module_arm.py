"""A generated module as an arm of a measurement: bound to its tensors, or as the baseline of another one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gemmgen.bench.baseline import Baseline
from gemmgen.bench.record import path_from_here, sha256_of
from gemmgen.module import MatmulFunction, import_generated, make_workspace_of, matmul_of
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import takes_out


def bound(matmul: MatmulFunction, inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
    """Bind a module's matmul to its tensors; if it has no ``out``, each call allocates its result."""
    into: dict[str, Any] = {"out": d} if takes_out(d.shape[-1], d.dtype) else {}
    if make_workspace := make_workspace_of(matmul):  # one for all: its calls are timed in one stream
        into["workspace"] = make_workspace(*d.shape, d.device)
    return partial(matmul, inputs.a, inputs.b, **inputs.extras, **into)


def other_module(path: Path) -> Baseline:
    """Return the baseline that another module of the same spec is: an older one, or one edited by hand.

    Raises GemmgenError as ``import_generated`` does.
    """
    module = import_generated(path)
    text = f"gemmgen's module {path_from_here(path)}, sha256 {sha256_of(path)}"
    return Baseline(text, partial(bound, matmul_of(module)))
