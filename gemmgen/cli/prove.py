"""Commands that prove a kernel by compiler, simulator or GPU: lower, simulate and test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmgen.cli.options import (
    Format,
    Json,
    PinnedShape,
    Processes,
    SarifFile,
    Schedules,
    Seed,
    Specs,
    TraceFile,
    refuse_file,
)
from gemmgen.cli.reporting import choose, complain, end, print_json, say, write
from gemmgen.cli.running import prefixed, progressing, run_each
from gemmgen.cli.texts import resources_text, simulation_text
from gemmgen.device import OUT_OF_MEMORY, require_compiler
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.rule import counted
from gemmgen.processes.forking import usable_cores
from gemmgen.product import Product, load, make, staged

if TYPE_CHECKING:
    from gemmgen.verify.simulation import Simulation
    from gluonsim import Result
    from gluonsim.programs.program import Program


def lower_command(
    specs: Specs,
    digests: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare the compiled code with the digests in this file."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="With --digests: write these modules' rows of the file instead.")
    ] = False,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Compile modules and print their measured resources.

    Nothing is written.
    """
    choose(form, sarif)
    if record and digests is None:
        raise typer.BadParameter("requires --digests FILE", param_hint="--record")
    require_compiler()
    from gemmgen.build import lowered_of, settle
    from gemmgen.lower import Lowered
    from gemmgen.ptx import Code, changes, record_digests

    def lower_one(path: Path) -> list[tuple[Product, Lowered]]:
        settled = settle(load(path), lowered_of, gradients=bool(digests))
        return list(zip(settled.product.each, settled.results, strict=False))

    with progressing("lowering") as progress:
        each_spec, failed = run_each(specs, lower_one, progress, parallel=True)
    every = [one for found in each_spec for one in found]
    if digests and not (record and failed):
        codes = [Code.of(product.source.stem, found) for product, found in every]
        if record:
            record_digests(codes, digests)
        elif found := [*changes(codes, digests)]:
            complain(GemmgenError(found))
            failed = True
    if as_json:
        print_json({product.source.path: asdict(found.resources) for product, found in every})
    elif digests:
        done = "recorded in" if record else "compared with"
        say(f"{counted(len(every), 'module')} {done} {digests.as_posix()}")
    elif every:
        texts = (
            f"{product.source.path}\n\n{resources_text(found.resources, product.plan)}"
            for product, found in every
        )
        say("\n\n".join(texts))
    end(failed)


def simulate_command(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC…|FILE.py[::FUNCTION]…",
            help="Specs, or programs: scripts or functions that launch Gluon kernels, or a kernel.",
        ),
    ],
    shape: PinnedShape = "",
    programs: Annotated[
        int | None,
        typer.Option(
            metavar="P",
            min=1,
            help="For .py files: run only P programs of each grid, by the seed. For specs, with --shape: "
            "programs of a persistent kernel. Default: 1, then 2.",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="GPU",
            help="GPU to simulate for .py files: sm90, sm100, h100, h200, b200. Default: sm90. Not for "
            "specs, which name theirs.",
        ),
    ] = "",
    args: Annotated[
        str | None,
        typer.Option(
            "--args", metavar="ARGS", help="Arguments for FUNCTION, as Python: 'torch.ones(64), n=64'."
        ),
    ] = None,
    grid: Annotated[
        str | None, typer.Option("--grid", metavar="GRID", help="Grid for a FUNCTION that is a kernel.")
    ] = None,
    schedules: Schedules = 10,
    seed: Seed = 0,
    processes: Processes = None,
    trace: TraceFile = None,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Find races, deadlocks and wrong numbers on the CPU.

    Kernels of specs or of Python programs are simulated under many schedules.
    """
    files = [subject for subject in subjects if subject.partition("::")[0].endswith(".py")]
    choose(form, None if files else sarif)  # the log of a program's findings has all places
    require_compiler()
    if files and len(files) < len(subjects):
        raise typer.BadParameter("name specs or programs, not both", param_hint="SPEC…|FILE.py…")
    refuse_file("--trace", trace, subjects, "a timeline shows one spec or file")
    options = SimulationOptions(
        schedules, seed, processes or usable_cores(), trace, as_json, programs if files else None
    )
    if files:
        if shape:
            raise typer.BadParameter("a program has its own shapes", param_hint="--shape")
        programs_named = [_program(subject, args, grid) for subject in files]
        _simulate_programs(programs_named, target or "sm90", sarif, options)
    elif args is not None or grid is not None:
        raise typer.BadParameter("require FILE.py::FUNCTION", param_hint="--args and --grid")
    elif target:
        raise typer.BadParameter("a spec names its target itself", param_hint="--target")
    else:
        _simulate_specs([Path(subject) for subject in subjects], shape, programs, options)


@dataclass(frozen=True)
class SimulationOptions:
    """Options of a simulation and of its report."""

    schedules: int
    """Random ones, besides the fixed policies."""
    seed: int
    processes: int
    trace: Path | None
    """File for the timeline; None if it is not written."""
    as_json: bool
    sample: int | None = None
    """Programs of each grid that run; None for all."""


def _program(subject: str, args: str | None, grid: str | None) -> Program:
    """Return the program that a subject names, with its arguments and its grid."""
    from gluonsim.programs.program import Program

    file, _, function = subject.partition("::")
    if not function and (args is not None or grid is not None):
        raise typer.BadParameter("require FILE.py::FUNCTION", param_hint="--args and --grid")
    return Program(Path(file), function or None, args, grid)


def _simulate_programs(
    called: list[Program], target: str, sarif: Path | None, options: SimulationOptions
) -> None:
    """Run programs on the CPU, and the kernels that they launch in the simulator."""
    from gluonsim import gpu_of_target
    from gluonsim.programs.report import simulate_programs
    from gluonsim.result import sarif_log

    try:
        gpu = gpu_of_target(target)
    except GemmgenError as error:
        raise typer.BadParameter(error.diagnostics[0].message, param_hint="--target") from error
    with progressing("simulating") as progress:
        report = simulate_programs(
            called, gpu, options.schedules, options.seed, options.processes, options.sample, progress
        )
    for error in report.errors:
        complain(error)
    if options.as_json:
        print_json(report.as_dict())
    else:
        for text in report.texts:
            say(text)
    if sarif:
        write(sarif, json.dumps(sarif_log(report.findings), indent=2) + "\n")
    _write_timeline(options.trace, [report.timed] if report.timed else [])
    end(report.exit_code)


def _write_timeline(path: Path | None, simulated: Sequence[Simulation | Result]) -> None:
    """Write the timeline of the first simulation, after its findings: a refusal here must not cost them."""
    if path and simulated:
        write(path, simulated[0].trace.as_json() + "\n")


def _simulate_specs(specs: list[Path], shape: str, programs: int | None, options: SimulationOptions) -> None:
    """Run each spec's kernel in the simulator."""
    from gemmgen.verify.launches import all_launches, parse_shape, pinned_launches
    from gemmgen.verify.simulation import simulate_product

    if programs and not shape:
        raise typer.BadParameter("needs --shape", param_hint="--programs")
    try:
        pinned = pinned_launches(parse_shape(shape), options.schedules, programs) if shape else ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--shape") from error

    def simulate_one(path: Path) -> Simulation:
        product = make(path)
        launches = pinned or all_launches(product.plan, options.schedules)
        return simulate_product(
            product,
            launches,
            seed=options.seed,
            processes=options.processes,
            progress=partial(prefixed, progress, product.source.stem),
        )

    with progressing("simulating") as progress:
        simulations, failed = run_each(specs, simulate_one, progress)
    for simulation in simulations:
        complain(GemmgenError(simulation.diagnostics))
        if not options.as_json:
            say(simulation_text(simulation))
    if options.as_json:
        print_json({simulation.spec: simulation.as_dict() for simulation in simulations})
    _write_timeline(options.trace, simulations)
    is_missing = any(not spec.exists() for spec in specs if spec != Path("-"))
    end(2 if is_missing else failed or any(simulation.problems for simulation in simulations))


def verify_command(
    specs: Specs,
    shapes: Annotated[
        str,
        typer.Option(
            "--shapes",
            "--shape",
            metavar="MxNxK,…|FILE",
            help="Problem sizes. Default: the shapes of the spec and the acceptance shapes.",
        ),
    ] = "",
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Check the numbers of kernels on the GPU of this machine."""
    choose(form, sarif)
    require_compiler()
    from gemmgen.bench import parse_shapes
    from gemmgen.module import import_generated
    from gemmgen.verify import Verification, verify

    chosen = parse_shapes(shapes) if shapes else None

    def test_one(path: Path) -> tuple[str, Verification]:
        product = make(path)
        with staged(product) as module_path:
            module = import_generated(module_path)
            tell = partial(prefixed, progress, product.source.stem)
            source, deterministic = product.source, product.plan.deterministic
            verification = verify(module, source, chosen, deterministic=deterministic, progress=tell)
            return product.source.path, verification

    with progressing("testing") as progress:
        verifications, failed = run_each(specs, test_one)
    if as_json:
        print_json({path: verification.as_dict() for path, verification in verifications})
    for path, verification in verifications:
        for failure in verification.failures:
            complain(GemmgenError([Diagnostic(path, failure.fault, str(failure))]))
        for unfit in (each for each in verification.unfit if not each.by_choice):
            # It is an error if nothing else was checked.
            severity = "warning" if verification.checks else "error"
            complain(GemmgenError([Diagnostic(path, OUT_OF_MEMORY, str(unfit), severity=severity)]))
        if not as_json:
            passed = len(verification.checks) - len(verification.failures)
            checks = counted(len(verification.checks), "check")
            say(f"{path}: {passed} of {checks} passed on {verification.device}")
    end(failed or not all(verification.passed for _, verification in verifications))
