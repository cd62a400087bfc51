"""Timing of a kernel and a baseline on one machine, sample by sample in alternation: A B A B."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Final, Literal

from gemmgen.bench.machine import Machine, Work
from gemmgen.bench.record import Protocol, Samples, Timing

Arm = Callable[[int], object]
"""Enqueues the product of the input set of this index."""
ESTIMATE_SECONDS: Final = 1e-3
"""Least duration of an estimate in seconds: a launch is a hundredth of it."""
HOST_ROUND_SECONDS: Final = 0.05
"""Device time of a round of host calls: a full launch queue makes the host wait."""
LEAST_HOST_CALLS: Final = 10


def measure(
    ours: Arm,
    baseline: Arm,
    input_sets: int,
    machine: Machine,
    protocol: Protocol,
    progress: Callable[[str], None],
) -> Timing:
    """Time both arms, each over all input sets in turn. Both must have run once before."""
    arms = (baseline, ours)
    progress("warming up")
    passes = tuple(machine.capture(each_set(arm, input_sets, 1)) for arm in arms)
    call_seconds = min(estimate(machine, one_pass) for one_pass in passes) / input_sets
    method, units, unit_calls = _units(arms, input_sets, call_seconds, machine, protocol)
    runs = math.ceil(protocol.sample_seconds / (call_seconds * unit_calls))
    samples = tuple(_repeat(unit, runs) for unit in units)
    _warm_up(machine, samples, protocol.warm_up_seconds)
    before = machine.state(samples[1])
    baseline_times, our_times = _pairs(samples, runs * unit_calls, machine, protocol, progress)
    return Timing(
        method=method,
        calls_per_sample=runs * unit_calls,
        ours_seconds=our_times,
        baseline_seconds=baseline_times,
        ours_host_seconds=_host_seconds(ours, input_sets, call_seconds, machine, protocol),
        baseline_host_seconds=_host_seconds(baseline, input_sets, call_seconds, machine, protocol),
        state_before=before,
        state_after=machine.state(samples[1]),
    )


def _units(
    arms: tuple[Arm, Arm], input_sets: int, call_seconds: float, machine: Machine, protocol: Protocol
) -> tuple[Literal["events", "graph"], tuple[Work, ...], int]:
    """Return how to time, each arm's unit of work, and the calls in a unit: all sets equally often."""
    if call_seconds >= protocol.graph_below_seconds:
        return "events", tuple(each_set(arm, input_sets, 1) for arm in arms), input_sets
    rounds = math.ceil(protocol.graph_seconds / (call_seconds * input_sets))
    graphs = tuple(machine.capture(each_set(arm, input_sets, rounds)) for arm in arms)
    return "graph", graphs, rounds * input_sets


def _pairs(
    samples: tuple[Work, ...],
    calls: int,
    machine: Machine,
    protocol: Protocol,
    progress: Callable[[str], None],
) -> tuple[Samples, Samples]:
    """Return seconds per call of each arm, sampled in turn: A B A B."""
    times: tuple[list[tuple[float, ...]], ...] = ([], [])
    for repetition in range(protocol.repetitions):
        progress(f"repetition {repetition + 1} of {protocol.repetitions}")
        pairs = [tuple(machine.seconds(sample) / calls for sample in samples) for _ in range(protocol.pairs)]
        for arm, arm_times in enumerate(times):
            arm_times.append(tuple(pair[arm] for pair in pairs))
    return tuple(times[0]), tuple(times[1])


def _warm_up(machine: Machine, samples: tuple[Work, ...], seconds: float) -> None:
    start = machine.now()
    while machine.now() - start < seconds:
        for sample in samples:
            machine.seconds(sample)


def estimate(machine: Machine, work: Work) -> float:
    """Return the approximate time of the work in seconds: the mean of the runs that fill ESTIMATE_SECONDS."""
    runs = 1
    while (seconds := machine.seconds(_repeat(work, runs))) < ESTIMATE_SECONDS:
        runs *= 2
    return seconds / runs


def _host_seconds(
    arm: Arm, input_sets: int, call_seconds: float, machine: Machine, protocol: Protocol
) -> float:
    """Return what an eager call costs the host: the smallest of the rounds' medians."""
    calls = max(LEAST_HOST_CALLS, min(protocol.host_calls, int(HOST_ROUND_SECONDS / call_seconds)))
    medians: list[float] = []
    for _ in range(protocol.host_rounds):
        machine.synchronize()
        medians.append(statistics.median(call_times(arm, input_sets, calls, machine)))
    machine.synchronize()
    return min(medians)


def call_times(arm: Arm, input_sets: int, calls: int, machine: Machine) -> list[float]:
    """Return the host's time of each eager call in seconds; the calls use the input sets in turn."""
    times: list[float] = []
    for call in range(calls):
        start = machine.now()
        arm(call % input_sets)
        times.append(machine.now() - start)
    return times


def each_set(arm: Arm, input_sets: int, rounds: int) -> Work:
    """Return work that calls an arm for all input sets in turn, in this number of rounds."""

    def work() -> None:
        for _ in range(rounds):
            for index in range(input_sets):
                arm(index)

    return work


def _repeat(work: Work, times: int) -> Work:
    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated
