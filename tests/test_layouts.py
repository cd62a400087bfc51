"""Where elements lie: every one of every committed kernel is where the compiler's own layouts put it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
from modules import SPECS, made, module_file, spec_file
from triton._C.libtriton import gluon_ir as gluon_ir_
from triton._C.libtriton import ir as ir_
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
)

from gemmgen.drawing import Drawing
from gemmgen.hardware.elements import DTYPES
from gemmgen.lower import lower
from gemmgen.pictures import drawings, layouts, look_ups, place
from gemmgen.pictures.layouts import Bases, RegisterTile, ScaleTile, SharedTile, TensorTile
from gemmgen.plan.kernel import Kernel
from gemmgen.verify.launches import Launch
from gemmgen.verify.simulation import simulate_product
from gluonsim import places
from gluonsim.ir.parse import Operation

Layout = Any
Numbers = Any
"""An array of integers: the formulas take whole tiles."""
LAYOUTS: dict[str, Any] = {
    "NVMMASharedLayout": gl.NVMMASharedLayout,
    "NVMMADistributedLayout": gl.NVMMADistributedLayout,
    "DotOperandLayout": gl.DotOperandLayout,
    "TensorMemoryLayout": TensorMemoryLayout,
    "TensorMemoryScalesLayout": TensorMemoryScalesLayout,
}
"""The constructors that generated modules use for tiles."""


# --- the compiler's layouts


@cache
def builder() -> Any:
    context = cast(Any, ir_).context()
    cast(Any, ir_).load_dialects(context)
    return context, cast(Any, gluon_ir_).GluonOpBuilder(context)


def linear(layout: Layout, tile: tuple[int, int]) -> Any:
    """What the compiler makes of a layout of tiles of this size, each in one CTA."""
    shape = list(tile)
    for basis in getattr(layout, "cga_layout", None) or ():
        shape = [extent << (step > 0) for extent, step in zip(shape, basis, strict=True)]
    _, build = builder()
    return build.to_linear_layout(layout._to_ir(build), shape)


@cache
def layouts_of(module: Path) -> dict[str, Layout]:
    """The layout constants of a module, without importing it."""
    names: dict[str, Any] = {}
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if "_LAYOUT" in name and isinstance(node.value, ast.Call):
                call = ast.unparse(node.value.args[0]).replace("gl.", "")
                if call.partition("(")[0] in LAYOUTS:
                    names[name] = eval(call, LAYOUTS | names)
    return names


def all_of(bases: list[list[int]]) -> tuple[Numbers, Numbers]:
    """The rows and columns to which all numbers of so many bits lead."""
    numbers = numpy.arange(1 << len(bases))
    found = [numpy.zeros_like(numbers), numpy.zeros_like(numbers)]
    for bit, basis in enumerate(bases):
        for dim in (0, 1):
            found[dim] ^= (numbers >> bit & 1) * basis[dim]
    return found[0], found[1]


def by_bases(bases: tuple[Bases, Bases], rows: Numbers, columns: Numbers) -> Numbers:
    """Where a page's script finds elements."""
    found = numpy.zeros_like(rows)
    for index, of_index in ((rows, bases[0]), (columns, bases[1])):
        for bit, basis in enumerate(of_index):
            found ^= (index >> bit & 1) * basis
    return found


# --- a tile against a layout


def hold_shared(tile: SharedTile, layout: Layout) -> None:
    """Every element, by all bytes of the tile: with 4 bits an element is a pair of them."""
    packed = max(1, 8 // tile.bits)
    stored = tile.columns // packed
    unit = max(1, tile.bits // 8)
    bases = linear(layout, (tile.rows, stored)).offset_bases
    rows, columns = all_of(bases)
    numbers = numpy.arange(len(rows)) * unit
    if tile.padded:  # a basis leads nowhere: the second half of 16 bytes is padding
        assert bases.count([0, 0]) == 1
        kept = numbers % 16 < 8
        rows, columns, numbers = rows[kept], columns[kept], numbers[kept]
    assert len(numbers) == tile.rows * stored
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == len(numbers)
    assert (cast(Any, tile.byte)(rows, columns * packed) == numbers).all()
    assert (cast(Any, tile.byte)(rows, columns * packed + packed - 1) == numbers).all()
    assert (by_bases(tile.bases, rows, columns * packed) == numbers).all()
    assert tile.bytes == len(numbers) * unit * (2 if tile.padded else 1)


def hold_registers(tile: RegisterTile, layout: Layout) -> None:
    """Every element of every thread of every warp."""
    found = linear(layout, (tile.rows, tile.columns))
    registers, lanes, warps = found.reg_bases, found.lane_bases, found.warp_bases
    rows, columns = all_of([*registers, *lanes, *warps])
    numbers = numpy.arange(len(rows))
    register = numbers % (1 << len(registers))
    lane = numbers >> len(registers) & 31
    warp = numbers >> (len(registers) + 5)
    own = cast(Any, tile.place)(rows, columns)
    copy = warp % tile.warps[0] if tile.copies else warp
    assert (own.warp == copy).all()
    assert (own.lane == lane).all()
    assert (own.element == register).all()
    assert tile.elements == 1 << len(registers)
    packed = own.warp << 20 | own.lane << 12 | own.element
    assert (by_bases(tile.bases, rows, columns) == packed).all()


def hold_sums(tile: TensorTile, layout: Layout) -> None:
    found = linear(layout, (tile.rows, tile.columns))
    rows, columns = all_of([*found.rows, *found.cols])
    numbers = numpy.arange(len(rows))
    lane, column = numbers % (1 << len(found.rows)), numbers >> len(found.rows)
    if tile.rows == 64:  # the other half of the lanes has no sums of its own
        kept = lane % 32 < 16
        rows, columns, lane, column = rows[kept], columns[kept], lane[kept], column[kept]
    assert len(rows) == tile.rows * tile.columns
    assert (cast(Any, tile.lane)(rows) == lane).all()
    assert (cast(Any, tile.column)(columns) - tile.first_column == column).all()
    assert (by_bases(tile.bases, rows, columns) == (lane << 12 | column)).all()


def hold_scales(tile: ScaleTile, layout: Layout) -> None:
    found = linear(layout, (tile.rows, tile.columns))
    rows, columns = all_of([*found.rows, *found.cols])
    numbers = numpy.arange(len(rows))
    lane, byte = numbers % (1 << len(found.rows)), numbers >> len(found.rows)
    assert len(rows) == 4 * tile.rows * tile.columns  # each quarter of the lanes has a copy
    assert (cast(Any, tile.lane)(rows) == lane % 32).all()
    assert (cast(Any, tile.byte)(rows, columns) == byte).all()
    assert (by_bases(tile.bases, rows, columns) == (lane % 32 << 12 | byte)).all()


# --- the committed kernels


def held(kernel: Kernel, known: dict[str, Layout], seen: set[str]) -> int:
    """Hold all tiles of a kernel against its module's layouts; return how many there are."""
    count = 0

    def layout_of(*names: str) -> Layout:
        return known[next(name for name in names if name in known)]

    def is_new(tile: object, layout: Layout) -> bool:
        text = f"{tile} {layout}"
        return text not in seen and not seen.add(text)

    operands = {buffer.name: buffer.operand.upper() for buffer in kernel.shared_buffers}
    for tile in layouts.shared_tiles(kernel):
        layout = layout_of(f"{operands[tile.name]}_LAYOUT", f"{tile.tensor}_LAYOUT")
        if is_new(tile, layout):
            hold_shared(tile, layout)
        count += 1
    for number, tile in enumerate(layouts.accumulators(kernel)):
        layout = layout_of(f"ACCUMULATOR_LAYOUT_{number}", "ACCUMULATOR_LAYOUT")
        if is_new(tile, layout):
            hold_registers(tile, layout)
        count += 1
    if tile := layouts.operand_in_registers(kernel):
        hold_registers(tile, layout_of("A_REGISTER_LAYOUT_0", "A_REGISTER_LAYOUT"))
        count += 1
    if tile := layouts.tensor_tile(kernel):
        hold_sums(tile, known["ACCUMULATOR_LAYOUT"])
        count += 1
    for tile in layouts.scale_tiles(kernel):
        hold_scales(tile, known[f"{tile.tensor}_SCALE_TMEM_LAYOUT"])
        count += 1
    return count


def test_every_element_of_every_committed_kernel_is_where_the_compiler_puts_it() -> None:
    seen: set[str] = set()
    tiles = sum(held(made(spec).plan, layouts_of(module_file(spec.stem)), seen) for spec in SPECS)
    assert tiles >= 4 * len(SPECS)
    assert len(seen) > 60  # tiles that differ


def test_a_page_has_every_tile_that_is_held() -> None:
    for stem in ("h100_int8_a_registers", "h100_bf16_128x144", "b200_mxfp8", "h100_bf16_residual"):
        plan = made(spec_file(stem)).plan
        known = layouts_of(module_file(stem))
        assert len(look_ups(plan)) == held(plan, known, set())


# --- any tile


def tile_of(
    dtype: str, rows: int, columns: int, swizzle: int, *, along_k: bool, padded: bool = False
) -> SharedTile:
    row, column = ("n", "k") if along_k else ("k", "n")
    bits = DTYPES[dtype].bits
    sizes = {"rows": rows, "columns": columns, "bits": bits, "swizzle_bytes": swizzle}
    return SharedTile("b_smem", "B", dtype, row, column, **sizes, padded=padded, address=0, slots=1)


@pytest.mark.parametrize("dtype", ["bf16", "e4m3", "tf32", "int8"])
@pytest.mark.parametrize("swizzle", [128, 64, 32, 0])
@pytest.mark.parametrize("along_k", [True, False], ids=["k-major", "mn-major"])
def test_an_operand_of_any_type_swizzle_and_major_lies_as_the_compiler_says(
    dtype: str, swizzle: int, along_k: bool
) -> None:
    bits = DTYPES[dtype].bits
    layout = gl.NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=bits, rank=2)
    for rows, spans in product((8, 16, 64, 256), (1, 2, 4)):
        columns = (swizzle or 32) * 8 // bits * spans
        hold_shared(tile_of(dtype, rows, columns, swizzle, along_k=along_k), layout)


@pytest.mark.parametrize("rows", [8, 128])
@pytest.mark.parametrize("padded", [True, False])
def test_elements_of_four_bits_lie_as_the_compiler_says(rows: int, padded: bool) -> None:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2, fp4_padded=padded)
    for columns in (128, 256) if padded else (256, 512):
        tile = tile_of("e2m1", rows, columns, 128, along_k=True, padded=padded)
        hold_shared(tile, layout)
        assert tile.elements_per_unit == (16 if padded else 32)


@pytest.mark.parametrize("n", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("warps", [(4, 1), (8, 1), (4, 2)])
def test_an_accumulator_of_any_width_is_held_as_the_compiler_says(n: int, warps: tuple[int, int]) -> None:
    layout = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=list(warps), instr_shape=[16, n, 16])
    for repeats_m, repeats_n in product((1, 2), (1, 2)):
        rows, columns = 16 * warps[0] * repeats_m, n * warps[1] * repeats_n
        tile = RegisterTile("accumulator", "fp32", 32, "m", "n", rows, columns, warps, n)
        hold_registers(tile, layout)


def test_the_fragment_is_that_of_ptx() -> None:
    """[ptx] of m64nNk: row = lane // 4 + 8 * (i // 2 % 2), column = 8 * (i // 4) + 2 * (lane % 4) + i % 2."""
    tile = RegisterTile("accumulator", "fp32", 32, "m", "n", 64, 256, (4, 1), 256)
    for warp, lane, i in product(range(4), range(32), range(128)):
        row, column = lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2
        assert tile.place(16 * warp + row, column) == layouts.Thread(warp, lane, i)


# --- the order of tiles

GRIDS = ((1, 1), (3, 5), (16, 8), (17, 37), (70, 9))


def pair(row: int, column: int) -> tuple[int, int]:
    """Return a tile's place in place of the module's own tuple."""
    return row, column


def fake_language() -> Any:
    """What `tile_origin` needs of Gluon, on plain numbers."""

    class Language:
        minimum = staticmethod(min)
        static_range = range
        constexpr = int

        @staticmethod
        def where(chosen: bool, first: int, second: int) -> int:
            return first if chosen else second

    return Language


def origin_of(module: Path) -> tuple[str, dict[str, Any]]:
    """The text of a module's functions that place a tile, and them."""
    tree = ast.parse(module.read_text())
    functions = [
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in ("hilbert", "tile_origin")
    ]
    constants = ("PROGRAM_TILE_M", "PROGRAM_TILE_N", "GROUP_TILES_M", "GROUP_TILES_N", "SQUARE_")
    assigned = [
        n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]).startswith(constants)
    ]
    for function in functions:
        function.decorator_list = []
    text = "\n".join(map(ast.unparse, (*assigned, *functions)))
    text = text.replace("gl.constexpr(", "int(")
    names: dict[str, Any] = {"gl": fake_language(), "Tile": pair}
    exec(text, names)
    return text, names


def test_tiles_are_placed_as_the_modules_place_them() -> None:
    seen: set[str] = set()
    for spec in SPECS:
        plan = made(spec).plan
        if plan.schedule_kind == "single_tile":
            continue
        text, names = origin_of(module_file(spec.stem))
        if text in seen:
            continue
        seen.add(text)
        for tiles_m, tiles_n in GRIDS:
            args = type("Args", (), {"tiles_m": tiles_m, "tiles_n": tiles_n})
            for tile in range(tiles_m * tiles_n):
                row, column = names["tile_origin"](args, tile)
                expected = row // plan.program_tile_m, column // plan.program_tile_n
                assert place(plan, tile, tiles_m, tiles_n) == expected, spec
    assert len(seen) > 20


# --- addresses


@pytest.mark.parametrize("stem", ["h100_bf16_residual", "b200_nvfp4"])
def test_buffers_and_barriers_are_where_the_compiler_places_them(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In shared memory by bytes, in tensor memory by columns; as the simulator reads them of the TTGIR."""
    found: dict[str, int] = {}
    add = places.Layout.add

    def noted(self: places.Layout, operation: Operation, index: Any) -> None:
        of = operation.attributes
        name = operation.location.name or ""
        found[name] = of.get("tensor_memory_col_offset", of.get("allocation.offset"))
        add(self, operation, index)

    monkeypatch.setattr(places.Layout, "add", noted)
    product = made(spec_file(stem))
    shape = product.plan.request.check_shapes[0]
    simulate_product(product, [Launch(shape, programs=1, inputs="integers", schedules=("lazy",))])
    planned = {allocation.name: begin for allocation, begin in product.plan.shared_memory.placed}
    for inside in ("captures", "worker state"):  # of which no operation has the address
        del planned[inside]
    assert found == {**planned, **layouts.first_columns(product.plan)}


# --- the offsets of descriptors


def test_offsets_are_those_of_a_descriptor() -> None:
    """Eight rows of 128 bytes; and from 64 columns of bf16 to the next, 64 rows of 128 bytes."""
    along_k = tile_of("bf16", 256, 64, 128, along_k=True)
    assert along_k.stride_bytes == 8 * 128 == along_k.byte(8, 0)
    across = tile_of("bf16", 64, 128, 128, along_k=False)
    assert (across.stride_bytes, across.leading_bytes) == (1024, 8192)
    assert (across.byte(8, 0), across.byte(0, 64)) == (1024, 8192)


@pytest.mark.parametrize("stem", ["h100_bf16_swizzle", "h100_bf16_nn"])
def test_offsets_are_those_of_the_descriptors_in_ptx(stem: str) -> None:
    """[ptx] In units of 16 bytes, the leading offset from bit 16 on, the stride offset from bit 32 on."""
    product = made(spec_file(stem))
    ptx = lower(product.module, product.plan, path=stem, stem=stem).artifacts["ptx"].decode()
    high = {int(found) for found in re.findall(r"or\.b64 \t%\w+, %\w+, (-?\d{16,});", ptx)}
    low = {int(found) for found in re.findall(r"or\.b32 \t%\w+, %\w+, (\d{6,});", ptx)}
    tiles = [tile for tile in layouts.shared_tiles(product.plan) if tile.tensor in ("A", "B")]
    assert {(word >> 32 & 0x3FFF) * 16 for word in high} == {tile.stride_bytes for tile in tiles}
    if stem == "h100_bf16_nn":
        (across,) = (tile for tile in tiles if tile.row == "k")
        assert across.leading_bytes in {(word >> 16 & 0x3FFF) * 16 for word in low}


def test_the_formula_that_a_drawing_prints_gives_every_byte() -> None:
    from gemmgen.pictures.matrices import formula

    for dtype, swizzle, along_k in product(("bf16", "e4m3", "tf32", "e2m1"), (128, 64, 32, 0), (True, False)):
        columns = (swizzle or 64) * 8 // DTYPES[dtype].bits
        for spans in (1, 2):
            if dtype == "e2m1" and not along_k:
                continue
            tile = tile_of(dtype, 32, columns * spans, swizzle, along_k=along_k)
            code = compile(formula(tile).removeprefix("byte = "), "formula", "eval")
            for row, column in product(range(tile.rows), range(tile.columns)):
                assert eval(code, {tile.row: row, tile.column: column}) == tile.byte(row, column), tile


def names_of(found: tuple[Drawing, ...]) -> list[str]:
    return [drawing.name for drawing in found]


def test_every_committed_kernel_is_drawn() -> None:
    for spec in SPECS:
        plan = made(spec).plan
        names = names_of(drawings(plan))
        assert len(set(names)) == len(names)
        assert names[:2] == ["shared_memory", "registers"]
        assert "ring" in names
        assert ("tensor_memory" in names) == (plan.architecture.mma == "tcgen05")
