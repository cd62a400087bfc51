"""Commands that time kernels on a GPU and show records: bench, tune and report."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmgen.cli.drawings import write_pictures
from gemmgen.cli.options import (
    CANDIDATES,
    Format,
    Json,
    Pictures,
    SarifFile,
    Specs,
    range_of,
    refuse_duplicates,
    refuse_opponent,
    refuse_unwritable,
)
from gemmgen.cli.reporting import choose, complain, end, print_json, say, say_tables, tell, write
from gemmgen.cli.running import prefixed, progressing, run_each
from gemmgen.cli.texts import columns
from gemmgen.device import require_compiler
from gemmgen.errors import GemmgenError

if TYPE_CHECKING:
    from gemmgen.bench import ResultLog


def bench_command(
    subjects: Annotated[
        list[Path],
        typer.Argument(
            metavar="SPEC…|LIBRARY|RECORD…",
            help="Specs to time, or with --suite a library; or records to show.",
        ),
    ],
    shapes: Annotated[
        str,
        typer.Option(
            "--shapes", "--shape", metavar="MxNxK,…|FILE", help="Problem sizes. Default: the spec's shapes."
        ),
    ] = "",
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE|DIR", help="Write the samples; a directory for several specs."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the ratios to the baseline as .svg or .png.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Also time this other module of the spec; for several specs a directory of modules.",
        ),
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Time all specs on the shapes of this suite, one after the other in each round.",
        ),
    ] = None,
    extents: Annotated[
        str,
        typer.Option("--m", metavar="LOW-HIGH", help="Time only the suite's shapes with M in this range."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for the suite's record and plots; an interrupted run resumes from it.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            metavar="[N]",
            min=1,
            help="Time the planner's first N kernels of each spec for each shape of the suite.",
        ),
    ] = None,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Time kernels against torch.matmul on a GPU; show records.

    Times each spec on its own shapes, or all specs on the shapes of a suite.
    """
    choose(form, sarif)
    require_compiler()
    from gemmgen import bench

    if suite or any(path.suffix == ".jsonl" for path in subjects):
        alone = {"--shapes": shapes, "--record": record, "--plot": plot, "--against": against}
        for option in (name for name, value in alone.items() if value):
            raise typer.BadParameter("is not an option of suites, which have --out", param_hint=option)
        options = SuiteOptions(suite, extents, candidates, out, as_json)
        _bench_suite(subjects, options)
        return
    alone = {"--m": extents, "--candidates": candidates, "--out": out}
    for option in (name for name, value in alone.items() if value):
        raise typer.BadParameter("requires --suite", param_hint=option)
    specs = [path for path in subjects if path.suffix != ".json"]
    if record:
        refuse_unwritable(record, specs)
    if against:
        refuse_opponent(against, specs)
    chosen = bench.parse_shapes(shapes) if shapes else None

    def bench_one(path: Path) -> bench.Record:
        if path.suffix == ".json":
            return bench.read_record(path)
        other = against / f"{path.stem}.py" if against and against.is_dir() else against
        found = bench.time_spec(path, chosen, partial(prefixed, progress, path.stem), other)
        if record:
            bench.write_record(found, record / f"{path.stem}.json" if record.is_dir() else record)
        return found

    with progressing("benchmarking") as progress:
        records, failed = run_each(subjects, bench_one)
    if as_json:
        print_json([json.loads(bench.to_json(found)) for found in records])
    elif records:
        say(bench.plain_table(records), end="")
    if plot and records:  # last: an error in a plot must not cost the figures
        bench.plot(records, plot)
    end(failed or any(found.errors for found in records))


RECORD_NAME = "record.jsonl"
"""The file of a suite's record in its directory."""


@dataclass(frozen=True)
class SuiteOptions:
    """The part of a suite that is timed, and the places of its record and pictures."""

    suite: Path | None
    """None to show a record without timing."""
    extents: str
    """The range of M as the user gives it."""
    candidates: int | None
    out: Path | None
    as_json: bool


def _bench_suite(subjects: list[Path], options: SuiteOptions) -> None:
    """Time specs on a suite, or read the record of one; tell the figures and draw the pictures."""
    from gemmgen import bench

    if options.suite is None:
        if len(subjects) > 1:
            raise typer.BadParameter("show one record of a suite at a time", param_hint="RECORD…")
        log = bench.ResultLog.opened(subjects[0])
    else:
        loaded, chosen, choose = bench.load_suite(options.suite), range_of(options.extents), None
        if len(subjects) == 1 and subjects[0].is_dir():
            from gemmgen.library import package

            subjects, choose = package.contestants(subjects[0])
        if out := options.out:
            out.mkdir(parents=True, exist_ok=True)
        log = bench.ResultLog.opened(out / RECORD_NAME) if out else bench.ResultLog()
        with progressing("benchmarking") as progress:
            selection = bench.SuiteSelection(chosen, options.candidates, choose)
            bench.time_suite(subjects, loaded, log, selection, progress=progress)
    if options.as_json:
        print_json(bench.report_of(log))
    else:
        say_tables(bench.suite_tables(log), TABLE_COLUMNS)
    if options.out and log.sessions:
        _draw_suite(log, options.out)
    errors = bench.errors_of(log)
    for line in (line for error in errors for line in error.splitlines()):
        tell(line)
    end(bool(errors))


def _draw_suite(log: ResultLog, out: Path) -> None:
    """Draw a suite's pictures; an error is a warning, because the record is complete without them."""
    from gemmgen import bench

    try:
        out.mkdir(parents=True, exist_ok=True)
        bench.ratio_picture(log, out / "ratio.svg")
        bench.roofline_picture(log, out / "roofline.svg")
    except GemmgenError as error:
        complain(GemmgenError(replace(found, severity="warning") for found in error.diagnostics))


TABLE_COLUMNS = 200
"""Characters of a table's lines if stdout is no terminal."""


def tune_command(
    specs: Specs,
    shapes: Annotated[
        str,
        typer.Option(
            "--shapes", metavar="MxNxK,…|FILE", help="Problem sizes to tune for, or a file of them."
        ),
    ] = "",
    shape: Annotated[
        list[str] | None, typer.Option("--shape", metavar="MxNxK", help="One more problem size; repeatable.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE", help="Tune for a model's linear layers, by its config.json."),
    ] = None,
    gpus: Annotated[
        int,
        typer.Option("--tensor-parallel", metavar="N", min=1, help="GPUs that share the model's layers."),
    ] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            metavar="MINUTES",
            min=0.1,
            help="Stop by then; the least certain sizes come first.",
        ),
    ] = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL", help="Store of the trials: a SQLite file, or the URL of a database."
        ),
    ] = "tune.db",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the specs of the fastest kernels.")
    ] = Path("specs/tuned"),
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the choices as a table in JSON Lines.")
    ] = None,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="GPU time for each spec and shape.")
    ] = 60,
    candidates: Annotated[
        int, typer.Option(metavar="N", min=1, help="Kernels of the planner's ranking to begin with.")
    ] = CANDIDATES,
    devices: Annotated[
        str, typer.Option(metavar="0,1,…", help="GPUs to measure on, one worker each. Default: all.")
    ] = "",
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Measure nothing; write the choices for this GPU from the store."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Forget earlier trials of these specs and shapes.")
    ] = False,
    pictures: Pictures = None,
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Find the fastest kernel of each spec and shape on a GPU.

    Writes the spec of each winner, with every field stated.
    """
    choose(form, sarif)
    require_compiler()
    from gemmgen.tune import require_optuna

    require_optuna()
    from gemmgen.bench import parse_shapes
    from gemmgen.plan.rule import counted
    from gemmgen.product import make
    from gemmgen.tune.model_layers import shapes_of_model
    from gemmgen.tune.options import TuningOptions
    from gemmgen.tune.tuning import tune

    wanted = ",".join(shape or [])
    chosen = [*(parse_shapes(shapes) if shapes else ()), *(parse_shapes(wanted) if wanted else ())]
    chosen += shapes_of_model(model, gpus) if model else ()
    if not chosen:
        hint = "--shapes, --shape or --model"
        raise typer.BadParameter("name a problem size to tune for", param_hint=hint)
    if gpus > 1 and model is None:
        raise typer.BadParameter("divides the layers of a --model", param_hint="--tensor-parallel")
    if not re.fullmatch(r"(\d+(,\d+)*)?", devices):
        raise typer.BadParameter(f"`{devices}` is no list of GPUs: write 0,1", param_hint="--devices")
    if again and gpu:
        raise typer.BadParameter(
            "cannot be combined with --gpu, which measures nothing", param_hint="--again"
        )
    refuse_duplicates(specs)
    options = TuningOptions(
        store=store,
        out=out,
        table=table,
        budget=budget,
        candidates=candidates,
        devices=[int(device) for device in devices.split(",")] if devices else None,
        gpu=gpu,
        minutes=minutes,
        again=again,
    )
    try:
        with progressing("tuning") as progress:
            outcomes = tune(specs, tuple(dict.fromkeys(chosen)), options, progress=progress)
    except (SystemExit, KeyboardInterrupt):
        tell("interrupted: all trials so far are stored, and the same command resumes")
        raise
    told = write_pictures((make(path) for path in dict.fromkeys(o.path for o in outcomes)), pictures)
    if as_json:
        print_json([outcome.as_dict() for outcome in outcomes])
        return
    say("\n".join([*columns([outcome.as_row() for outcome in outcomes]), *told]))
    for outcome in outcomes:
        if outcome.remark:
            tell(f"{outcome.path}: {outcome.remark}")
    if left := len(specs) * len(set(chosen)) - len(outcomes):
        tell(f"{counted(left, 'problem')} left when the time was over: the same command goes on with them")


def report_command(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORD…",
            help="Records of kernels (.json) or suites, or tables of tuned kernels (.jsonl).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Page to write.")] = Path("report.html"),
    form: Format = "text",
    sarif: SarifFile = None,
    as_json: Json = False,
) -> None:
    """Make an HTML page of records: ratios, roofline, ranking.

    The page needs no network.
    """
    choose(form, sarif)
    from gemmgen.report import report

    write(out, report(records))
    print_json({"wrote": [out.as_posix()]})
    if not as_json:
        say(f"wrote {out}")
