"""One kernel in the simulator and on a GPU, in a process of its own: a fault ends its CUDA context.

``python -m consan.case verdict NAME FILE`` simulates the module in FILE, launches it under ConSan (the
environment says so before Triton is imported) and, where that shows nothing, once more without;
``numbers NAME FILE`` compares the simulator's results with those of the GPU. Each stage is a line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from kernels.launch import FIXED
from modules import HOPPER_SPECS, module_file, spec_file
from mutants.mutant import changed, code_of
from mutants.rings import LAST_WAIT, MUTANTS, SHAPES
from torch import Tensor

from gemmgen.module import import_generated
from gemmgen.numerics.case import kernel_arguments
from gemmgen.numerics.encoding import bits, rounded
from gemmgen.numerics.inputs import Inputs, Matrix, integer_inputs, is_exact, random_inputs
from gemmgen.numerics.reference import deviation, reference, tolerance
from gemmgen.product import Product, make
from gemmgen.simulate import Result, Severity, run
from gemmgen.spec import Spec
from gemmgen.verify.simulation import Launch, ring_launch

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
LAUNCHES = 3
"""Of each kernel under ConSan, for a race need not show in the first."""


@dataclass(frozen=True)
class Case:
    """A module as generated, or a mutant of one, and the shape that it runs on in one program."""

    name: str
    stem: str
    changes: tuple[tuple[str, str], ...] = ()
    planted: frozenset[str] = frozenset()
    """Kind and name of the finding that the changes are made for, for each variable that it may be about."""

    @property
    def source(self) -> str:
        """The module's text."""
        if not self.changes:
            return module_file(self.stem).read_text(encoding="utf-8")
        return changed(code_of(self.stem), self.changes, self.stem)

    @cached_property
    def product(self) -> Product:
        """What follows from the module's spec."""
        return make(spec_file(self.stem))

    @cached_property
    def launch(self) -> Launch:
        """Four tiles, the last ones ragged, in one program if persistent: the stages come round twice."""
        plan = self.product.plan
        launch = replace(ring_launch(plan), programs=1)
        if plan.persistent:
            k_steps = 2 * plan.stages + 2
            m = 2 * plan.program_tile_m - min(48, plan.program_tile_m // 2)
            n = 2 * plan.program_tile_n - min(96, plan.program_tile_n // 2)
            launch = replace(launch, shape=SHAPES.get(self.stem, (m, n, k_steps * plan.cta_tile_k)))
        return launch.on(plan, self.stem)


def _cases() -> Iterator[Case]:
    for spec in HOPPER_SPECS:
        yield Case(spec.stem, spec.stem)
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for name, mutant in MUTANTS.items():  # one change may be there twice, for two findings
        if (key := (mutant.stem, mutant.changes)) not in seen:
            seen.add(key)
            yield Case(name, mutant.stem, mutant.changes, mutant.symptom.titles)
    for name, changes in LATE.items():
        mutant = MUTANTS[name]
        yield Case(f"{name}_late", mutant.stem, changes, mutant.symptom.titles)


CASES = {case.name: case for case in _cases()}
UNMUTATED = tuple(name for name, case in CASES.items() if not case.changes)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def simulated(module: ModuleType, case: Case, inputs: Inputs, *schedules: str) -> tuple[Result, Tensor]:
    """Return what the simulator found, and its D."""
    d, arguments = prepared(module, case, inputs)
    grid, options = (case.launch.programs,), module.LAUNCH_OPTIONS
    return run(module.matmul_kernel, grid, arguments, schedules=schedules, **options), d


def launched(module: ModuleType, case: Case, inputs: Inputs) -> Tensor:
    """Return the GPU's D."""
    extras = {name: on_gpu(tensor) for name, tensor in inputs.extras.items()}
    d, arguments = prepared(module, case, Inputs(on_gpu(inputs.a), on_gpu(inputs.b), extras))
    module.matmul_kernel[(case.launch.programs,)](*arguments, **module.LAUNCH_OPTIONS)
    return d.cpu()


def on_gpu(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides: `cuda` would drop the padding that aligns a matrix's rows."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return copy.copy_(tensor)


def prepared(module: ModuleType, case: Case, inputs: Inputs) -> tuple[Tensor, list[Any]]:
    """Return a poisoned D on the inputs' device, and the kernel's arguments."""
    m, n, _ = inputs.shape
    spec = case.product.source.spec
    d = Matrix.poisoned(m, n, spec.operands.d.dtype, inputs.a.device).view
    return d, kernel_arguments(module, spec, inputs, d)


def say(stage: str, **what: object) -> None:
    sys.stdout.write(json.dumps({"stage": stage, **what}) + "\n")
    sys.stdout.flush()


def verdict(case: Case, path: Path) -> None:
    """Say what the simulator and the GPU show."""
    module = import_generated(path)
    inputs = integer_inputs(case.launch.shape, case.product.source.spec, generator())
    result, _ = simulated(module, case, inputs, *FIXED, "random")
    found = {f"{finding.kind} {finding.name}" for finding in result.findings}
    ordered = sorted(found, key=lambda title: (title not in case.planted, title))
    error = any(finding.severity is Severity.ERROR for finding in result.findings)
    say("simulator", fault=error, findings=ordered, shape=list(case.launch.shape))
    if compare("consan", module, case, inputs):
        import triton  # pyright: ignore[reportMissingTypeStubs]

        cast(Any, triton).knobs.compilation.instrumentation_mode = ""
        compare("bare", import_generated(path), case, inputs)


def compare(stage: str, module: ModuleType, case: Case, inputs: Inputs) -> bool:
    """Launch a kernel; say how many elements are wrong or what stopped it, and return whether all is well."""
    spec = case.product.source.spec
    try:
        wrong = [wrong_elements(launched(module, case, inputs), inputs, spec) for _ in range(LAUNCHES)]
    except Exception as error:  # whatever the compiler, the launcher or the driver raises is the verdict
        lines = str(error).splitlines() or [""]
        say(stage, raised=type(error).__name__, text=lines[0])
        return False
    say(stage, wrong=max(wrong))
    return not any(wrong)


def wrong_elements(d: Tensor, inputs: Inputs, spec: Spec) -> int:
    """Return the elements that are not the reference's; where none can be exact, all or none by tolerance."""
    if is_exact(spec):
        return int((d != rounded(reference(inputs, spec), d.dtype)).sum().item())
    return 0 if deviation(d, inputs, spec).relative <= tolerance(spec, inputs.shape).relative else d.numel()


def numbers(case: Case, path: Path) -> None:
    """Say how the simulator's D and the GPU's differ on small integers and on normals."""
    module, spec, shape = import_generated(path), case.product.source.spec, case.launch.shape
    exact, random = integer_inputs(shape, spec, generator()), random_inputs(shape, spec, generator())
    simulated_exact, simulated_random = (
        simulated(module, case, inputs, "random")[1] for inputs in (exact, random)
    )
    gpu_exact, gpu_random = launched(module, case, exact), launched(module, case, random)
    error = gpu_random.double() - simulated_random.double()
    rms = simulated_random.double().square().mean().sqrt()
    say(
        "numbers",
        shape=list(shape),
        different_bits=int((bits(simulated_exact) != bits(gpu_exact)).sum().item()),
        elements=gpu_exact.numel(),
        relative=(error.square().mean().sqrt() / rms).item(),
        worst_element=(error.abs().max() / rms).item(),
    )


def main(what: str, name: str, file: str) -> None:
    torch.set_num_threads(1)
    import triton  # pyright: ignore[reportMissingTypeStubs]

    def allocate(size: int, alignment: int, stream: int | None) -> Tensor:
        return torch.empty(size, device="cuda", dtype=torch.int8)

    cast(Any, triton).set_allocator(allocate)
    {"verdict": verdict, "numbers": numbers}[what](CASES[name], Path(file))


if __name__ == "__main__":
    main(*sys.argv[1:])
