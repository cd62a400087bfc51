"""Many random specs, each judged in a process of its own: their record and their report."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from gemmgen import triton_api
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.plan.rule import counted
from gemmgen.plan.verdicts import COMPILER_RULE
from gemmgen.processes.forking import LostError, serving
from tools.fuzz.draft import drawn, spec_text
from tools.fuzz.judge import UNSEEN, WRONG, Outcome, brief, judged, smallest
from tools.fuzz.values import Values

SECONDS_PER_SPEC = 900
"""After which a spec counts as one that hangs: with its simulation one takes a few seconds."""


@dataclass(frozen=True)
class Run:
    """What is drawn and how closely it is looked at; two equal ones find the same."""

    target: str
    """``sm90``, ``sm100`` or ``layers``: a name of `TABLES`."""
    seed: int
    minimum: bool = False
    """Whether plans are lowered with the fewest registers that the rules allow."""
    simulated: int = 20
    """Of so many accepted specs one is simulated; 0 for none."""
    compiled: int = 1
    """Of so many accepted specs one is compiled, and those that are simulated; 0 for no other ones."""
    refused: int = 5
    """Of so many specs one is the last that was refused on the way to a legal one; 0 for none, and then no
    refused spec is compiled without the rules that refuse it.
    """
    kind: str = ""
    """Kind of kernels that all specs are of, a name in `TABLES`; all kinds if empty."""


@dataclass(frozen=True)
class Judged:
    """A spec of a run, and what became of it."""

    number: int
    outcome: Outcome
    text: str = ""
    """Of a finding: the smallest spec that still is one."""

    def line(self, run: Run) -> str:
        """Return it as a line of a record."""
        found = self.outcome
        data = {**asdict(run), "number": self.number, **asdict(found), "finding": found.finding}
        return json.dumps({**data, "spec": self.text} if self.text else data)


def examined(run: Run, number: int) -> Judged:
    """Draw one spec of a run and judge it; of a finding, find the smallest spec that still is one."""
    values, refused = drawn(run.target, run.seed, number, run.kind)
    if run.refused and number % run.refused == run.refused - 1 and refused is not None:
        values = refused
    simulated = bool(run.simulated) and number % run.simulated == 0

    compiled = simulated or (bool(run.compiled) and number % run.compiled == 0)

    def of(changed: Values) -> Outcome:
        return judged(
            changed,
            simulated=simulated,
            compiled=compiled,
            minimum=run.minimum,
            doubts=bool(run.refused),
        )

    outcome = of(values)
    if outcome.finding is None:
        return Judged(number, outcome)
    small = smallest(values, lambda changed: _same(of(changed), outcome))
    return Judged(number, outcome, spec_text(small))


def _same(found: Outcome, outcome: Outcome) -> bool:
    """Whether two outcomes are the same finding, whatever the numbers in it are."""
    return found.finding == outcome.finding and _class(found.fault) == _class(outcome.fault)


def _class(fault: str) -> str:
    """Return the first words of a fault, up to its first number."""
    return re.split(r"[\d:]", fault, maxsplit=1)[0]


def fuzz(run: Run, specs: int, *, record: Path | None = None, processes: int = 1) -> Iterator[Judged]:
    """Judge the first specs of a run, each in a process that may die of it; yield all, in any order.

    What a record has of the run is yielded as it is; what is new is appended to it as soon as it is known.

    Raises:
        GemmgenError: The record cannot be read or written (``bad-record``).
    """
    done = recorded(run, record) if record else {}
    yield from (done[number] for number in sorted(done) if number < specs)
    triton_api.load()  # once, and not in each process
    with ThreadPoolExecutor(processes) as pool:
        try:
            tasks = [pool.submit(_alone, run, number) for number in range(specs) if number not in done]
            for task in as_completed(tasks):
                found = task.result()
                if record:
                    _append(record, found.line(run))
                yield found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _alone(run: Run, number: int) -> Judged:
    """Examine one spec in a process of its own."""
    try:
        with serving(lambda: partial(_answered, run)) as ask:
            return ask(number, SECONDS_PER_SPEC)
    except LostError as error:
        text = spec_text(drawn(run.target, run.seed, number, run.kind)[0])
        return Judged(number, Outcome("accepted", "simulate", fault=f"the process is lost: {error}"), text)


def _answered(run: Run, number: int) -> Judged:
    try:
        return examined(run, number)
    except Exception as error:  # what examines has a fault of its own
        return Judged(number, Outcome("accepted", "plan", fault=brief(error)))


def recorded(run: Run, record: Path) -> dict[int, Judged]:
    """Return what a record has of a run, by number; a last line that is not whole counts as none.

    Raises:
        GemmgenError: The file is no record, or cannot be read (``bad-record``).
    """
    try:
        text = record.read_text(encoding="utf-8") if record.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise GemmgenError([Diagnostic(record.as_posix(), "bad-record", f"cannot read: {error}")]) from error
    found: dict[int, Judged] = {}
    lines = text.splitlines()
    for place, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            own = Run(**{name: data[name] for name in RUN_FIELDS if name in data}) == run
            outcome = Outcome(data["verdict"], data["stage"], tuple(data["rules"]), data["fault"])
            one = Judged(data["number"], outcome, data.get("spec", ""))
        except (ValueError, KeyError, TypeError) as error:
            if place == len(lines) and not text.endswith("\n"):
                continue  # a run was killed while it wrote: what is appended takes its place
            message = "this line is of no record of `python -m tools.fuzz`"
            raise GemmgenError([Diagnostic(record.as_posix(), "bad-record", message, line=place)]) from error
        if own:
            found[one.number] = one
    return found


RUN_FIELDS = tuple(field.name for field in fields(Run))


def _append(record: Path, line: str) -> None:
    """Append a line to a record, in the place of one that a killed run has left in the middle.

    Raises:
        GemmgenError: It cannot be written (``cannot-write``).
    """
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()
        with record.open("r+b") as file:
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
            file.seek(whole)
            file.write(f"{line}\n".encode())
    except OSError as error:
        message = f"cannot write: {error.strerror or error}"
        raise GemmgenError([Diagnostic(record.as_posix(), "cannot-write", message)]) from error


@dataclass(frozen=True)
class Report:
    """What a run has found so far."""

    run: Run
    judged: tuple[Judged, ...]

    @property
    def findings(self) -> tuple[Judged, ...]:
        """The specs of which the rules say something else than the compiler and the simulator, by number."""
        found = (one for one in self.judged if one.outcome.finding)
        return tuple(sorted(found, key=lambda one: one.number))

    @property
    def counts(self) -> dict[str, int]:
        """How many specs came how far: accepted and refused ones by stage."""
        ends = Counter(f"{one.outcome.verdict}: {_end(one.outcome)}" for one in self.judged)
        return dict(sorted(ends.items()))

    @property
    def unseen(self) -> dict[str, int]:
        """How many clean specs each rule refused, for a reason that nothing here can see."""
        outcomes = [one.outcome for one in self.judged]
        fine = [
            each for each in outcomes if each.verdict == "refused" and not each.fault and not each.finding
        ]
        return dict(sorted(Counter(rule for each in fine for rule in each.rules).items()))

    def lines(self) -> Iterator[str]:
        """Yield it for people: counts, and then each finding with its spec."""
        specs = counted(len(self.judged), f"{self.run.kind} spec".lstrip())
        yield f"{specs} of seed {self.run.seed} for {self.run.target}"
        yield from (f"  {count:>6}  {end}" for end, count in self.counts.items())
        yield from (f"  {count:>6}  refused by {rule}: {UNSEEN[rule]}" for rule, count in self.unseen.items())
        for one in self.findings:
            yield ""
            yield f"finding in spec {one.number}: {one.outcome.finding}"
            if one.outcome.fault:
                yield f"  {one.outcome.fault}"
            yield from (f"    {line}" for line in one.text.splitlines())
        yield f"{counted(len(self.findings), 'finding')}"

    def as_dict(self) -> dict[str, object]:
        """Return values that JSON can hold."""
        return {
            **asdict(self.run),
            "specs": len(self.judged),
            "counts": self.counts,
            "unseen": self.unseen,
            "findings": [
                {
                    "number": one.number,
                    "finding": one.outcome.finding,
                    **asdict(one.outcome),
                    "spec": one.text,
                }
                for one in self.findings
            ],
        }


def _end(found: Outcome) -> str:
    """Return in words how far a spec came."""
    if found.rules == (COMPILER_RULE,) and found.fault:
        return "refused by the compiler"
    if found.fault:
        return f"{'not ' if found.verdict == 'accepted' else 'without its rules not '}{WRONG[found.stage]}"
    if found.finding or found.verdict == "accepted":
        return WRONG[found.stage]
    return f"{WRONG[found.stage]} without its rules, which have another reason"
