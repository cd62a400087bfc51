"""The pictures of a plan: what they show is the plan's, and in a browser all of it can be read."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import seen
from modules import ROOT, made, spec_file
from typer.testing import CliRunner

from gemmgen import pictures
from gemmgen.cli import app
from gemmgen.errors import GemmgenError
from gemmgen.pictures import layouts
from gemmgen.product import make
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
    && e.getAttribute("d").lastIndexOf("M") === 0 && !/panel|rule|free|first/.test(e.getAttribute("class")));
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
LOOK_UP = """
found.ink = getComputedStyle(document.querySelector("svg text")).fill;
found.paper = getComputedStyle(document.body).backgroundColor;
found.looked = {};
const at = (id) => document.getElementById(id);
const names = [...at("tile").options].map((option) => option.textContent);
for (const [number, name] of names.entries()) {
  const seen = found.looked[name] = [];
  for (const [row, column] of [[0, 0], [1, 8], [7, 15], [3, 1], [9, 6], [999, 0]]) {
    at("tile").value = number;
    [at("row").value, at("column").value] = [row, column];
    at("row").dispatchEvent(new Event("input"));
    seen.push([row, column, at("place").textContent]);
  }
}
"""
"""Looks elements up."""
PICTURED = (
    "h100_bf16",
    "h100_bf16_nn",
    "h100_int8_a_registers",
    "h100_bf16_128x320",
    "b200_nvfp4",
    "b200_bf16",
)
"""Of both families: operands along K and across, A in registers, parts, tensor memory, scales of 16."""


DRAWN = sorted((ROOT / "docs").glob("plan_*.svg")) + sorted((ROOT / "docs").glob("layout_*.svg"))
"""The pictures of docs/layouts.md."""
MOST_BYTES = 150_000


def pages(*stems: str) -> list[str]:
    return [pictures.page(made(spec_file(stem))) for stem in stems]


def looked_up(stem: str, row: int, column: int) -> Iterator[tuple[str, str]]:
    """What a page has to say of an element, tile by tile, by the functions that the compiler confirms."""
    plan = made(spec_file(stem)).plan
    for tile in layouts.shared_tiles(plan):
        name = f"{tile.name} ({tile.tensor})"
        if row >= tile.rows or column >= tile.columns:
            yield name, f"{tile.row} is 0 to {tile.rows - 1}, {tile.column} is 0 to {tile.columns - 1}"
            continue
        byte = tile.byte(row, column)
        half = "" if tile.bits >= 8 else f", {'high' if column % 2 else 'low'} half"
        slot = f"{tile.address} + slot * {tile.bytes}" if tile.slots > 1 else f"{tile.address}"
        line = f"line {byte // 128} of 128 bytes, banks from {byte % 128 // 4}"
        yield name, f"byte {byte} of a slot{half}: {line}; slot at {slot}"
    fragments = layouts.accumulators(plan)
    if tile := layouts.operand_in_registers(plan):
        fragments = (tile, *fragments)
    for tile in fragments:
        if row < tile.rows and column < tile.columns:
            who = tile.place(row, column)
            text = f"warp {who.warp}, thread {who.lane}, element {who.element}"
            yield f"{tile.name}, in registers", text
    if (tile := layouts.tensor_tile(plan)) and row < tile.rows and column < tile.columns:
        where = f"{tile.first_column + column}"
        where += f" + slot * {tile.columns}" if tile.slots > 1 else ""
        yield f"{tile.name}, in tensor memory", f"lane {tile.lane(row)}, column {where}"
    for tile in layouts.scale_tiles(plan):
        if row < tile.rows and column < tile.columns:
            lane, byte = tile.lane(row), tile.byte(row, column)
            lanes = f"lanes {lane}, {lane + 32}, {lane + 64} and {lane + 96}"
            yield (
                f"{tile.name}, in tensor memory",
                f"{lanes}, column {tile.first_column + byte // 4}, byte {byte % 4}",
            )


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_in_a_browser_all_text_can_be_read_and_elements_are_looked_up(
    width: int, dark: bool, tmp_path: Path
) -> None:
    stems = PICTURED if not dark else PICTURED[:1]
    for stem, found in zip(
        stems, seen(pages(*stems), READ + LOOK_UP, tmp_path, width, dark=dark), strict=True
    ):
        assert found["errors"] == [], stem
        assert (found["width"], found["page"]) == (width, width), stem
        for fault in ("outside", "overlapping", "wide", "covered"):
            assert found[fault] == [], (stem, fault)
        assert found["texts"] > 300
        assert found["paper"] == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
        assert found["ink"] == ("rgb(240, 246, 252)" if dark else "rgb(31, 35, 40)")
        told = {(name, r, c): text for name, each in found["looked"].items() for r, c, text in each}
        checked = 0
        for row, column in {(r, c) for _, r, c in told}:
            for name, text in looked_up(stem, row, column):
                assert told[name, row, column] == text, stem
                checked += 1
        assert checked >= 4 * len(found["looked"])


@pytest.mark.check
def test_in_a_browser_the_pictures_in_docs_can_be_read(tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DRAWN]
    whole = [pictures.svg(made(spec_file(stem))) for stem in ("h100_bf16_hilbert", "b200_bf16_n64")]
    page = f"<!doctype html><html><head></head><body>{''.join(texts + whole)}</body></html>"
    (found,) = seen([page], READ, tmp_path, 1280)
    for fault in ("errors", "outside", "overlapping", "wide", "covered"):
        assert found[fault] == [], fault
    assert found["texts"] > 1000


@pytest.mark.check
def test_what_cannot_be_read_is_found(tmp_path: Path) -> None:
    """A text beyond the picture, one on another, one wider than its cell, and one under a cell."""
    (page,) = pages("h100_bf16")
    planted = (
        '<text class="note" x="900" y="100">far beyond the right edge</text>'
        '<text class="note" x="100" y="30">one</text><text class="note" x="104" y="32">other</text>'
        '<path class="c1" d="M300 40h20v19h-20z"/><text class="n" x="310" y="53">wide text</text>'
        '<path class="c2" d="M500 40h90v19h-90z"/><text class="note" x="510" y="53">covered</text>'
    )
    wrong = page.replace("</title>\n<rect", f"</title>{planted}\n<rect", 2)
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


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("h100_bf16", "a_smem_0"),
        ("h100_bf16_nn", "b_smem"),
        ("h100_bf16_swizzle", "a_smem"),
        ("h100_bf16_swizzle", "b_smem"),
        ("h100_tf32", "b_smem"),
        ("b200_mxfp8_mxfp4", "b_smem"),
    ],
)
def test_units_are_drawn_at_their_bytes(stem: str, name: str) -> None:
    """On the left by row and column with the byte, on the right by byte with row and column."""
    tile = next(each for each in layouts.shared_tiles(made(spec_file(stem)).plan) if each.name == name)
    cells = [each for each in cells_of(drawing_of(stem, name)) if "bytes" in each.told]
    left, right = cells[: len(cells) // 2], cells[len(cells) // 2 :]
    units = min(tile.span_bytes, 128) // 16
    assert len(left) == len(right) == units * 8
    x, y = left[0].x, left[0].y
    for each in left:
        row, unit = round((each.y - y) / each.height), round((each.x - x) / each.width)
        byte = tile.byte(row, unit * tile.elements_per_unit)
        assert each.text == str(byte)
        last = (unit + 1) * tile.elements_per_unit - 1
        assert each.told == (
            f"{tile.tensor} {tile.row} {row}, {tile.column} {unit * tile.elements_per_unit} to {last}: "
            f"bytes {byte} to {byte + 15}"
        )
    x, y = min(each.x for each in right), min(each.y for each in right)
    colours = {each.told: each.kind for each in left}
    for each in right:
        row, column = map(int, each.text.split(", "))
        at = round((each.y - y) / each.height) * 128 + round((each.x - x) / each.width) * 16
        assert tile.byte(row, column) == at
        assert colours[each.told] == each.kind


@pytest.mark.parametrize("stem", ["h100_bf16", "h100_bf16_nn", "h100_bf16_rows8", "h100_int8_a_registers"])
def test_sums_are_drawn_in_their_threads(stem: str) -> None:
    (tile,) = layouts.accumulators(made(spec_file(stem)).plan)
    cells = [each for each in cells_of(drawing_of(stem, "accumulator")) if "thread" in each.told]
    assert len(cells) in (16 * 4, 16 * 8, 16 * 12)
    for each in cells:
        found = re.match(rf"{tile.row} (\d+), {tile.column} (\d+)-(\d+): warp 0, thread (\d+), d", each.told)
        assert found
        row, column, last, _ = map(int, found.groups())
        who = tile.place(row, column)
        assert (last, who.warp) == (column + 1, 0)
        assert each.text == f"T{who.lane} d{who.element}"


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


# --- the ones in docs/, and the commands


def test_the_pictures_in_docs_are_what_the_plans_draw() -> None:
    """`make docs` draws them anew."""
    texts = drawn()
    assert sorted(texts) == sorted(DRAWN)
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
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
        "error[no-drawing]: there is no drawing `tile_order`; there are shared_memory, registers, ring, "
        "a_smem, b_smem, accumulator"
    )


def test_a_title_ends_no_script_and_no_tag(tmp_path: Path) -> None:
    title = "</script><b>&amp;"
    spec = tmp_path / "odd.yaml"
    operands = "".join(f"  {name}: {{dtype: bf16}}\n" for name in "abd")
    spec.write_text(f"title: '{title}'\ntarget: h100\noperands:\n{operands}")
    product = make(spec)
    page, picture = pictures.page(product), pictures.svg(product)
    assert "<b>" not in page.replace("<b>Where is an element?</b>", "")
    assert page.count("</script>") == 2
    assert title in "".join(ElementTree.fromstring(picture).itertext())


def test_plan_writes_a_picture_and_a_page(tmp_path: Path) -> None:
    svg, html = tmp_path / "p.svg", tmp_path / "p.html"
    spec = spec_file("b200_nvfp4")
    found = CliRunner().invoke(app, ["plan", str(spec), "--svg", str(svg), "--html", str(html)])
    assert found.exit_code == 0
    assert "shared memory per CTA" in found.stdout
    product = make(spec)
    assert svg.read_text(encoding="utf-8") == pictures.svg(product)
    assert html.read_text(encoding="utf-8") == pictures.page(product)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{spec}", "{spec}", "--svg", "p.svg"], "a picture shows one spec"),
        (["{spec}", "--html", "."], ". is a directory"),
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
        f"text = pictures.page(api.plan({str(spec_file('b200_nvfp4'))!r}))\n"
        f"open({str(tmp_path / 'p.html')!r}, 'w', encoding='utf-8').write(text)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert (tmp_path / "p.html").stat().st_size > 50_000


def test_the_largest_problem_is_drawn_at_once(tmp_path: Path) -> None:
    spec = tmp_path / "large.yaml"
    text = spec_file("h100_bf16_hilbert").read_text(encoding="utf-8")
    spec.write_text(re.sub(r"bench: .*", "bench: {shapes: [[1048576, 1048576, 4096]]}", text))
    (drawing,) = (each for each in pictures.drawings(make(spec).plan) if each.name == "tile_order")
    texts = "".join(drawing.lines)
    assert "508,401" in texts  # 8192 x 8192 tiles, 132 at a time
    assert "Over all waves" not in texts
