"""What is wrong in a kernel, in the kernel's own names and source lines; and what is refused."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol, TypeVar

from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.python_source import parsed, statements

T = TypeVar("T")


@dataclass(frozen=True)
class Frame:
    """One source line, and the variable that it assigns where the compiler knows it."""

    file: str
    line: int
    """1-based."""
    name: str | None = None

    @property
    def snippet(self) -> str:
        """The text of the line without its indentation; empty where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def function(self) -> str | None:
        """The innermost function that the line is in; None where there is none, or no file to read."""
        return _functions("".join(linecache.getlines(self.file))).get(self.line)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@lru_cache(maxsize=32)
def _functions(source: str) -> dict[int, str]:
    """Return the function that each line of a file is in."""
    try:
        tree = parsed(source)
    except SyntaxError:
        return {}
    found: dict[int, str] = {}
    for node in statements(tree):  # inner ones come after outer ones
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            found |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), node.name)
    return found


LONGEST_TEXT = 60
"""Characters of a line that stand for a value without a name."""


@dataclass(frozen=True)
class Location:
    """Call frames, innermost first; empty when the compiler lost the source."""

    frames: tuple[Frame, ...] = ()

    @property
    def line(self) -> int | None:
        """The innermost line of the kernel's own source."""
        return self.frames[0].line if self.frames else None

    @property
    def file(self) -> str | None:
        """The file of `line`."""
        return self.frames[0].file if self.frames else None

    @property
    def function(self) -> str | None:
        """The function that `line` is in."""
        return self.frames[0].function if self.frames else None

    @cached_property
    def name(self) -> str | None:
        """The variable that the innermost line assigns, or else the call that it returns to."""
        return next((frame.name for frame in self.frames if frame.name), None)

    @property
    def called(self) -> str:
        """The variable, or else the text of the line, for a message about what is made there."""
        text = self.frames[0].snippet if self.frames else ""
        return self.name or (text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…") or str(self)

    def named(self, name: str) -> Location:
        """Return the same place, its innermost frame assigning to `name`."""
        if not self.frames:
            return self
        return Location((replace(self.frames[0], name=name), *self.frames[1:]))

    def within(self, excluded: str) -> Location:
        """Drop the frames of files under a directory: the toolchain's own library.

        A location that lies there as a whole is kept: it is the only one there is.
        """
        frames = tuple(frame for frame in self.frames if not frame.file.startswith(excluded))
        return Location(frames) if frames else self

    def __str__(self) -> str:
        return f"line {self.line}" if self.frames else "an unknown line"


UNKNOWN = Location()

_SLOT = re.compile(r"\[\d+\]$")


def ring_of(name: str) -> str:
    """Return the name of a buffer or barrier without the number of a slot: ``ready[2]`` is of ``ready``.

    A value without a variable has the text of its line for a name, which may have brackets itself.
    """
    return _SLOT.sub("", name)


class Moment(Protocol):
    """When something happened."""

    def known(self, clock: Any, /) -> bool:
        """Return whether what happens with this clock comes after it."""
        ...


Work = tuple[int, int, int]
"""An access to memory, the same in each run: program, place of its component in clocks, number."""


def refusal(message: str, location: Location = UNKNOWN, code: str = "simulator-unsupported") -> GemmgenError:
    """Return the error for something that the simulator would otherwise have to guess or to skip."""
    return GemmgenError([Diagnostic(location.file or "<kernel>", code, message, line=location.line)])


def placed(error: GemmgenError, location: Location) -> GemmgenError:
    """Return a refusal with the place of the operation that it is about, if it has none."""
    diagnostic = error.diagnostics[0]
    if diagnostic.line is not None or location.line is None:
        return error
    return refusal(diagnostic.message, location, diagnostic.code)


def unexpected(error: Exception, operation: str, location: Location) -> GemmgenError:
    """Return the refusal of an operation whose handler raised an error: a use that nobody has thought of."""
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return refusal(f"this use of operation {operation} is not known to the simulator ({told})", location)


def carried_out(work: Callable[[], T], operation: str, location: Location) -> T:
    """Do the work of an operation; a refusal gets its place, and another error becomes a refusal.

    Raises:
        GemmgenError: The work raised an error.
    """
    try:
        return work()
    except GemmgenError as error:
        raise placed(error, location) from error
    except Exception as error:
        raise unexpected(error, operation, location) from error


class Kind(StrEnum):
    """Every fault that the simulator can name."""

    UNINITIALISED_READ = "uninitialised-read"
    READ_AFTER_WRITE = "read-after-write"
    WRITE_AFTER_READ = "write-after-read"
    WRITE_AFTER_WRITE = "write-after-write"
    MISSING_FENCE = "missing-fence"
    MISSING_CLUSTER_BARRIER = "missing-cluster-barrier"
    DEADLOCK = "deadlock"
    LIVELOCK = "livelock"
    BYTE_COUNT = "byte-count"
    ARRIVAL_OVERFLOW = "arrival-overflow"
    EARLY_ARRIVAL = "early-arrival"
    UNINITIALISED_BARRIER = "uninitialised-barrier"
    ACCUMULATOR_IN_FLIGHT = "accumulator-in-flight"
    WORK_IN_FLIGHT = "work-in-flight"
    GLOBAL_RACE = "global-race"
    WEAK_ATOMIC = "weak-atomic"
    EARLY_ACCESS = "early-access"
    SMEM_CAPACITY = "smem-capacity"
    TMEM_CAPACITY = "tmem-capacity"
    CANCEL_AFTER_REFUSAL = "cancel-after-refusal"
    REGISTER_BUDGET = "register-budget"
    WRONG_NUMBERS = "wrong-numbers"
    UNEQUAL_STORES = "unequal-stores"
    WORKSPACE_NOT_RESTORED = "workspace-not-restored"
    UNDEFINED_VALUE = "undefined-value"
    DOUBLE_INIT = "double-init"
    LIVE_BARRIER = "live-barrier"
    WAIT_PARITY = "wait-parity"
    UNALIGNED_TRANSFER = "unaligned-transfer"
    DESCRIPTOR_BASE = "descriptor-base"
    ASSERTION = "assertion"
    REDUNDANT_STORE = "redundant-store"
    OVERFLOW = "overflow"
    BARRIER_PER_LOAD = "barrier-per-load"
    SERIALIZED_MMA = "serialized-mma"


class Severity(StrEnum):
    """An error is a fault on the device; a lint does no harm there today, or may be meant: its text says."""

    ERROR = "error"
    LINT = "lint"

    @property
    def diagnosed(self) -> Literal["error", "warning"]:
        """What a diagnostic calls it."""
        return "warning" if self is Severity.LINT else "error"


@dataclass(frozen=True)
class Finding:
    """One fault, seen in at least one schedule."""

    kind: Kind
    severity: Severity
    name: str
    """The variable of the buffer, barrier, accumulator or tensor."""
    places: tuple[Frame, ...]
    """Source lines, the one that shows the fault first; none where the fault is in no line."""
    partition: str
    cta: int
    text: str

    @property
    def lines(self) -> tuple[int, ...]:
        """The 1-based numbers of the lines."""
        return tuple(place.line for place in self.places)

    @property
    def key(self) -> tuple[Kind, str, tuple[str, ...], Severity]:
        """The identity of the fault: partitions, schedules and programs repeat it."""
        return self.kind, self.name, tuple(map(str, self.places)), self.severity

    @property
    def title(self) -> str:
        """The finding in a line without its places."""
        return f"{self.severity.value}[{self.kind.value}] {self.name}: {self.brief}"

    @property
    def file(self) -> str | None:
        """The file of the line that shows the fault."""
        return self.places[0].file if self.places else None

    @property
    def line(self) -> int | None:
        """The 1-based number of the line that shows the fault."""
        return self.places[0].line if self.places else None

    @property
    def snippet(self) -> str:
        """The text of the line that shows the fault."""
        return self.places[0].snippet if self.places else ""

    @property
    def diagnostic(self) -> Diagnostic:
        """The finding as a message for the user, with all of its lines."""
        places = [f"{place} `{place.snippet}`" for place in self.places]
        return Diagnostic(
            self.file or "<kernel>",
            self.kind.value,
            message(self.brief, self.partition, self.cta, places),
            field=self.name,
            line=self.line,
            severity=self.severity.diagnosed,
        )

    @property
    def brief(self) -> str:
        """The text without the variable and the partition, which whoever quotes it tells beside it."""
        return brief(self.text, self.name, self.partition, self.cta)

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            "kind": self.kind.value,
            "severity": self.severity.value,
            "name": self.name,
            "text": self.text,
            "file": self.file,
            "line": self.line,
            "snippet": self.snippet,
            "lines": [
                {"file": place.file, "line": place.line, "snippet": place.snippet} for place in self.places
            ],
            "partition": self.partition,
            "cta": self.cta,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Finding:
        """Return the finding that `as_dict` wrote."""
        places = tuple(Frame(place["file"], place["line"]) for place in values["lines"])
        kind, severity = Kind(values["kind"]), Severity(values["severity"])
        return cls(kind, severity, values["name"], places, values["partition"], values["cta"], values["text"])

    def __str__(self) -> str:
        return str(self.diagnostic)


def message(text: str, partition: str, cta: int, places: Iterable[str]) -> str:
    """Return what is wrong, and in brackets who does it and the lines that it is about."""
    who = _who(partition, cta)
    where = [*([] if not partition or who == _ALONE else [who]), *dict.fromkeys(places)]
    return f"{text} ({'; '.join(where)})" if where else text


def brief(text: str, name: str, partition: str, cta: int) -> str:
    """Return what is wrong without the variable's name before it, and without who does it.

    Of two accesses the other one may be of the same partition too.
    """
    return text.removeprefix(f"{name}: ").replace(f" ({_who(partition, cta)})", "")


def _who(partition: str, cta: int) -> str:
    return f"{partition} of CTA {cta}"


_ALONE = _who("partition 0", 0)
"""Who does everything in a kernel of one partition and one CTA, so that it says nothing."""


_RANKS = (
    # These need one partition only: no other is out of step.
    (
        Kind.UNINITIALISED_BARRIER,
        Kind.DOUBLE_INIT,
        Kind.LIVE_BARRIER,
        Kind.UNDEFINED_VALUE,
        Kind.ASSERTION,
        Kind.UNALIGNED_TRANSFER,
        Kind.DESCRIPTOR_BASE,
        Kind.ACCUMULATOR_IN_FLIGHT,
        Kind.BYTE_COUNT,
    ),
    (),
    # An access of another partition that an early arrival lets through follows it, so others say more.
    (Kind.EARLY_ARRIVAL,),
    # One who writes too early meets the readers, or else its own last write, which says less.
    (Kind.WRITE_AFTER_WRITE,),
    (Kind.ARRIVAL_OVERFLOW, Kind.CANCEL_AFTER_REFUSAL),
    (Kind.DEADLOCK, Kind.LIVELOCK, Kind.WORK_IN_FLIGHT),
    (Kind.WRONG_NUMBERS, Kind.WORKSPACE_NOT_RESTORED),
    (Kind.UNEQUAL_STORES,),
)
"""Kinds that different schedules show first, those that say most first; others have the empty place."""
_ENDS = _RANKS[-3] + _RANKS[-2] + _RANKS[-1]
"""How a program ends says what came of all that went before."""
_RANK = {kind: rank for rank, kinds in enumerate(_RANKS) for kind in kinds}


class Findings:
    """Findings, each fault once: schedules and CTAs repeat them.

    A fault puts what comes after it out of step. So each run keeps the moments of its faults, and a finding
    of which one side knows of such a moment is a consequence, unless another schedule shows it without.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str, tuple[str, ...], Severity], tuple[bool, Finding]] = {}
        self._faults: dict[Moment, None] = {}
        self.faulty = False
        """True if this run has shown a fault."""
        self.shown: list[tuple[Finding, tuple[Work, ...]]] | None = None
        """Each fault as it is added, with its accesses, for a timeline; None if nobody draws one."""

    def begin_run(self) -> None:
        """Forget the moments of the run before."""
        self._faults = {}
        self.faulty = False

    def follows(self, clock: Any) -> bool:
        """Return whether what happens with this clock comes after a fault of this run."""
        return any(moment.known(clock) for moment in self._faults)

    def add(
        self,
        kind: Kind,
        name: str,
        locations: tuple[Location, ...],
        partition: str,
        cta: int,
        text: str,
        *,
        severity: Severity = Severity.ERROR,
        follows: bool = False,
        moment: Moment | None = None,
        works: tuple[Work, ...] = (),
    ) -> None:
        """Add one fault.

        Args:
            kind: The kind of the fault.
            name: The variable that it is about.
            locations: Lines, the one that shows the fault first.
            partition: The partition that shows it.
            cta: The CTA of that partition.
            text: An explanation for the author of the kernel.
            severity: Error or lint.
            follows: True if it comes after another fault of this run.
            moment: When it happens.
            works: The accesses that it is about, as `Access.work`.
        """
        if kind is Kind.ACCUMULATOR_IN_FLIGHT:
            follows = False  # nobody else has a part in it
        elif kind in _ENDS:
            follows = self.faulty
        places = tuple(location.frames[0] for location in locations if location.frames)
        finding = Finding(kind, severity, name, places, partition, cta, text)
        self._keep(follows, finding)
        if self.shown is not None:
            self.shown.append((finding, works))
        if moment is not None and severity is Severity.ERROR:
            self._faults[moment] = None
            self.faulty = True

    def merge(self, other: Findings) -> None:
        """Add what another run has found."""
        for follows, finding in other._found.values():
            self._keep(follows, finding)

    def _keep(self, follows: bool, finding: Finding) -> None:
        """Add a finding that is new, or that was taken for a consequence and is none."""
        before = self._found.get(finding.key)
        if before is None or (before[0] and not follows):
            self._found[finding.key] = (follows, finding)

    def has(self, kind: Kind) -> bool:
        """Return whether a fault of this kind was added."""
        return any(finding.kind is kind for _, finding in self._found.values())

    def all(self) -> tuple[Finding, ...]:
        """Return every fault that was added: causes before consequences, else in the order of discovery."""

        def place(found: tuple[bool, Finding]) -> tuple[bool, bool, int]:
            follows, finding = found
            return finding.severity is Severity.LINT, follows, _RANK.get(finding.kind, _RANKS.index(()))

        return tuple(finding for _, finding in sorted(self._found.values(), key=place))
