"""C programs that call exported kernels, with a CUDA driver that only logs its calls."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from modules import ROOT, made, spec_file
from programs import compiled_c

from gemmgen.build import export
from gemmgen.features.rendering import sides_of
from gemmgen.plan.wgmma import WgmmaKernel
from gemmgen.render import render_launcher
from gemmgen.render.aot.facts import LaunchFacts

AOT = ROOT / "tests" / "aot"

CALLER = """
#include "{stem}.h"
#include <stdio.h>

int main(int count, char **words)
{{
    gemmgen_kernel *kernel;
    int status = {stem}_load(words[count - 1], &kernel);
    if (status) {{
        printf("load: %d %s\\n", status, gemmgen_message());
        return 1;
    }}
    {stem}_arguments right = {{{arguments}}}, passed;
{before}
#define CALL(change) \\
    passed = right; \\
    passed.change; \\
    status = {stem}_matmul(kernel, &passed, NULL); \\
    printf("%s: %d %s\\n", #change, status, status ? gemmgen_message() : "")
{calls}
    gemmgen_unload(kernel);
    return 0;
}}
"""
"""A program that calls a launcher once for each change of its arguments, and prints what the calls return."""

WITH_WORKSPACE = """
    const size_t bytes = {stem}_workspace_bytes(right.m, right.n);
    if (gemmgen_prepare_workspace(kernel, right.m, right.n, 1 << 20, bytes, NULL, &right.workspace))
        return 1;
"""
"""Statements that pass a workspace at the address 1 << 20."""


@dataclass(frozen=True)
class Called:
    """The result of a C program that called a launcher."""

    returncode: int
    said: list[str]
    """The lines that the program has printed."""
    log: list[str]
    """The lines that the driver has written."""

    @property
    def launch(self) -> list[str]:
        """The lines of the first launch in the log, with the descriptions of its tensors before it."""
        first = next(i for i, line in enumerate(self.log) if line.startswith("cuTensorMapEncodeTiled"))
        end = next(i for i, line in enumerate(self.log) if line.startswith("cuLaunchKernelEx")) + 1
        while end < len(self.log) and self.log[end].startswith("  "):
            end += 1
        return self.log[first:end]


def _folder() -> Path:
    """Return a new directory for all tests of this process."""
    directory = mkdtemp(prefix="gemmgen-export-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


@cache
def driver() -> Path:
    """Compile the driver `aot/fake_cuda.c` once, and return the directory with its libcuda.so.1."""
    directory = _folder()
    compiled_c("-shared", "-fPIC", "-o", directory / "libcuda.so.1", AOT / "fake_cuda.c")
    return directory


@cache
def exported(stem: str) -> Path:
    """Export a committed spec once, and return the directory with its files."""
    directory = _folder()
    export(spec_file(stem), directory)
    return directory


def facts_of(stem: str, cubin: bytes = b"") -> LaunchFacts:
    """Return the launch facts of a committed spec."""
    plan = made(spec_file(stem)).plan
    assert isinstance(plan, WgmmaKernel)
    return LaunchFacts(plan, stem, cubin)


def texts(stem: str) -> dict[str, str]:
    """Return the texts of a launcher, by the names of its files, without compiling the kernel."""
    return render_launcher(facts_of(stem), sides_of, spec_name=f"{stem}.yaml", spec_sha256="0" * 64)


def assert_compiles(stem: str, folder: Path) -> None:
    """Fail unless a compiler takes the launcher of a committed spec, which is written into `folder`."""
    for name, text in texts(stem).items():
        assert not re.search(r"{[{%#]|[%#]}|\bNone\b|\bTrue\b|\bFalse\b|[ \t]$", text, re.MULTILINE), name
        assert "\n\n\n" not in text
        (folder / name).write_text(text)
    compiled_c("-fsyntax-only", folder / f"{stem}.c")


def sources(stem: str, directory: Path) -> tuple[object, ...]:
    """Return the arguments of a compiler for a program that calls an exported launcher."""
    return "-I", directory, directory / f"{stem}.c", directory / "gemmgen_launch.c", "-ldl"


def started(log: Path, *command: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program with that driver, whose source has the settings; its log is written anew."""
    environment = {f"FAKE_CUDA_{name.upper()}": value for name, value in settings.items()}
    paths = {"FAKE_CUDA_LOG": str(log), "LD_LIBRARY_PATH": str(driver())}
    words = [str(word) for word in command]
    log.unlink(missing_ok=True)
    return subprocess.run(
        words, env=os.environ | paths | environment, capture_output=True, text=True, check=False, timeout=60
    )


def called(
    stem: str,
    arguments: str,
    folder: Path,
    changes: Sequence[str] = ("m = right.m",),
    *,
    workspace: bool = False,
    **settings: str,
) -> Called:
    """Call an exported launcher with that driver, once for each change of the right arguments.

    `arguments` is the text of an initializer in C. Files are written into `folder`.
    """
    calls = "\n".join(f"    CALL({change});" for change in changes)
    before = WITH_WORKSPACE.format(stem=stem) if workspace else ""
    (folder / "caller.c").write_text(
        CALLER.format(stem=stem, arguments=arguments, before=before, calls=calls), encoding="utf-8"
    )
    directory = exported(stem)
    compiled_c("-o", folder / "caller", folder / "caller.c", *sources(stem, directory))
    found = started(folder / "log.txt", folder / "caller", directory / f"{stem}.cubin", **settings)
    assert not found.stderr
    return Called(found.returncode, found.stdout.splitlines(), (folder / "log.txt").read_text().splitlines())


def assert_in_order(expected: Sequence[str], lines: Sequence[str]) -> None:
    """Fail unless lines begin with the expected words, one after the other, with any lines between them."""
    left = iter(lines)
    for wanted in expected:
        assert any(line.startswith(wanted) for line in left), (wanted, lines)


def assert_launched(found: Called, expected: Sequence[str]) -> None:
    """Fail unless a call succeeded and its launch has the expected arguments among others."""
    assert (found.returncode, found.said) == (0, ["m = right.m: 0 "])
    assert_in_order(expected, found.launch)


def assert_refused(call: tuple[str, str, Path], expected: Mapping[str, tuple[int, str]]) -> None:
    """Fail unless each change of the arguments of `called` has this status, and names this argument."""
    lines = called(*call, [*expected]).said
    for line, (change, (status, name)) in zip(lines, expected.items(), strict=True):
        assert re.fullmatch(rf"{re.escape(change)}: {status} ({name} must .+)?", line), line
        assert line.endswith(" ") == (not name)
