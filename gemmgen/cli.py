"""The command line: one subcommand per stage. It prints and ends through ``gemmgen.reporting`` alone.

Artifacts and reports go to stdout, progress and diagnostics to stderr. Exit codes: 0 done, 1 rejected or
failed, 2 wrong usage, 128 and its number where a signal ended it.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from gemmgen import __version__, api
from gemmgen.build import columns, resources_text, simulation_text, spec_row
from gemmgen.device import require_compiler
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.library import KERNELS as MOST_KERNELS
from gemmgen.library import package
from gemmgen.plan.decisions import gradient_stem
from gemmgen.problem import OPERANDS
from gemmgen.product import Product, check, make, staged
from gemmgen.reporting import (
    choose,
    explanation_of,
    explanations,
    run_command,
    say,
    say_tables,
    tell,
    tuning_progress,
    unwritable,
    watch,
)
from gemmgen.reporting import complain as _complain
from gemmgen.reporting import each as _each
from gemmgen.reporting import end as _exit
from gemmgen.reporting import print_json as _print_json
from gemmgen.reporting import progressing as _progress
from gemmgen.reporting import write as _write
from gemmgen.scratch import usable_cores
from gemmgen.spec import load_spec

if TYPE_CHECKING:
    from gemmgen.bench import Book
    from gemmgen.simulate import Result
    from gemmgen.simulate.pretended import Program
    from gemmgen.verify.simulation import Simulation

S = TypeVar("S")
T = TypeVar("T")
Specs = Annotated[
    list[Path], typer.Argument(metavar="SPEC…", help="One or more spec files; - is a spec on stdin.")
]
Format = Annotated[
    str,
    typer.Option(
        "--format", metavar="text|github", help="Diagnostics for people, or as annotations of GitHub Actions."
    ),
]
SarifFile = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Also write diagnostics as SARIF 2.1.0.")
]
Watching = Annotated[
    bool, typer.Option("--watch", help="Do it again each time that a spec is saved, until Ctrl-C.")
]
Json = Annotated[bool, typer.Option("--json", help="Report as JSON.")]
Lowering = Annotated[
    bool,
    typer.Option("--lower/--no-lower", help="Compile the module and confirm the plan before it is written."),
]
Simulating = Annotated[
    bool,
    typer.Option(
        "--simulate/--no-simulate",
        help="Simulate the module before it is written, which needs the compiler too.",
    ),
]
PinnedShape = Annotated[
    str,
    typer.Option("--shape", metavar="MxNxK", help="Default: one that wraps every ring, one of many tiles."),
]
Schedules = Annotated[
    int, typer.Option(metavar="N", min=0, help="Random schedules, besides the fixed policies.")
]
Seed = Annotated[
    int, typer.Option(metavar="S", min=0, max=2**31, help="Of the inputs and the random schedules.")
]
Processes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="For the schedules of a launch (the cores of this machine)."),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write a timeline that Perfetto opens; of one spec or file."
    ),
]
PictureFile = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Draw the first steps of that timeline; of one spec or file."),
]
CANDIDATES = 10
"""Configurations that are listed where no number is given."""
Candidates = Annotated[
    int | None,
    typer.Option(
        metavar="[N]",
        min=1,
        help=f"List the N cheapest legal configurations of each spec's problem, {CANDIDATES} by default.",
    ),
]
COUNTS = {"--candidates": CANDIDATES, "--freeze": 1}
Freeze = Annotated[
    int | None,
    typer.Option(
        metavar="[N]",
        min=1,
        help="Print the spec with every field of its plan stated, or of the N-th candidate.",
    ),
]
PlanPicture = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Draw what is decided, and where elements lie; of one spec."),
]
PlanPage = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="The same as a page that looks any element up; of one spec."),
]
Pages = Annotated[
    Path | None,
    typer.Option(
        "--pictures", metavar="DIR", help="Also draw each kernel's plan, a page for a browser each."
    ),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Say why the others cost more, or which rule refuses them."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the modules live.")]

app = typer.Typer(
    name="gemmgen",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line and end the process; what a user can cause is told, never a traceback."""
    sys.exit(run_command(_command(), sys.argv[1:]))


@cache
def _command() -> Callable[..., object]:
    """The application as Click has it: a process that runs many commands makes it once."""
    return typer.main.get_command(app)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"gemmgen {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """One YAML spec of a matmul in, one readable, standalone Gluon kernel module out."""


class CountedOption(TyperCommand):
    """A command whose ``--candidates`` and ``--freeze`` may stand without their numbers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write the default number behind an option that has none."""
        following = [*args, ""][1:]
        counted = (
            f"{arg}={COUNTS[arg]}" if arg in COUNTS and not after.lstrip("-").isdigit() else arg
            for arg, after in zip(args, following, strict=True)
        )
        return super().parse_args(ctx, list(counted))


@app.command()
def init(
    name: Annotated[Path, typer.Argument(metavar="[NAME]", help="Of the file, and so of the module.")] = Path(
        "matmul.yaml"
    ),
    as_json: Json = False,
) -> None:
    """Write a commented spec to start from."""
    path = api.init(name)
    _print_json({"wrote": [path.as_posix()]})
    if not as_json:
        say(f"wrote {path}: next, `{shlex.join(['gemmgen', 'plan', str(path)])}`")


@app.command(cls=CountedOption)
def plan(
    specs: Specs,
    candidates: Candidates = None,
    explain: Explain = False,
    freeze: Freeze = None,
    svg: PlanPicture = None,
    html: PlanPage = None,
    form: Format = "text",
    sarif: SarifFile = None,
    watching: Watching = False,
    as_json: Json = False,
) -> None:
    """Prove specs against the hardware and print what their kernels spend of it."""
    from gemmgen.plan.ledger import ledger

    choose(form, sarif)
    _refuse_pictures(specs, svg, html)
    if watching:
        watch(lambda: specs, lambda: plan(specs, candidates, explain, freeze, svg, html, form))
    products, failed = _planned(specs)
    _write_pictures(products, svg, html)
    if freeze:
        _print_frozen(products, freeze, as_json=as_json)
    elif candidates or explain:
        _print_candidates(products, candidates or CANDIDATES, explained=explain, as_json=as_json)
    elif as_json:
        _print_json(
            {p.source.path: {"fields": p.fields, **ledger(p.plan).as_dict()} for p in products},
        )
    elif products:
        say(
            "\n\n".join(
                f"{p.source.path}: {p.plan.request.title}\n\n{ledger(p.plan).as_text()}" for p in products
            )
        )
    _exit(failed)


@app.command(name="build")
def build_command(
    specs: Specs,
    out: Out = Path("generated"),
    emit: Annotated[
        str,
        typer.Option(metavar="STAGE,…", help="Also write ttgir, llir, ptx, cubin, sass beside the module."),
    ] = "",
    lowering: Lowering = True,
    simulation: Simulating = True,
    form: Format = "text",
    sarif: SarifFile = None,
    watching: Watching = False,
    as_json: Json = False,
) -> None:
    """Generate the module of each spec, compile and simulate it, and write it once every stage has passed."""
    from gemmgen.build import build
    from gemmgen.lower import STAGES

    choose(form, sarif)
    if watching:
        watch(lambda: specs, lambda: build_command(specs, out, emit, lowering, simulation, form))
    stages = [stage for stage in emit.split(",") if stage]
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise typer.BadParameter(
            f"{', '.join(unknown)}: choose among {', '.join(STAGES)}", param_hint="--emit"
        )
    if stages and not lowering:
        raise typer.BadParameter("artifacts come from lowering; leave out --no-lower", param_hint="--emit")
    _refuse_duplicates(specs)
    _refuse_gradients(specs)
    if lowering:
        require_compiler()
    with _progress("building") as progress:
        action = partial(build, out=out, emit=stages, lowering=lowering, simulation=simulation)
        built, failed = _each(specs, action, progress, parallel=lowering)
    if as_json:
        _print_json([item.as_dict() for item in built])
    for item in () if as_json else (each for one in built for each in (one, *one.gradients)):
        say(f"{item.spec}\n\n{item.ledger.as_text()}\n")
        if item.resources:
            say(resources_text(item.resources, item.plan) + "\n")
        if item.simulation:
            say(f"{item.simulation}\n")
        say("\n".join(f"wrote {path}" for path in (item.module, *item.artifacts)))
    _exit(failed)


@app.command(name="check")
def check_command(
    specs: Annotated[
        list[Path] | None, typer.Argument(metavar="[SPEC…]", help="Default: all of specs/.")
    ] = None,
    out: Out = Path("generated"),
    form: Format = "text",
    sarif: SarifFile = None,
    watching: Watching = False,
    as_json: Json = False,
) -> None:
    """Find modules that are missing, stale, edited by hand or orphaned, byte for byte."""
    choose(form, sarif)
    if watching:
        watch(lambda: specs or _all_specs(), lambda: check_command(specs, out, form))
    chosen = specs or _all_specs()
    if not chosen:
        message = "holds no .yaml or .yml files: name the specs to check"
        raise GemmgenError([Diagnostic("specs", "no-specs", message)])
    products, failed = _each(chosen, make)
    findings = check(products, out, exhaustive=not specs and not failed)
    if as_json:
        _print_json({f.diagnostic.path: {"state": f.diagnostic.code, "diff": f.diff} for f in findings})
    for finding in findings:
        _complain(GemmgenError([finding.diagnostic]))
        if not as_json:
            say(finding.diff, end="")
    if not (findings or failed or as_json):
        modules = sum(1 + len(product.gradients) for product in products)
        say(f"{len(products)} specs, {modules} modules under {out}: all up to date")
    _exit(failed or bool(findings))


@app.command(name="lower")
def lower_command(
    specs: Specs,
    digests: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare the compiled code with the digests in a file."),
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="With --digests: write the file instead.")] = False,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Compile each spec's module without writing it, and print the measured resources."""
    choose(form, sarif)
    if record and digests is None:
        raise typer.BadParameter("goes with --digests FILE", param_hint="--record")
    require_compiler()
    from gemmgen.lower import Lowered, lower
    from gemmgen.ptx import Code, changes, write_digests

    def lower_one(path: Path) -> list[tuple[Product, Lowered]]:
        product = make(path)
        gradients = [gradient.product for gradient in product.gradients] if digests else []
        return [
            (each, lower(each.module, each.plan, path=each.source.path, stem=each.source.stem))
            for each in (product, *gradients)
        ]

    with _progress("lowering") as progress:
        each_spec, failed = _each(specs, lower_one, progress, parallel=True)
    every = [one for found in each_spec for one in found]
    if digests and not (record and failed):
        codes = [Code.of(product.source.stem, found) for product, found in every]
        if record:
            write_digests(codes, digests)
        elif found := [*changes(codes, digests)]:
            _complain(GemmgenError(found))
            failed = True
    if as_json:
        _print_json({product.source.path: asdict(found.resources) for product, found in every})
    elif digests:
        say(f"{len(every)} modules {'recorded in' if record else 'compared with'} {digests.as_posix()}")
    elif every:
        texts = (
            f"{product.source.path}\n\n{resources_text(found.resources, product.plan)}"
            for product, found in every
        )
        say("\n\n".join(texts))
    _exit(failed)


@app.command(name="simulate")
def simulate_command(
    subjects: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC…|FILE.py[::FUNCTION]…",
            help="Specs; or programs: scripts or functions that launch Gluon kernels, or a kernel itself.",
        ),
    ],
    shape: PinnedShape = "",
    programs: Annotated[
        int | None,
        typer.Option(metavar="P", min=1, help="With --shape: programs of a persistent kernel (1, then 2)."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(metavar="GPU", help="Of programs: sm90, sm100, h100, h200, b200. A spec has its own."),
    ] = "sm90",
    args: Annotated[
        str | None,
        typer.Option(metavar="ARGS", help="What a FUNCTION is called with: 'torch.ones(64), n=64'."),
    ] = None,
    grid: Annotated[
        str | None, typer.Option(metavar="GRID", help="What a FUNCTION that is a kernel is launched with.")
    ] = None,
    schedules: Schedules = 10,
    seed: Seed = 0,
    processes: Processes = None,
    trace: TraceFile = None,
    svg: PictureFile = None,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Run kernels on the CPU under many schedules; find races, deadlocks and wrong numbers."""
    files = [subject for subject in subjects if subject.partition("::")[0].endswith(".py")]
    choose(form, None if files else sarif)  # of a program's findings it has all places
    require_compiler()
    processes = processes or usable_cores()
    if files and len(files) < len(subjects):
        raise typer.BadParameter("name specs or programs, not both", param_hint="SPEC…|FILE.py…")
    for option, path in (("--trace", trace), ("--svg", svg)):
        if path:
            _refuse_timeline(option, path, subjects)
    if files:
        if shape or programs:
            raise typer.BadParameter("a program has its own shapes", param_hint="--shape")
        called = [_program(subject, args, grid) for subject in files]
        _simulate_programs(called, target, schedules, seed, processes, trace, svg, sarif, as_json=as_json)
    elif args is not None or grid is not None:
        raise typer.BadParameter("go with FILE.py::FUNCTION", param_hint="--args and --grid")
    else:
        specs = [Path(subject) for subject in subjects]
        _simulate_specs(specs, shape, programs, schedules, seed, processes, trace, svg, as_json=as_json)


def _program(subject: str, args: str | None, grid: str | None) -> Program:
    """Return what a subject names, with what it is called with."""
    from gemmgen.simulate.pretended import Program

    file, _, function = subject.partition("::")
    if not function and (args is not None or grid is not None):
        raise typer.BadParameter("go with FILE.py::FUNCTION", param_hint="--args and --grid")
    return Program(Path(file), function or None, args, grid)


def _simulate_programs(
    called: list[Program],
    target: str,
    schedules: int,
    seed: int,
    processes: int,
    trace: Path | None,
    svg: Path | None,
    sarif: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run programs as if there were the GPU that they are for, and what they launch in the simulator."""
    from gemmgen.simulate import Severity, gpu_of_target, policies
    from gemmgen.simulate.pretended import run_program
    from gemmgen.simulate.result import notes_by_kernel, sarif_log

    gpu = gpu_of_target(target)
    shown: dict[str, list[Result]] = {}
    failures: list[GemmgenError] = []
    for program in called:
        results = shown.setdefault(str(program), [])
        try:
            with redirect_stdout(sys.stderr):  # what a program prints is no report
                given = policies.schedules(schedules)
                run_program(program, gpu, results.append, given, seed, processes)
            if not results:
                message = (
                    "launches no Gluon kernel: name a function that does, or let the file do so as a script"
                )
                raise GemmgenError([Diagnostic(str(program.file), "no-launch", message)])
        except GemmgenError as error:
            failures.append(error)
    found = list(
        {str(f): f for results in shown.values() for result in results for f in result.findings}.values()
    )
    for error in (GemmgenError(finding.diagnostic for finding in found), *failures):
        _complain(error)  # findings first, for wrong numbers may come of them
    for subject, results in shown.items():
        if results and not as_json:
            noted = notes_by_kernel(result.evidence for result in results)
            notes = [f"note: {kernel}: {note}" for kernel, notes in noted.items() for note in notes]
            say(f"{subject}:", "\n  ".join([*(result.headline for result in results), *notes]))
    if as_json:
        _print_json({subject: [result.as_dict() for result in results] for subject, results in shown.items()})
    if sarif:
        _write(sarif, json.dumps(sarif_log(found), indent=2) + "\n")
    _write_timelines(shown[str(called[0])][:1], trace, svg)
    _exit(bool(failures) or any(finding.severity is Severity.ERROR for finding in found))


def _simulate_specs(
    specs: list[Path],
    shape: str,
    programs: int | None,
    schedules: int,
    seed: int,
    processes: int,
    trace: Path | None,
    svg: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run each spec's kernel in the simulator."""
    from gemmgen.verify.simulation import all_launches, parse_shape, pinned_launches, simulate_product

    if programs and not shape:
        raise typer.BadParameter("needs --shape", param_hint="--programs")
    try:
        pinned = pinned_launches(parse_shape(shape), schedules, programs) if shape else ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--shape") from error

    def simulate_one(path: Path) -> Simulation:
        product = make(path)
        launches = pinned or all_launches(product.plan, schedules)
        return simulate_product(product, launches, seed=seed, processes=processes)

    with _progress("simulating") as progress:
        simulations, failed = _each(specs, simulate_one, progress)
    for simulation in simulations:
        _complain(GemmgenError(simulation.diagnostics))
        if not as_json:
            say(simulation_text(simulation))
    if as_json:
        _print_json({simulation.spec: simulation.as_dict() for simulation in simulations})
    _write_timelines(simulations[:1], trace, svg)
    _exit(failed or any(simulation.problems for simulation in simulations))


@app.command(name="test")
def verify_command(
    specs: Specs,
    shapes: Annotated[
        str, typer.Option(metavar="MxNxK,…|FILE", help="Default: the spec's own and the acceptance shapes.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Check the numbers of each spec's kernel on the GPU of this machine."""
    require_compiler()
    from gemmgen.bench import parse_shapes
    from gemmgen.module import import_generated
    from gemmgen.verify import Verification, verify

    chosen = parse_shapes(shapes) if shapes else None

    def test_one(path: Path) -> tuple[str, Verification]:
        product = make(path)
        with staged(product) as module_path:
            module = import_generated(module_path)
            tell = partial(_prefixed, progress, product.source.stem)
            source, deterministic = product.source, product.plan.deterministic
            verification = verify(module, source, chosen, deterministic=deterministic, progress=tell)
            return product.source.path, verification

    with _progress("testing") as progress:
        verifications, failed = _each(specs, test_one)
    if as_json:
        _print_json({path: verification.as_dict() for path, verification in verifications})
    for path, verification in verifications:
        for failure in verification.failures:
            _complain(GemmgenError([Diagnostic(path, "wrong-kernel", str(failure))]))
        if not as_json:
            passed = len(verification.checks) - len(verification.failures)
            say(f"{path}: {passed} of {len(verification.checks)} checks passed on {verification.device}")
    _exit(failed or not all(verification.passed for _, verification in verifications))


@app.command(name="bench", cls=CountedOption)
def bench_command(
    subjects: Annotated[
        list[Path],
        typer.Argument(
            metavar="SPEC…|LIBRARY|RECORD…",
            help="Specs, or with --suite a library, to time; records to show.",
        ),
    ],
    shapes: Annotated[str, typer.Option(metavar="MxNxK,…|FILE", help="Default: the spec's own.")] = "",
    record: Annotated[
        Path | None, typer.Option(metavar="FILE|DIR", help="Keep the samples; a directory for several specs.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the ratios as .svg or .png.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Compare with this module of the spec; a directory for several specs, found by name.",
        ),
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Time all specs by turns on the shapes of this suite."),
    ] = None,
    extents: Annotated[
        str,
        typer.Option("--m", metavar="LOW-HIGH", help="Only shapes of the suite whose M is in this range."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Of a suite: its record, with which a run that was ended goes on, and its pictures.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            metavar="[N]",
            min=1,
            help="Of each spec the N kernels that its planner ranks first for each shape of the suite.",
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="On the suite's shapes for it, time Inductor's Triton templates too."),
    ] = False,
    peer_python: Annotated[
        str,
        typer.Option(metavar="COMMAND", help="Starts the Python, with torch, of that process (this one)."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Time each spec's kernel against torch.matmul, or all by turns on a suite; or show what records say."""
    require_compiler()
    from gemmgen import bench

    if suite or any(path.suffix == ".jsonl" for path in subjects):
        alone = {"--shapes": shapes, "--record": record, "--plot": plot, "--against": against}
        for option in (name for name, value in alone.items() if value):
            raise typer.BadParameter("does not go with a suite, which has --out", param_hint=option)
        peer_command = shlex.split(peer_python) or [sys.executable]
        peer = peer_command if peers else None
        _bench_suite(subjects, suite, extents, candidates, out, peer, as_json=as_json)
        return
    alone = {"--m": extents, "--candidates": candidates, "--out": out}
    alone |= {"--peers": peers, "--peer-python": peer_python}
    for option in (name for name, value in alone.items() if value):
        raise typer.BadParameter("goes with --suite", param_hint=option)
    specs = [path for path in subjects if path.suffix != ".json"]
    if record:
        _refuse_unwritable(record, specs)
    if against:
        _refuse_opponent(against, specs)
    chosen = bench.parse_shapes(shapes) if shapes else None

    def bench_one(path: Path) -> bench.Record:
        if path.suffix == ".json":
            return bench.read_record(path)
        other = against / f"{path.stem}.py" if against and against.is_dir() else against
        found = bench.time_spec(path, chosen, partial(_prefixed, progress, path.stem), other)
        if record:
            bench.write_record(found, record / f"{path.stem}.json" if record.is_dir() else record)
        return found

    with _progress("benchmarking") as progress:
        records, failed = _each(subjects, bench_one)
    if as_json:
        _print_json([json.loads(bench.to_json(found)) for found in records])
    elif records:
        say(bench.plain_table(records), end="")
    if plot and records:  # last: what it refuses must not cost the figures
        bench.plot(records, plot)
    _exit(failed or any(found.errors for found in records))


RECORD_NAME = "record.jsonl"
"""Of a suite's record in its directory."""


def _bench_suite(
    subjects: list[Path],
    suite: Path | None,
    extents: str,
    candidates: int | None,
    out: Path | None,
    peer_command: list[str] | None,
    *,
    as_json: bool,
) -> None:
    """Time specs on a suite, or read the record of one; tell the figures and draw the pictures."""
    from gemmgen import bench

    if suite is None:
        if len(subjects) > 1:
            raise typer.BadParameter("show one record of a suite at a time", param_hint="RECORD…")
        book = bench.Book.opened(subjects[0])
    else:
        loaded, chosen, choose = bench.load_suite(suite), range_of(extents), None
        if len(subjects) == 1 and subjects[0].is_dir():
            subjects, choose = package.contestants(subjects[0])
        if out:
            out.mkdir(parents=True, exist_ok=True)
        book = bench.Book.opened(out / RECORD_NAME) if out else bench.Book()
        with _progress("benchmarking") as progress:
            bench.time_suite(
                subjects,
                loaded,
                book,
                extents=chosen,
                candidates=candidates,
                chosen=choose,
                progress=progress,
            )
            if peer_command:
                bench.time_peers(loaded, book, chosen, peer_command, progress)
    if as_json:
        _print_json(bench.report_of(book))
    else:
        say_tables(bench.suite_tables(book), TABLE_COLUMNS)
    if out and book.sessions:
        _draw_suite(book, out)
    errors = bench.errors_of(book)
    for line in (line for error in errors for line in error.splitlines()):
        tell(line)
    _exit(bool(errors))


def _draw_suite(book: Book, out: Path) -> None:
    """Draw a suite's pictures; where they cannot be drawn, the record is still whole."""
    from gemmgen import bench

    try:
        out.mkdir(parents=True, exist_ok=True)
        bench.ratio_picture(book, out / "ratio.svg")
        bench.roofline_picture(book, out / "roofline.svg")
    except GemmgenError as error:
        _complain(GemmgenError(replace(found, severity="warning") for found in error.diagnostics))


TABLE_COLUMNS = 200
"""Of a table that no terminal shows."""


def range_of(extents: str) -> range:
    """Return the range of M that a user gives as LOW-HIGH, LOW- or one number; all without one."""
    match = re.fullmatch(r"([1-9]\d{0,9})(-([1-9]\d{0,9})?)?", extents or "1-")
    if match is None:
        raise typer.BadParameter(f"`{extents}` is no range: write 1-64, 4096- or 16", param_hint="--m")
    low, dash, high = match.groups()
    return range(int(low), int(high or (1 << 31) if dash else low) + 1)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Show versions and the GPU, and say which stages can run here."""
    from gemmgen.device import examine

    found = examine()
    if as_json:
        _print_json(found.as_dict())
        return
    rows = [*found.versions.items(), ("GPU", found.gpu), *found.stages.items()]
    say("\n".join(f"{name:<26} {value}" for name, value in rows))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from gemmgen.spec.model import json_schema

    say(json.dumps(json_schema(), indent=2))


@app.command(name="list")
def list_command(out: Out = Path("generated"), as_json: Json = False) -> None:
    """List the specs of this directory, what they plan, and the state of their modules."""
    products, failed = _each(_all_specs(), make)
    rows: list[dict[str, object]] = []
    for product in products:
        findings = check([product], out, exhaustive=False)
        rows.append(spec_row(product, findings[0].diagnostic.code if findings else "up to date"))
    if as_json:
        _print_json(rows)
    else:
        say("\n".join(columns(rows)))
    _exit(failed)


# --- tuning


@app.command(name="tune")
def tune_command(
    specs: Specs,
    shapes: Annotated[
        str,
        typer.Option("--shapes", metavar="MxNxK,…|FILE", help="What to tune for; a file as `test` takes."),
    ] = "",
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="MxNxK", help="One more shape; may be repeated.")
    ] = None,
    store: Annotated[
        str,
        typer.Option(metavar="FILE|URL", help="Of the trials: SQLite, a .journal file or postgresql://…"),
    ] = "tune.db",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the specs of the winners go.")] = Path(
        "specs/tuned"
    ),
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the choices as JSON Lines for a program.")
    ] = None,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Of GPU time for each spec and shape.")
    ] = 60,
    candidates: Annotated[
        int, typer.Option(metavar="N", min=1, help="Of the planner's ranking, to begin with.")
    ] = CANDIDATES,
    devices: Annotated[
        str, typer.Option(metavar="0,1,…", help="The GPUs to measure on, a worker each (all).")
    ] = "",
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Measure nothing: write what the store has of this GPU."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Forget what the store has of these.")] = False,
    pages: Pages = None,
    as_json: Json = False,
) -> None:
    """Find by measuring which kernel of each spec is the fastest for each shape, and write its spec."""
    require_compiler()
    from gemmgen.tune import require_optuna

    require_optuna()
    from gemmgen.bench import parse_shapes
    from gemmgen.tune.tuning import tune

    wanted = ",".join(shape or [])
    chosen = [*(parse_shapes(shapes) if shapes else ()), *(parse_shapes(wanted) if wanted else ())]
    if not chosen:
        raise typer.BadParameter("name what to tune for", param_hint="--shapes or --shape")
    if not re.fullmatch(r"(\d+(,\d+)*)?", devices):
        raise typer.BadParameter(f"`{devices}` are no GPUs: write 0,1", param_hint="--devices")
    if again and gpu:
        raise typer.BadParameter("measures, and --gpu does not", param_hint="--again")
    _refuse_duplicates(specs)
    numbers = [int(device) for device in devices.split(",")] if devices else None
    try:
        with tuning_progress() as progress:
            outcomes = tune(
                specs,
                tuple(dict.fromkeys(chosen)),
                store,
                out=out,
                table=table,
                budget=budget,
                candidates=candidates,
                devices=numbers,
                gpu=gpu,
                again=again,
                progress=progress,
            )
    except (SystemExit, KeyboardInterrupt):
        tell("interrupted: the trials so far are kept, and the same command goes on")
        raise
    told = _write_pages((make(path) for path in dict.fromkeys(o.path for o in outcomes)), pages)
    if as_json:
        _print_json([outcome.as_dict() for outcome in outcomes])
        return
    say("\n".join([*columns([outcome.as_row() for outcome in outcomes]), *told]))
    for outcome in outcomes:
        if outcome.remark:
            tell(f"{outcome.path}: {outcome.remark}")


@app.command(name="export")
def export_command(
    specs: Specs,
    aot: Annotated[
        Path, typer.Option("--aot", metavar="DIR", help="Where the cubin and its launcher in C are written.")
    ],
    as_json: Json = False,
) -> None:
    """Write kernels for programs without Python: a cubin, a launcher in C, and a program that tests both."""
    require_compiler()
    from gemmgen.build import export
    from gemmgen.triton_api import cuda_include

    _refuse_duplicates(specs)
    with _progress("exporting") as progress:
        exported, failed = _each(specs, partial(export, directory=aot), progress, parallel=True)
    if as_json:
        _print_json([item.as_dict() for item in exported])
    elif exported:
        say("\n".join(f"wrote {path}" for item in exported for path in item.files))
        command = shlex.join(["make", "-C", str(aot), f"CUDA_INCLUDE={cuda_include()}"])
        tell(f"next, `{command}`, and with `check` behind it on a GPU")
    _exit(failed)


@app.command(name="report")
def report_command(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORD…", help="Records of kernels (.json) and suites, tables of tuned kernels (.jsonl)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    as_json: Json = False,
) -> None:
    """Make one page of records for a browser: ratios, roofline, ranking, all that was tried; no network."""
    from gemmgen.report import report

    _write(out, report(records))
    _print_json({"wrote": [out.as_posix()]})
    if not as_json:
        say(f"wrote {out}")


# --- libraries


@app.command(name="library")
def library_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME|DIR", help="Of the package; with --check or --refresh where it is.")
    ],
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE", help="A spec, a record of a suite or a tuned table; repeatable."
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="A table of `gemmgen tune`, as --from.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where libraries live.")] = Path(
        "libraries"
    ),
    problem: Annotated[
        str, typer.Option("--problem", metavar="WORDS", help="Which, where sources have several.")
    ] = "",
    kernels: Annotated[
        int, typer.Option("--kernels", metavar="N", min=1, help="How many at most.")
    ] = MOST_KERNELS,
    dependent: Annotated[
        bool,
        typer.Option(
            "--dependent-launch",
            help="Start its kernels while the one ahead still runs, where they can: they wait for its end.",
        ),
    ] = False,
    lowering: Lowering = True,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Also say how the rule does on N and K that it does not know.")
    ] = False,
    hub: Annotated[
        Path | None,
        typer.Option(
            "--hub", metavar="DIR", help="Also write a repository for Hugging Face's kernel-builder."
        ),
    ] = None,
    configs: Annotated[
        Path | None,
        typer.Option(
            "--vllm", metavar="DIR", help="Also write its tiles as tables N=…,K=…,device_name=….json."
        ),
    ] = None,
    checking: Annotated[
        bool, typer.Option("--check", help="Find what is missing, stale or edited in a library.")
    ] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Make a library's files anew, its choice as it is.")
    ] = False,
    pages: Pages = None,
    as_json: Json = False,
) -> None:
    """Make a package of the kernels that are best for many shapes, and of the table that chooses."""
    from gemmgen import library
    from gemmgen.library import sources as library_sources

    paths = [*(sources or ()), *([table] if table else ())]
    if bool(paths) == (checking or refresh) or (checking and refresh):
        raise typer.BadParameter("give --from, or --check, or --refresh", param_hint="--from")
    if checking:
        findings = package.check(Path(name))
        if as_json:
            _print_json({f.diagnostic.path: {"state": f.diagnostic.code} for f in findings})
        for finding in findings:
            _complain(GemmgenError([finding.diagnostic]))
        if not (findings or as_json):
            say(f"{name}: up to date")
        _exit(bool(findings))
        return
    if lowering:
        require_compiler()
    if refresh:
        made, report = package.read_library(Path(name)), library.Report()
        out = package.parent_of(Path(name))
    else:
        found = library_sources.read(paths, problem or None)
        _complain(GemmgenError(found.warnings))
        choice = library.choose(found, kernels)
        made = package.assemble(name, found, choice, dependent=dependent)
        report = library.Report.of(found, choice, kernels if leave_out else None)
    with _progress("compiling") as progress:
        failed = lowering and _each(made.members, package.lowered, progress, parallel=True)[1]
    if not failed:
        written = package.write(made, out)
        early = sum(member.product.plan.dependent for member in made.members)
        told = [f"{early} of {len(made.members)} kernels start early"] if dependent else []
        told += [f"wrote {package.write_hub(made, hub)}: its sources for the hub"] if hub else []
        told += [f"wrote {configs}: {package.write_configs(made, configs)}"] if configs else []
        told += _write_pages((member.product for member in made.members), pages)
        if as_json:
            _print_json({"package": written.as_posix(), **made.as_dict(), **report.as_dict()})
        else:
            say("\n".join([f"wrote {written}: {made}", *report.lines(), *told]))
    _exit(failed)


# --- fuzzing


@app.command(name="fuzz")
def fuzz_command(
    target: Annotated[
        str, typer.Option(metavar="sm90|sm100", help="The architecture of the specs.")
    ] = "sm90",
    specs: Annotated[int, typer.Option("--specs", metavar="N", min=1, help="Specs to draw.")] = 100,
    seed: Annotated[int, typer.Option("--seed", metavar="S", min=0, max=2**31, help="Of the specs.")] = 0,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FILE", help="Append a line for each; a run that was ended goes on."
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="That judge specs (the cores of this machine)."),
    ] = None,
    minimum: Annotated[
        bool, typer.Option("--minimum", help="With the fewest registers that the rules allow a plan.")
    ] = False,
    simulated: Annotated[
        int, typer.Option("--simulated", metavar="N", min=0, help="Simulate one accepted spec of N; 0: none.")
    ] = 20,
    refused: Annotated[
        int, typer.Option("--refused", metavar="N", min=0, help="Of N specs one is a refused one; 0: none.")
    ] = 5,
    as_json: Json = False,
) -> None:
    """Draw random specs, and compare what the rules say of them with the compiler and the simulator."""
    from gemmgen import fuzz

    require_compiler()
    if target not in fuzz.TABLES:
        raise typer.BadParameter(f"`{target}` is none of {', '.join(fuzz.TABLES)}", param_hint="--target")
    run = fuzz.Run(target, seed, minimum, simulated, refused)
    report = fuzz.Report(run, ())
    with _progress("fuzzing") as progress:
        for one in fuzz.fuzz(run, specs, record=record, processes=processes or usable_cores()):
            report = replace(report, judged=(*report.judged, one))
            progress(f"{len(report.judged)} of {specs}, {len(report.findings)} findings")
    if as_json:
        _print_json(report.as_dict())
    else:
        say("\n".join(report.lines()))
    _exit(bool(report.findings))


# --- what a diagnostic means


@app.command(name="explain")
def explain_command(
    codes: Annotated[
        list[str] | None, typer.Argument(metavar="[RULE…]", help="As a diagnostic has it: smem-capacity.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a rule protects, its arithmetic and source, with a spec that breaks it; or list them all."""
    found = [explanation_of(code) for code in codes] if codes else list(explanations().values())
    _print_json({each.code: each.as_dict() for each in found})
    if not as_json and codes:
        say("\n\n".join(map(str, found)))
    elif not as_json:
        say("\n".join(columns([{"rule": each.code, "says": each.summary} for each in found])))


# --- what is refused before anything runs


def _all_specs() -> list[Path]:
    return sorted(path for path in Path("specs").glob("*") if path.suffix in (".yaml", ".yml"))


def _refuse_duplicates(paths: list[Path]) -> None:
    """Two specs of one stem would overwrite each other's module or record."""
    first: dict[str, Path] = {}
    for path in paths:
        if path.stem in first and first[path.stem] != path:
            message = f"makes the same module as {first[path.stem]}: rename one of the two"
            raise GemmgenError([Diagnostic(path.as_posix(), "module-name", message)])
        first[path.stem] = path


def _refuse_gradients(paths: list[Path]) -> None:
    """A spec named as a gradient of another one would overwrite that one's module."""
    stems = {path.stem: path for path in paths}
    for path in paths:
        for stem in (gradient_stem(path.stem, operand) for operand in OPERANDS):
            if stem in stems and load_spec(path).spec.backward:
                message = f"makes the same module as a gradient of {path}: rename one of the two"
                raise GemmgenError([Diagnostic(stems[stem].as_posix(), "module-name", message)])


def _refuse_unwritable(record: Path, specs: list[Path]) -> None:
    """Timing takes minutes: find out before it whether the records have a place to go."""
    if not specs:
        message = "only specs are timed and recorded"
    elif len(specs) > 1 and not record.is_dir():
        message = "several specs need a directory to record into"
    elif problem := unwritable(record, folder=True):
        message = problem
    else:
        _refuse_duplicates(specs)
        return
    raise typer.BadParameter(message, param_hint="--record")


def _refuse_opponent(against: Path, specs: list[Path]) -> None:
    """One module is of one spec, and a record holds what it was compared with already."""
    if not specs:
        message = "only specs are timed"
    elif len(specs) > 1 and not against.is_dir():
        message = "several specs need a directory of modules"
    else:
        return
    raise typer.BadParameter(message, param_hint="--against")


def _refuse_timeline(option: str, path: Path, subjects: list[str]) -> None:
    """A timeline is of one kernel; find out whether it has a place to go before the kernel runs."""
    if len(subjects) > 1:
        message = "a timeline is of one spec or file"
    elif problem := unwritable(path):
        message = problem
    else:
        return
    raise typer.BadParameter(message, param_hint=option)


def _write_timelines(simulated: Sequence[Simulation | Result], trace: Path | None, svg: Path | None) -> None:
    """Write what is asked for of a launch; last, for what is refused here must not cost the findings."""
    for first in simulated:
        if trace:
            _write(trace, first.trace.as_json() + "\n")
        if svg:
            _write(svg, first.svg())


def _refuse_pictures(specs: Sequence[Path], svg: Path | None, html: Path | None) -> None:
    """Pictures are of one plan, and need a place to go."""
    for option, path in (("--svg", svg), ("--html", html)):
        if path is None:
            continue
        if len(specs) > 1:
            raise typer.BadParameter("a picture is of one spec", param_hint=option)
        if why := unwritable(path):
            raise typer.BadParameter(why, param_hint=option)


def _write_pictures(products: Sequence[Product], svg: Path | None, html: Path | None) -> None:
    """Write what is asked for of a plan."""
    if not (svg or html):
        return
    from gemmgen import pictures

    for product in products:
        if svg:
            _write(svg, pictures.svg(product))
        if html:
            _write(html, pictures.page(product))


def _write_pages(products: Iterable[Product], directory: Path | None) -> list[str]:
    """Write a page of pictures for each plan, and return what to tell of them."""
    if directory is None:
        return []
    from gemmgen import pictures

    count = 0
    directory.mkdir(parents=True, exist_ok=True)
    for product in products:
        _write(directory / f"{product.source.stem}.html", pictures.page(product))
        count += 1
    return [f"wrote {directory}: a page of pictures for each of {count} kernels"]


# --- printing


def _prefixed(progress: Callable[[str], None], subject: str, step: str) -> None:
    progress(f"{subject}: {step}")


def _print_candidates(products: list[Product], limit: int, *, explained: bool, as_json: bool) -> None:
    """List the configurations of each spec, best first; the first one is what its plan is."""
    from gemmgen.plan.planner import rank

    rankings = {
        product.source.path: rank(product.source, _patience(product.source.path)) for product in products
    }
    if as_json:
        _print_json({path: found.as_dict(limit, explained=explained) for path, found in rankings.items()})
        return
    for i, (path, found) in enumerate(rankings.items()):
        say("\n" * (i > 0) + f"{path}: {found.table(limit)}")
        if explained:
            say(f"\n{found.explanation()}")


# --- plans that are frozen and compared

SECONDS_OF_SILENCE = 2.0
"""After which, and every so many more, a long search says how far it has come."""


@app.command(name="diff")
def diff_command(
    first: Annotated[Path, typer.Argument(metavar="A", help="A spec.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: Json = False,
) -> None:
    """Print in what the plans of two specs differ: decisions, then what they spend and take."""
    from gemmgen.plan.ledger import differences, differences_text

    products, failed = _planned([first, second])
    if not failed:
        one, other = products
        found = differences(one.plan, other.plan)
        if as_json:
            _print_json({each.name: [each.first, each.second] for each in found})
        else:
            say(differences_text(found, one.source.path, other.source.path))
    _exit(failed)


def _planned(specs: list[Path]) -> tuple[list[Product], bool]:
    """Plan specs; what is worth a word of legal ones is said on stderr."""
    from gemmgen.plan.planner import warnings

    products, failed = _each(specs, lambda path: make(path, _patience(path.as_posix())))
    for product in products:
        _complain(GemmgenError(warnings(product.source, product.plan)))
    return products, failed


def _patience(subject: str) -> Callable[[int, int], None]:
    """Return what says on stderr how far a search has come, once it takes long."""
    told = time.monotonic()

    def tick(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_OF_SILENCE:
            told = time.monotonic()
            tell(f"{subject}: {done:,} of {total:,} combinations")

    return tick


def _print_frozen(products: list[Product], place: int, *, as_json: bool) -> None:
    """Print a spec that states every decision of a candidate of each spec, the first one its plan."""
    from gemmgen.plan.decisions import frozen, spec_text
    from gemmgen.plan.planner import rank

    if len(products) > 1 and not as_json:
        raise typer.BadParameter("prints one spec; name one, or use --json", param_hint="--freeze")
    found: dict[str, dict[str, Any]] = {}
    for product in products:
        source, plan = product.source, product.plan
        if place > 1:
            legal = rank(source, _patience(source.path)).legal
            if place > len(legal):
                message = f"candidate {place} of {len(legal)}, that is all that are legal"
                raise GemmgenError([Diagnostic(source.path, "no-candidate", message)])
            plan = legal[place - 1].plan
        found[source.path] = frozen(source, plan)
    if as_json:
        _print_json(found)
    for data in () if as_json else found.values():
        say(spec_text(data), end="")
