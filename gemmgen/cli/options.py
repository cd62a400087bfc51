"""Options that several commands share, and checks of arguments before anything runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmgen.cli.commands import HelpedCommand
from gemmgen.cli.reporting import unwritable
from gemmgen.errors import Diagnostic, GemmgenError

Specs = Annotated[list[Path], typer.Argument(metavar="SPEC…", help="Spec files; - reads a spec from stdin.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="text|github",
        help="Form of diagnostics: for people, or annotations of GitHub Actions.",
    ),
]
SarifFile = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Also write diagnostics as SARIF 2.1.0.")
]
Json = Annotated[bool, typer.Option("--json", help="Print results and diagnostics as JSON.")]
Lowering = Annotated[
    bool,
    typer.Option("--lower/--no-lower", help="Compile each module and confirm its plan before it is written."),
]
Simulating = Annotated[
    bool,
    typer.Option(
        "--simulate/--no-simulate",
        help="Simulate each module before it is written; this needs the compiler too.",
    ),
]
PinnedShape = Annotated[
    str,
    typer.Option(
        "--shape",
        metavar="MxNxK",
        help="Problem size. Default: one size that wraps every ring, and one of many tiles.",
    ),
]
Schedules = Annotated[
    int, typer.Option(metavar="N", min=0, help="Random schedules, in addition to the fixed ones.")
]
Seed = Annotated[
    int, typer.Option(metavar="S", min=0, max=2**31, help="Seed of the inputs and the random schedules.")
]
Processes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Worker processes. Default: the cores of this machine."),
]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write the timeline of one spec or file, for Perfetto."),
]
CANDIDATES = 10
"""Configurations that are listed if no number is given."""
Candidates = Annotated[
    int | None,
    typer.Option(
        metavar="[N]",
        min=1,
        help=f"List the N best configurations of each spec, {CANDIDATES} by default.",
    ),
]
COUNTS = {"--candidates": CANDIDATES, "--freeze": 1}
Freeze = Annotated[
    int | None,
    typer.Option(
        metavar="[N]",
        min=1,
        help="Print the spec with every field of its plan, or of the N-th candidate.",
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option("--svg", metavar="FILE", help="Draw the memory, ring and tile order of one spec's plan."),
]
Pictures = Annotated[
    Path | None,
    typer.Option("--pictures", metavar="DIR", help="Also draw the plan of each kernel, as an SVG."),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Explain why other configurations are slower or rejected."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory of the modules.")]


class CountedOption(HelpedCommand):
    """A command whose ``--candidates`` and ``--freeze`` may stand without their numbers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give an option without a number its default."""
        following = [*args, ""][1:]
        counted = (
            f"{arg}={COUNTS[arg]}" if arg in COUNTS and not after.lstrip("-").isdigit() else arg
            for arg, after in zip(args, following, strict=True)
        )
        return super().parse_args(ctx, list(counted))


def range_of(extents: str) -> range:
    """Return the range of M that a user gives as LOW-HIGH, LOW- or one number; all without one."""
    match = re.fullmatch(r"([1-9]\d{0,9})(-([1-9]\d{0,9})?)?", extents or "1-")
    if match is None:
        raise typer.BadParameter(f"`{extents}` is no range: write 1-64, 4096- or 16", param_hint="--m")
    low, dash, high = match.groups()
    return range(int(low), int(high or (1 << 31) if dash else low) + 1)


# --- checks before anything runs


def refuse_duplicates(paths: list[Path]) -> None:
    """Raise GemmgenError if two specs have one stem: they would overwrite each other's module or record."""
    first: dict[str, Path] = {}
    for path in paths:
        if path.stem in first and first[path.stem] != path:
            message = f"makes the same module as {first[path.stem]}: rename one of the two"
            raise GemmgenError([Diagnostic(path.as_posix(), "module-name", message)])
        first[path.stem] = path


def refuse_file(option: str, path: Path | None, subjects: Sequence[object], several: str) -> None:
    """Raise BadParameter if a file of one subject has several subjects, or if it cannot be written.

    Args:
        option: The option that names the file.
        path: The file, None if nothing is to be written.
        subjects: All subjects of the command.
        several: The message if there are several subjects.
    """
    if path and (problem := several if len(subjects) > 1 else unwritable(path)):
        raise typer.BadParameter(problem, param_hint=option)


def refuse_unwritable(record: Path, specs: list[Path]) -> None:
    """Raise BadParameter if records cannot be written, before the minutes that timing takes."""
    if not specs:
        message = "only specs are timed and recorded"
    elif len(specs) > 1 and not record.is_dir():
        message = "several specs need a directory of records"
    elif problem := unwritable(record, folder=True):
        message = problem
    else:
        refuse_duplicates(specs)
        return
    raise typer.BadParameter(message, param_hint="--record")


def refuse_opponent(against: Path, specs: list[Path]) -> None:
    """Raise BadParameter unless a spec is timed, or several against a directory of modules."""
    if not specs:
        message = "only specs are timed"
    elif len(specs) > 1 and not against.is_dir():
        message = "several specs need a directory of modules"
    else:
        return
    raise typer.BadParameter(message, param_hint="--against")
