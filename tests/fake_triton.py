"""Triton's launcher and the CUDA driver on a GPU that there is not: what they are told to launch."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from threading import get_ident
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from modules import module_file

import gemmgen_driver
import gemmgen_launch
from gemmgen.module import import_generated

nvidia: Any = cast(Any, triton).backends.nvidia.driver


class Map(NamedTuple):
    """A tensor map as a kernel gets it: numbers of the driver, the contiguous dimension first."""

    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes, of all dimensions but the contiguous one."""
    box: tuple[int, ...]
    element_type: int
    swizzle: int


class Direct(NamedTuple):
    """A launch past Triton."""

    grid: tuple[int, int, int]
    stream: int
    parameters: tuple[Any, ...]
    """A `Map`, or a number."""


@dataclass(eq=False)
class FakeDriver:
    """What a module launches on it, through Triton's JIT and past it, and the tensor maps it encodes."""

    jit: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    direct: list[Direct] = field(default_factory=list[Direct])
    encoded: list[Map] = field(default_factory=list[Map])
    compiled: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    device: int = 0
    stream: int = 77
    capturing: bool = False
    capture: int | None = 1
    """The number of the capture; None if this driver does not tell it."""
    waits: list[int] = field(default_factory=list[int])
    """The streams that were waited for."""
    scratch: int = 0
    contexts: set[int] = field(default_factory=set[int])
    """The threads that have a CUDA context."""
    version: int = 13_000
    kinds: list[list[str]] = field(default_factory=list[list[str]])
    """The parameters of each compiled kernel, ``map``, ``i32`` or ``i64``; its handle is its number."""
    maps: dict[int, Map] = field(default_factory=dict[int, Map])
    """The tensor maps by the addresses that they lie at."""

    def make_context(self, _: int) -> None:
        """Let this thread have a context."""
        self.contexts.add(get_ident())

    def kernel(self, arguments: Sequence[Any]) -> Any:
        """Return what Triton would have compiled for descriptors, and tensors read by their addresses."""
        run = object.__new__(nvidia.CudaLauncher)
        run.gsan_enabled, run.launch_cooperative_grid, run.launch_pdl = False, False, True
        run.global_scratch_size, run.profile_scratch_size = self.scratch, 0
        run.arg_annotations, run.kernel_signature = ["annotations"], b"signature"
        descriptors = [argument for argument in arguments if not isinstance(argument, torch.Tensor | int)]
        signature = {str(number): _type_of(each) for number, each in enumerate(arguments)}
        meta = [
            {
                "swizzle": 3,
                "elem_size": getattr(d.base, "tensor", d.base).element_size(),
                "elem_type": 8,
                "block_size": d.block_shape,
                "fp4_padded": False,
            }
            for d in descriptors
        ]
        self.kinds.append([kind for each in arguments for kind in _parameters_of(each)])
        metadata = SimpleNamespace(
            tensordesc_meta=meta or None, name="k", num_warps=4, num_ctas=1, shared=1000
        )
        source = SimpleNamespace(signature=signature)
        return SimpleNamespace(run=run, src=source, metadata=metadata, function=len(self.kinds))

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Return what launches a kernel through Triton's Python, and returns the compiled kernel."""

        def launch(*arguments: Any, **options: Any) -> Any:
            self.compiled.append(options)
            # As Triton's launcher does, which makes tensor maps before it looks for a context.
            if get_ident() not in self.contexts:
                raise RuntimeError("Failed to create tensor map descriptor: invalid device context")
            self.jit.append((grid, self.device, arguments))
            return self.kernel(arguments)

        return launch

    # What gemmgen_driver calls.

    def capture_of(self, stream: int) -> int | None:
        assert stream == self.stream
        return self.capture if self.capturing else None

    def call(self, name: str, place: int, *arguments: Any) -> None:
        if name == "cuThreadExchangeStreamCaptureMode":
            return
        assert name == "cuTensorMapEncodeTiled"
        element_type, _, address, extents, strides, box, _, _, swizzle, *_ = arguments
        made = Map(address, tuple(extents), tuple(strides), tuple(box), element_type, swizzle)
        self.encoded.append(made)
        self.maps[place] = made

    def replace_address(self, place: int, address: int) -> int:
        self.maps[place] = self.maps[place]._replace(address=address)
        return 0

    def launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        assert extra is None
        found, kinds = gemmgen_driver.Config.from_address(config), self.kinds[function - 1]
        places = (ctypes.c_uint64 * len(kinds)).from_address(parameters)
        grid = found.grid_x, found.grid_y, found.grid_z
        self.direct.append(Direct(grid, found.stream or 0, tuple(map(self.parameter, places, kinds))))
        return 0

    def parameter(self, place: int, kind: str) -> Any:
        if kind == "map":
            return self.maps[place]
        return {"i32": ctypes.c_int32, "i64": ctypes.c_int64}[kind].from_address(place).value

    def check(self, name: str, result: int) -> None:
        assert not result, name


def _type_of(argument: Any) -> str:
    """Return the type of an argument in a signature."""
    if isinstance(argument, torch.Tensor):
        return "*i8"
    return "i32" if isinstance(argument, int) else f"tensordesc<bf16{argument.block_shape}>"


def _parameters_of(argument: Any) -> list[str]:
    """Return the kinds of the parameters that an argument is."""
    if isinstance(argument, int):
        return ["i32"]
    if isinstance(argument, torch.Tensor):
        return ["i64"]
    rank = len(argument.block_shape)
    return ["map", *["i32"] * rank, *["i64"] * rank]


@dataclass(frozen=True, eq=False)
class SecondKernel:
    """A kernel of a module besides `matmul_kernel`, on the same driver."""

    driver: FakeDriver

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Return what launches it."""
        return self.driver[grid]


def on_a_fake_driver(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Let a module find a driver, a GPU and a stream that are not there."""
    driver = FakeDriver()
    monkeypatch.setattr(module, "matmul_kernel", driver)
    if "reduction_kernel" in vars(module):
        monkeypatch.setattr(module, "reduction_kernel", SecondKernel(driver))
    package = getattr(module, "__name__", "").rpartition(".")[
        0
    ]  # of a library; a module alone has the launcher of all tests
    of_driver, launcher = (
        import_module(f".{each.__name__}", package) if package else each
        for each in (gemmgen_driver, gemmgen_launch)
    )
    launch_on(driver, of_driver, launcher, monkeypatch)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: driver.device)

    def properties(_: object) -> SimpleNamespace:
        return SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)

    def capability(_: object) -> tuple[int, int]:
        return 9, 0

    class Device:
        def __init__(self, index: int) -> None:
            self.index, self.before = index, driver.device

        def __enter__(self) -> None:
            driver.device = self.index

        def __exit__(self, *_: object) -> None:
            driver.device = self.before

    def current_stream(_: object) -> SimpleNamespace:
        stream = driver.stream
        return SimpleNamespace(cuda_stream=stream, synchronize=lambda: driver.waits.append(stream))

    def use_stream(_: object) -> nullcontext[None]:
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "stream", use_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: driver.capturing)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    monkeypatch.setattr(torch.cuda, "device", Device)
    return driver


def launch_on(driver: FakeDriver, of_driver: Any, launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the launcher files of a package, which are imported, find a driver and a stream."""

    def stream(_: int) -> int:
        return driver.stream

    for module in (of_driver, launcher):
        monkeypatch.setattr(module, "driver", lambda: driver)
        monkeypatch.setattr(module, "current_stream", stream)


def imported(stem: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a committed module anew, as one that torch finds by its name."""
    found = import_generated(module_file(stem))
    monkeypatch.setitem(sys.modules, stem, found)
    return found


def refusal(name: str, found: str) -> str:
    """Return a pattern of errors that name an argument, and end with what was found or is required of it."""
    return rf"^{name} .*\b(?:found|require) {re.escape(found)}(?!\w)"


def assert_refused(
    module: ModuleType, driver: FakeDriver, given: Mapping[str, Any], name: str, found: str
) -> None:
    """Assert that `matmul` refuses tensors by name, with an error about one of them, and launches nothing."""
    with pytest.raises((TypeError, ValueError), match=refusal(name, found)):
        module.matmul(**given)
    assert driver.jit == []
