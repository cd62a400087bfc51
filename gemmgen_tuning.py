"""Times the kernels of a library on the GPU of a call, for sizes that its table does not have.

gemmgen writes this file beside the modules of a library, and into packs of libraries. A library does this
only if its `tune_on_first_use` was called. The first call with new sizes then times the kernels that its rule
expects to be the fastest, with the tensors of that call, and later calls take the fastest one. Times
are kept in a file for later processes, by the library and the GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

Times = dict[str, float]  # microseconds by kernels
FEWEST_ROUNDS, MOST_ROUNDS = 3, 25  # in each, every kernel is timed once
FLUSHED_L2 = 2  # times L2's bytes are written ahead of each launch: it then reads its tensors from DRAM


def key_of(sizes: tuple[int, ...]) -> str:
    """Return the name of sizes M, N and K in the file: M stands for all that round up to it.

    It rounds up to multiples of a sixteenth of the next power of two, because M is another one in many calls.
    """
    m, *others = sizes
    step = max(1, 1 << max(0, (m - 1).bit_length() - 4))
    return "x".join(map(str, (-(-m // step) * step, *others)))


class Tuner:
    """The times of one library's kernels, on all GPUs of this machine."""

    def __init__(self, stem: str, kernels: Iterable[str], top: int, budget_ms: float, folder: Path) -> None:
        """Time nothing yet.

        Args:
            stem: The begin of the names of files, another one for each library.
            kernels: The kernels of the library.
            top: The number of kernels that are timed for sizes, at least 2.
            budget_ms: The time of the GPU that the launches for sizes should take, after a first one of each.
            folder: Where files are kept.
        """
        self.top, self.budget_ms, self.folder = top, budget_ms, folder
        self.stem, self.kernels = stem, frozenset(kernels)
        self.timed = dict[str, dict[str, Times]]()  # by the name of a GPU, and by `key_of` sizes
        self.lock = threading.RLock()

    def of(self, gpu: str, sizes: tuple[int, ...]) -> Times | None:
        """Return the times of kernels for sizes on a GPU; None if they were not timed."""
        return self.of_gpu(gpu).get(key_of(sizes))

    def of_gpu(self, gpu: str) -> dict[str, Times]:
        """Return all that was timed on a GPU, in this process or an earlier one."""
        if gpu not in self.timed:
            self.timed[gpu] = self.read(gpu)
        return self.timed[gpu]

    def time(self, gpu: str, sizes: tuple[int, ...], launches: Mapping[str, Callable[[], Any]]) -> Times:
        """Return the times of kernels by their names, and keep them; one thread at a time does so."""
        with self.lock:
            if (found := self.of(gpu, sizes)) is None:
                found = self.of_gpu(gpu)[key_of(sizes)] = timed(launches, self.budget_ms)
                self.write(gpu)
            return found

    # --- the file of a GPU

    def path(self, gpu: str) -> Path:
        """Return the file for a GPU."""
        return self.folder / f"{self.stem}-{re.sub('[^A-Za-z0-9]+', '_', gpu)}.json"

    def read(self, gpu: str) -> dict[str, Times]:
        """Return the times in a file of this library's kernels; none if it is missing or cut."""
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            found = json.loads(self.path(gpu).read_text(encoding="utf-8"))
            return {
                str(key): {str(name): float(each) for name, each in times.items()}
                for key, times in found.items()
                if times and self.kernels.issuperset(times)
            }
        return {}

    def write(self, gpu: str) -> None:
        """Add the times to the file at once, beside those that other processes have added meanwhile."""
        path, kept = self.path(gpu), {**self.read(gpu), **self.timed[gpu]}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as file:
                json.dump(kept, file, indent=1)
            Path(file.name).replace(path)
        except OSError as error:
            warnings.warn(
                f"{path} cannot be written, {error.strerror}: later processes time again", stacklevel=5
            )


def default_folder() -> Path:
    """Return the folder of files: ``tuned`` in the folder GEMMGEN_CACHE_DIR, or in the user's cache."""
    if given := os.environ.get("GEMMGEN_CACHE_DIR"):
        return Path(given) / "tuned"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemmgen" / "tuned"


def timed(launches: Mapping[str, Callable[[], Any]], budget_ms: float) -> Times:
    """Return the microseconds of launches on the current GPU: medians of rounds, in which all take turns.

    Ahead of each one L2 is overwritten, so that it reads its tensors from DRAM; meanwhile the host queues it.
    """
    cuda: Any = torch.cuda  # whose properties have no types
    l2_bytes: int = cuda.get_device_properties(cuda.current_device()).L2_cache_size
    flushed = torch.empty(FLUSHED_L2 * l2_bytes, dtype=torch.int8, device="cuda")
    for launch in launches.values():  # which compile, load and check
        launch()
    samples: dict[str, list[float]] = {name: [] for name in launches}
    spent, rounds = 0.0, 0
    while rounds < FEWEST_ROUNDS or (rounds < MOST_ROUNDS and spent * (1 + 1 / rounds) < budget_ms):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        pairs = list[tuple[str, Any, Any]]()
        begin.record()
        for name, launch in launches.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flushed.zero_()
            first.record()
            launch()
            last.record()
            pairs.append((name, first, last))
        end.record()
        end.synchronize()
        spent, rounds = spent + begin.elapsed_time(end), rounds + 1
        for name, first, last in pairs:
            samples[name].append(first.elapsed_time(last) * 1e3)
    return {name: round(median(each), 3) for name, each in samples.items()}
