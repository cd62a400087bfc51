"""A digest of a value: the same for equal values, in every process and with every Python."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import cast

from gemmgen.hardware import DType, ScaleFormat


def digest(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hexadecimal.

    The value is a dataclass of numbers, truths, texts, element types, formats of scales, None, tuples and
    further such dataclasses. A member that has its default is left out, so a new member with a default
    leaves the digests of known values as they are. A class whose values can stand where those of another
    class do has a `kind`, which is in the digest.

    Raises TypeError for a member of another type, ValueError for a number that is not finite.
    """
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _plain(value: object) -> object:
    """Return a value as JSON has it: equal values give equal JSON."""
    match value:
        case None | bool() | str():
            return value
        case int() | float():
            return float(value) + 0.0  # 1 is equal to 1.0, and -0.0 to 0.0
        case DType() | ScaleFormat():
            return value.name
        case tuple():
            return [_plain(each) for each in cast("tuple[object, ...]", value)]
        case _ if is_dataclass(value) and not isinstance(value, type):
            members = ((each, getattr(value, each.name)) for each in fields(value))
            kind: object = getattr(type(value), "kind", None)
            return ({"kind": kind} if isinstance(kind, str) else {}) | {
                each.name: _plain(member)
                for each, member in members
                if each.default is MISSING or member != each.default
            }
        case _:
            raise TypeError(f"no canonical JSON for {value!r}")
