"""Programs of a user that launch Gluon kernels: a script, a function of it, or a kernel and its arguments."""

from __future__ import annotations

import importlib.util
import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from gemmgen import triton_api
from gemmgen.errors import Diagnostic, GemmgenError
from gemmgen.hardware import Gpu
from gluonsim.programs.pretended import QUICK_SCHEDULES, pretended
from gluonsim.progress import Tell
from gluonsim.result import Result


class UsageError(GemmgenError):
    """A program cannot be run as it is asked for: the file, the function or the arguments are wrong."""


@dataclass(frozen=True)
class Program:
    """A file to be run as a script, or a function of it to be called."""

    file: Path
    function: str | None = None
    """A function, or a Gluon kernel."""
    args: str | None = None
    """Its arguments in Python; they can use the names of the file, ``torch`` and ``TensorDescriptor``."""
    grid: str | None = None
    """The grid of a kernel, as between the brackets of a launch; None for other functions."""

    def __str__(self) -> str:
        """Return it as a shell names it."""
        return f"{self.file}::{self.function}" if self.function else str(self.file)


def run_program(
    program: Program,
    gpu: Gpu,
    tell: Callable[[Result], None],
    schedules: tuple[str, ...] = QUICK_SCHEDULES,
    seed: int = 0,
    processes: int = 1,
    programs: int | None = None,
    progress: Tell | None = None,
) -> None:
    """Run a program as if there were such a GPU; `pretended` explains the other arguments.

    Raises:
        UsageError: There is no such file or function, a kernel has no grid or its arguments do not fit it, or
            its programs cannot be sampled.
        GemmgenError: A launch is refused, or the program raises an error itself (``program-failed``).
    """
    file, path = program.file, str(program.file)
    if not file.is_file():
        raise _wrong(path, "no-file", "there is no such file")
    folder = file.resolve().parent
    known = set(sys.modules)
    sys.path.insert(0, str(folder))  # as for a script
    try:
        with pretended(gpu, tell, schedules, seed, processes, programs, progress):
            if program.function is None:
                runpy.run_path(path, run_name="__main__")
            else:
                _call(program, program.function)()
    except KeyboardInterrupt:
        raise
    except GemmgenError as error:
        codes = {found.code for found in error.diagnostics}
        if codes & _asked_codes(program):
            raise UsageError(error.diagnostics) from error
        raise
    except SystemExit as error:
        if error.code:
            raise _failed(path, "program-failed", f"exits with {error.code}") from error
    except BaseException as error:  # whatever somebody else's program raises, pytest's outcomes too
        frames = traceback.extract_tb(error.__traceback__)
        at = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise _failed(path, "program-failed", message, at[-1] if at else None) from error
    finally:
        sys.path.pop(0)
        _forget(sys.modules.keys() - known, folder)


def _asked_codes(program: Program) -> set[str]:
    """Return the codes of refusals that come of the arguments and options of a program."""
    return {"no-sample", "bad-launch"} if program.grid is not None else {"no-sample"}


def _forget(modules: Iterable[str], folder: Path) -> None:
    """Let modules of a folder be imported afresh by the next program: it may lie elsewhere, or be edited."""
    for name in modules:
        path = getattr(sys.modules[name], "__file__", None)
        if path and folder in Path(path).resolve().parents:
            del sys.modules[name]


def _call(program: Program, name: str) -> Callable[[], object]:
    """Import a file, and return the call of its function, or the launch of its kernel."""
    path = str(program.file)
    spec = importlib.util.spec_from_file_location(program.file.stem, program.file)
    assert spec
    assert spec.loader
    module = sys.modules[program.file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Any = getattr(module, name, None)
    is_kernel = triton_api.is_gluon(function)
    if not callable(function) and not is_kernel:
        raise _wrong(path, "no-function", f"has no function {name}")
    if is_kernel and program.grid is None:
        raise _wrong(path, "no-grid", f"{name} is a kernel: name its --grid, and its --args as at a launch")
    if program.grid is not None and not is_kernel:
        raise _wrong(path, "no-kernel", f"{name} is no Gluon kernel, and has no --grid")
    if program.args is None and not is_kernel and _needs_arguments(function):
        raise _wrong(path, "no-function", f"{name} takes arguments: give --args, or run tests with pytest")
    called = cast(Any, function)
    if program.grid is not None:
        called = called[_evaluated(program, module, "grid", f"({program.grid})")]
    args, keywords = _evaluated(program, module, "args", f"collected({program.args or ''})")
    return partial(called, *args, **keywords)


def _needs_arguments(function: Callable[..., object]) -> bool:
    return any(
        parameter.default is parameter.empty for parameter in inspect.signature(function).parameters.values()
    )


def _evaluated(program: Program, module: ModuleType, option: str, text: str) -> Any:
    """Return what an option says, in the names of the file."""
    from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs]
        TensorDescriptor,  # pyright: ignore[reportUnknownVariableType]
    )

    known = {"torch": torch, "TensorDescriptor": TensorDescriptor, **vars(module), "collected": _collected}
    try:
        return eval(text, known)  # a shell's own user says what to call
    except Exception as error:
        message = f"--{option} {getattr(program, option)}: {type(error).__name__}: {error}"
        raise _wrong(str(program.file), "bad-arguments", message) from error


def _collected(*args: object, **keywords: object) -> tuple[tuple[object, ...], dict[str, object]]:
    return args, keywords


def _wrong(path: str, code: str, message: str) -> UsageError:
    return UsageError([Diagnostic(path, code, message)])


def _failed(path: str, code: str, message: str, line: int | None = None) -> GemmgenError:
    return GemmgenError([Diagnostic(path, code, message, line=line)])
