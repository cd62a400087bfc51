"""Gluon kernels on the CPU as they are compiled: numbers, races and deadlocks, named by line; no GPU.

It needs torch and Triton alone, and knows nothing of specs: ``gemmgen.verify`` runs their modules in it.
"""

from gemmgen.simulate.execution import run
from gemmgen.simulate.findings import Finding, Kind, Severity
from gemmgen.simulate.launch import simulate
from gemmgen.simulate.policies import POLICIES
from gemmgen.simulate.result import Result
from gemmgen.simulate.trace import Trace

__all__ = ["POLICIES", "Finding", "Kind", "Result", "Severity", "Trace", "run", "simulate"]
