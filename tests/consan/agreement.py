"""What the simulator and ConSan on a GPU say of the same kernels: measured, recorded, tabulated.

``python -m consan.agreement record FILE``, run in tests/, measures all cases on a Hopper GPU and writes the
record; ``python -m consan.agreement document`` writes docs/agreement.md from the committed one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from consan.case import CASES, LAUNCHES, UNMUTATED
from gemmgen.numerics.reference import tolerance

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "records" / "consan.json"
DOCUMENT = ROOT / "docs" / "agreement.md"
TIMEOUT_SECONDS = 600
AT_A_TIME = 6
ASSERTION = re.compile(r":(\d+): .*Assertion `(.+?)` failed")
CLEAN = "clean"

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
    """One case: what the simulator says, what ConSan does, and what the kernel does without it."""

    name: str
    module: str
    shape: tuple[int, ...]
    fault: bool
    """Whether the simulator finds an error; a lint is none."""
    findings: tuple[str, ...]
    """Kinds and names of its findings, the planted fault's first."""
    consan: str
    """``clean``; ConSan's message; or what else went wrong."""
    source: str
    """The line that ConSan's message names."""
    bare: str
    """As `consan`, without it; empty where ConSan had shown a fault, and it was not tried."""

    @property
    def agrees(self) -> bool:
        """Whether both or neither find a fault."""
        return self.fault == (self.consan != CLEAN)


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


def observe(name: str, folder: Path) -> Entry:
    """Simulate and launch one case; it is killed when it takes too long."""
    case, path = CASES[name], folder / f"{CASES[name].stem}.py"
    path.write_text(case.source, encoding="utf-8")
    stages, errors, killed = _run("verdict", name, path, TRITON_INSTRUMENTATION_MODE="consan")
    if "simulator" not in stages:
        raise RuntimeError(f"{name}: {errors}")
    simulator = stages["simulator"]
    told = ASSERTION.search(errors)
    consan = told[2] if told else _outcome(stages.get("consan"), killed)
    return Entry(
        name,
        case.stem,
        tuple(simulator["shape"]),
        simulator["fault"],
        tuple(simulator["findings"]),
        consan,
        path.read_text(encoding="utf-8").splitlines()[int(told[1]) - 1].strip() if told else "",
        _outcome(stages.get("bare"), killed) if consan == CLEAN else "",
    )


def observe_numbers(name: str, folder: Path) -> Numbers:
    """Compare the simulator's numbers with the GPU's."""
    path = folder / f"{CASES[name].stem}.py"
    path.write_text(CASES[name].source, encoding="utf-8")
    stages, errors, _ = _run("numbers", name, path)
    if "numbers" not in stages:
        raise RuntimeError(f"{name}: {errors}")
    found = stages["numbers"]
    return Numbers(
        name,
        tuple(found["shape"]),
        found["elements"],
        found["different_bits"],
        found["relative"],
        found["worst_element"],
    )


def _run(what: str, name: str, path: Path, **environment: str) -> tuple[dict[str, Any], str, bool]:
    """Return the stages that a case's process reported, its errors, and whether it was killed."""
    command = [sys.executable, "-m", "consan.case", what, name, str(path)]
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INSTRUMENTATION_MODE"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT / "tests", env={**variables, **environment}, stdout=output, stderr=errors
        )
        killed = False
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed = True
        output.seek(0)
        errors.seek(0)
        lines = [json.loads(line) for line in output.read().splitlines() if line.startswith("{")]
        return {line["stage"]: line for line in lines}, errors.read(), killed


def _outcome(stage: dict[str, Any] | None, killed: bool) -> str:
    if stage is None:
        return "hang" if killed else "crash"
    if "raised" not in stage:
        return f"{stage['wrong']} wrong elements" if stage["wrong"] else CLEAN
    raised, text = stage["raised"], stage["text"]
    if raised != "OutOfResources" and ("CUDA" not in text or raised == "OutOfMemoryError"):
        raise RuntimeError(f"no verdict on the kernel: {raised}: {text}")
    return f"{raised}: {text}"


def measure() -> Record:
    """Run every case on this machine's GPU, a few at a time."""
    import torch
    import triton  # pyright: ignore[reportMissingTypeStubs]

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    gpu, driver = asked.split(", ")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_A_TIME) as pool:

        def own(name: str) -> Path:
            path = Path(folder) / name
            path.mkdir(exist_ok=True)
            return path

        def seen(name: str) -> Entry:
            return observe(name, own(name))

        def compared(name: str) -> Numbers:
            return observe_numbers(name, own(name))

        entries = tuple(pool.map(seen, CASES))
        numbers = tuple(pool.map(compared, UNMUTATED))
    return Record(
        gpu=gpu,
        driver=driver,
        torch=cast(str, cast(Any, torch).__version__),
        triton=cast(str, cast(Any, triton).__version__),
        entries=entries,
        numbers=numbers,
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


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(cast(Any, value)) if isinstance(value, list) else value for key, value in fields.items()
    }


def document(record: Record) -> str:
    """Return docs/agreement.md."""
    mutants = [entry for entry in record.entries if entry.name not in UNMUTATED]
    agreed = sum(entry.agrees for entry in mutants)
    clean = sum(entry.agrees for entry in record.entries) - agreed
    modules = len(record.entries) - len(mutants)
    versions = f"driver {record.driver}, torch {record.torch}, Triton {record.triton}"
    return f"""<!-- Written by tests/consan/agreement.py from tests/records/consan.json. -->
# Simulator and hardware

Each case ran in the simulator and, {LAUNCHES} times, under Triton's concurrency sanitizer (ConSan) on one
{record.gpu} ({versions}).
The modules were those before their device code was rewritten: lines and names that are quoted are theirs.
Both had the same small integers and, on ragged tiles, few programs: a persistent kernel one, with four tiles
and more than two laps of the ring; a tiled one, one for each tile; that of a single tile one. A
case that showed nothing under ConSan ran {LAUNCHES} times without it as well. Each had a process of its own,
which was given at most {TIMEOUT_SECONDS} s.

The verdicts, fault or none, agree for {clean} of {modules} modules as generated and for {agreed} of \
{len(mutants)} faulty ones.{_missing(record)}

{_verdicts(record)}

Wrong elements and refused launches are the kernel's own, not messages of ConSan. Which message ConSan gives
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


def _missing(record: Record) -> str:
    """Name the cases that are newer than the record."""
    measured = {entry.name for entry in record.entries}
    missing = [f"`{name}`" for name in CASES if name not in measured]
    return f"\nNot measured yet: {', '.join(missing)}." if missing else ""


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
            f"{tolerance(CASES[row.module].product.source.spec, row.shape).relative:.1e}",
            f"{row.worst_element:.1e}",
        )
        for row in record.numbers
    )
    return _table(head, "|---|---|--:|--:|--:|--:|--:|", rows)


def _verdicts(record: Record) -> str:
    head = "| case | module | simulator | ConSan | at | without ConSan | agree |"
    return _table(head, "|---|---|---|---|---|---|---|", map(_verdict, record.entries))


def _verdict(entry: Entry) -> tuple[str, ...]:
    name = "as generated" if entry.name in UNMUTATED else entry.name
    simulator = f"{'' if entry.fault else 'lint: '}{entry.findings[0]}" if entry.findings else CLEAN
    source = f"`{entry.source}`" if entry.source else ""
    return (
        name,
        entry.module,
        simulator,
        entry.consan,
        source,
        entry.bare,
        "yes" if entry.agrees else "**no**",
    )


def main(what: str, *files: str) -> None:
    if what == "record":
        Path(files[0]).write_text(written(measure()), encoding="utf-8")
    else:
        DOCUMENT.write_text(document(read()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
