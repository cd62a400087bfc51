"""What the simulator, and Triton's sanitizers on a GPU, say of the same kernels: recorded.

``python -m consan.agreement FILE…``, run in tests/, simulates what `consan.device` has observed, and writes
the record; what a later file has of a case replaces what an earlier one had. With ``--extend`` first, what
they have replaces that of the committed record, which keeps all other cases. A record is of one machine:
with ``--h100`` it is that of an H100. `consan.document` writes benchmarks/studies/agreement.md from both.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from consan.atomics import ATOMIC_CASES, PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY
from consan.case import CLEAN, NO_VERDICT, REFUSED, SKIPPED, Case, Simulated
from consan.foreign_files import foreign_cases
from consan.generated import MODULE_CASES

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "records" / "consan.json"
H100_RECORD = RECORD.with_stem("consan_h100")
"""Cases that are in no record of an H200."""
RECORDED = MODULE_CASES | ATOMIC_CASES
"""All cases but those of other people's kernels."""
EVERY_FOREIGN = 1 << 30
NO_FAULT = (CLEAN, REFUSED, SKIPPED)
SIMULATOR, CONSAN, GSAN, H200 = "simulator", "ConSan", "GSan", "H200"


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
        """Whether ConSan's stage gave a verdict."""
        return not self.consan.startswith(NO_VERDICT)

    @property
    def kind(self) -> str:
        """The kind of the first finding; empty where there is none."""
        return (
            self.findings[0].partition(" ")[0] if self.findings and self.findings[0] not in NO_FAULT else ""
        )

    @property
    def in_global_memory(self) -> bool:
        """Whether it is about what ConSan does not follow."""
        return self.group in (PROGRAMS_THAT_WAIT, PROGRAMS_THAT_WAIT_WRONGLY)

    @property
    def by_consan(self) -> bool:
        """Whether ConSan has a message."""
        return bool(self.source)

    @property
    def by_gsan(self) -> bool:
        """Whether GSan has a message."""
        return bool(self.gsan_source)

    @property
    def by_itself(self) -> bool:
        """Whether a run shows a fault without a message: wrong numbers, a hang, an end."""
        runs = ((self.consan, self.source), (self.gsan, self.gsan_source), (self.bare, ""))
        return any(_shows(outcome) and not source for outcome, source in runs)

    @property
    def shown(self) -> bool:
        """Whether any run on the GPU shows a fault."""
        return self.by_consan or self.by_gsan or self.by_itself

    @property
    def silent(self) -> tuple[str, ...]:
        """Who says nothing of a fault that it looks for: one that the simulator finds, or that a run "
        "shows."""
        if not self.fault:
            return (SIMULATOR,) if self.shown else ()
        consan = self.consan == CLEAN and not self.in_global_memory
        who = ((CONSAN, consan), (GSAN, self.gsan == CLEAN), (H200, self.bare == CLEAN))
        return tuple(name for name, silent in who if silent)

    @property
    def agrees(self) -> bool:
        """Whether the simulator finds a fault and the GPU shows one, or neither does; or there is no "
        "verdict."""
        return not self.measured or self.fault == self.shown


def _shows(outcome: str) -> bool:
    return bool(outcome) and outcome not in NO_FAULT and not outcome.startswith(NO_VERDICT)


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
    if unknown := found.keys() - cases.keys():  # those of other people's kernels, without their folder
        raise ValueError(f"no cases: {', '.join(sorted(unknown))}")
    chosen = [case for name, case in cases.items() if name in found]
    # A forked process would wait for threads of torch that it does not have.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        said = list(pool.map(simulated, chosen))
    entries = tuple(entry(case, one, found[case.name]) for case, one in zip(chosen, said, strict=True))
    return Record(**observed["machine"], entries=entries, numbers=numbers_of(found))


def numbers_of(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[Numbers, ...]:
    """Return the numbers among what was observed."""
    stages = ((name, found.get(name, {}).get("numbers", {}).get("numbers")) for name in MODULE_CASES)
    return tuple(Numbers(name, **_tuples(values)) for name, values in stages if values)


def extended(old: Record, new: Record) -> Record:
    """Return a record with what a newer one has of its cases, in the order of all cases."""
    machines = [(one.gpu, one.driver, one.torch, one.triton) for one in (old, new)]
    if machines[0] != machines[1]:
        raise ValueError(f"not of one machine: {machines}")
    entries = {entry.name: entry for entry in (*old.entries, *new.entries)}
    numbers = {row.module: row for row in (*old.numbers, *new.numbers)}
    order = [name for name in (*RECORDED, *entries) if name in entries]
    return replace(
        new,
        entries=tuple(entries[name] for name in dict.fromkeys(order)),
        numbers=tuple(numbers[name] for name in dict.fromkeys(order) if name in numbers),
    )


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


def main(*files: str, extend: bool = False, path: Path | None = None) -> None:
    path = path or RECORD
    found: dict[str, Any] = {}
    machines: list[Any] = []
    for file in files:
        observed = json.loads(Path(file).read_text(encoding="utf-8"))
        machines.append(observed["machine"])
        found |= observed["found"]
    if any(machine != machines[0] for machine in machines):
        raise ValueError(f"not of one machine: {machines}")
    made = record({"machine": machines[0], "found": found})
    path.write_text(written(extended(read(path), made) if extend else made), encoding="utf-8")


if __name__ == "__main__":
    main(
        *(file for file in sys.argv[1:] if not file.startswith("--")),
        extend="--extend" in sys.argv,
        path=H100_RECORD if "--h100" in sys.argv else None,
    )
