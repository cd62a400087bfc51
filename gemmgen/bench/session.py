"""From a spec to its record, and records to and from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gemmgen.bench.record import Record, Subject
from gemmgen.bench.rival import rival
from gemmgen.bench.run import bench
from gemmgen.bench.store import from_json, to_json
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.module import import_generated
from gemmgen.problem import Shape
from gemmgen.product import make, staged


def time_spec(path: Path, shapes: Sequence[Shape] | None, progress: Callable[[str], None]) -> Record:
    """Generate a spec's module and time it on the given shapes, or else on those that the spec lists.

    The baseline is cuBLAS, or gemmgen's kernel by single CTAs or pairs where torch has none.

    Raises:
        GemmgenError: The spec is rejected, there are no shapes, or ``bench`` refuses to time the kernel.
    """
    product = make(path)
    spec = product.source.spec
    chosen = shapes or (spec.bench.shapes if spec.bench else None)
    if not chosen:
        message = "names no shapes to time: list them under bench.shapes, or give --shapes"
        raise GemmgenError([Diagnostic(product.source.path, "no-shapes", message)])
    with staged(product) as module_path, rival(product) as baseline:
        subject, module = Subject.of(path, module_path), import_generated(module_path)
        return bench(module, subject, spec, chosen, baseline=baseline, progress=progress)


def read_record(path: Path) -> Record:
    """Return the record in a file.

    Raises:
        GemmgenError: The file cannot be read or holds no record.
    """
    try:
        return from_json(path.read_text(encoding="utf-8"), path.as_posix())
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the record: {error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-record", message)]) from error


def write_record(record: Record, path: Path) -> None:
    """Write a record to a file.

    Raises:
        GemmgenError: The file cannot be written.
    """
    try:
        path.write_text(to_json(record), encoding="utf-8", newline="\n")
    except OSError as error:
        message = f"cannot write the record: {error.strerror or error}"
        raise GemmgenError([Diagnostic(path.as_posix(), "cannot-write", message)]) from error
