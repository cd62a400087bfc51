"""The timing of one kernel against the baseline on the shapes of its spec."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final

import torch
from torch import Tensor

from gemmgen.bench.arms import Calls, InputSet, Progress, input_sets, judged, wrong
from gemmgen.bench.baseline import Baseline, cublas
from gemmgen.bench.machine import CudaMachine, Machine
from gemmgen.bench.module_arm import bound, other_module
from gemmgen.bench.paired_timing import measure
from gemmgen.bench.record import (
    SCHEMA,
    Ceilings,
    Environment,
    Measurement,
    Protocol,
    Record,
    Subject,
    ceilings_of,
    utc_now,
)
from gemmgen.device import OUT_OF_MEMORY, is_out_of_memory, memory_text, require_gpu
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import MatmulFunction, import_generated, matmul_of, pack_scales_of
from gemmgen.numerics.reference import Deviation, tolerance
from gemmgen.numerics.torch_call import Call
from gemmgen.problem import Matmul, Shape, shape_text
from gemmgen.problem.dtypes import Dtypes
from gemmgen.product import make, staged
from gemmgen.spec import SpecFile
from gemmgen.verify.shapes import refuse_extents

AGAINST_A_MODULE: Final = Protocol(pairs=30, graph_below_seconds=1.0)
"""Protocol for two modules of one spec, which differ by a percent or less: more pairs than against cuBLAS,
and CUDA graphs throughout, so that launches are not compared.
"""


def time_spec(
    path: Path,
    shapes: Sequence[Shape] | None,
    progress: Callable[[str], None],
    against: Path | None = None,
) -> Record:
    """Generate a spec's module and time it on the given shapes, or else on those that the spec lists.

    If the spec lists none, it is timed on the shapes by which it was planned for its ``problem``.

    The baseline is the call of torch, or the module ``against``, which must take the same arguments.

    Raises:
        GemmgenError: The spec is rejected, there are no shapes, ``against`` is no module, or ``bench``
            refuses to time the kernel.
    """
    product = make(path)
    request = product.source.request
    chosen = shapes or request.bench_shapes or (request.planned_shapes if request.ranges else ())
    if not chosen:
        message = "names no shapes to time: list them under bench.shapes, state a problem, or give --shapes"
        raise GemmgenError([Diagnostic(product.source.path, "no-shapes", message)])
    baseline = other_module(against) if against else None
    with staged(product) as module_path:
        subject, module = Subject.of(path, module_path), import_generated(module_path)
        return bench(
            module,
            subject,
            product.source,
            chosen,
            protocol=AGAINST_A_MODULE if against else None,
            baseline=baseline,
            progress=progress,
        )


def bench(
    module: ModuleType,
    subject: Subject,
    source: SpecFile,
    shapes: Iterable[Shape],
    *,
    protocol: Protocol | None = None,
    ceilings: Ceilings | None = None,
    machine: Machine | None = None,
    baseline: Baseline | None = None,
    progress: Progress = lambda _: None,
) -> Record:
    """Time the module's matmul and the baseline on each shape [M, N, K], in alternation on the same tensors.

    If the module's matmul has no ``out``, each call allocates its result.

    Defaults: the default protocol, the ceilings of this product for these operands (without any, there is no
    roofline, and progress says so), the current GPU, the call of a torch user. Block scales are packed before
    anything is timed, for both.

    Raises GemmgenError: ``bad-shapes`` for a K that the operands cannot have; ``no-gpu``; ``no-baseline``;
    ``wrong-result`` if the kernel is wrong on the tensors to be timed, and then it is not timed;
    ``kernel-failed`` if a call of either arm raises; ``out-of-memory`` if the GPU's memory does not suffice.
    """
    chosen, problem = tuple(shapes), source.problem
    refuse_extents(problem, chosen)
    machine = machine or CudaMachine(require_gpu(source.request.gpu.architecture))
    paired = PairedRun(
        spec_path=subject.spec_path,
        source=source,
        matmul=matmul_of(module),
        pack_scales=pack_scales_of(module),
        baseline=baseline or cublas(source),
        protocol=protocol or Protocol(),
        machine=machine,
        environment=machine.environment(),
    )
    return Record(
        schema=SCHEMA,
        subject=subject,
        environment=paired.environment,
        dtypes=Dtypes.of(problem),
        baseline=paired.baseline.text,
        protocol=paired.protocol,
        ceilings=ceilings or _ceilings(paired.environment.gpu, problem, progress),
        measurements=tuple(paired.measurement(shape, progress) for shape in chosen),
        date=utc_now(),  # evaluated last: when it ended
    )


def _ceilings(gpu: str, problem: Matmul, progress: Progress) -> Ceilings | None:
    """Return the ceilings for the problem's operands; report it if there are none."""
    operand = problem.a.multiplied.name
    found = ceilings_of(gpu, operand, max(problem.a.smem_bits, problem.b.smem_bits))
    if found is None:
        progress(f"no ceiling was measured for {operand} on {gpu}: there is no roofline")
    return found


@dataclass(frozen=True)
class PairedRun:
    """Two arms, a kernel and a baseline, with their protocol and machine."""

    spec_path: str
    source: SpecFile
    matmul: MatmulFunction
    pack_scales: Callable[[Tensor], Tensor] | None
    baseline: Baseline
    protocol: Protocol
    machine: Machine
    environment: Environment

    def measurement(self, shape: Shape, progress: Progress) -> Measurement:
        """Check the numbers of both arms on one shape, and time the arms if the kernel is right."""
        tell = partial(_tell, progress, shape_text(shape))
        tell("checking the numbers")
        with self._failures(shape), self.baseline.settings():
            generator = torch.Generator(self.machine.device).manual_seed(self.protocol.seed)
            l2_bytes = self.environment.l2_bytes
            sets = input_sets(
                shape, self.source.problem, l2_bytes, generator, self.protocol, self.pack_scales
            )
            bind = partial(bound, self.matmul)
            ours, baseline = (self._judged(arm, sets[0]) for arm in (bind, self.baseline.bind))
            self._refuse_wrong(shape, ours)
            timing = measure(
                Calls(bind, sets),
                Calls(self.baseline.bind, sets),
                len(sets),
                self.machine,
                self.protocol,
                tell,
            )
        return Measurement(shape, len(sets), ours.relative, baseline.relative, timing)

    def _judged(self, bind: Call, inputs_and_d: InputSet) -> Deviation:
        return judged(bind, inputs_and_d, self.source.problem)

    def _refuse_wrong(self, shape: Shape, found: Deviation) -> None:
        for fault in wrong(tolerance(self.source.problem, shape, self.source.promote_k), found):
            raise self._error("wrong-result", shape, fault)

    @contextmanager
    def _failures(self, shape: Shape) -> Generator[None, None, None]:
        """Turn any exception of a kernel into a diagnostic."""
        try:
            yield
        except GemmgenError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise self._error(OUT_OF_MEMORY, shape, memory_text(error)) from error
            first_line = next(iter(str(error).splitlines()), "")
            raise self._error("kernel-failed", shape, f"{type(error).__name__}: {first_line}") from error

    def _error(self, code: str, shape: Shape, message: str) -> GemmgenError:
        return GemmgenError([Diagnostic(self.spec_path, code, message, field=shape_text(shape))])


def _tell(progress: Progress, subject: str, message: str) -> None:
    progress(f"{subject}: {message}")
