"""Commands to start with: init, doctor and schema."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from gemmgen import api
from gemmgen.cli.options import Json
from gemmgen.cli.reporting import print_json, say


def init(
    name: Annotated[
        Path, typer.Argument(metavar="[NAME]", help="Name of the file and of the module.")
    ] = Path("matmul.yaml"),
    as_json: Json = False,
) -> None:
    """Write a commented spec to start from, and its JSON Schema."""
    path = api.init(name)
    schema = path.with_name(api.SCHEMA_FILE)
    print_json({"wrote": [path.as_posix(), schema.as_posix()]})
    if not as_json:
        say(f"wrote {path}, and {schema} for editors")
        plan, build = (shlex.join(["gemmgen", command, str(path)]) for command in ("plan", "build"))
        say(f"next: `{plan}` shows the kernel that the planner chooses, and `{build}` writes its module")


def doctor(as_json: Json = False) -> None:
    """Show versions, the GPU, and the stages that can run here."""
    from gemmgen.device import examine

    found = examine()
    if as_json:
        print_json(found.as_dict())
        return
    rows = [*found.versions.items(), ("GPU", found.gpu), *found.stages.items()]
    say("\n".join(f"{name:<26} {value}" for name, value in rows))


def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from gemmgen.spec.model import json_schema

    say(json.dumps(json_schema(), indent=2))
