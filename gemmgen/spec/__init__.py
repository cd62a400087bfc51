"""The spec: its fields as types, and its file as a value that knows where each field stands."""

from __future__ import annotations

from gemmgen.spec.load import SpecError, SpecFile, load_spec, parse_recorded, parse_spec
from gemmgen.spec.model import Spec

__all__ = ["Spec", "SpecError", "SpecFile", "load_spec", "parse_recorded", "parse_spec"]
