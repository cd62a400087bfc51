"""Directories for files that nobody needs once a stage is over."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a context whose directory goes at its end."""
    return tempfile.TemporaryDirectory(prefix=_prefix())


def discard_scratch() -> None:
    """Remove the directories that this process has not yet left, for it is about to end without that."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        shutil.rmtree(directory, ignore_errors=True)


def _prefix() -> str:
    return f"gemmgen-{os.getpid()}-"
