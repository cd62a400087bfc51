"""Other people's tests without a GPU: ``pytest --gluon-simulate=sm90``.

Without the option nothing is imported and nothing changes.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import pytest
from _pytest._code.code import (  # for a plugin's own failures pytest has no public names
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

if TYPE_CHECKING:
    from gluonsim import Finding, Result

PROPERTY = "gluon-simulate"
"""Under this name a test's report carries its launches and findings, also from a worker of xdist."""

SHOWN_TESTS = 3
"""Of a lint or a note that more tests have, which parametrized tests do."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gluon-simulate", "Gluon kernels simulated on the CPU (gemmgen)")
    group.addoption(
        "--gluon-simulate",
        metavar="TARGET",
        help="Simulate every launch of a Gluon kernel as on this GPU: sm90, sm100, h100, h200, b200. "
        "device='cuda' becomes the CPU, and findings fail the test.",
    )
    group.addoption(
        "--gluon-schedules",
        metavar="NAME,…",
        default="lazy,random",
        help="Schedules of each launch, among lazy, eager, lifo, random (default: %(default)s).",
    )
    group.addoption(
        "--gluon-seed", metavar="S", type=int, default=0, help="Of the random schedules (default: 0)."
    )
    group.addoption(
        "--gluon-seconds",
        metavar="S",
        type=float,
        help="Fail a test if one of its launches takes more than S seconds; the failure estimates its time.",
    )
    group.addoption("--gluon-sarif", metavar="FILE", help="Write all findings as SARIF 2.1.0.")


def pytest_configure(config: pytest.Config) -> None:
    """Install the pretended GPU before tests are imported."""
    target = config.getoption("--gluon-simulate")
    if not target:
        return
    collects = gc.isenabled()
    gc.disable()  # in what it imports there is no garbage, and to look for it takes a fifth of the time
    try:
        config.pluginmanager.register(Simulating(config, target), "gluon-simulating")
    finally:
        if collects:
            gc.enable()


class Simulating:
    """The hooks of a run whose launches are simulated."""

    def __init__(self, config: pytest.Config, target: str) -> None:
        from gemmgen.errors import GemmgenError
        from gemmgen.processes.forking import usable_cores
        from gluonsim import gpu_of_target
        from gluonsim.policies import policy_of
        from gluonsim.programs.pretended import pretended
        from gluonsim.progress import at_most

        self._schedules = tuple(filter(None, str(config.getoption("--gluon-schedules")).split(",")))
        self._sarif: str | None = config.getoption("--gluon-sarif")
        self._launched: list[Result] = []
        self._in_test = False
        self._errors: list[Finding] = []
        """Errors of the part of a test that is not reported yet."""
        self._failure: BaseException | None = None
        """By which findings fail a test that is right by itself."""
        self._told: list[dict[str, Any]] = []
        """What the reports of tests say, of this process and of its workers."""
        self._places = ExitStack()
        try:
            gpu = gpu_of_target(target)
            for name in self._schedules or ("",):
                policy_of(name, 0)
            seed = cast(int, config.getoption("--gluon-seed"))
            # Workers of pytest-xdist take the cores already.
            processes = 1 if hasattr(config, "workerinput") else usable_cores()
            most = cast("float | None", config.getoption("--gluon-seconds"))
            limit = None if most is None else at_most(most)
            simulating = pretended(gpu, self._tell, self._schedules, seed, processes, progress=limit)
            self._places.enter_context(simulating)
        except GemmgenError as error:
            raise pytest.UsageError(f"--gluon-simulate: {error.diagnostics[0].message}") from error
        self._gpu = f"{gpu.architecture.name}, {gpu.name}"

    def pytest_unconfigure(self) -> None:
        """Put back what was there before."""
        self._places.close()

    def pytest_report_header(self) -> str:
        """Say what is simulated."""
        return f"gluon-simulate: {self._gpu}, without a GPU; schedules {', '.join(self._schedules)}"

    def _tell(self, result: Result) -> None:
        if not self._in_test:  # at import: there is no test that could fail
            result.raise_on_findings()
        self._launched.append(result)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Judge the launches of fixtures."""
        self._launched.clear()
        return (yield from self._judged(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Judge the launches of a test."""
        return (yield from self._judged(item))

    def _judged(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run a part of a test; fail it where a launch had findings, or add them where it fails anyway."""
        from gemmgen.errors import GemmgenError
        from gluonsim.findings import Severity

        known = len(self._launched)
        self._in_test = True
        try:
            returned = yield
        except GemmgenError as error:  # a launch is refused; how the simulator came to it helps nobody
            _end_where_theirs_ends(error)
            raise
        finally:
            self._in_test = False
            launched = self._launched[known:]
            found = list(
                {str(finding): finding for result in launched for finding in result.findings}.values()
            )
            told = {
                "launches": [{"schedules": len(result.schedules), **result.evidence} for result in launched],
                "findings": [finding.as_dict() for finding in found],
            }
            item.user_properties.append((PROPERTY, json.dumps(told)))
            self._errors = [finding for finding in found if finding.severity is Severity.ERROR]
            if lints := [finding for finding in found if finding.severity is Severity.LINT]:
                item.add_report_section("call", "Gluon simulation", "\n".join(map(_text, lints)))
        if self._errors:
            self._failure = pytest.fail.Exception(FOUND, pytrace=False)
            raise self._failure
        return returned

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put findings ahead of the failure that they cause, and name the first one in the summary."""
        report = yield
        errors, self._errors = self._errors, []
        if errors and report.failed:
            right = call.excinfo is not None and call.excinfo.value is self._failure
            report.longrepr = _headed(report, errors, right=right)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather what a test's report says, which may come from a worker."""
        if report.when == "teardown":
            told = [cast(str, value) for name, value in report.user_properties if name == PROPERTY]
            self._told += ({"test": report.nodeid, **json.loads(values)} for values in told)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how much was simulated and what was found, after what failed no test and is worth a look."""
        from gluonsim.result import counted

        if remarks := self._remarks():
            terminalreporter.section("gluon-simulate: lints and notes")
        for remark, tests in remarks.items():
            terminalreporter.write_line(remark)
            more = [f"and {len(tests) - SHOWN_TESTS} more"] if len(tests) > SHOWN_TESTS else []
            terminalreporter.write_line(f"    in {', '.join([*tests[:SHOWN_TESTS], *more])}")
        launches = [launch for told in self._told for launch in told["launches"]]
        runs = counted(sum(launch["schedules"] for launch in launches), "run")
        found = counted(len(self._findings()), "finding")
        ran = f"{counted(len(launches), 'launch', 'launches')}, {runs} of kernels"
        terminalreporter.write_line(f"gluon-simulate: {ran}, {found}")

    def _remarks(self) -> dict[str, list[str]]:
        """Return lints and notes, each with the tests that it comes from."""
        from gluonsim import Finding, Severity
        from gluonsim.result import notes_by_kernel

        tests: dict[str, dict[str, None]] = {}
        tests_of: dict[str, dict[str, None]] = {}
        for told in self._told:
            for finding in map(Finding.from_dict, told["findings"]):
                if finding.severity is Severity.LINT:
                    tests.setdefault(_text(finding), {})[told["test"]] = None
            for launch in told["launches"]:
                tests_of.setdefault(launch["kernel"], {})[told["test"]] = None
        noted = notes_by_kernel(launch for told in self._told for launch in told["launches"])
        for kernel, notes in noted.items():
            tests |= {f"note: {kernel}: {note}": tests_of[kernel] for note in notes}
        return {remark: list(found) for remark, found in tests.items()}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the findings of all tests."""
        from gluonsim.result import sarif_log

        if self._sarif and not hasattr(session.config, "workerinput"):
            log = json.dumps(sarif_log(self._findings()), indent=2)
            Path(self._sarif).write_text(log + "\n", encoding="utf-8")

    def _findings(self) -> list[Finding]:
        """Return the findings of all tests, each once."""
        from gluonsim import Finding

        found = (Finding.from_dict(values) for told in self._told for values in told["findings"])
        return list({str(finding): finding for finding in found}.values())


FOUND = "the simulation of a Gluon kernel has findings"


def _headed(report: pytest.TestReport, errors: Sequence[Finding], *, right: bool) -> ExceptionChainRepr:
    """Return a failure after the findings that cause it; its summary is the first of them.

    If the test is right by itself, the findings are all of the failure.
    """
    found = ReprEntryNative([f"{line}\n" for line in (FOUND, *map(_text, errors))])
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    brief = f"{_brief(errors[0])}{more}"
    own = report.longrepr
    if right:
        path, line, _ = report.location
        crash = ReprFileLocation(path, (line or 0) + 1, brief)
        return ExceptionChainRepr([(ReprTraceback([found], None, "native"), crash, None)])
    if not isinstance(own, ExceptionChainRepr):  # as of --tb=native
        told = ReprTraceback([ReprEntryNative([f"{report.longreprtext}\n"])], None, "native")
        own = ExceptionChainRepr([(told, getattr(own, "reprcrash", None), None)])
    traceback, crash, description = own.chain[-1]
    if crash is not None:
        own_message = crash.message.partition("\n")[0]
        crash = ReprFileLocation(crash.path, crash.lineno, f"{brief} ({own_message})")
    head = ReprTraceback([found], None, "native"), None, "The test itself fails too:"
    headed = ExceptionChainRepr([head, *own.chain[:-1], (traceback, crash, description)])
    headed.sections = own.sections
    return headed


def _brief(finding: Finding) -> str:
    """Return kind, variable and place of a finding."""
    place = f" {Path(finding.file).name}:{finding.line}" if finding.file else ""
    return f"{finding.kind.value} {finding.name}{place}"


def _end_where_theirs_ends(error: BaseException) -> None:
    """Cut from a traceback the frames of Triton and of the simulator, which follow the user's own."""
    from gemmgen import triton_api

    libraries = (triton_api.library_directory(), Path(triton_api.__file__).parent, Path(__file__).parent)
    last: TracebackType | None = None
    trace = error.__traceback__
    while trace:
        file = Path(trace.tb_frame.f_code.co_filename)
        is_theirs = not any(file.is_relative_to(library) for library in libraries)
        if last and not is_theirs:
            last.tb_next = None
            return
        last = trace if is_theirs else last
        trace = trace.tb_next


def _text(finding: Finding) -> str:
    """Return a finding with the lines that it is about, each under its place."""
    lines = dict.fromkeys(finding.places)
    quoted = [f"    {place}: {place.snippet}" for place in lines]
    place = f"{finding.places[0]}: " if finding.places else ""
    return "\n".join((f"{place}{finding.title}", *quoted))
