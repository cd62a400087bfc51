"""Commands that show the machine, the fields of a spec and the rules: doctor, schema and explain."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gemmgen.build import columns
from gemmgen.cli.explanations import explanation_of, explanations
from gemmgen.cli.options import Json
from gemmgen.cli.reporting import print_json, say


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


def explain_command(
    codes: Annotated[
        list[str] | None, typer.Argument(metavar="[RULE…]", help="Code of a diagnostic: smem-capacity.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain rules, or list all.

    The explanation has the arithmetic of the rule, its source and a spec that breaks it.
    """
    found = [explanation_of(code) for code in codes] if codes else list(explanations().values())
    print_json({each.code: each.as_dict() for each in found})
    if not as_json and codes:
        say("\n\n".join(map(str, found)))
    elif not as_json:
        say("\n".join(columns([{"rule": each.code, "says": each.summary} for each in found])))
