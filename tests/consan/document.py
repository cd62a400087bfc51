"""Write benchmarks/studies/agreement.md from the record: ``python -m consan.document``, run in tests/."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from consan.agreement import H100_RECORD, RECORDED, ROOT, Entry, Numbers, Record, read
from consan.atomics import BARE_LAUNCHES, PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY, SANITIZED_LAUNCHES
from consan.case import CLEAN, NO_VERDICT
from consan.foreign_files import FOREIGN, FOREIGN_FAULTS
from consan.generated import AS_GENERATED, KINDS, LAUNCHES, MODULE_CASES, RINGS, STRUCTURES
from consan.reasons import BY_DESIGN, DIFFERENCES, MESSAGES
from gemmgen.numerics.reference import tolerance
from gluonsim import Kind

DOCUMENT = ROOT / "benchmarks" / "studies" / "agreement.md"
CLASSES: Mapping[str, tuple[Kind, ...]] = {
    "accesses to shared memory that nothing orders": (
        Kind.UNINITIALISED_READ, Kind.READ_AFTER_WRITE, Kind.WRITE_AFTER_READ, Kind.WRITE_AFTER_WRITE,
    ),
    "barriers: counts, bytes, `init`, slots": (
        Kind.BYTE_COUNT, Kind.ARRIVAL_OVERFLOW, Kind.UNINITIALISED_BARRIER, Kind.DOUBLE_INIT,
        Kind.LIVE_BARRIER, Kind.UNDEFINED_VALUE,
    ),
    "deadlocks": (Kind.DEADLOCK,),
    "fences": (Kind.MISSING_FENCE,),
    "registers of an MMA in flight": (Kind.ACCUMULATOR_IN_FLIGHT,),
    "work in flight at an end": (Kind.WORK_IN_FLIGHT,),
    "accesses to global memory that nothing orders": (Kind.GLOBAL_RACE,),
    "atomics that are too weak": (Kind.WEAK_ATOMIC,),
    "capacity, alignment, numbers": (Kind.SMEM_CAPACITY, Kind.UNALIGNED_TRANSFER, Kind.WRONG_NUMBERS),
}  # fmt: skip
"""Rows of the table of who is the sharper one, by the kind of the planted fault's finding."""
FAULTS_OF_MODULES = (RINGS, STRUCTURES, KINDS)
OF_ATOMICS = (
    f"Without a sanitizer a kernel runs {BARE_LAUNCHES} times with the grid that is given, on poisoned\n"
    f"memory; with one {SANITIZED_LAUNCHES} times, as small as in the simulator. ConSan follows shared\n"
    "memory and mbarriers, and no order of global memory, so that its silence is none to explain. Triton's\n"
    "sanitizer of global memory (GSan) does. That a weak atomic gives right numbers on a card is no\n"
    "contradiction: a card may order more than it promises."
)


OF_TABLES = (
    "Cases with a star are explained below. What ConSan has told of did not run without it. Wrong elements\n"
    "and refused launches are the kernel's own, not messages of a sanitizer. Which message one gives first,\n"
    "and on which line, can change from run to run. The simulator's column has the planted fault; its other\n"
    "findings on a case are in the record."
)
OF_AGREEMENT = (
    "The H200 agrees that there is a fault if a sanitizer has a message, or numbers are wrong, or the\n"
    "kernel hangs, is ended or does not launch."
)


def document(record: Record, other: Record) -> str:
    """Return benchmarks/studies/agreement.md from the record of an H200, and that of another GPU."""
    sections = "\n\n".join(f"## {title}\n\n{text}" for title, text in _sections(record).items() if text)
    return f"""<!-- Written by tests/consan/document.py from tests/records/consan.json. -->
# Simulator and hardware

Kernels as they are and with planted faults ran in the simulator and on one {record.gpu}
(driver {record.driver}, torch {record.torch}, Triton {record.triton}): under Triton's concurrency sanitizer
(ConSan), what waits in global memory under its sanitizer of global memory (GSan) too, and without either. All
had the same inputs, and each case a process of its own.

A generated module ran {LAUNCHES} times under ConSan, on small integers and ragged tiles with few programs: a
persistent kernel with one, four tiles and more than two laps of the ring; a tiled one with one for each
tile. What ConSan had nothing to say of ran {LAUNCHES} times without it, and numbers were compared. Other
people's kernels ran their own tests once in each way, and found as few SMs as in the simulator.

{_summary(record)}{_of_other(other)}{_missing(record, other)}

{sections}
"""


def _sections(record: Record) -> dict[str, str]:
    def of(*groups: str) -> list[Entry]:
        return [entry for entry in record.entries if entry.group in groups]

    return {
        "Which is the sharper one": _sharper(record),
        "Generated modules": _modules(of(AS_GENERATED)),
        "Faults in generated modules": _faults(of(*FAULTS_OF_MODULES)),
        "Programs that wait for each other": _atomics(of(PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY)),
        "Other people's kernels": _foreign(of(FOREIGN)),
        "Faults in other people's kernels": _faults(of(FOREIGN_FAULTS)),
        "Differences": _differences(record),
        "Numbers": _numbers(record),
    }


def _summary(record: Record) -> str:
    """Say in how many cases of each group the simulator and the GPU agree, and who sees more in others."""
    head = "| cases | with a verdict | simulator and H200 agree | only the simulator sees a fault | \
only the H200 does |"
    rows: list[tuple[object, ...]] = []
    for group in dict.fromkeys(entry.group for entry in record.entries):
        every = [entry for entry in record.entries if entry.group == group]
        measured = [entry for entry in every if entry.measured]
        differ = [entry for entry in measured if not entry.agrees]
        more = sum(entry.fault for entry in differ)
        rows.append(
            (f"{len(every)} {group}", len(measured), len(measured) - len(differ), more, len(differ) - more)
        )
    return f"{_table(head, '|---|--:|--:|--:|--:|', rows)}\n\n{OF_AGREEMENT}"


def _of_other(record: Record) -> str:
    """Name the modules that ran on another GPU, and say on how many the simulator and ConSan agree."""
    agreed = sum(entry.measured and entry.agrees for entry in record.entries)
    names = ", ".join(f"`{entry.name}`" for entry in record.entries)
    count = len(record.entries)
    return (
        f"\n\nOn one {record.gpu} (driver {record.driver}), {count} further modules ran likewise.\n"
        f"The simulator and the GPU agree on {agreed}: {names}."
    )


def _missing(record: Record, other: Record) -> str:
    """Name the cases that are newer than both records, and those that the GPU gave no verdict on."""
    recorded = {entry.name for entry in (*record.entries, *other.entries)}
    reasons = {name: "newer than the measurement" for name in RECORDED if name not in recorded}
    for entry in record.entries:
        if not entry.measured:
            reasons[entry.name] = entry.consan.removeprefix(f"{NO_VERDICT}: ")
    if not reasons:
        return ""
    listed = [
        f"{reason}: {', '.join(f'`{name}`' for name in reasons if reasons[name] == reason)}"
        for reason in dict.fromkeys(reasons.values())
    ]
    return f"\n\nWithout a verdict are {len(reasons)}; {'; '.join(listed)}."


def _sharper(record: Record) -> str:
    """Say by classes of faults who told how many."""
    head = "| fault | cases | simulator | ConSan | GSan | H200 by itself |"
    faults = [entry for entry in record.entries if entry.measured and (entry.fault or entry.shown)]
    rows: list[tuple[object, ...]] = []
    for title, kinds in CLASSES.items():
        found = [entry for entry in faults if _class(entry) in kinds]
        gsan = [entry for entry in found if entry.gsan]
        itself = [entry for entry in found if entry.by_itself or entry.bare == CLEAN]
        rows.append((
            title, len(found), sum(entry.fault for entry in found), sum(entry.by_consan for entry in found),
            f"{sum(entry.by_gsan for entry in gsan)} of {len(gsan)}" if gsan else "",
            f"{sum(entry.by_itself for entry in itself)} of {len(itself)}" if itself else "",
        ))  # fmt: skip
    shared = [entry for entry in faults if not entry.in_global_memory]
    waiting = [entry for entry in faults if entry.in_global_memory]
    return f"""\
Faults by the kind of the simulator's finding, and how many of them each tells. A sanitizer tells if it
has a message; the H200 by itself if numbers are wrong, or a kernel hangs, is ended or does not launch. It is
asked where ConSan has no message.

{_table(head, "|---|--:|--:|--:|--:|--:|", rows)}

The cases favour the simulator: faults were planted that it must tell, and its own tests hold it to that.
They show what others miss. {_no_others(record)}

* The simulator is the sharper one for work in flight at an end, for registers, and for what is right by
  chance: it asks what orders two accesses, whatever happens first in one run. It tells the cause where
  others tell what comes of it: a wrong count of bytes is a deadlock or a race to ConSan.
* ConSan is as sharp for barriers, deadlocks and fences within a program, and for shared memory but for
  stages that are released while an MMA still reads them. It runs what was compiled, on the GPU, and needs
  no model of an instruction. It has a message for {_of(shared, "by_consan")} faults outside of global memory.
* GSan is as sharp for races in global memory, and has no message for deadlocks, proxies, and TMA stores
  that nobody awaits: it has one for {_of(waiting, "by_gsan")} faults there.
* The H200 by itself is sharp where the simulator's model ends: it alone told of a coordinate that is not
  aligned (`vectors_of_unaligned_rows`). That was a miss of the simulator, which has the rule now."""


def _class(entry: Entry) -> str:
    """Return the kind that it stands for in the table: of kernels as they are, what others follow from."""
    ends = any(finding.startswith(Kind.WORK_IN_FLIGHT) for finding in entry.findings)
    return Kind.WORK_IN_FLIGHT if entry.group == FOREIGN and ends else entry.kind


def _of(entries: Sequence[Entry], told: str) -> str:
    return f"{sum(getattr(entry, told) for entry in entries)} of {len(entries)}"


def _no_others(record: Record) -> str:
    right = [entry for entry in record.entries if entry.measured and not entry.fault]
    shown = [f"`{entry.name}`" for entry in right if entry.shown]
    many = f"Where the simulator is silent, {len(right)} cases,"
    return f"{many} somebody tells of {', '.join(shown)}." if shown else f"{many} nobody tells of anything."


def _modules(entries: Sequence[Entry]) -> str:
    clean = [entry for entry in entries if (entry.fault, entry.consan, entry.bare) == (False, CLEAN, CLEAN)]
    rest = [entry for entry in entries if entry not in clean]
    which = (
        f"{len(clean)} of {len(entries)} modules"
        if rest
        else f"All {len(clean)} Hopper modules, of generated/ and tests/pairs/,"
    )
    said = f"{which} are clean in the simulator, under ConSan and without it."
    return "\n\n".join([said, *([_faults(rest)] if rest else [])])


def _faults(entries: Sequence[Entry]) -> str:
    """Return the table of faults; what Differences explains is marked."""
    head = "| case | of | simulator | ConSan | without ConSan |"
    rows = [
        (
            f"{entry.name}{' *' if entry.silent else ''}",
            entry.subject,
            _finding(entry),
            _told(entry.consan, entry.source),
            entry.bare,
        )
        for entry in entries
        if entry.measured
    ]
    return f"{_table(head, '|---|---|---|---|---|', rows)}\n\n{OF_TABLES}" if rows else ""


def _atomics(entries: Sequence[Entry]) -> str:
    head = "| case | grid | simulator | ConSan | GSan | without either |"
    clean = [entry for entry in entries if not entry.findings and not entry.shown]
    rows = [
        (
            f"{entry.name}{' *' if entry.silent else ''}",
            " x ".join(map(str, entry.shape)),
            _finding(entry),
            _told(entry.consan, entry.source),
            _told(entry.gsan, entry.gsan_source),
            entry.bare,
        )
        for entry in entries
        if entry not in clean
    ]
    if not entries:
        return ""
    said = f"{len(clean)} are clean everywhere: {', '.join(f'`{entry.subject}`' for entry in clean)}."
    return f"{OF_ATOMICS}\n\n{said}\n\n{_table(head, '|---|---|---|---|---|---|', rows)}"


def _foreign(entries: Sequence[Entry]) -> str:
    """Return a row for each test and what came of it."""
    head = "| test | cases | simulator | ConSan | without ConSan |"
    counts = Counter(
        (
            entry.name.partition("[")[0].replace("::", ", "),
            ", ".join(sorted({finding.partition(" ")[0] for finding in entry.findings}))
            if entry.fault
            else _finding(entry),
            entry.consan,
            entry.bare,
        )
        for entry in entries
        if entry.measured
    )
    rows = [(test, count, *rest) for (test, *rest), count in sorted(counts.items())]
    return _table(head, "|---|--:|---|---|---|", rows) if rows else ""


def _differences(record: Record) -> str:
    """Explain who is silent, lints, and outcomes that are no plain verdict."""
    silent = [entry for entry in record.entries if entry.measured and entry.silent]
    lints = [entry for entry in record.entries if entry.measured and entry.kind and not entry.fault]
    shown = {outcome for entry in record.entries for outcome in (entry.consan, entry.gsan, entry.bare)}
    messages = [f"* {outcome}: {text}" for outcome, text in MESSAGES.items() if outcome in shown]
    parts = {
        "Who is silent of a fault, and why:": _reasons(DIFFERENCES, silent),
        "Lints, which are no faults on this GPU:": _reasons(BY_DESIGN, lints),
        "Outcomes that are no plain verdict:": "\n".join(messages),
    }
    return "\n\n".join(f"{title}\n\n{text}" for title, text in parts.items() if text)


def _reasons(reasons: Mapping[str, str], entries: Sequence[Entry]) -> str:
    by_reason: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for entry in entries:
        why = next(
            (text for name, text in reasons.items() if fnmatchcase(entry.name, name)), "**unexplained**."
        )
        by_reason.setdefault((entry.silent, why), []).append(entry.name)
    return "\n".join(
        f"* {', '.join(map(_name, _grouped(names)))}{f' ({_and(who)})' if who else ''}: {why}"
        for (who, why), names in by_reason.items()
    )


def _grouped(names: Sequence[str]) -> list[str]:
    """Return names, several cases of one test as that test."""
    tests = Counter(name.partition("[")[0] for name in names)
    return [test if tests[test] == 1 else f"{test}, {tests[test]} cases" for test in tests]


def _name(name: str) -> str:
    name, comma, rest = name.partition(",") if "::" in name else (name, "", "")
    return f"`{name}`{comma}{rest}"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _table(head: str, align: str, rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([head, align, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def _numbers(record: Record) -> str:
    """Return the numbers, a row for each pair of types; in full they are in the record."""
    if not record.numbers:
        return ""
    head = "| A, B | D | modules | elements | integers: other bits | N(0, 1): norm | granted | largest |"
    by_types: dict[tuple[str, str], list[Numbers]] = {}
    for row in record.numbers:
        of = MODULE_CASES[row.module].spec.spec.operands
        by_types.setdefault((" and ".join(dict.fromkeys((of.a.dtype, of.b.dtype))), of.d.dtype), []).append(
            row
        )
    rows = [(*types, *_worst(found)) for types, found in sorted(by_types.items())]
    other = [
        f"`{row.module}` ({row.different_bits:,} of {row.elements:,})"
        for row in record.numbers
        if row.different_bits
    ]
    return f"""\
D of the simulator against D of the GPU without ConSan, of {len(record.numbers)} modules. On integers from
-3 to 3 every bit is compared. On N(0, 1) it is the norm of the difference over that of D, beside what
`gemmgen test` grants the kernel against the exact product, of the module that comes nearest to it; and the
largest difference over the root mean square of D. Module by module they are in the record.

{_table(head, "|---|---|--:|--:|--:|--:|--:|--:|", rows)}

Other bits have {len(other)} modules, each with an activation that the GPU approximates:
{", ".join(other)}."""


def _worst(found: Sequence[Numbers]) -> tuple[object, ...]:
    def granted(row: Numbers) -> float:
        spec = MODULE_CASES[row.module].spec
        return tolerance(spec.problem, row.shape, spec.promote_k).relative

    worst = max(found, key=lambda row: row.relative / granted(row) if granted(row) else row.relative)
    return (
        len(found),
        f"{sum(row.elements for row in found):,}",
        f"{sum(row.different_bits for row in found):,}",
        f"{worst.relative:.1e}",
        f"{granted(worst):.1e}",
        f"{max(row.worst_element for row in found):.1e}",
    )


def _finding(entry: Entry) -> str:
    if not entry.kind:
        return next(iter(entry.findings), CLEAN)
    return f"{'' if entry.fault else 'lint: '}{entry.findings[0]}"


def _told(outcome: str, source: str) -> str:
    return f"{outcome} at {source}" if source else outcome


if __name__ == "__main__":
    DOCUMENT.write_text(document(read(), read(H100_RECORD)), encoding="utf-8")
