"""Modules whose launches the simulator executes: `matmul` checks, launches and computes on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_gpu import Cuda, launch_into, on_a_fake_gpu
from modules import made, module_file, spec_file
from torch import Tensor

from gemmgen.features.checking import sides_of
from gemmgen.module import import_generated
from gemmgen.numerics.case import kernel_arguments
from gemmgen.numerics.encoding import TORCH_DTYPES
from gemmgen.numerics.inputs import Inputs
from gemmgen.plan.kernel import Kernel
from gemmgen.product import Product
from gemmgen.verify.simulation import output_arguments
from gluonsim.execution import run


def simulated(stem: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a committed module that runs on a GPU that does not exist; torch finds it by its name.

    It takes tensors of the class `Cuda` and returns such. A launch with a finding fails the test.
    """
    return simulated_file(module_file(stem), made(spec_file(stem)), monkeypatch)


def simulated_file(file: Path, product: Product, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the same of the module in a file, which a product has."""
    on_a_fake_gpu(monkeypatch)
    module, plan = import_generated(file), product.plan
    kernel = module.matmul_kernel

    def launch(programs: int, arguments: list[Any]) -> None:
        given = [on_the_cpu(argument) for argument in arguments]
        run_without_findings(kernel, plan, programs, given, module.LAUNCH_OPTIONS)

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
        inputs = Inputs(a, b, extras, problem.b_blocks, sides=sides_of(problem))
        rows = extras["a_rows"].shape if "a_rows" in extras else a.shape[:-1]
        if problem.groups and problem.groups.divides_k:
            rows = (len(extras["offs"]), *rows)
        shape = (*rows, problem.d_blocks * b.shape[-1] // problem.b_blocks)
        d = torch.full(shape, float("nan"), dtype=TORCH_DTYPES[problem.d.name]) if out is None else out
        arguments = kernel_arguments(self.module, problem, inputs, d)
        kernel, options = self.module.matmul_kernel, self.module.LAUNCH_OPTIONS
        run_without_findings(kernel, self.product.plan, self.programs, arguments, options)
        return d


def run_without_findings(
    kernel: Any, plan: Kernel, programs: int, arguments: Sequence[Any], options: Mapping[str, Any]
) -> None:
    """Execute a kernel in one schedule, with the options of its launch. A finding fails the test."""
    result = run(
        kernel,
        (programs,),
        arguments,
        target=plan.architecture,
        schedules=("random",),
        recomputed=computed_twice(plan, dict(zip(kernel.arg_names, arguments, strict=True))),
        **options,
    )
    assert not result.findings


def computed_twice(plan: Kernel, arguments: Mapping[str, Any]) -> list[Tensor]:
    """Return the rows of outputs that the last two tiles along M both compute, as views; mostly none."""
    if not plan.last_tile_ends_with_d:
        return []
    outputs = [arguments[name] for name in output_arguments(plan).values()]
    tensors: list[Tensor] = [getattr(each, "base", each) for each in outputs]
    rows = plan.rows_of_two_tiles(tensors[0].shape[0])
    return [each[rows.start : rows.stop] for each in tensors] if rows else []


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
