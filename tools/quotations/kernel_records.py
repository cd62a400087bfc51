"""Blocks from the records of single kernels, ``benchmarks/*.json``."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from gemmgen.bench import Record, markdown_table, read_record
from gemmgen.problem import Shape, shape_text
from tools.quotations.markdown import measured_on
from tools.rendered import PAIRS, ROOT

SHOWN: tuple[tuple[str, Shape], ...] = (
    ("h100_bf16", (8192, 8192, 8192)),
    ("h100_bf16", (4096, 4096, 4096)),
    ("h100_bf16_128x144", (1024, 2112, 7168)),
    ("h100_bf16_128x128", (8192, 8192, 1024)),
    ("h100_bf16_ping_pong", (8192, 8192, 8192)),
    ("h100_bf16_bias_gelu", (8192, 8192, 8192)),
    ("h100_bf16_residual", (4096, 4096, 4096)),
    ("h100_tf32", (8192, 8192, 8192)),
    ("h100_e4m3", (8192, 8192, 8192)),
    ("h100_int8", (8192, 8192, 8192)),
)
"""Rows of the README and of its picture: each kind of operands and of epilogue, and one below 1."""


def records() -> list[Record]:
    """Return the committed records, in the order of their names."""
    return [read_record(path) for path in sorted((ROOT / "benchmarks").glob("*.json"))]


def shown() -> list[Record]:
    """Return the records of SHOWN in its order, each with the measurement of its shape only."""
    by_name = {record.subject.name: record for record in records()}
    return [_of_shape(by_name[name], shape) for name, shape in SHOWN]


def _of_shape(record: Record, shape: Shape) -> Record:
    measurements = tuple(found for found in record.measurements if found.shape == shape)
    if not measurements:
        raise ValueError(f"{record.subject.name} has no measurement of {shape_text(shape)}")
    return replace(record, measurements=measurements)


def speed_block() -> str:
    """Return the rows of SHOWN, the machine, and a sentence on all rows."""
    return f"{markdown_table(shown())}\n{_where(shown())}. {_range(records())}\n"


def benchmarks_block() -> str:
    """Return the machine, all rows, and a sentence on records of earlier modules."""
    return f"{_where(records())}:\n\n{markdown_table(records())}{_of_earlier_modules(records())}"


def _of_earlier_modules(found: list[Record]) -> str:
    """Return a sentence that names the records whose module is not the committed one, or nothing."""
    earlier = [
        f"`{record.subject.name}`"
        for record in found
        if record.subject.module_sha256 != _digest_of_module(record.subject.name)
    ]
    if earlier and len(earlier) == len(found):
        return "\nAll are of earlier modules than the committed ones.\n"
    return f"\nOf an earlier module than the committed one are {', '.join(earlier)}.\n" if earlier else ""


def _digest_of_module(name: str) -> str:
    """Return the SHA-256 of a committed module: git has it, or its digest."""
    module = ROOT / "generated" / f"{name}.py"
    if module.exists():
        return hashlib.sha256(module.read_bytes()).hexdigest()
    return PAIRS.read(PAIRS.digests.read_text(encoding="utf-8"))[module.name]


def _where(found: list[Record]) -> str:
    return measured_on(record.environment for record in found)


def _range(found: list[Record]) -> str:
    """Return a sentence with the number of rows, of rows below 1, and the lowest and the highest ratio."""
    ratios = sorted(
        (measurement.observed().ratio, record.subject.name, shape_text(measurement.shape))
        for record in found
        for measurement in record.measurements
    )
    below = sum(ratio < 1 for ratio, _, _ in ratios)
    ends = " to ".join(f"{ratio:.3f} (`{name}`, {shape})" for ratio, name, shape in (ratios[0], ratios[-1]))
    return f"The {len(ratios)} rows on record, {below} of them below 1, range from {ends}."
