"""Baselines that are modules of gemmgen's own: another module of the same spec, or another cluster size."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from torch import Tensor

from gemmgen.bench.baseline import Baseline
from gemmgen.bench.record import path_from_here, sha256_of
from gemmgen.bench.torch_matmul import offered
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import MatmulFunction, import_generated, make_workspace_of, matmul_of
from gemmgen.numerics.inputs import Inputs, takes_out
from gemmgen.plan.kernel import Kernel
from gemmgen.problem.contest import formats_text
from gemmgen.processes.scratch import scratch
from gemmgen.product import Product, make, staged

CTAS: Final = {1: "one CTA", 2: "pairs of CTAs"}


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


# --- the baseline if torch has none


@contextmanager
def rival(product: Product) -> Generator[Baseline | None]:
    """Give the baseline of a spec whose operands torch cannot multiply; None if torch can.

    It is the same spec with pairs of CTAs if its plan has single CTAs, and with single CTAs if it has pairs.
    The module is kept until the context ends, because Triton reads it to compile.

    Raises GemmgenError (``no-baseline``) if no such plan is legal.
    """
    if not product.plan.problem.block_scaled or offered(product.source.problem):
        yield None
        return
    other = variant(product)
    with staged(other) as path:
        yield Baseline(_rival_text(product, other.plan), partial(bound, matmul_of(import_generated(path))))


def variant(product: Product) -> Product:
    """Return the product of the same spec with clusters of two CTAs instead of one, or one instead of two.

    Raises GemmgenError (``no-baseline``) if no such plan is legal.
    """
    ctas = 2 if product.plan.cluster_size == 1 else 1
    with scratch() as directory:
        path = Path(directory) / f"{product.source.stem}_cta{ctas}.yaml"
        _write(_with_cluster(product, ctas), path)
        try:
            return make(path)
        except GemmgenError as error:
            lacking = f"torch has no cuBLAS matmul of block-scaled {formats_text(product.source.problem)}"
            why = f"no kernel of the same spec by {CTAS[ctas]} is legal: {error.diagnostics[0].message}"
            message = f"{lacking}, and {why}"
            raise GemmgenError([Diagnostic(product.source.path, "no-baseline", message)]) from error


def _with_cluster(product: Product, ctas: int) -> dict[str, Any]:
    """Return the spec's document with this cluster stated, and no longer searched for."""
    document: dict[str, Any] = product.source.spec.model_dump(mode="json", exclude_unset=True)
    document["cluster"] = {"m": ctas, "n": 1}
    search = {field: values for field, values in document.pop("search", {}).items() if "cluster" not in field}
    return document | ({"search": search} if search else {})


def _write(document: dict[str, Any], path: Path) -> None:
    yaml: Any = YAML(typ="safe", pure=True)
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(document, file)


def _rival_text(product: Product, plan: Kernel) -> str:
    """Return the text of the baseline, with the reason for it."""
    tile = f"tile {plan.cta_tile_m} x {plan.cta_tile_n} x {plan.cta_tile_k} in {plan.stages} stages"
    kernel = f"gemmgen's kernel of the same spec by {CTAS[plan.cluster_size]}, {tile}, scales packed before"
    return f"{kernel}; torch has no cuBLAS matmul of block-scaled {formats_text(product.source.problem)}"
