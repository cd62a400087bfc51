"""All drawings of a kernel as one SVG."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.pictures.bars import registers, shared_memory
from gemmgen.pictures.drawing import Drawing, stacked
from gemmgen.pictures.ring import ring
from gemmgen.pictures.tile_order import tile_order
from gemmgen.plan.kernel import Kernel
from gemmgen.product import Product


def drawings(kernel: Kernel) -> tuple[Drawing, ...]:
    """Return all drawings of a kernel: its memory, its registers, its ring and its rasterization order."""
    return (shared_memory(kernel), registers(kernel), ring(kernel), *tile_order(kernel))


def svg(product: Product, names: Collection[str] = ()) -> str:
    """Return a kernel's drawings as one SVG, all or the named ones; one plan always gives the same bytes.

    Raises:
        GemmgenError: It has no drawing of a name (``no-drawing``).
    """
    path, found = product.source.path, drawings(product.plan)
    known = {drawing.name: drawing for drawing in found}
    for name in names:
        if name not in known:
            message = f"there is no drawing `{name}`; there are {', '.join(known)}"
            raise GemmgenError([Diagnostic(path, "no-drawing", message)])
    chosen = [known[name] for name in names] if names else found
    spoken = f"{product.plan.request.title}: {', '.join(drawing.title for drawing in chosen)}"
    return stacked(f"{PurePath(path).name}: {product.plan.request.title}", spoken, chosen)
