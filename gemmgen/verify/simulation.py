"""Simulation of a spec's module: it runs under several schedules on the CPU, and faults are reported."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.features.checking import sides_of
from gemmgen.features.groups.checking import GroupNumbers
from gemmgen.module import import_generated
from gemmgen.numerics.case import (
    Case,
    as_bytes,
    kernel_arguments,
    numbers,
    reduction_arguments,
    reduction_programs,
    saved_outside,
)
from gemmgen.numerics.drawing import drawn_inputs, is_exact
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Matrix
from gemmgen.numerics.quantized import poisoned_outputs, written_into
from gemmgen.plan.kernel import Kernel
from gemmgen.problem import Matmul, shape_text
from gemmgen.problem.group_sizes import GroupSizes
from gemmgen.product import Product, staged
from gemmgen.render.spelling import argument_name
from gemmgen.verify.launches import Launch
from gemmgen.verify.outputs import Outputs, written_outside, wrong_outputs
from gluonsim.accesses import Access
from gluonsim.execution import run, undisturbed
from gluonsim.findings import Finding, Findings, Kind, Severity, brief, message
from gluonsim.global_memory import GlobalMemory
from gluonsim.progress import Tell
from gluonsim.result import PHASES_TO_COVER, Result, counted
from gluonsim.timeline import Trace


def d_argument(plan: Kernel) -> str:
    """Return the name of D's argument in the kernel that stores D."""
    return "d_ptr" if plan.reduces_apart or plan.problem.scatters_d else "d_desc"


def output_arguments(plan: Kernel) -> dict[str, str]:
    """Return the arguments through which a kernel writes its outputs, by the names of these tensors."""
    named = {argument.tensor: argument_name(argument) for argument in plan.arguments}
    others = {tensor: named[tensor] for tensor in ("d_scale", "saved") if tensor in named}
    return {"d": d_argument(plan), **others}


def restored_arguments(plan: Kernel) -> tuple[str, ...]:
    """Return the names of the workspace arguments that every launch must restore."""
    return tuple(argument_name(plan.argument(name)) for name in plan.restored)


def early_arguments(plan: Kernel) -> tuple[str, ...]:
    """Return the names of the arguments that the launch may read before the kernel ahead of it has ended."""
    if not plan.read_early:
        return ()
    early = (plan.read_early, f"{plan.read_early}_scale")
    parts = (argument for argument in plan.arguments if argument.tensor in early)
    return tuple(map(argument_name, parts))


@dataclass(frozen=True)
class Problem:
    """A fault of a kernel: a finding of the simulator, or a wrong result."""

    kind: str
    """A `Kind`, or ``wrong-numbers``, ``not-deterministic`` or ``ring-coverage``."""
    severity: Severity
    name: str
    """The variable of the buffer, barrier, accumulator or tensor."""
    text: str
    lines: tuple[int, ...] = ()
    """Lines of the module, the one that shows the fault first."""
    partition: str | None = None
    cta: int | None = None

    @classmethod
    def of(cls, finding: Finding) -> Problem:
        """Return the fault in a finding of the simulator."""
        return cls(
            finding.kind.value,
            finding.severity,
            finding.name,
            finding.text,
            finding.lines,
            finding.partition,
            finding.cta,
        )


def division_of(inputs: Inputs, problem: Matmul) -> GroupSizes | None:
    """Return the sizes of the groups of a call; None without groups."""
    groups = problem.groups
    if groups is None:
        return None
    return GroupSizes.of(groups, [end - first for first, end in GroupNumbers(problem, groups).bounds(inputs)])


@dataclass(frozen=True)
class Simulation:
    """Results of the launches of one module."""

    spec: str
    module: str
    """File name of the module."""
    source: str
    """Text of the module, to which lines refer."""
    launches: tuple[Launch, ...]
    problems: tuple[Problem, ...]
    """Each fault once, errors before lints; empty when the kernel is clean."""
    notes: tuple[str, ...]
    """Limits of a requested launch: faults that it cannot show."""
    trace: Trace
    """Timeline of the first launch that shows an error, or else of the first one."""
    divisions: tuple[GroupSizes | None, ...] = ()
    """How each launch divided its rows, or its K, into groups; None without groups."""

    @property
    def schedules(self) -> int:
        """Number of runs of the kernel."""
        return sum(len(launch.schedules) for launch in self.launches)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The problems as messages for the user, each with the lines of the module that it is about."""
        return tuple(self._diagnostic(problem) for problem in self.problems)

    def _diagnostic(self, problem: Problem) -> Diagnostic:
        source = self.source.splitlines()
        places = [
            f"{self.module}:{line} `{source[line - 1].strip() if 0 < line <= len(source) else ''}`"
            for line in problem.lines
        ]
        partition, cta = problem.partition or "", problem.cta or 0
        text = brief(problem.text, problem.name, partition, cta)
        return Diagnostic(
            self.module,
            problem.kind,
            message(text, partition, cta, places),
            field=problem.name,
            line=problem.lines[0] if problem.lines else None,
            severity=problem.severity.diagnosed,
        )

    @property
    def launched(self) -> tuple[str, ...]:
        """The launches in words, each with its groups."""
        divided = self.divisions or (None,) * len(self.launches)
        return tuple(
            f"{launch}; {sizes}" if sizes else str(launch)
            for launch, sizes in zip(self.launches, divided, strict=True)
        )

    def __str__(self) -> str:
        found = counted(len(self.problems), "finding")
        return f"simulated: {counted(self.schedules, 'schedule')}, {found}"

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "module": self.module,
            "launches": [asdict(launch) for launch in self.launches],
            "groups": [asdict(sizes) if sizes else None for sizes in self.divisions],
            "findings": [asdict(problem) for problem in self.problems],
            "notes": list(self.notes),
        }


def simulate_product(
    product: Product,
    launches: Sequence[Launch],
    *,
    seed: int = 0,
    processes: int = 1,
    progress: Tell | None = None,
) -> Simulation:
    """Run a product's module on the CPU; the random schedule at position i of a launch has seed `seed` + i.

    The schedules of a launch are divided among at most `processes` processes. `progress` is called now and
    then during a long launch.

    Raises:
        GemmgenError: The compiler refuses the module, the simulator does not support something in it, or the
            kernel is of one tile and a launch's shape is larger.
    """
    launches = tuple(launch.on(product.plan, f"{product.source.stem}.py") for launch in launches)
    with staged(product) as path, undisturbed(), _refusals_of(path):
        return _simulated(product, launches, path, seed, processes, progress)


def _simulated(
    product: Product,
    launches: Sequence[Launch],
    path: Path,
    seed: int,
    processes: int,
    progress: Tell | None,
) -> Simulation:
    problems: dict[tuple[object, ...], Problem] = {}
    notes: dict[str, None] = {}
    traces: list[Trace] = []
    divisions: list[GroupSizes | None] = []
    module = import_generated(path)
    for launch in launches:
        simulated = _Simulated(module, product, launch, seed, processes, progress)
        for problem in simulated.problems():
            problems.setdefault((problem.kind, problem.name, problem.lines), problem)
        traces.append(simulated.result.trace)
        divisions.append(simulated.division)
        if simulated.uncovered and launch.inputs == "integers" and not launch.wraps:
            notes[f"{shape_text(launch.shape)}: {simulated.uncovered_text}"] = None
    return Simulation(
        product.source.path,
        path.name,
        product.module,
        tuple(launches),
        tuple(sorted(problems.values(), key=lambda problem: problem.severity is Severity.LINT)),
        tuple(notes),
        next((trace for trace in traces if trace.shows_errors), traces[0]),
        tuple(divisions),
    )


class _Simulated:
    """A generated module's kernel under the schedules of one launch, called as its wrapper is."""

    def __init__(
        self,
        module: ModuleType,
        product: Product,
        launch: Launch,
        seed: int,
        processes: int,
        progress: Tell | None = None,
    ) -> None:
        self._module = module
        self._problem = launch.problem_of(product.source.problem)
        self._promote_k = product.source.promote_k
        self._target = product.plan.architecture
        self._early = early_arguments(product.plan)
        self._deterministic = product.plan.deterministic
        self._reduces_apart = product.plan.reduces_apart
        self._outputs = output_arguments(product.plan)
        self._restored = restored_arguments(product.plan)
        self._rows_of_two_tiles = product.plan.rows_of_two_tiles
        self._stage_barriers = {
            barrier.name for barrier in product.plan.barriers if barrier.ring.slots.measure == "stages"
        }
        self._launch = launch
        self._seed = seed
        self._processes = processes
        self._progress = progress
        self._stored: tuple[Tensor, Tensor | None] = torch.empty(0), None
        """D as the kernel writes it, and its computed scales if it has some."""
        self._memory: GlobalMemory | None = None
        """Who wrote what under the last schedule; None if it did not come to its end."""
        self.result = Result((), Trace(), {}, deterministic=True)
        self.division: GroupSizes | None = None

    def __call__(self, a: Tensor, b: Tensor, /, *, out: Tensor | None = None, **extras: Tensor) -> Tensor:
        """Run the kernel as ``matmul`` does, and return d [M, N] after the last schedule."""
        inputs = Inputs(a, b, extras, self._problem.b_blocks, sides=sides_of(self._problem))
        self.division = division_of(inputs, self._problem)
        d = self._poisoned_d(inputs) if out is None else out
        self._stored = d, None
        if not self._problem.d_scale:
            return self._launched(inputs, d)
        quantized_d, scales = self._stored = poisoned_outputs(self._problem, d.shape, d.device)
        stored = {**extras, "d_scale": as_bytes(scales.mT)}
        self._launched(replace(inputs, extras=stored), quantized_d)
        return written_into(d, quantized_d, scales)

    def _launched(self, inputs: Inputs, d: Tensor) -> Tensor:
        """Return D after the last schedule of a launch with these inputs."""
        module, options = self._module, self._module.LAUNCH_OPTIONS
        arguments = kernel_arguments(module, self._problem, inputs, d, restored=self._restored)
        stored = (*self._stored, inputs.extras.get("saved"))
        twice = self._rows_of_two_tiles(d.shape[-2])
        recomputed = [each[twice.start : twice.stop] for each in stored if each is not None] if twice else []
        self.result = self._run(module.matmul_kernel, self._launch.programs, arguments, options, recomputed)
        if self._reduces_apart and not self.result.findings:
            arguments = reduction_arguments(module, self._problem, inputs, d, arguments[-1])
            programs = reduction_programs(module, arguments[0])
            reduced = self._run(
                module.reduction_kernel, programs, arguments, module.REDUCTION_OPTIONS, recomputed
            )
            self.result = replace(
                self.result,
                findings=reduced.findings,
                deterministic=self.result.deterministic and reduced.deterministic,
            )
        return d

    def _poisoned_d(self, inputs: Inputs) -> Tensor:
        """Return a poisoned D."""
        *rows, n = self._problem.extents_of_d(*inputs.shape[:2])
        dtype = "fp32" if self._problem.d_scale else self._problem.d.name
        made = Matrix.poisoned(math.prod(rows), n, dtype, inputs.a.device)
        return made.view.view(*rows, n)

    def _run(
        self,
        kernel: Any,
        programs: int,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
        recomputed: Sequence[Tensor],
    ) -> Result:
        return run(
            kernel,
            (programs,),
            arguments,
            target=self._target,
            schedules=self._launch.schedules,
            seed=self._seed,
            processes=self._processes,
            early=self._early,
            restored=self._restored,
            recomputed=recomputed,
            checks=[self._keep_memory],
            progress=self._progress,
            **options,
        )

    def _keep_memory(self, findings: Findings, memory: GlobalMemory, *, sampled: bool) -> None:  # noqa: ARG002
        """Keep the record of the writes of the newest schedule."""
        self._memory = memory

    def problems(self) -> Iterator[Problem]:
        """Run the launch, and yield each fault in it."""
        generator = torch.Generator().manual_seed(self._seed)
        case = Case(
            self,
            self._launch.shape,
            self._problem,
            generator,
            repeats=1,
            deterministic=self._deterministic,
            promote_k=self._promote_k,
            sides=sides_of(self._problem),
        )
        if self._launch.inputs == "normal":
            inputs = case.inputs()
            d, exact = case.run(inputs), False
        else:
            hostile = self._launch.inputs == "hostile"
            inputs = drawn_inputs(case.layout(integers=True, hostile=hostile), self._problem, case.sides)
            d, exact = inputs.call(self, case.output().view), is_exact(self._problem)
        unequal = [each for each in self.result.findings if each.kind is Kind.UNEQUAL_STORES]
        yield from (Problem.of(each) for each in self.result.findings if each not in unequal)
        if any(finding.kind in (Kind.DEADLOCK, Kind.LIVELOCK) for finding in self.result.findings):
            return  # a kernel that does not end has no result
        yield from self._wrong_numbers(case, inputs, d, exact=exact)
        yield from map(Problem.of, unequal)  # what is wrong with the numbers says more
        if self._deterministic and not self.result.deterministic:
            text = f"{shape_text(self._launch.shape)}: schedules differ in the bits of the result"
            yield Problem("not-deterministic", Severity.ERROR, self._outputs["d"], text)
        if self._launch.wraps and self.uncovered and not self.result.findings:
            text = f"{shape_text(self._launch.shape)}: {self.uncovered_text}"
            yield Problem("ring-coverage", Severity.ERROR, self.uncovered[0], text)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Barriers with too few phases to show all faults.

        A program of one tile does only once the operations of a tile or sub-tile, so no launch can wrap those
        rings; only the stages wrap, along K.
        """
        uncovered = self.result.uncovered
        if not self._launch.one_tile:
            return uncovered
        return tuple(
            name
            for name in uncovered
            if name.partition("[")[0] in self._stage_barriers and self.result.phases[name] > 1
        )

    @property
    def uncovered_text(self) -> str:
        """The barriers of `uncovered` by ring, each with its fewest phases."""
        rings: dict[str, int] = {}
        for barrier in self.uncovered:
            ring, phases = barrier.partition("[")[0], self.result.phases[barrier]
            rings[ring] = min(phases, rings.get(ring, phases))
        listed = ", ".join(f"{ring} ({phases})" for ring, phases in rings.items())
        return f"faults may hide in barriers that complete fewer than {PHASES_TO_COVER} phases: {listed}"

    def _wrong_numbers(self, case: Case, inputs: Inputs, d: Tensor, *, exact: bool) -> Iterator[Problem]:
        """Yield the outputs with wrong numbers, or with numbers where no group has any."""
        memory = self._memory
        assert memory is not None  # else there is no result
        outputs = Outputs(d, *self._stored, memory)
        if outside := written_outside(inputs, outputs):
            yield self._wrong("d", str(outside), outside.difference.written)
        if self._problem.saves and (count := saved_outside(inputs)):
            yield self._wrong("saved", f"{count:,} elements of saved are of no group, and are written")
        checks = () if exact else numbers(case, self._launch.inputs, d, inputs)
        failed = [check for check in checks if not check.passed]
        if not exact and not failed:
            return
        wrong = list(wrong_outputs(case, inputs, outputs, exact=exact))
        for output in wrong:
            yield self._wrong(output.tensor, str(output), output.difference.written)
        if not wrong:  # all together are too far off, and none by itself
            yield from (self._wrong("d", str(check)) for check in failed)

    def _wrong(self, tensor: str, text: str, written: Access | None = None) -> Problem:
        """Return wrong numbers in an output as a fault, at the line of the write that left them."""
        argument = self._outputs[tensor]
        text = f"{shape_text(self._launch.shape)}: {text}"
        if written is None:
            return Problem("wrong-numbers", Severity.ERROR, argument, text)
        line, partition, cta = written.location.line, written.partition, written.cta
        lines = () if line is None else (line,)
        return Problem("wrong-numbers", Severity.ERROR, argument, text, lines, partition, cta)


@contextmanager
def _refusals_of(path: Path) -> Generator[None]:
    """Reduce each message of a refusal to one line, and replace the staged path by the module's file name."""
    try:
        yield
    except GemmgenError as error:
        raise GemmgenError(
            replace(
                diagnostic,
                path=path.name if diagnostic.path in ("<kernel>", str(path)) else diagnostic.path,
                message=diagnostic.message.partition("\n")[0].replace(str(path), path.name),
            )
            for diagnostic in error.diagnostics
        ) from error
