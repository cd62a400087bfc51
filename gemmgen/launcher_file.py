"""The launcher files: `gemmgen_launch.py`, written beside modules, and `gemmgen_driver.py`, in packs too."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

LAUNCHER: Final = "gemmgen_launch.py"
"""The name of the file, with which modules import it."""

DRIVER: Final = "gemmgen_driver.py"
"""The name of the file that launches the compiled kernels of a pack."""

PACK_NAME: Final = "gemmgen_pack"
"""The name of a pack's package, if no other is chosen."""

MARK: Final = rb"gemmgen writes this file beside the modules"
"""The words by which a file of that name is known to be one that may be replaced."""


@cache
def launcher_text() -> str:
    """Return the text of the launcher, a top-level module that lies beside the package."""
    return (Path(__file__).parents[1] / LAUNCHER).read_text(encoding="utf-8")


@cache
def driver_text() -> str:
    """Return the text of the launcher of compiled kernels, which lies beside the other one."""
    return (Path(__file__).parents[1] / DRIVER).read_text(encoding="utf-8")
