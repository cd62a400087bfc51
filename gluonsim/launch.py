"""A launch in the simulator, written as it is written for a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from gemmgen.hardware import Architecture, Gpu
from gemmgen.hardware.gpus import gpu_named
from gluonsim.compiled import described
from gluonsim.execution import is_dependent, run_lowered
from gluonsim.findings import Findings, Kind, refusal
from gluonsim.global_memory import GlobalMemory
from gluonsim.ir.ttgir import lower_kernel
from gluonsim.lints.compiler import compiled
from gluonsim.policies import DEFAULT_SCHEDULES
from gluonsim.progress import Tell
from gluonsim.result import Result
from gluonsim.tensors.differences import Difference
from gluonsim.tensors.regions import Slice, differing

Expected = Mapping[str, Tensor]
"""What tensors must hold after the launch, by the names of the kernel's parameters."""


def gpu_of_target(target: str) -> Gpu:
    """Return the GPU of ``h100``, ``b200``, ``sm90``, ``sm_100a`` and their like.

    Raises:
        GemmgenError: There is none of this name.
    """
    try:
        return gpu_named(target)
    except KeyError as error:
        raise refusal(f"{error.args[0]}; sm90 and sm100 name the first GPU", code="bad-launch") from error


@dataclass(frozen=True)
class Simulated:
    """A kernel that is launched in the simulator: ``simulated[grid](*args, **kwargs)``."""

    kernel: Any
    target: Architecture
    schedules: Sequence[str] = DEFAULT_SCHEDULES
    seed: int = 0
    expect: Expected | None = None
    reference: Callable[..., Expected] | None = None
    rtol: float = 0.0
    atol: float = 0.0
    resident_programs: int | None = None
    processes: int = 1
    early: Sequence[str] | None = None
    restored: Sequence[str] = ()
    recomputed: Sequence[Tensor] = ()
    machine_code: bool = False
    programs: int | None = None
    progress: Tell | None = None

    def __getitem__(self, grid: Any) -> Callable[..., Result]:
        """Return what launches the kernel; a grid is one to three numbers, or a function of the arguments."""

        def launch(*args: Any, **kwargs: Any) -> Result:
            lowered = lower_kernel(self.kernel, args, self.target, kwargs)
            expected = _tensors("expect", self.expect or {})
            if self.reference is not None:
                expected |= _tensors("what reference returns", _called(self.reference, lowered.bound))
            checks = [
                _Check(name, _tensor(name, lowered.arguments), wanted.detach(), self.rtol, self.atol)
                for name, wanted in expected.items()
            ]
            result = run_lowered(
                self.kernel,
                lowered,
                grid,
                self.schedules,
                self.seed,
                checks=[check.judge for check in checks],
                resident_programs=self.resident_programs,
                processes=self.processes,
                dependent=is_dependent(kwargs),
                early=self.early,
                restored=self.restored,
                recomputed=self.recomputed,
                sample=self.programs,
                progress=self.progress,
            )
            return replace(result, compiler=compiled(lowered)[1]) if self.machine_code else result

        return launch


def simulate(
    kernel: Any,
    target: str | Architecture = "h100",
    *,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    seed: int = 0,
    expect: Expected | None = None,
    reference: Callable[..., Expected] | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    resident_programs: int | None = None,
    processes: int = 1,
    early: Sequence[str] | None = None,
    restored: Sequence[str] = (),
    recomputed: Sequence[Tensor] = (),
    machine_code: bool = False,
    programs: int | None = None,
    progress: Tell | None = None,
) -> Simulated:
    """Return a kernel to be launched in the simulator: ``simulate(kernel)[grid](*args, **kwargs)``.

    The launch takes what it takes on a GPU, with CPU tensors, and returns a `Result`. Each schedule starts
    from the tensors as they are given; they are left as the last one made them.

    Args:
        kernel: What ``@gluon.jit`` decorates.
        target: ``h100``, ``h200``, ``b200``, or a compute capability, ``sm90`` or ``sm100``.
        schedules: Names of policies: lazy, eager, lifo, random.
        seed: The random schedule at position i of `schedules` has the seed ``seed + i``.
        expect: The tensors that the kernel must leave, by the names of its parameters. Without `rtol` and
            `atol` every bit must be the same.
        reference: A function that returns such tensors. It is called before the kernel runs, with the
            arguments that its parameters name; of a descriptor it gets the tensor.
        rtol: Largest difference, relative to the expected number.
        atol: Largest difference, in addition.
        resident_programs: Programs that the GPU holds at one time, as for ``run``.
        processes: Among which the schedules are divided, as for ``run``.
        early: Parameters that a launch with ``launch_pdl=True`` may read before gdc_wait, as for ``run``.
        restored: Parameters whose tensors the kernel must leave as it finds them, as for ``run``.
        recomputed: Views of tensors, with elements that several stores compute on purpose, as for ``run``.
        machine_code: Compile the kernel to machine code too, which takes seconds: the result then has the
            registers, spills and notes of ptxas as `compiler`.
        programs: Size of a sample of the grid that runs in place of all programs, as for ``run``. An
            expectation counts for the elements that the sample writes.
        progress: A function that is told how far a long launch is, such as ``print``, as for ``run``. By
            default nothing is: a library that writes to stderr unasked disturbs tests and notebooks.

    Raises:
        GemmgenError: There is no such target; at the launch, what ``run`` raises, or an expectation that does
            not fit its tensor.
    """
    architecture = target if isinstance(target, Architecture) else gpu_of_target(target).architecture
    return Simulated(
        kernel,
        architecture,
        schedules,
        seed,
        expect,
        reference,
        rtol,
        atol,
        resident_programs,
        processes,
        early,
        restored,
        recomputed,
        machine_code,
        programs,
        progress,
    )


def _tensors(option: str, values: Any) -> dict[str, Tensor]:
    """Return expectations as a dictionary of tensors.

    Raises:
        GemmgenError: They are none.
    """
    found = dict(cast("Mapping[str, Any]", values)) if isinstance(values, Mapping) else {"": values}
    for name, value in found.items():
        if not name or not isinstance(value, Tensor):
            text = f"{option} must be a dictionary of tensors, and has {type(value).__name__}"
            raise refusal(f"{text} for {name}" if name else text, code="bad-launch")
    return found


def _called(reference: Callable[..., Expected], bound: Mapping[str, Any]) -> Expected:
    """Call a function with the launch's arguments of the names of its parameters."""
    parameters = inspect.signature(reference).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = list(bound)
    else:
        names = [parameter.name for parameter in parameters]
    if unknown := [name for name in names if name not in bound]:
        raise refusal(
            f"the kernel has no parameter {unknown[0]}, which the reference takes", code="bad-launch"
        )
    values = {
        name: value if (view := described(bound[name])) is None else view for name, value in bound.items()
    }
    return reference(**{name: values[name] for name in names})


def _tensor(name: str, arguments: Mapping[str, Any]) -> Tensor:
    """Return the tensor that a parameter is or describes."""
    if name not in arguments:
        raise refusal(f"the kernel has no run-time parameter {name}, which is expected", code="bad-launch")
    tensor = described(arguments[name])
    if tensor is None:
        raise refusal(f"{name} is no tensor, and has no contents to expect", code="bad-launch")
    return tensor


class _Check:
    """One tensor against what it must hold."""

    def __init__(self, name: str, tensor: Tensor, wanted: Tensor, rtol: float, atol: float) -> None:
        if tensor.shape != wanted.shape:
            shapes = f"{list(tensor.shape)}, and what is expected {list(wanted.shape)}"
            raise refusal(f"{name} has the shape {shapes}", code="bad-launch")
        if tensor.dtype != wanted.dtype and rtol == atol == 0:
            types = f"{tensor.dtype}, and what is expected {wanted.dtype}: give a tolerance, or convert it"
            raise refusal(f"{name} is {types}", code="bad-launch")
        self._name = name
        self._tensor = tensor
        self._wanted = wanted.clone()
        self._rtol = rtol
        self._atol = atol

    def judge(self, findings: Findings, memory: GlobalMemory, *, sampled: bool) -> None:
        """Report the elements that are wrong; after a sample of programs, among those that it wrote."""
        differs = self._wrong()
        if sampled:
            written = memory.written(Slice(self._tensor))
            differs = torch.zeros_like(differs) if written is None else differs & written
        if difference := Difference.of(self._tensor, self._wanted, differs, memory):
            difference.report(findings, Kind.WRONG_NUMBERS, self._name, "are wrong")

    def _wrong(self) -> Tensor:
        if self._rtol == self._atol == 0:
            return differing(self._tensor, self._wanted)
        close = torch.isclose(
            self._tensor.double(), self._wanted.double(), rtol=self._rtol, atol=self._atol, equal_nan=True
        )
        return ~close
