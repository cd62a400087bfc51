"""The table of tuned kernels: a line of JSON for each winner, read and written without torch and Optuna."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, cast

from gemmgen.errors import Diagnostic, GemmgenError, install_advice
from gemmgen.files import read_text
from gemmgen.json_files import BadFieldError, decode, decode_json, encoded, refusal
from gemmgen.kinds import Count, Extent, GpuName, OneLine, Seconds, Sha256, Version
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
class _Format:
    """The member of a line that says how to read the others."""

    format: Annotated[int, Version(FORMAT)]


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
    description: OneLine
    """Description of the problem, for people."""
    spec: OneLine
    """Path of the winner's spec, relative to the directory of the table."""
    kernel_sha256: Sha256
    seconds: Seconds
    baseline_seconds: Seconds
    first_seconds: Seconds
    tried: Count
    date: OneLine
    gemmgen: OneLine
    torch: OneLine
    triton: OneLine

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
        members = decode_json(dict[str, Any], line)
        if members.pop("table", None) != TABLE:
            raise BadFieldError("", "not a line of a table of `gemmgen tune`")
        decode(_Format, {"format": members.pop("format", None)})
        return decode(TunedRow, members)
    except BadFieldError as error:
        raise GemmgenError([refusal(error, path.as_posix(), "bad-table", number)]) from None


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


def _bad_table(path: Path, message: str, line: int | None = None) -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), "bad-table", message, line=line)])


def _other_gpu(path: Path, found: str, wanted: str) -> GemmgenError:
    message = f"was measured on {found}, and this GPU is {wanted}: the fastest kernel differs between GPUs"
    return GemmgenError([Diagnostic(path.as_posix(), "other-gpu", message)])


def require_optuna() -> None:
    """Return if what keeps trials is installed; raise GemmgenError (``no-optuna``) if not."""
    if importlib.util.find_spec("optuna") is None:
        message = f"Optuna, which keeps the trials, is not installed: {INSTALL}"
        raise GemmgenError([Diagnostic("", "no-optuna", message)])
