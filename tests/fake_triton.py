"""Triton's launcher on a GPU that there is not: what it would launch, as its driver is told."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import get_ident
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from modules import module_file
from torch import _C

from gemmgen.module import import_generated

nvidia: Any = cast(Any, triton).backends.nvidia.driver


@dataclass(eq=False)
class FakeDriver:
    """What a module launches on it, through Triton's JIT and past it, and the tensor maps it encodes."""

    jit: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    direct: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    encoded: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    compiled: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    device: int = 0
    stream: int = 77
    capturing: bool = False
    scratch: int = 0
    contexts: set[int] = field(default_factory=set[int])
    """The threads that have a CUDA context."""

    def set_current_device(self, _: int) -> None:
        """Make a context current in this thread, as Triton's driver does."""
        self.contexts.add(get_ident())

    def kernel(self, arguments: Sequence[Any]) -> Any:
        """Return what Triton would have compiled for descriptors, and tensors read by their addresses."""
        run = object.__new__(nvidia.CudaLauncher)
        run.gsan_enabled, run.launch_cooperative_grid, run.launch_pdl = False, False, True
        run.global_scratch_size, run.profile_scratch_size = self.scratch, 0
        run.arg_annotations, run.kernel_signature = ["annotations"], b"signature"
        descriptors = [argument for argument in arguments if not isinstance(argument, torch.Tensor | int)]
        signature = dict(enumerate(map(_type_of, arguments)))
        meta = [
            {"swizzle": 3, "elem_size": 2, "elem_type": 8, "block_size": d.block_shape, "fp4_padded": False}
            for d in descriptors
        ]
        return SimpleNamespace(
            run=run,
            src=SimpleNamespace(signature=signature),
            metadata=SimpleNamespace(tensordesc_meta=meta or None),
            function=4711,
            packed_metadata=(4, 1, 1000),
        )

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

    def launch(self, *arguments: Any) -> None:
        self.direct.append(arguments)

    def fill(self, *arguments: Any) -> tuple[Any, ...]:
        self.encoded.append(arguments)
        return ("map", *arguments)


def _type_of(argument: Any) -> str:
    """Return the type of an argument in a signature."""
    if isinstance(argument, torch.Tensor):
        return "*i8"
    return "i32" if isinstance(argument, int) else f"tensordesc<bf16{argument.block_shape}>"


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
    utils = SimpleNamespace(
        launch=driver.launch,
        fill_tma_descriptor_tiled=driver.fill,
        set_current_device=driver.set_current_device,
    )
    runtime: Any = cast(Any, triton).runtime
    monkeypatch.setattr(runtime.driver, "_active", SimpleNamespace(utils=utils))
    monkeypatch.setattr(module, "matmul_kernel", driver)
    if "reduction_kernel" in vars(module):
        monkeypatch.setattr(module, "reduction_kernel", SecondKernel(driver))
    monkeypatch.setattr(_C, "_cuda_getDevice", lambda: driver.device, raising=False)
    monkeypatch.setattr(_C, "_cuda_getCurrentRawStream", lambda _: driver.stream, raising=False)  # pyright: ignore

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
        return SimpleNamespace(cuda_stream=driver.stream)

    def use_stream(_: object) -> nullcontext[None]:
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "stream", use_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: driver.capturing)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    monkeypatch.setattr(torch.cuda, "device", Device)
    return driver


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
    """Assert that both functions of a module refuse tensors and launch nothing.

    `given` has them by their names, in the order of `plain_matmul`. The error of `matmul` names an argument.
    """
    tensors = [tensor for name, tensor in given.items() if name != "out"]
    with pytest.raises((TypeError, ValueError), match=refusal(name, found)):
        module.matmul(**given)
    with pytest.raises((TypeError, ValueError)):
        module.plain_matmul(*tensors, **({"out": given["out"]} if "out" in given else {}))
    assert driver.jit == []
