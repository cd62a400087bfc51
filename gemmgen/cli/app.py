"""The command line: one subcommand per stage.

Artifacts and reports go to stdout, progress and diagnostics to stderr. Exit codes: 0 done, 1 rejected or
failed, 2 wrong usage, 128 and its number where a signal ended it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated

import typer

from gemmgen import __version__
from gemmgen.cli import make, measure, prove, ship, show
from gemmgen.cli.ending import run_command
from gemmgen.cli.options import CountedOption
from gemmgen.cli.reporting import say

app = typer.Typer(
    name="gemmgen",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line and end the process; a user's mistake is a diagnostic, never a traceback."""
    sys.exit(run_command(_command(), sys.argv[1:]))


@cache
def _command() -> Callable[..., object]:
    """Return the application as a Click command, made once in a process."""
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


# In the order of `gemmgen --help`.
app.command(name="init")(make.init)
app.command(name="plan", cls=CountedOption)(make.plan)
app.command(name="build")(make.build_command)
app.command(name="check")(make.check_command)
app.command(name="lower")(prove.lower_command)
app.command(name="simulate")(prove.simulate_command)
app.command(name="test")(prove.verify_command)
app.command(name="bench", cls=CountedOption)(measure.bench_command)
app.command(name="doctor")(show.doctor)
app.command(name="schema")(show.schema)
app.command(name="list")(make.list_command)
app.command(name="tune")(measure.tune_command)
app.command(name="export")(ship.export_command)
app.command(name="report")(measure.report_command)
app.command(name="library")(ship.library_command)
app.command(name="explain")(show.explain_command)
app.command(name="diff")(make.diff_command)
