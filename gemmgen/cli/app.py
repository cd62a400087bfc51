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
from typer.core import TyperCommand

from gemmgen import __version__
from gemmgen.cli.commands import ListedCommand, ListedGroup
from gemmgen.cli.ending import run_command
from gemmgen.cli.options import CountedOption
from gemmgen.cli.reporting import say

COMMANDS = (
    ListedCommand("init", "start:init", "Write a commented spec to start from, and its JSON Schema."),
    ListedCommand(
        "plan", "make:plan", "Check specs against the hardware and print their plans.", CountedOption
    ),
    ListedCommand("build", "make:build_command", "Generate, compile, simulate and write a module per spec."),
    ListedCommand("check", "make:check_command", "Compare modules with their specs, byte for byte."),
    ListedCommand("lower", "prove:lower_command", "Compile modules and print their measured resources."),
    ListedCommand(
        "simulate", "prove:simulate_command", "Find races, deadlocks and wrong numbers on the CPU."
    ),
    ListedCommand("test", "prove:verify_command", "Check the numbers of kernels on the GPU of this machine."),
    ListedCommand(
        "bench",
        "measure:bench_command",
        "Time kernels against torch.matmul on a GPU; show records.",
        CountedOption,
    ),
    ListedCommand("doctor", "start:doctor", "Show versions, the GPU, and the stages that can run here."),
    ListedCommand("schema", "start:schema", "Print the JSON Schema of a spec, for editors."),
    ListedCommand("list", "make:list_command", "List specs, their plans and the state of their modules."),
    ListedCommand("tune", "measure:tune_command", "Find the fastest kernel of each spec and shape on a GPU."),
    ListedCommand(
        "export", "ship:export_command", "Write a cubin and its facts in C per spec, and a C launcher."
    ),
    ListedCommand("pack", "ship:pack_command", "Make a wheel of compiled kernels that needs torch alone."),
    ListedCommand(
        "report", "measure:report_command", "Make an HTML page of records: ratios, roofline, ranking."
    ),
    ListedCommand("library", "ship:library_command", "Make a package that chooses among kernels by shape."),
    ListedCommand(
        "explain", "explain:explain_command", "Explain rules, words or numerics of specs; or list all rules."
    ),
    ListedCommand(
        "diff", "make:diff_command", "Compare the plans of two specs: decisions, resources, times."
    ),
)
"""The commands, in the order of `gemmgen --help`."""


class Commands(ListedGroup):
    """The group of all commands."""

    listed = COMMANDS


app = typer.Typer(
    name="gemmgen",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def commands() -> dict[str, TyperCommand]:
    """Import each command, and return the commands with their options by their names."""
    return {str(each.name): each.loaded() for each in COMMANDS}


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
