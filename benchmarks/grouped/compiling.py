"""Modules of a folder, compiled by many processes at a time into Triton's cache."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType

import torch

from gemmgen.module import import_generated

EXTENTS = 64, 1024, 1024
"""M, N and K of the call that compiles a module: the compiled code is the same for all extents."""
PROCESSES = max(1, min(15, (os.cpu_count() or 2) - 1))


def imported(folder: Path, stem: str) -> ModuleType:
    """Return a module of the folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return import_generated(folder / f"{stem}.py")


def compiled(folder: Path, stem: str) -> str:
    """Call a module once, and return the reason if it fails."""
    try:
        module, (m, n, k) = imported(folder, stem), EXTENTS
        kind = stem.rpartition("_")[0]
        a = torch.zeros(*([2] if kind == "batched" else []), m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.zeros(*([] if kind == "dense" else [2]), n, k, device="cuda", dtype=torch.bfloat16).mT
        no_rows = {"offs": torch.zeros(2, device="cuda", dtype=torch.int32)}
        module.matmul(a, b, **(no_rows if kind == "m_offsets" else {}))
        torch.cuda.synchronize()
    except Exception as error:  # whatever the compiler or the driver raises is recorded
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return ""


def compile_all(folder: Path, stems: Collection[str], processes: int = PROCESSES) -> dict[str, str]:
    """Compile modules, and return the reasons of those that fail by their names."""
    spawning = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool:
        waiting = {stem: pool.submit(compiled, folder, stem) for stem in stems}
        return {stem: reason for stem, each in waiting.items() if (reason := each.result())}
