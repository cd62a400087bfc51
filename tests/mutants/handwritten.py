"""Faults to plant in hand-written kernels: an edit of one function, and the finding that must come first."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from gemmgen.errors import Diagnostic, GemmgenError
from gluonsim import Result, Severity
from mutants.mutant import changed
from mutants.symptom import Symptom, Told

KERNELS = Path(__file__).parents[1] / "kernels"

Launch = Callable[[ModuleType, Sequence[str]], Result]
"""Launches a kernel of a module under schedules, and tells the simulator the numbers to expect."""


@dataclass(frozen=True)
class Fault:
    """One fault: the edit of a function of a file, the launch that shows it, and the finding to expect."""

    stem: str
    """The file of the kernel in tests/kernels."""
    function: str
    """The edited function; a text to be replaced is there exactly once."""
    launch: Launch
    changes: tuple[tuple[str, str], ...]
    symptom: Symptom

    @property
    def source(self) -> str:
        """The text of the file with the fault."""
        text = (KERNELS / f"{self.stem}.py").read_text(encoding="utf-8")
        whole = function_of(text, self.function)
        return text.replace(whole, changed(whole, self.changes, self.function))

    def told(self, path: Path, schedules: Sequence[str]) -> list[Told]:
        """Write the faulty file to a path, and return the findings of its launch in their order."""
        path.write_text(self.source, encoding="utf-8")
        try:
            result = self.launch(imported(path), schedules)
        except GemmgenError as refused:
            return [_refused(each) for each in refused.diagnostics]
        return [Told.by(finding) for finding in result.findings]


def _refused(diagnostic: Diagnostic) -> Told:
    """Return the end of a launch as a finding without a variable."""
    line = linecache.getline(diagnostic.path, diagnostic.line or 0).strip()
    return Told(diagnostic.code, "", Severity.ERROR, line)


def faults_of(stem: str, function: str, launch: Launch) -> Callable[..., Fault]:
    """Return a constructor of faults in one function, which one launch shows."""

    def fault(
        kind: str,
        name: str,
        line: str,
        *changes: tuple[str, str],
        severity: Severity = Severity.ERROR,
        also: tuple[tuple[str, str, str], ...] = (),
    ) -> Fault:
        return Fault(stem, function, launch, changes, Symptom(kind, name, line, severity, also))

    return fault


def function_of(text: str, name: str) -> str:
    """Return the lines of a function of a module.

    Raises:
        ValueError: The module has no function of this name, or several.
    """
    found = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    if len(found) != 1:
        raise ValueError(f"there must be one function {name}, found {len(found)}")
    lines = text.splitlines(keepends=True)
    return "".join(lines[found[0].lineno - 1 : found[0].end_lineno])


def imported(path: Path) -> ModuleType:
    """Import a file under a name of its own, which the compiler can look up."""
    spec = importlib.util.spec_from_file_location(f"planted_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
