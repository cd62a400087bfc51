"""Pages of the reference, as Markdown: fields of a spec, commands of the command line, rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from gemmgen.cli.app import commands
from gemmgen.cli.commands import argument_name
from gemmgen.cli.explanations import Explanation, explanations
from gemmgen.spec.model import json_schema

Node = Mapping[str, Any]
INTRODUCTION = (
    "Generated from the JSON Schema that `gemmgen schema` prints. "
    "[The guide](../spec.md) explains how the fields work together.\n"
)


def spec_page() -> str:
    """Return the reference of a spec's fields: one table for each mapping of the JSON Schema."""
    schema = json_schema()
    parts = [
        "# Fields of a spec\n",
        INTRODUCTION,
        "## Top level\n",
        _fields(schema, schema["$defs"]),
    ]
    for name, definition in sorted(schema["$defs"].items()):
        parts += [f"## {name}\n", f"{definition['description']}\n", _fields(definition, schema["$defs"])]
    return "\n".join(parts)


def _fields(definition: Node, definitions: Node) -> str:
    """Return the table of a mapping's fields."""
    required = definition.get("required", ())
    lines = ["| field | values | default | meaning |", "|---|---|---|---|"]
    for name, field in definition["properties"].items():
        default = "required" if name in required else _default(field)
        cells = (f"`{name}`", " or ".join(_values(field, definitions)), default, field.get("description", ""))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _default(field: Node) -> str:
    """Return a field's default as JSON, or `open` if the planner or another field decides."""
    default = field.get("default")
    return "open" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`"


def _values(field: Node, definitions: Node) -> Iterator[str]:
    """Yield each form of a field's value."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        yield f"[{name}](#{name.lower()})"
    elif "anyOf" in field:
        for each in field["anyOf"]:
            if each.get("type") != "null":
                yield from _values(each, definitions)
    elif "enum" in field:
        yield from (f"`{value}`" for value in field["enum"])
    elif field.get("type") == "array":
        items = list(_values(field["items"], definitions)) if "items" in field else ["values"]
        yield f"list of {' or '.join(items)}"
    elif field.get("type") == "object":
        yield " or ".join(f"`{name}`" for name in field.get("properties", ())) or "mapping"
    elif field.get("type") == "integer":
        yield f"integer from {field['minimum']}" if "minimum" in field else "integer"
    else:
        yield {"string": "text", "number": "number", "boolean": "`true` or `false`"}[field["type"]]


def commands_page() -> str:
    """Return the reference of the command line: usage, arguments and options of each command."""
    parts = [
        "# Command line\n",
        "Generated from the help of `gemmgen`. Artifacts go to stdout, all else to stderr.\n",
    ]
    for name, command in commands().items():
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        usage = " ".join([f"gemmgen {name} [OPTIONS]", *map(argument_name, arguments)])
        parts += [f"## gemmgen {name}\n", f"{command.help}\n", f"```text\n{usage}\n```\n"]
        context = typer.Context(command, info_name=f"gemmgen {name}")
        parts.append("| option or argument | effect |\n|---|---|")
        for each in command.get_params(context):
            if record := each.get_help_record(context):
                label, text = (" ".join(part.split()) for part in record)
                name_of = argument_name(each) if each in arguments else label
                # A bar within code ends no cell.
                parts.append(f"| `{name_of}` | {text.replace('|', chr(92) + '|')} |")
        parts.append("")
    return "\n".join(parts)


def rules_page(text: str) -> str:
    """Return docs/rules.md with the statement of each rule and the invalid spec that breaks it.

    Headings after the title are one level lower, so that the contents beside the page have them.
    """
    for code, explanation in explanations().items():
        text = text.replace(f"## {code}\n", f"## {code}\n{_stated(explanation)}", 1)
        text = text.replace(explanation.text, _lines(explanation.text) + _example(explanation), 1)
    title, *sections = re.split(r"(?m)^(?=#{1,2} )", text.lstrip())[1:]
    return title + "".join(f"#{section}" for section in sections)


def _stated(explanation: Explanation) -> str:
    return "".join(f"\n**{holds}**\n\n" for holds in explanation.holds)


def _lines(entry: str) -> str:
    """Return an entry with a paragraph for each of its lines."""
    return "\n\n".join(entry.splitlines())


def _example(explanation: Explanation) -> str:
    """Return the example of an entry as a block that a reader can open, or nothing."""
    if not explanation.example:
        return "\n"
    name, spec, said = explanation.example
    body = f'```yaml title="{name}"\n{spec.rstrip()}\n```\n\n```text\n{said}\n```'
    return (
        '\n\n??? example "A spec that is refused"\n\n'
        + "\n".join(f"    {line}" if line else "" for line in body.splitlines())
        + "\n"
    )
