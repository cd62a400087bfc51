"""All drawings of a kernel: as one SVG, or as a page for a browser that looks up any element."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from gemmgen.drawing import (
    MATRIX_STYLE,
    STYLE,
    Drawing,
    alone,
    stacked,
)
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import TCGEN05, WGMMA
from gemmgen.pictures import layouts, matrices, tensor_memory
from gemmgen.pictures.bars import registers, shared_memory
from gemmgen.pictures.ring import ring
from gemmgen.pictures.tile_order import tile_order
from gemmgen.plan.kernel import Kernel
from gemmgen.product import Product
from gemmgen.render import render_page


def drawings(kernel: Kernel) -> tuple[Drawing, ...]:
    """Return every drawing of a kernel, from the coarse to the fine; buffers that are alike have one."""
    found = [shared_memory(kernel), registers(kernel)]
    sums, scales = layouts.tensor_tile(kernel), layouts.scale_tiles(kernel)
    if sums:
        found.append(tensor_memory.tensor_memory(kernel, sums, scales))
    found += [ring(kernel), *tile_order(kernel)]
    instruction = kernel.architecture.mma
    k_bytes = {"wgmma": WGMMA.k_bytes, "tcgen05": TCGEN05.k_bytes}[instruction]
    in_registers = layouts.operand_in_registers(kernel)
    alike: dict[tuple[str, int], list[layouts.SharedTile]] = {}
    for tile in layouts.shared_tiles(kernel):
        alike.setdefault((tile.tensor, tile.swizzle_bytes), []).append(tile)
    for (tensor, _), (tile, *others) in alike.items():
        if tensor in ("A", "B"):
            read = 0 if tensor == "A" and in_registers else k_bytes
            names = [other.name for other in others]
            found.append(matrices.shared_tile(tile, names, read, instruction))
    fragments = ((in_registers,) if in_registers else (), layouts.accumulators(kernel))
    found += [matrices.register_tiles(tiles) for tiles in fragments if tiles]
    found += [tensor_memory.scale_tile(scale) for scale in scales]
    return tuple(found)


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


def page(product: Product) -> str:
    """Return all of a kernel's drawings as a page that stands alone and looks up any element."""
    return render_page("pictures/page.html", Page(product))


@dataclass(frozen=True)
class Page:
    """The values that the page's template reads."""

    product: Product

    @property
    def title(self) -> str:
        """The spec's title."""
        return self.product.plan.request.title

    @property
    def spec(self) -> str:
        """The spec's path as it was given."""
        return self.product.source.path

    @property
    def kernel(self) -> str:
        """The GPU and the architecture of the kernel."""
        plan = self.product.plan
        return f"{plan.gpu.name}, {plan.architecture.name}"

    @property
    def style(self) -> str:
        """The styles of all drawings."""
        return STYLE + MATRIX_STYLE

    @cached_property
    def drawings(self) -> tuple[tuple[Drawing, str], ...]:
        """Each drawing, and its picture."""
        return tuple((drawing, alone(drawing)) for drawing in drawings(self.product.plan))

    @property
    def tiles(self) -> list[dict[str, object]]:
        """The tiles in which the page's script looks up elements."""
        return look_ups(self.product.plan)


def look_ups(kernel: Kernel) -> list[dict[str, object]]:
    """Return every tile with the bases from which the place of each of its elements follows."""
    found: list[dict[str, object]] = []

    def add(kind: str, tile: _Tile, name: str, row: str, column: str, **more: object) -> None:
        rows, columns = tile.bases
        extents: dict[str, object] = {"rows": tile.rows, "columns": tile.columns}
        bases = {"row_bases": rows, "column_bases": columns}
        found.append({"kind": kind, "name": name, "row": row, "column": column, **extents, **bases, **more})

    for tile in layouts.shared_tiles(kernel):
        more = {"address": tile.address, "slots": tile.slots, "slot_bytes": tile.bytes, "bits": tile.bits}
        add("shared", tile, f"{tile.name} ({tile.tensor})", tile.row, tile.column, **more)
    fragments = layouts.accumulators(kernel)
    if in_registers := layouts.operand_in_registers(kernel):
        fragments = (in_registers, *fragments)
    for fragment in fragments:
        add("registers", fragment, f"{fragment.name}, in registers", fragment.row, fragment.column)
    if sums := layouts.tensor_tile(kernel):
        more = {"first": sums.first_column, "slots": sums.slots, "slot_columns": sums.columns}
        add("sums", sums, f"{sums.name}, in tensor memory", "m", "n", **more)
    for scale in layouts.scale_tiles(kernel):
        row = "m" if scale.tensor == "A" else "n"
        add("scales", scale, f"{scale.name}, in tensor memory", row, "scale", first=scale.first_column)
    return found


_Tile = layouts.SharedTile | layouts.RegisterTile | layouts.TensorTile | layouts.ScaleTile
