"""Names of kernels in a report, in the words of today: a record has them in the words of its day."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gemmgen.bench.result_log import KernelEntry, ResultLog
from gemmgen.errors import GemmgenError
from gemmgen.planner import family_for, plan_spec
from gemmgen.spec import parse_recorded


def labels_of(log: ResultLog) -> Mapping[str, str]:
    """Return the label of each kernel of a record by its name there."""
    return {name: label_of(entry) for name, entry in log.kernels.items()}


def label_of(entry: KernelEntry) -> str:
    """Return the name of a kernel, with its decisions in the words of today if the record has its spec.

    The label of a kernel that no spec states any more is its name in the record.
    """
    if entry.spec is None:
        return entry.name
    try:
        plan = plan_spec(parse_recorded(entry.spec, "kernel"))
    except GemmgenError:
        return entry.name
    return (
        f"{Path(entry.subject.spec_path).stem}: {family_for(plan).label(plan)} "
        f"({entry.subject.module_sha256[:8]})"
    )
