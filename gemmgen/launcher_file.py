"""The launcher file that is written beside modules: `gemmgen_launch.py`, one text for all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

LAUNCHER: Final = "gemmgen_launch.py"
"""The name of the file, with which modules import it."""

MARK: Final = rb"gemmgen writes this file beside the modules"
"""The words by which a file of that name is known to be one that may be replaced."""


@cache
def launcher_text() -> str:
    """Return the text of the launcher, a top-level module that lies beside the package."""
    return (Path(__file__).parents[1] / LAUNCHER).read_text(encoding="utf-8")
