"""The table of tuned kernels: a line of JSON for each winner, read and written without torch and Optuna."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from gemmgen.documents.decode import BadFieldError, decode, encoded, parsed, shown
from gemmgen.documents.files import read_text
from gemmgen.documents.kinds import Count, Extent, GpuName, Seconds, Sha256
from gemmgen.errors import Diagnostic, GemmgenError, install_advice
from gemmgen.problem import Shape
from gemmgen.problem.contest import Contest
from gemmgen.problem.dtypes import Dtypes
from gemmgen.problem.observation import Observation
from gemmgen.product import write_files

TABLE: Final = "gemmgen tune"
"""Value of the member `table` in each line of a table."""
FORMAT: Final = 2
INSTALL: Final = install_advice("tune")


@dataclass(frozen=True)
class TunedRow:
    """Line of a table of tuned kernels: the fastest kernel of a spec for one shape.

    ``docs/tuning.md`` explains each member. The class is the format of a file, separate from
    ``Observation`` because it identifies the kernel, its versions and its search: ``observed`` makes one.
    """

    gpu: GpuName
    m: Extent
    n: Extent
    k: Extent
    dtypes: Dtypes
    problem: Contest
    description: str
    """Description of the problem, for people."""
    spec: str
    """Path of the winner's spec, relative to the directory of the table."""
    kernel_sha256: Sha256
    seconds: Seconds
    baseline_seconds: Seconds
    first_seconds: Seconds
    tried: Count
    date: str
    gemmgen: str
    torch: str
    triton: str

    @property
    def shape(self) -> Shape:
        """M, N and K."""
        return self.m, self.n, self.k

    @property
    def observed(self) -> Observation[str]:
        """Observation of the kernel and its baseline, named by the path of its spec."""
        operations = self.dtypes.flops(self.shape)
        return Observation(self.shape, self.spec, self.seconds, self.baseline_seconds, operations=operations)

    def as_line(self) -> str:
        """Return the row as a line of a table."""
        members = cast("dict[str, object]", encoded(self))
        return json.dumps({"table": TABLE, "format": FORMAT, **members}, allow_nan=False) + "\n"


def read_table(path: str | Path, gpu: str | None = None) -> tuple[TunedRow, ...]:
    """Return the rows of a table; if `gpu` is given, the table must be of that GPU, as CUDA names it.

    Raises GemmgenError: ``bad-table`` with the line that is not valid; ``other-gpu``.
    """
    path = Path(path)
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise _bad_table(path, f"cannot read the table: {reason}") from error
    if not text:
        raise _bad_table(path, "there is no kernel in it")
    # Not `splitlines`: JSON texts may contain characters that it counts as ends of lines.
    lines = text.removesuffix("\n").split("\n")
    rows = tuple(_row(line, path, number) for number, line in enumerate(lines, 1))
    for number, row in enumerate(rows, 1):
        if row.gpu != rows[0].gpu:
            raise _bad_table(
                path, f"is of {row.gpu} here, and of {rows[0].gpu} above: a table is for one GPU", number
            )
    if gpu is not None and rows[0].gpu != gpu:
        raise _other_gpu(path, rows[0].gpu, gpu)
    return rows


def _row(line: str, path: Path, number: int) -> TunedRow:
    try:
        found = parsed(line)
        if not isinstance(found, dict) or cast("dict[str, object]", found).get("table") != TABLE:
            raise _bad_table(path, "not a line of a table of `gemmgen tune`", number)
        members = dict(cast("dict[str, object]", found))
        del members["table"]
        version = members.pop("format", None)
        if type(version) is not int or version != FORMAT:
            message = f"format is {shown(version)}; this gemmgen reads {FORMAT}"
            raise _bad_table(path, message, number)
        return decode(TunedRow, members)
    except BadFieldError as error:
        raise _bad_table(path, error.message, number, error.field) from error
    except (ValueError, RecursionError) as error:
        raise _bad_table(path, "not JSON", number) from error


def add_to_table(path: Path, rows: Iterable[TunedRow]) -> None:
    """Write rows into a table, new or not: each in place of the one of its spec that there was.

    Raises GemmgenError: as ``read_table``; ``cannot-write``.
    """
    new = {row.spec: row for row in rows}
    if not new:
        return
    gpu = next(iter(new.values())).gpu
    before = read_table(path, gpu) if path.exists() and path.stat().st_size else ()
    merged = {**{row.spec: row for row in before}, **new}
    in_order = sorted(merged.values(), key=lambda row: (row.problem, row.n, row.k, row.m, row.spec))
    write_files({path: "".join(row.as_line() for row in in_order).encode()})


def _bad_table(path: Path, message: str, line: int | None = None, field: str = "") -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), "bad-table", message, field=field or None, line=line)])


def _other_gpu(path: Path, found: str, wanted: str) -> GemmgenError:
    message = f"was measured on {found}, and this GPU is {wanted}: the fastest kernel differs between GPUs"
    return GemmgenError([Diagnostic(path.as_posix(), "other-gpu", message)])


def require_optuna() -> None:
    """Return if what keeps trials is installed; raise GemmgenError (``no-optuna``) if not."""
    if importlib.util.find_spec("optuna") is None:
        message = f"Optuna, which keeps the trials, is not installed: {INSTALL}"
        raise GemmgenError([Diagnostic("", "no-optuna", message)])
