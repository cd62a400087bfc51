"""Specs as text: plain data in YAML, in the form that a person would write."""

# ruamel.yaml hides `Any` from type checkers, so its attributes have no known type.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from io import StringIO
from typing import Any, Final, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
"""Text that has no quotes, unless YAML reads it as another value; all other text is in double quotes."""


def spec_text(data: Mapping[str, Any], apart: Collection[str] = ("operands",)) -> str:
    """Return the plain data of a spec as YAML, with a line for each section.

    Args:
        data: Statements by their sections.
        apart: Sections that are mappings, and have a line for each member.
    """
    document = CommentedMap()
    for section, value in data.items():
        document[section] = CommentedMap() if section in apart else _in_one_line(value)
        if section in apart:
            document[section].update({name: _in_one_line(member) for name, member in value.items()})
    yaml: Any = YAML()
    yaml.width = sys.maxsize
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    text = StringIO()
    yaml.dump(document, text)
    return text.getvalue()


def _in_one_line(value: object) -> object:
    """Return a value that is written in one line."""
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        mapping = CommentedMap({name: _in_one_line(member) for name, member in members.items()})
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        sequence = CommentedSeq(map(_in_one_line, cast("list[object]", value)))
        sequence.fa.set_flow_style()
        return sequence
    if isinstance(value, str) and not WORD.fullmatch(value):
        return DoubleQuotedScalarString(value)
    return value
