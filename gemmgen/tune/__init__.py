"""Which kernel of a spec is the fastest for a shape: found by measuring, kept as specs and as a table.

What is here reads and writes the table, and needs neither torch nor Optuna.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.problem import Shape
from gemmgen.product import write_files

TABLE: Final = "gemmgen tune"
"""What every line of a table says that it is of."""
FORMAT: Final = 1
INSTALL: Final = "pip install 'gemmgen[tune]'"


@dataclass(frozen=True)
class Row:
    """The fastest kernel for a shape; ``docs/tuning.md`` has what each member means."""

    gpu: str
    m: int
    n: int
    k: int
    dtypes: Mapping[str, str]
    problem: str
    spec: str
    """Relative to the directory of the table."""
    kernel_sha256: str
    seconds: float
    baseline_seconds: float
    first_seconds: float
    tried: int
    date: str
    gemmgen: str
    torch: str
    triton: str

    def __post_init__(self) -> None:
        numbers = (self.m, self.n, self.k, self.seconds, self.baseline_seconds, self.first_seconds)
        if min(numbers) <= 0:
            raise ValueError("extents and times must be positive")

    @property
    def shape(self) -> Shape:
        """M, N and K."""
        return self.m, self.n, self.k

    @property
    def ratio(self) -> float:
        """The baseline's time over the kernel's: above 1, the kernel is faster."""
        return self.baseline_seconds / self.seconds

    def as_line(self) -> str:
        """Return the row as a line of a table."""
        return json.dumps({"table": TABLE, "format": FORMAT, **asdict(self)}) + "\n"


KINDS: Final[Mapping[str, type | tuple[type, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("m", "n", "k", "tried"), int),
        **dict.fromkeys(("seconds", "baseline_seconds", "first_seconds"), (int, float)),
        "dtypes": dict,
    }
)
"""Of the members that are no text."""


def read_table(path: Path, gpu: str | None = None) -> tuple[Row, ...]:
    """Return the rows of a table; with ``gpu``, it must be of that one, as CUDA names it.

    Raises GemmgenError: ``bad-table`` for what is no such table, at its line; ``other-gpu``.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise _bad_table(path, f"cannot read the table: {reason}") from error
    rows = tuple(_row(line, path, number) for number, line in enumerate(lines, 1))
    if not rows:
        raise _bad_table(path, "there is no kernel in it")
    for number, row in enumerate(rows, 1):
        if row.gpu != rows[0].gpu:
            raise _bad_table(
                path, f"is of {row.gpu} here, and of {rows[0].gpu} above: one table is of one GPU", number
            )
    if gpu is not None and rows[0].gpu != gpu:
        raise _other_gpu(path, rows[0].gpu, gpu)
    return rows


def _row(line: str, path: Path, number: int) -> Row:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise _bad_table(path, "no line of JSON", number) from error
    if not isinstance(found, dict) or cast("dict[str, object]", found).get("table") != TABLE:
        raise _bad_table(path, "no line of a table of `gemmgen tune`", number)
    members = cast("dict[str, Any]", found)
    if (version := members.get("format")) != FORMAT:
        raise _bad_table(path, f"format is {version}; this gemmgen reads format {FORMAT}", number)
    names = [each.name for each in fields(Row)]
    for name in names:
        if name not in members:
            raise _bad_table(path, f"has no {name}", number)
        value, kind = members[name], KINDS.get(name, str)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _bad_table(path, f"{name} is {value!r}", number)
    try:
        return Row(**{name: members[name] for name in names})
    except ValueError as error:
        raise _bad_table(path, str(error), number) from error


def add_to_table(path: Path, rows: Iterable[Row]) -> None:
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
    message = f"was measured on {found}, and this is {wanted}: what is the fastest on one is not on the other"
    return GemmgenError([Diagnostic(path.as_posix(), "other-gpu", message)])


def require_optuna() -> None:
    """Return if what keeps trials is installed; raise GemmgenError (``no-optuna``) if not."""
    if importlib.util.find_spec("optuna") is None:
        message = f"Optuna, which keeps the trials, is not installed: `{INSTALL}`"
        raise GemmgenError([Diagnostic("optuna", "no-optuna", message)])
