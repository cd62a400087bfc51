"""Compiled Gluon kernels on the CPU: numbers, races and deadlocks, named by line."""

from gemmgen.simulate.findings import Finding, Kind, Severity
from gemmgen.simulate.run import Result, run
from gemmgen.simulate.schedule import POLICIES
from gemmgen.simulate.trace import Trace

__all__ = ["POLICIES", "Finding", "Kind", "Result", "Severity", "Trace", "run"]
