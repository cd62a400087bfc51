"""Colours and files of plots; matplotlib is imported here, and only when a plot is drawn."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gemmgen.errors import Diagnostic, GemmgenError, install_advice

METADATA: Final = {"svg": {"Date": None, "Creator": "gemmgen"}, "png": {"Software": "gemmgen"}}
"""Metadata by file type, without a date and matplotlib's version."""
FASTER, SLOWER, INK, GRID, PAPER = "#1a6fb5", "#b5541a", "#333333", "#dddddd", "#ffffff"
IN_THE_DARK: Final = {
    FASTER: "#58a6ff",
    SLOWER: "#f0883e",
    INK: "#d0d7de",
    GRID: "#30363d",
    PAPER: "#0d1117",
}
"""Colours of an .svg in the dark scheme, by their colours in the light one."""
STYLE: Final = {
    "text.parse_math": False,  # a name may have dollars in it
    "svg.hashsalt": "gemmgen",  # names of clip paths, random by default
    "svg.fonttype": "none",  # text stays text: small, and a test can read it
    "font.family": ["DejaVu Sans", "sans-serif"],  # the first comes with matplotlib, so its widths are known
    "font.size": 9,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
LEAST_RATIO, MOST_RATIO = 0.8, 1.25
"""Limits of the axis of ratios: a ratio beyond is an arrow at the end, with its number."""


def refuse_suffix(path: Path) -> None:
    """Raise GemmgenError (``bad-plot``) unless a path ends in .svg or .png."""
    if path.suffix.lower().removeprefix(".") not in METADATA:
        raise plot_error(path, "bad-plot", "the name must end in .svg or .png")


def save(draw: Callable[[], Any], path: Path) -> None:
    """Write the figure that a function draws; an .svg with its dark scheme."""
    kind = path.suffix.lower().removeprefix(".")
    matplotlib = _matplotlib(path)
    image = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignores this machine's matplotlibrc
        matplotlib.rcParams.update(STYLE)
        draw().savefig(image, format=kind, dpi=200, metadata=METADATA[kind])
    content = image.getvalue()
    try:
        path.write_bytes(_with_dark_scheme(content) if kind == "svg" else content)
    except OSError as error:
        raise plot_error(path, "bad-plot", f"cannot write the plot: {error}") from error


def _matplotlib(path: Path) -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as error:
        message = f"plots need matplotlib: {install_advice('plot')}"
        raise plot_error(path, "missing-package", message) from error


def _with_dark_scheme(svg: bytes) -> bytes:
    """Return matplotlib's .svg with a second set of colours for readers who prefer a dark scheme."""
    rules = "".join(
        f'[style*="{way}: {light}"] {{ {way}: {dark} !important }}\n'
        for light, dark in IN_THE_DARK.items()
        for way in ("fill", "stroke")
    )
    style = f"<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n"
    return svg.replace(b" <defs>\n", f" {style} <defs>\n".encode(), 1)


def plot_error(path: Path, code: str, message: str) -> GemmgenError:
    """Return the error of a plot that cannot be drawn or written."""
    return GemmgenError([Diagnostic(path.as_posix(), code, message)])
