"""The baseline where torch has none: gemmgen's own kernel by single CTAs against pairs, or the reverse."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from torch import Tensor

from gemmgen.bench.baseline import Baseline
from gemmgen.bench.block_scaled import formats_text, offered
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import Matmul, import_generated, matmul_of
from gemmgen.plan.plan import KernelPlan
from gemmgen.problem.inputs import Inputs
from gemmgen.problem.matrix import takes_out
from gemmgen.product import Product, make, staged
from gemmgen.scratch import scratch

CTAS = {1: "one CTA", 2: "pairs of CTAs"}


@contextmanager
def rival(product: Product) -> Generator[Baseline | None]:
    """Give the baseline for a spec whose operands torch has no matmul for; None where it has one.

    It is the same spec by pairs of CTAs if its plan has single ones, and by single ones if it has pairs. The
    module is kept as long as the context, for Triton reads it when it compiles.

    Raises GemmgenError (``no-baseline``) where no plan of the other kind is legal.
    """
    if not product.plan.problem.block_scaled or offered(product.source.spec):
        yield None
        return
    other = variant(product)
    with staged(other) as path:
        bind = partial(_bind, matmul_of(import_generated(path)))
        yield Baseline(_text(product, other.plan), bind)


def variant(product: Product) -> Product:
    """Return what follows from the same spec with a cluster of one CTA instead of two, or two instead of one.

    Raises GemmgenError (``no-baseline``) where no such plan is legal.
    """
    ctas = 2 if product.plan.cluster_size == 1 else 1
    with scratch() as directory:
        path = Path(directory) / f"{product.source.stem}_cta{ctas}.yaml"
        _write(_with_cluster(product, ctas), path)
        try:
            return make(path)
        except GemmgenError as error:
            lacking = f"torch has no cuBLAS matmul of block-scaled {formats_text(product.source.spec)}"
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


def _text(product: Product, plan: KernelPlan) -> str:
    """Say what the baseline is, and why."""
    tile = f"tile {plan.cta_tile_m} x {plan.cta_tile_n} x {plan.cta_tile_k} in {plan.stages} stages"
    kernel = f"gemmgen's kernel of the same spec by {CTAS[plan.cluster_size]}, {tile}, scales packed before"
    return f"{kernel}; torch has no cuBLAS matmul of block-scaled {formats_text(product.source.spec)}"


def _bind(matmul: Matmul, inputs: Inputs, d: Tensor) -> Callable[[], Tensor]:
    """Bind the kernel to its tensors; where it takes no ``out`` it allocates, as the other arm does."""
    into = {"out": d} if takes_out(d.shape[1], d.dtype) else {}
    return partial(matmul, inputs.a, inputs.b, **inputs.extras, **into)
