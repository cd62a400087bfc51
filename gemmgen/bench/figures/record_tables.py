"""Records of single kernels as tables: Markdown, and columns of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gemmgen.bench.record import Measurement, Record
from gemmgen.hardware.elements import FP8
from gemmgen.problem import shape_text
from gemmgen.problem.dtypes import Dtypes

TEXT_COLUMNS: Final = 2
"""Number of columns with text, on the left; the other columns have numbers, aligned on the right."""

CUBLAS: Final = "cuBLAS"
UNFUSED_GATE: Final = "cuBLAS and unfused gate"
"""Baseline of a gated matmul: cuBLAS computes both sums, and kernels of torch the gate."""
TORCH: Final = "torch"
"""Baseline of groups for which torch does not call cuBLAS: see ``torch_groups``."""
GEMMGEN_KERNEL: Final = "a kernel of gemmgen's"


def markdown_table(records: Sequence[Record]) -> str:
    """Return a Markdown table with a row for each measurement, and remarks after it.

    Rates are at the median time. The ratio is the baseline's time over gemmgen's, the median of the pairs:
    above 1, gemmgen is faster. The baseline's column is headed by the name of the baseline. If the records
    have several baselines, stars mark the rows of each, and remarks explain them. Other remarks are the
    results that cannot be true.
    """
    header = _header(records)
    rule = ["---"] * TEXT_COLUMNS + ["---:"] * (len(header) - TEXT_COLUMNS)
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *_rows(records))]
    remarks = (f"\n{remark}" for remark in _remarks(records))
    return "\n".join((*lines, *remarks)).replace("*", r"\*") + "\n"


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
    return "\n".join((*lines, *_remarks(records))) + "\n"


def cublas_name(dtypes: Dtypes) -> str:
    """Return the short name of torch's calls for a problem: with a gate they have kernels after cuBLAS."""
    groups = dtypes.groups
    if groups and (not groups.apart or dtypes.a in FP8):
        return TORCH
    return UNFUSED_GATE if dtypes.b_blocks else CUBLAS


def common_baseline(records: Sequence[Record]) -> str:
    """Return the short name of the one baseline of torch that all records have, else `baseline`."""
    names = {_baseline_name(record) for record in records}
    return next(iter(names)) if names in ({CUBLAS}, {UNFUSED_GATE}, {TORCH}) else "baseline"


def _baseline_name(record: Record) -> str:
    return GEMMGEN_KERNEL if record.baseline.startswith("gemmgen") else cublas_name(record.dtypes)


def _stars(records: Sequence[Record]) -> dict[str, str]:
    """Return the stars that mark the rows of each baseline, by its short name; cuBLAS has none."""
    names = dict.fromkeys(map(_baseline_name, records))
    plain = CUBLAS if CUBLAS in names else next(iter(names), CUBLAS)
    others = (name for name in names if name != plain)
    return {plain: "", **{name: "*" * count for count, name in enumerate(others, 1)}}


def _header(records: Sequence[Record]) -> tuple[str, ...]:
    baseline = common_baseline(records)
    return "spec", "M x N x K", "gemmgen TFLOP/s", f"{baseline} TFLOP/s", "ratio [quartiles]"


def _rows(records: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    stars = _stars(records)
    for record in records:
        for measurement in record.measurements:
            found = measurement.observed(dtypes=record.dtypes)
            yield (
                record.subject.name,
                shape_text(measurement.shape),
                rate_text(found.tflops),
                f"{rate_text(found.baseline_tflops)}{stars[_baseline_name(record)]}",
                _ratio_text(measurement),
            )


def _remarks(records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each baseline if there are several, and the results that cannot be true."""
    stars = _stars(records)
    if len(stars) > 1:
        (plain, _), *others = stars.items()
        marked = "; ".join(f"in rows marked {mark} it is {name}" for name, mark in others)
        yield f"The baseline is {plain}; {marked}."
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
