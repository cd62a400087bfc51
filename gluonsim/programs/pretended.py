"""A GPU that is not there: programs written for one run on the CPU, and their launches are simulated."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakValueDictionary

import torch
from torch.overrides import TorchFunctionMode

from gemmgen import triton_api
from gemmgen.hardware import Gpu
from gemmgen.triton_launches import launches_diverted, out_of_shared_memory
from gluonsim.execution import is_dependent, programs_of, run_lowered, undisturbed
from gluonsim.ir.ttgir import GenericTtgir, lower_kernel
from gluonsim.operations.tensor_cores import added_product
from gluonsim.progress import Tell
from gluonsim.result import Result
from gluonsim.tensors.addresses import tensor_of

QUICK_SCHEDULES = ("lazy", "random")
"""What somebody else's tests, which may launch hundreds of kernels, have time for."""

MANY_PROGRAMS = 64
"""A launch of more runs under one schedule."""

DRAM_BYTES = 80 << 30
"""What programs are told that there is, as on an H100."""


@contextmanager
def pretended(
    gpu: Gpu,
    tell: Callable[[Result], None],
    schedules: tuple[str, ...] = QUICK_SCHEDULES,
    seed: int = 0,
    processes: int = 1,
    programs: int | None = None,
    progress: Tell | None = None,
) -> Generator[None]:
    """Simulate every launch of a Gluon kernel as if there were such a GPU, and pass on what each one showed.

    Meanwhile ``device="cuda"`` is the CPU, and torch and Triton answer as on that GPU. What is timed runs
    once. A kernel that the simulator does not know raises a `GemmgenError` where it is launched. `programs`
    and `progress` are as for `gluonsim.run`, for each launch.
    """
    cuda_is_cpu = _CudaIsCpu()

    def launch(kernel: Any, grid: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> object:
        with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - thousands of small calls
            found = tuple(map(cuda_is_cpu.with_tensor, args))
            lowered = lower_kernel(kernel, found, gpu.architecture, keywords)
            if grid is None:
                return _Warmed(lowered, lambda grid, args: launch(kernel, grid, args, keywords))
            limit = gpu.architecture.smem_bytes_per_cta
            if lowered.smem_bytes > limit:  # the driver refuses it, and programs try smaller tiles
                raise out_of_shared_memory(lowered.smem_bytes, limit)
            extents = programs_of(grid, lowered.bound)
            affordable = _affordable(schedules, min(prod(extents), programs or prod(extents)))
            result = run_lowered(
                kernel,
                lowered,
                extents,
                affordable,
                seed,
                processes=processes,
                dependent=is_dependent(keywords),
                sample=programs,
                progress=progress,
            )
        tell(result)
        return Launched(result, lowered)

    with ExitStack() as stack:
        stack.enter_context(
            launches_diverted(
                launch, gpu.architecture.compute_capability, _driver_properties(gpu), _multiplied
            )
        )
        stack.enter_context(triton_api.replaced([*_torch_changes(gpu), _in_threads(cuda_is_cpu)]))
        stack.enter_context(cuda_is_cpu)
        yield


def _in_threads(mode: TorchFunctionMode) -> tuple[Any, str, Any]:
    """Return what begins threads of a program with a mode, which torch has for one thread alone."""
    run = Thread.run

    def run_in_mode(thread: Thread) -> None:
        with mode:
            run(thread)

    return Thread, "run", run_in_mode


def _multiplied(
    a: torch.Tensor, b: torch.Tensor, accumulator: torch.Tensor, *, keeps_fp32: bool
) -> torch.Tensor:
    """Return what ``tl.dot`` of a plain Triton kernel adds up: bit for bit as a Gluon kernel's MMA does."""
    with torch._C.DisableTorchFunction(), undisturbed():  # pyright: ignore[reportPrivateUsage]
        return added_product(a, b, accumulator, keeps_fp32=keeps_fp32)


class _Code:
    """The machine code of a launch, compiled when a program first looks at it."""

    lowered: GenericTtgir

    @cached_property
    def _machine(self) -> triton_api.MachineCode:
        with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage] - the compiler is a fork
            return self.lowered.machine_code()

    @property
    def asm(self) -> Mapping[str, Any]:
        """Texts and code by stage: ``ttgir``, ``llir``, ``ptx``, ``cubin``."""
        return self._machine.asm

    @property
    def metadata(self) -> SimpleNamespace:
        """Figures of the kernel, by Triton's names."""
        return SimpleNamespace(**self._machine.metadata)


@dataclass(frozen=True)
class Launched(_Code):
    """The value of a launch: the result of its simulation, and the machine code that Triton makes."""

    result: Result
    lowered: GenericTtgir


@dataclass(frozen=True)
class _Warmed(_Code):
    """A kernel that was compiled before its first launch."""

    lowered: GenericTtgir
    launch: Callable[[Any, tuple[Any, ...]], object]
    """Takes a grid and arguments."""

    def __getitem__(self, grid: Any) -> Callable[..., object]:
        return lambda *args: self.launch(grid, args)


def _affordable(schedules: tuple[str, ...], programs: int) -> tuple[str, ...]:
    """Return the schedules that a launch has time for: under a random one, each program goes its own way."""
    return ("random",) if programs > MANY_PROGRAMS and "random" in schedules else schedules


def _driver_properties(gpu: Gpu) -> dict[str, int]:
    """Return what Triton's driver says of a GPU, by its names."""
    architecture = gpu.architecture
    return {
        "max_shared_mem": architecture.smem_bytes_per_cta,
        "max_num_regs": architecture.registers_per_sm,
        "multiprocessor_count": gpu.sm_count,
        "warpSize": architecture.threads_per_warp,
        "sm_clock_rate": int(gpu.sustained_hz / 1e3),
        "mem_clock_rate": int(gpu.dram_bytes_per_second / 2 / 640 / 1e3),
        "mem_bus_width": 5120,
    }


def _device_properties(gpu: Gpu) -> SimpleNamespace:
    """Return what torch says of a GPU, by its names."""
    architecture = gpu.architecture
    major, minor = divmod(architecture.compute_capability, 10)
    return SimpleNamespace(
        name=f"NVIDIA {gpu.name}",
        major=major,
        minor=minor,
        multi_processor_count=gpu.sm_count,
        total_memory=DRAM_BYTES,
        warp_size=architecture.threads_per_warp,
        L2_cache_size=gpu.l2_bytes,
        regs_per_multiprocessor=architecture.registers_per_sm,
        max_threads_per_multi_processor=2 * architecture.threads_per_cta,
        max_threads_per_block=architecture.threads_per_cta,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=architecture.smem_bytes_per_cta,
        shared_memory_per_multiprocessor=architecture.smem_bytes_per_sm,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


class _Stream:
    """A stream, or an event: everything has happened when its call returns."""

    cuda_stream = 0
    device_index = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    synchronize = wait_stream = wait_event = wait = record = _nothing

    def record_event(self, event: _Stream | None = None) -> _Stream:
        return event or _Stream()

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        """Return a millisecond: nothing is timed."""
        return 1.0


def _torch_changes(gpu: Gpu) -> list[tuple[Any, str, Any]]:
    """Return what takes the place of torch's functions for GPUs."""
    major, minor = divmod(gpu.architecture.compute_capability, 10)
    properties = _device_properties(gpu)
    default_device: Any = torch.set_default_device

    def set_default_device(device: Any) -> None:
        default_device(_cpu(device))

    generator: Any = torch.Generator

    class CpuGenerator(torch.Generator):
        """A generator of random numbers; those of the GPU are the CPU's."""

        def __new__(cls, device: Any = None) -> CpuGenerator:
            return generator.__new__(cls, _cpu(device) or "cpu")

    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "is_current_stream_capturing": False,
        "current_device": 0,
        "get_device_capability": (major, minor),
        "get_device_name": properties.name,
        "get_device_properties": properties,
        "get_arch_list": [f"sm_{major}{minor}"],
        "mem_get_info": (DRAM_BYTES, DRAM_BYTES),
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "current_stream": _Stream(),
        "default_stream": _Stream(),
        "stream": _Stream(),
        "device": _Stream(),
    }
    ignored = (
        *("init", "synchronize", "set_device", "set_stream", "empty_cache", "ipc_collect"),
        *("manual_seed", "manual_seed_all", "reset_peak_memory_stats"),
    )
    return [
        *((torch.cuda, name, _answering(value)) for name, value in answers.items()),
        *((torch.cuda, name, _answering(None)) for name in ignored),
        (torch.cuda, "Stream", _Stream),
        (torch.cuda, "Event", _Stream),
        (torch, "Generator", CpuGenerator),
        (torch, "set_default_device", set_default_device),
    ]


def _answering(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _cpu(device: Any) -> Any:
    """Return the CPU for what names a GPU, and anything else as it is."""
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("cpu")
    is_number = isinstance(device, int) and not isinstance(device, bool)
    return "cpu" if is_number else device


class _CudaIsCpu(TorchFunctionMode):
    """Gives every function of torch the CPU where it is given the GPU; tensors say that they are on it."""

    def __init__(self) -> None:
        super().__init__()
        self._by_address: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
        """Tensors whose address was asked for: some programs describe an address, not a tensor."""

    def with_tensor(self, argument: Any) -> Any:
        """Return an argument of a launch; a descriptor of a tensor's address becomes one of the tensor."""
        base = getattr(argument, "base", None)
        if not hasattr(argument, "block_shape") or tensor_of(base) is not None:
            return argument
        tensor = self._by_address.get(cast(Any, base).data_ptr())
        return argument if tensor is None else replace(argument, base=tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See ``TorchFunctionMode``."""
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func == cast(Any, torch.Tensor).is_cuda.__get__:
            return True
        if func == cast(Any, torch.Tensor).device.__get__:
            return torch.device("cuda", 0)
        if func is torch.Tensor.data_ptr:
            address: int = func(*args)
            self._by_address[address] = args[0]
            return address
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"])
        if func is torch.Tensor.to:
            args = (args[0], *map(_cpu, args[1:]))
        kwargs.pop("pin_memory", None)
        if func in _MATMULS and not kwargs and all(map(_is_short, args)):
            # A reference that is exact but for one rounding: a right kernel differs by its own order alone.
            return func(*(value.double() for value in args)).to(args[0].dtype)
        return func(*args, **kwargs)


_MATMULS = frozenset(
    {
        *(torch.matmul, torch.mm, torch.bmm),
        *(torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.__matmul__),
    }
)


def _is_short(value: Any) -> bool:
    return value.dtype in (torch.float16, torch.bfloat16)
