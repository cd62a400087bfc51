"""Times of calls under CUDA graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

Call = Callable[[], object]
ROUNDS = 9
"""Samples of each graph."""


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of the calls, one after the other."""
    calls[0]()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def sample(graph: torch.cuda.CUDAGraph) -> float:
    """Return the time of one replay in us, which begins as soon as an earlier replay ends."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()  # hides the time that the host takes for the second replay
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def microseconds(calls: Mapping[str, Sequence[Call]]) -> dict[str, float]:
    """Return the median time of one call of each sequence, in us.

    Each round has one sample of each sequence, so that all of them meet the same clock of the GPU.
    """
    graphs = {name: captured(each) for name, each in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            samples[name].append(sample(graph) / len(calls[name]))
    return {name: round(statistics.median(each), 2) for name, each in samples.items()}
