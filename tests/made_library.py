"""Libraries that a test makes of specs and imports, and kernels of them that this CPU computes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from torch import Tensor

from gemmgen import library
from gemmgen.json_files import encoded
from gemmgen.library import package
from gemmgen.library.assemble import Library, assemble
from gemmgen.library.sources import read
from gemmgen.problem.dtypes import Dtypes
from gemmgen.product import make
from gemmgen.tune.candidates import kernel_sha256


def library_of(name: str, specs: Sequence[Path]) -> Library:
    """Return the library of some specs without measurements."""
    found = read(specs)
    return assemble(name, found, library.choose(found))


def imported_library(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package of a folder, imported anew; the test takes it out again."""
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for known in [known for known in sys.modules if known.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, known)
    return importlib.import_module(name)


def made_library(
    name: str, specs: Sequence[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """Return the library of some specs, written into a folder and imported anew."""
    package.write(library_of(name, specs), folder)
    assert package.check(folder / name) == ()
    return imported_library(name, folder, monkeypatch)


def tuned_row(spec: Path, shape: Sequence[int], seconds: float, **other: object) -> dict[str, object]:
    """Return a row of a table of `gemmgen tune` for a spec, with other members in place of its own."""
    product = make(spec)
    m, n, k = shape
    return {
        "table": "gemmgen tune",
        "format": 2,
        "gpu": "NVIDIA H200",
        "m": m,
        "n": n,
        "k": k,
        "dtypes": encoded(Dtypes.of(product.source.problem)),
        "problem": asdict(product.source.contest),
        "description": product.source.description,
        "spec": spec.name,
        "kernel_sha256": kernel_sha256(product.plan, product.source.stem),
        "seconds": seconds,
        "baseline_seconds": 5e-5,
        "first_seconds": 6e-5,
        "tried": 3,
        "date": "2026-11-22T23:30:00Z",
        "gemmgen": "0.1.0",
        "torch": "2.11.0",
        "triton": "3.9.0",
        **other,
    }


def unknown(*_: object) -> tuple[None, None]:
    """Return what a host returns of a call whose launch it has not kept."""
    return None, None


class OnTheCpu:
    """The host side of a kernel that this CPU computes, by the method `computed` of a subclass."""

    called: ClassVar[list[str]] = []
    """The kernels that were asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def computed(self, *inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def run(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor:
        self.called.append(self.name)
        d = self.computed(*inputs)
        return d if out is None else out.copy_(d)

    launch_again = staticmethod(unknown)

    def run_as_operator(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor | None:
        d = self.run(*inputs, out=out)
        return d if out is None else None


@contextmanager
def noting() -> Generator[list[str]]:
    """Yield the kernels on this CPU that are asked for; nothing is compiled before or stays after it."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.reset()
    OnTheCpu.called.clear()
    yield OnTheCpu.called
    dynamo.reset()
