"""Preparation of kernels before they are timed: each is compiled and run once in a child process."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from gemmgen.bench.arms import Progress, first_line, input_set
from gemmgen.bench.machine import CudaMachine
from gemmgen.bench.module_arm import bound
from gemmgen.bench.tasks import KernelUnderTest, Task
from gemmgen.device import is_out_of_memory, require_gpu
from gemmgen.errors import GemmgenError
from gemmgen.module import import_generated, matmul_of, pack_scales_of
from gemmgen.problem import Request, Shape
from gemmgen.problem.contest import Contest
from gemmgen.problem.dtypes import Dtypes
from gemmgen.processes.forking import LostError, forked, usable_cores

PRIMING_SECONDS: Final = 300
"""Seconds after which a process is ended: a kernel compiles in a few."""
NAMING_SECONDS: Final = 60
"""Seconds for the process that runs the profiler; it gets one more second for each shape."""


@dataclass(frozen=True)
class Prepared:
    """Results of the preparation in child processes, before anything is timed."""

    launched: Mapping[tuple[Contest, Shape], tuple[str, ...]]
    """Kernels that the baseline launches, by contest and shape."""
    failures: Mapping[str, str]
    """Reasons why kernels cannot be compiled and run, by their names."""


def prepare_in_children(tasks: Sequence[Task], progress: Progress) -> Prepared:
    """Compile every kernel, run it once, and read the names of the baseline's kernels, in child processes.

    Triton keeps compiled kernels on the disk, where this process finds them. The profiler intercepts every
    launch, so it stays out of this process. This process must not have used the GPU yet, because it is
    forked.

    Raises GemmgenError (``no-gpu``).
    """
    smallest: dict[str, tuple[KernelUnderTest, Shape]] = {}
    for task in sorted(tasks, key=lambda task: Dtypes.of(task.source.problem).moved_bytes(task.shape)):
        for participant in task.participants:
            smallest.setdefault(participant.entry.name, (participant, task.shape))
    progress(f"compiling {len(smallest)} kernels, and naming the baseline's on {len(tasks)} shapes")
    with forked(partial(_launched, tasks)) as launched, ThreadPoolExecutor(usable_cores()) as pool:
        priming = [
            pool.submit(primed, each.source.request, shape, each.module_path)
            for each, shape in smallest.values()
        ]
        found = dict(zip(smallest, (each.result() for each in priming), strict=True))
        try:
            names = launched()
        except LostError:
            names = {}
    for outcome in found.values():
        if isinstance(outcome, GemmgenError):
            raise outcome
    failures = {name: outcome for name, outcome in found.items() if isinstance(outcome, str)}
    return Prepared(names, failures)


def primed(request: Request, shape: Shape, module_path: Path) -> GemmgenError | str | None:
    """Compile a kernel by running it once in a child process; return the error, or None."""
    try:
        with forked(partial(_primed, request, shape, module_path)) as result:
            return result()
    except LostError as error:
        return f"compiling and running it ended its process: {error}"


def _primed(request: Request, shape: Shape, module_path: Path) -> GemmgenError | str | None:
    signal.alarm(PRIMING_SECONDS)
    try:
        return _run_once(request, shape, module_path)
    except GemmgenError as error:
        return error
    except Exception as error:
        # Others use the GPU at the same time: the kernel may have the memory when it runs alone.
        return None if is_out_of_memory(error) else first_line(error)


def _run_once(request: Request, shape: Shape, module_path: Path) -> str | None:
    """Run a kernel once; return why it cannot be imported, or None."""
    machine = CudaMachine(require_gpu(request.gpu.architecture))
    try:
        module = import_generated(module_path)
        pack_scales = pack_scales_of(module)
        made = input_set(shape, request.matmul, torch.Generator(machine.device).manual_seed(0), pack_scales)
        bound(matmul_of(module), made.timed, made.d)()
        machine.finish()
    except GemmgenError as error:
        return first_line(error)
    except (ValueError, TypeError):
        pass  # it does not support this shape, and may support others
    return None


def _launched(tasks: Sequence[Task]) -> dict[tuple[Contest, Shape], tuple[str, ...]]:
    """Return the names of the baseline's kernels for each task, by the profiler; empty if that fails."""
    from torch.profiler import ProfilerActivity, profile

    signal.alarm(NAMING_SECONDS + len(tasks))
    found: dict[tuple[Contest, Shape], tuple[str, ...]] = {}
    generator = torch.Generator(torch.device("cuda")).manual_seed(0)
    for task in (tasks[0], *tasks):  # the first one twice: the profiler may miss kernels while it starts
        with suppress(Exception), task.baseline.settings():
            made = input_set(task.shape, task.source.problem, generator, None)
            call = task.baseline.bind(made.timed, made.d)
            call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                call()
                torch.cuda.synchronize()
            events: list[Any] = sorted(profiler.events() or (), key=lambda event: event.time_range.start)
            found[task.contest, task.shape] = tuple(
                event.name
                for event in events
                if str(event.device_type).endswith("CUDA") and not event.name.startswith(("Mem", "cuda"))
            )
    return found
