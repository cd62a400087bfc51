"""What the simulator, and Triton's sanitizers on a GPU, say of the same kernels: recorded, tabulated.

``python -m consan.agreement record FILE``, run in tests/, simulates what `consan.device` has observed, and
writes the record; ``python -m consan.agreement document`` writes docs/agreement.md from the committed one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from consan.atomics import (
    ATOMIC_CASES,
    BARE_LAUNCHES,
    PROGRAMS_THAT_WAIT,
    PROGRAMS_THAT_WAIT_WRONGLY,
    SANITIZED_LAUNCHES,
)
from consan.case import CLEAN, NO_VERDICT, REFUSED, SKIPPED, Case, Simulated
from consan.foreign_files import FOREIGN, FOREIGN_FAULTS, foreign_cases
from consan.generated import AS_GENERATED, KINDS, LAUNCHES, MODULE_CASES, RINGS, STRUCTURES
from gemmgen.numerics.reference import tolerance

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "records" / "consan.json"
DOCUMENT = ROOT / "docs" / "agreement.md"
RECORDED = MODULE_CASES | ATOMIC_CASES
"""All cases but those of other people's kernels."""
EVERY_FOREIGN = 1 << 30
NO_FAULT = (CLEAN, REFUSED, SKIPPED)

# --- why the two do not agree

NO_WORK_AT_EXIT = (
    "ConSan does not look for stores in flight when a kernel ends. They read shared memory that the SM may "
    "already have given to another program; here there is none, and the numbers are right."
)
DIFFERENCES = {
    "arrive_before_the_mma_retired": (
        "a fault that ConSan misses. It looks for MMAs that are in flight when the load is issued, and its "
        "own work between release and load lets the consumer reach its wait first; then it reports nothing. "
        "The simulator asks whether anything orders the two. Without ConSan the H200's numbers are wrong; "
        "with time between release and wait (`arrive_before_the_mma_retired_late`) ConSan sees the fault too."
    ),
    "mma_wait_leaves_one_in_flight": (
        "ConSan does not follow registers, where the accumulator is. The stage that is released too early is "
        "missed as above, and seen with more time (`mma_wait_leaves_one_in_flight_late`). ptxas repairs the "
        "kernel, serializing the MMAs and injecting waits (its notes C7514 and C7517): the numbers are right."
    ),
    "no_final_store_wait": NO_WORK_AT_EXIT,
    "no_final_store_wait_in_the_cluster": NO_WORK_AT_EXIT,
}
"""Cases in which the two do not agree on whether there is a fault, and why."""
BY_DESIGN = {
    "no_fence_in_the_partition": (
        "differs by design: a lint, since Triton 3.9 inserts the missing fence of a partition's own store. "
        "The kernel that it compiles has no fault, and ConSan shows none."
    ),
    "unpayable_registers": (
        "a lint, since Triton 3.9 drops a request that is too large and emits no `setmaxnreg`, as it never "
        "does under ConSan: every thread has the registers that ptxas chooses, and the numbers are right."
    ),
}
"""Cases in which the simulator tells more than a verdict, and why."""


@dataclass(frozen=True)
class Entry:
    """One case: what the simulator says, what the sanitizers do, and what the kernel does without them."""

    name: str
    group: str
    subject: str
    """The module, kernel or file."""
    shape: tuple[int, ...]
    fault: bool
    """Whether the simulator finds an error; a lint is none."""
    findings: tuple[str, ...]
    """Kinds and names of its findings, the planted fault's first."""
    consan: str
    """``clean``; ConSan's message; what else went wrong; or that there is no verdict, and why."""
    source: str
    """What ConSan's message names."""
    bare: str
    """As `consan`, without it; empty where ConSan had shown a fault, and it was not tried."""
    gsan: str = ""
    """As `consan`, under the sanitizer of global memory; empty where it was not tried."""
    gsan_source: str = ""

    @property
    def measured(self) -> bool:
        """Whether ConSan gave a verdict."""
        return not self.consan.startswith(NO_VERDICT)

    @property
    def agrees(self) -> bool:
        """Whether the simulator and ConSan both find a fault, or neither does, or ConSan gave no verdict."""
        return not self.measured or self.fault == (self.consan not in NO_FAULT)

    @property
    def shown(self) -> bool:
        """Whether any run on the GPU shows a fault."""
        runs = (self.consan, self.bare, self.gsan)
        return any(run and run not in NO_FAULT and not run.startswith(NO_VERDICT) for run in runs)


@dataclass(frozen=True)
class Numbers:
    """The simulator's D against the GPU's."""

    module: str
    shape: tuple[int, int, int]
    elements: int
    different_bits: int
    """Elements that differ in any bit, on small integers."""
    relative: float
    """||gpu - simulated|| / ||simulated|| on N(0, 1)."""
    worst_element: float
    """Largest |gpu - simulated| over the root mean square, on N(0, 1)."""


@dataclass(frozen=True)
class Record:
    """All that was measured, and on what."""

    gpu: str
    driver: str
    torch: str
    triton: str
    entries: tuple[Entry, ...]
    numbers: tuple[Numbers, ...]


def simulated(case: Case) -> Simulated:
    """Return what the simulator says of a case."""
    with tempfile.TemporaryDirectory() as folder:
        return case.simulate(Path(folder))


def entry(case: Case, said: Simulated, observed: Mapping[str, Mapping[str, Any]]) -> Entry:
    """Put together what the simulator said and what the stages on the GPU showed."""

    def told(stage: str) -> str:
        if stage in observed:
            return cast(str, observed[stage]["outcome"])
        waits = stage == "bare" and "consan" in observed and observed["consan"]["outcome"] != CLEAN
        return "" if stage not in case.stages or waits else f"{NO_VERDICT}: out of time"

    return Entry(
        case.name,
        case.group,
        case.subject,
        tuple(case.shape),
        said.fault,
        said.findings,
        told("consan"),
        observed.get("consan", {}).get("source", ""),
        told("bare"),
        told("gsan"),
        observed.get("gsan", {}).get("source", ""),
    )


def record(observed: Mapping[str, Any], processes: int = 2) -> Record:
    """Return the record of what `consan.device` has written; the simulator's part is made now."""
    found: dict[str, dict[str, dict[str, Any]]] = observed["found"]
    cases: dict[str, Case] = {**RECORDED, **foreign_cases(EVERY_FOREIGN)}
    chosen = [case for name, case in cases.items() if name in found]
    with ProcessPoolExecutor(processes) as pool:
        said = list(pool.map(simulated, chosen))
    entries = tuple(entry(case, one, found[case.name]) for case, one in zip(chosen, said, strict=True))
    return Record(**observed["machine"], entries=entries, numbers=numbers_of(found))


def numbers_of(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[Numbers, ...]:
    """Return the numbers among what was observed."""
    stages = ((name, found.get(name, {}).get("numbers", {}).get("numbers")) for name in MODULE_CASES)
    return tuple(Numbers(name, **_tuples(values)) for name, values in stages if values)


def written(record: Record) -> str:
    """Return a record as the text of its file."""
    return json.dumps(asdict(record), indent=1) + "\n"


def read(path: Path = RECORD) -> Record:
    """Return the record in a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    entries = tuple(Entry(**_tuples(entry)) for entry in found.pop("entries"))
    numbers = tuple(Numbers(**_tuples(row)) for row in found.pop("numbers"))
    return Record(**found, entries=entries, numbers=numbers)


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(cast(Any, value)) if isinstance(value, list) else value for key, value in fields.items()
    }


# --- the document

TABLES: Mapping[str, tuple[str, ...]] = {
    "Generated modules": (AS_GENERATED,),
    "Faults in generated modules": (RINGS, STRUCTURES, KINDS),
    "Programs that wait for each other": (PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY),
    "Other people's kernels": (FOREIGN, FOREIGN_FAULTS),
}
"""The groups of each section's table."""
OF_ATOMICS = (
    f"Without a sanitizer a kernel runs {BARE_LAUNCHES} times with the grid that is given, on poisoned\n"
    f"memory; with one {SANITIZED_LAUNCHES} times, as small as in the simulator. ConSan follows shared\n"
    "memory and mbarriers, and no order of global memory. Triton's sanitizer of global memory (GSan) does:\n"
    "its column stands beside it. That a weak atomic gives right numbers on a card is no contradiction: a\n"
    "card may order more than it promises."
)


def document(record: Record) -> str:
    """Return docs/agreement.md."""
    versions = f"driver {record.driver}, torch {record.torch}, Triton {record.triton}"
    sections = "\n\n".join(
        f"## {title}\n\n{_section(title, [entry for entry in record.entries if entry.group in groups])}"
        for title, groups in TABLES.items()
        if any(entry.group in groups for entry in record.entries)
    )
    return f"""<!-- Written by tests/consan/agreement.py from tests/records/consan.json. -->
# Simulator and hardware

Each case ran in the simulator and, {LAUNCHES} times, under Triton's concurrency sanitizer (ConSan) on one
{record.gpu} ({versions}).
The modules were those before their device code was rewritten: lines and names that are quoted are theirs.
Both had the same small integers and, on ragged tiles, few programs: a persistent kernel one, with four tiles
and more than two laps of the ring; a tiled one, one for each tile; that of a single tile one. A
case that showed nothing under ConSan ran {LAUNCHES} times without it as well. Each had a process of its own.

{_summary(record)}{_missing(record)}

{sections}

Wrong elements and refused launches are the kernel's own, not messages of a sanitizer. Which message one gives
first, and on which line, can change from run to run. The simulator's column has the planted fault; its other
findings on a case are in the record.

## Differences

{_reasons(DIFFERENCES | BY_DESIGN)}

## Numbers

D of the simulator against D of the GPU without ConSan. On integers from -3 to 3 every bit is compared; all
rows with other bits have GELU or SiLU, which the GPU approximates. On N(0, 1) it is the norm of the
difference over that of D, beside what `gemmgen test` grants the kernel against the exact product, and the
largest difference over the root mean square of D.

{_numbers(record)}
"""


def _summary(record: Record) -> str:
    """Say in how many cases of each group the verdicts agree, and who sees more in the others."""
    head = "| cases | with a verdict | simulator and ConSan agree | only the simulator sees the fault | \
only ConSan does |"
    rows: list[tuple[object, ...]] = []
    for group in dict.fromkeys(entry.group for entry in record.entries):
        measured = [entry for entry in record.entries if entry.group == group and entry.measured]
        differ = [entry for entry in measured if not entry.agrees]
        sharper = sum(entry.fault for entry in differ)
        rows.append((group, len(measured), len(measured) - len(differ), sharper, len(differ) - sharper))
    return _table(head, "|---|--:|--:|--:|--:|", rows)


def _missing(record: Record) -> str:
    """Name the cases that are newer than the record, and those that the GPU gave no verdict on."""
    recorded = {entry.name for entry in record.entries}
    without = {entry.name for entry in record.entries if not entry.measured}
    missing = [f"`{name}`" for name in RECORDED if name not in recorded or name in without]
    missing += [f"`{name}`" for name in sorted(without - RECORDED.keys())]
    return f"\n\nNot measured: {', '.join(missing)}." if missing else ""


def _table(head: str, align: str, rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([head, align, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def _reasons(reasons: Mapping[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    return "\n".join(f"* {', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _numbers(record: Record) -> str:
    head = "| module | M x N x K | elements | integers: other bits | N(0, 1): norm | granted | largest |"
    rows = (
        (
            row.module,
            " x ".join(map(str, row.shape)),
            f"{row.elements:,}",
            row.different_bits,
            f"{row.relative:.1e}",
            f"{tolerance(MODULE_CASES[row.module].spec, row.shape).relative:.1e}",
            f"{row.worst_element:.1e}",
        )
        for row in record.numbers
    )
    return _table(head, "|---|---|--:|--:|--:|--:|--:|", rows)


def _section(title: str, entries: Sequence[Entry]) -> str:
    measured = [entry for entry in entries if entry.measured]
    if PROGRAMS_THAT_WAIT in TABLES[title]:
        head = "| case | grid | simulator | ConSan | GSan | without either |"
        rows = [
            (
                entry.name,
                " x ".join(map(str, entry.shape)),
                _finding(entry),
                _told(entry.consan, entry.source),
                _told(entry.gsan, entry.gsan_source),
                entry.bare,
            )
            for entry in entries
        ]
        return f"{OF_ATOMICS}\n\n{_table(head, '|---|---|---|---|---|---|', rows)}"
    head = "| case | of | simulator | ConSan | at | without ConSan | agree |"
    return _table(head, "|---|---|---|---|---|---|---|", map(_verdict, measured))


def _verdict(entry: Entry) -> tuple[str, ...]:
    return (
        "as generated" if entry.group == AS_GENERATED else entry.name,
        entry.subject,
        _finding(entry),
        entry.consan,
        entry.source,
        entry.bare,
        "yes" if entry.agrees else "**no**",
    )


def _finding(entry: Entry) -> str:
    if not entry.findings or entry.findings[0] in NO_FAULT:
        return next(iter(entry.findings), CLEAN)
    return f"{'' if entry.fault else 'lint: '}{entry.findings[0]}"


def _told(outcome: str, source: str) -> str:
    return f"{outcome} at {source}" if source else outcome


def main(what: str, *files: str) -> None:
    if what == "record":
        observed = json.loads(Path(files[0]).read_text(encoding="utf-8"))
        RECORD.write_text(written(record(observed)), encoding="utf-8")
    else:
        DOCUMENT.write_text(document(read()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
