"""Records of single kernels as tables: Markdown, and columns of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gemmgen.bench.record import Measurement, Record
from gemmgen.problem import shape_text

TEXT_COLUMNS: Final = 2
"""Number of columns with text, on the left; the other columns have numbers, aligned on the right."""


def markdown_table(records: Sequence[Record]) -> str:
    """Return a Markdown table with a row for each measurement, and the results that cannot be true.

    Rates are at the median time. The ratio is the baseline's time over gemmgen's, the median of the pairs:
    above 1, gemmgen is faster. A column is headed cuBLAS if that is the baseline of all records.
    """
    header = _header(records)
    rule = ["---"] * TEXT_COLUMNS + ["---:"] * (len(header) - TEXT_COLUMNS)
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *_rows(records))]
    return "\n".join((*lines, *(f"\n{error}" for error in _errors(records)))) + "\n"


def plain_table(records: Sequence[Record]) -> str:
    """Return the same table in columns of plain text."""
    rows = [_header(records), *_rows(records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index < TEXT_COLUMNS else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join((*lines, *_errors(records))) + "\n"


def baseline_name(records: Sequence[Record]) -> str:
    """Return the short name of the baseline: cuBLAS, or `baseline` if one is a kernel of gemmgen's.

    With a gate it says that torch computes the gate by kernels of its own.
    """
    if any(record.baseline.startswith("gemmgen") for record in records):
        return "baseline"
    return "cuBLAS and unfused gate" if any(record.dtypes.b_blocks for record in records) else "cuBLAS"


def _header(records: Sequence[Record]) -> tuple[str, ...]:
    baseline = baseline_name(records)
    return "spec", "M x N x K", "gemmgen TFLOP/s", f"{baseline} TFLOP/s", "ratio [quartiles]"


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for record in records:
        for measurement in record.measurements:
            found = measurement.observed(b_blocks=record.dtypes.b_blocks or 1)
            yield (
                record.subject.name,
                shape_text(measurement.shape),
                rate_text(found.tflops),
                rate_text(found.baseline_tflops),
                _ratio_text(measurement),
            )


def _errors(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        yield from record.errors


def _ratio_text(measurement: Measurement) -> str:
    """Return the median ratio with its quartiles: ``1.043 [1.038, 1.047]``."""
    ratio = measurement.observed().measured_spread
    lower, upper = ratio.quartiles
    return f"{ratio.median:.3f} [{lower:.3f}, {upper:.3f}]"


def rate_text(tflops: float) -> str:
    """Return a rate to a tenth of a TFLOP/s, and small ones to three digits."""
    return f"{tflops:.1f}" if tflops >= 10 else f"{tflops:.3g}"
