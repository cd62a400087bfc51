"""The types of the tables from which random specs are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = dict[str, Any]
"""A spec's values by the dotted paths of their fields."""
Stated = Mapping[str, tuple[object, ...]]
"""Values to draw by the dotted path of a field; what is there twice is drawn twice as often."""
Kinds = tuple[tuple[str, Stated], ...]
"""Kinds of kernels, each by its name with values of its own for some fields."""
