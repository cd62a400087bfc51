"""Programs that wait for each other through global memory, on a GPU: as they are, and each planted fault.

Without a sanitizer they run with so many programs that a fault can show, again and again, on outputs that are
poisoned before each launch. Under the sanitizers they run as small as in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import test_simulate_atomics as simulated
import torch
from kernels.launch import changed_kernels
from test_simulate_atomics import FAULTS, KERNELS, SCHEDULES, tile_of
from torch import Tensor

from consan.case import CLEAN, Device, Simulated

PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY = "programs that wait", "programs that wait wrongly"
BARE_LAUNCHES, SANITIZED_LAUNCHES = 200, 10
POISON = 1 << 30
"""Of integers; of floats it is NaN."""


@dataclass(frozen=True)
class Problem:
    """A launch on the GPU, and what it must leave behind."""

    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    poisoned: tuple[Tensor, ...]
    """What the kernel must write before it, or anyone, reads it."""
    restored: tuple[tuple[Tensor, Tensor], ...]
    """Inputs that the kernel changes, and what they are before each launch."""
    found: Tensor
    expected: Tensor
    semaphores: Tensor
    left: Tensor
    """What the semaphores are after the first launch."""
    options: Mapping[str, int] = field(default_factory=dict[str, int])


def integers(*shape: int) -> Tensor:
    return simulated.integers(*shape).cuda()


def words(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def split_k(large: bool) -> Problem:
    """Tiles, each by four programs."""
    tiles = 66 if large else 2
    a, b = integers(tiles * 64, 512).half(), integers(512, 64).half()
    d = torch.empty(tiles * 64, 64, dtype=torch.float16, device="cuda")
    partial, counter = torch.empty(tiles * 4 * 64 * 64, device="cuda"), words(*[0] * tiles)
    args = (tile_of(a), tile_of(b), d, partial, counter, 64, 2)
    expected = (a.float() @ b.float()).half()
    return Problem((tiles, 4), args, (d, partial), (), d, expected, counter, torch.zeros_like(counter))


def stream_k(large: bool, programs: int = 264) -> Problem:
    """Tiles of eight steps by programs of three steps."""
    programs = programs if large else 8
    tiles = programs * 3 // 8
    a, b = integers(tiles * 64, 512).half(), integers(512, 64).half()
    d = torch.empty(tiles * 64, 64, dtype=torch.float16, device="cuda")
    partial, flags = torch.empty(programs * 64 * 64, device="cuda"), words(*[0] * programs)
    args = (tile_of(a), tile_of(b), d, partial, flags, 64, 8, 3)
    expected = (a.float() @ b.float()).half()
    return Problem((programs,), args, (d, partial), (), d, expected, flags, torch.zeros_like(flags))


def relaxation(large: bool, programs: int = 264) -> Problem:
    """Rounds with two grid barriers each; large, two programs share each SM."""
    programs, rounds = (programs, 12) if large else (4, 3)
    before = integers(programs, 128)
    expected = before
    for _ in range(rounds):
        expected = expected.roll(1, 0) + expected.roll(-1, 0)
    x, y, semaphores = before.clone(), torch.empty_like(before), words(0, 0, 0, 0, 0)
    args = (x, y, semaphores[:1], semaphores[4:], rounds)
    left = words(0, 0, 0, 0, 2 * rounds)
    return Problem((programs,), args, (y,), ((x, before),), x, expected, semaphores, left)


def locked_sum(large: bool) -> Problem:
    """One lock; large, eight programs share each SM, and its L1 cache."""
    programs = 1056 if large else 6
    x, total, lock = integers(programs, 128), words(*[0] * 128), words(0)
    expected = x.sum(0, dtype=torch.int32)
    restored = ((total, torch.zeros_like(total)),)
    return Problem((programs,), (x, total, lock), (), restored, total, expected, lock, words(0))


def partitions(large: bool) -> Problem:
    """Programs of two partitions."""
    programs = 264 if large else 6
    x, total, counter = integers(programs, 128), words(*[0] * 128), words(0)
    partial, expected = torch.empty_like(x), x.sum(0, dtype=torch.int32)
    args = (x, partial, total, counter)
    return Problem((programs,), args, (partial, total), (), total, expected, counter, words(programs))


def message(large: bool, read_by_tma: bool = False) -> Problem:
    """A tile from one program to another: two programs, however large."""
    x = integers(64, 64).half()
    sent, out, flag = torch.empty_like(x), torch.empty_like(x), words(0)
    args = (x, tile_of(sent), sent, out, flag, read_by_tma)
    return Problem((2,), args, (sent, out), (), out, x, flag, words(1))


def cluster_counter(large: bool) -> Problem:
    """Clusters of two CTAs."""
    clusters = 64 if large else 3
    x, counter = torch.empty(clusters, 256, dtype=torch.int32, device="cuda"), words(0)
    out, within = torch.empty_like(x), torch.arange(256, dtype=torch.int32, device="cuda")
    expected = torch.arange(clusters, dtype=torch.int32, device="cuda").unsqueeze(1) + within
    left = words(clusters)
    return Problem(
        (clusters,), (x, out, counter), (x, out), (), out, expected, counter, left, {"num_ctas": 2}
    )


def more_than_fit(large: bool) -> Problem:
    """More programs than an H200 holds: 132 SMs with at most 2,048 threads, 16 programs, each."""
    return relaxation(large, programs=132 * 16 + 1)


PROBLEMS: Mapping[Any, Callable[[bool], Problem]] = {
    simulated.split_k: split_k,
    simulated.stream_k: stream_k,
    simulated.relaxation: relaxation,
    simulated.locked_sum: locked_sum,
    simulated.partitions: partitions,
    simulated.message: message,
    simulated.cluster_counter: cluster_counter,
}
MORE_PROGRAMS = "grid barrier: more programs than the GPU holds"
SEEN_BY_TMA = {"message: it is read by TMA": (), "message: threads store it, and it is read by TMA": (
    (simulated.SEND, "gl.store(message_ptr + offsets, gl.load(x_ptr + offsets))"),
    (simulated.AWAIT_SENT, "pass"),
)}  # fmt: skip
"""A message that is read by TMA as it is, and one that threads have stored."""


@dataclass(frozen=True)
class AtomicCase:
    """A kernel of tests/kernels/atomics.py, as it is or with a fault."""

    name: str
    group: str
    subject: str
    """The kernel, without `_kernel`."""
    simulation: Callable[..., simulated.Ran]
    problem: Callable[[bool], Problem]
    changes: tuple[tuple[str, str], ...] = ()
    planted: frozenset[str] = frozenset()
    resident: int | None = None
    launches: int = BARE_LAUNCHES
    """Without a sanitizer."""
    stages: tuple[str, ...] = ("bare", "consan", "gsan")
    weight: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The grid without a sanitizer."""
        return GRIDS[self.problem]

    def simulate(self, folder: Path) -> Simulated:
        """Return what the simulator says, under eight schedules."""
        keywords: dict[str, Any] = {"read_by_tma": True} if self.name in SEEN_BY_TMA else {}
        resident = {"resident_programs": self.resident} if self.resident else {}
        ran = self.simulation(self._module(folder), schedules=SCHEDULES, **resident, **keywords)
        return Simulated.of(ran.result.findings, self.planted)

    def observe(self, stage: str, folder: Path, device: Device) -> str:
        """Launch it again and again, and say how often it was wrong."""
        with device.used(), _memory_of(stage):
            problem = self.problem(stage == "bare")
            kernel = getattr(self._module(folder), f"{self.subject}_kernel")
            return repeated(kernel, problem, self.launches if stage == "bare" else SANITIZED_LAUNCHES, device)

    def source(self, file: str, line: int, folder: Path) -> str:
        """Return the line itself."""
        lines = (folder / "kernels.py").read_text(encoding="utf-8").splitlines()
        return f"`{lines[line - 1].strip()}`"

    def _module(self, folder: Path) -> ModuleType:
        return changed_kernels(KERNELS, folder / "kernels.py", *self.changes)


def repeated(kernel: Any, problem: Problem, launches: int, device: Device) -> str:
    """Launch a kernel on poisoned memory, and say how many launches were wrong."""
    wrong = unready = 0
    zeros = torch.zeros_like(problem.semaphores)
    for _ in range(launches):
        for tensor in problem.poisoned:
            tensor.fill_(float("nan") if tensor.is_floating_point() else POISON)
        for tensor, before in problem.restored:
            tensor.copy_(before)
        problem.semaphores.copy_(zeros)
        kernel[problem.grid](*problem.arguments, **problem.options)
        wrong += not torch.equal(problem.found, problem.expected)
        unready += not torch.equal(problem.semaphores, problem.left)
        device.alive()
    if not wrong and not unready:
        return CLEAN
    said = [f"wrong numbers in {wrong} of {launches} launches"] if wrong else []
    return ", ".join([*said, *([f"wrong semaphores in {unready}"] if unready else [])])


@contextmanager
def _memory_of(stage: str) -> Generator[None]:
    """Allocate where the sanitizer of global memory has its shadow."""
    if stage != "gsan":
        yield
        return
    from triton.experimental.gsan import create_mem_pool  # pyright: ignore[reportMissingTypeStubs]

    with torch.cuda.use_mem_pool(create_mem_pool()):
        yield


def _cases() -> Generator[AtomicCase]:
    for case, problem in PROBLEMS.items():
        yield AtomicCase(f"{case.__name__} as it is", PROGRAMS_THAT_WAIT, case.__name__, case, problem)
    for name, changes in SEEN_BY_TMA.items():
        group = PROGRAMS_THAT_WAIT_WRONGLY
        planted = frozenset(
            {"missing-fence message_ptr", "missing-fence buffer", "missing-fence message_desc"}
        )
        yield AtomicCase(name, group, "message", simulated.message, message_by_tma, changes, planted)
    for name, fault in FAULTS.items():
        case, titles = fault.case, frozenset({f"{fault.kind} {fault.name}"})
        problem = more_than_fit if name == MORE_PROGRAMS else PROBLEMS[case]
        group = PROGRAMS_THAT_WAIT_WRONGLY
        yield AtomicCase(name, group, case.__name__, case, problem, fault.changes, titles, fault.resident)


def message_by_tma(large: bool) -> Problem:
    """A tile that its reader loads by TMA."""
    return message(large, read_by_tma=True)


GRIDS: Mapping[Callable[[bool], Problem], tuple[int, ...]] = {
    split_k: (66, 4), stream_k: (264,), relaxation: (264,), locked_sum: (1056,), partitions: (264,),
    message: (2,), message_by_tma: (2,), cluster_counter: (64,), more_than_fit: (2113,),
}  # fmt: skip
ATOMIC_CASES = {case.name: case for case in _cases()}
