"""A GPU that there is not: CPU tensors that claim to be on one, and a machine with clocks of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

from gemmgen.bench.machine import Work
from gemmgen.bench.record import Environment, GpuState


class Cuda(Tensor):
    """A CPU tensor whose device reads as the first GPU."""

    device = property(lambda self: torch.device("cuda", 0))  # pyright: ignore[reportAssignmentType]
    is_cuda = True  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]

    def get_device(self) -> int:
        """Return the number of that GPU."""
        return self.device.index or 0


class SecondCuda(Cuda):
    """The same, of the second GPU."""

    device = property(lambda self: torch.device("cuda", 1))  # pyright: ignore[reportAssignmentType]


def cuda(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return zeros that claim to be on the first GPU."""
    return torch.zeros(shape, dtype=dtype).as_subclass(Cuda)


class LaunchedInto:
    """A compiled kernel, and what compiles it: its launches are a function's, with programs and arguments."""

    def __init__(self, kernel: Any, launch: Callable[[int, list[Any]], object]) -> None:
        self.arg_names: list[str] = kernel.arg_names
        self.launch = launch

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def launch(*arguments: Any, **_: Any) -> None:
            self.launch(grid[0], list(arguments))

        return launch


def launch_into(module: ModuleType, launch: Callable[[int, list[Any]], object]) -> None:
    """Let a function have the launches of a module: as many programs as there is work for, and arguments."""
    for name in ("matmul_kernel", "reduction_kernel"):
        if name in module.__dict__:
            module.__dict__[name] = LaunchedInto(module.__dict__[name], launch)


def always(answer: object) -> Callable[[object], object]:
    """Return what gives the same answer for every device."""
    return lambda _: answer


def on_a_fake_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    """Let wrappers allocate on a GPU that there is not, and take the first one for the current one.

    It has as many SMs as any kernel could have programs for. What `torch.empty` makes there is NaN all
    over, so that an element that nobody wrote is seen.
    """

    def allocating(allocate: Any) -> Any:
        def allocated(*shape: Any, device: Any = None, **keywords: Any) -> Tensor:
            if device is None or torch.device(device).type != "cuda":
                return allocate(*shape, device=device, **keywords)
            made = allocate(*shape, **keywords)
            if allocate in empty and made.is_floating_point():
                made.fill_(float("nan"))
            return made.as_subclass((Cuda, SecondCuda)[torch.device(device).index or 0])

        return allocated

    empty = torch.empty, torch.empty_strided
    # What modules reserve there is gone after the test: a real GPU cannot read it.
    shared = sys.modules.setdefault("gemmgen_operators", ModuleType("gemmgen_operators"))
    monkeypatch.setitem(vars(shared), "reserves", {})
    monkeypatch.setattr(torch, "empty", allocating(torch.empty))
    monkeypatch.setattr(torch, "empty_strided", allocating(torch.empty_strided))
    monkeypatch.setattr(torch, "zeros", allocating(torch.zeros))
    monkeypatch.setattr(torch, "arange", allocating(torch.arange))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    major, minor = capability
    gpu = SimpleNamespace(name="NVIDIA X", major=major, minor=minor, multi_processor_count=2**30)
    driver = SimpleNamespace(
        utils=SimpleNamespace(),
        # Triton asks before a module says which GPU it needs.
        get_current_target=lambda: SimpleNamespace(backend="cuda", arch=100),
    )
    monkeypatch.setattr(cast(Any, triton).runtime.driver, "_active", driver)
    monkeypatch.setattr(torch.cuda, "device", always(nullcontext()))
    monkeypatch.setattr(torch.cuda, "get_device_capability", always(capability))
    monkeypatch.setattr(torch.cuda, "get_device_properties", always(gpu))
    stream = SimpleNamespace(cuda_stream=7, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", always(stream))
    monkeypatch.setattr(torch.cuda, "stream", always(nullcontext()))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@dataclass
class FakeMachine:
    """Its clocks advance when a kernel spends their time; a captured kernel spends the device's only."""

    host_clock: float = 0.0
    device_clock: float = 0.0
    log: list[str] = field(default_factory=list[str])
    timed: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def environment(self) -> Environment:
        return Environment("0", "0", "0", "0", "0", "0", "Fake H200", sm_count=1, l2_bytes=4096)

    def state(self, work: Work) -> GpuState | None:
        return GpuState(sm_clock_mhz=1400.0, power_w=None, temperature_c=60.0)

    def now(self) -> float:
        return self.host_clock

    def synchronize(self) -> None:
        self.host_clock = max(self.host_clock, self.device_clock)

    def seconds(self, work: Work) -> float:
        start, self.log = self.device_clock, []
        work()
        self.synchronize()
        self.timed.append((self.device_clock, "".join(self.log)))
        return self.device_clock - start

    def capture(self, work: Work) -> Work:
        host, device, log = self.host_clock, self.device_clock, self.log
        self.log = []
        work()
        cost, calls = self.device_clock - device, "".join(self.log).upper()
        self.host_clock, self.device_clock, self.log = host, device, log

        def replay() -> None:
            self.device_clock += cost
            self.log.append(calls)

        return replay

    def spend(self, name: str, device: float, host: float) -> None:
        self.device_clock += device
        self.host_clock += host
        self.log.append(name)

    @contextmanager
    def quiet(self) -> Generator[None]:
        yield

    def recorded(self, work: Work) -> Work:
        spend = self.capture(work)

        def replay() -> None:
            before = self.host_clock, self.device_clock, self.log
            self.log = []
            work()  # a graph computes again, and costs what it cost
            self.host_clock, self.device_clock, self.log = before
            spend()

        return replay

    def times(self, works: Sequence[Work]) -> list[float]:
        works[-1]()
        return [self.seconds(work) for work in works]

    def finish(self) -> None:
        self.synchronize()

    @contextmanager
    def alone(self) -> Generator[None]:
        yield

    def lost(self) -> bool:
        return False

    @contextmanager
    def watched(self) -> Generator[Callable[[float], GpuState | None]]:
        yield lambda _: GpuState(sm_clock_mhz=1400.0, power_w=650.0, temperature_c=60.0)


class NamedMachine(FakeMachine):
    """The same, of a product that a spec can name, and so slow that starting it takes no time."""

    def now(self) -> float:
        return 1e3 * super().now()

    def environment(self) -> Environment:
        return replace(super().environment(), gpu="NVIDIA H200")
