"""The meanings of words in specs, of fields, values and operations; and of words of others for them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

from gemmgen.hardware.elements import SCALE_FORMATS, ScaleFormat
from gemmgen.problem.operations import OPERATIONS
from gemmgen.spec.diagnostics import listing
from gemmgen.spec.hints import IN_SECTIONS, choice_hint, key_hint
from gemmgen.spec.model import json_schema
from gemmgen.spec.weight_words import PAGE, weight_meaning


@cache
def fields() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the description of each field by its path, and the words that the field can have."""
    schema = json_schema()
    return {path: (text, words) for path, text, words in _below(schema, "", schema["$defs"])}


def meanings(word: str) -> list[str]:
    """Return a sentence for each meaning that a word has in specs; empty if it has none.

    A field has a meaning by its whole path and by its last name, and a format of scales also as the name of
    its weights: ``mxfp4 weights``.
    """
    name = word.lower().replace("-", "_").replace(" ", "_")
    if name.removesuffix("_weights") in SCALE_FORMATS:
        name = name.removesuffix("_weights")
    found = [
        f"{path}: {description}"
        for path, (description, _) in fields().items()
        if name == path or name == path.rpartition(".")[2]
    ]
    found += [
        f"a value of {path}: {description}"
        for path, (description, words) in fields().items()
        if name in words and name not in SCALE_FORMATS
    ]
    if name in SCALE_FORMATS:
        found.append(_scale_format(SCALE_FORMATS[name]))
    if name in OPERATIONS:
        found.append(_operation(name))
    if of_weights := weight_meaning(name):
        found.append(of_weights)
    if found:
        return found
    elsewhere = (
        choice_hint(name, ("epilogue", "ops", 0), ()),
        choice_hint(name, ("groups", "kind"), ()),
        *(key_hint(name, (), None, section) for section in (*IN_SECTIONS, ())),
    )
    return [hint.removeprefix("; ") for hint in elsewhere if hint][:1]


def _scale_format(row: ScaleFormat) -> str:
    """Return the meaning of a format of scales, with the operands that can have it."""
    operands = [*row.operands, *["d"] * bool(row.results)]
    fields = listing([f"operands.{operand}.scale.format" for operand in operands], "and")
    meaning = (
        f"a value of {fields} on {listing(row.generations('b'), 'and')}: elements of "
        f"{listing(row.elements, 'or')}, and one {row.dtype} scale for each block of {row.rows} x "
        f"{row.vector} of them, {row.vector} along K"
    )
    if "decode" in row.applied:
        meaning += (
            "; on Hopper it is a format of B alone, which threads decode, and pack_weight of the module packs"
            f" that B ({PAGE})"
        )
    if row.results:
        meaning += f"; a D has elements of {listing(row.results, 'or')}, and the kernel computes its scales"
    return meaning


def _operation(name: str) -> str:
    """Return the meaning of an operation of the epilogue."""
    row = OPERATIONS[name]
    parts = [f"an operation of epilogue.ops and epilogue.d: {row.text}"]
    if row.meaning:
        parts.append(row.meaning)
    parts += [f"{each.name}, {each.meaning}, {each.default:g} by default" for each in row.parameters]
    return "; ".join(parts)


def _below(
    schema: dict[str, Any], path: str, known: dict[str, Any]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the fields of a section of the JSON schema: path, description, and words."""
    for name, row in cast("dict[str, dict[str, Any]]", schema.get("properties", {})).items():
        if row.get("deprecated"):
            continue
        field = f"{path}.{name}" if path else name
        words: list[str] = []
        for each in (row, *row.get("anyOf", ())):
            words += [value for value in (*each.get("enum", ()), each.get("const")) if isinstance(value, str)]
            if reference := each.get("$ref"):
                yield from _below(known[reference.rpartition("/")[2]], field, known)
        yield field, row.get("description", ""), tuple(words)
