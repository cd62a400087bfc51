"""The options that several commands share, and what is refused of a command's words before anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gemmgen.cli.reporting import unwritable
from gemmgen.errors import Diagnostic, GemmgenError

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


def range_of(extents: str) -> range:
    """Return the range of M that a user gives as LOW-HIGH, LOW- or one number; all without one."""
    match = re.fullmatch(r"([1-9]\d{0,9})(-([1-9]\d{0,9})?)?", extents or "1-")
    if match is None:
        raise typer.BadParameter(f"`{extents}` is no range: write 1-64, 4096- or 16", param_hint="--m")
    low, dash, high = match.groups()
    return range(int(low), int(high or (1 << 31) if dash else low) + 1)


# --- what is refused before anything runs


def refuse_duplicates(paths: list[Path]) -> None:
    """Two specs of one stem would overwrite each other's module or record."""
    first: dict[str, Path] = {}
    for path in paths:
        if path.stem in first and first[path.stem] != path:
            message = f"makes the same module as {first[path.stem]}: rename one of the two"
            raise GemmgenError([Diagnostic(path.as_posix(), "module-name", message)])
        first[path.stem] = path


def refuse_unwritable(record: Path, specs: list[Path]) -> None:
    """Timing takes minutes: find out before it whether the records have a place to go."""
    if not specs:
        message = "only specs are timed and recorded"
    elif len(specs) > 1 and not record.is_dir():
        message = "several specs need a directory to record into"
    elif problem := unwritable(record, folder=True):
        message = problem
    else:
        refuse_duplicates(specs)
        return
    raise typer.BadParameter(message, param_hint="--record")


def refuse_opponent(against: Path, specs: list[Path]) -> None:
    """One module is of one spec, and a record holds what it was compared with already."""
    if not specs:
        message = "only specs are timed"
    elif len(specs) > 1 and not against.is_dir():
        message = "several specs need a directory of modules"
    else:
        return
    raise typer.BadParameter(message, param_hint="--against")
