"""Other people's kernels under their own tests, for the comparison with ConSan.

benchmarks/studies/foreign_kernels.md names the authors.

On the GPU too they find few SMs, so that a persistent program computes several tiles. Nothing of the files is
kept: what a message names is told by file and line.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import foreign
import torch
from mutants import tutorials
from mutants.mutant import SCHEDULES

from consan.case import CLEAN, REFUSED, SKIPPED, Device, Simulated
from gemmgen.hardware import HOPPER
from gemmgen.triton_api import replaced
from gluonsim.policies import DEFAULT_SCHEDULES

FOREIGN, FOREIGN_FAULTS = "other people's kernels", "faults in other people's kernels"
FILES = ("01-intro", "02-layouts", "04-tma", "05-wgmma", "07-persistence", "08-warp-specialization")


@dataclass(frozen=True)
class ForeignCase:
    """A case of a file's tests, as it is or with a fault in the file."""

    name: str
    group: str
    subject: str
    """The file's stem."""
    called: str
    """The case as `foreign` names it."""
    mutant: tutorials.TutorialMutant | None = None

    shape: tuple[int, ...] = ()
    stages: tuple[str, ...] = ("consan", "bare")
    weight: int = 1

    @property
    def planted(self) -> frozenset[str]:
        """What the fault is told by."""
        return self.mutant.symptom.titles if self.mutant else frozenset()

    def simulate(self, folder: Path) -> Simulated:
        """Return what the simulator says under its six schedules, or those that show the fault."""
        schedules = SCHEDULES if self.mutant else DEFAULT_SCHEDULES
        with foreign.imported(self._file(folder), HOPPER) as module:
            result = foreign.outcome(self._case(module), schedules, limit_s=600)
        if result.status == "refused" and "exceeds the source view" in result.text:
            return Simulated(fault=False, findings=(REFUSED,))
        if result.status == "skipped":
            return Simulated(fault=False, findings=(SKIPPED,))
        if result.status not in ("clean", "findings", "wrong"):
            raise ValueError(f"{self.name}: {result.status}: {result.text}")
        told = Simulated.of(result.findings, self.planted)
        return told if told.findings or result.status == "clean" else Simulated(True, ("wrong numbers",))

    def observe(self, stage: str, folder: Path, device: Device) -> str | Mapping[str, Any]:
        """Call the test."""
        with foreign.imported(self._file(folder), HOPPER) as module:
            case = self._case(module)
            with device.used(), few_sms():
                case.function(**case.parameters)
                torch.cuda.synchronize()
        device.alive()
        return CLEAN

    def source(self, file: str, line: int, folder: Path) -> str:
        """Return file and line."""
        return f"{Path(file).name}, line {line}"

    def _file(self, folder: Path) -> Path:
        """Return the file, a copy with the fault in a folder if there is one."""
        where = foreign.folder()
        assert where
        name = f"{self.subject}.py"
        if self.mutant is None:
            return where / name
        for path in where.glob("*.py"):
            shutil.copyfile(path, folder / path.name)
        text = (where / name).read_text(encoding="utf-8")
        (folder / name).write_text(self.mutant.made_in(text), encoding="utf-8")
        return folder / name

    def _case(self, module: Any) -> foreign.Case:
        return next(case for case in foreign.cases(module, HOPPER) if str(case) == self.called)


def few_sms() -> Any:
    """Let programs find as few SMs on this GPU as in the simulator."""
    answer = cast(Any, torch.cuda).get_device_properties

    class Few:
        def __init__(self, properties: Any) -> None:
            self._properties = properties
            self.multi_processor_count = foreign.SMS

        def __getattr__(self, name: str) -> Any:
            return getattr(self._properties, name)

    def few(*args: Any) -> Few:
        return Few(answer(*args))

    return replaced([(torch.cuda, "get_device_properties", few)])


def foreign_cases(per_test: int) -> dict[str, ForeignCase]:
    """Return some cases of each test, and the faults; none where the files are not."""
    where = foreign.folder()
    if where is None:
        return {}
    found: list[ForeignCase] = []
    faults: list[ForeignCase] = []
    for stem in FILES:
        with foreign.imported(where / f"{stem}.py", HOPPER) as module:
            names = [str(case) for case in foreign.cases(module, HOPPER, per_test)]
            every = [(case, str(case)) for case in foreign.cases(module, HOPPER)]
        found += [ForeignCase(name, FOREIGN, stem, name) for name in names]
        for name, mutant in tutorials.MUTANTS.items():
            if (mutant.file, mutant.target) == (f"{stem}.py", HOPPER):
                called = next(
                    text for case, text in every
                    if case.function.__name__ == mutant.test and mutant.case in text
                )  # fmt: skip
                faults.append(ForeignCase(name, FOREIGN_FAULTS, stem, called, mutant))
    return {case.name: case for case in (*found, *faults)}
