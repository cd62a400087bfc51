"""One fault, planted and judged in a process of its own."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from gemmgen.product import Product
from tools.planted import judge
from tools.planted.faults import ROOT, Fault

MOST_SECONDS: Final = 150
"""For a fault. A module that is not judged by then has a test that does not end."""
RELOADED: Final = ("gemmgen", "gluonsim", judge.__name__)
"""Packages that are imported anew beside a planner with a fault."""


@dataclass(frozen=True)
class Modules:
    """All modules as they are without a fault, by name."""

    products: Mapping[str, Product]
    bases: Mapping[str, judge.Base]
    templates: Mapping[str, frozenset[str]]
    """The names of the templates that each is made of."""
    cover: frozenset[str]

    def made_of(self, template: str) -> frozenset[str]:
        """Return the modules that are made of a template."""
        return frozenset(stem for stem, names in self.templates.items() if template in names)


class OtherText(importlib.machinery.SourceFileLoader, importlib.abc.MetaPathFinder):
    """Finds and loads one module of Python, with another text than its file's."""

    def __init__(self, name: str, file: Path, text: str) -> None:
        super().__init__(name, str(file))
        self._text = text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of this module, None of any other."""
        del path, target
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the other text."""
        del fullname
        return compile(self._text, str(self.path), "exec", dont_inherit=True)


def judged(fault: Fault, modules: Modules, seconds: float) -> tuple[list[dict[str, Any]], str]:
    """Return what a judge tells of a fault, and how its process ended too soon, "" if it did not.

    `seconds` bounds the cover and the other modules, each.
    """
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if not child:
            _be_child(lambda tell: _judge(fault, modules, seconds, tell), file.fileno())
        died = _ended(child, MOST_SECONDS)
        file.seek(0)
        return [json.loads(line) for line in file.read().splitlines() if line.endswith(b"}")], died


def _be_child(function: Callable[[judge.Tell], None], told: int) -> None:
    """Run a function in this process, which ends with it; what it tells is in a file, line by line."""
    status = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        function(lambda what: judge.void(os.write(told, f"{json.dumps(what)}\n".encode())))
        status = 0
    finally:
        os._exit(status)


def _ended(child: int, seconds: float) -> str:
    """Wait for a child, end it and its workers, and return how a fault ended it too soon, "" if none did.

    Raises:
        RuntimeError: The judge itself has failed.
    """
    end = time.monotonic() + seconds
    while not (waited := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not waited[0]:
        os.waitpid(child, 0)
        return "does not end"
    code = os.waitstatus_to_exitcode(waited[1])
    if code > 0:
        raise RuntimeError("the judge of a planted fault has failed")
    return f"ends with signal {-code}" if code else ""


def _judge(fault: Fault, modules: Modules, seconds: float, tell: judge.Tell) -> None:
    text = fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
    if fault.in_template:
        name = fault.file.removeprefix("templates/")
        judge.with_template(name, text)
        stems = modules.made_of(name)
        make_anew = judge.rendered_anew(modules.products)
        judge.Judge(modules.bases, make_anew, tell, seconds).judge(
            stems & modules.cover, stems - modules.cover
        )
        return
    for name in list(sys.modules):
        if name in RELOADED or name.partition(".")[0] in RELOADED:
            del sys.modules[name]
    name = fault.file.removesuffix(".py").replace("/", ".")
    sys.meta_path.insert(0, OtherText(name, ROOT / fault.file, text))
    try:
        reloaded: Any = importlib.import_module(judge.__name__)
    except Exception as error:  # whatever a fault makes of a file when it is imported
        tell({"everything": {"module": name, "kind": "not imported", "text": str(error)[:200]}})
        return
    stems = frozenset(modules.bases)
    make_anew = reloaded.planned_anew(modules.bases)
    reloaded.Judge(modules.bases, make_anew, tell, seconds).judge(
        stems & modules.cover, stems - modules.cover
    )
