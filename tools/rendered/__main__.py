"""``python -m tools.rendered``: render what git does not have, and compare or record its digests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gemmgen.__main__ import run as run_process
from gemmgen.cli.ending import run_command
from gemmgen.cli.reporting import complain, end, say
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.product import write_files
from tools.rendered import LIBRARIES, ROOT, everything, packed, rendered_anew

NAME = "python -m tools.rendered"

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def command(
    record: Annotated[bool, typer.Option("--record", help="Write the digests instead of comparing.")] = False,
    pack: Annotated[
        Path | None, typer.Option("--pack", metavar="DIR", help="Also write each library as DIR/NAME.tar.gz.")
    ] = None,
) -> None:
    """Render the text that git does not have, and name the files whose bytes are not the recorded ones."""
    failed = False
    for text in everything():
        files = rendered_anew(text)
        if record:
            text.record(files)
        moved = text.moved(files)
        folder, digests = (path.relative_to(ROOT) for path in (text.folder, text.digests))
        failed |= bool(moved)
        message = f"is not the text whose digest {digests} has: `make generated` records it"
        for name in moved:
            complain(GemmgenError([Diagnostic((folder / name).as_posix(), "moved", message)]))
        if not moved:
            say(f"{folder}: as {digests} says")
        if pack and text.folder.parent.name == LIBRARIES.name:
            path = pack / f"{folder.name}.tar.gz"
            write_files({path: packed(folder.name, files)})
            say(f"wrote {path}")
    end(failed)


def main() -> None:
    """Run the command and end the process."""
    sys.exit(run_command(typer.main.get_command(app), sys.argv[1:], NAME))


if __name__ == "__main__":
    run_process(lambda: main)
