"""Markdown that several blocks share: tables, and the line that names machines and versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemmgen.bench.record import Environment


def table(header: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Return a Markdown table whose first columns are words, the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(header) - words)
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def measured_on(environments: Iterable[Environment]) -> str:
    """Return the GPUs and versions that records were measured with: ``On … with torch …, Triton …``."""
    found = list(environments)
    gpus = sorted({environment.gpu for environment in found})
    versions = sorted({f"torch {environment.torch}, Triton {environment.triton}" for environment in found})
    return f"On {', '.join(gpus)} with {'; '.join(versions)}"
