"""The timing of several kernels in alternation on the tensors of one shape."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gemmgen.bench.arms import Calls, InputSet, deviation_of, input_sets, judged, wrong
from gemmgen.bench.machine import SuiteMachine, Work
from gemmgen.bench.paired_timing import Arm, call_times, each_set, estimate
from gemmgen.bench.result_log import Rounds
from gemmgen.numerics.encoding import poison
from gemmgen.numerics.reference import Deviation, Tolerance, references, tolerance
from gemmgen.numerics.torch_call import Call
from gemmgen.problem import Shape
from gemmgen.spec import SpecFile

MUCH_SLOWER: Final = 2.5
"""A kernel whose sample takes longer than intended by this factor is captured again with fewer calls."""
LEAST_SUITE_HOST_CALLS: Final = 5


@dataclass(frozen=True)
class Running:
    """An arm that has run on all sets, with the deviation of its first result."""

    name: str
    arm: Calls
    deviation: Deviation


@dataclass(frozen=True)
class Sample:
    """A captured batch of calls, which is timed at once."""

    running: Running
    work: Work
    calls: int


@dataclass(frozen=True)
class TimingSession:
    """The tensors of one shape, and the timing of arms on them."""

    source: SpecFile
    """A spec that states the problem of all arms."""
    shape: Shape
    protocol: Rounds
    machine: SuiteMachine
    sets: tuple[InputSet, ...]
    exact: tuple[tuple[slice, Tensor], ...]
    """Exact result of the first set, in slices of rows."""

    @classmethod
    def of(
        cls,
        source: SpecFile,
        shape: Shape,
        protocol: Rounds,
        machine: SuiteMachine,
        l2_bytes: int,
        pack_scales: Callable[[Tensor], Tensor] | None = None,
    ) -> TimingSession:
        """Draw the inputs for a shape [M, N, K], and compute the exact result of the first set."""
        generator = torch.Generator(machine.device).manual_seed(protocol.seed)
        sets = input_sets(shape, source.problem, l2_bytes, generator, protocol, pack_scales)
        exact = tuple(references(sets[0].inputs, source.problem))
        return cls(source, shape, protocol, machine, sets, exact)

    @property
    def tolerance(self) -> Tolerance:
        """Largest deviation of a correct result."""
        return tolerance(self.source.problem, self.shape, self.source.promote_k)

    def running(self, name: str, bind: Call) -> Running:
        """Call an arm once for each set, and compare its result for the first set with the exact one."""
        found = judged(bind, self.sets[0], self.source.problem, self.exact, self.machine.finish)
        arm = Calls(bind, self.sets)
        each_set(arm, len(self.sets), 1)()
        self.machine.finish()
        return Running(name, arm, found)

    def pass_seconds(self, running: Running) -> float:
        """Return about how long an arm takes for all sets."""
        return estimate(self.machine, self.machine.recorded(each_set(running.arm, len(self.sets), 1)))

    def passes(self, pass_seconds: float) -> int:
        """Return the number of passes over all sets in a sample, from the seconds of one pass."""
        return math.ceil(self.protocol.graph_seconds / pass_seconds)

    def sample(self, running: Running, passes: int) -> Sample:
        """Capture passes over the sets; fewer of them if the kernel is much slower."""
        count = len(self.sets)
        work = self.machine.recorded(each_set(running.arm, count, passes))
        (seconds,) = self.machine.times([work])
        fewer = math.ceil(passes * self.protocol.graph_seconds / seconds)
        if seconds > MUCH_SLOWER * self.protocol.graph_seconds and fewer < passes:
            work, passes = self.machine.recorded(each_set(running.arm, count, fewer)), fewer
            self.machine.times([work])
        return Sample(running, work, passes * count)

    def settle(self, samples: Sequence[Sample], seconds: float) -> None:
        """Keep the GPU at work for this time."""
        start = self.machine.now()
        while self.machine.now() - start < seconds:
            self.machine.times([sample.work for sample in samples])

    def rounds(self, samples: Sequence[Sample], rounds: int) -> dict[int, tuple[float, ...]]:
        """Time each arm once in each round, in random order; return seconds per call of each."""
        generator = random.Random(self.protocol.seed)
        arms = range(len(samples))
        return self.turns(samples, [arm for _ in range(rounds) for arm in generator.sample(arms, len(arms))])

    def final_pairs(self, samples: Sequence[Sample], by_arm: Mapping[int, Sequence[float]], arm: int) -> int:
        """Return the number of pairs of an arm and the baseline, from their times in the rounds."""
        seconds = sum(statistics.median(by_arm[each]) * samples[each].calls for each in (0, arm))
        return max(self.protocol.rounds, round((self.protocol.playoff_seconds or 0) / seconds))

    def turns(self, samples: Sequence[Sample], turns: Sequence[int]) -> dict[int, tuple[float, ...]]:
        """Return seconds per call of each arm, in the order of its turns."""
        times = self.machine.times([samples[arm].work for arm in turns])
        found: dict[int, list[float]] = {}
        for arm, seconds in zip(turns, times, strict=True):
            found.setdefault(arm, []).append(rounded(seconds / samples[arm].calls))
        return {arm: tuple(seconds) for arm, seconds in found.items()}

    def faults_after(self, sample: Sample) -> tuple[str, ...]:
        """Return the faults in the result of one more replay: a kernel may leave state behind."""
        result = sample.running.arm.results[0]
        for each in (result,) if isinstance(result, Tensor) else result:
            each.fill_(poison(each.dtype))
        sample.work()
        self.machine.finish()
        found = deviation_of(result, self.sets[0].inputs, self.source.problem, self.exact)
        return tuple(wrong(self.tolerance, found))

    def host_seconds(self, arm: Arm, pass_seconds: float) -> float:
        """Return the median host time of eager calls, of only a few if they take long on the device."""
        call_seconds = pass_seconds / len(self.sets)
        calls = max(LEAST_SUITE_HOST_CALLS, min(self.protocol.host_calls, int(5e-3 / call_seconds)))
        self.machine.finish()
        found = statistics.median(call_times(arm, len(self.sets), calls, self.machine))
        self.machine.finish()
        return found


def rounded(seconds: float) -> float:
    """Return a number to six digits: more are noise, and a record has many."""
    return float(f"{seconds:.6g}")
