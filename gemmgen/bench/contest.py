"""Benchmark one kernel against the baseline, shape by shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

import torch
from torch import Tensor

from gemmgen.bench.baseline import Baseline, Call, bound, cublas, other_module, rival
from gemmgen.bench.machine import CudaMachine, Machine, measure
from gemmgen.bench.record import (
    SCHEMA,
    Ceilings,
    Dtypes,
    Environment,
    Measurement,
    Protocol,
    Record,
    Subject,
    ceilings_of,
    utc_now,
)
from gemmgen.device import require_gpu
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import Matmul, import_generated, matmul_of, pack_scales_of
from gemmgen.numerics.encoding import poison
from gemmgen.numerics.inputs import Inputs, Matrix, random_inputs
from gemmgen.numerics.reference import Deviation, deviation, tolerance
from gemmgen.plan.decisions import problem_of
from gemmgen.problem import Shape, shape_text
from gemmgen.product import make, staged
from gemmgen.spec.model import Spec
from gemmgen.verify.shapes import refuse_k

Progress = Callable[[str], None]


def bench(
    module: ModuleType,
    subject: Subject,
    spec: Spec,
    shapes: Iterable[Shape],
    *,
    protocol: Protocol | None = None,
    ceilings: Ceilings | None = None,
    machine: Machine | None = None,
    baseline: Baseline | None = None,
    progress: Progress = lambda _: None,
) -> Record:
    """Time the module's matmul and the baseline on each shape [M, N, K], by turns and on the same tensors.

    Where the module's matmul takes no ``out``, its result is one that it allocates in each call.

    Left out: the default protocol, the ceilings of this product for these operands (without any, there is no
    roofline, and progress says so), the current GPU, what a user of torch would call. Scales of blocks are
    packed before anything is timed, for both.

    Raises GemmgenError: ``bad-shapes`` for a K that the operands cannot have; ``no-gpu``; ``no-baseline``;
    ``wrong-result`` when the kernel is wrong on the tensors to be timed, and then it is not timed;
    ``kernel-failed`` when a call of either arm raises.
    """
    chosen = tuple(shapes)
    refuse_k(spec, chosen)
    machine = machine or CudaMachine(require_gpu(problem_of(spec).gpu.architecture))
    contest = _Contest(
        spec_path=subject.spec_path,
        spec=spec,
        matmul=matmul_of(module),
        pack_scales=pack_scales_of(module) if problem_of(spec).block_scaled else None,
        baseline=baseline or cublas(spec),
        protocol=protocol or Protocol(),
        machine=machine,
        environment=machine.environment(),
    )
    return Record(
        schema=SCHEMA,
        subject=subject,
        environment=contest.environment,
        dtypes=dtypes_of(spec),
        baseline=contest.baseline.text,
        protocol=contest.protocol,
        ceilings=ceilings or _ceilings(contest.environment.gpu, spec, progress),
        measurements=tuple(contest.measurement(shape, progress) for shape in chosen),
        date=utc_now(),  # evaluated last: when it ended
    )


def _ceilings(gpu: str, spec: Spec, progress: Progress) -> Ceilings | None:
    """Return the ceilings for the spec's operands, or say that there are none."""
    operand, problem = spec.operands.a.dtype, problem_of(spec)
    found = ceilings_of(gpu, operand, max(problem.a.smem_bits, problem.b.smem_bits))
    if found is None:
        progress(f"no ceiling was measured for {operand} on {gpu}: there is no roofline")
    return found


@dataclass(frozen=True)
class _Contest:
    """The two arms and the rules."""

    spec_path: str
    spec: Spec
    matmul: Matmul
    pack_scales: Callable[[Tensor], Tensor] | None
    baseline: Baseline
    protocol: Protocol
    machine: Machine
    environment: Environment

    def measurement(self, shape: Shape, progress: Progress) -> Measurement:
        """Judge both arms on one shape, and time them if ours is right."""
        tell = partial(_tell, progress, shape_text(shape))
        tell("checking the numbers")
        with self._failures(shape), self.baseline.settings():
            generator = torch.Generator(self.machine.device).manual_seed(self.protocol.seed)
            l2_bytes = self.environment.l2_bytes
            sets = input_sets(shape, self.spec, l2_bytes, generator, self.protocol, self.pack_scales)
            bind = partial(bound, self.matmul)
            ours, baseline = (self._judged(arm, sets[0]) for arm in (bind, self.baseline.bind))
            self._refuse_wrong(shape, ours)
            timing = measure(
                _arm(bind, sets),
                _arm(self.baseline.bind, sets),
                len(sets),
                self.machine,
                self.protocol,
                tell,
            )
        return Measurement(shape, len(sets), ours.relative, baseline.relative, timing)

    def _judged(self, bind: Call, inputs_and_d: InputSet) -> Deviation:
        inputs, d = inputs_and_d.inputs, inputs_and_d.d
        call = bind(inputs_and_d.timed, d)
        d.fill_(poison(d.dtype))
        # Freed at once: on a GPU a result that the call allocates gets this block, and is poisoned as d is.
        Matrix.poisoned(d.shape[0], d.shape[1], self.spec.operands.d.dtype, self.machine.device)
        return deviation(call(), inputs, self.spec)

    def _refuse_wrong(self, shape: Shape, found: Deviation) -> None:
        allowed = tolerance(self.spec, shape)
        limits = (
            ("relative error", found.relative, allowed.relative),
            ("worst element", found.worst_element, allowed.worst_element),
        )
        for what, measured, limit in limits:
            if not measured <= limit:  # NaN is not
                message = f"{what} {measured:.3g}, the limit is {limit:.3g}; a wrong kernel is not timed"
                raise self._error("wrong-result", shape, message)

    @contextmanager
    def _failures(self, shape: Shape) -> Generator[None, None, None]:
        """Turn whatever a kernel raises into a diagnostic."""
        try:
            yield
        except GemmgenError:
            raise
        except Exception as error:
            first_line = next(iter(str(error).splitlines()), "")
            raise self._error("kernel-failed", shape, f"{type(error).__name__}: {first_line}") from error

    def _error(self, code: str, shape: Shape, message: str) -> GemmgenError:
        return GemmgenError([Diagnostic(self.spec_path, code, message, field=shape_text(shape))])


def _arm(bind: Call, sets: tuple[InputSet, ...]) -> Callable[[int], object]:
    calls = tuple(bind(each.timed, each.d) for each in sets)
    results = [each.d for each in sets]

    def enqueue(index: int) -> None:
        # Kept until the set's next turn: results that a call allocates are then rotated like the sets.
        results[index] = calls[index]()

    return enqueue


def _tell(progress: Progress, subject: str, message: str) -> None:
    progress(f"{subject}: {message}")


# --- the tensors: the same for both arms, and enough of them to leave the cache


@dataclass(frozen=True)
class InputSet:
    """What one call takes, and d [M, N] for its result."""

    inputs: Inputs
    """As the spec has them, for the reference."""
    timed: Inputs
    """What the calls get: the same, but scales of blocks are packed already, as those of weights would be."""
    d: Tensor


def dtypes_of(spec: Spec) -> Dtypes:
    """Return the element types as the spec has them."""
    operands = spec.operands
    return Dtypes(
        a=operands.a.dtype,
        b=operands.b.dtype,
        d=operands.d.dtype,
        c=operands.c.dtype if operands.c else None,
        a_scale=operands.a.scale.format if operands.a.scale else None,
        b_scale=operands.b.scale.format if operands.b.scale else None,
    )


def input_sets(
    shape: Shape,
    spec: Spec,
    l2_bytes: int,
    generator: torch.Generator,
    protocol: Protocol,
    pack_scales: Callable[[Tensor], Tensor] | None = None,
) -> tuple[InputSet, ...]:
    """Return the sets that calls are rotated over: random and normalized inputs, and poisoned results."""
    set_bytes = dtypes_of(spec).moved_bytes(shape)
    count = min(protocol.max_input_sets, math.ceil(protocol.l2_multiple * l2_bytes / set_bytes))
    return tuple(_input_set(shape, spec, generator, pack_scales) for _ in range(count))


def _input_set(
    shape: Shape,
    spec: Spec,
    generator: torch.Generator,
    pack_scales: Callable[[Tensor], Tensor] | None,
) -> InputSet:
    d = Matrix.poisoned(*shape[:2], spec.operands.d.dtype, generator.device).view
    inputs = random_inputs(shape, spec, generator, normalized=True)
    return InputSet(inputs, inputs.packed(pack_scales) if pack_scales else inputs, d)


# --- from a spec to its record


AGAINST_A_MODULE: Final = Protocol(pairs=30, graph_below_seconds=1.0)
"""Two modules of one spec differ by a percent or less: more pairs than against cuBLAS, and CUDA graphs
throughout, so that kernels are compared and no launches."""


def time_spec(
    path: Path,
    shapes: Sequence[Shape] | None,
    progress: Callable[[str], None],
    against: Path | None = None,
) -> Record:
    """Generate a spec's module and time it on the given shapes, or else on those that the spec lists.

    The baseline is cuBLAS, or gemmgen's kernel by single CTAs or pairs where torch has none; or it is the
    module ``against``, which takes what the spec's own takes.

    Raises:
        GemmgenError: The spec is rejected, there are no shapes, ``against`` is no module, or ``bench``
            refuses to time the kernel.
    """
    product = make(path)
    spec = product.source.spec
    chosen = shapes or (spec.bench.shapes if spec.bench else None)
    if not chosen:
        message = "names no shapes to time: list them under bench.shapes, or give --shapes"
        raise GemmgenError([Diagnostic(product.source.path, "no-shapes", message)])
    opponent = nullcontext(other_module(against)) if against else rival(product)
    with staged(product) as module_path, opponent as baseline:
        subject, module = Subject.of(path, module_path), import_generated(module_path)
        return bench(
            module,
            subject,
            spec,
            chosen,
            protocol=AGAINST_A_MODULE if against else None,
            baseline=baseline,
            progress=progress,
        )
