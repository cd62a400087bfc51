"""Run the checks of a kernel on its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Literal

import torch

from gemmgen.module import matmul_of, pack_scales_of
from gemmgen.plan.decisions import problem_of
from gemmgen.problem import Check, Shape, shape_text
from gemmgen.problem.case import Case, once
from gemmgen.spec.model import Spec
from gemmgen.verify.checks import BLOCK_SCALED, PORTABLE, Group
from gemmgen.verify.gpu import GPU_ONLY, context_lost, require_gpu
from gemmgen.verify.shapes import acceptance_shapes, large_shape, refuse_k
from gemmgen.verify.verification import Verification

Device = Literal["cuda", "cpu"]
Progress = Callable[[str], None]
"""Told in a few words what is about to be done."""
Groups = Sequence[tuple[str, Group]]


def silent(_: str) -> None:
    """Report no progress."""


def verify(
    module: ModuleType,
    spec: Spec,
    shapes: Iterable[Shape] | None = None,
    *,
    repeats: int = 50,
    seed: int = 0,
    device: Device = "cuda",
    progress: Progress = silent,
) -> Verification:
    """Check the module's matmul on each shape [M, N, K].

    Its numbers, what it writes, strides, NaN and infinities, that it repeats, and that packed scales of
    blocks do what plain ones do. Without ``shapes``, on those of the spec's ``check`` and then on the
    acceptance shapes. On ``cuda`` also under a CUDA graph and on a side stream; ``cpu`` is for modules that
    compute there. A kernel that raises, or takes the CUDA context down, is a failed check; one that never
    returns is beyond the reach of its own process.

    Raises GemmgenError: ``bad-shapes`` for a K that the operands cannot have; ``no-gpu`` where the device is
    ``cuda`` and there is no GPU that the spec's kernel can run on.
    """
    chosen = default_shapes(spec) if shapes is None else tuple(shapes)
    refuse_k(spec, chosen)
    where = _place(device, spec)
    groups = groups_of(spec, device)
    return _verification(_cases(module, spec, chosen, where, repeats, seed), groups, where, progress)


def verify_numbers(
    module: ModuleType,
    spec: Spec,
    shapes: Iterable[Shape],
    *,
    seed: int = 0,
    device: Device = "cuda",
    progress: Progress = silent,
) -> Verification:
    """Check, in one run on each shape [M, N, K], that a poisoned D is written everywhere and right.

    For runs too slow or too large for ``verify``. Raises GemmgenError as ``verify`` does.
    """
    chosen = tuple(shapes)
    refuse_k(spec, chosen)
    where = _place(device, spec)
    cases = _cases(module, spec, chosen, where, repeats=1, seed=seed)
    return _verification(cases, (("once", once),), where, progress)


def verify_large(module: ModuleType, spec: Spec, *, progress: Progress = silent) -> Verification:
    """Check every element of a D that has more than 2**31; needs up to 60 GB of GPU memory.

    Of a kernel of a single tile, the largest D that it can compute. Raises GemmgenError (``no-gpu``) as
    ``verify`` does.
    """
    return verify_numbers(module, spec, (large_shape(spec),), progress=progress)


def default_shapes(spec: Spec) -> tuple[Shape, ...]:
    """Return the spec's own shapes to check, then the acceptance shapes, each once.

    Raises GemmgenError where the spec is of a single tile, leaves its size open, and no plan is legal.
    """
    own = spec.check.shapes if spec.check else ()
    return tuple(dict.fromkeys((*own, *acceptance_shapes(spec))))


def groups_of(spec: Spec, device: Device) -> Groups:
    """Return the groups of checks that a spec's module must pass on a device, in the order of their runs.

    The group of packed scales comes first: packing plain ones takes memory, and what a later run allocates
    for that is then at hand, and need not be the poisoned block that is meant for D.
    """
    scaled = BLOCK_SCALED if problem_of(spec).block_scaled else ()
    return (*scaled, *PORTABLE, *(GPU_ONLY if device == "cuda" else ()))


def run_checks(
    cases: Iterable[Case], groups: Groups, lost: Callable[[], bool], progress: Progress
) -> Iterator[Check]:
    """Run every group on every case; once a failure has ``lost`` the device, report the rest as not run."""
    cause = ""
    for case in cases:
        for name, group in groups:
            if cause:
                yield Check(case.shape, name, None, 0, f"not run: {cause}")
                continue
            progress(f"{shape_text(case.shape)} {name}")
            try:
                yield from group(case)
            except Exception as error:  # whatever a kernel raises is a finding about it
                detail = f"{type(error).__name__}: {_first_line(error)}"
                yield Check(case.shape, name, None, 0, detail)
                if lost():
                    cause = f"the device was lost at {shape_text(case.shape)} {name}"


def _place(device: Device, spec: Spec) -> torch.device:
    return require_gpu(problem_of(spec).gpu.architecture) if device == "cuda" else torch.device("cpu")


def _cases(
    module: ModuleType, spec: Spec, shapes: Sequence[Shape], device: torch.device, repeats: int, seed: int
) -> tuple[Case, ...]:
    # All of them before the first kernel runs: a lost device makes no generator.
    return tuple(
        Case(
            matmul=matmul_of(module),
            shape=shape,
            spec=spec,
            generator=torch.Generator(device).manual_seed(seed + index),
            repeats=repeats,
            pack_scales=pack_scales_of(module),
        )
        for index, shape in enumerate(shapes)
    )


def _verification(
    cases: Iterable[Case], groups: Groups, device: torch.device, progress: Progress
) -> Verification:
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    lost = context_lost if on_gpu else lambda: False
    return Verification(name, tuple(run_checks(cases, groups, lost, progress)))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
