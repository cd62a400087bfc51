"""The pictures of a plan: what they show is the plan's, and in a browser all of it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import seen
from modules import made, spec_file

from gemmgen import pictures
from gemmgen.pictures import layouts

LOOK = """
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
      const on = width > box.width / 2 && height > box.height / 2;
      if (inside && on && (box.left < its.left || box.right > its.right)) found.wide.push(text.textContent);
      if (!inside && width > scale && height > 2.5 * scale) found.covered.push(text.textContent);
    }
  });
}
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
"""Looks for texts beyond their picture, on one another, wider than their cell, or under one; and looks up."""
PICTURED = (
    "h100_bf16",
    "h100_bf16_nn",
    "h100_int8_a_registers",
    "h100_bf16_128x320",
    "b200_nvfp4",
    "b200_bf16",
)
"""Of both families: operands along K and across, A in registers, parts, tensor memory, scales of 16."""


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


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_in_a_browser_all_text_can_be_read_and_elements_are_looked_up(
    width: int, dark: bool, tmp_path: Path
) -> None:
    stems = PICTURED if not dark else PICTURED[:1]
    for stem, found in zip(stems, seen(pages(*stems), LOOK, tmp_path, width, dark=dark), strict=True):
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
