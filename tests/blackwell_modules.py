"""The generated Blackwell modules without a B200: their wrappers on CPU tensors that claim to be on one."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from modules import module_file
from right_kernel import unpacked_scales, written_out
from torch import Tensor

from gemmgen.module import import_generated
from gemmgen.numerics.encoding import rounded
from gemmgen.spec import SpecFile, load_spec


def module_and_spec(path: Path) -> tuple[ModuleType, SpecFile]:
    """A committed module, executed afresh, and its spec."""
    return import_generated(module_file(path.stem)), load_spec(path)


def fake_gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    """Let torch find one GPU of this name and compute capability."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def computed(monkeypatch: pytest.MonkeyPatch, module: ModuleType, spec: SpecFile) -> None:
    """Let a module run on the CPU: all of its wrapper, and in place of the launch what the spec says.

    The operands are looked at through the wrapper's descriptors: the bytes, rows and strides that TMA gets.
    """
    problem = spec.problem
    matmul, names = module.matmul, module.matmul_kernel.arg_names

    def launch(*launched: Any) -> None:
        arguments = dict(zip(names, launched[-1], strict=False))
        a, b = (_viewed(arguments[f"{name}_desc"]) for name in "ab")
        a, b = (a.T if problem.a.major == "mn" else a), (b if problem.b.major == "mn" else b.T)
        d = _viewed(arguments["d_desc"])
        k = a.shape[1] * problem.a.dtype.elements_per_byte
        extras: dict[str, Tensor] = {}
        for name, rows, operand in (("a_scale", d.shape[0], problem.a), ("b_scale", d.shape[1], problem.b)):
            if operand.scale is not None:
                packed = _viewed(arguments[f"{name}_desc"]).view(module.ARGUMENTS[name]["dtype"])
                extras[name] = unpacked_scales(packed, rows, -(-k // operand.scale.vector))
        for name in (*(["c"] if problem.c else []), *problem.vectors):
            extras[name] = _viewed(arguments[f"{name}_desc"])
        if problem.scalar:
            extras["tensor_scale"] = arguments["tensor_scale_ptr"].as_subclass(Tensor)
        d.copy_(rounded(written_out(spec, a, b, **extras), d.dtype))

    def on_the_cpu(a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        extras = {name: tensor.as_subclass(Cuda) for name, tensor in extras.items()}
        given = None if out is None else out.as_subclass(Cuda)
        made = matmul(a.as_subclass(Cuda), b.as_subclass(Cuda), out=given, **extras).as_subclass(Tensor)
        return made if out is None else out

    on_a_fake_gpu(monkeypatch, (10, 0))
    launch_into(module, launch)
    monkeypatch.setattr(module, "matmul", on_the_cpu)


def _viewed(descriptor: Any) -> Tensor:
    """The tensor that TMA is told of, from its address, extents and strides alone."""
    shape, strides = tuple(descriptor.shape), tuple(descriptor.strides)
    itemsize = descriptor.base.dtype.itemsize
    count = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    buffer = (ctypes.c_uint8 * (count * itemsize)).from_address(descriptor.base.data_ptr())
    return torch.frombuffer(buffer, dtype=torch.uint8).view(descriptor.base.dtype).as_strided(shape, strides)
