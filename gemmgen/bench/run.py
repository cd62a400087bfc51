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
from gemmgen.bench.cuda import CudaMachine
from gemmgen.bench.machine import Machine
from gemmgen.bench.measure import measure
from gemmgen.bench.problem import InputSet, input_sets
from gemmgen.bench.protocol import Protocol
from gemmgen.bench.record import SCHEMA, Dtypes, Environment, Measurement, Record, Subject, utc_now
from gemmgen.bench.roofline import Ceilings, ceilings_of
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import Matmul, matmul_of
from gemmgen.spec.model import Operands, Spec
from gemmgen.verify import Shape, shape_text
from gemmgen.verify.gpu import require_hopper
from gemmgen.verify.matrix import Matrix, takes_out
from gemmgen.verify.reference import Deviation, deviation
from gemmgen.verify.tolerance import TOLERANCES, WORST_ELEMENT_FACTOR

Progress = Callable[[str], None]
Call = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Enqueues d = a @ b and returns d, or another tensor of the product where it cannot write d."""


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

    Left out: the default protocol, the ceilings measured on this product, the current GPU, cuBLAS.

    Raises GemmgenError: ``no-gpu``; ``no-baseline``; ``wrong-result`` when the kernel is wrong on the tensors
    to be timed, and then it is not timed; ``kernel-failed`` when a call of either arm raises.
    """
    machine = machine or CudaMachine(require_hopper())
    contest = _Contest(
        spec_path=subject.spec_path,
        operands=spec.operands,
        matmul=matmul_of(module),
        baseline=baseline or cublas(spec.operands),
        protocol=protocol or Protocol(),
        machine=machine,
        environment=machine.environment(),
    )
    return Record(
        schema=SCHEMA,
        subject=subject,
        environment=contest.environment,
        dtypes=contest.dtypes,
        baseline=contest.baseline.text,
        protocol=contest.protocol,
        ceilings=ceilings or ceilings_of(contest.environment.gpu),
        measurements=tuple(contest.measurement(shape, progress) for shape in shapes),
        date=utc_now(),  # evaluated last: when it ended
    )


@dataclass(frozen=True)
class _Contest:
    """The two arms and the rules."""

    spec_path: str
    operands: Operands
    matmul: Matmul
    baseline: Baseline
    protocol: Protocol
    machine: Machine
    environment: Environment

    @property
    def dtypes(self) -> Dtypes:
        """As the spec has them."""
        return Dtypes(self.operands.a.dtype, self.operands.b.dtype, self.operands.d.dtype)

    def measurement(self, shape: Shape, progress: Progress) -> Measurement:
        """Judge both arms on one shape, and time them if ours is right."""
        tell = partial(_tell, progress, shape_text(shape))
        tell("checking the numbers")
        with self._failures(shape):
            generator = torch.Generator(self.machine.device).manual_seed(self.protocol.seed)
            sets = input_sets(shape, self.operands, self.environment.l2_bytes, generator, self.protocol)
            call = _ours(self.matmul, sets[0].d)
            ours, baseline = (self._judged(arm, shape, sets[0]) for arm in (call, self.baseline.call))
            self._refuse_wrong(shape, ours)
            timing = measure(
                _arm(call, sets),
                _arm(self.baseline.call, sets),
                len(sets),
                self.machine,
                self.protocol,
                tell,
            )
        return Measurement(shape, len(sets), ours.relative, baseline.relative, timing)

    def _judged(self, call: Call, shape: Shape, inputs: InputSet) -> Deviation:
        inputs.d.fill_(torch.nan)
        # Freed at once: on a GPU a result that the call allocates gets this block, and is poisoned as d is.
        Matrix.poisoned(*shape[:2], self.operands.d.dtype, self.machine.device)
        return deviation(call(inputs.a, inputs.b, inputs.d), inputs.a, inputs.b)

    def _refuse_wrong(self, shape: Shape, found: Deviation) -> None:
        tolerance = TOLERANCES[self.operands.d.dtype]
        limits = (
            ("relative error", found.relative, tolerance),
            ("worst element", found.worst_element, WORST_ELEMENT_FACTOR * tolerance),
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
    """Return the call for tensors like ``d``, decided here: what it costs the host is measured."""
    if takes_out(d.shape[1], d.dtype):
        return lambda a, b, d: matmul(a, b, out=d)
    return lambda a, b, _: matmul(a, b)


def _arm(call: Call, sets: tuple[InputSet, ...]) -> Callable[[int], object]:
    tensors = tuple((inputs.a, inputs.b, inputs.d) for inputs in sets)
    results = [inputs.d for inputs in sets]

    def enqueue(index: int) -> None:
        # Kept until the set's next turn: results that a call allocates are then rotated like the sets.
        results[index] = call(*tensors[index])

    return enqueue


def _tell(progress: Progress, subject: str, message: str) -> None:
    progress(f"{subject}: {message}")
