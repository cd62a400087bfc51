"""Records as one page for a browser: a section of tables for each contest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gemmgen import tune
from gemmgen.bench.record import read_record
from gemmgen.bench.result_log import ResultLog
from gemmgen.bench.suite_figures import errors_of
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.render import render_page
from gemmgen.report.ranked import RankedObservation
from gemmgen.report.sections import ContestSection, sections_of_log, sections_of_records, sections_of_table


@dataclass(frozen=True)
class Source:
    """A record on the page, with its environment and its protocol."""

    path: str
    date: str
    environment: Mapping[str, object]
    """The GPU, and the known versions of the measurement."""
    protocol: Mapping[str, object]


@dataclass(frozen=True)
class ShapeLine:
    """Line of the table of shapes: the fastest kernel, and the figures that it is compared with."""

    trial: RankedObservation
    tried: int
    first: float | None
    share: float | None
    """Rate over the lower ceiling at this intensity; None without ceilings."""


@dataclass(frozen=True)
class ReportPage:
    """A report as its template sees it."""

    sources: tuple[Source, ...]
    sections: tuple[ContestSection, ...]
    errors: tuple[str, ...]

    @property
    def title(self) -> str:
        """Title of the page."""
        gpus = dict.fromkeys(str(source.environment["gpu"]) for source in self.sources)
        return f"gemmgen on {', '.join(gpus)}"

    @property
    def environments(self) -> Iterator[tuple[str, str]]:
        """Each member of the records' environments, with all its values."""
        return _collected(source.environment for source in self.sources)

    @property
    def protocols(self) -> Iterator[tuple[str, str]]:
        """Each number of the records' protocols, with all its values."""
        return _collected(source.protocol for source in self.sources)

    def rows(self, section: ContestSection) -> Iterator[ShapeLine]:
        """Yield the shapes of a section, each with its fastest kernel."""
        for trial in section.best:
            shape = trial.shape
            yield ShapeLine(trial, section.tried[shape], section.first.get(shape), section.share(trial))

    @property
    def count(self) -> int:
        """Measured pairs of a shape and a kernel."""
        return sum(len(section.trials) for section in self.sections)


def _collected(all_facts: Iterable[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
    """Yield each name of several mappings, and all its values."""
    values: dict[str, dict[str, None]] = {}
    for facts in all_facts:
        for name, value in facts.items():
            values.setdefault(name.replace("_", " "), {})[str(value)] = None
    return ((name, ", ".join(found)) for name, found in values.items())


def report(paths: Sequence[Path]) -> str:
    """Return a page about records of kernels (``.json``) and suites, and tables of tuning (``.jsonl``).

    Raises:
        GemmgenError: A file is no record (``bad-record``) or no table (``bad-table``), or there is nothing in
            them (``empty-record``).
    """
    lines = [_existing(path) for path in paths if path.suffix == ".jsonl"]
    tables = {path: tune.read_table(path) for path in lines if _is_table(path)}
    logs = [ResultLog.opened(path) for path in lines if path not in tables]
    records = [read_record(path) for path in paths if path.suffix != ".jsonl"]
    sections = [section for log in logs if log.sessions for section in sections_of_log(log)]
    sections += sections_of_records(records)
    sections += [section for rows in tables.values() for section in sections_of_table(rows)]
    if not sections:
        message = "there is no measurement in it"
        raise GemmgenError([Diagnostic(path.as_posix(), "empty-record", message) for path in paths])
    sources = [
        Source(
            log.path.name if log.path else "",
            session.date,
            asdict(session.environment),
            asdict(session.protocol),
        )
        for log in logs
        for session in log.sessions[-1:]
    ]
    names = (path.name for path in paths if path.suffix != ".jsonl")
    sources += [
        Source(name, record.date, asdict(record.environment), asdict(record.protocol))
        for name, record in zip(names, records, strict=True)
    ]
    sources += [source for path, rows in tables.items() for source in _tuned_sources(path, rows)]
    errors = [error for log in logs for error in errors_of(log)]
    errors += [error for record in records for error in record.errors]
    return render_page("report/page.html", ReportPage(tuple(sources), tuple(sections), tuple(errors)))


TUNED_WITH = ("gemmgen", "torch", "triton", "gpu")
"""Members of a row of a table of tuned kernels that describe its environment."""


def _tuned_sources(path: Path, rows: Iterable[tune.TunedRow]) -> Iterator[Source]:
    """Yield a source for all rows of a table that the same versions have measured, with the latest date."""
    dates: dict[tuple[str, ...], str] = {}
    for row in rows:
        versions = tuple(str(getattr(row, name)) for name in TUNED_WITH)
        dates[versions] = max(dates.get(versions, ""), row.date)
    for versions, date in dates.items():
        yield Source(path.name, date, dict(zip(TUNED_WITH, versions, strict=True)), {})


def _is_table(path: Path) -> bool:
    """Return True if a file begins as a table of tuned kernels, and not as the record of a suite."""
    with path.open("rb") as file:
        return b'"table"' in file.readline()


def _existing(path: Path) -> Path:
    """Return a path that is there: what reads a suite's record takes an absent one for an empty one."""
    if not path.is_file():
        raise GemmgenError([Diagnostic(path.as_posix(), "bad-record", "there is no such file")])
    return path
