"""The command line of gluonsim alone: ``gluonsim bench.py::small_case``, or ``python -m gluonsim``.

Reports go to stdout, diagnostics to stderr, and progress too if stderr is a terminal. Exit codes: 0 clean, 1
findings or a program that fails, 2 wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gemmgen import __version__
from gemmgen.errors import GemmgenError, install_advice
from gemmgen.literals import visible

if TYPE_CHECKING:
    from gluonsim.programs.program import Program
    from gluonsim.programs.report import Report
    from gluonsim.progress import Progress


def run() -> None:
    """Run the command line and end the process."""
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    except SystemExit as ended:  # wrong usage, or help
        code = ended.code if isinstance(ended.code, int) else 1
    from gemmgen.processes.workers import discard

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    discard()
    os._exit(code)  # at Python's own end Triton's binding library reports leaks of its own on stderr


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code.

    Raises:
        SystemExit: Wrong usage, or help.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    for option in ("trace", "sarif"):
        path: Path | None = getattr(asked, option)
        if path and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"--{option}: no file can be written at {path}")
    if asked.trace and len(asked.subjects) > 1:
        parser.error("--trace: a timeline shows one program")
    is_called = asked.args is not None or asked.grid is not None
    if is_called and any("::" not in subject for subject in asked.subjects):
        parser.error("--args and --grid require FILE.py::FUNCTION")
    for package in ("torch", "triton"):
        if find_spec(package) is None:
            _tell(f"error[no-{package}]: {package} is not installed: {install_advice('simulate')}")
            return 1
    from gemmgen.processes.forking import usable_cores
    from gluonsim.launch import gpu_of_target
    from gluonsim.programs.report import simulate_programs

    try:
        gpu = gpu_of_target(asked.target)
    except GemmgenError as error:
        parser.error(f"--target: {error.diagnostics[0].message}")
    report = simulate_programs(
        [_program(subject, asked.args, asked.grid) for subject in asked.subjects],
        gpu,
        asked.schedules,
        asked.seed,
        asked.processes or usable_cores(),
        asked.programs,
        _show if sys.stderr.isatty() else None,
    )
    _print(report, as_json=asked.json)
    try:
        _write(report, asked.trace, asked.sarif)
    except OSError as error:
        _tell(f"{error.filename}: error[cannot-write]: {error.strerror}")
        return max(report.exit_code, 1)
    return report.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gluonsim",
        description="Find races, deadlocks and wrong numbers of Gluon kernels on the CPU.",
        epilog="Exit codes: 0 clean, 1 findings or a program that fails, 2 wrong usage.",
    )
    parser.add_argument("--version", action="version", version=f"gluonsim {__version__}")
    parser.add_argument(
        "subjects",
        nargs="+",
        metavar="FILE.py[::FUNCTION]",
        help="Scripts or functions that launch Gluon kernels, or a kernel.",
    )
    parser.add_argument(
        "--target", metavar="GPU", default="sm90", help="sm90, sm100, h100, h200 or b200 (default: sm90)."
    )
    parser.add_argument("--args", metavar="ARGS", help="Arguments for FUNCTION: 'torch.ones(64), n=64'.")
    parser.add_argument("--grid", metavar="GRID", help="Grid for a FUNCTION that is a kernel.")
    for option, default, least, told in (
        ("--schedules", 10, 0, "Random schedules, in addition to the fixed ones (default: 10)."),
        ("--seed", 0, 0, "Seed of the random schedules and of samples (default: 0)."),
        ("--programs", None, 1, "Run only N programs of each grid, chosen by the seed."),
        ("--processes", None, 1, "Worker processes (default: the cores of this machine)."),
    ):
        parser.add_argument(option, metavar="N", type=_at_least(least), default=default, help=told)
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="Write the timeline of the first launch that has an error, or else the first, for Perfetto.",
    )
    parser.add_argument("--sarif", metavar="FILE", type=Path, help="Write findings as SARIF 2.1.0.")
    parser.add_argument("--json", action="store_true", help="Print results and diagnostics as JSON.")
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option that is a number from `least` on."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def _program(subject: str, args: str | None, grid: str | None) -> Program:
    from gluonsim.programs.program import Program

    file, _, function = subject.partition("::")
    return Program(Path(file), function or None, args, grid)


def _print(report: Report, *, as_json: bool) -> None:
    diagnostics = [found for error in report.errors for found in error.diagnostics]
    for found in diagnostics:
        _tell(str(found))
    if as_json:
        values = {
            "results": report.as_dict(),
            "diagnostics": [found.as_dict() for found in diagnostics],
        }
        sys.stdout.write(json.dumps(values, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{visible(text, lines=True)}\n" for text in report.texts)


def _write(report: Report, trace: Path | None, sarif: Path | None) -> None:
    """Write the files; the timeline is of the first launch with an error, or else of the first."""
    from gluonsim.result import sarif_log

    if sarif:
        sarif.write_text(json.dumps(sarif_log(report.findings), indent=2) + "\n", encoding="utf-8")
    if trace and report.timed:
        report.timed.trace.write(trace)


def _show(progress: Progress) -> None:
    _tell(f"simulating {progress}")


def _tell(line: str) -> None:
    """Write a line to stderr with one call, so that nothing comes between its parts."""
    with suppress(OSError):
        sys.stderr.write(visible(line) + "\n")
        sys.stderr.flush()


if __name__ == "__main__":
    run()
