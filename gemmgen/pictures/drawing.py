"""Text and panels of SVG pictures that stand alone, for light and dark pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
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

HUES = 8
"""Colours that tell neighbours apart: the classes c0 to c7."""
_LIGHT = ("#cfe0f7", "#f9dcb8", "#cdebd3", "#f6cfd4", "#e2d6f5", "#f4ecae", "#c8ebee", "#e9d8c6")
_DARK = ("#1c3a63", "#5c3a12", "#1d4427", "#5d2530", "#3f3063", "#4d4614", "#164a50", "#4f3c2b")


def _hues(colours: Sequence[str], rest: str = "") -> str:
    return "\n".join(f"  .c{hue} {{ fill: {colour}{rest} }}" for hue, colour in enumerate(colours))


STYLE = f"""
  text {{ font-family: 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328 }}
  .title {{ font-size: 16px; font-weight: 600 }}
  .role {{ font-size: 13px; font-weight: 600 }}
  .lane, .axis, .n {{ font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace }}
  .lane, .note {{ font-size: 11px; font-weight: 400; fill: #59636e }}
  .axis, .n {{ font-size: 10px }}
  .axis {{ fill: #59636e }}
  .n {{ text-anchor: middle }}
  .e {{ text-anchor: end }}
  .panel {{ fill: #8c959f; fill-opacity: 0.08 }}
  .load {{ fill: #cfe0f7; stroke: #5b8fd9 }}
  .mma {{ fill: #f9dcb8; stroke: #d0852c }}
  .store {{ fill: #cdebd3; stroke: #4d9f60 }}
  .wait {{ fill: #8c959f; fill-opacity: 0.16; stroke: #8c959f; stroke-opacity: 0.45 }}
  .phase {{ stroke: #8250df; stroke-width: 2 }}
  .path {{ stroke: #8250df; fill: none; stroke-width: 1.5 }}
  .first {{ stroke: #8250df; stroke-width: 2.5; fill: none }}
{_hues(_LIGHT, "; stroke: #8c959f")}
  @media (prefers-color-scheme: dark) {{
    svg {{ background: #0d1117 }}
    text {{ fill: #f0f6fc }}
    .lane, .note, .axis {{ fill: #9198a1 }}
    .load {{ fill: #1c3a63; stroke: #5b8fd9 }}
    .mma {{ fill: #5c3a12; stroke: #d0852c }}
    .store {{ fill: #1d4427; stroke: #4d9f60 }}
    .phase, .path, .first {{ stroke: #ab7df8 }}
{_hues(_DARK)}
  }}
"""


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
    """Return drawings one under the other as an SVG: same drawings, same bytes.

    Args:
        title: The title as it is shown.
        spoken: Description of the picture for screen readers.
        drawings: The drawings, from top to bottom.
    """
    lines: list[str] = []
    top = float(MARGIN + TITLE_HEIGHT)
    for drawing in drawings:
        lines += [f'<g transform="translate(0 {top:g})">', *_panel(drawing), *drawing.lines, "</g>"]
        top += drawing.height + GAP
    height = top - GAP + MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">',
        f"<title>{markup(spoken)}</title>",
        f"<style>{STYLE}</style>",
        text_at("title", MARGIN, MARGIN + 18, fitting(title, WIDTH - 2 * MARGIN, 16)),
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _panel(drawing: Drawing) -> Iterator[str]:
    """Yield the ground of a panel, and its title with a remark behind it."""
    size = f'width="{WIDTH - 2 * MARGIN}" height="{drawing.height:g}" rx="6"'
    yield f'<rect class="panel" x="{MARGIN}" y="0" {size}/>'
    # One text, so that the remark follows the title in any font.
    behind = f'<tspan class="note" dx="10">{markup(drawing.remark)}</tspan>' if drawing.remark else ""
    shown = markup(fitting(drawing.title, WIDTH / 2, 13))
    yield f'<text class="role" x="{MARGIN + 10:.1f}" y="16.0">{shown}{behind}</text>'


def fitting(text: str, width: float, size: float) -> str:
    """Return a text that is no wider, its end left out if need be."""
    most = int(width / (size * LETTER_WIDTH))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_at(kind: str, x: float, y: float, text: str) -> str:
    """Return a text of a class, which begins at x on the base line y."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{markup(text)}</text>'


def cell(kind: str, x: float, y: float, width: float, height: float, tooltip: str = "") -> str:
    """Return a box of a class; it says the tooltip when it is pointed at."""
    place = f'd="M{x:g} {y:g}h{width:g}v{height:g}h{-width:g}z"'
    told = f"<title>{markup(tooltip)}</title></path>" if tooltip else "</path>"
    return f'<path class="{kind}" {place}>{told}'


def inside(x: float, y: float, text: str) -> str:
    """Return a text whose middle is at x, for a cell: there are many, so that their class n is short."""
    return f'<text class="n" x="{x:g}" y="{y:g}">{markup(text)}</text>'


def ending(kind: str, x: float, y: float, text: str) -> str:
    """Return a text of a class that ends at x."""
    return f'<text class="{kind} e" x="{x:g}" y="{y:g}">{markup(text)}</text>'


def width_of(text: str, size: float) -> float:
    """Return the most that a text takes."""
    return len(text) * size * LETTER_WIDTH


def notes(top: float, texts: Sequence[str]) -> tuple[list[str], float]:
    """Return lines of text, wrapped to the width of a panel, and the height that they take."""
    most = int((WIDTH - 2 * LEFT) / (11 * LETTER_WIDTH))
    wrapped = [line for text in texts for line in textwrap.wrap(text, most)]
    lines = [
        text_at("note", LEFT, top + NOTE_HEIGHT * (number + 1) - 3, text)
        for number, text in enumerate(wrapped)
    ]
    return lines, NOTE_HEIGHT * len(wrapped) + 6
