"""A suite: families of shapes to time kernels on; the record of that, line by line; and its figures.

The file of a suite is YAML in the part of it that specs have. A record is JSON Lines: a session, and then
what was found in it, shape by shape. A line is written whole or not at all, so that a run which ended
anywhere is gone on with.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, cast

from gemmgen.bench.record import (
    Ceilings,
    Environment,
    GpuState,
    Spread,
    Subject,
    encoded_line,
    flops,
    from_line,
)
from gemmgen.documents.files import read_bytes
from gemmgen.documents.kinds import Count, Extents, Lines, Seconds, Sha256, Share
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import DTYPES
from gemmgen.problem import Shape, shape_text
from gemmgen.problem.dtypes import Dtypes
from gemmgen.spec.diagnostics import (
    Code,
    Node,
    Place,
    Report,
    compose,
    describe,
    did_you_mean,
    listing,
    quoted,
)

# --- the file of a suite

MAX_BYTES: Final = 64 * 1024
LARGEST: Final = 2**31 - 1
"""Of an extent."""
KEYS: Final = ("title", "source", "dtypes", "m", "families", "peers")
FAMILY_KEYS: Final = ("dtypes", "m", "nk", "shapes")
PEER_KEYS: Final = ("shapes", "draw", "seed")


@dataclass(frozen=True)
class Family:
    """Shapes [M, N, K] that belong together, and the types of A that they are timed with."""

    name: str
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class PeerShapes:
    """On which shapes peers are timed as well: some that are named, and some that a seed draws."""

    shapes: tuple[Shape, ...] = ()
    draw: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Suite:
    """What is in the file of a suite."""

    path: str
    """As the user gave it."""
    sha256: str
    """Of the file's bytes."""
    title: str
    families: tuple[Family, ...]
    peers: PeerShapes = PeerShapes()

    def shapes(self, dtype: str, extents: range) -> dict[Shape, tuple[str, ...]]:
        """Return the shapes for operands of a type whose M is in a range, with the families of each."""
        found: dict[Shape, tuple[str, ...]] = {}
        for family in self.families:
            for shape in family.shapes if dtype in family.dtypes else ():
                if shape[0] in extents:
                    found[shape] = (*found.get(shape, ()), family.name)
        return found

    def peer_shapes(self, dtype: str, extents: range) -> tuple[Shape, ...]:
        """Return the shapes that peers are timed on: those that are named, and so many more of the others."""
        all_shapes = self.shapes(dtype, extents)
        named = [shape for shape in self.peers.shapes if shape in all_shapes]
        others = sorted(all_shapes.keys() - set(named))
        drawn = random.Random(self.peers.seed).sample(others, min(self.peers.draw, len(others)))
        return (*named, *sorted(drawn))


class _SuiteReport(Report):
    """The diagnostics of a suite; what reads YAML words its messages for specs."""

    def add(self, code: Code, message: str, place: Place | None = None, field: str | None = None) -> None:
        """Note a problem, and go on."""
        message = message.replace("a spec starts with its title and target", "a suite has `families`")
        super().add(code, re.sub(r"\b(a|of a) spec\b", r"\1 suite", message), place, field)


def load_suite(path: Path) -> Suite:
    """Return the suite in a YAML file.

    Raises GemmgenError with a diagnostic for each thing that is wrong, at its line.
    """
    report = _SuiteReport(path.as_posix())
    try:
        data = read_bytes(path)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        report.stop("file-missing", "there is no such file")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        report.stop("file-unreadable", f"cannot be read: {reason}")
    if len(data) > MAX_BYTES:
        report.stop("file-size", f"{len(data):,} bytes, the limit for a suite is {MAX_BYTES:,}")
    if not text.strip():
        report.stop("file-empty", "the file is empty; a suite has `families`")
    reader = _Reader(report)
    suite = reader.suite(compose(text, report), path.as_posix(), hashlib.sha256(data).hexdigest())
    if report:
        raise report.error()
    return suite


@dataclass(frozen=True)
class _Reader:
    """Reads the tree of a suite, and reports what is wrong in it."""

    report: Report

    def suite(self, root: Node, path: str, sha256: str) -> Suite:
        members = self._members(root, "", KEYS, required=("title", "families"))
        dtypes = self._dtypes(members.get("dtypes"), "dtypes")
        extents = self._extents(members.get("m"), "m")
        families: list[Family] = []
        node = members.get("families")
        if node and self._is(node, dict, "families", "a mapping of names to families"):
            named = cast("dict[str, Node]", node.value)
            if not named:
                self.report.add("wrong-length", "there is no family in it", node.place, "families")
            families = [self._family(each, name, dtypes, extents) for name, each in named.items()]
        peers = self._peers(members.get("peers"))
        self._text(members.get("source"), "source")
        title = self._text(members.get("title"), "title")
        return Suite(path, sha256, title, tuple(families), peers)

    def _family(self, node: Node, name: str, dtypes: tuple[str, ...], extents: tuple[int, ...]) -> Family:
        where = f"families.{name}"
        members = self._members(node, where, FAMILY_KEYS)
        dtypes = self._dtypes(members.get("dtypes"), f"{where}.dtypes") or dtypes
        extents = self._extents(members.get("m"), f"{where}.m") or extents
        shapes = [cast("Shape", tuple(row)) for row in self._rows(members, where, "shapes", "MNK")]
        layers = self._rows(members, where, "nk", "NK")
        shapes += [(m, n, k) for n, k in layers for m in extents]
        if members.keys() <= {"dtypes", "m"} and isinstance(node.value, dict):
            self.report.add("missing-field", "has neither `shapes` nor `nk`", node.key_place, where)
        if "nk" in members and not extents:
            message = "needs `m`, a list of M, here or at the top of the file"
            self.report.add("missing-field", message, members["nk"].key_place, f"{where}.nk")
        if isinstance(node.value, dict) and not dtypes and "dtypes" not in members:
            message = "needs `dtypes`, a list of types of A and B, here or at the top of the file"
            self.report.add("missing-field", message, node.key_place, where)
        return Family(name, dtypes, tuple(dict.fromkeys(shapes)))

    def _peers(self, node: Node | None) -> PeerShapes:
        if node is None:
            return PeerShapes()
        members = self._members(node, "peers", PEER_KEYS)
        shapes = [cast("Shape", tuple(row)) for row in self._rows(members, "peers", "shapes", "MNK")]
        numbers = {name: self._number(members.get(name), f"peers.{name}") for name in ("draw", "seed")}
        return PeerShapes(tuple(shapes), **numbers)

    def _members(
        self, node: Node, where: str, keys: Sequence[str], required: Sequence[str] = ()
    ) -> dict[str, Node]:
        """Return the members of a mapping that has these keys and no others."""
        if not self._is(node, dict, where, f"a mapping with the keys {listing(keys, 'and')}"):
            return {}
        members = cast("dict[str, Node]", node.value)
        for name, member in members.items():
            if name not in keys:
                known = f"the keys here are {listing(keys, 'and')}{did_you_mean(name, keys)}"
                self.report.add(
                    "unknown-key", f"unknown key {quoted(name)}, {known}", member.key_place, where or None
                )
        for name in required:
            if name not in members:
                self.report.add("missing-field", f"has no `{name}`", node.key_place, where or None)
        return members

    def _is(self, node: Node, kind: type, where: str, expected: str) -> bool:
        right = isinstance(node.value, kind) and not (kind is int and isinstance(node.value, bool))
        if not right and not node.refused:
            message = f"expected {expected}, found {describe(node)}"
            self.report.add("wrong-type", message, node.place, where or None)
        return right

    def _items(self, node: Node | None, where: str, expected: str) -> list[Node]:
        if node is None or not self._is(node, list, where, expected):
            return []
        if not node.value:
            self.report.add("wrong-length", f"expected {expected}, found none", node.place, where)
        return cast("list[Node]", node.value)

    def _dtypes(self, node: Node | None, where: str) -> tuple[str, ...]:
        found: list[str] = []
        for index, item in enumerate(self._items(node, where, "a list of element types")):
            if item.value in DTYPES:
                found.append(cast("str", item.value))
            elif not item.refused:
                known = f"expected {listing(list(DTYPES), 'or')}, found {describe(item)}"
                self.report.add("not-a-choice", known, item.place, f"{where}.{index}")
        return tuple(found)

    def _extents(self, node: Node | None, where: str) -> tuple[int, ...]:
        items = self._items(node, where, "a list of whole numbers")
        return tuple(
            extent
            for index, item in enumerate(items)
            if (extent := self._extent(item, f"{where}.{index}")) is not None
        )

    def _rows(self, members: Mapping[str, Node], where: str, name: str, extents: str) -> list[list[int]]:
        """Return lists of extents, one for each letter."""
        row = f"[{', '.join(extents)}]"
        found: list[list[int]] = []
        for index, item in enumerate(self._items(members.get(name), f"{where}.{name}", f"a list of {row}")):
            place = f"{where}.{name}.{index}"
            if not self._is(item, list, place, row):
                continue
            parts = cast("list[Node]", item.value)
            numbers = [self._extent(part, f"{place}.{number}") for number, part in enumerate(parts)]
            if len(parts) != len(extents):
                self.report.add("wrong-length", f"expected {row}, found {describe(item)}", item.place, place)
            elif None not in numbers:
                found.append(cast("list[int]", numbers))
        return found

    def _extent(self, node: Node, where: str) -> int | None:
        if not self._is(node, int, where, "a whole number"):
            return None
        extent = cast("int", node.value)
        if not 1 <= extent <= LARGEST:
            message = f"expected 1 to {LARGEST:,}, found {describe(node)}"
            self.report.add("out-of-range", message, node.place, where)
            return None
        return extent

    def _number(self, node: Node | None, where: str) -> int:
        """Return a number from 0, or 0 without one."""
        if node is None or not self._is(node, int, where, "a whole number"):
            return 0
        number = cast("int", node.value)
        if number < 0:
            self.report.add("out-of-range", f"expected at least 0, found {describe(node)}", node.place, where)
        return number

    def _text(self, node: Node | None, where: str) -> str:
        if node is None or not self._is(node, str, where, "text"):
            return ""
        return cast("str", node.value)


# --- the record

SCHEMA: Final = 2
BASELINE: Final = "baseline"
"""Stands for the baseline where a kernel is named."""


@dataclass(frozen=True)
class Rounds:
    """How often, how long and over how much memory; every number but the seed must be positive.

    All kernels of a shape are timed by turns with the baseline on the same tensors, each once a round, with
    no pause between them. Who comes after whom is drawn anew for each round: where power limits, a kernel
    runs at the clock that the one before it leaves behind.
    """

    rounds: int = 7
    graph_seconds: float = 2e-3
    """Least device time of a sample, the replay of one CUDA graph of calls."""
    warm_up_seconds: float = 1.5
    """Of work before the first shape."""
    settle_seconds: float = 0.25
    """Of the same work as is timed, before the first round of each shape: the clock and the power settle."""
    l2_multiple: float = 2.5
    max_input_sets: int = 1024
    host_calls: int = 20
    """Eager calls, of which the median is the host's cost."""
    seed: int = 0
    playoff_seconds: float | None = None
    """Of the winner and the baseline in pairs, as many as rounds at least; in older records no more."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "seed" and value is not None and value <= 0:
                raise ValueError(f"{each.name} must be positive")


@dataclass(frozen=True)
class Entry:
    """A kernel that takes part."""

    name: str
    subject: Subject
    contest: str
    """Which it takes part in."""
    spec: Lines | None = None
    """One that states every decision of a kernel that the planner chose: another planner may choose
    another one for the open spec. None where the spec's file is that of the kernel.
    """


@dataclass(frozen=True)
class ContestOf:
    """What kernels are compared in: one problem, one baseline."""

    name: str
    dtypes: Dtypes
    baseline: str
    """What they are compared with, exactly."""
    peak: Ceilings | None
    """Of the datasheet: what is faster is an error. None for a GPU that no spec can name."""
    measured: Ceilings | None
    """What was measured on such a GPU, where it was."""


@dataclass(frozen=True)
class Session:
    """The beginning of a run: what the lines behind it were measured with."""

    line: Literal["session"]
    schema: int
    date: str
    suite: str
    """The path of its file."""
    suite_sha256: Sha256
    environment: Environment
    protocol: Rounds
    contests: tuple[ContestOf, ...]
    kernels: tuple[Entry, ...]


@dataclass(frozen=True)
class Timed:
    """The samples of one arm."""

    kernel: str
    seconds: tuple[Seconds, ...]
    """Per call, by rounds."""
    calls: Count
    """In a sample."""
    relative_error: Share
    host_seconds: Seconds
    """What an eager call costs the host."""

    def __post_init__(self) -> None:
        if not self.seconds or min(self.seconds) <= 0 or self.calls <= 0:
            raise ValueError("an arm needs samples, all positive")


@dataclass(frozen=True)
class Playoff:
    """The kernel that won the rounds and the baseline once more, in pairs of their own.

    The fastest of many in the rounds owes some of that to luck; what it reads here it does not.
    """

    kernel: str
    seconds: tuple[Seconds, ...]
    baseline_seconds: tuple[Seconds, ...]

    def __post_init__(self) -> None:
        if len(self.seconds) != len(self.baseline_seconds) or not self.seconds:
            raise ValueError("both arms need the same number of samples, at least one")
        if min(*self.seconds, *self.baseline_seconds) <= 0:
            raise ValueError("a sample must be positive")


@dataclass(frozen=True)
class Result:
    """The rounds on one shape: the baseline, and the kernels that were timed beside it."""

    line: Literal["result"]
    shape: Extents
    contest: str
    families: tuple[str, ...]
    input_sets: Count
    baseline: Timed
    baseline_kernels: tuple[str, ...]
    """What the baseline launched, by the profiler's names; none where that is not known."""
    kernels: tuple[Timed, ...]
    playoff: Playoff | None
    state: GpuState | None
    """While the rounds lasted."""

    def __post_init__(self) -> None:
        if min(*self.shape, self.input_sets) <= 0:
            raise ValueError("extents and the number of input sets must be positive")
        if any(len(arm.seconds) != len(self.baseline.seconds) for arm in self.kernels):
            raise ValueError("all arms need the same number of samples")

    def ratio(self, arm: Timed) -> Spread:
        """Return the baseline's time over that of an arm, round by round."""
        return ratios(self.baseline.seconds, arm.seconds)

    @property
    def splits_k(self) -> bool:
        """Whether the baseline split K: it says so, or a second kernel followed."""
        named = any("splitk" in name.lower() for name in self.baseline_kernels)
        return named or len(self.baseline_kernels) > 1


@dataclass(frozen=True)
class Refused:
    """A kernel that was not timed on a shape."""

    line: Literal["refused"]
    shape: Extents
    contest: str
    kernel: str
    """``BASELINE`` where that cannot compute the shape: then nothing is timed."""
    why: Literal["cannot", "wrong", "failed"]
    """It does not take such a problem, its numbers are wrong, or it raised or never ended."""
    message: str


@dataclass(frozen=True)
class Choice:
    """What the planner ranks first of a spec's kernels for a shape."""

    line: Literal["choice"]
    shape: Extents
    contest: str
    spec: str
    kernels: tuple[str, ...]
    """In the order of the ranking."""


@dataclass(frozen=True)
class Peer:
    """What another generator makes of a shape, against the baseline in a process of its own."""

    line: Literal["peer"]
    shape: Extents
    contest: str
    name: str
    """What it is, with the versions that it ran with."""
    seconds: tuple[Seconds, ...] = ()
    baseline_seconds: tuple[Seconds, ...] = ()
    tuning_seconds: Share = 0.0
    kernels: tuple[str, ...] = ()
    relative_error: Share = 0.0
    why_not: str | None = None
    """Why there is no figure, None where there is one."""

    def __post_init__(self) -> None:
        if len(self.seconds) != len(self.baseline_seconds) or bool(self.seconds) == bool(self.why_not):
            raise ValueError("a peer has as many samples as the baseline, or a reason why there are none")


Line: TypeAlias = Session | Result | Refused | Choice | Peer
LINES: Final[Mapping[str, type[Line]]] = MappingProxyType(
    {"session": Session, "result": Result, "refused": Refused, "choice": Choice, "peer": Peer}
)


def ratios(baseline: Sequence[float], ours: Sequence[float]) -> Spread:
    """Return the baseline's time over ours of each pair of samples: above 1, we are faster."""
    return Spread.of((tuple(theirs / own for theirs, own in zip(baseline, ours, strict=True)),))


@dataclass
class Book:
    """The record of a suite, in memory and, where it has a path, in a file that grows line by line."""

    path: Path | None = None
    lines: list[Line] = field(default_factory=list[Line])
    half_a_line_from: int | None = None
    """Where in the file a line begins that is not whole, for a run was ended while it wrote; None without."""

    @classmethod
    def opened(cls, path: Path) -> Book:
        """Return the book in a file, empty where there is none; a last line that is not whole is left out.

        Raises GemmgenError (``bad-record``) for what is no line of such a record.
        """
        try:
            data = read_bytes(path)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise _bad_record(path, f"cannot read the record: {error.strerror or error}") from error
        whole = data[: data.rfind(b"\n") + 1]
        return cls(path, list(_lines(whole, path)), len(whole) if len(whole) < len(data) else None)

    def write(self, line: Line) -> None:
        """Append a line; it is on the disk when this returns.

        Raises GemmgenError (``cannot-write``).
        """
        self.lines.append(line)
        if self.path is None:
            return
        try:
            if self.half_a_line_from is not None:
                os.truncate(self.path, self.half_a_line_from)
                self.half_a_line_from = None
            with self.path.open("ab") as file:
                file.write(f"{encoded_line(line)}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            message = f"cannot write the record: {error.strerror or error}"
            raise GemmgenError([Diagnostic(self.path.as_posix(), "cannot-write", message)]) from error

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All of them, the latest last."""
        return tuple(line for line in self.lines if isinstance(line, Session))

    @property
    def contests(self) -> dict[str, ContestOf]:
        """Each by its name."""
        return {contest.name: contest for session in self.sessions for contest in session.contests}

    @property
    def kernels(self) -> dict[str, Entry]:
        """Each by its name, as it was in the latest session that had it."""
        return {entry.name: entry for session in self.sessions for entry in session.kernels}

    @property
    def choices(self) -> dict[tuple[str, Shape, str], Choice]:
        """The planner's latest ranking, by contest, shape and spec."""
        found = (line for line in self.lines if isinstance(line, Choice))
        return {(line.contest, line.shape, line.spec): line for line in found}

    def current(self) -> Iterator[Result | Refused]:
        """Yield what was found, less what was found of kernels whose modules have changed since."""
        latest = self.kernels
        own: dict[str, Entry] = {}
        for line in self.lines:
            if isinstance(line, Session):
                own = {entry.name: entry for entry in line.kernels}
                continue
            stale = {name for name, entry in own.items() if entry != latest[name]}
            if isinstance(line, Result):
                kept = tuple(arm for arm in line.kernels if arm.kernel not in stale)
                playoff = line.playoff if line.playoff and line.playoff.kernel not in stale else None
                if kept:
                    yield replace(line, kernels=kept, playoff=playoff)
            elif isinstance(line, Refused) and line.kernel not in stale:
                yield line

    def done(self) -> set[tuple[str, Shape, str]]:
        """Return what needs no timing any more: contest, shape, and kernel; ``BASELINE`` stands for all."""
        found: set[tuple[str, Shape, str]] = set()
        for line in self.current():
            if isinstance(line, Result):
                found |= {(line.contest, line.shape, arm.kernel) for arm in line.kernels}
            else:
                found.add((line.contest, line.shape, line.kernel))
        return found

    def peers_done(self) -> set[tuple[str, Shape]]:
        """Return where a peer has a figure, or a reason why not."""
        return {(line.contest, line.shape) for line in self.lines if isinstance(line, Peer)}


def _lines(data: bytes, path: Path) -> Iterator[Line]:
    contests: dict[str, ContestOf] = {}
    begun = False
    for number, text in enumerate(data.splitlines(), 1):
        try:
            kind = json.loads(text)["line"]
            known = LINES[kind]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _bad_record(path, "no line of a suite's record", number) from error
        line = from_line(known, text.decode(), path.as_posix(), number)
        if isinstance(line, Session):
            if line.schema != SCHEMA:
                message = f"schema is {line.schema}; this gemmgen reads version {SCHEMA}"
                raise _bad_record(path, message, number)
            begun = True
            contests |= {contest.name: contest for contest in line.contests}
        if not begun:
            raise _bad_record(path, "a record begins with its session", number)
        for where, name in _contests_of(line):
            if name not in contests:
                raise _bad_record(path, f"is {quoted(name)}, which no session above has", number, where)
        yield line


def _contests_of(line: Line) -> Iterator[tuple[str, str]]:
    """Yield the contests that a line names, each behind the member that names it."""
    if isinstance(line, Session):
        yield from ((f"kernels.{index}.contest", entry.contest) for index, entry in enumerate(line.kernels))
    else:
        yield "contest", line.contest


def _bad_record(path: Path, message: str, line: int | None = None, field: str | None = None) -> GemmgenError:
    return GemmgenError([Diagnostic(path.as_posix(), "bad-record", message, field=field, line=line)])


# --- figures

BOUNDS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""The largest M of each group; a last group has what is larger."""
SPLIT_K: Final = "split K"
"""The group of shapes, of any M, for which the baseline splits K."""
ALL: Final = "all"
BEST: Final = "best"
"""Stands for the kernel that won the rounds on each shape, by its pairs with the baseline."""
FIRST: Final = ": the planner's first choice"
"""Behind the name of a spec: stands for the kernel that is ranked first for each shape, nothing measured."""


def group_of(m: int) -> str:
    """Return the group of an M: ``17-32``."""
    lower = 1
    for upper in BOUNDS:
        if m <= upper:
            return f"{lower}-{upper}"
        lower = upper + 1
    return f"{lower}-"


GROUPS: Final = (*(group_of(bound) for bound in BOUNDS), group_of(BOUNDS[-1] + 1), SPLIT_K, ALL)


@dataclass(frozen=True)
class Point:
    """How one kernel compares on one shape."""

    contest: str
    shape: Shape
    kernel: str
    ratio: Spread
    seconds: float
    """Median, per call; and that of the baseline beside it."""
    baseline_seconds: float
    splits_k: bool
    baseline_kernels: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """Those that it counts in."""
        return (group_of(self.shape[0]), *((SPLIT_K,) if self.splits_k else ()), ALL)

    @property
    def tflops(self) -> float:
        """The rate at the median time."""
        return flops(self.shape) / self.seconds / 1e12


@dataclass(frozen=True)
class Figures:
    """How a kernel compares on several shapes."""

    count: int
    geomean: float
    minimum: float
    worst: Shape
    share: float
    """Of the shapes on which it is at least as fast as the baseline."""

    @classmethod
    def of(cls, points: Iterable[Point]) -> Figures | None:
        """Summarize the median ratios of points; None without any."""
        found = sorted((point.ratio.median, point.shape) for point in points)
        if not found:
            return None
        values = [ratio for ratio, _ in found]
        geomean = math.exp(math.fsum(map(math.log, values)) / len(values))
        share = sum(ratio >= 1 for ratio in values) / len(values)
        return cls(len(values), geomean, values[0], found[0][1], share)


def points_of(book: Book) -> list[Point]:
    """Return every kernel's figures in the rounds, shape by shape.

    So, too, those of ``BEST``, and of the kernel that the planner ranks first of a spec's (``FIRST``).
    """
    own: dict[tuple[str, Shape, str], Point] = {}
    best: dict[tuple[str, Shape], tuple[Point, str]] = {}
    for line in book.current():
        if not isinstance(line, Result):
            continue
        shared = (line.splits_k, line.baseline_kernels)
        theirs = median(line.baseline.seconds)
        for arm in line.kernels:
            place = (line.contest, line.shape, arm.kernel)
            own[place] = Point(*place, line.ratio(arm), median(arm.seconds), theirs, *shared)
        if line.playoff:
            pairs = line.playoff
            ratio = ratios(pairs.baseline_seconds, pairs.seconds)
            times = median(pairs.seconds), median(pairs.baseline_seconds)
            point = Point(line.contest, line.shape, BEST, ratio, *times, *shared)
            before = best.get(place := (line.contest, line.shape))
            if before is None or before[0].ratio.median < ratio.median:
                best[place] = point, pairs.kernel
    first = (
        replace(own[contest, shape, choice.kernels[0]], kernel=f"{spec}{FIRST}")
        for (contest, shape, spec), choice in book.choices.items()
        if choice.kernels and (contest, shape, choice.kernels[0]) in own
    )
    return [*(point for point, _ in best.values()), *first, *own.values()]


def winners_of(book: Book) -> dict[tuple[str, Shape], str]:
    """Return which kernel the figures of ``BEST`` are of."""
    found: dict[tuple[str, Shape], tuple[float, str]] = {}
    for line in book.current():
        if isinstance(line, Result) and line.playoff:
            ratio = ratios(line.playoff.baseline_seconds, line.playoff.seconds).median
            place = (line.contest, line.shape)
            found[place] = max(found.get(place, (0.0, "")), (ratio, line.playoff.kernel))
    return {place: kernel for place, (_, kernel) in found.items()}


def errors_of(book: Book) -> list[str]:
    """Return what cannot be true or must not be: faster than the datasheet, wrong, failed."""
    found: list[str] = []
    contests = book.contests
    for point in points_of(book):
        contest = contests[point.contest]
        if contest.peak is None:
            continue
        least = contest.peak.seconds(point.shape, contest.dtypes.moved_bytes(point.shape))
        for arm, seconds in ((point.kernel, point.seconds), ("the baseline", point.baseline_seconds)):
            if seconds < least:
                place = f"{point.contest} {shape_text(point.shape)}"
                found.append(f"{place}: {arm} at {least / seconds:.2f} of the datasheet: do not believe it")
    for line in book.current():
        if isinstance(line, Refused) and line.why != "cannot":
            place = f"{line.contest} {shape_text(line.shape)}"
            found.append(f"{place}: {line.kernel} {WHY[line.why]}: {line.message}")
    return list(dict.fromkeys(found))


WHY: Final = MappingProxyType({"cannot": "cannot", "wrong": "is wrong", "failed": "failed"})


def report_of(book: Book) -> dict[str, object]:
    """Return the figures as plain data for JSON."""
    points, winners = points_of(book), winners_of(book)
    return {
        "contests": {
            name: {
                "baseline": contest.baseline,
                "groups": {
                    kernel: {group: _plain(found) for group, found in groups.items()}
                    for kernel, groups in grouped(points, name).items()
                },
                "shapes": [
                    {
                        "shape": list(point.shape),
                        "ratio": point.ratio.median,
                        "quartiles": list(point.ratio.quartiles),
                        "kernel": winners[name, point.shape],
                        "microseconds": point.seconds * 1e6,
                        "baseline_microseconds": point.baseline_seconds * 1e6,
                        "baseline_kernels": list(point.baseline_kernels),
                    }
                    for point in points
                    if point.contest == name and point.kernel == BEST
                ],
            }
            for name, contest in book.contests.items()
        },
        "peers": [_peer(line) for line in book.lines if isinstance(line, Peer)],
        "errors": errors_of(book),
    }


def _plain(found: Figures) -> dict[str, object]:
    return {each.name: getattr(found, each.name) for each in fields(found)}


def _peer(line: Peer) -> dict[str, object]:
    known: dict[str, object] = {"contest": line.contest, "shape": list(line.shape), "name": line.name}
    if line.why_not:
        return known | {"why_not": line.why_not}
    return known | {
        "ratio": ratios(line.baseline_seconds, line.seconds).median,
        "tuning_seconds": line.tuning_seconds,
        "kernels": list(line.kernels),
    }


def grouped(points: Iterable[Point], contest: str) -> dict[str, dict[str, Figures]]:
    """Return the figures of a contest by kernel, ``BEST`` first, and by group; those that have any."""
    of_kernel: dict[str, list[Point]] = {}
    for point in points:
        if point.contest == contest:
            of_kernel.setdefault(point.kernel, []).append(point)
    return {
        kernel: {
            group: found
            for group in GROUPS
            if (found := Figures.of(point for point in of_kernel[kernel] if group in point.groups))
        }
        for kernel in sorted(of_kernel, key=lambda name: (name != BEST, not name.endswith(FIRST), name))
    }
