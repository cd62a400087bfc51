"""Modules whose launches the simulator executes: `matmul` checks, launches and computes on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from modules import made, module_file, spec_file
from torch import Tensor

from gemmgen.module import import_generated
from gemmgen.numerics.case import kernel_arguments
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.numerics.inputs import Inputs
from gemmgen.product import Product
from gluonsim import Finding, Kind
from gluonsim.execution import run


def simulated(stem: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a committed module that runs on a GPU that does not exist; torch finds it by its name.

    It takes tensors of the class `Cuda` and returns such. A launch with a finding fails the test.
    """
    return simulated_file(module_file(stem), made(spec_file(stem)), monkeypatch)


def simulated_file(file: Path, product: Product, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the same of the module in a file, which a product has."""
    on_a_fake_gpu(monkeypatch)
    module = import_generated(file)
    kernel, target = module.matmul_kernel, product.plan.architecture

    def launch(programs: int, arguments: list[Any]) -> None:
        given = [on_the_cpu(argument) for argument in arguments]
        options = module.LAUNCH_OPTIONS
        result = run(kernel, (programs,), given, target=target, schedules=("random",), **options)
        assert faults(result.findings, product) == []

    launch_into(module, launch)
    monkeypatch.setitem(sys.modules, file.stem, module)
    return module


class Simulated:
    """The kernel of a module as a `matmul` without a wrapper, run by a few programs."""

    def __init__(self, product: Product, file: Path, programs: int = 3) -> None:
        self.product, self.module, self.programs = product, import_generated(file), programs
        self.problem = product.source.problem

    @classmethod
    def of(cls, stem: str, programs: int = 3) -> Simulated:
        """Return the kernel of a committed module."""
        return cls(made(spec_file(stem)), module_file(stem), programs)

    def __call__(self, a: Tensor, b: Tensor, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        problem = self.problem
        inputs = Inputs(a, b, extras, problem.b_blocks)
        rows = extras["a_rows"].shape if "a_rows" in extras else a.shape[:-1]
        if problem.groups and problem.groups.divides_k:
            rows = (len(extras["offs"]), *rows)
        shape = (*rows, problem.d_blocks * b.shape[-1] // problem.b_blocks)
        d = torch.full(shape, float("nan"), dtype=TORCH_DTYPES[problem.d.name]) if out is None else out
        arguments = kernel_arguments(self.module, problem, inputs, d)
        options = self.module.LAUNCH_OPTIONS
        target = self.product.plan.architecture
        result = run(
            self.module.matmul_kernel,
            (self.programs,),
            arguments,
            target=target,
            schedules=("random",),
            **options,
        )
        assert faults(result.findings, self.product) == []
        return d


def faults(findings: Sequence[Finding], product: Product) -> list[Finding]:
    """Return the findings but those of rows that two tiles compute, where the last one ends with D."""
    is_meant = {Kind.REDUNDANT_STORE} if product.plan.last_tile_ends_with_d else set[Kind]()
    return [each for each in findings if each.kind not in is_meant]


def on_the_cpu(argument: Any) -> Any:
    """Return an argument of a launch as the simulator takes it: the tensors of `Cuda` are on the CPU."""
    if isinstance(argument, Tensor):
        return argument.as_subclass(Tensor)
    if not hasattr(argument, "base"):
        return argument
    if isinstance(argument.base, Tensor):
        argument.base = argument.base.as_subclass(Tensor)
    else:  # memory ahead of a tensor
        argument.base.tensor = argument.base.tensor.as_subclass(Tensor)
    return argument


def signs(*shape: int, device: str = "cpu") -> Tensor:
    """Return -1, 0 and 1 in bf16: with so few summands every sum is exact, whatever its order."""
    return torch.randint(-1, 2, shape, device=device).to(torch.bfloat16)


def on_a_gpu(tensor: Tensor) -> Tensor:
    """Return a CPU tensor as one of a GPU that does not exist; a tensor of a real GPU stays as it is."""
    return tensor if tensor.is_cuda else tensor.as_subclass(Cuda)
