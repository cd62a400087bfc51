"""Exported kernels, compiled by gcc and run with a CUDA driver that only writes down what it is asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from modules import ROOT, spec_file
from programs import compiled_c

from gemmgen.build import export

AOT = ROOT / "tests" / "aot"


def compiled_driver(directory: Path) -> Path:
    """Compile the driver `aot/fake_cuda.c` into a directory, and return the directory."""
    compiled_c("-shared", "-fPIC", "-o", directory / "libcuda.so.1", AOT / "fake_cuda.c", "-lm")
    return directory


def started(driver: Path, log: Path, *command: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program with that driver, whose source has the settings; its log is written anew."""
    environment = {f"FAKE_CUDA_{name.upper()}": value for name, value in settings.items()}
    paths = {"FAKE_CUDA_LOG": str(log), "LD_LIBRARY_PATH": str(driver)}
    words = [str(word) for word in command]
    log.unlink(missing_ok=True)
    return subprocess.run(
        words, env=os.environ | paths | environment, capture_output=True, text=True, check=False, timeout=60
    )


def export_and_compile(stem: str, directory: Path) -> Path:
    """Export a committed spec into a directory, compile its test program, and return the directory."""
    export(spec_file(stem), directory)
    sources = (directory / f"{stem}_test.c", directory / f"{stem}.c")
    compiled_c("-o", directory / f"{stem}_test", *sources, "-ldl", "-lm")
    return directory
