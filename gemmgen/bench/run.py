"""Benchmark one kernel against the baseline, shape by shape."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.call import Call
from gemmgen.bench.cuda import CudaMachine
from gemmgen.bench.machine import Machine
from gemmgen.bench.measure import measure
from gemmgen.bench.problem import InputSet, dtypes_of, input_sets
from gemmgen.bench.protocol import Protocol
from gemmgen.bench.record import SCHEMA, Environment, Measurement, Record, Subject, utc_now
from gemmgen.bench.roofline import Ceilings, ceilings_of
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import Matmul, matmul_of, pack_scales_of
from gemmgen.plan.decisions import problem_of
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.dtype import poison
from gemmgen.problem.matrix import Matrix, takes_out
from gemmgen.problem.reference import Deviation, deviation
from gemmgen.problem.tolerance import tolerance
from gemmgen.spec.model import Spec
from gemmgen.verify.gpu import require_gpu
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
            bind = _ours(self.matmul, sets[0].d)
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


def _ours(matmul: Matmul, d: Tensor) -> Call:
    """Return how our arm is called, decided here by one ``d``: what a call costs the host is measured."""
    if takes_out(d.shape[1], d.dtype):
        return lambda inputs, d: partial(matmul, inputs.a, inputs.b, **inputs.extras, out=d)
    return lambda inputs, _: partial(matmul, inputs.a, inputs.b, **inputs.extras)


def _arm(bind: Call, sets: tuple[InputSet, ...]) -> Callable[[int], object]:
    calls = tuple(bind(each.timed, each.d) for each in sets)
    results = [each.d for each in sets]

    def enqueue(index: int) -> None:
        # Kept until the set's next turn: results that a call allocates are then rotated like the sets.
        results[index] = calls[index]()

    return enqueue


def _tell(progress: Progress, subject: str, message: str) -> None:
    progress(f"{subject}: {message}")
