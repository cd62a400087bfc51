"""Generated modules, as committed and with planted faults, for the comparison with ConSan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from drawn import integer_inputs, random_inputs
from kernels.launch import FIXED
from modules import GROUPED_SPECS, HOPPER_SPECS, spec_file
from mutants import committed, kinds, rings
from mutants.mutant import changed, code_of, generated, launch_of, product_of
from mutants.rings import LAST_WAIT, SHAPES
from torch import Tensor

from consan.case import CLEAN, Device, Simulated
from gemmgen.module import import_generated
from gemmgen.numerics.case import as_bytes, kernel_arguments, reduction_arguments, reduction_programs
from gemmgen.numerics.drawing import is_exact
from gemmgen.numerics.encoding import TORCH_DTYPES, bits, rounded
from gemmgen.numerics.inputs import Inputs
from gemmgen.numerics.matrices import Matrix, touched
from gemmgen.numerics.quantized import dequantized_output, poisoned_outputs, quantized, written_into
from gemmgen.numerics.reference import deviation, reference, tolerance
from gemmgen.problem import Matmul
from gemmgen.product import Product, make
from gemmgen.spec import SpecFile
from gemmgen.verify.launches import Launch, ring_launch
from gemmgen.verify.simulation import early_arguments, restored_arguments
from gluonsim import Kind, Result, run

RELEASE = "mbarrier.arrive(args.load_empty.index(ring.stage))"
DELAY = "for _ in range(64):  # no store is in flight: this only takes time\n            tma.store_wait(0)"
LATE = {
    "arrive_before_the_mma_retired": (
        (
            f"        {LAST_WAIT}\n        {RELEASE}",
            f"        {RELEASE}\n        {DELAY}\n        {LAST_WAIT}",
        ),
    ),
    "mma_wait_leaves_one_in_flight": (
        (LAST_WAIT, LAST_WAIT.replace("(0,", "(1,")),
        (f"        {RELEASE}\n", f"        {RELEASE}\n        {DELAY}\n"),
    ),
}
"""The same faults, with time between the release of a stage and the wait for the MMA that still reads it."""
WRONG_NUMBERS = f"{Kind.WRONG_NUMBERS} d_desc"
LAUNCHES = 3
"""Of each kernel under ConSan, for a race need not show in the first."""
MOST_GROUPS = 5
"""Most groups of a call: ConSan is slow, and five groups already have different numbers of rows."""


@dataclass(frozen=True)
class ModuleCase:
    """A module as generated, or a mutant of one, and the shape that it runs on, mostly in one program."""

    name: str
    group: str
    subject: str
    """The module's stem."""
    changes: tuple[tuple[str, str], ...] = ()
    planted: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The module's text."""
        if not self.changes:
            return generated(self.subject)
        return changed(code_of(self.subject), self.changes, self.subject)

    @cached_property
    def product(self) -> Product:
        """What follows from the module's spec; faults are in pinned ones where there are such."""
        return product_of(self.subject) if self.changes else make(spec_file(self.subject))

    @cached_property
    def launch(self) -> Launch:
        """Four tiles, the last ones ragged, in one program if persistent: the stages come round twice."""
        plan = self.product.plan
        if self.group in (STRUCTURES, KINDS):
            return launch_of(self.product).on(plan, self.subject)
        launch = replace(ring_launch(plan), programs=1)
        if plan.persistent:
            k_steps = 2 * plan.stages + 2
            m = 2 * plan.program_tile_m - min(48, plan.program_tile_m // 2)
            n = 2 * plan.program_tile_n - min(96, plan.program_tile_n // 2)
            n += -n % plan.access.n_multiple
            launch = replace(launch, shape=SHAPES.get(self.subject, (m, n, k_steps * plan.cta_tile_k)))
        return launch.on(plan, self.subject)

    @property
    def shape(self) -> tuple[int, ...]:
        """M, N and K."""
        return self.launch.shape

    @property
    def stages(self) -> tuple[str, ...]:
        """Modules as generated are also compared in numbers."""
        return ("consan", "bare") if self.changes else ("consan", "bare", "numbers")

    @property
    def weight(self) -> int:
        """CTAs of a cluster."""
        plan = self.product.plan
        return plan.cluster_m * plan.cluster_n

    def simulate(self, folder: Path) -> Simulated:
        """Return what the simulator says, under four schedules, and of the last one's numbers."""
        inputs = self.integers
        result, d = simulated(self.module(folder), self, inputs, *FIXED, "random")
        said = Simulated.of(result.findings, self.planted)
        if said.fault or not wrong_elements(d, inputs, self):
            return said
        return Simulated(fault=True, findings=(WRONG_NUMBERS, *said.findings))

    def observe(self, stage: str, folder: Path, device: Device) -> str | dict[str, Any]:
        """Launch it, and count the wrong elements; or compare its numbers with the simulator's."""
        if stage == "numbers":
            return numbers(self.module(folder), self, device)
        module, inputs, wrong = self.module(folder), self.integers, 0
        for _ in range(LAUNCHES):
            wrong = max(wrong, wrong_elements(launched(module, self, inputs, device), inputs, self))
        return f"{wrong} wrong elements" if wrong else CLEAN

    def source(self, file: str, line: int, folder: Path) -> str:
        """Return the line itself."""
        return f"`{self.text.splitlines()[line - 1].strip()}`"

    @property
    def spec(self) -> SpecFile:
        """The module's spec."""
        return self.product.source

    @property
    def problem(self) -> Matmul:
        """The matmul of the module, with at most `MOST_GROUPS` groups."""
        problem = self.spec.problem
        if problem.groups is None:
            return problem
        few = replace(problem.groups, count=min(MOST_GROUPS, problem.groups.count))
        return replace(problem, groups=few)

    @property
    def integers(self) -> Inputs:
        """Small integers as A, B and the rest."""
        return integer_inputs(self.launch.shape, self.problem, generator())

    def module(self, folder: Path) -> ModuleType:
        """Return it from a file in a folder."""
        path = folder / f"{self.subject}.py"
        path.write_text(self.text, encoding="utf-8")
        return import_generated(path)


AS_GENERATED, RINGS = "as generated", "faults in rings"
STRUCTURES, KINDS = "faults in every structure", "faults in every kind of loop"


def _cases() -> Iterator[ModuleCase]:
    for spec in (*HOPPER_SPECS, *GROUPED_SPECS):
        yield ModuleCase(spec.stem, AS_GENERATED, spec.stem)
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    groups = ((RINGS, rings.MUTANTS), (STRUCTURES, committed.MUTANTS), (KINDS, kinds.MUTANTS))
    for group, mutants in groups:
        for name, mutant in mutants.items():  # one change may be there twice, for two findings
            key = mutant.stem, mutant.changes
            if key not in seen and mutant.stem.startswith("h100_"):
                seen.add(key)
                yield ModuleCase(name, group, mutant.stem, mutant.changes, mutant.symptom.titles)
        if group == RINGS:
            for name, changes in LATE.items():
                mutant = rings.MUTANTS[name]
                yield ModuleCase(f"{name}_late", group, mutant.stem, changes, mutant.symptom.titles)


MODULE_CASES = {case.name: case for case in _cases()}
UNMUTATED = tuple(name for name, case in MODULE_CASES.items() if not case.changes)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def simulated(module: ModuleType, case: ModuleCase, inputs: Inputs, *schedules: str) -> tuple[Result, Tensor]:
    """Return what the simulator found, up to the first kernel with a fault, and its D."""
    output, calls = prepared(module, case, inputs)
    plan = case.product.plan
    early, twice = early_arguments(plan), plan.rows_of_two_tiles(output.d.shape[-2])
    stored = (output.d, output.scales, inputs.extras.get("saved"))
    recomputed = [each[twice.start : twice.stop] for each in stored if each is not None] if twice else []
    result, deterministic = None, True
    for kernel, programs, arguments, options in calls:
        result = run(
            kernel,
            (programs,),
            arguments,
            schedules=schedules,
            early=early,
            recomputed=recomputed,
            **options,
        )
        deterministic &= result.deterministic
        if result.findings:
            break
    assert result
    return replace(result, deterministic=deterministic), output.on_the_cpu()


def launched(module: ModuleType, case: ModuleCase, inputs: Inputs, device: Device) -> Tensor:
    """Return the device's D."""
    with device.used():
        extras = {name: on_gpu(tensor) for name, tensor in inputs.extras.items()}
        there = replace(inputs, a=on_gpu(inputs.a), b=on_gpu(inputs.b), extras=extras)
        output, calls = prepared(module, case, there)
        for kernel, programs, arguments, options in calls:
            kernel[(programs,)](*arguments, **options)
        found = output.on_the_cpu()
    device.alive()
    return found


def on_gpu(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides: `cuda` would drop the padding that aligns a matrix's rows."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return copy.copy_(tensor)


Call = tuple[Any, int, list[Any], dict[str, Any]]
"""A kernel, its programs, its arguments, the options of its launch."""


@dataclass(frozen=True)
class Output:
    """A D that a kernel writes, and its scales if the kernel computes them."""

    d: Tensor
    scales: Tensor | None = None

    def on_the_cpu(self) -> Tensor:
        """Return D as numbers."""
        if self.scales is None:
            return self.d.cpu()
        *rows, columns = self.d.shape
        made = Matrix.poisoned(math.prod(rows), columns, "fp32", torch.device("cpu"))
        return written_into(made.view.view(self.d.shape), self.d.cpu(), self.scales.cpu())


def prepared(module: ModuleType, case: ModuleCase, inputs: Inputs) -> tuple[Output, list[Call]]:
    """Return a poisoned D on the inputs' device, and the launches that make up a call of the module."""
    problem = case.problem
    *rows, n = problem.extents_of_d(*inputs.shape[:2])
    if problem.d_scale:
        d, scales = poisoned_outputs(problem, (*rows, n), inputs.a.device)
        inputs = replace(inputs, extras={**inputs.extras, "d_scale": as_bytes(scales.mT)})
        output = Output(d, scales)
    else:
        d = Matrix.poisoned(math.prod(rows), n, problem.d.name, inputs.a.device).view.view(*rows, n)
        output = Output(d)
    plan = case.product.plan
    arguments = kernel_arguments(module, problem, inputs, d, restored=restored_arguments(plan))
    calls: list[Call] = [(module.matmul_kernel, case.launch.programs, arguments, module.LAUNCH_OPTIONS)]
    if plan.reduces_apart:
        partials = arguments[-1]
        programs = reduction_programs(module, partials)
        behind = reduction_arguments(module, problem, inputs, d, partials)
        calls.append((module.reduction_kernel, programs, behind, module.REDUCTION_OPTIONS))
    return output, calls


def wrong_elements(d: Tensor, inputs: Inputs, case: ModuleCase) -> int:
    """Return the elements that are not the reference's; where none can be exact, all or none by tolerance.

    An element of no group is wrong if it has been written.
    """
    problem = case.problem
    rows = inputs.computed_rows(d)[:]
    outside = touched(d) - touched(rows)
    if is_exact(problem):
        exact = reference(inputs, problem)
        expected = rounded(exact, d.dtype)
        if scale := problem.d_scale:
            dtypes = (TORCH_DTYPES[name] for name in (problem.d.name, scale.dtype.name))
            expected = dequantized_output(*quantized(exact, scale.vector, *dtypes))
        return outside + int((rows != expected).sum().item())
    allowed = tolerance(problem, inputs.shape, case.spec.promote_k)
    return outside + (0 if deviation(d, inputs, problem).relative <= allowed.relative else d.numel())


def numbers(module: ModuleType, case: ModuleCase, device: Device) -> dict[str, Any]:
    """Return how the simulator's D and the GPU's differ on small integers and on normals."""
    exact, random = case.integers, random_inputs(case.launch.shape, case.problem, generator())
    simulated_exact, simulated_random = (
        each.computed_rows(simulated(module, case, each, "random")[1])[:] for each in (exact, random)
    )
    gpu_exact, gpu_random = (
        each.computed_rows(launched(module, case, each, device))[:] for each in (exact, random)
    )
    error = gpu_random.double() - simulated_random.double()
    rms = simulated_random.double().square().mean().sqrt()
    return {
        "shape": list(case.launch.shape),
        "elements": gpu_exact.numel(),
        "different_bits": int((bits(simulated_exact) != bits(gpu_exact)).sum().item()),
        "relative": (error.square().mean().sqrt() / rms).item(),
        "worst_element": (error.abs().max() / rms).item(),
    }
