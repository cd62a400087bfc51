"""Text and panels of SVG pictures that stand alone, for light and dark pages.

The picture of a simulated pipeline and the pictures of a plan share them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gemmgen.literals import markup

WIDTH = 960
MARGIN = 16
LEFT = MARGIN + 10
HEADER_HEIGHT = 24
"""Pixels of a panel's name."""
GAP = 10
"""Pixels between panels."""
TITLE_HEIGHT = 44
NOTE_HEIGHT = 16
LETTER_WIDTH = 0.62
"""Width of a letter over the font's size, at most: exact for monospaced fonts, a mean for others."""

STYLE = """
  text { font-family: 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 }
  .role { font-size: 13px; font-weight: 600 }
  .lane, .slot, .inside { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
  .lane, .slot, .note { font-size: 11px; font-weight: 400; fill: #59636e }
  .slot { font-size: 10px }
  .inside { font-size: 10px }
  .panel { fill: #8c959f; fill-opacity: 0.08 }
  .load { fill: #cfe0f7; stroke: #5b8fd9 }
  .mma { fill: #f9dcb8; stroke: #d0852c }
  .store { fill: #cdebd3; stroke: #4d9f60 }
  .wait { fill: #8c959f; fill-opacity: 0.16; stroke: #8c959f; stroke-opacity: 0.45 }
  .phase { stroke: #8250df; stroke-width: 2 }
  .cut { stroke: #8c959f; stroke-dasharray: 3 3; fill: none }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 }
    text { fill: #f0f6fc }
    .lane, .slot, .note { fill: #9198a1 }
    .load { fill: #1c3a63; stroke: #5b8fd9 }
    .mma { fill: #5c3a12; stroke: #d0852c }
    .store { fill: #1d4427; stroke: #4d9f60 }
    .phase { stroke: #ab7df8 }
  }
"""


def svg(title: str, spoken: str, height: float, lines: Iterable[str], style: str = "") -> str:
    """Return a picture with its title; its lines begin below it, at ``MARGIN + TITLE_HEIGHT``.

    Args:
        title: The title as it is shown.
        spoken: Description of the picture for screen readers.
        height: Height of the picture, in pixels.
        lines: SVG elements.
        style: Additional rules of its style sheet.
    """
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">',
        f"<title>{markup(spoken)}</title>",
        f"<style>{STYLE}{style}</style>",
        text_at("title", MARGIN, MARGIN + 18, fitting(title, WIDTH - 2 * MARGIN, 16)),
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def panel(top: float, height: float, name: str, remark: str) -> Iterator[str]:
    """Yield the ground of a panel, and its name with a remark behind it."""
    size = f'width="{WIDTH - 2 * MARGIN}" height="{height:g}" rx="6"'
    yield f'<rect class="panel" x="{MARGIN}" y="{top:g}" {size}/>'
    # One text, so that the remark follows the name in any font.
    behind = f'<tspan class="note" dx="10">{markup(remark)}</tspan>' if remark else ""
    shown = markup(fitting(name, WIDTH / 2, 13))
    yield f'<text class="role" x="{MARGIN + 10:.1f}" y="{top + 16:.1f}">{shown}{behind}</text>'


def fitting(text: str, width: float, size: float) -> str:
    """Return a text that is no wider, its end left out if need be."""
    most = int(width / (size * LETTER_WIDTH))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_at(kind: str, x: float, y: float, text: str) -> str:
    """Return a text of a class, which begins at x on the base line y."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{markup(text)}</text>'


# --- pictures of several panels


@dataclass(frozen=True)
class Drawing:
    """A panel that is drawn from its own top, so that it can stand under others."""

    name: str
    """Its name among the drawings of a kernel."""
    title: str
    remark: str
    lines: tuple[str, ...]
    height: float
    """Height of the panel in pixels, with its header."""


def stacked(title: str, spoken: str, drawings: Sequence[Drawing]) -> str:
    """Return drawings one under the other as a picture: same drawings, same bytes."""
    lines: list[str] = []
    top = float(MARGIN + TITLE_HEIGHT)
    for drawing in drawings:
        lines += [f'<g transform="translate(0 {top:g})">', *framed(drawing), "</g>"]
        top += drawing.height + GAP
    return svg(title, spoken, top - GAP + MARGIN, lines, MATRIX_STYLE)


def framed(drawing: Drawing) -> Iterator[str]:
    """Yield a drawing with its panel."""
    yield from panel(0, drawing.height, drawing.title, drawing.remark)
    yield from drawing.lines


def cell(kind: str, x: float, y: float, width: float, height: float, tooltip: str = "") -> str:
    """Return a box of a class; it says the tooltip when it is pointed at."""
    place = f'd="M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"'
    told = f"<title>{markup(tooltip)}</title></path>" if tooltip else "</path>"
    return f'<path class="{kind}" {place}>{told}'


def middle(kind: str, x: float, y: float, text: str) -> str:
    """Return a text of a class whose middle is at x; the many inside of cells have the short class n."""
    if kind == "inside":
        return f'<text class="n" x="{x:g}" y="{y:g}">{markup(text)}</text>'
    return f'<text class="{kind} m" x="{x:g}" y="{y:g}">{markup(text)}</text>'


def ending(kind: str, x: float, y: float, text: str) -> str:
    """Return a text of a class that ends at x."""
    return f'<text class="{kind} e" x="{x:g}" y="{y:g}">{markup(text)}</text>'


def width_of(text: str, size: float) -> float:
    """Return the most that a text takes."""
    return len(text) * size * LETTER_WIDTH


HUES = 8
"""Colours that tell neighbours apart: the classes c0 to c7."""
_LIGHT = ("#cfe0f7", "#f9dcb8", "#cdebd3", "#f6cfd4", "#e2d6f5", "#f4ecae", "#c8ebee", "#e9d8c6")
_DARK = ("#1c3a63", "#5c3a12", "#1d4427", "#5d2530", "#3f3063", "#4d4614", "#164a50", "#4f3c2b")
MATRIX_STYLE = "\n".join(
    [
        "  .m, .n { text-anchor: middle }",
        "  .e { text-anchor: end }",
        "  .axis, .n { font-size: 10px }",
        "  .axis { fill: #59636e }",
        "  .axis, .n { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace }",
        "  .path { stroke: #8250df; fill: none; stroke-width: 1.5 }",
        "  .first { stroke: #8250df; stroke-width: 2.5; fill: none }",
        *(f"  .c{hue} {{ fill: {colour}; stroke: #8c959f }}" for hue, colour in enumerate(_LIGHT)),
        "  @media (prefers-color-scheme: dark) {",
        "    .axis { fill: #9198a1 }",
        "    .path, .first { stroke: #ab7df8 }",
        *(f"    .c{hue} {{ fill: {colour} }}" for hue, colour in enumerate(_DARK)),
        "  }\n",
    ]
)


def notes(top: float, texts: Sequence[str]) -> tuple[list[str], float]:
    """Return lines of text, wrapped to the width of a panel, and the height that they take."""
    most = int((WIDTH - 2 * LEFT) / (11 * LETTER_WIDTH))
    wrapped = [line for text in texts for line in textwrap.wrap(text, most)]
    lines = [
        text_at("note", LEFT, top + NOTE_HEIGHT * (number + 1) - 3, text)
        for number, text in enumerate(wrapped)
    ]
    return lines, NOTE_HEIGHT * len(wrapped) + 6
