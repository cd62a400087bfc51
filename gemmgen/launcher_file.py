"""The files of gemmgen that run without it: it writes copies of them beside modules, and into packs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

LAUNCHER: Final = "gemmgen_launch.py"
"""The name of the file that modules import: it checks tensors, and chooses between launches."""

DRIVER: Final = "gemmgen_driver.py"
"""The name of the file that it imports: it launches by the CUDA driver."""

LAUNCHERS: Final = (DRIVER, LAUNCHER)
"""The names of both."""

LIBRARY_FILES: Final = ("gemmgen_tuning.py", "gemmgen_table.py", "gemmgen_library.py")
"""The names of the files that only libraries have: times, the choice among kernels, and their calls."""

PACK_NAME: Final = "gemmgen_pack"
"""The name of a pack's package, if no other is chosen."""

MARK: Final = rb"gemmgen writes this file beside"
"""The words by which files of these names are known to be ones that may be replaced."""


@cache
def launcher_texts() -> dict[str, str]:
    """Return the texts of the launcher files by their names."""
    return _texts(LAUNCHERS)


@cache
def library_texts() -> dict[str, str]:
    """Return the texts of the files of a library by their names."""
    return _texts(LIBRARY_FILES)


def _texts(names: tuple[str, ...]) -> dict[str, str]:
    """Return the texts of files that are beside this package."""
    folder = Path(__file__).parents[1]
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}
