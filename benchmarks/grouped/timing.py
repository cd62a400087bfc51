"""Times of calls on a GPU in CUDA graphs, and the bandwidth at which the GPU reads memory."""
# pyright: basic

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import triton
import triton.language as tl

from gemmgen.device import captured_graph

Call = Callable[[], object]
ROUNDS = 5
"""Replays of the graph of each arm, one arm after the other in each round."""
GRAPH_US, FEWEST_CALLS, MOST_CALLS = 2000.0, 2, 20
"""Device time of a graph, and the number of calls in it."""
READ_BYTES = 2**32
READ_BLOCK = 8192
READER = "best of 5 replays of a Triton kernel that reads 4 GiB and writes nothing, over programs and warps"
"""How the read bandwidth is measured."""


def captured(calls: Sequence[Call], count: int) -> torch.cuda.CUDAGraph:
    """Return a graph of `count` calls, which takes the calls of a sequence in turn."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    with captured_graph() as graph:
        for i in range(count):
            calls[i % len(calls)]()
    return graph


def replayed_us(graph: torch.cuda.CUDAGraph) -> float:
    """Return the device time of a replay in microseconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def times_us(arms: Mapping[str, Sequence[Call]]) -> dict[str, float]:
    """Return the median time of a call of each arm in microseconds.

    An arm is a call on each of several inputs, so that one call finds in L2 no more than a call in a model
    does. All graphs have the same number of calls, and each round replays all of them.
    """
    first = next(iter(arms.values()))
    one = replayed_us(captured(first, FEWEST_CALLS)) / FEWEST_CALLS
    count = max(FEWEST_CALLS, len(first), min(MOST_CALLS, int(GRAPH_US / one)))
    count -= count % len(first)
    graphs = {name: captured(calls, count) for name, calls in arms.items()}
    for graph in graphs.values():
        graph.replay()
    rounds = [{name: replayed_us(graph) for name, graph in graphs.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(each[name] for each in rounds) / count for name in arms}


@triton.jit
def read_kernel(source, result, count, block: tl.constexpr):
    """Read all words; store nothing unless they have a sum that zeros do not have."""
    total = tl.zeros((block,), tl.int32)
    for start in range(tl.program_id(0) * block, count, tl.num_programs(0) * block):
        offsets = start + tl.arange(0, block)
        total += tl.load(source + offsets, mask=offsets < count, other=0, eviction_policy="evict_first")
    if tl.sum(total) == 0x5EC2E7:
        tl.store(result, 1)


def read_bandwidth() -> float:
    """Return the bytes of memory that the GPU reads in a second."""
    source = torch.zeros(READ_BYTES // 4, device="cuda", dtype=torch.int32)
    result = torch.zeros(1, device="cuda", dtype=torch.int32)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    best = 0.0
    for programs, warps in ((4, 4), (4, 8), (8, 4), (8, 8), (16, 4)):

        def read(programs: int = programs, warps: int = warps) -> None:
            launch = cast(Any, read_kernel)[(sms * programs,)]
            launch(source, result, source.numel(), READ_BLOCK, num_warps=warps)

        graph = captured([read], 1)
        best = max(best, *(READ_BYTES / replayed_us(graph) * 1e6 for _ in range(ROUNDS)))
    return best
