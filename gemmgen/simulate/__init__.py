"""Kernels on the CPU as they are compiled: numbers, races and deadlocks, named by line; no GPU.

`simulate` runs the module of a spec in the launches of `all_launches` and its like; `run` runs any Gluon
kernel on given arguments.
"""

from gemmgen.simulate.coverage import (
    Launch,
    all_launches,
    order_launch,
    parse_shape,
    pinned_launches,
    ring_launch,
    schedules,
)
from gemmgen.simulate.execution import Result, run
from gemmgen.simulate.findings import Finding, Kind, Severity
from gemmgen.simulate.policies import POLICIES
from gemmgen.simulate.simulation import Problem, Simulation, simulate
from gemmgen.simulate.trace import Trace

__all__ = [
    "POLICIES",
    "Finding",
    "Kind",
    "Launch",
    "Problem",
    "Result",
    "Severity",
    "Simulation",
    "Trace",
    "all_launches",
    "order_launch",
    "parse_shape",
    "pinned_launches",
    "ring_launch",
    "run",
    "schedules",
    "simulate",
]
