"""Files of an exported kernel: its facts in C, and the launcher in C, one for all kernels."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

LAUNCHER: Final = ("gemmgen_launch.h", "gemmgen_launch.c")
"""The names of the launcher's files, which `gemmgen export` writes beside kernels."""


@cache
def launcher_texts() -> dict[str, str]:
    """Return the texts of the launcher's files by their names."""
    return {name: (Path(__file__).parent / name).read_text(encoding="utf-8") for name in LAUNCHER}
