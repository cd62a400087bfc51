"""The pictures of a plan: what they show is the plan's and the compiler's, and a browser shows all text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import seen
from modules import ROOT, SPECS, made, module_file, spec_file
from typer.testing import CliRunner

from gemmgen import pictures
from gemmgen.cli import app
from gemmgen.errors import GemmgenError
from gemmgen.product import make
from gemmgen.verify.launches import Launch
from gemmgen.verify.simulation import simulate_product
from gluonsim import places
from gluonsim.ir.parse import Operation
from tools.quotations.drawings import drawn

pytestmark = pytest.mark.quick

READ = """
found.width = innerWidth;
found.page = document.documentElement.scrollWidth;
found.outside = [];
found.overlapping = [];
found.wide = [];
found.covered = [];
found.texts = 0;
const boxes = (svg, chosen) => [...svg.querySelectorAll(chosen)].map((e) => [e, e.getBoundingClientRect()]);
const shared = (a, b) => [
  Math.min(a.right, b.right) - Math.max(a.left, b.left),
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top),
];
for (const svg of document.querySelectorAll("svg")) {
  const all = svg.getBoundingClientRect();
  const scale = all.width / 960;
  const texts = boxes(svg, "text").filter(([, box]) => box.width > 0);
  const cells = boxes(svg, "path[class]").filter(([e]) => e.getAttribute("d").endsWith("z")
    && e.getAttribute("d").lastIndexOf("M") === 0 && !/panel|first/.test(e.getAttribute("class")));
  found.texts += texts.length;
  texts.forEach(([text, box], i) => {
    if (box.left < all.left + 8 * scale || box.right > all.right - 16 * scale || box.bottom > all.bottom
        || box.top < all.top) {
      found.outside.push(text.textContent);
    }
    for (const [other, its] of texts.slice(i + 1)) {
      const [width, height] = shared(box, its);
      const apart = width <= scale || height <= 2.5 * scale;
      if (!apart) found.overlapping.push([text.textContent, other.textContent]);
    }
    const inside = text.classList.contains("n");
    for (const [cell, its] of cells) {
      const [width, height] = shared(box, its);
      const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
      const on = its.left < x && x < its.right && its.top < y && y < its.bottom;
      if (inside && on && (box.left < its.left || box.right > its.right)) found.wide.push(text.textContent);
      if (!inside && width > scale && height > 2.5 * scale) found.covered.push(text.textContent);
    }
  });
}
"""
"""Looks for texts beyond their picture, on one another, wider than their cell, or under one."""
PICTURED = (
    "h100_bf16",
    "h100_bf16_nn",
    "h100_int8_a_registers",
    "h100_bf16_128x320",
    "h100_bf16_hilbert",
    "b200_nvfp4",
    "b200_bf16_n64",
)
"""Of both families: ping-pong or not, A in registers, parts, scales of 16."""
DRAWN = sorted((ROOT / "docs").glob("plan_*.svg"))
"""The pictures of docs/pictures.md."""
MOST_BYTES = 150_000


def page_of(texts: Sequence[str]) -> str:
    return f"<!doctype html><html><head></head><body>{''.join(texts)}</body></html>"


@pytest.mark.nightly
def test_in_a_browser_all_text_can_be_read(tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DRAWN]
    texts += [pictures.svg(made(spec_file(stem))) for stem in PICTURED]
    (found,) = seen([page_of(texts)], READ, tmp_path, 1280)
    for fault in ("errors", "outside", "overlapping", "wide", "covered"):
        assert found[fault] == [], fault
    assert found["texts"] > 900


@pytest.mark.nightly
def test_what_cannot_be_read_is_found(tmp_path: Path) -> None:
    """A text beyond the picture, one on another, one wider than its cell, and one under a cell."""
    page = page_of([pictures.svg(made(spec_file("h100_bf16")))])
    planted = (
        '<text class="note" x="900" y="100">far beyond the right edge</text>'
        '<text class="note" x="100" y="30">one</text><text class="note" x="104" y="32">other</text>'
        '<path class="c1" d="M300 40h20v19h-20z"/><text class="n" x="310" y="53">wide text</text>'
        '<path class="c2" d="M500 40h90v19h-90z"/><text class="note" x="510" y="53">covered</text>'
    )
    wrong = page.replace('<rect class="panel"', f'{planted}<rect class="panel"', 2)
    assert wrong != page
    (found,) = seen([wrong], READ, tmp_path, 1280)
    assert "far beyond the right edge" in found["outside"]
    assert ["one", "other"] in found["overlapping"]
    assert "wide text" in found["wide"]
    assert "covered" in found["covered"]


# --- what is drawn


class Cell:
    """A cell of an SVG, with what it says and the text in it."""

    def __init__(self, path: Any, texts: dict[tuple[float, float], str]) -> None:
        x, y, width, height = map(float, re.findall(r"-?[\d.]+", path.attrib["d"])[:4])
        self.x, self.y, self.width, self.height = x, y, width, height
        self.kind = path.attrib["class"]
        self.pieces = path.attrib["d"].count("M")
        self.told = path[0].text if len(path) else ""
        inside = (text for (a, b), text in texts.items() if x < a < x + width and y < b < y + height)
        self.text = next(inside, "")


def cells_of(drawing: pictures.Drawing, kinds: str = r"c\d") -> list[Cell]:
    root = ElementTree.fromstring(f"<svg>{''.join(drawing.lines)}</svg>")
    texts = {
        (float(text.attrib["x"]), float(text.attrib["y"])): text.text or ""
        for text in root.iter("text")
        if text.attrib["class"] == "n"
    }
    found = (path for path in root.iter("path") if re.fullmatch(kinds, path.attrib["class"]))
    return [Cell(path, texts) for path in found]


def drawing_of(stem: str, name: str) -> pictures.Drawing:
    return next(each for each in pictures.drawings(made(spec_file(stem)).plan) if each.name == name)


def test_buffers_are_drawn_to_scale_at_their_addresses() -> None:
    plan = made(spec_file("h100_bf16")).plan
    cells = cells_of(drawing_of("h100_bf16", "shared_memory"))
    for buffer, begin in plan.shared_memory.placed:
        (own,) = (each for each in cells if each.told.startswith(f"{buffer.name}: bytes {begin:,} to "))
        slots = {"b_smem": 4, "a_smem_0": 4, "a_smem_1": 4, "load_ready": 4, "load_empty": 4}
        assert own.pieces == slots.get(buffer.name, 1)
    per_byte = 520 / plan.smem_limit_bytes
    (d,) = (each for each in cells if each.told.startswith("d_smem_0:"))
    left = min(each.x for each in cells)
    assert d.x - left == pytest.approx(196_608 * per_byte, abs=0.1)
    assert d.width == pytest.approx(16_384 * per_byte, abs=0.1)


@pytest.mark.check
@pytest.mark.parametrize("stem", ["h100_bf16_residual", "b200_nvfp4"])
def test_buffers_and_barriers_are_where_the_compiler_places_them(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes of shared memory, as the simulator reads them of the TTGIR."""
    found: dict[str, int] = {}
    add = places.Layout.add

    def noted(self: places.Layout, operation: Operation, index: Any) -> None:
        of = operation.attributes
        name = operation.location.name or ""
        if "allocation.offset" in of:
            found[name] = of["allocation.offset"]
        add(self, operation, index)

    monkeypatch.setattr(places.Layout, "add", noted)
    product = made(spec_file(stem))
    shape = product.plan.request.check_shapes[0]
    simulate_product(product, [Launch(shape, programs=1, inputs="integers", schedules=("lazy",))])
    planned = {allocation.name: begin for allocation, begin in product.plan.shared_memory.placed}
    for inside in ("captures", "worker state"):  # of which no operation has the address
        del planned[inside]
    assert found == planned


@pytest.mark.parametrize(
    "stem", ["h100_bf16", "h100_bf16_nn", "h100_bf16_pipelined", "b200_bf16", "b200_mxfp8"]
)
def test_the_time_line_of_the_ring_keeps_the_handshakes(stem: str) -> None:
    """No slot is filled before it is free, nothing is multiplied before it is there, one step at a time."""
    plan = made(spec_file(stem)).plan
    found = pictures.pipeline(plan)
    for number, stage in enumerate(found.stages):
        assert stage.slot == number % plan.stages
        assert stage.requested < stage.arrived <= stage.multiplied < stage.done == stage.freed
        if number >= plan.stages:
            assert stage.requested >= found.stages[number - plan.stages].freed
        if number:
            assert stage.multiplied >= found.stages[number - 1].done
    ends = {tile: end for tile, _, _, end in found.stores}
    for stage in found.stages:
        if stage.step == 0 and stage.tile >= found.storers:
            assert stage.multiplied >= ends[stage.tile - found.storers]


def test_reuse_counts_what_a_wave_reads() -> None:
    plan = made(spec_file("h100_bf16")).plan
    # Two tiles of a column share B: 128 rows of A twice, 256 columns of B once, 2 bytes each.
    found = pictures.reuse(plan, (256, 256, 64), [(0, 0), (1, 0)])
    assert (found.rows, found.columns) == (2, 1)
    assert found.bytes == (2 * 128 + 256) * 64 * 2
    assert found.asked == 2 * (128 + 256) * 64 * 2


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
            # Of a D that the tiles fill, the last one begins where its number says.
            last_row = (tiles_m - 1) * plan.program_tile_m
            args = type("Args", (), {"tiles_m": tiles_m, "tiles_n": tiles_n, "last_row": last_row})
            for tile in range(tiles_m * tiles_n):
                row, column = names["tile_origin"](args, tile)
                expected = row // plan.program_tile_m, column // plan.program_tile_n
                assert pictures.place(plan, tile, tiles_m, tiles_n) == expected, spec
    assert len(seen) > 20


def test_the_registers_of_a_thread_are_those_of_the_ledger() -> None:
    """A thread of the ledger's consumer, by its contents: sums, partial sums, scales and A."""
    plan = made(spec_file("h100_e4m3_blockwise_rows16")).plan
    told = [each.told for each in cells_of(drawing_of("h100_e4m3_blockwise_rows16", "registers"))]
    names = [entry.name for entry in plan.register_entries]
    assert names == ["accumulator", "partial sums", "scales"]
    for entry in plan.register_entries:
        assert f"{entry.name}: {entry.amount} registers, {entry.derivation}" in told


def test_a_kernel_with_its_sums_in_tensor_memory_has_no_registers_by_contents() -> None:
    told = [each.told for each in cells_of(drawing_of("b200_bf16", "registers"))]
    assert told
    assert not any("all else" in text or "addresses" in text for text in told)


def test_every_committed_kernel_is_drawn() -> None:
    for spec in SPECS:
        plan = made(spec).plan
        names = [drawing.name for drawing in pictures.drawings(plan)]
        ordered = ["tile_order"] * (plan.schedule_kind != "single_tile")
        assert names == ["shared_memory", "registers", "ring", *ordered]


# --- the ones in docs/, and the commands


def test_the_pictures_in_docs_are_what_the_plans_draw() -> None:
    """`make docs` draws them anew."""
    texts = drawn()
    assert sorted(texts) == sorted(DRAWN)
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    for path, text in texts.items():
        assert path.read_text(encoding="utf-8") == text
        assert f"]({path.name})" in page
        assert len(text) < MOST_BYTES


def test_a_picture_of_any_kernel_is_of_modest_size_and_the_same_each_time() -> None:
    for stem in ("h100_bf16_early_128x160", "h100_int8_a_registers", "b200_nvfp4"):
        text = pictures.svg(made(spec_file(stem)))
        assert len(text.encode()) < MOST_BYTES
        assert text == pictures.svg(made(spec_file(stem)))
        assert "prefers-color-scheme: dark" in text
        ElementTree.fromstring(text)


def test_a_drawing_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(GemmgenError) as error:
        pictures.svg(made(spec_file("h100_bf16_single_tile")), ["tile_order"])
    assert str(error.value).endswith(
        "error[no-drawing]: there is no drawing `tile_order`; there are shared_memory, registers, ring"
    )


def test_a_title_ends_no_tag(tmp_path: Path) -> None:
    title = "</title><b>&amp;"
    spec = tmp_path / "odd.yaml"
    operands = "".join(f"  {name}: {{dtype: bf16}}\n" for name in "abd")
    spec.write_text(f"title: '{title}'\ntarget: h100\noperands:\n{operands}")
    picture = pictures.svg(make(spec))
    assert "<b>" not in picture
    assert title in "".join(ElementTree.fromstring(picture).itertext())


def test_plan_writes_a_picture(tmp_path: Path) -> None:
    svg = tmp_path / "p.svg"
    spec = spec_file("b200_nvfp4")
    found = CliRunner().invoke(app, ["plan", str(spec), "--svg", str(svg)])
    assert found.exit_code == 0
    assert "shared memory per CTA" in found.stdout
    assert svg.read_text(encoding="utf-8") == pictures.svg(make(spec))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{spec}", "{spec}", "--svg", "p.svg"], "a picture shows one spec"),
        (["{spec}", "--svg", "."], ". is a directory"),
    ],
)
def test_pictures_that_have_no_place_are_wrong_usage(arguments: list[str], message: str) -> None:
    spec = str(spec_file("h100_bf16"))
    found = CliRunner().invoke(app, ["plan", *(each.format(spec=spec) for each in arguments)])
    assert found.exit_code == 2
    assert message in found.output


def test_a_refused_spec_has_no_picture(tmp_path: Path) -> None:
    spec, svg = tmp_path / "bad.yaml", tmp_path / "p.svg"
    spec.write_text("title: x\n")
    found = CliRunner().invoke(app, ["plan", str(spec), "--svg", str(svg)])
    assert found.exit_code == 1
    assert not svg.exists()


@pytest.mark.check
def test_neither_torch_nor_triton_is_needed(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None\n"
        "from gemmgen import api, pictures\n"
        f"text = pictures.svg(api.plan({str(spec_file('b200_nvfp4'))!r}))\n"
        f"open({str(tmp_path / 'p.svg')!r}, 'w', encoding='utf-8').write(text)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    ElementTree.parse(tmp_path / "p.svg")


def test_the_largest_problem_is_drawn_at_once(tmp_path: Path) -> None:
    spec = tmp_path / "large.yaml"
    text = spec_file("h100_bf16_hilbert").read_text(encoding="utf-8")
    spec.write_text(re.sub(r"bench: .*", "bench: {shapes: [[1048576, 1048576, 4096]]}", text))
    (drawing,) = (each for each in pictures.drawings(make(spec).plan) if each.name == "tile_order")
    texts = "".join(drawing.lines)
    assert "508,401" in texts  # 8192 x 8192 tiles, 132 at a time
    assert "Over all waves" not in texts
