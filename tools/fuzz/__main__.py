"""``python -m tools.fuzz``: random specs beside the compiler and the simulator, from the command line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gemmgen.__main__ import run as run_process
from gemmgen.cli.ending import run_command
from gemmgen.cli.options import Json
from gemmgen.cli.reporting import end, print_json, say
from gemmgen.cli.running import progressing
from gemmgen.device import require_compiler
from gemmgen.processes.forking import usable_cores
from tools.fuzz.run import Report, Run, fuzz
from tools.fuzz.tables import TABLES

NAME = "python -m tools.fuzz"

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def command(
    target: Annotated[
        str, typer.Option(metavar="sm90|sm100|layers", help="The table of the specs.")
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
    compiled: Annotated[
        int, typer.Option("--compiled", metavar="N", min=0, help="Compile one accepted spec of N; 0: none.")
    ] = 1,
    refused: Annotated[
        int, typer.Option("--refused", metavar="N", min=0, help="Of N specs one is a refused one; 0: none.")
    ] = 5,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Kind of kernels, as gated; all kinds by default.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Draw random specs, and compare what the rules say of them with the compiler and the simulator."""
    require_compiler()
    if target not in TABLES:
        raise typer.BadParameter(f"`{target}` is none of {', '.join(TABLES)}", param_hint="--target")
    kinds = dict(TABLES[target][1])
    if kind and kind not in kinds:
        raise typer.BadParameter(f"`{kind}` is none of {', '.join(kinds)}", param_hint="--kind")
    run = Run(target, seed, minimum, simulated, compiled, refused, kind)
    report = Report(run, ())
    with progressing("fuzzing") as progress:
        for one in fuzz(run, specs, record=record, processes=processes or usable_cores()):
            report = replace(report, judged=(*report.judged, one))
            progress(f"{len(report.judged)} of {specs}, {len(report.findings)} findings")
    if as_json:
        print_json(report.as_dict())
    else:
        say("\n".join(report.lines()))
    end(bool(report.findings))


def main() -> None:
    """Run the command and end the process."""
    sys.exit(run_command(typer.main.get_command(app), sys.argv[1:], NAME))


if __name__ == "__main__":
    run_process(lambda: main)
